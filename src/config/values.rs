//! Parsers for values that are texts: addresses, networks, URLs, names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use http::{HeaderName, Method, StatusCode, Uri};
use ipnet::IpNet;
use rustls::pki_types::ServerName;

use super::Address;
use super::read::{Field, Wrong};
use super::report::quoted;
use crate::net::fetch::Url;

/// The maximum number of elements in lists that cost time for every request.
pub(super) const MOST: usize = 8;

/// In bytes, on every system (`sun_path` without its final zero).
const LONGEST_SOCKET_PATH: usize = 103;

type Read<T> = Result<T, Wrong>;

pub(super) fn status(field: &Field<'_>, allowed: RangeInclusive<u64>) -> Option<StatusCode> {
    field.integer(allowed).and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok())
}

pub(super) fn socket(text: &str) -> Read<SocketAddr> {
    text.parse().map_err(|_| {
        let message = format!("{} is not an address to listen on", quoted(text));
        let help = if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            format!("add the port: \"{}\"", SocketAddr::new(ip, 8080))
        } else if let Some(port) = text.strip_prefix(':').or(text.strip_prefix("*:")) {
            format!("add the address: \"127.0.0.1:{port}\" for this machine only, \"0.0.0.0:{port}\" for all")
        } else if let Some(port) = text.strip_prefix("localhost:") {
            format!("write the address instead of the name: \"127.0.0.1:{port}\" or \"[::1]:{port}\"")
        } else if let Some(rest) = text.strip_prefix("http://") {
            format!("write it without the scheme: \"{}\"", rest.trim_end_matches('/'))
        } else {
            "it is an IP address and a port from 0 to 65535, like \"127.0.0.1:8080\" or \"[::]:8080\"".to_owned()
        };
        Wrong::new(message, help)
    })
}

/// A network, or one address as a network.
pub(super) fn network(text: &str) -> Read<IpNet> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(ip));
    }
    let Ok(network) = text.parse::<IpNet>() else {
        let help = "it is an address and a prefix length, like \"10.0.0.0/8\", \"fd00::/8\" or \"192.0.2.7\"";
        return Err(Wrong::new(format!("{} is not a network", quoted(text)), help));
    };
    if network.addr() == network.network() {
        return Ok(network);
    }
    // If only one machine was meant, trusting its whole network would be a security hole.
    let message = format!("{} is an address within a network", quoted(text));
    Err(Wrong::new(
        message,
        format!("write \"{}\" for the network, \"{}\" for the address", network.trunc(), network.addr()),
    ))
}

pub(super) fn server(text: &str) -> Read<Address> {
    if let Some(name) = text.strip_prefix("builtin:") {
        return match name {
            "echo" => Ok(Address::Echo),
            _ => Err(Wrong::new(
                format!("{} is not a server", quoted(text)),
                "the only built-in server is `builtin:echo`",
            )),
        };
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(Address::Unix).map_err(|wrong| wrong.at(text.len() - path.len()..text.len()));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let message = format!("{} is not a server: it has no scheme", quoted(text));
        let help = match authority(text, 80) {
            Ok(_) => format!("did you mean \"http://{text}\"?"),
            Err(_) => "a server is \"http://host:port\" or \"https://host:port\"".to_owned(),
        };
        return Err(Wrong::new(message, help));
    };
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => {
            let message = format!("{} is not a scheme for servers", quoted(scheme));
            return Err(Wrong::new(message, "allowed: `http` or `https`"));
        }
    };
    let start = text.len() - rest.len();
    let place = |at: usize| start + at..text.len();
    // A password may contain a character that ends a host.
    if let Some(at) = rest.rfind('@') {
        let host = rest[at + 1..].split(['/', '?', '#']).next().unwrap_or_default();
        let help = format!("write \"{scheme}://{host}\"");
        return Err(Wrong::new("a server has no user name", help).at(start..start + at + 1));
    }
    if let Some(at) = rest.find(['/', '?', '#']) {
        let what = match rest.as_bytes()[at] {
            b'/' => "path",
            b'?' => "query",
            _ => "fragment",
        };
        let help = format!("write \"{scheme}://{}\"", &rest[..at]);
        return Err(Wrong::new(format!("a server has no {what}"), help).at(place(at)));
    }
    let (host, port) = authority(rest, default_port).map_err(|wrong| wrong.at(place(0)))?;
    let name = (scheme == "https").then(|| ServerName::try_from(host.clone()));
    let tls = name.transpose().map_err(|_| {
        let message = format!("{} is not a name that a certificate can have", quoted(&host));
        Wrong::new(message, "no part of a name begins or ends with `-`").at(place(0))
    })?;
    Ok(Address::Http { host, port, authority: rest.to_owned(), tls })
}

fn unix(path: &str) -> Read<PathBuf> {
    let help = "write its absolute path, like \"unix:/run/app.sock\"";
    if path.starts_with("//") || !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err(Wrong::new(format!("{} is not the path of a socket", quoted(path)), help));
    }
    if path.len() > LONGEST_SOCKET_PATH {
        let message =
            format!("the path of a socket has at most {LONGEST_SOCKET_PATH} bytes, and this one {}", path.len());
        return Err(Wrong::new(message, "the system does not accept longer ones"));
    }
    Ok(PathBuf::from(path))
}

/// The URL of a document: `https://`, or `http://` on this machine.
pub(super) fn document(text: &str) -> Read<Url> {
    let help = "write https://, or http:// for a server on this machine, like \"http://127.0.0.1:9000/keys\"";
    let url = url(text, "documents", help)?;
    if url.server_name.is_none() && !is_here(&url) {
        return Err(
            Wrong::new("without TLS others in the network could change the document", help).at(0.."http://".len())
        );
    }
    Ok(url)
}

/// Like `document`, for a URL that is not in a file.
///
/// # Errors
/// What is wrong, without the URL.
pub fn document_url(text: &str) -> Result<Url, String> {
    document(text).map_err(
        |Wrong { message, help, .. }| {
            if help.is_empty() { message } else { format!("{message}: {help}") }
        },
    )
}

pub(super) fn is_here(url: &Url) -> bool {
    url.host == "localhost" || url.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An `http` or `https` URL; `what` is what the URL is for.
pub(super) fn url(text: &str, what: &str, help: &str) -> Read<Url> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (start, end) = (text.len() - rest.len(), rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (named, target) = rest.split_at(end);
    if let Some(at) = named.rfind('@') {
        return Err(Wrong::new("a URL must have no user name", "remove it").at(start..start + at + 1));
    }
    if let Some(at) = target.find('#') {
        return Err(Wrong::new("a URL has no fragment here", "remove it").at(start + end + at..text.len()));
    }
    let default_port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err(Wrong::new(format!("{} is not a scheme of {what}", quoted(scheme)), help)),
    };
    let (host, port) = authority(named, default_port).map_err(|wrong| {
        // What looks like a wrong host may be a password with a slash.
        let wrong = if target.contains('@') { Wrong::new("a URL must have no user name", "remove it") } else { wrong };
        wrong.at(start..start + end)
    })?;
    let no_name = |_| Wrong::new(format!("{} is not a name that a certificate can have", quoted(&host)), "");
    let server_name = (scheme == "https").then(|| ServerName::try_from(host.clone())).transpose().map_err(no_name)?;
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    if target.parse::<Uri>().is_err() {
        let help = "write other characters as % and two hexadecimal digits";
        return Err(Wrong::new("the path has characters that a URL cannot have", help).at(start + end..text.len()));
    }
    Ok(Url { host, port, authority: named.to_owned(), target: target.into(), server_name })
}

/// A server of the store; without a port, this one is added.
pub(super) fn store_server(text: &str, port: u16) -> Read<String> {
    if text.contains("://") {
        return Err(Wrong::new(format!("{} is not host:port", quoted(text)), "write it without a scheme"));
    }
    let (host, port) = authority(text, port)?;
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn authority(text: &str, default: u16) -> Read<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => {
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(Wrong::new(format!("{} is not an IPv6 address", quoted(host)), "like \"[::1]:9000\""));
            }
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').unwrap_or("")) })
        }
        None if text.parse::<Ipv6Addr>().is_ok() => {
            let message = format!("{} is an IPv6 address without brackets", quoted(text));
            return Err(Wrong::new(message, "write it in brackets, like \"[::1]:9000\""));
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            hostname(host)?;
            (host, port)
        }
    };
    let port = match port {
        None => default,
        Some(port) => port.parse().ok().filter(|number| *number > 0 && !port.starts_with('+')).ok_or_else(|| {
            Wrong::new(format!("{} is not a port", quoted(port)), "a port is a number from 1 to 65535")
        })?,
    };
    Ok((host.to_owned(), port))
}

/// A host name or an IPv4 address.
pub(super) fn hostname(text: &str) -> Read<()> {
    let wrong = |help: &str| Err(Wrong::new(format!("{} is not a host name", quoted(text)), help));
    if !text.is_ascii() {
        return wrong("write an international name in its ASCII form, which begins with xn--");
    }
    let label = |label: &str| {
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        plain && (1..=63).contains(&label.len())
    };
    if text.len() > 253 || !text.split('.').all(label) {
        return wrong("a host name is letters, digits, - and _, in parts joined by single dots");
    }
    let numeric = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if numeric && text.parse::<Ipv4Addr>().is_err() {
        return wrong("an IPv4 address is four numbers from 0 to 255, like \"10.0.1.1\"");
    }
    Ok(())
}

/// Must be in upper case.
pub(super) fn method(text: &str) -> Read<Method> {
    let Ok(method) = Method::from_bytes(text.as_bytes()) else {
        return Err(Wrong::new(
            format!("{} is not a method", quoted(text)),
            "a method is a word like \"GET\" or \"POST\"",
        ));
    };
    let upper = text.to_ascii_uppercase();
    if upper == text {
        return Ok(method);
    }
    Err(Wrong::new(format!("{} is not in upper case", quoted(text)), format!("write \"{upper}\"")))
}

pub(super) fn header(text: &str) -> Read<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        let help = "a header name is letters, digits and - without spaces, like \"x-api-key\"";
        Wrong::new(format!("{} is not a header name", quoted(text)), help)
    })
}

/// A limit or upstream: its name is part of headers and of keys in the store.
pub(super) fn name(text: &str) -> Read<()> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if plain && (1..=64).contains(&text.len()) {
        return Ok(());
    }
    let help = "a name is 1 to 64 of A-Z, a-z, 0-9, -, _ and .";
    Err(Wrong::new(format!("{} is not a name", quoted(text)), help))
}

pub(super) fn capture(text: &str) -> Read<()> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if plain && (1..=64).contains(&text.len()) {
        return Ok(());
    }
    let help = "the name of a capture is 1 to 64 of A-Z, a-z, 0-9, - and _, like `{tenant}`";
    Err(Wrong::new(format!("{} is not a name for a capture", quoted(text)), help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_servers() {
        let address = |host: &str, port, authority: &str, tls| Address::Http {
            host: host.into(),
            port,
            authority: authority.into(),
            tls,
        };
        let http = |host, port, authority| address(host, port, authority, None);
        let https =
            |host: &'static str, port, authority| address(host, port, authority, Some(host.try_into().unwrap()));
        assert_eq!(server("http://10.0.1.1:9000"), Ok(http("10.0.1.1", 9000, "10.0.1.1:9000")));
        assert_eq!(server("http://api.internal"), Ok(http("api.internal", 80, "api.internal")));
        assert_eq!(server("http://[::1]:81"), Ok(http("::1", 81, "[::1]:81")));
        assert_eq!(server("https://api.internal"), Ok(https("api.internal", 443, "api.internal")));
        assert_eq!(server("https://10.0.1.1:80"), Ok(https("10.0.1.1", 80, "10.0.1.1:80")));
        assert_eq!(server("https://[::1]"), Ok(https("::1", 443, "[::1]")));
        assert_eq!(server("builtin:echo"), Ok(Address::Echo));
        assert_eq!(server("unix:/run/app.sock"), Ok(Address::Unix("/run/app.sock".into())));
        for text in [
            "",
            "unix:",
            "unix:run/app.sock",
            "unix:///run/app.sock",
            "unix:/run/",
            "unix:/run/\0",
            "http://",
            "http://:80",
            "http://a:",
            "http://a:0",
            "http://a:99999",
            "http://a:+80",
            "http://[::1",
            "http://[::1]x",
            "http://::1",
            "http://a b",
            "http://a/",
            "http://a?b",
            "http://u@a",
            "ftp://a",
            "http://1.2.3",
            "https://",
            "https://-a",
            "https://a-.b",
            "https://a/b",
        ] {
            assert!(server(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_networks() {
        assert_eq!(network("192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        assert_eq!(network("::1").unwrap().to_string(), "::1/128");
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "here"] {
            assert!(network(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_urls_of_documents() {
        for (text, port, target) in [
            ("https://login.example.com/.well-known/jwks.json", 443, "/.well-known/jwks.json"),
            ("https://login.example.com:8443/keys?v=1", 8443, "/keys?v=1"),
            ("https://10.0.0.1/", 443, "/"),
            ("http://localhost:9000/a", 9000, "/a"),
            ("http://127.0.0.2/a", 80, "/a"),
            ("http://[::1]:81/a", 81, "/a"),
        ] {
            let url = document(text).unwrap();
            let written = format!("{}://{}{}", url.scheme(), url.authority, url.target.as_sent());
            assert_eq!((written.as_str(), url.port, url.target.as_sent()), (text, port, target));
            assert_eq!(url.server_name.is_some(), text.starts_with("https"));
        }
        assert_eq!(document("https://a").unwrap().target.as_sent(), "/");
        assert_eq!(document("https://a?b").unwrap().target.as_sent(), "/?b");
        for text in ["", "https://", "/etc/keys", "http://10.0.0.1/", "http://localhost.evil.test/", "https://a b/"] {
            assert!(document(text).is_err(), "{text}");
        }
    }

    #[test]
    fn adds_the_default_port() {
        assert_eq!(store_server("cache", 11_211).unwrap(), "cache:11211");
        assert_eq!(store_server("[::1]", 11_211).unwrap(), "[::1]:11211");
        assert_eq!(store_server("10.0.0.1:11212", 6379).unwrap(), "10.0.0.1:11212");
    }
}
