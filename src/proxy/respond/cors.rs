//! The headers of CORS, by which browsers let pages of other origins use a route, and the answers to preflights, by which a
//! browser asks first (Fetch standard, section 3.3, <https://fetch.spec.whatwg.org/#http-cors-protocol>).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    DATE, ORIGIN, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::grpc;
use super::rate_limit_headers::RateLimitHeaders;
use super::{LocalResponse, with_headers};
use crate::base::http::header_list;
use crate::base::http::request_id::REQUEST_ID;
use crate::config::{Cors, OriginPattern};
use crate::request::resolve::requested_method;

static OF_RESPONSES: [HeaderName; 7] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    HeaderName::from_static("access-control-allow-private-network"),
];
/// The request headers on which the answer to a preflight depends.
const ASKED_BY: HeaderValue =
    HeaderValue::from_static("origin, access-control-request-method, access-control-request-headers");
const BY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");
const TRUE: HeaderValue = HeaderValue::from_static("true");
const ANY: HeaderValue = HeaderValue::from_static("*");

#[derive(Debug)]
pub struct CorsPolicy {
    origins: Vec<OriginPattern>,
    credentials: bool,
    methods: Option<HeaderValue>,
    headers: AllowedHeaders,
    exposed: Option<HeaderValue>,
    max_age: Option<HeaderValue>,
}

#[derive(Debug)]
enum AllowedHeaders {
    /// Those that the preflight asks for.
    Asked,
    /// These, besides those that need no preflight.
    Listed(Option<HeaderValue>),
}

#[derive(Debug)]
pub struct CorsHeaders<'p> {
    pub policy: &'p CorsPolicy,
    /// The value of Access-Control-Allow-Origin; `None` if the page may not read the response.
    origin: Option<HeaderValue>,
}

impl CorsPolicy {
    pub fn new(cors: &Cors, limits: &RateLimitHeaders) -> Self {
        let Cors { origins, methods, headers, expose, credentials, max_age } = cors;
        // Pages need these headers to wait as long as told, to name a failed request, and to know why it failed.
        let of_failures = [REQUEST_ID, WWW_AUTHENTICATE, DATE].into_iter().chain(grpc::OUTCOME);
        let own: Vec<_> = limits.names().into_iter().chain(of_failures).collect();
        let more = expose.iter().filter(|name| !own.contains(name));
        Self {
            origins: origins.clone(),
            credentials: *credentials,
            methods: list(methods.iter().map(Method::as_str)),
            headers: match headers {
                Some(names) => AllowedHeaders::Listed(list(names.iter().map(HeaderName::as_str))),
                None => AllowedHeaders::Asked,
            },
            exposed: list(own.iter().chain(more).map(HeaderName::as_str)),
            max_age: max_age.map(|age| HeaderValue::from(age.as_secs())),
        }
    }

    /// The headers in the response to this request. A preflight gets permissions only from the policy of the route that it
    /// asks about, so any other policy allows it nothing.
    pub fn headers(&self, method: &Method, request: &HeaderMap) -> CorsHeaders<'_> {
        let is_preflight = requested_method(method, request).is_some();
        CorsHeaders { policy: self, origin: if is_preflight { None } else { self.allowed_origin(request) } }
    }

    /// The answer to a preflight. The browser compares it with what it wants. An origin that is not allowed learns nothing.
    pub fn preflight(&self, request: &HeaderMap) -> LocalResponse {
        let mut headers = HeaderMap::from_iter([(VARY, ASKED_BY)]);
        if let Some(origin) = self.allowed_origin(request) {
            self.allow(origin, &mut headers);
            let allowed = match &self.headers {
                AllowedHeaders::Asked => asked_headers(request).cloned(),
                AllowedHeaders::Listed(list) => list.clone(),
            };
            headers.extend(self.methods.clone().map(|methods| (ACCESS_CONTROL_ALLOW_METHODS, methods)));
            headers.extend(allowed.map(|allowed| (ACCESS_CONTROL_ALLOW_HEADERS, allowed)));
            headers.extend(self.max_age.clone().map(|age| (ACCESS_CONTROL_MAX_AGE, age)));
        }
        with_headers(StatusCode::NO_CONTENT, headers)
    }

    fn allowed_origin(&self, request: &HeaderMap) -> Option<HeaderValue> {
        if self.allows_all() {
            return Some(ANY);
        }
        let [origin] = header_list::single_lines(request, [&ORIGIN]);
        let (origin, text) = (origin?, origin?.to_str().ok()?);
        self.origins.iter().any(|pattern| pattern.matches(text)).then(|| origin.clone())
    }

    /// Whether every request is allowed alike, so that nothing depends on its origin.
    fn allows_all(&self) -> bool {
        self.origins.contains(&OriginPattern::Any)
    }

    fn allow(&self, origin: HeaderValue, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if self.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
        }
    }
}

impl CorsHeaders<'_> {
    /// Replaces the upstream's headers of CORS. Caches learn in any case that the response depends on the origin.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &OF_RESPONSES {
            headers.remove(name);
        }
        if let Some(origin) = &self.origin {
            self.policy.allow(origin.clone(), headers);
            headers.extend(self.policy.exposed.clone().map(|names| (ACCESS_CONTROL_EXPOSE_HEADERS, names)));
        }
        if !self.policy.allows_all() && !varies_by_origin(headers) {
            headers.append(VARY, BY_ORIGIN);
        }
    }
}

/// The headers that a preflight asks for, if all of them are valid names.
fn asked_headers(request: &HeaderMap) -> Option<&HeaderValue> {
    let mut names = header_list::members(request, &ACCESS_CONTROL_REQUEST_HEADERS);
    let [asked] = header_list::single_lines(request, [&ACCESS_CONTROL_REQUEST_HEADERS]);
    asked.filter(|_| names.all(|name| HeaderName::from_bytes(name).is_ok()))
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    header_list::members(headers, &VARY).any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
}

/// The value of a header that lists these names; `None` without names.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> Option<HeaderValue> {
    let list = names.collect::<Vec<_>>().join(", ");
    // Names are tokens, so their list is a valid header value.
    if list.is_empty() { None } else { HeaderValue::try_from(list).ok() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        let origin = |text: &&str| match *text {
            "*" => OriginPattern::Any,
            text => OriginPattern::Exact(text.to_owned()),
        };
        Cors {
            origins: origins.iter().map(origin).collect(),
            methods: vec![Method::GET, Method::PUT],
            headers: None,
            expose: vec![HeaderName::from_static("x-total"), HeaderName::from_static("retry-after")],
            credentials: false,
            max_age: Some(Duration::from_secs(600)),
        }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn policy(cors: &Cors) -> CorsPolicy {
        CorsPolicy::new(cors, &RateLimitHeaders::default())
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    fn allowed(headers: &HeaderMap) -> Option<&str> {
        headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|origin| origin.to_str().unwrap())
    }

    #[test]
    fn a_preflight_is_an_options_request_with_an_origin_and_a_method() {
        let asked = |method: &Method, lines: &[(&'static str, &'static str)]| requested_method(method, &headers(lines));
        let (origin, put) = (("origin", "https://a.test"), ("access-control-request-method", "PUT"));
        assert_eq!(asked(&Method::OPTIONS, &[origin, put]), Some(Method::PUT));
        assert_eq!(asked(&Method::GET, &[origin, put]), None);
        assert_eq!(asked(&Method::OPTIONS, &[origin]), None);
        assert_eq!(asked(&Method::OPTIONS, &[put]), None);
        assert_eq!(asked(&Method::OPTIONS, &[origin, put, put]), None);
        assert_eq!(asked(&Method::OPTIONS, &[origin, ("access-control-request-method", "a b")]), None);
    }

    #[test]
    fn a_preflight_is_told_what_is_allowed_and_a_foreign_one_nothing() {
        let policy = policy(&cors(&["https://a.test", "null"]));
        let asked = ("access-control-request-headers", "content-type, x-a");
        let told = |origin| policy.preflight(&headers(&[("origin", origin), asked])).headers().clone();
        assert_eq!(
            lines(&told("https://a.test")),
            [
                "vary: origin, access-control-request-method, access-control-request-headers",
                "access-control-allow-origin: https://a.test",
                "access-control-allow-methods: GET, PUT",
                "access-control-allow-headers: content-type, x-a",
                "access-control-max-age: 600",
            ]
        );
        assert_eq!(allowed(&told("null")), Some("null"));
        for origin in ["https://a.test:8443", "https://b.test", "*", ""] {
            assert_eq!(lines(&told(origin)).len(), 1, "{origin}");
        }
    }

    #[test]
    fn only_names_are_reflected_and_listed_headers_are_told_to_all() {
        let ask = |cors: &Cors, asked: &'static str| {
            let request = headers(&[("origin", "https://a.test"), ("access-control-request-headers", asked)]);
            let answer = policy(cors).preflight(&request);
            answer.headers().get(ACCESS_CONTROL_ALLOW_HEADERS).map(|names| names.to_str().unwrap().to_owned())
        };
        let reflecting = cors(&["https://a.test"]);
        assert_eq!(ask(&reflecting, "x-a,x-b").as_deref(), Some("x-a,x-b"));
        for asked in ["", "a b", "x-a,", "<b>", "x-a;y"] {
            assert_eq!(ask(&reflecting, asked), None, "{asked}");
        }
        let listed = Cors { headers: Some(vec![HeaderName::from_static("x-a")]), ..cors(&["https://a.test"]) };
        assert_eq!(ask(&listed, "x-b").as_deref(), Some("x-a"));
        assert_eq!(ask(&Cors { headers: Some(Vec::new()), ..listed }, "x-b"), None);
    }

    #[test]
    fn responses_replace_what_the_upstream_says() {
        let policy = policy(&Cors { credentials: true, ..cors(&["https://a.test"]) });
        let upstream = [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-origin", "https://evil.test"),
            ("access-control-allow-credentials", "false"),
            ("access-control-allow-private-network", "true"),
            ("vary", "accept-encoding"),
        ];
        let answer = |request: &[(&'static str, &'static str)]| {
            let mut response = headers(&upstream);
            policy.headers(&Method::GET, &headers(request)).apply(&mut response);
            response
        };
        assert_eq!(
            lines(&answer(&[("origin", "https://a.test")])),
            [
                "vary: accept-encoding",
                "vary: origin",
                "access-control-allow-origin: https://a.test",
                "access-control-allow-credentials: true",
                "access-control-expose-headers: retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, \
                 x-ratelimit-remaining, x-ratelimit-reset, ratelimit-shadow, x-request-id, www-authenticate, date, \
                 grpc-status, grpc-message, grpc-status-details-bin, x-total",
            ]
        );
        let twice = [("origin", "https://a.test"), ("origin", "https://a.test")];
        for request in [&[("origin", "https://evil.test")][..], &[], &twice] {
            assert_eq!(lines(&answer(request)), ["vary: accept-encoding", "vary: origin"], "{request:?}");
        }
        let preflight = headers(&[("origin", "https://a.test"), ("access-control-request-method", "PUT")]);
        let mut response = headers(&upstream);
        policy.headers(&Method::OPTIONS, &preflight).apply(&mut response);
        assert_eq!(allowed(&response), None, "another route was asked about");
    }

    #[test]
    fn vary_is_added_where_it_is_missing_and_matters() {
        let vary = |origins: &[&str], upstream: &'static str| {
            let mut response = headers(&[("vary", upstream)]);
            policy(&cors(origins)).headers(&Method::GET, &HeaderMap::new()).apply(&mut response);
            (response.get_all(VARY).iter().count(), allowed(&response) == Some("*"))
        };
        assert_eq!(vary(&["https://a.test"], "accept, origins"), (2, false));
        for there in ["*", "Origin", "accept , ORIGIN"] {
            assert_eq!(vary(&["https://a.test"], there), (1, false), "{there}");
        }
        assert_eq!(vary(&["*"], "accept"), (1, true), "every response is for everybody");
    }
}
