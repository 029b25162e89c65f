//! The headers that the gateway treats specially, with their rules. Every other header passes unchanged.
//!
//! CGI (RFC 3875, section 4.1.18), and also WSGI, Rack and PHP, make a variable of a header, with `_` for `-`; some servers
//! replace every character except letters and digits. They read `X_Real_IP` as X-Real-IP, so [`listed`] finds a header in
//! all these spellings.

use Rule::{
    BeforeContent, FixedInRequests, FixedInResponses, HopByHop, OwnInRequests, OwnInResponses, Secret, Single, Trusted,
    TrustedAsWritten,
};
use http::{HeaderMap, HeaderName};

use super::trace_context::{TRACEPARENT, TRACESTATE};

/// The client and its request (RFC 7239).
pub const FORWARDED: &str = "forwarded";
/// The addresses of the client and of the proxies.
pub const FORWARDED_FOR: &str = "x-forwarded-for";
/// The scheme of the client's request.
pub const FORWARDED_PROTO: &str = "x-forwarded-proto";
/// The host of the client's request.
pub const FORWARDED_HOST: &str = "x-forwarded-host";
pub const FORWARDED_CLIENT_CERT: &str = "x-forwarded-client-cert";
pub const REAL_IP: &str = "x-real-ip";
pub const REQUEST_ID: &str = "x-request-id";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Belongs to one connection: not forwarded in any direction, nor as a trailer (RFC 9110, section 7.6.1; RFC 9113,
    /// section 8.2.2), and no route changes it.
    HopByHop,
    /// The upstream never gets the client's header as it is: the gateway writes, checks or answers it.
    OwnInRequests,
    /// The gateway writes it in responses: instead of the upstream's, or only if the upstream's is missing.
    OwnInResponses,
    /// The upstream gets the header only from a trusted proxy.
    Trusted,
    /// Like [`Rule::Trusted`]. The gateway may write it, too, and another spelling could contradict that, so none passes.
    TrustedAsWritten,
    /// Needed before the content, so it is no trailer (RFC 9110, section 6.5.1).
    BeforeContent,
    /// At most once in a message (RFC 9110, section 5.3). A route adds none to the gateway's own.
    Single,
    /// No route changes it in requests.
    FixedInRequests,
    /// No route changes it in responses.
    FixedInResponses,
    /// Its value proves who a client or the gateway is, so it is not shown.
    Secret,
}

/// The name in lower case, and its rules.
pub type Listed = (&'static str, &'static [Rule]);

macro_rules! listed {
    ($($rules:tt: $($name:expr),+;)+) => { &[$($(($name, &$rules)),+),+] };
}

/// By their rules.
pub const TABLE: &[Listed] = listed! {
    [HopByHop]: "connection", "keep-alive", "proxy-connection", "te", "upgrade",
        // Part of an Upgrade (RFC 7540, section 3.2.1).
        "http2-settings";
    [HopByHop, Single]: "transfer-encoding";
    [OwnInRequests, BeforeContent, Single]: "host";
    [OwnInRequests, OwnInResponses, BeforeContent, Single, FixedInRequests, FixedInResponses]: "content-length";
    [OwnInRequests, FixedInRequests]: "expect";
    [OwnInRequests, Single]: REAL_IP, TRACEPARENT;
    [OwnInRequests, OwnInResponses, Single]: REQUEST_ID;
    [OwnInRequests]: TRACESTATE;
    [FixedInRequests]: "sec-websocket-key";
    [OwnInResponses, FixedInResponses]: "date";
    [OwnInResponses]: "retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "ratelimit-shadow",
        "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
        "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset";
    [TrustedAsWritten]: FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST, FORWARDED_CLIENT_CERT, FORWARDED;
    // The predecessors of RFC 7239.
    [Trusted]: "forwarded-for", "x-forwarded", BEGINNING.0,
        // Proxies and delivery networks write the client's address into these, and libraries read it there.
        "client-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "cf-connecting-ipv6",
        "cf-pseudo-ipv4", "fastly-client-ip", "fly-client-ip", "x-appengine-user-ip", "x-azure-clientip",
        "x-envoy-external-address", "x-original-forwarded-for",
        // IIS, Symfony and others route by these instead of the target, so the upstream would serve another path than the one
        // that was limited.
        "x-original-url", "x-rewrite-url";
    [BeforeContent, Secret]: "authorization", "proxy-authorization", "cookie";
    [BeforeContent]: "set-cookie", "cache-control", "pragma", "max-forwards", "range", "if-match", "if-none-match",
        "if-modified-since", "if-unmodified-since", "if-range", "content-type", "content-encoding", "content-language",
        "content-location", "content-range",
        // The gateway writes it, too.
        "via";
    [BeforeContent, FixedInRequests, FixedInResponses]: "trailer";
};

/// X-Forwarded-Port, -Endpoint, -Prefix, -Ssl, -User and all others with this beginning.
const BEGINNING: Listed = ("x-forwarded-", &[Trusted]);

/// The listed names by length. For most headers of requests, one look at the first letters is enough.
static INDEX: Index = Index::new();

struct Index {
    /// The shortest first.
    listed: [Listed; TABLE.len()],
    /// For each length, where its names begin and end in `listed`.
    places: [(usize, usize); LENGTHS],
    /// For each length, the first letters of its names as bits. The last entry also stands for all longer names.
    firsts: [u32; LENGTHS],
    /// For each length, the rules of its names as bits. Most headers have a length that no name with a wanted rule has.
    rules: [u16; LENGTHS],
}

/// Every listed name is shorter.
const LENGTHS: usize = 40;

impl Index {
    const fn new() -> Self {
        let (listed, places) = ([TABLE[0]; TABLE.len()], [(0, 0); LENGTHS]);
        let mut index = Self { listed, places, firsts: [0; LENGTHS], rules: [0; LENGTHS] };
        let (mut length, mut count) = (0, 0);
        while length < LENGTHS {
            let begin = count;
            let mut table = TABLE;
            while let [listed, rest @ ..] = table {
                if listed.0.len() == length {
                    index.listed[count] = *listed;
                    index.firsts[length] |= 1 << (listed.0.as_bytes()[0] - b'a');
                    index.rules[length] |= bits(listed.1);
                    count += 1;
                }
                table = rest;
            }
            index.places[length] = (begin, count);
            if length >= BEGINNING.0.len() {
                index.firsts[length] |= 1 << (b'x' - b'a');
            }
            length += 1;
        }
        assert!(count == TABLE.len() && index.places[LENGTHS - 1].0 == count, "each listed name is shorter");
        index
    }
}

/// The listed header that servers may read this one as.
pub fn listed(name: &str) -> Option<Listed> {
    let first = u32::from(name.as_bytes().first()?.wrapping_sub(b'a'));
    let length = name.len().min(LENGTHS - 1);
    if INDEX.firsts[length].checked_shr(first)? & 1 == 0 {
        return None;
    }
    let (begin, end) = INDEX.places[length];
    let whole = INDEX.listed[begin..end].iter().find(|(listed, _)| is_same_variable(name, listed)).copied();
    let begins = || name.get(..BEGINNING.0.len()).is_some_and(|start| is_same_variable(start, BEGINNING.0));
    whole.or_else(|| begins().then_some(BEGINNING))
}

/// Whether the header has one of these rules in any spelling.
pub fn reads_as_any(name: &HeaderName, wanted: &[Rule]) -> bool {
    listed(name.as_str()).is_some_and(|(_, rules)| has_any(rules, wanted))
}

/// Whether servers believe this header, in any spelling, only if a proxy of theirs has written it.
pub fn is_of_proxies(name: &HeaderName) -> bool {
    name == REAL_IP || reads_as_any(name, &[Trusted, TrustedAsWritten])
}

const fn bits(mut rules: &[Rule]) -> u16 {
    let mut bits = 0;
    while let [rule, rest @ ..] = rules {
        bits |= 1 << *rule as u16;
        rules = rest;
    }
    bits
}

/// Whether the header has one of these rules. Another spelling of a listed name is another header.
#[inline]
pub fn is_any(name: &HeaderName, wanted: &[Rule]) -> bool {
    let length = name.as_str().len().min(LENGTHS - 1);
    INDEX.rules[length] & bits(wanted) != 0 && is_listed_with(name, wanted)
}

fn is_listed_with(name: &HeaderName, wanted: &[Rule]) -> bool {
    listed(name.as_str()).is_some_and(|(listed, rules)| listed == name.as_str() && has_any(rules, wanted))
}

pub fn has_any(rules: &[Rule], wanted: &[Rule]) -> bool {
    rules.iter().any(|rule| wanted.contains(rule))
}

/// Most messages have none.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.keys().any(|name| is_any(name, &[HopByHop])) {
        let names = TABLE.iter().filter(|(_, rules)| rules.contains(&HopByHop));
        names.for_each(|(name, _)| _ = headers.remove(*name));
    }
}

/// Whether both headers become the same CGI variable. Servers write `_` for everything except letters and digits (RFC
/// 3875, section 4.1.18, as implemented). Both names are in lower case.
pub fn is_same_variable(one: &str, other: &str) -> bool {
    let same = |(a, b): (u8, u8)| a == b || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(same)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_name_is_listed_once_with_each_rule_once() {
        let names: BTreeSet<_> = TABLE.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), TABLE.len());
        for (name, rules) in TABLE {
            assert!(rules.is_sorted_by(|one, next| one < next), "{name}");
        }
    }

    #[test]
    fn headers_of_a_connection_are_removed() {
        let names = "connection keep-alive proxy-connection te transfer-encoding upgrade http2-settings keep_alive x-a";
        let pairs = names.split(' ').map(|name| (name.parse().unwrap(), HeaderValue::from_static("1")));
        let mut headers: HeaderMap = pairs.collect();
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<BTreeSet<_>>(), ["keep_alive", "x-a"].into());
    }

    proptest! {
        #[test]
        fn the_lookup_by_length_and_letter_misses_no_header(at in 0..TABLE.len(), signs in "[-_.!#$%&'*+^`|~]{8}", more in "[0-9_-]{1,40}") {
            let mut signs = signs.chars().cycle();
            let mut spelled = |name: &str| -> String {
                name.chars().map(|c| if c == '-' { signs.next().unwrap() } else { c }).collect()
            };
            prop_assert_eq!(listed(&spelled(TABLE[at].0)), Some(TABLE[at]));
            prop_assert_eq!(listed(&(spelled(BEGINNING.0) + &more)), Some(BEGINNING));
        }
    }

    #[test]
    fn signs_are_the_same_and_letters_are_not() {
        for (one, other) in [("x-debug", "x_debug"), ("x_debug", "x-debug"), ("x.a~b", "x-a_b"), ("a", "a"), ("", "")] {
            assert!(is_same_variable(one, other), "{one} {other}");
        }
        for (one, other) in
            [("x-debug", "xdebug"), ("x-debug", "x-debug-"), ("x-1", "x-2"), ("x-a", "xaa"), ("xaa", "x-a")]
        {
            assert!(!is_same_variable(one, other), "{one} {other}");
        }
    }
}
