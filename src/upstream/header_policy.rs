//! Which of a client's headers the upstream gets.
//!
//! Most pass. Those that belong to one connection stay on it (RFC 9110, section 7.6.1). Those that say where a request
//! comes from, or which target it "really" has, are believed by upstreams: they pass from proxies that are trusted only.
//!
//! CGI (RFC 3875, section 4.1.18), and WSGI, Rack and PHP after it, read a header as a variable in whose name `-`
//! becomes `_`, some servers every character that is no letter or digit. To them `X_Real_IP` is X-Real-IP, so a header
//! is known here in all these spellings.

use http::HeaderName;

pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";
pub(super) const FORWARDED_PROTO: &str = "x-forwarded-proto";
pub(super) const FORWARDED_HOST: &str = "x-forwarded-host";
pub(super) const FORWARDED_CLIENT_CERT: &str = "x-forwarded-client-cert";
pub(super) const REAL_IP: &str = "x-real-ip";

/// From whom a header that is not simply passed on goes to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// From nobody: it belongs to the connection, or the gateway writes it. "Expect" has been met by the time a body is
    /// sent.
    Nobody,
    /// From trusted proxies, and then the gateway completes it. Another spelling of it could contradict what the gateway
    /// writes, so nobody's passes.
    TrustedAsWritten,
    /// From trusted proxies.
    Trusted,
}

/// Every header that is not simply passed on, the most frequent first.
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
    (FORWARDED_FOR, From::TrustedAsWritten),
    (FORWARDED_PROTO, From::TrustedAsWritten),
    (FORWARDED_HOST, From::TrustedAsWritten),
    // RFC 7239, and its forerunners.
    ("forwarded", From::Trusted),
    ("forwarded-for", From::Trusted),
    ("x-forwarded", From::Trusted),
    // Where proxies and delivery networks write the client's address, and libraries look for it.
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
    // IIS, Symfony and others route by these instead of the target: the upstream would serve another path than the one
    // whose limits were asked.
    ("x-original-url", From::Trusted),
    ("x-rewrite-url", From::Trusted),
];

/// X-Forwarded-Port, -Endpoint, -Prefix, -Ssl, -User and what else there may be.
const FORWARDED_ANYTHING: &str = "x-forwarded-";

/// For each length of a name, up to [`LONGEST`] and all longer ones, the letters that a listed name of that length
/// begins with, as bits. Few of the headers that requests carry need more than this one look.
static FIRSTS: [u32; LONGEST + 1] = firsts();
const LONGEST: usize = 31;

const fn firsts() -> [u32; LONGEST + 1] {
    let mut firsts = [0; LONGEST + 1];
    let mut listed = LISTED;
    while let [(name, _), rest @ ..] = listed {
        firsts[name.len()] |= 1 << (name.as_bytes()[0] - b'a');
        listed = rest;
    }
    let mut length = FORWARDED_ANYTHING.len();
    while length <= LONGEST {
        firsts[length] |= 1 << (b'x' - b'a');
        length += 1;
    }
    firsts
}

/// What becomes of a client's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderAction {
    /// It goes on, unless Connection names it.
    Pass,
    /// It is listed, and goes on all the same, since a proxy that is trusted says it.
    PassListed,
    /// It does not go on.
    Drop,
}

/// What becomes of a header of this name from a peer that is `trusted` or is not.
pub(super) fn header_action(name: &HeaderName, trusted: bool) -> HeaderAction {
    let name = name.as_str();
    match listed(name) {
        None => HeaderAction::Pass,
        Some((_, From::Trusted)) if trusted => HeaderAction::PassListed,
        Some((written, From::TrustedAsWritten)) if trusted && written == name => HeaderAction::PassListed,
        Some(_) => HeaderAction::Drop,
    }
}

/// What else never is a trailer, since it has to be known before the content: authentication, request modifiers and
/// conditions, and what the content is (RFC 9110, section 6.5.1). The gateway writes Via itself.
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

/// Whether a client's trailer may go on. Some upstreams take trailers for headers: nothing is said there that a header
/// must not say, or must say in time.
pub(super) fn may_trail(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_before_content = BEFORE_CONTENT.iter().any(|other| other.len() == name.len() && reads_as(name, other));
    listed(name).is_none() && !is_before_content
}

/// The listed header that upstreams may take this one for.
fn listed(name: &str) -> Option<(&'static str, From)> {
    let first = u32::from(name.as_bytes().first()?.wrapping_sub(b'a'));
    if FIRSTS[name.len().min(LONGEST)].checked_shr(first)? & 1 == 0 {
        return None;
    }
    let exact = LISTED.iter().find(|(listed, _)| listed.len() == name.len() && reads_as(name, listed));
    let beginning = || name.get(..FORWARDED_ANYTHING.len()).filter(|start| reads_as(start, FORWARDED_ANYTHING));
    exact.copied().or_else(|| beginning().map(|_| (FORWARDED_ANYTHING, From::Trusted)))
}

/// Whether a name of the same length is the listed one once what is no letter or digit becomes `-`.
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
    fn what_says_who_somebody_is_passes_from_trusted_proxies_only() {
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
    fn what_the_gateway_writes_passes_from_nobody() {
        for name in ["X-Real-IP", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "TE"] {
            for name in [name.to_owned(), name.replace('-', "_")] {
                assert_eq!((of(&name, false), of(&name, true)), (HeaderAction::Drop, HeaderAction::Drop), "{name}");
            }
        }
        for name in ["x_forwarded_for", "x-forwarded_for", "x.forwarded.for", "x_forwarded-proto", "x~forwarded|host"] {
            assert_eq!((of(name, false), of(name, true)), (HeaderAction::Drop, HeaderAction::Drop), "{name}");
        }
    }

    #[test]
    fn what_clients_say_otherwise_passes() {
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
            "x-request-id",
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
    fn trailers_are_what_may_come_after_the_content() {
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
        fn the_first_look_misses_nothing(at in 0..LISTED.len(), signs in "[-_.!#$%&'*+^`|~]{8}", more in "[a-z_-]{0,40}") {
            let mut signs = signs.chars().cycle();
            let mut spelled = |name: &str| -> String {
                name.chars().map(|c| if c == '-' { signs.next().unwrap() } else { c }).collect()
            };
            prop_assert_eq!(of(&spelled(LISTED[at].0), false), HeaderAction::Drop);
            prop_assert_eq!(of(&(spelled(FORWARDED_ANYTHING) + &more), false), HeaderAction::Drop);
        }
    }
}
