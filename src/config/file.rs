//! The whole file: its sections, and what is read of them.
//!
//! Each section has a table of its keys, each with its values, its default and its purpose. The readers, the JSON schema and
//! docs/reference.md all use these tables. A default is read like a value of the file. So documentation and readers cannot
//! disagree.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use ::tracing::Level;
use toml::Spanned;
use toml::de::DeTable;

use super::acme::{self, Challenge};
use super::admin::{self, Admin};
use super::decisions::{self, Decisions, DescriptorDraft};
use super::jwt::{self, Jwt};
use super::key::{Missing, Names};
use super::kinds::shaped;
use super::limit::{self, BanResponse, CountedBytes, HeaderStyle, Limit, OnExhausted, Overflow, SentKey, WithoutUsage};
use super::log::{self, AccessFormat, Log, LogFormat};
use super::notices::{self, NoticesDraft};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Name, Section, Shape, Source, tables};
use super::route;
use super::server::{self, Server};
use super::store::{self, OnError, Store};
use super::tls;
use super::tracing::{self, Tracing};
use super::upstream::{self, Upstream};
use super::written_key::KeyForms;
use super::{EscapedSlashes, PathMatching};
use crate::limit::Edge;
use crate::net::tls::MinVersion;

/// Values are checked, but names of limits and upstreams are not yet looked up.
pub(super) struct Draft<'a> {
    pub(super) server: Server,
    pub(super) decisions: Option<Decisions>,
    pub(super) log: Log,
    pub(super) admin: Option<Admin>,
    pub(super) tracing: Option<Tracing>,
    pub(super) notices: Vec<NoticesDraft<'a>>,
    pub(super) store: Store,
    /// `None` if the section has an error, as in the next two fields.
    pub(super) upstreams: Vec<(Name<'a>, Option<Upstream>)>,
    pub(super) jwts: Vec<(Name<'a>, Option<Jwt>)>,
    pub(super) limits: Vec<(Name<'a>, Option<Limit>)>,
    /// One for each limit.
    pub(super) overflows: Vec<Overflow<'a>>,
    pub(super) routes: Vec<route::Draft<'a>>,
    pub(super) descriptors: Vec<DescriptorDraft<'a>>,
    /// The addresses of all listeners, and their places in the file.
    pub(super) listeners: Vec<(SocketAddr, Range<usize>)>,
}

/// A value that the file spells as a word.
pub trait Word {
    fn word(self) -> &'static str;
}

macro_rules! words {
    ($($value:ty: $key:path;)*) => { $(
        impl Word for $value {
            fn word(self) -> &'static str {
                $key.word(self)
            }
        }
    )* };
}

words! {
    PathMatching: server::keys::path_matching;
    EscapedSlashes: server::keys::escaped_slashes;
    MinVersion: tls::keys::min_version;
    Challenge: acme::keys::challenge;
    Level: log::keys::level;
    LogFormat: log::keys::format;
    AccessFormat: log::keys::access_format;
    OnError: store::keys::on_error;
    Edge: limit::keys::edge;
    HeaderStyle: limit::keys::headers;
    Missing: limit::keys::missing;
    BanResponse: limit::ban::respond;
    SentKey: limit::quota_keys::send;
    WithoutUsage: limit::cost_keys::without_usage;
    OnExhausted: limit::cost_keys::on_exhausted;
    CountedBytes: limit::cost_keys::bytes;
}

tables! {
    /// The configuration of a gateway.
    root "the file" {
        /// How clients connect, and what they may do.
        server: () = shaped(Shape::Table(&server::keys::TABLE));
        /// Lets other proxies ask this gateway whether its limits admit a request; without this table they cannot.
        decisions: () = shaped(Shape::Table(&decisions::keys::TABLE));
        /// What the gateway writes to standard error.
        log: () = shaped(Shape::Table(&log::keys::TABLE));
        /// A listener for operators; without this table there is none.
        admin: () = shaped(Shape::Table(&admin::keys::TABLE));
        /// Sends spans of requests to an OpenTelemetry collector; without this table there are none.
        tracing: () = shaped(Shape::Table(&tracing::keys::TABLE));
        /// Tells servers when a key has used a share of a rate.
        notices: () = shaped(notices::SHAPE);
        /// Where the gateway keeps its counters.
        store: () = shaped(Shape::Table(&store::keys::TABLE));
        /// Servers that answer requests; routes refer to them by name.
        upstreams: () = shaped(Shape::Named(&Shape::Table(&upstream::keys::TABLE)));
        /// Trusted issuers of tokens; sources of keys refer to them by name.
        jwt: () = shaped(Shape::Named(&Shape::Table(&jwt::keys::TABLE)));
        /// What the gateway counts, and how much it allows; routes refer to limits by name.
        limits: () = shaped(Shape::Named(&Shape::Table(&limit::keys::TABLE)));
        /// Which requests the gateway answers, and how.
        routes: () = shaped(Shape::List(&Shape::Table(&route::keys::TABLE), 0, usize::MAX));
    }
}

/// Reads `[admin]` alone, even if other sections are wrong.
pub(super) fn read_admin<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Option<Admin> {
    let section = Section::root(table, &root::TABLE, source).table(&root::admin);
    section.and_then(|section| admin::read(section, &mut Vec::new()))
}

pub(super) fn read<'a>(table: &'a Spanned<DeTable<'a>>, source: &'a Source<'a>) -> Draft<'a> {
    source.sections.set(root::TABLE.names);
    let root = Section::root(table, &root::TABLE, source);
    let mut listeners = Vec::new();
    let has_decisions = root.field(&root::decisions).is_some();
    let system = SystemAuthorities::default();
    let server = server::read(root.table_or_empty(&root::server), has_decisions, &system, &mut listeners);
    let (decisions, descriptors) =
        root.table(&root::decisions).map(|section| decisions::read(section, &mut listeners)).unwrap_or_default();
    let log = log::read(root.table_or_empty(&root::log));
    let admin = root.table(&root::admin).and_then(|section| admin::read(section, &mut listeners));
    let tracing = root.table(&root::tracing).and_then(|section| tracing::read(section, &system));
    let notices = root.tables(&root::notices).map(|section| notices::read(section, &system)).collect();
    let store = store::read(root.table_or_empty(&root::store), &system);
    let named = |key, title| root.field(key).and_then(|field| field.entries(title)).unwrap_or_default();
    let upstreams = named(&root::upstreams, "[upstreams.NAME]");
    let jwts = named(&root::jwt, "[jwt.NAME]");
    let limits = named(&root::limits, "[limits.NAME]");
    let routes = route::read(&root, &root::routes);
    root.close();
    let tokens = Names::new(&jwts);
    let upstream =
        |(name, field): (Name<'a>, Field<'a>)| (name.clone(), upstream::read(&name, &field, &system, &tokens));
    let ignoring_case = ignoring_case(&limits, &routes);
    let limit = |(name, field): (Name<'a>, Field<'a>)| {
        let ignore_case = ignoring_case.get(name.text).copied().unwrap_or(false);
        let forms = KeyForms { paths: server.paths, ignore_case };
        let (limit, overflow) = limit::read(&name, &field, &tokens, &system, &store, forms);
        ((name, limit), overflow)
    };
    let (limits, overflows) = limits.into_iter().map(limit).unzip();
    Draft {
        server,
        decisions,
        log,
        admin,
        tracing,
        notices,
        store,
        upstreams: upstreams.into_iter().map(upstream).collect(),
        limits,
        overflows,
        jwts: jwts.into_iter().map(|(name, field)| (name.clone(), jwt::read(&name, &field, &system))).collect(),
        routes,
        descriptors,
        listeners,
    }
}

/// For each limit of a route, as its own or as a pool: whether all its routes ignore the case of paths.
fn ignoring_case<'a>(limits: &[(Name<'a>, Field<'a>)], routes: &[route::Draft<'a>]) -> HashMap<&'a str, bool> {
    let pool = |(name, field): &(Name<'a>, Field<'a>)| Some((name.text, field.text_of(limit::keys::overflow.name)?));
    let pools: HashMap<_, _> = limits.iter().filter_map(pool).collect();
    let mut all = HashMap::new();
    for route in routes {
        let ignores = route.ignore_case == Some(true);
        for name in &route.limits {
            for limit in [Some(name.text), pools.get(name.text).copied()].into_iter().flatten() {
                *all.entry(limit).or_insert(true) &= ignores;
            }
        }
    }
    all
}
