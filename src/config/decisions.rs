//! `[decisions]`: where other proxies ask, how they are answered, and what Envoy's descriptors mean.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderValue, StatusCode};

use super::kinds::{UNLIMITED, flag, shaped, status_code, text};
use super::named::Named;
use super::read::{Field, Name, Section, Shape, tables};
use super::server::Listener;
use super::tls::{self, Tls};
use super::{
    Action, Cost, DEFAULT_PRIORITY, HeaderChanges, Host, Limit, PathPattern, Route, Source as KeySource, values,
};
use crate::base::units::spelled_duration;
use crate::base::wildcard::Wildcard;
use crate::net::Traffic;

#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    pub listen: SocketAddr,
    pub tls: Option<Tls>,
    pub refused_status: StatusCode,
    /// The first rule that fits a descriptor counts.
    pub descriptors: Vec<DescriptorRule>,
}

/// One of `[[decisions.descriptors]]`: which descriptors it fits, and what limits them.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorRule {
    pub domain: String,
    /// The entries that a descriptor must have, with patterns of their values.
    pub entries: Vec<(String, Wildcard)>,
    /// Whether calls report usage instead of asking for it.
    pub reports: bool,
    /// Whether over the limit is only told.
    pub quota_mode: bool,
    /// Holds the limits. No request matches this route by its path.
    pub route: Route,
}

impl Decisions {
    pub fn listener(&self) -> Listener {
        Listener { address: self.listen, tls: self.tls.is_some(), traffic: Traffic::Decisions }
    }
}

tables! {
    /// Lets other proxies ask this gateway whether its limits admit a request: nginx, Caddy, Traefik, or whatever can ask by
    /// HTTP (docs/decisions.md).
    keys {
        /// Where other proxies ask, over HTTP/1.1 or HTTP/2. The `[server]` keys about connections and sizes also apply
        /// here.
        listen: () = text().required() => "127.0.0.1:9902";
        /// TLS for proxies that ask, as in `[server.tls]`; without this table they use plain HTTP.
        tls: () = shaped(Shape::TableWithout(&tls::keys::TABLE, tls::keys::acme.name));
        /// The status of the answer if a limit refuses the request. nginx's `auth_request` only knows 401 and 403.
        refused_status: StatusCode = status_code(400, 599), 429;
        /// Which limits apply to Envoy's descriptors, if Envoy asks by gRPC (docs/decisions.md).
        descriptors: () = shaped(Shape::List(&Shape::Table(&descriptor::TABLE), 0, 1000));
    }

    /// The descriptors that a rule matches, and their limits. The first rule that matches a descriptor counts; a descriptor
    /// without one is not limited.
    descriptor {
        /// The `domain` of Envoy's rate limit filter.
        domain: () = text().required() => "edge";
        /// Entries that the descriptor must have, in any order and perhaps among others: keys with their values, in which
        /// `*` stands for any text.
        entries: () = shaped(Shape::Named(&Shape::Text)).required() => { remote_address = "*", path = "/v1/*" };
        /// The names of limits whose keys are `descriptor:NAME` or `global`. Each is charged `hits_addend`.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)).required() => ["per-client"];
        /// Treats calls as reports of what was used, as AI gateways send them after the response: charges `hits_addend` in
        /// full, even past the rate, and answers `OK` unless the limit was used up before.
        reports: bool = flag(), false;
        /// Lets calls pass that are over these limits: the status of the descriptor says `OVER_LIMIT`, and the call is `OK`
        /// unless others refuse it.
        quota_mode: bool = flag(), false;
    }
}

/// `None` if the section has no valid address.
pub(super) fn read(section: &Section<'_>, named: &Named<'_>) -> Option<Decisions> {
    let field = section.needed(&keys::listen);
    let listen = field.as_ref().and_then(|field| field.parse(values::socket));
    let tls = section.table(&keys::tls).as_ref().and_then(tls::without_acme);
    let refused_status = section.read(&keys::refused_status);
    let descriptors = section.tables(&keys::descriptors).filter_map(|section| descriptor(&section, named)).collect();
    let client_ca = tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
    let is_open = !client_ca.is_some_and(|client_ca| client_ca.is_required);
    if let Some((listen, field)) = listen.zip(field.as_ref()).filter(|(listen, _)| is_open && !is_private(listen.ip()))
    {
        let help = "listen on a private address, or require certificates of those that ask: \
                    tls = { certificates = ..., client_ca = \"tls/proxies-ca.pem\" }";
        field.warn(format!("whoever can reach {listen} can use up the limits of others"), help);
    }
    let (listen, field) = listen.zip(field)?;
    section.source.bind(listen, field.span);
    Some(Decisions { listen, tls, refused_status, descriptors })
}

fn descriptor(section: &Section<'_>, named: &Named<'_>) -> Option<DescriptorRule> {
    let domain = section.needed(&descriptor::domain).and_then(|field| field.text());
    let entry = |(name, field): (Name<'_>, Field<'_>)| Some((name.text.to_owned(), Wildcard(field.text()?.to_owned())));
    let entries = section.needed(&descriptor::entries);
    let entries = entries.and_then(|field| field.entries("`entries`")?.into_iter().map(entry).collect());
    let limits = section.needed(&descriptor::limits);
    let limits = limits.map(|field| named.limits_in(&field, &descriptor::limits)).unwrap_or_default();
    let (reports, quota_mode) = (section.read(&descriptor::reports), section.read(&descriptor::quota_mode));
    for (index, field) in &limits {
        let Some(limit) = named.limit(*index) else { continue };
        check(limit, field);
        if !reports && !quota_mode {
            warn_of_holds(limit, field);
        }
    }
    let route = route(format!("envoy:{}", domain?), limits.into_iter().map(|(index, _)| index).collect());
    Some(DescriptorRule { domain: domain?.to_owned(), entries: entries?, reports, quota_mode, route })
}

/// Checks that descriptors can have everything that a limit needs.
fn check(limit: &Limit, named: &Field<'_>) {
    let name = &limit.name;
    let is_there = |part: &&KeySource| matches!(part, KeySource::Descriptor(_) | KeySource::Global);
    if let Some(missing) = limit.sources().find(|part| !is_there(part)) {
        let message = format!("`{name}` needs `{missing}`, which descriptors do not have");
        named.report(message, "name a limit whose key is like \"descriptor:remote_address\"");
    }
    if limit.cost != Cost::Fixed(1) {
        let message = format!("`{name}` has a cost, but here a call says what it costs: `hits_addend`");
        named.report(message, "name a limit without `cost`, `count` and `tokens`");
    }
    if limit.max_in_flight.is_some() {
        let message = format!("`{name}` has `max_in_flight`, but a call does not say when a request ends");
        named.report(message, "name a limit with `rates` alone");
    }
    if limit.pool().is_some() {
        let message = format!("`{name}` has an `overflow`, which limits of descriptors cannot have");
        named.report(message, "name a limit without `overflow`");
    }
}

/// Warns of a limit that holds calls for longer than Envoy waits by default.
fn warn_of_holds(limit: &Limit, named: &Field<'_>) {
    let delayed = limit.on_limit.delay().map(|(max_delay, _)| max_delay);
    let longest = delayed.max(limit.slows().map(|slow| slow.up_to));
    if let Some(longest) = longest {
        let message =
            format!("`{}` holds calls, and a request passes if Envoy does not wait for the answer", limit.name);
        let help = format!(
            "a hold ends after three quarters of the `timeout` of Envoy's filter, 20 ms by default: to hold for all of \
             {}, set a third more",
            spelled_duration(longest)
        );
        named.warn(message, help);
    }
}

/// A route that has these limits and answers by itself.
fn route(name: String, limits: Vec<usize>) -> Route {
    Route {
        host: Host::Any,
        path: PathPattern { text: name, segments: Vec::new(), rest: false },
        ignore_case: false,
        methods: Vec::new(),
        headers: Vec::new(),
        scheme: None,
        action: Action::Respond {
            status: StatusCode::OK,
            body: String::new(),
            content_type: HeaderValue::from_static("application/grpc"),
        },
        limits,
        pools: Vec::new(),
        max_body_size: UNLIMITED,
        inspect_body: 0,
        body_timeout: None,
        timeout: None,
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        priority: DEFAULT_PRIORITY,
        cors: None,
    }
}

/// Whether only this machine or a private network can reach the address (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_that_only_their_owner_reaches_are_private() {
        for text in ["127.9.9.9", "10.0.0.1", "172.31.0.1", "192.168.1.1", "169.254.1.1", "::1", "fd00::1", "fe80::1"] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["0.0.0.0", "172.32.0.1", "100.64.0.1", "192.0.2.1", "::", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
        assert!(is_private("::ffff:10.0.0.1".parse().unwrap()));
    }
}
