//! Replaces the URLs of an upstream's servers in its responses. An application that is asked under the name of its server
//! writes that name into Location, but clients cannot reach it.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::base::http::header_list;
use crate::config::{Address, Scheme, Upstream};

/// The schemes, names and ports of the servers of an upstream, like `http://10.0.0.1:9000`.
pub struct OwnOrigins(Box<[String]>);

impl OwnOrigins {
    pub fn new(upstream: &Upstream) -> Self {
        let origin = |address: &Address| match address {
            Address::Http { authority, tls: None, .. } => Some(without_port(&format!("http://{authority}"), ":80")),
            Address::Http { authority, tls: Some(_), .. } => {
                Some(without_port(&format!("https://{authority}"), ":443"))
            }
            Address::Unix(_) | Address::Echo => None,
        };
        Self(upstream.servers.iter().filter_map(|server| origin(&server.address)).collect())
    }

    /// Replaces the origin of a server by the one that the client has asked, in Location and Content-Location.
    pub fn replace<B>(&self, response: &mut Response<B>, scheme: Scheme, request: &HeaderMap) {
        // Location means nothing in a response with 200 (RFC 9110, section 10.2.2), as most are.
        if response.status() != StatusCode::OK
            && let Some(url) = response.headers_mut().get_mut(header::LOCATION)
        {
            self.replace_url(url, scheme, request);
        }
        if header_list::has(response.headers(), &header::CONTENT_LOCATION)
            && let Some(url) = response.headers_mut().get_mut(header::CONTENT_LOCATION)
        {
            self.replace_url(url, scheme, request);
        }
    }

    fn replace_url(&self, value: &mut HeaderValue, scheme: Scheme, request: &HeaderMap) {
        let host = request.get(header::HOST).and_then(|host| host.to_str().ok());
        let rest = value.to_str().ok().and_then(|url| self.rest(url));
        let replaced = rest.zip(host).map(|(rest, host)| format!("{}://{host}{rest}", scheme.name()));
        if let Some(replaced) = replaced.and_then(|url| HeaderValue::try_from(url).ok()) {
            *value = replaced;
        }
    }

    /// The rest of the URL after the origin, if that is the origin of a server.
    fn rest<'u>(&self, url: &'u str) -> Option<&'u str> {
        let begin = url.find("://")? + 3;
        let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
        let (origin, rest) = url.split_at(end);
        let is_same = |own: &String| {
            let default = if own.starts_with("https:") { ":443" } else { ":80" };
            own.eq_ignore_ascii_case(origin.strip_suffix(default).unwrap_or(origin))
        };
        self.0.iter().any(is_same).then_some(rest)
    }
}

fn without_port(origin: &str, default: &str) -> String {
    origin.strip_suffix(default).unwrap_or(origin).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_the_servers_alone_are_replaced() {
        let origins = OwnOrigins(["http://10.0.0.1:9000", "https://b.test"].map(str::to_owned).into());
        for (url, rest) in [
            ("http://10.0.0.1:9000/a?b#c", Some("/a?b#c")),
            ("HTTP://10.0.0.1:9000", Some("")),
            ("http://10.0.0.1:9000?b", Some("?b")),
            ("https://B.test:443/", Some("/")),
            ("https://b.test/", Some("/")),
            ("http://b.test/", None),
            ("https://b.test:80/", None),
            ("https://10.0.0.1:9000/", None),
            ("http://10.0.0.1:90001/", None),
            ("http://10.0.0.1/", None),
            ("http://10.0.0.1:9000.evil.test/", None),
            ("http://user@10.0.0.1:9000/", None),
            ("//10.0.0.1:9000/", None),
            ("/http://10.0.0.1:9000/", None),
            ("", None),
        ] {
            assert_eq!(origins.rest(url), rest, "{url}");
        }
    }
}
