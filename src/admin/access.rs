//! Who may use the admin listener.
//!
//! A token protects the listener from other machines and other users. A listener on loopback may have no token, so the
//! gateway must protect it from the pages in a browser of the same machine. Such a page can send requests to any address,
//! although it cannot read the responses of another origin: so a request that changes something must not come from another
//! origin (cross-site request forgery). A page can also give its own host name the address 127.0.0.1, which makes the
//! gateway its own origin (DNS rebinding). The browser then still sends that name in Host.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use prometheus::proto::MetricFamily;
use tokio::time::sleep;

use super::families::counted_by;
use super::guesses::{Guesses, Peer};
use crate::base::clock;
use crate::base::metrics::Counter;
use crate::base::named::named;
use crate::config::{Access, Admin};
use crate::proxy::respond::{self, LocalResponse};

/// The relation of a page to the server that it sends a request to (Fetch Metadata Request Headers, section 2.4,
/// <https://www.w3.org/TR/fetch-metadata/>).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

named! {
    /// Why a request is refused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Reason {
        /// Host is missing, ambiguous or not a name of the listener.
        Host = "host",
        /// The request comes from a page of another origin.
        Origin = "origin",
        NoToken = "no_token",
        WrongToken = "wrong_token",
        /// The request would change something, but its token is only for reading.
        ReadToken = "read_token",
        /// The address has sent too many wrong tokens.
        TooMany = "too_many",
    }
}

type Refused = (Reason, LocalResponse);

#[derive(Debug, Default)]
pub struct Gatekeeper {
    refused: [Counter; Reason::ALL.len()],
    guesses: Guesses,
}

impl Gatekeeper {
    /// Whether a request may go on. With `is_open` it needs no token, because its resource shows nothing secret. The error is
    /// the answer to a request that is refused.
    pub(super) async fn admit<B>(
        &self,
        admin: &Admin,
        peer: Peer,
        request: &Request<B>,
        is_open: bool,
    ) -> Result<(), LocalResponse> {
        let admitted = match origin_refusal(admin, request) {
            Some(refused) => Err(refused),
            None if is_open => Ok(()),
            None => self.token(admin, peer, request).await,
        };
        admitted.map_err(|(reason, response)| {
            self.refused[reason as usize].one();
            response
        })
    }

    async fn token<B>(&self, admin: &Admin, peer: Peer, request: &Request<B>) -> Result<(), Refused> {
        if admin.token.is_none() {
            return Ok(());
        }
        let Some(shown) = bearer(request.headers()) else {
            let why = "Send the token of [admin]: Authorization: Bearer TOKEN.";
            return Err(unauthorized(Reason::NoToken, why, "Bearer"));
        };
        match self.guesses.begin(peer, clock::monotonic()) {
            Ok(Duration::ZERO) => {}
            Ok(wait) => sleep(wait).await,
            Err(seconds) => {
                let why = "This address has sent too many wrong tokens.";
                let mut response = respond::problem(StatusCode::TOO_MANY_REQUESTS, why);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                return Err((Reason::TooMany, response));
            }
        }
        match admin.access(shown) {
            Some(access) => {
                self.guesses.right(peer);
                if access == Access::All || !changes(request.method()) {
                    return Ok(());
                }
                let why = "This is the token for reading, which cannot change anything: use `token` of [admin].";
                Err((Reason::ReadToken, respond::problem(StatusCode::FORBIDDEN, why)))
            }
            None => {
                self.guesses.wrong(peer, clock::now());
                let why = "The token is not that of [admin].";
                Err(unauthorized(Reason::WrongToken, why, "Bearer error=\"invalid_token\""))
            }
        }
    }

    pub(super) fn family(&self) -> MetricFamily {
        let count = |reason: Reason| (reason.name(), self.refused[reason as usize].get());
        counted_by("gateway_admin_refused_total", "reason", Reason::ALL.map(count))
    }
}

fn unauthorized(reason: Reason, why: &str, challenge: &'static str) -> Refused {
    let mut response = respond::problem(StatusCode::UNAUTHORIZED, why);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    (reason, response)
}

/// `None` if the request may go on.
fn origin_refusal<B>(admin: &Admin, request: &Request<B>) -> Option<Refused> {
    let refused = |reason, status, why: &str| Some((reason, respond::problem(status, why)));
    let host = match host(request) {
        Ok(host) => host,
        Err(why) => return refused(Reason::Host, StatusCode::BAD_REQUEST, why),
    };
    if let Some(host) = host.filter(|host| admin.listen.is_loopback() && !is_own_name(admin, host)) {
        let name = name(host);
        let why = format!(
            "{name:?} is not a name of this listener. Use localhost or its address, or add the name to `hosts` in [admin]."
        );
        return refused(Reason::Host, StatusCode::FORBIDDEN, &why);
    }
    if changes(request.method()) && is_from_other_origin(request.headers(), host) {
        let why = "A page of another origin may not change anything here.";
        return refused(Reason::Origin, StatusCode::FORBIDDEN, why);
    }
    None
}

/// The answer to a page of another origin that asks for an event stream: the page could not read it, but would take it from
/// others, as there are few. `None` if the request may go on, which [`Gatekeeper::admit`] has let pass before.
pub(super) fn refusal_of_foreign<B>(request: &Request<B>) -> Option<LocalResponse> {
    let host = host(request).ok().flatten();
    let why = "A page of another origin may not read this.";
    is_from_other_origin(request.headers(), host).then(|| respond::problem(StatusCode::FORBIDDEN, why))
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD)
}

/// The host and port of a request; `None` only in HTTP/1.0, where Host is optional. A request may name the host in its
/// target instead of Host. If it names both, they must agree (RFC 9112, section 3.2).
fn host<B>(request: &Request<B>) -> Result<Option<&str>, &'static str> {
    let mut lines = request.headers().get_all(HOST).iter();
    let host = match (lines.next(), lines.next()) {
        (Some(host), None) => Some(host.to_str().map_err(|_| "The Host header is not valid.")?),
        (None, _) if request.version() == Version::HTTP_10 => None,
        (None, _) => return Err("The request has no Host header."),
        (Some(_), Some(_)) => return Err("The request has more than one Host header."),
    };
    match (request.uri().authority().map(http::uri::Authority::as_str), host) {
        (Some(target), Some(host)) if !target.eq_ignore_ascii_case(host) => {
            Err("The Host header is not that of the target.")
        }
        (Some(target), None) => Ok(Some(target)),
        _ => Ok(host),
    }
}

/// A host without its port.
fn name(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

/// Whether a host names a listener on loopback. The port does not matter: a forwarded connection may show another one.
fn is_own_name(admin: &Admin, host: &str) -> bool {
    let name = name(host);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || admin.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Whether a browser says that the request comes from a page of another origin. Another port of the same machine is another
/// origin, although it is the same site.
fn is_from_other_origin(headers: &HeaderMap, host: Option<&str>) -> bool {
    let is_own = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        // A proxy in front may speak TLS.
        let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
        origin
            .filter(is_http)
            .and_then(|uri| uri.into_parts().authority)
            .is_some_and(|authority| host.is_some_and(|host| authority.as_str().eq_ignore_ascii_case(host)))
    };
    let is_same_site = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    !headers.get_all(ORIGIN).iter().all(is_own) || !headers.get_all(SEC_FETCH_SITE).iter().all(is_same_site)
}

/// The token of `Authorization: Bearer` (RFC 6750, section 2.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AdminAddress, AdminToken};

    fn admin(listen: &str, token: Option<&str>) -> Admin {
        let listen = match listen.strip_prefix("unix:") {
            Some(path) => AdminAddress::Unix(path.into()),
            None => AdminAddress::Tcp(listen.parse().unwrap()),
        };
        let token = token.map(AdminToken::new);
        let read_token = token.is_some().then(|| AdminToken::new("reads"));
        Admin { listen, tls: None, token, read_token, hosts: vec!["gateway.internal".to_owned()], show_keys: false }
    }

    fn admitted(admin: &Admin, request: &Request<()>, is_open: bool) -> Option<LocalResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(Gatekeeper::default().admit(admin, None, request, is_open)).err()
    }

    /// 200 if nothing was refused.
    fn status(admin: &Admin, method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri("/api/reload");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        admitted(admin, &request.body(()).unwrap(), false).map_or(200, |response| response.status().as_u16())
    }

    #[test]
    fn a_listener_on_loopback_answers_only_to_its_own_names() {
        for (host, expected) in [
            ("127.0.0.1:9901", 200),
            ("127.0.0.1", 200),
            ("127.9.9.9:1", 200),
            ("[::1]:9901", 200),
            ("[::1]", 200),
            ("localhost:80", 200),
            ("LocalHost", 200),
            ("Gateway.Internal:9901", 200),
            ("evil.example:9901", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example", 403),
            ("evil.example:127.0.0.1", 403),
            ("192.0.2.1:9901", 403),
            ("0.0.0.0:9901", 403),
            ("[::ffff:192.0.2.1]", 403),
            ("", 403),
            ("[::1", 403),
        ] {
            for listen in ["127.0.0.1:9901", "[::1]:9901"] {
                assert_eq!(status(&admin(listen, None), "GET", &[("host", host)]), expected, "{host:?}");
                // A token does not make up for a wrong host.
                let headers = [("host", host), ("authorization", "Bearer t")];
                assert_eq!(status(&admin(listen, Some("t")), "GET", &headers), expected, "{host:?}");
            }
            let headers = [("host", host), ("authorization", "Bearer t")];
            assert_eq!(status(&admin("0.0.0.0:9901", Some("t")), "GET", &headers), 200, "{host:?}");
            assert_eq!(status(&admin("unix:/run/a.sock", None), "GET", &[("host", host)]), 200, "{host:?}");
        }
        let all = admin("127.0.0.1:9901", None);
        assert_eq!(status(&all, "GET", &[]), 400);
        assert_eq!(status(&all, "GET", &[("host", "localhost"), ("host", "evil.example")]), 400);
        let target = |uri: &str, host: &str| {
            let request = Request::get(uri).header("host", host).body(()).unwrap();
            admitted(&all, &request, false).map(|response| response.status().as_u16())
        };
        assert_eq!(target("http://localhost:9901/metrics", "localhost:9901"), None);
        assert_eq!(target("http://localhost:9901/metrics", "evil.example"), Some(400));
        assert_eq!(target("http://evil.example/metrics", "localhost:9901"), Some(400));
        assert_eq!(target("http://evil.example/metrics", "evil.example"), Some(403));
    }

    #[test]
    fn pages_of_other_origins_change_nothing() {
        let all = admin("127.0.0.1:9901", None);
        let own = ("host", "localhost:9901");
        for (header, allowed) in [
            (("origin", "http://localhost:9901"), true),
            (("origin", "http://LOCALHOST:9901"), true),
            (("origin", "https://localhost:9901"), true),
            (("origin", "http://localhost:3000"), false),
            (("origin", "http://localhost"), false),
            (("origin", "http://127.0.0.1:9901"), false),
            (("origin", "http://evil.example"), false),
            (("origin", "http://localhost:9901.evil.example"), false),
            (("origin", "http://localhost:9901@evil.example"), false),
            (("origin", "null"), false),
            (("origin", ""), false),
            (("origin", "localhost:9901"), false),
            (("origin", "file://localhost:9901"), false),
            (("sec-fetch-site", "same-origin"), true),
            (("sec-fetch-site", "none"), true),
            (("sec-fetch-site", "same-site"), false),
            (("sec-fetch-site", "cross-site"), false),
            (("sec-fetch-site", "anything"), false),
        ] {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                let expected = if allowed { 200 } else { 403 };
                assert_eq!(status(&all, method, &[own, header]), expected, "{method} {header:?}");
            }
            assert_eq!(status(&all, "GET", &[own, header]), 200, "{header:?}");
        }
        let several = [own, ("origin", "http://localhost:9901"), ("origin", "http://evil.example")];
        assert_eq!(status(&all, "POST", &several), 403);
    }

    #[test]
    fn a_token_is_asked_for_wherever_there_is_one() {
        for listen in ["127.0.0.1:9901", "0.0.0.0:9901", "unix:/run/a.sock"] {
            let all = admin(listen, Some("secret"));
            let shown = |value: &str| status(&all, "GET", &[("host", "localhost"), ("authorization", value)]);
            assert_eq!(shown("Bearer secret"), 200);
            assert_eq!(shown("bearer  secret"), 200);
            for wrong in
                ["Bearer secre", "Bearer secrets", "Bearer ", "Bearer", "Basic secret", "secret", "BearerXsecret"]
            {
                assert_eq!(shown(wrong), 401, "{wrong:?}");
            }
            assert_eq!(status(&all, "GET", &[("host", "localhost")]), 401);
            let probe = Request::get("/healthz").header("host", "localhost").body(()).unwrap();
            assert!(admitted(&all, &probe, true).is_none());
        }
    }
    #[test]
    fn the_token_for_reading_changes_nothing() {
        let all = admin("0.0.0.0:9901", Some("secret"));
        for (method, token, expected) in [
            ("GET", "reads", 200),
            ("HEAD", "reads", 200),
            ("POST", "reads", 403),
            ("PUT", "reads", 403),
            ("DELETE", "reads", 403),
            ("PATCH", "reads", 403),
            ("POST", "secret", 200),
            ("POST", "read", 401),
        ] {
            let headers = [("host", "a"), ("authorization", &*format!("Bearer {token}"))];
            assert_eq!(status(&all, method, &headers), expected, "{method} {token}");
        }
    }

    #[tokio::test]
    async fn wrong_tokens_are_slowed_down_and_counted() {
        let (all, gatekeeper) = (admin("0.0.0.0:9901", Some("secret")), Gatekeeper::default());
        let request = |token| {
            let request =
                Request::get("/metrics").header("host", "a").header("authorization", format!("Bearer {token}"));
            request.body(()).unwrap()
        };
        let peer = Some("192.0.2.1".parse().unwrap());
        let ask = async |token| match gatekeeper.admit(&all, peer, &request(token), false).await {
            Ok(()) => 200,
            Err(response) => response.status().as_u16(),
        };
        let began = tokio::time::Instant::now();
        for _ in 0..10 {
            assert_eq!(ask("wrong").await, 401);
        }
        assert_eq!(ask("secret").await, 200, "after a while");
        assert!(began.elapsed() >= Duration::from_secs(1));
        let text = format!("{:?}", gatekeeper.family());
        assert_eq!(gatekeeper.refused.each_ref().map(Counter::get), [0, 0, 0, 10, 0, 0], "{text}");
    }
}
