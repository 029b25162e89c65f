//! `[[routes]]`: which requests a route matches, and where the response comes from.

mod path_guess;
mod path_pattern;
mod template;
mod header_changes;
mod cors;
mod redirect;
mod action;
mod reader;

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use super::kinds::{WAIT, body_size, flag, number, shaped, size, text, wait, wait_or_none, words};
use super::read::{Shape, tables};
use super::server::{HIGHEST_PRIORITY, LARGEST_INSPECTED};
use super::values;
use crate::base::named::named;

pub use action::{Action, SentPath};
pub use cors::{Cors, OriginPattern};
pub(super) use header_changes::table as header_table;
pub use header_changes::{HeaderChanges, HeaderText, is_secret};
pub(super) use path_guess::{guess, is_of_others};
pub use path_pattern::{PathPattern, Segment};
pub(super) use reader::read;
pub use redirect::Redirect;
pub use template::{Template, TemplatePart};

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub host: Host,
    pub path: PathPattern,
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
    pub priority: u8,
    /// Without it, preflights are requests like any other.
    pub cors: Option<Cors>,
}

named! {
    /// How the client sent the request: to the gateway, or to a trusted proxy in front of it. Named as the configuration spells it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Scheme {
        Http = "http",
        /// Over TLS.
        Https = "https",
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

/// As the configuration spells it; `*` for any.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Under(name) => write!(f, "*.{name}"),
            Self::Exact(name) => f.write_str(name),
        }
    }
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

tables! {
    /// Which requests the gateway answers, and how. It uses the most specific route, not the first (docs/routes.md).
    keys {
        /// The host: a name, or `"*.example.com"`. By default any.
        host: () = text() => "api.example.com";
        /// The path: `"/exact"`, `"/v1/{tenant}"` for one segment, `"/v1/*"` for `/v1` and all paths below it.
        path: () = text().required() => "/v1/{tenant}/*";
        /// Ignores the case of the path; then the route's limits count by `path` and `path:NAME` in lower case.
        ignore_case: bool = flag(), false;
        /// The methods. By default any, as with `["*"]`. GET also matches HEAD, unless another route for the same host and
        /// path names HEAD.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// Headers that a request must have. A value is a text, `"*"` for any, `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(Shape::Headers) => { x-beta = "1" };
        /// The scheme that the client used, by default any. A trusted proxy says it with `X-Forwarded-Proto` or `Forwarded`.
        scheme: Scheme = words(&[("http", Scheme::Http), ("https", Scheme::Https)]) => "https";
        /// The name of the upstream that gets the requests, unless there is `respond` or `redirect`.
        upstream: () = text() => "api";
        /// Leading segments that the gateway removes from the path for the upstream.
        strip_prefix: () = text() => "/v1";
        /// The path that the upstream gets instead; `{rest}` is what the final `*` matched.
        rewrite: () = text() => "/internal/{tenant}/{rest}";
        /// Sends the client's Host to the upstream.
        preserve_host: bool = flag(), false;
        /// `rewrite_location` of this route, instead of the upstream's.
        rewrite_location: bool = flag() => false;
        /// A response of the gateway itself.
        respond: () = shaped(Shape::Table(&action::respond::TABLE)) => { status = 200, body = "hello\n" };
        /// Where the gateway redirects clients.
        redirect: () = shaped(Shape::Table(&redirect::keys::TABLE)) => { to = "https://{host}{path}", status = 308 };
        /// Names of limits, which decide together.
        limits: () = shaped(Shape::List(&Shape::Text, 0, values::MOST)), [] => ["per-client"];
        /// The largest request body of this route, instead of the server's.
        max_body_size: u64 = body_size() => "1MiB";
        /// The largest request body that the gateway reads before it decides, where costs or keys need it, instead of the
        /// server's.
        inspect_body: usize = size(1..=LARGEST_INSPECTED) => "4MiB";
        /// The longest pause of a client in a request body, or without reading a response, instead of the server's; `"0"`
        /// means no limit.
        body_timeout: Option<Duration> = wait_or_none() => "0";
        /// The longest time until the head of the response arrives, instead of the upstream's; then 504.
        timeout: Duration = wait(WAIT) => "5s";
        /// Changes to the headers that the upstream gets, applied in the order remove, set, add.
        request_headers: () = shaped(Shape::Table(&header_changes::keys::TABLE))
            => { set = { x-tenant = "{tenant}" }, remove = ["x-debug"] };
        /// Changes to the headers that the client gets, in every response.
        response_headers: () = shaped(Shape::Table(&header_changes::keys::TABLE)) => { set = { x-frame-options = "DENY" } };
        /// 0 to 9; `[server.shed]` sheds lower ones first. By default 5.
        priority: u8 = number(0, HIGHEST_PRIORITY as u64) => 7;
        /// Lets pages of other origins use the route; the gateway answers their preflights, and charges them to no limit.
        cors: () = shaped(Shape::Table(&cors::keys::TABLE)) => { origins = ["https://app.example.com"] };
    }
}
