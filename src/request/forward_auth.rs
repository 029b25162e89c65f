//! Reads the request about which another proxy asks from the headers of the question, in one of two ways.
//!
//! | | names the target in | and the method in | and the host in |
//! |---|---|---|---|
//! | Traefik, Caddy | `X-Forwarded-Uri` | `X-Forwarded-Method` | `X-Forwarded-Host`, else `Host` |
//! | nginx | `X-Original-URI` | `X-Original-Method` | `Host` |
//!
//! These proxies pass on what their clients send. So a client can write the headers of the other way, to be counted by
//! another path or host. Only the headers of one way count, and a question with both or with repeated targets is refused.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header};

use crate::base::http::header_rules::FORWARDED_HOST;
use crate::base::http::written_target;

const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");

/// The head of the request about which `question` asks. It has all headers of the question but Forwarded: these proxies write
/// X-Forwarded-For, and pass on Forwarded as the client has written it. The error says what is wrong with the question.
pub fn read(question: &Parts) -> Result<Parts, &'static str> {
    let headers = &question.headers;
    let forwarded = single(headers, &FORWARDED_URI, "There is more than one X-Forwarded-Uri.")?;
    let original = single(headers, &ORIGINAL_URI, "There is more than one X-Original-URI.")?;
    let (target, method, host) = match (forwarded, original) {
        (Some(target), None) => {
            let method = single(headers, &FORWARDED_METHOD, "There is more than one X-Forwarded-Method.")?;
            let name = HeaderName::from_static(FORWARDED_HOST);
            (target, method, single(headers, &name, "There is more than one X-Forwarded-Host.")?)
        }
        (None, Some(target)) => {
            (target, single(headers, &ORIGINAL_METHOD, "There is more than one X-Original-Method.")?, None)
        }
        (Some(_), Some(_)) => {
            return Err("There are both X-Forwarded-Uri and X-Original-URI: only one of them can count.");
        }
        (None, None) => {
            return Err(
                "There is neither X-Forwarded-Uri nor X-Original-URI: one of them has to say which request this \
                        is about.",
            );
        }
    };
    let mut uri = question.uri.clone().into_parts();
    uri.path_and_query =
        Some(written_target::escaped(target.as_bytes()).ok_or("The X-Forwarded-Uri or X-Original-URI is not a path.")?);
    if host.is_some() {
        (uri.scheme, uri.authority) = (None, None);
    }
    let (mut asked, ()) = Request::new(()).into_parts();
    asked.uri = Uri::from_parts(uri).map_err(|_| "The target of this request is not valid.")?;
    asked.method = match method {
        Some(method) => Method::from_bytes(method.as_bytes())
            .map_err(|_| "The X-Forwarded-Method or X-Original-Method is not a method.")?,
        None => question.method.clone(),
    };
    // A proxy passes on no host only if its client used HTTP/1.0 and sent none.
    let has_host = host.is_some() || headers.contains_key(header::HOST) || asked.uri.authority().is_some();
    asked.version = if has_host || original.is_none() { question.version } else { Version::HTTP_10 };
    asked.headers.clone_from(headers);
    asked.headers.remove(header::FORWARDED);
    if let Some(host) = host {
        asked.headers.insert(header::HOST, host.clone());
    }
    Ok(asked)
}

pub fn names_target(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED_URI) || headers.contains_key(ORIGINAL_URI)
}

fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    many: &'static str,
) -> Result<Option<&'h HeaderValue>, &'static str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_none() { Ok(value) } else { Err(many) }
}

#[cfg(test)]
mod tests {
    use http::Version;

    use super::*;

    /// Returns the method, the target and the host that count for this question.
    fn asked(question: Request<()>) -> Result<String, &'static str> {
        let asked = read(&question.into_parts().0)?;
        let host = asked.headers.get(header::HOST).map_or("", |host| host.to_str().unwrap());
        Ok(format!("{} {} {host}", asked.method, asked.uri))
    }

    fn with(headers: &[(&'static str, &'static str)]) -> Result<String, &'static str> {
        let mut question = Request::get("/decide");
        for (name, value) in [("host", "gateway.test")].iter().chain(headers) {
            question = question.header(*name, *value);
        }
        asked(question.body(()).unwrap())
    }

    const BY_TRAEFIK: [(&str, &str); 3] =
        [("x-forwarded-uri", "/a?b=c"), ("x-forwarded-method", "POST"), ("x-forwarded-host", "a.test")];
    const BY_NGINX: [(&str, &str); 2] = [("x-original-uri", "/a?b=c"), ("x-original-method", "POST")];

    #[test]
    fn each_way_names_the_request() {
        assert_eq!(with(&BY_TRAEFIK).as_deref(), Ok("POST /a?b=c a.test"));
        assert_eq!(with(&BY_TRAEFIK[..2]).as_deref(), Ok("POST /a?b=c gateway.test"));
        assert_eq!(with(&BY_TRAEFIK[..1]).as_deref(), Ok("GET /a?b=c gateway.test"));
        assert_eq!(with(&BY_NGINX).as_deref(), Ok("POST /a?b=c gateway.test"));
        assert_eq!(with(&BY_NGINX[..1]).as_deref(), Ok("GET /a?b=c gateway.test"));
    }

    #[test]
    fn headers_of_the_other_way_do_not_count() {
        let more = [("x-original-method", "DELETE")];
        assert_eq!(with(&[&BY_TRAEFIK[..], &more].concat()).as_deref(), Ok("POST /a?b=c a.test"));
        let more = [("x-forwarded-method", "DELETE"), ("x-forwarded-host", "other.test")];
        assert_eq!(with(&[&BY_NGINX[..], &more].concat()).as_deref(), Ok("POST /a?b=c gateway.test"));
        assert!(with(&[&BY_TRAEFIK[..], &BY_NGINX].concat()).unwrap_err().contains("both"));
        assert!(with(&[]).unwrap_err().contains("neither"));
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        for headers in [&BY_TRAEFIK[..], &BY_NGINX] {
            for twice in headers {
                let why = with(&[headers, &[*twice]].concat()).unwrap_err();
                assert!(why.contains("more than one"), "{twice:?}: {why}");
            }
        }
    }

    #[test]
    fn only_a_path_and_a_method_name_a_request() {
        for target in ["", "*", "a", "http://a.test/b", "?a", "/a#b", "/a b", "a.test:443"] {
            assert!(with(&[("x-original-uri", target)]).unwrap_err().contains("not a path"), "{target}");
        }
        for method in ["", "G T", "GET, POST"] {
            assert!(
                with(&[BY_NGINX[0], ("x-original-method", method)]).unwrap_err().contains("not a method"),
                "{method}"
            );
        }
    }

    #[test]
    fn what_every_server_reads_as_its_escape_is_escaped() {
        let escaped = with(&[("x-original-uri", "/\"a\"<b>{c}%22?\"a\"<b>|^`%22")]);
        assert_eq!(escaped.as_deref(), Ok("GET /%22a%22%3Cb%3E%7Bc%7D%22?%22a%22%3Cb%3E%7C%5E%60%22 gateway.test"));
        let mut question = Request::get("/decide").header("host", "gateway.test").body(()).unwrap();
        question.headers_mut().insert(ORIGINAL_URI, HeaderValue::from_bytes(b"/caf\xe9").unwrap());
        assert_eq!(asked(question).as_deref(), Ok("GET /caf%E9 gateway.test"));
    }

    #[test]
    fn without_a_host_the_client_speaks_http_1_0() {
        let version = |name: &str, host: &str| {
            let question = Request::get("/decide").header(name, "/a");
            let question = if host.is_empty() { question } else { question.header("host", host) };
            read(&question.body(()).unwrap().into_parts().0).unwrap().version
        };
        assert_eq!(version("x-original-uri", ""), Version::HTTP_10);
        assert_eq!(version("x-original-uri", "a"), Version::HTTP_11);
        assert_eq!(version("x-forwarded-uri", ""), Version::HTTP_11);
    }

    #[test]
    fn in_http_2_the_question_may_name_the_host_in_its_target() {
        let question = || Request::get("http://gateway.test/decide").version(Version::HTTP_2);
        let by_nginx = question().header("x-original-uri", "/a").body(()).unwrap();
        assert_eq!(asked(by_nginx).as_deref(), Ok("GET http://gateway.test/a "));
        let by_traefik = question().header("x-forwarded-uri", "/a").header("x-forwarded-host", "a.test");
        assert_eq!(asked(by_traefik.body(()).unwrap()).as_deref(), Ok("GET /a a.test"));
    }
}
