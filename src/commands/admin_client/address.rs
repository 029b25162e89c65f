//! The address of an admin listener, as commands use it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use rustls::pki_types::ServerName;

use crate::config::AdminAddress;
use crate::net::fetch::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminLocation {
    /// TCP, with TLS if the URL says `https`.
    Http(Url),
    Unix(PathBuf),
}

impl AdminLocation {
    /// The address of the listener with this setting; `None` if the system chooses its port.
    pub fn of(listen: &AdminAddress, is_tls: bool) -> Option<Self> {
        match listen {
            AdminAddress::Unix(path) => Some(Self::Unix(path.clone())),
            AdminAddress::Tcp(address) if address.port() == 0 => None,
            AdminAddress::Tcp(address) => {
                // A listener on all addresses listens on loopback, too.
                let ip = match address.ip().to_canonical() {
                    IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
                    other => other,
                };
                let port = address.port();
                let authority = SocketAddr::new(ip, port).to_string();
                let target = "/".to_owned().into();
                let server_name = is_tls.then(|| ServerName::IpAddress(ip.into()));
                Some(Self::Http(Url { host: ip.to_string(), port, authority, target, server_name }))
            }
        }
    }
}

/// A URL with or without its scheme, or `unix:PATH`.
impl FromStr for AdminLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_absolute = path.starts_with('/') && !path.contains('\0');
            return if is_absolute { Ok(Self::Unix(path.into())) } else { Err(HELP.to_owned()) };
        }
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|error| format!("{error}: {HELP}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(HELP.to_owned()) };
        if authority.as_str().contains('@') {
            return Err("the URL must have no user name; a token is read from GATEWAY_ADMIN_TOKEN".to_owned());
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err("write the URL without a path: the admin listener is a whole server".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (default_port, server_name) = match scheme {
            "http" => (80, None),
            "https" => {
                let name = ServerName::try_from(host.clone());
                (443, Some(name.map_err(|_| format!("{host:?} is not a name that a certificate can have"))?))
            }
            _ => return Err(format!("{scheme:?} is not the scheme of an admin listener: {HELP}")),
        };
        let port = match authority.as_str().strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')) {
            Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port: {HELP}"))?,
            None => default_port,
        };
        let target = "/".to_owned().into();
        Ok(Self::Http(Url { host, port, authority: authority.to_string(), target, server_name }))
    }
}

const HELP: &str = "write it like http://127.0.0.1:9901 or unix:/run/gateway-admin.sock";

/// As the command line has it, without the scheme `http`.
impl fmt::Display for AdminLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) if url.server_name.is_some() => write!(f, "https://{}", url.authority),
            Self::Http(url) => f.write_str(&url.authority),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_url_or_a_socket() {
        for (text, host, port, shown) in [
            ("http://127.0.0.1:9901", "127.0.0.1", 9901, "127.0.0.1:9901"),
            ("http://127.0.0.1:9901/", "127.0.0.1", 9901, "127.0.0.1:9901"),
            ("localhost:1", "localhost", 1, "localhost:1"),
            ("gateway.internal", "gateway.internal", 80, "gateway.internal"),
            ("[::1]:9901", "::1", 9901, "[::1]:9901"),
            ("https://gateway.internal", "gateway.internal", 443, "https://gateway.internal"),
        ] {
            let location: AdminLocation = text.parse().unwrap();
            let AdminLocation::Http(url) = &location else { panic!("{text}") };
            assert_eq!((url.host.as_str(), url.port, location.to_string().as_str()), (host, port, shown));
            assert_eq!(url.server_name.is_some(), text.starts_with("https"), "{text}");
        }
        let socket: AdminLocation = "unix:/run/a.sock".parse().unwrap();
        assert_eq!(
            (&socket, socket.to_string().as_str()),
            (&AdminLocation::Unix("/run/a.sock".into()), "unix:/run/a.sock")
        );
        for (text, why) in [
            ("", "write it like"),
            ("unix:a.sock", "write it like"),
            ("unix:", "write it like"),
            ("ftp://a", "\"ftp\" is not the scheme"),
            ("http://a/metrics", "without a path"),
            ("http://a/?b", "without a path"),
            ("http://user:pass@a", "no user name"),
            ("http://a:70000", "\"70000\" is not a port"),
            ("http://a:", "\"\" is not a port"),
            ("http://a b", "write it like"),
            ("https://-a-", "not a name that a certificate can have"),
        ] {
            let error = text.parse::<AdminLocation>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        let of = |listen: &str| {
            AdminLocation::of(&AdminAddress::Tcp(listen.parse().unwrap()), false).map(|all| all.to_string())
        };
        for (listen, asked) in [
            ("127.0.0.1:9901", "127.0.0.1:9901"),
            ("0.0.0.0:9901", "127.0.0.1:9901"),
            ("[::]:9901", "[::1]:9901"),
            ("[::ffff:0.0.0.0]:9901", "127.0.0.1:9901"),
            ("192.0.2.1:9901", "192.0.2.1:9901"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
        ] {
            assert_eq!(of(listen).as_deref(), Some(asked));
        }
        assert_eq!(of("127.0.0.1:0"), None);
        let socket = AdminAddress::Unix("/run/a.sock".into());
        assert_eq!(AdminLocation::of(&socket, false), Some(AdminLocation::Unix("/run/a.sock".into())));
    }
}
