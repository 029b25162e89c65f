//! Which of a client's headers the upstream gets.
//!
//! Most headers pass. Those that belong to one connection are dropped (RFC 9110, section 7.6.1). Upstreams trust headers
//! about the client and about the "real" target, so these pass only from trusted proxies.
//!
//! CGI (RFC 3875, section 4.1.18), and WSGI, Rack and PHP like it, turn a header into a variable in whose name `-` is
//! `_`; some servers replace every character other than letters and digits. They read `X_Real_IP` as X-Real-IP, so a
//! header is recognized here in all these spellings.

use http::HeaderName;

use crate::base::http::trace_context::{TRACEPARENT, TRACESTATE};

pub(super) const FORWARDED: &str = "forwarded";
pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";
pub(super) const FORWARDED_PROTO: &str = "x-forwarded-proto";
pub(super) const FORWARDED_HOST: &str = "x-forwarded-host";
pub(super) const FORWARDED_CLIENT_CERT: &str = "x-forwarded-client-cert";
pub(super) const REAL_IP: &str = "x-real-ip";
pub(super) const REQUEST_ID: &str = "x-request-id";

/// From which peers a listed header passes to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// From no peer: it belongs to the connection, or the gateway writes it. The gateway itself answers "Expect".
    Nobody,
    /// From trusted proxies, and the gateway completes it. Another spelling could contradict what the gateway writes, so it
    /// never passes.
    TrustedAsWritten,
    /// From trusted proxies.
    Trusted,
}

/// Every header that does not always pass.
const LISTED: &[(&str, From)] = &[
    ("host", From::Nobody),
    ("connection", From::Nobody),
    ("content-length", From::Nobody),
    ("transfer-encoding", From::Nobody),
    ("te", From::Nobody),
    ("expect", From::Nobody),
    ("keep-alive", From::Nobody),
    ("proxy-connection", From::Nobody),
    ("upgrade", From::Nobody),
    (REAL_IP, From::Nobody),
    (REQUEST_ID, From::Nobody),
    // They pass if they are valid.
    (TRACEPARENT, From::Nobody),
    (TRACESTATE, From::Nobody),
    (FORWARDED_FOR, From::TrustedAsWritten),
    (FORWARDED_PROTO, From::TrustedAsWritten),
    (FORWARDED_HOST, From::TrustedAsWritten),
    // RFC 7239, and what was used before it.
    (FORWARDED, From::Trusted),
    ("forwarded-for", From::Trusted),
    ("x-forwarded", From::Trusted),
    // Proxies and delivery networks write the client's address into these, and libraries read it there.
    ("client-ip", From::Trusted),
    ("x-client-ip", From::Trusted),
    ("x-cluster-client-ip", From::Trusted),
    ("true-client-ip", From::Trusted),
    ("cf-connecting-ip", From::Trusted),
    ("cf-connecting-ipv6", From::Trusted),
    ("cf-pseudo-ipv4", From::Trusted),
    ("fastly-client-ip", From::Trusted),
    ("fly-client-ip", From::Trusted),
    ("x-appengine-user-ip", From::Trusted),
    ("x-azure-clientip", From::Trusted),
    ("x-envoy-external-address", From::Trusted),
    ("x-original-forwarded-for", From::Trusted),
    // IIS, Symfony and others route by these instead of the target, so the upstream would serve another path than the one
    // that was limited.
    ("x-original-url", From::Trusted),
    ("x-rewrite-url", From::Trusted),
];

/// X-Forwarded-Port, -Endpoint, -Prefix, -Ssl, -User and all others that begin like them.
const FORWARDED_ANYTHING: &str = "x-forwarded-";

/// The listed names by their lengths. Most headers of requests need only one look at the first letters.
static INDEX: Index = Index::new();

/// See [`INDEX`].
struct Index {
    /// All of them, the shortest first.
    names: [(&'static str, From); LISTED.len()],
    /// For each length, where its names begin and end in `names`.
    places: [(usize, usize); LENGTHS],
    /// For each length, the first letters of its names as bits. The last stands for all longer names, too.
    firsts: [u32; LENGTHS],
}

/// Every listed name is shorter.
const LENGTHS: usize = 32;

impl Index {
    const fn new() -> Self {
        let mut index = Self { names: [LISTED[0]; LISTED.len()], places: [(0, 0); LENGTHS], firsts: [0; LENGTHS] };
        let (mut length, mut count) = (0, 0);
        while length < LENGTHS {
            let begin = count;
            let mut listed = LISTED;
            while let [(name, from), rest @ ..] = listed {
                if name.len() == length {
                    index.names[count] = (name, *from);
                    index.firsts[length] |= 1 << (name.as_bytes()[0] - b'a');
                    count += 1;
                }
                listed = rest;
            }
            index.places[length] = (begin, count);
            if length >= FORWARDED_ANYTHING.len() {
                index.firsts[length] |= 1 << (b'x' - b'a');
            }
            length += 1;
        }
        assert!(count == LISTED.len() && index.places[LENGTHS - 1].0 == count, "each listed name is shorter");
        index
    }
}

/// What the gateway does with a client's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderAction {
    /// It is forwarded, unless Connection names it.
    Pass,
    /// It is listed, but is forwarded because a trusted proxy has sent it.
    PassListed,
    /// It is not forwarded.
    Drop,
}

/// The action for a header with this name from a peer that is `trusted` or is not.
pub(super) fn header_action(name: &HeaderName, trusted: bool) -> HeaderAction {
    let name = name.as_str();
    match listed(name) {
        None => HeaderAction::Pass,
        Some((_, From::Trusted)) if trusted => HeaderAction::PassListed,
        Some((written, From::TrustedAsWritten)) if trusted && written == name => HeaderAction::PassListed,
        Some(_) => HeaderAction::Drop,
    }
}

/// Headers that are never forwarded as trailers, because they have to be known before the content: authentication,
/// modifiers and conditions of the request, and the description of the content (RFC 9110, section 6.5.1). The gateway
/// writes Via itself.
const BEFORE_CONTENT: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "cache-control",
    "pragma",
    "max-forwards",
    "range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
    "content-type",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "trailer",
    "via",
];

/// Whether a client's trailer may be forwarded. Some upstreams read trailers as headers, so a header that is dropped, or is
/// needed before the content, is dropped as a trailer too.
pub(super) fn may_trail(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_before_content = BEFORE_CONTENT.iter().any(|other| other.len() == name.len() && reads_as(name, other));
    listed(name).is_none() && !is_before_content
}

/// The listed header that upstreams may read this one as.
fn listed(name: &str) -> Option<(&'static str, From)> {
    let first = u32::from(name.as_bytes().first()?.wrapping_sub(b'a'));
    let length = name.len().min(LENGTHS - 1);
    if INDEX.firsts[length].checked_shr(first)? & 1 == 0 {
        return None;
    }
    let (begin, end) = INDEX.places[length];
    let exact = INDEX.names[begin..end].iter().find(|(listed, _)| reads_as(name, listed));
    let beginning = || name.get(..FORWARDED_ANYTHING.len()).filter(|start| reads_as(start, FORWARDED_ANYTHING));
    exact.copied().or_else(|| beginning().map(|_| (FORWARDED_ANYTHING, From::Trusted)))
}

/// Whether a name of the same length is the listed one after every character other than letters and digits is replaced by
/// `-`.
fn reads_as(name: &str, listed: &str) -> bool {
    let mut pairs = name.bytes().zip(listed.bytes());
    pairs.all(|(found, wanted)| found == wanted || (wanted == b'-' && !found.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        ] {
            for name in [name.to_owned(), name.replace('-', "_")] {
                assert_eq!((of(&name, false), of(&name, true)), (HeaderAction::Drop, HeaderAction::Drop), "{name}");
            }
        }
        for name in ["x_forwarded_for", "x-forwarded_for", "x.forwarded.for", "x_forwarded-proto", "x~forwarded|host"] {
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

    proptest! {
        #[test]
        fn the_lookup_by_length_and_letter_misses_no_header(at in 0..LISTED.len(), signs in "[-_.!#$%&'*+^`|~]{8}", more in "[a-z_-]{0,40}") {
            let mut signs = signs.chars().cycle();
            let mut spelled = |name: &str| -> String {
                name.chars().map(|c| if c == '-' { signs.next().unwrap() } else { c }).collect()
            };
            prop_assert_eq!(of(&spelled(LISTED[at].0), false), HeaderAction::Drop);
            prop_assert_eq!(of(&(spelled(FORWARDED_ANYTHING) + &more), false), HeaderAction::Drop);
        }
    }
}
