//! `[[routes]]`: which requests a route matches, and where the response comes from.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::cors::Cors;
use super::header_changes::{HeaderChanges, HeaderText};
use super::template::{Template, TemplatePart};

/// The highest priority of a request. The lowest is 0.
pub const HIGHEST_PRIORITY: u8 = 9;
/// The priority of a route that names none.
pub const DEFAULT_PRIORITY: u8 = 5;

/// `[[routes]]`: which requests it matches, and what happens to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The hosts that it matches.
    pub host: Host,
    /// The paths that it matches.
    pub path: PathPattern,
    /// Whether the case of ASCII letters in the path is ignored.
    pub ignore_case: bool,
    /// The methods that it matches; empty is all.
    pub methods: Vec<Method>,
    /// Headers that must be present.
    pub headers: Vec<(HeaderName, HeaderMatch)>,
    /// Whether the client must have used TLS, or must not.
    pub scheme: Option<Scheme>,
    /// Where the response comes from.
    pub action: Action,
    /// Indices into [`Config::limits`](super::Config::limits), without repetition.
    pub limits: Vec<usize>,
    /// Those of the pools of these limits that are not among them.
    pub pools: Vec<usize>,
    /// The largest request body in bytes, or [`UNLIMITED`](super::UNLIMITED): the route's own or the server's.
    pub max_body_size: u64,
    /// The most of a request body that is read before the decision, in bytes: the route's own or the server's.
    pub inspect_body: usize,
    /// The longest time in which a client sends no more of a body or reads nothing of a response: the route's own or the server's;
    /// `None` is no limit.
    pub body_timeout: Option<Duration>,
    /// The longest time until the head of the response arrives, instead of that of its upstream.
    pub timeout: Option<Duration>,
    /// What changes about the headers that the upstream gets.
    pub request_headers: HeaderChanges<HeaderText>,
    pub response_headers: HeaderChanges<HeaderText>,
    /// How important its requests are, 0 to 9: those of lower priorities are shed first.
    pub priority: u8,
    /// Which pages of other origins may use it, and how. Without it, preflights are requests like any other.
    pub cors: Option<Cors>,
}

/// How a client has sent its request: to the gateway, or to a trusted proxy in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// In TLS.
    Https,
}

impl Scheme {
    /// As the configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The condition of a route on a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMatch {
    /// `"*"`: any value, also an empty one.
    Present,
    /// One of the header's lines has this value.
    Exact(HeaderValue),
    /// The same, but the value is a secret.
    Secret {
        value: HeaderValue,
        /// Where it is, as the configuration spells it: `env:NAME` or `file:PATH`.
        place: String,
    },
}

/// Which hosts a route matches. Names are lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// Every host.
    Any,
    /// Every name under this one: `*.example.com` is `example.com` here, and does not match it.
    Under(String),
    /// This name only.
    Exact(String),
}

/// Where the response to a request comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// From an upstream.
    Forward {
        /// Index into [`Config::upstreams`](super::Config::upstreams).
        upstream: usize,
        /// Which path it gets.
        path: SentPath,
        /// Whether the upstream gets the client's Host header.
        preserve_host: bool,
        /// Whether URLs of its servers in Location become those of clients.
        rewrite_location: bool,
    },
    /// From the gateway itself.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        body: String,
        /// The media type of the body.
        content_type: HeaderValue,
    },
    /// From the gateway, which sends the client to another URL.
    Redirect(Redirect),
}

/// The path that an upstream gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentPath {
    /// The client's, without so many leading segments, from `strip_prefix`.
    Stripped(usize),
    /// Another one, from `rewrite`.
    Rewritten(Template),
}

/// Which paths a route matches: segments, then optionally a final `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As written.
    pub text: String,
    /// The parts between the slashes. `/` is one empty literal, and `/a/` ends with one.
    pub segments: Vec<Segment>,
    /// Whether a final `*` matches the rest, which may be empty.
    pub rest: bool,
}

/// One segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text.
    Literal(String),
    /// `{name}`: any one segment.
    Capture(String),
}

/// Writes the value as the configuration spells it.
impl fmt::Display for HeaderMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("*"),
            Self::Exact(value) => f.write_str(&String::from_utf8_lossy(value.as_bytes())),
            Self::Secret { place, .. } => f.write_str(place),
        }
    }
}

/// `redirect` of a route: where it sends clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The location. Its texts need no escapes.
    pub to: Template,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

impl Redirect {
    /// Whether each request over TLS is sent to its own URL again, so that clients would never arrive.
    pub fn is_same_url_over_tls(&self) -> bool {
        matches!(
            &self.to.parts[..],
            [TemplatePart::Text(scheme), TemplatePart::Host, TemplatePart::Path, TemplatePart::QueryIfAny]
                if scheme == "https://"
        )
    }
}
