//! `[[routes]]`: which requests a route matches, and where the response comes from.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::cors::Cors;
use super::header_changes::{HeaderChanges, HeaderText};
use super::template::{Template, TemplatePart};

/// The lowest is 0.
pub const HIGHEST_PRIORITY: u8 = 9;
pub const DEFAULT_PRIORITY: u8 = 5;

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub host: Host,
    pub path: PathPattern,
    /// Whether the case of ASCII letters in the path is ignored.
    pub ignore_case: bool,
    /// Empty matches all methods.
    pub methods: Vec<Method>,
    pub headers: Vec<(HeaderName, HeaderMatch)>,
    pub scheme: Option<Scheme>,
    pub action: Action,
    /// Indices into [`Config::limits`](super::Config::limits), without repetition.
    pub limits: Vec<usize>,
    /// Indices of the pools of `limits` that are not in `limits`.
    pub pools: Vec<usize>,
    /// The largest request body in bytes, or [`UNLIMITED`](super::UNLIMITED): the route's own or the server's.
    pub max_body_size: u64,
    /// The largest body that is read before the decision, in bytes: the route's own or the server's.
    pub inspect_body: usize,
    /// The longest time for which a client sends nothing of a body or reads nothing of a response: the route's own or the
    /// server's; `None` means no limit.
    pub body_timeout: Option<Duration>,
    /// The longest time until the head of the response arrives; `None` uses that of the upstream.
    pub timeout: Option<Duration>,
    pub request_headers: HeaderChanges<HeaderText>,
    pub response_headers: HeaderChanges<HeaderText>,
    /// 0 to 9; lower priorities are shed first.
    pub priority: u8,
    /// Without it, preflights are requests like any other.
    pub cors: Option<Cors>,
}

/// How the client sent the request: to the gateway, or to a trusted proxy in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    /// Over TLS.
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMatch {
    /// `"*"`: any value, even an empty one.
    Present,
    /// One line of the header has this value.
    Exact(HeaderValue),
    /// One line of the header has this value, which is a secret.
    Secret {
        value: HeaderValue,
        /// The place of the secret: `env:NAME` or `file:PATH`.
        place: String,
    },
}

/// Names are in lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Any,
    /// All names below this one: `*.example.com` is `example.com` here, and does not match `example.com`.
    Under(String),
    Exact(String),
}

/// Where the response comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Forward {
        /// Index into [`Config::upstreams`](super::Config::upstreams).
        upstream: usize,
        path: SentPath,
        preserve_host: bool,
        /// Whether URLs of the servers in Location are replaced by URLs for clients.
        rewrite_location: bool,
    },
    Respond {
        /// 200 to 599.
        status: StatusCode,
        body: String,
        content_type: HeaderValue,
    },
    Redirect(Redirect),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentPath {
    /// The client's path without this many leading segments (`strip_prefix`).
    Stripped(usize),
    /// Another path (`rewrite`).
    Rewritten(Template),
}

/// Segments, then optionally a final `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As written.
    pub text: String,
    /// The parts between slashes. `/` has one empty literal, and `/a/` ends with one.
    pub segments: Vec<Segment>,
    /// Whether a final `*` matches the rest, which may be empty.
    pub rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Literal(String),
    /// `{name}`: any one segment.
    Capture(String),
}

/// As the configuration spells it; secrets by their place.
impl fmt::Display for HeaderMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("*"),
            Self::Exact(value) => f.write_str(&String::from_utf8_lossy(value.as_bytes())),
            Self::Secret { place, .. } => f.write_str(place),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The location. Its texts need no escapes.
    pub to: Template,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

impl Redirect {
    /// Whether each request over TLS is redirected to its own URL, in an endless loop.
    pub fn is_same_url_over_tls(&self) -> bool {
        matches!(
            &self.to.parts[..],
            [TemplatePart::Text(scheme), TemplatePart::Host, TemplatePart::Path, TemplatePart::QueryIfAny]
                if scheme == "https://"
        )
    }
}
