//! The servers of an upstream: their addresses and weights, and TLS to them (`[upstreams.NAME.tls]`): which servers the gateway
//! trusts, and the certificate that it shows to them.

use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::ServerName;

use crate::config::kinds::{number, text};
use crate::config::pem_files::SystemAuthorities;
use crate::config::read::{Field, Section, Wrong, tables};
use crate::config::tls::{CertificateFiles, certificate_files};
use crate::config::values::authority;
use crate::net::tls::{ConnectorTls, Identity};

/// In bytes, on every system (`sun_path` without its final zero).
const LONGEST_SOCKET_PATH: usize = 103;
/// For messages.
const CERTIFIED: &str = "a name that a certificate can have";

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamServer {
    pub address: Address,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `http://host:port` or `https://host:port`
    Http {
        /// A name or an address; IPv6 has no brackets.
        host: String,
        /// Without a port in the URL: 80, or 443 with TLS.
        port: u16,
        /// The Host header to send, as written in the URL.
        authority: String,
        /// For `https`: the host as a name that the server's certificate can have. `None` for `http`.
        tls: Option<ServerName<'static>>,
    },
    /// `unix:/path`
    Unix(PathBuf),
    /// `builtin:echo`, the upstream that is part of the binary.
    Echo,
}

tables! {
    /// A server with a weight.
    keys "the server" {
        /// The server's URL.
        url: () = text().required() => "http://10.0.1.1:9000";
        /// The server's share of requests, compared with the other weights.
        weight: u32 = number(1, 100), 1;
    }
}

pub(super) fn read(field: &Field<'_>) -> Option<UpstreamServer> {
    if field.value.is_str() {
        return Some(UpstreamServer { address: field.hiding_query().parse(address)?, weight: 1 });
    }
    if !field.value.is_table() {
        field.mistyped("a URL or a table", "write \"http://host:port\" or { url = \"http://host:port\", weight = 2 }");
        return None;
    }
    let section = field.section(keys::TABLE.title, &keys::TABLE)?;
    let url = section.needed(&keys::url);
    let address = url.and_then(|field| field.hiding_query().parse(address));
    let weight = section.read(&keys::weight);
    Some(UpstreamServer { address: address?, weight })
}

fn address(text: &str) -> Result<Address, Wrong> {
    if let Some(name) = text.strip_prefix("builtin:") {
        return match name {
            "echo" => Ok(Address::Echo),
            _ => Err(Wrong::not(text, "a server", "the only built-in server is `builtin:echo`")),
        };
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(Address::Unix).map_err(|wrong| wrong.at(text.len() - path.len()..text.len()));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let help = match authority(text, 80) {
            Ok(_) => format!("did you mean \"http://{text}\"?"),
            Err(_) => "a server is \"http://host:port\" or \"https://host:port\"".to_owned(),
        };
        return Err(Wrong::not(text, "a server: it has no scheme", help));
    };
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(Wrong::not(scheme, "a scheme for servers", "allowed: `http` or `https`")),
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
    let help = "no part of a name begins or ends with `-`";
    let tls = name.transpose().map_err(|_| Wrong::not(&host, CERTIFIED, help).at(place(0)))?;
    Ok(Address::Http { host, port, authority: rest.to_owned(), tls })
}

fn unix(path: &str) -> Result<PathBuf, Wrong> {
    let help = "write its absolute path, like \"unix:/run/app.sock\"";
    if path.starts_with("//") || !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err(Wrong::not(path, "the path of a socket", help));
    }
    if path.len() > LONGEST_SOCKET_PATH {
        let message =
            format!("the path of a socket has at most {LONGEST_SOCKET_PATH} bytes, and this one {}", path.len());
        return Err(Wrong::new(message, "the system does not accept longer ones"));
    }
    Ok(PathBuf::from(path))
}

/// As the configuration spells it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { authority, tls: None, .. } => write!(f, "http://{authority}"),
            Self::Http { authority, tls: Some(_), .. } => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Echo => f.write_str("builtin:echo"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTls {
    pub ca: Option<PathBuf>,
    /// The name in the certificates of servers, which is also sent as SNI; `None` is the host of each URL.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate for servers that ask for one.
    pub certificate: Option<CertificateFiles>,
    /// The content of the files.
    pub settings: ConnectorTls,
}

tables! {
    /// TLS to `https://` servers; a reload reads the files again.
    tls {
        /// The authorities that issued the servers' certificates. By default those of the system.
        ca: () = text() => "tls/ca.pem";
        /// The name in the servers' certificates. By default the host of each URL.
        server_name: () = text() => "api.internal";
        /// The certificate for servers that ask for one; needs `key`.
        cert: () = text() => "tls/gateway.pem";
        /// The private key of `cert`; needs `cert`.
        key: () = text() => "tls/gateway.key";
    }
}

/// For an upstream with `https://` servers, which are written in `servers`; `None` after an error.
pub(in crate::config) fn read_tls(
    section: Option<&Section<'_>>,
    servers: &Field<'_>,
    system: &SystemAuthorities,
) -> Option<UpstreamTls> {
    let field = |key| section.and_then(|section| section.field(key));
    let (ca, name) = (field(&tls::ca), field(&tls::server_name));
    let server_name = name.and_then(|field| field.parse(server_name));
    let (certificate, identity) = section.and_then(certificate).unzip();
    let (ca, settings) = system.connector(ca.as_ref(), servers, identity)?;
    Some(UpstreamTls { ca, server_name, certificate, settings })
}

fn certificate(section: &Section<'_>) -> Option<(CertificateFiles, Identity)> {
    let [cert, key] = section.both(&tls::cert, &tls::key)?;
    certificate_files(&cert, &key, None)
}

fn server_name(text: &str) -> Result<ServerName<'static>, Wrong> {
    let help = "it is a name or an address without a port, like \"api.internal\" or \"10.0.1.1\"";
    ServerName::try_from(text.to_owned()).map_err(|_| Wrong::not(text, CERTIFIED, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_servers() {
        let named = |host: &str, port, authority: &str, tls| Address::Http {
            host: host.into(),
            port,
            authority: authority.into(),
            tls,
        };
        let http = |host, port, authority| named(host, port, authority, None);
        let https = |host: &'static str, port, authority| named(host, port, authority, Some(host.try_into().unwrap()));
        assert_eq!(address("http://10.0.1.1:9000"), Ok(http("10.0.1.1", 9000, "10.0.1.1:9000")));
        assert_eq!(address("http://api.internal"), Ok(http("api.internal", 80, "api.internal")));
        assert_eq!(address("http://[::1]:81"), Ok(http("::1", 81, "[::1]:81")));
        assert_eq!(address("https://api.internal"), Ok(https("api.internal", 443, "api.internal")));
        assert_eq!(address("https://10.0.1.1:80"), Ok(https("10.0.1.1", 80, "10.0.1.1:80")));
        assert_eq!(address("https://[::1]"), Ok(https("::1", 443, "[::1]")));
        assert_eq!(address("builtin:echo"), Ok(Address::Echo));
        assert_eq!(address("unix:/run/app.sock"), Ok(Address::Unix("/run/app.sock".into())));
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
            assert!(address(text).is_err(), "{text}");
        }
    }
}
