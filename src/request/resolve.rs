//! Resolves a request from its head and its connection: to its client, its target and its route, or to the reason why it is
//! refused before its limits are asked. Pure.
//!
//! The proxy, `gateway explain` and `gateway simulate` all use this code, so the commands show what the proxy does.

mod target;
mod unforwarded;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use ipnet::IpNet;

use crate::base::http::via;
use crate::base::reason::Reason;
use crate::config::{Action, Config, Limit, PathRules, Scheme};
use crate::request::identify::RequestAttributes;
use crate::request::identify::ambiguity::SingleSources;
use crate::request::identify::client::{Client, client, scheme};
use crate::request::route::{RouteConditions, Routes};

pub use target::{Target, name_host};
use unforwarded::DecidingHeaders;

pub struct Resolver {
    pub paths: PathRules,
    pub routes: Routes,
    /// By the index that `routes` finds.
    pub rules: Vec<RouteRules>,
    /// The networks of proxies whose X-Forwarded-For and Forwarded are used.
    trusted_proxies: Vec<IpNet>,
    /// `None` if the upstream gets all headers that decide something.
    deciding: Option<DecidingHeaders>,
}

/// The settings of a route that apply before its limits decide.
pub struct RouteRules {
    /// The sources of its keys and costs, which a request may have only once.
    pub single: Arc<SingleSources>,
    /// In bytes.
    pub max_body_size: u64,
    forwards: bool,
    ignore_case: bool,
    /// Whether the route has `cors`, which answers preflights.
    has_cors: bool,
}

#[derive(Clone, Copy)]
pub struct ArrivedRequest<'a> {
    pub head: &'a Parts,
    pub peer: IpAddr,
    pub uses_tls: bool,
    /// The subject of the client's certificate.
    pub client_cert: Option<&'a str>,
    /// The least number of bytes of the body; `None` without a body.
    pub body: Option<u64>,
    /// Why the bytes of the request can be read in two ways, or why it is unknown about which request another proxy asks.
    pub ambiguity: Option<&'static str>,
    /// Whether another proxy asks about the request. Then the gateway does not answer it: the proxy's server answers
    /// preflights, and what follows on the connection are other questions.
    pub is_asked: bool,
}

pub struct Resolved<'a> {
    pub client: Client,
    pub scheme: Scheme,
    /// Empty if the request is refused before its target is known.
    pub target: Target<'a>,
    /// The index of the route, even if the request is refused on that route.
    pub route: Option<usize>,
    pub next: NextStep,
}

pub enum NextStep {
    /// The request is refused, and no limit charges it.
    Refuse(Rejection),
    Unrouted,
    /// `cors` of the route answers the request, which is a preflight.
    Preflight,
    Decide,
}

pub struct Rejection {
    pub status: StatusCode,
    pub reason: Option<Reason>,
    /// A sentence for the client.
    pub detail: Cow<'static, str>,
    /// Whether the connection ends, because what follows on it may belong to the part that was not read.
    pub ends_connection: bool,
}

impl Rejection {
    /// A refusal after which the connection goes on.
    pub fn new(status: StatusCode, reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: Some(reason), detail: detail.into(), ends_connection: false }
    }
}

impl Resolver {
    pub fn new(config: &Config) -> Self {
        let rules = config.routes.iter().map(|route| {
            let limits = route.limits.iter().filter_map(|index| config.limits.get(*index));
            let of_pools = config.pools_of(route).flat_map(Limit::sources);
            // The gateway verifies tokens, and the upstream reads them again.
            let tokens = config.jwts.iter().filter(|jwt| config.uses_token(route, &jwt.name));
            let of_tokens = tokens.map(|jwt| &jwt.from);
            RouteRules {
                single: Arc::new(SingleSources::new(limits, of_pools.chain(of_tokens))),
                max_body_size: route.max_body_size,
                forwards: matches!(route.action, Action::Forward { .. }),
                ignore_case: route.ignore_case,
                has_cors: route.cors.is_some(),
            }
        });
        Self {
            paths: config.server.paths,
            routes: Routes::build(&config.routes, config.server.paths.matching),
            rules: rules.collect(),
            trusted_proxies: config.server.trusted_proxies.clone(),
            deciding: DecidingHeaders::new(config),
        }
    }

    /// Removes the headers of a request that decide something, but that its upstream does not get. The request must not be one
    /// about which another proxy asks: that proxy knows what its server gets.
    pub fn remove_unforwarded(&self, headers: &mut HeaderMap, peer: IpAddr) {
        if let Some(deciding) = &self.deciding {
            deciding.remove_unforwarded(headers, peer, &self.trusted_proxies);
        }
    }

    pub fn resolve<'a>(&self, request: ArrivedRequest<'a>) -> Resolved<'a> {
        let head = request.head;
        let client = client(request.peer, &head.headers, &self.trusted_proxies);
        let scheme = scheme(request.uses_tls, client, &head.headers);
        let mut target = match Target::read(&request, self.paths) {
            Ok(target) => target,
            Err(why) => {
                let ends_connection = why.ends_connection && !request.is_asked;
                let (target, next) = (Target::default(), NextStep::Refuse(Rejection { ends_connection, ..why }));
                return Resolved { client, scheme, target, route: None, next };
            }
        };
        let conditions = RouteConditions { method: &head.method, headers: &head.headers, scheme };
        let preflight = self.preflight_route(&target, conditions);
        let route = preflight.or_else(|| self.routes.find(&target.host, &target.path, conditions));
        let next = match route.and_then(|index| self.rules.get(index)) {
            None => NextStep::Unrouted,
            Some(_) if preflight.is_some() && !request.is_asked => NextStep::Preflight,
            Some(rules) => {
                target.fold(self.paths, rules.ignore_case);
                rules.refusal(&request).map_or(NextStep::Decide, NextStep::Refuse)
            }
        };
        Resolved { client, scheme, target, route, next }
    }

    /// The route that answers this request itself because it is a preflight: the route of the request that the browser plans,
    /// if that route has `cors`.
    fn preflight_route(&self, target: &Target<'_>, conditions: RouteConditions<'_>) -> Option<usize> {
        let method = requested_method(conditions.method, conditions.headers)?;
        let found = self.routes.find(&target.host, &target.path, RouteConditions { method: &method, ..conditions })?;
        self.rules.get(found).filter(|rules| rules.has_cors).map(|_| found)
    }
}

impl RouteRules {
    /// Why the request is refused before the limits of the route decide. `None` if it is not.
    fn refusal(&self, request: &ArrivedRequest<'_>) -> Option<Rejection> {
        if self.forwards && !request.is_asked && via::passages(&request.head.headers) >= via::MOST_PASSAGES {
            let detail = "The request has passed this gateway twice already: its upstream leads back to it.";
            return Some(Rejection::new(StatusCode::LOOP_DETECTED, Reason::Loop, detail));
        }
        if request.body.is_some_and(|size| size > self.max_body_size) {
            let detail = "The body of the request is too large.";
            let rejection = Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, Reason::MaxBodySize, detail);
            return Some(Rejection { ends_connection: true, ..rejection });
        }
        let ambiguity = self.single.ambiguity(&request.head.headers, request.head.uri.query())?;
        Some(Rejection::new(StatusCode::BAD_REQUEST, Reason::AmbiguousKey, ambiguity))
    }
}

impl<'a> ArrivedRequest<'a> {
    /// What keys can be read from, on the route with this name, before a token is verified.
    pub fn attributes<'r>(self, client: &'r Client, target: &'r Target<'_>, route: &'r str) -> RequestAttributes<'r>
    where
        'a: 'r,
    {
        RequestAttributes {
            method: &self.head.method,
            host: &target.host,
            path: target.key(),
            query: self.head.uri.query(),
            headers: &self.head.headers,
            client: client.address,
            contradictory: client.contradictory.as_slice().as_flattened(),
            client_cert: self.client_cert,
            tokens: &[],
            route,
            body: None,
            descriptors: &[],
        }
    }
}

/// The method of the request that a browser plans; `None` if this request is not a preflight.
pub fn requested_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let mut asked = headers.get_all(ACCESS_CONTROL_REQUEST_METHOD).iter();
    let method = asked.next().filter(|_| asked.next().is_none())?;
    Method::from_bytes(method.as_bytes()).ok()
}
