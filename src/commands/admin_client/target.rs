//! How the command line names an admin listener: its address, and the place of its token. The token itself never comes from the
//! command line, which other users of the machine can see.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use http::HeaderValue;
use rustls::pki_types::ServerName;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::base::byte_order_mark::without_mark;
use crate::config::{AdminAddress, admin_url, regular_file};
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
        admin_url(&whole, HELP).map(Self::Http)
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

pub const TOKEN_VARIABLE: &str = "GATEWAY_ADMIN_TOKEN";

/// For the file of the token: a mounted file system may not answer.
const READ_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    None,
    Environment(HeaderValue),
    /// Read for each request, so that operators can replace the token.
    File(PathBuf),
}

impl TokenSource {
    /// The file if there is one, else the value of [`TOKEN_VARIABLE`]. Fails when the value cannot be sent in a header. The
    /// text does not show the value.
    pub fn new(file: Option<PathBuf>, variable: Option<std::ffi::OsString>) -> Result<Self, String> {
        if let Some(file) = file {
            return Ok(Self::File(file));
        }
        let Some(value) = variable.filter(|value| !value.is_empty()) else { return Ok(Self::None) };
        let bearer = value.to_str().and_then(bearer);
        bearer.map(Self::Environment).ok_or_else(|| format!("the token of {TOKEN_VARIABLE} cannot be sent in a header"))
    }

    /// The value of Authorization; `None` if there is no token. Fails when the file has no token that can be sent.
    pub(super) async fn authorization(&self) -> io::Result<Option<HeaderValue>> {
        match self {
            Self::None => Ok(None),
            Self::Environment(value) => Ok(Some(value.clone())),
            Self::File(path) => {
                let path = path.clone();
                let read = timeout(READ_LIMIT, spawn_blocking(move || regular_file::read(&path))).await;
                let bytes = read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)??;
                let value = std::str::from_utf8(without_mark(&bytes)).ok().and_then(bearer);
                value.map(Some).ok_or_else(|| io::Error::other("it has no token that can be sent in a header"))
            }
        }
    }
}

/// `None` if no configuration could have this token.
fn bearer(token: &str) -> Option<HeaderValue> {
    let token = token.trim_ascii();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value = is_token.then(|| HeaderValue::try_from(format!("Bearer {token}")).ok()).flatten()?;
    value.set_sensitive(true);
    Some(value)
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
            ("", "is not a host name"),
            ("unix:a.sock", "write it like"),
            ("unix:", "write it like"),
            ("ftp://a", "\"ftp\" is not a scheme"),
            ("http://a/metrics", "without a path"),
            ("http://a/?b", "without a path"),
            ("http://user:pass@a", "no user name"),
            ("http://a:70000", "\"70000\" is not a port"),
            ("http://a:", "\"\" is not a port"),
            ("http://a b", "is not a host name"),
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

    #[tokio::test]
    async fn a_token_comes_from_the_file_or_else_from_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of-the-file\n").unwrap();
        let variable = |text: &str| Some(text.into());
        let sent = async |source: TokenSource| source.authorization().await.unwrap();
        let both = TokenSource::new(Some(file.clone()), variable("of-the-variable")).unwrap();
        assert_eq!(sent(both).await.unwrap(), "Bearer of-the-file");
        let one = TokenSource::new(None, variable("of-the-variable")).unwrap();
        assert!(!format!("{one:?}").contains("of-the-variable"), "it is not shown");
        assert_eq!(sent(one).await.unwrap(), "Bearer of-the-variable");
        assert_eq!(sent(TokenSource::new(None, variable("")).unwrap()).await, None);
        assert_eq!(sent(TokenSource::new(None, None).unwrap()).await, None);

        let error = TokenSource::new(None, variable("se\ncret")).unwrap_err();
        assert!(error.contains(TOKEN_VARIABLE) && !error.contains("cret"), "{error}");
        std::fs::write(&file, "two words").unwrap();
        for path in [file, folder.path().to_owned(), folder.path().join("none"), "/dev/zero".into()] {
            assert!(TokenSource::File(path.clone()).authorization().await.is_err(), "{}", path.display());
        }
    }
}
