//! Removes headers that decide something but that the upstream does not get: those that only trusted proxies may send, and
//! those of route conditions that Connection names. Otherwise a client could choose its key, its rates or its route by a
//! header that its server never sees.
//!
//! The source of a key that Connection names is not removed: that request is refused as ambiguous.

use std::collections::HashSet;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header};
use ipnet::IpNet;

use crate::base::http::header_list;
use crate::base::http::header_rules::{Rule, is_any, is_of_proxies};
use crate::config::{Config, Source, is_in};

/// The headers that decide something in a configuration and that the upstream does not get from every client.
pub(super) struct DecidingHeaders {
    /// Only trusted proxies may send them.
    of_proxies: HashSet<HeaderName>,
    /// Routes have conditions on them.
    of_routes: HashSet<HeaderName>,
}

impl DecidingHeaders {
    /// `None` if there are none.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let in_limits = config.limits.iter().flat_map(|limit| limit.sources().filter_map(Source::header));
        let costs = config.limits.iter().filter_map(|limit| limit.cost.request_header());
        let tokens = config.jwts.iter().filter_map(|jwt| jwt.from.header());
        let of_routes = config.routes.iter().flat_map(|route| route.headers.iter().map(|(name, _)| name));
        let all = in_limits.chain(costs).chain(tokens).chain(of_routes.clone());
        let headers = Self {
            of_proxies: all.filter(|name| is_of_proxies(name)).cloned().collect(),
            // The gateway itself reads headers that belong to a connection.
            of_routes: of_routes.filter(|name| !is_any(name, &[Rule::HopByHop])).cloned().collect(),
        };
        let is_empty = headers.of_proxies.is_empty() && headers.of_routes.is_empty();
        (!is_empty).then_some(headers)
    }

    /// Not inline, because most configurations have no such headers.
    #[inline(never)]
    pub(super) fn remove_unforwarded(&self, headers: &mut HeaderMap, peer: IpAddr, trusted: &[IpNet]) {
        if !self.of_proxies.is_empty() && !is_in(peer, trusted) {
            self.of_proxies.iter().for_each(|name| _ = headers.remove(name));
        }
        if !self.of_routes.is_empty() {
            let named = header_list::members(headers, &header::CONNECTION);
            let named = named.filter_map(|name| HeaderName::from_bytes(name).ok());
            let named: Vec<_> = named.filter(|name| self.of_routes.contains(name)).collect();
            named.iter().for_each(|name| _ = headers.remove(name));
        }
    }
}
