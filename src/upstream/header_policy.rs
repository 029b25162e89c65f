//! Which of a client's headers and trailers the upstream gets, and which trailers of a response the client gets.
//!
//! Most headers pass. Hop-by-hop headers are dropped (RFC 9110, section 7.6.1). Upstreams trust headers about the client and
//! about the "real" target, so these pass only from trusted proxies. Headers that Connection names may be trailers, too, and
//! belong to the connection as well (RFC 9110, section 7.6.1).

use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::request::{BodyRules, RequestHead, UpstreamRequest};
use crate::base::http::header_rules::{Rule, has_any, is_any, is_same_variable, listed};
use crate::request::identify::ambiguity::SingleSources;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderAction {
    /// It is forwarded, unless Connection names it.
    Pass,
    /// It is forwarded only because a trusted proxy has sent it.
    PassListed,
    Drop,
}

/// The rules because of which a header does not always pass.
const KEPT_BACK: [Rule; 4] = [Rule::HopByHop, Rule::OwnInRequests, Rule::Trusted, Rule::TrustedAsWritten];

/// For a header with this name from a peer that is `trusted` or is not.
pub(super) fn header_action(name: &HeaderName, trusted: bool) -> HeaderAction {
    match listed(name.as_str()) {
        Some((_, rules)) if trusted && rules.contains(&Rule::Trusted) => HeaderAction::PassListed,
        Some((written, rules)) if trusted && written == name && rules.contains(&Rule::TrustedAsWritten) => {
            HeaderAction::PassListed
        }
        Some((_, rules)) if has_any(rules, &KEPT_BACK) => HeaderAction::Drop,
        _ => HeaderAction::Pass,
    }
}

/// Whether a client's trailer may be forwarded. Some upstreams read trailers as headers, so a header that is dropped, or is
/// needed before the content, is dropped as a trailer, too.
fn may_trail(name: &HeaderName) -> bool {
    let may = |rules: &[Rule]| !has_any(rules, &KEPT_BACK) && !rules.contains(&Rule::BeforeContent);
    listed(name.as_str()).is_none_or(|(_, rules)| may(rules))
}

pub(super) struct RequestTrailers {
    /// The sources of keys and costs: some upstreams read trailers as headers, and would use another key than was counted.
    counted: Arc<SingleSources>,
    /// The headers that Connection names.
    named: Vec<HeaderName>,
    /// The headers that the route removes or replaces.
    replaced: Vec<HeaderName>,
}

#[derive(Debug, Default)]
pub(super) struct ResponseTrailers {
    /// The headers that Connection names, and those that the route removes or replaces.
    hidden: Box<[HeaderName]>,
}

impl RequestTrailers {
    /// `named` are the headers that the request's Connection names.
    pub(super) fn new(head: &RequestHead<'_>, body: BodyRules<'_>, named: &[&[u8]]) -> Self {
        let named = named.iter().filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        let replaced = head.changes.map(|changes| changes.replaced().cloned().collect()).unwrap_or_default();
        Self { counted: body.counted.clone(), named, replaced }
    }

    /// `None` if the server gets none.
    pub(super) fn passing(&self, trailers: HeaderMap) -> Option<HeaderMap> {
        let is_replaced =
            |name: &HeaderName| self.replaced.iter().any(|other| is_same_variable(other.as_str(), name.as_str()));
        passing(trailers, |name| {
            may_trail(name) && !self.counted.has_header(name) && !is_replaced(name) && !self.named.contains(name)
        })
    }
}

impl ResponseTrailers {
    /// `named` are the headers that the response's Connection names.
    pub(super) fn new(request: &UpstreamRequest<'_>, named: Box<[HeaderName]>) -> Self {
        let Some(changes) = request.response_changes else { return Self { hidden: named } };
        Self { hidden: named.into_iter().chain(changes.replaced().cloned()).collect() }
    }

    /// `None` if the client gets none.
    pub(super) fn passing(&self, trailers: HeaderMap) -> Option<HeaderMap> {
        const NONE: [Rule; 3] = [Rule::HopByHop, Rule::OwnInResponses, Rule::BeforeContent];
        passing(trailers, |name| !is_any(name, &NONE) && !self.hidden.contains(name))
    }
}

/// `None` if none passes.
fn passing(mut trailers: HeaderMap, may_pass: impl Fn(&HeaderName) -> bool) -> Option<HeaderMap> {
    let others: Vec<_> = trailers.keys().filter(|name| !may_pass(name)).cloned().collect();
    others.iter().for_each(|name| _ = trailers.remove(name));
    Some(trailers).filter(|trailers| !trailers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, trusted: bool) -> HeaderAction {
        header_action(&name.parse().unwrap(), trusted)
    }

    #[test]
    fn headers_about_the_client_pass_only_from_trusted_proxies() {
        for name in [
            "Forwarded",
            "X-Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-Forwarded-Host",
            "X-Forwarded-Port",
            "X-Forwarded-Server",
            "X-Forwarded-Prefix",
            "X-Forwarded-Ssl",
            "X-Forwarded-User",
            "X-Forwarded-Something-That-Nobody-Has-Thought-Of-Yet",
            "X-Forwarded-",
            "True-Client-IP",
            "CF-Connecting-IP",
            "X-Client-IP",
            "X-Cluster-Client-IP",
            "X-Original-URL",
            "X-Rewrite-URL",
        ] {
            assert_eq!(of(name, false), HeaderAction::Drop, "{name}");
            assert_eq!(of(name, true), HeaderAction::PassListed, "{name}");
            let underscored = name.replace('-', "_");
            assert_eq!(of(&underscored, false), HeaderAction::Drop, "{underscored}");
        }
    }

    #[test]
    fn headers_that_the_gateway_writes_never_pass() {
        for name in [
            "X-Real-IP",
            "X-Request-ID",
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Keep-Alive",
            "TE",
            "HTTP2-Settings",
        ] {
            for name in [name.to_owned(), name.replace('-', "_")] {
                assert_eq!((of(&name, false), of(&name, true)), (HeaderAction::Drop, HeaderAction::Drop), "{name}");
            }
        }
        for name in [
            "x_forwarded_for",
            "x-forwarded_for",
            "x.forwarded.for",
            "x_forwarded-proto",
            "x~forwarded|host",
            "x_forwarded_client_cert",
        ] {
            assert_eq!((of(name, false), of(name, true)), (HeaderAction::Drop, HeaderAction::Drop), "{name}");
        }
    }

    #[test]
    fn other_headers_pass() {
        for name in [
            "accept",
            "authorization",
            "content-type",
            "cookie",
            "user-agent",
            "via",
            "referer",
            "x-api-key",
            "x_api_key",
            "x-request-ids",
            "x-requested-with",
            "x-forward",
            "x-forwardedfor",
            "cf-ray",
            "true-client",
            "trailer",
            "hosts",
            "x-real-ips",
            "range",
            "x",
            "_",
            "!",
            "0",
        ] {
            assert_eq!(of(name, false), HeaderAction::Pass, "{name}");
        }
    }

    #[test]
    fn headers_that_are_needed_before_the_content_are_no_trailers() {
        let may = |name: &str| may_trail(&name.parse().unwrap());
        for name in ["Authorization", "Cookie", "If-None-Match", "Content-Type", "Trailer", "Via", "Host", "X-Real-IP"]
        {
            assert!(!may(name) && !may(&name.replace('-', "_")), "{name}");
        }
        for name in ["x-sum", "digest", "content-digest", "server-timing", "etag", "x-api-key", "grpc-status"] {
            assert!(may(name), "{name}");
        }
    }
}
