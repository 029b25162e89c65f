//! The configuration as it runs: every value is checked, and every default is filled in.
//!
//! A [`Document`] is the only way to make one, for running, checking and reloading alike. Where its bytes come from is not known
//! here. But the files that it names are read here, so their problems are reported at the key that names them.

mod texts;
mod report;
mod syntax;
mod elsewhere;
mod read;
mod values;
mod kinds;
pub mod regular_file;
pub mod state_folder;
pub mod temporary_file;
mod secret;
mod content;
mod pem_files;
mod acme;
mod tls;
mod server;
mod key;
mod jwt;
mod written_key;
pub mod known_keys;
pub mod overrides;
mod postgres;
mod upstream;
mod store;
mod limit;
mod named;
mod route;
mod decisions;
mod admin;
mod log;
mod tracing;
mod notices;
mod file;
mod advice;
mod merge;
mod document;
mod schema;
mod shown;
mod reload;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use http::StatusCode;

use crate::net::tls::{Identity, TlsSettings};

pub use crate::base::http::path::{EscapedSlashes, PathMatching, PathRules};
pub use acme::{Acme, Challenge};
pub use admin::{Access, Admin, AdminAddress, AdminToken};
pub use decisions::{Decisions, DescriptorRule};
pub use document::{Document, ReadFile};
pub use jwt::{Jwks, Jwt};
pub use key::{Key, Missing, Source};
pub use kinds::UNLIMITED;
pub use limit::{
    Ban, BanResponse, ByteCost, Cost, CountedBytes, HeaderStyle, HttpQuotas, Limit, ModelWeights, OnExhausted, OnLimit,
    PostgresSettings, QuotaServer, Quotas, Role, SentKey, Slow, Tiers, TokenCost, WithoutUsage, quota_rates,
    temporary_again, temporary_override,
};
pub use log::{AccessFormat, AccessLog, LOG_LEVELS, Log, LogFormat};
pub use notices::NoticeReceiver;
pub use postgres::{PostgresTls, PostgresUrl};
pub use read::AtStart;
pub use reload::{MAX_LAYOUTS, Recounted, ReloadError, changed_overrides, dropped, needs_restart, recounted};
pub use report::Problems;
pub use route::{
    Action, Cors, HeaderChanges, HeaderMatch, HeaderText, Host, OriginPattern, PathPattern, Redirect, Route, Scheme,
    Segment, SentPath, Template, TemplatePart, is_secret,
};
pub use schema::schema;
pub use server::{DEFAULT_PRIORITY, HIGHEST_PRIORITY, Http2, Listener, MaxConnections, Server, Shed, is_in};
pub use store::{Login, OnError, Share, SharedStore, Software, Store};
pub use tls::{CertificateFiles, Tls};
pub use tracing::{Collector, Tracing};
pub use upstream::{
    AdaptiveBounds, Address, Balance, Ejection, HealthCheck, Overload, ProxyProtocol, Retry, Upstream, UpstreamServer,
    UpstreamTls,
};
pub use values::{admin_url, document_url};
pub use written_key::KeyForms;

/// Parses the text of one file. Problems call the file `name`, and relative paths in it start at `folder`. The error has all
/// its problems.
pub fn parse(bytes: &[u8], name: &str, folder: &Path) -> Result<Config, Problems> {
    Document::one(name, bytes.to_vec(), Some(folder)).config()
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub server: Server,
    /// Without this section, no other proxy can ask.
    pub decisions: Option<Decisions>,
    pub log: Log,
    /// Without this section, there is no admin listener.
    pub admin: Option<Admin>,
    /// Without this section, no spans are recorded.
    pub tracing: Option<Tracing>,
    /// In the order of the file.
    pub notices: Vec<NoticeReceiver>,
    pub store: Store,
    /// How many gateways share the limits, at least 1. It is 1 after reading if the number comes from looking up a name.
    pub gateways: u64,
    pub upstreams: Vec<Upstream>,
    pub jwts: Vec<Jwt>,
    pub limits: Vec<Limit>,
    /// In the order of the file; `route` sorts them.
    pub routes: Vec<Route>,
    /// The files that the configuration was read from.
    pub files: BTreeSet<PathBuf>,
    /// The settings for which a change needs a restart.
    pub at_start: Vec<AtStart>,
    /// Settings that are valid, but probably not intended.
    pub warnings: Problems,
}

impl Config {
    /// Lets this many gateways share the limits with `share`. Returns whether the number has changed.
    pub fn share_among(&mut self, gateways: u64) -> bool {
        self.limits.iter_mut().filter_map(|limit| limit.gateways.as_mut()).for_each(|shared| *shared = gateways);
        std::mem::replace(&mut self.gateways, gateways) != gateways
    }

    /// The limits that decide about requests of a route: those that it names, then their pools that it does not name.
    pub fn limits_of(&self, route: &Route) -> impl Iterator<Item = &Limit> {
        route.limits.iter().chain(&route.pools).filter_map(|index| self.limits.get(*index))
    }

    /// The upstream to which the requests of a route are forwarded.
    pub fn upstream_of(&self, route: &Route) -> Option<&Upstream> {
        self.upstreams.get(route.action.upstream()?)
    }

    /// The pools that the route does not name.
    pub fn pools_of(&self, route: &Route) -> impl Iterator<Item = &Limit> {
        route.pools.iter().filter_map(|index| self.limits.get(*index))
    }

    pub fn descriptors(&self) -> &[DescriptorRule] {
        self.decisions.as_ref().map_or(&[], |decisions| &decisions.descriptors)
    }

    /// The status by which other proxies learn that a limit refuses a request.
    pub fn refused_status(&self) -> StatusCode {
        self.decisions.as_ref().map_or(StatusCode::TOO_MANY_REQUESTS, |decisions| decisions.refused_status)
    }

    /// All listeners except that of the admin API.
    pub fn listeners(&self) -> impl Iterator<Item = Listener> {
        self.server.listen.iter().copied().chain(self.decisions.as_ref().map(Decisions::listener))
    }

    /// The TLS of each kind of traffic, in the order of [`crate::net::Traffic`], then that of the admin listener.
    pub fn tls(&self) -> [Option<&Tls>; 3] {
        let decisions = self.decisions.as_ref().and_then(|decisions| decisions.tls.as_ref());
        [self.server.tls.as_ref(), decisions, self.admin.as_ref().and_then(|admin| admin.tls.as_ref())]
    }

    pub fn tls_settings(&self) -> [Option<&TlsSettings>; 3] {
        self.tls().map(|tls| tls.map(|tls| &tls.settings))
    }

    /// The certificates of all listeners, each file once, in the order in which they expire.
    pub fn identities(&self) -> Vec<&Identity> {
        let settings = self.tls_settings().into_iter().flatten();
        let mut all: Vec<_> = settings.flat_map(|settings| &settings.identities).collect();
        // If a file was replaced between two readings, the certificate that expires first counts.
        all.sort_by_key(|identity| (&identity.file, identity.not_after));
        all.dedup_by_key(|identity| &identity.file);
        all.sort_by_key(|identity| identity.not_after);
        all
    }

    pub fn acme(&self) -> Option<&Acme> {
        self.server.tls.as_ref()?.acme.as_ref()
    }

    /// The same configuration with the certificate that an authority has issued.
    #[must_use]
    pub fn with_issued(mut self, issued: Option<&Identity>) -> Self {
        self.server.tls.iter_mut().for_each(|tls| tls.issue(issued));
        self
    }

    #[must_use]
    pub fn with_tls(mut self, [server, decisions, admin]: [Option<Tls>; 3]) -> Self {
        self.server.tls = server;
        self.decisions.iter_mut().for_each(|section| section.tls.clone_from(&decisions));
        self.admin.iter_mut().for_each(|section| section.tls.clone_from(&admin));
        self
    }
}
