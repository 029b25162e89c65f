//! Parsers for values that are texts: addresses, networks, URLs, names, statuses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use http::{HeaderName, Method, StatusCode, Uri};
use ipnet::IpNet;
use rustls::pki_types::ServerName;

use super::read::{Field, Name, Section, Setting, Table, Wrong};
use super::report::quoted;
use crate::net::fetch::Url;

/// The maximum number of elements in lists that cost time for every request.
pub(super) const MOST: usize = 8;

type Read<T> = Result<T, Wrong>;

pub(super) fn status(field: &Field<'_>, allowed: RangeInclusive<u64>) -> Option<StatusCode> {
    field.integer(allowed).and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok())
}

pub(super) fn socket(text: &str) -> Read<SocketAddr> {
    let address: Result<SocketAddr, _> = text.parse();
    if let Ok(SocketAddr::V6(given)) = address
        && let Some(ip) = given.ip().to_ipv4_mapped()
    {
        let message = format!("{} is an IPv4 address that is written as IPv6", quoted(text));
        return Err(Wrong::new(message, format!("write it as IPv4: \"{ip}:{}\"", given.port())));
    }
    address.map_err(|_| {
        let is_port = text.parse::<u16>().is_ok();
        let help = if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            format!("add the port: \"{}\"", SocketAddr::new(ip.to_canonical(), 8080))
        } else if let Some(port) = text.strip_prefix(':').or(text.strip_prefix("*:")).or(is_port.then_some(text)) {
            format!("add the address: \"127.0.0.1:{port}\" for this machine only, \"0.0.0.0:{port}\" for all")
        } else if let Some(port) = text.strip_prefix("localhost:") {
            format!("write the address instead of the name: \"127.0.0.1:{port}\" or \"[::1]:{port}\"")
        } else if let Some(rest) = text.strip_prefix("http://") {
            format!("write it without the scheme: \"{}\"", rest.trim_end_matches('/'))
        } else {
            "it is an IP address and a port from 0 to 65535, like \"127.0.0.1:8080\" or \"[::]:8080\"".to_owned()
        };
        Wrong::not(text, "an address to listen on", help)
    })
}

/// A network, or one address as a network. `::ffff:192.0.2.7` is `192.0.2.7`, as it is in requests.
pub(super) fn network(text: &str) -> Read<IpNet> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(ip.to_canonical()));
    }
    let Ok(network) = text.parse::<IpNet>() else {
        let help = "it is an address and a prefix length, like \"10.0.0.0/8\", \"fd00::/8\" or \"192.0.2.7\"";
        return Err(Wrong::not(text, "a network", help));
    };
    if network.addr() == network.network() {
        let address = network.addr().to_canonical();
        let mapped = network.prefix_len().checked_sub(96).filter(|_| address.is_ipv4());
        return Ok(mapped.and_then(|prefix| IpNet::new(address, prefix).ok()).unwrap_or(network));
    }
    // If only one machine was meant, trusting its whole network would be a security hole.
    let message = format!("{} is an address within a network", quoted(text));
    let help = format!("write \"{}\" for the network, \"{}\" for the address", network.trunc(), network.addr());
    Err(Wrong::new(message, help))
}

/// The URL of a document: `https://`, or `http://` on this machine.
pub(super) fn document(text: &str) -> Read<Url> {
    let help = "write https://, or http:// for a server on this machine, like \"http://127.0.0.1:9000/keys\"";
    safe_url(text, "documents", "change the document", help)
}

/// An `https` URL, or an `http` URL of this machine. Without TLS `others could` do something.
pub(super) fn safe_url(text: &str, what: &str, others_could: &str, help: &str) -> Read<Url> {
    let url = url(text, what, help)?;
    if url.server_name.is_none() && !is_here(&url) {
        let message = format!("without TLS others in the network could {others_could}");
        return Err(Wrong::new(message, help).at(0.."http://".len()));
    }
    Ok(url)
}

/// Like `document`, for a URL that is not in a file. The error says what is wrong, without the URL.
pub fn document_url(text: &str) -> Result<Url, String> {
    document(text).map_err(sentence)
}

/// The URL of an admin listener, which has no path. The error says what is wrong; `help` is an example.
pub fn admin_url(text: &str, help: &str) -> Result<Url, String> {
    let url = url(text, "admin listeners", help).map_err(sentence)?;
    if url.target.as_sent() != "/" {
        return Err("write the URL without a path: the admin listener is a whole server".to_owned());
    }
    Ok(url)
}

fn sentence(Wrong { message, help, .. }: Wrong) -> String {
    if help.is_empty() { message } else { format!("{message}: {help}") }
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
        _ => return Err(Wrong::not(scheme, &format!("a scheme of {what}"), help)),
    };
    let (host, port) = authority(named, default_port).map_err(|wrong| {
        // What looks like a wrong host may be a password with a slash.
        let wrong = if target.contains('@') { Wrong::new("a URL must have no user name", "remove it") } else { wrong };
        wrong.at(start..start + end)
    })?;
    let no_name = |_| Wrong::not(&host, "a name that a certificate can have", "");
    let server_name = (scheme == "https").then(|| ServerName::try_from(host.clone())).transpose().map_err(no_name)?;
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    if target.parse::<Uri>().is_err() {
        let help = "write other characters as % and two hexadecimal digits";
        return Err(Wrong::new("the path has characters that a URL cannot have", help).at(start + end..text.len()));
    }
    Ok(Url { host, port, authority: named.to_owned(), target: target.into(), server_name })
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn authority(text: &str, default: u16) -> Read<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => {
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(Wrong::not(host, "an IPv6 address", "like \"[::1]:9000\""));
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
        Some(port) => port
            .parse()
            .ok()
            .filter(|number| *number > 0 && !port.starts_with('+'))
            .ok_or_else(|| Wrong::not(port, "a port", "a port is a number from 1 to 65535"))?,
    };
    Ok((host.to_owned(), port))
}

/// A host name or an IPv4 address.
pub(super) fn hostname(text: &str) -> Read<()> {
    let wrong = |help: &str| Err(Wrong::not(text, "a host name", help));
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
        return Err(Wrong::not(text, "a method", "a method is a word like \"GET\" or \"POST\""));
    };
    let upper = text.to_ascii_uppercase();
    if upper == text {
        return Ok(method);
    }
    Err(Wrong::not(text, "in upper case", format!("write \"{upper}\"")))
}

pub(super) fn header(text: &str) -> Read<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        let help = "a header name is letters, digits and - without spaces, like \"x-api-key\"";
        Wrong::not(text, "a header name", help)
    })
}

/// A limit or upstream: its name is part of headers and of keys in the store.
pub(super) fn name(text: &str) -> Read<()> {
    let wrong = || Wrong::not(text, "a name", "a name is 1 to 64 of A-Z, a-z, 0-9, -, _ and .");
    is_word(text, b"-_.").then_some(()).ok_or_else(wrong)
}

pub(super) fn capture(text: &str) -> Read<()> {
    let help = "the name of a capture is 1 to 64 of A-Z, a-z, 0-9, - and _, like `{tenant}`";
    is_word(text, b"-_").then_some(()).ok_or_else(|| Wrong::not(text, "a name for a capture", help))
}

/// Whether the text is 1 to 64 letters, digits and `signs`.
fn is_word(text: &str, signs: &[u8]) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || signs.contains(&byte))
}

/// The section `[kind.NAME]` of `what`. `None`, after a report, if it is not a table. A name that is not allowed is reported too.
pub(super) fn named_section<'a>(
    name: &Name<'_>,
    field: &Field<'a>,
    kind: &str,
    what: &str,
    table: &'static Table,
) -> Option<Section<'a>> {
    if let Err(wrong) = self::name(name.text) {
        field.source.report(name.span.clone(), wrong.message, wrong.help);
    }
    if !field.value.is_table() {
        let message = format!("`{}` is not the table of {what}", name.text);
        let help = format!("it needs a name: write [{kind}.NAME], and its keys below");
        field.source.report(name.span.clone(), message, help);
        return None;
    }
    field.section(format!("[{kind}.{}]", name.text), table)
}

/// A list of statuses and classes of statuses: `["401", "5xx"]`. `None` if the list must not be empty but has no valid element.
pub(super) fn statuses<T>(field: &Field<'_>, key: &Setting<T>) -> Option<Vec<RangeInclusive<u16>>> {
    let statuses: Vec<_> = field.list(key)?.iter().filter_map(|field| status_range(field, key.example())).collect();
    Some(statuses).filter(|statuses| !statuses.is_empty() || key.shape.bounds().is_none_or(|(least, _)| least == 0))
}

/// One status as a number or a text, or one class.
fn status_range(field: &Field<'_>, example: &str) -> Option<RangeInclusive<u16>> {
    if field.value.is_integer() {
        let status = field.integer(100..=599).and_then(|status| u16::try_from(status).ok())?;
        return Some(status..=status);
    }
    field.parse(|text| status_or_class(text, example))
}

fn status_or_class(text: &str, example: &str) -> Result<RangeInclusive<u16>, Wrong> {
    let wrong = || {
        let help = format!("a status is 100 to 599, a class is 1xx to 5xx: {example}");
        Wrong::not(text, "a status", help)
    };
    let (first, last) = match text.strip_suffix("xx").or(text.strip_suffix("XX")) {
        Some(class) => (format!("{class}00"), format!("{class}99")),
        None => (text.to_owned(), text.to_owned()),
    };
    let number = |text: String| text.parse().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let range = number(first).zip(number(last)).map(|(first, last)| first..=last);
    range.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_networks() {
        assert_eq!(network("192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        assert_eq!(network("::1").unwrap().to_string(), "::1/128");
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("::ffff:192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        assert_eq!(network("::ffff:192.0.2.0/120").unwrap().to_string(), "192.0.2.0/24");
        assert_eq!(network("::ffff:0:0/96").unwrap().to_string(), "0.0.0.0/0");
        assert_eq!(network("::/0").unwrap().to_string(), "::/0");
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
            assert_eq!((url.whole().as_str(), url.port, url.target.as_sent()), (text, port, target));
            assert_eq!(url.server_name.is_some(), text.starts_with("https"));
        }
        assert_eq!(document("https://a").unwrap().target.as_sent(), "/");
        assert_eq!(document("https://a?b").unwrap().target.as_sent(), "/?b");
        for text in ["", "https://", "/etc/keys", "http://10.0.0.1/", "http://localhost.evil.test/", "https://a b/"] {
            assert!(document(text).is_err(), "{text}");
        }
    }
}
