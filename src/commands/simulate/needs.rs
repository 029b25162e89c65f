//! Which parts of a request the configuration uses, and which of them the log has.

use std::collections::{BTreeSet, HashSet};

use http::{HeaderName, header};

use super::fields::Attribute;
use super::record::{Record, Spent};
use crate::base::http::header_rules::{FORWARDED, FORWARDED_FOR, FORWARDED_PROTO};
use crate::config::{Config, Cost, Host, Limit, Source, UNLIMITED};

#[derive(Clone, Debug)]
pub(super) struct Needs {
    pub(super) headers: HashSet<HeaderName>,
    /// Whether a limit counts by the client's address.
    pub(super) client: bool,
}

/// What the lines so far have.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate observation")]
pub(super) struct Seen {
    pub(super) headers: HashSet<HeaderName>,
    pub(super) query: bool,
    pub(super) host: bool,
    pub(super) status: bool,
    pub(super) cost: bool,
    pub(super) tokens: bool,
    pub(super) bytes: bool,
    /// Whether a time has fractions of a second.
    pub(super) fractions: bool,
    pub(super) json: bool,
    /// Refused requests that the gateway's own log left out.
    pub(super) left_out: u64,
}

/// What a limit uses but the log does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unknown {
    /// Sources that no line has, as the configuration spells them.
    pub(super) sources: Vec<String>,
    /// Whether a part of the key has no other source, so that the limit cannot be simulated.
    pub(super) is_keyless: bool,
    /// Whether later lines have the key, which was found too late.
    pub(super) is_found_later: bool,
}

impl Needs {
    pub(super) fn of(config: &Config) -> Self {
        let sources = || config.limits.iter().flat_map(Limit::sources);
        let mut headers: HashSet<_> = sources().filter_map(Source::header).cloned().collect();
        let conditions = config.routes.iter().flat_map(|route| &route.headers).map(|(name, _)| name);
        let costs = config.limits.iter().filter_map(|limit| limit.cost.request_header());
        headers.extend(conditions.chain(costs).cloned());
        if !config.server.trusted_proxies.is_empty() {
            headers.extend([FORWARDED_FOR, FORWARDED, FORWARDED_PROTO].map(HeaderName::from_static));
        }
        let counts_uploads = |limit: &Limit| matches!(limit.cost, Cost::Bytes(cost) if cost.counted.has_requests());
        if config.routes.iter().any(|route| route.max_body_size != UNLIMITED)
            || config.limits.iter().any(counts_uploads)
        {
            headers.insert(header::CONTENT_LENGTH);
        }
        if config.routes.iter().any(|route| route.cors.is_some()) {
            headers.extend([header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD]);
        }
        Self { headers, client: sources().any(|source| matches!(source, Source::ClientIp { .. })) }
    }
}

impl Seen {
    pub(super) fn note(&mut self, record: &Record) {
        for (name, _) in &record.headers {
            if !self.headers.contains(name) {
                self.headers.insert(name.clone());
            }
        }
        self.query |= record.uri.query().is_some();
        self.host |= record.host.is_some() || record.uri.authority().is_some();
        self.status |= record.status.is_some();
        self.cost |= matches!(record.spent, Some(Spent::Cost(_)));
        self.tokens |= matches!(record.spent, Some(Spent::Tokens(_)));
        self.bytes |= record.bytes.is_some();
        self.fractions |= !record.time.micros().is_multiple_of(1_000_000);
    }

    fn has(&self, source: &Source) -> bool {
        match source {
            Source::Header(_) | Source::Cookie(_) | Source::Bearer => {
                source.header().is_some_and(|name| self.headers.contains(name))
            }
            Source::Query(_) => self.query,
            Source::Host => self.host,
            Source::ClientCert | Source::Jwt { .. } | Source::Json(_) | Source::Descriptor(_) => false,
            Source::ClientIp { .. }
            | Source::Path
            | Source::Capture(_)
            | Source::Method
            | Source::Route
            | Source::Global => true,
        }
    }

    /// What a limit uses but no line has.
    pub(super) fn unknown(&self, limit: &Limit, has_host: bool) -> Unknown {
        let has = |source: &Source| self.has(source) || has_host && *source == Source::Host;
        let missing = limit.sources().filter(|source| !has(source)).map(ToString::to_string);
        let cost = limit.cost.request_header().filter(|name| !self.headers.contains(*name));
        let mut sources: Vec<_> = missing.chain(cost.map(|name| format!("header:{name}"))).collect();
        sources.dedup();
        let is_keyless = limit.key.parts.iter().any(|part| !part.iter().any(has));
        Unknown { sources, is_keyless, is_found_later: false }
    }

    /// Headers that routes require but no line has.
    pub(super) fn unknown_conditions<'a>(&self, config: &'a Config) -> BTreeSet<&'a str> {
        let conditions = config.routes.iter().flat_map(|route| &route.headers).map(|(name, _)| name);
        conditions.filter(|name| !self.headers.contains(*name)).map(HeaderName::as_str).collect()
    }
}

/// How to name the field of a source with `--field`, where this is possible.
pub(super) fn field_hint(source: &str) -> Option<String> {
    let name: HeaderName = match source.split_once(':') {
        Some(("header", name)) => name.parse().ok()?,
        Some(("cookie", _)) => header::COOKIE,
        None if source == "bearer" => header::AUTHORIZATION,
        None if source == "host" => return Some("--field host=NAME or --host NAME".to_owned()),
        _ => return None,
    };
    Some(format!("--field {}=NAME", Attribute::Header(name)))
}

/// The host of lines without a host: the only host that routes name. `None` if others are possible.
pub(super) fn only_host(config: &Config) -> Option<&str> {
    let mut hosts = config.routes.iter().filter_map(|route| match &route.host {
        Host::Exact(name) => Some(name.as_str()),
        Host::Any | Host::Under(_) => None,
    });
    let first = hosts.next()?;
    let no_others = config.routes.iter().all(|route| !matches!(route.host, Host::Under(_)));
    (no_others && hosts.all(|host| host == first)).then_some(first)
}
