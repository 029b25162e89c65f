//! `[admin]`: where the admin listener binds, and who may use it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::kinds::{self, flag, shaped, text};
use super::read::{Field, Section, Shape, Wrong, tables};
use super::secret::{self, SHORTEST};
use super::tls::{self, Tls};
use super::values;
use crate::base::hidden::Hidden;

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub listen: AdminAddress,
    /// Without it, the listener speaks plain HTTP.
    pub tls: Option<Tls>,
    /// Required of all requests. Always set if other machines can reach `listen`.
    pub token: Option<AdminToken>,
    /// Enough for requests that change nothing. Never set without a `token`.
    pub read_token: Option<AdminToken>,
    /// Names besides `localhost` by which browsers may reach a listener on loopback, in lower case, without a port.
    pub hosts: Vec<String>,
    pub show_keys: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// With port 0, the system chooses a port.
    Tcp(SocketAddr),
    /// `unix:PATH`
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    All,
    /// Requests that change nothing.
    Read,
}

/// The hash of a token. The token itself is not kept, so nothing can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminToken(Hidden<blake3::Hash>);

impl AdminAddress {
    /// Whether this is a TCP address that only this machine can reach.
    pub fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().to_canonical().is_loopback())
    }
}

impl Admin {
    /// What a request with the token `shown` may do; `None` for a wrong token.
    pub fn access(&self, shown: &[u8]) -> Option<Access> {
        let is = |token: &Option<AdminToken>| token.as_ref().is_some_and(|token| token.is(shown));
        // Both are compared, so the time does not tell which token it is.
        match (is(&self.token), is(&self.read_token)) {
            (true, _) => Some(Access::All),
            (false, true) => Some(Access::Read),
            (false, false) => None,
        }
    }
}

impl AdminToken {
    pub fn new(token: &str) -> Self {
        Self(Hidden(blake3::hash(token.as_bytes())))
    }

    /// Takes a time that depends only on the length of `shown`: the comparison of [`blake3::Hash`] takes constant time.
    pub fn is(&self, shown: &[u8]) -> bool {
        blake3::hash(shown) == self.0.0
    }
}

/// As the configuration spells it.
impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// In bytes: Linux has room for 108, with the byte that ends the path.
const LONGEST_PATH: usize = 107;
/// In bytes. A token must fit into the head of a request.
const LONGEST_TOKEN: usize = 4096;

tables! {
    /// A listener for `/healthz`, `/readyz` (503 while draining), `/metrics` (Prometheus), the dashboard and the
    /// API (docs/admin.md).
    keys {
        /// The address, or `"unix:PATH"`.
        listen: () = text().required() => "127.0.0.1:9901";
        /// Requests must send this as `Authorization: Bearer`; also `"file:PATH"` or `"env:NAME"`. Required unless `listen`
        /// is on loopback or a Unix socket. At least 16 characters if other machines can reach the listener.
        token: () = kinds::secret() => "file:admin-token";
        /// A token for requests that change nothing: metrics, lists, the dashboard. Needs `token`.
        read_token: () = kinds::secret() => "file:admin-read-token";
        /// TLS for this listener, which speaks HTTP/1.1.
        tls: () = shaped(Shape::TableWithout(&tls::keys::TABLE, tls::keys::acme.name));
        /// Host names besides `localhost` that a listener on loopback accepts.
        hosts: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["gateway.internal"];
        /// Shows keys of clients in full in the API; otherwise masks them (docs/admin.md).
        show_keys: bool = flag(), false;
    }
}

/// `None` if the section has no valid address.
pub(super) fn read(section: &Section<'_>) -> Option<Admin> {
    let field = section.needed(&keys::listen);
    let listen = field.as_ref().and_then(|field| field.parse(address));
    let is_remote =
        matches!(listen, Some(AdminAddress::Tcp(_))) && listen.as_ref().is_some_and(|one| !one.is_loopback());
    let given = section.field(&keys::token);
    // An empty token counts as none. A token that is wrong is reported once, not also as missing.
    let is_given = given.as_ref().is_some_and(|field| !field.value.is_str() || field.text() != Some(""));
    if let Some(field) = given.as_ref().filter(|_| !is_given && listen.is_some() && !is_remote) {
        let help = "write a token, or remove this key if that is intended";
        field.warn("the token is empty: every user of this machine can read and change everything here", help);
    }
    let token = given.filter(|_| is_given).and_then(|field| token(&field, is_remote));
    let read_field = section.field(&keys::read_token);
    let read_token = read_field.as_ref().and_then(|field| self::token(field, is_remote));
    if let Some(field) = &read_field {
        if !is_given {
            let help = "add token = \"file:admin-token\" or \"env:NAME\"";
            field.report("`read_token` needs `token`: without it, everybody may change everything", help);
        } else if token.is_some() && token == read_token {
            field.report("`read_token` is the same as `token`", "make another one: openssl rand -hex 32");
        }
    }
    let name = |text: &str| values::hostname(text).map(|()| text.to_ascii_lowercase());
    let hosts = section.list(&keys::hosts).iter().flatten().filter_map(|field| field.parse(name)).collect();
    let tls = section.table(&keys::tls).as_ref().and_then(tls::without_acme);
    if tls.is_some() && matches!(listen, Some(AdminAddress::Unix(_))) {
        let help = "remove it: only users of this machine reach a Unix socket";
        section.source.report(section.key_span(keys::tls.name), "a Unix socket speaks no TLS", help);
    }
    let show_keys = section.read(&keys::show_keys);
    let (listen, field) = (listen?, field?);
    if let AdminAddress::Tcp(address) = listen {
        section.source.bind(address, field.span.clone());
        if !listen.is_loopback() && !is_given {
            let message = format!("the admin listener needs a token: other machines can reach {address}");
            field.report(message, "add token = \"file:admin-token\" or \"env:NAME\", or listen on 127.0.0.1");
        }
    }
    Some(Admin { listen, tls, token, read_token, hosts, show_keys })
}

fn address(text: &str) -> Result<AdminAddress, Wrong> {
    let Some(path) = text.strip_prefix("unix:") else { return values::socket(text).map(AdminAddress::Tcp) };
    if !path.starts_with('/') || path.len() > LONGEST_PATH {
        let help = format!("write an absolute path of at most {LONGEST_PATH} bytes: \"unix:/run/gateway-admin.sock\"");
        return Err(Wrong::not(path, "the path of a Unix socket", help));
    }
    Ok(AdminAddress::Unix(PathBuf::from(path)))
}

/// Others can try to guess the token if the listener `is_remote`. Messages never show it.
fn token(field: &Field<'_>, is_remote: bool) -> Option<AdminToken> {
    let token = secret::read(field, "token")?;
    let is_sendable = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_sendable || !(1..=LONGEST_TOKEN).contains(&token.len()) {
        let help = format!("a token is 1 to {LONGEST_TOKEN} visible ASCII characters without spaces");
        field.report("the token cannot be sent in a header", help);
        return None;
    }
    if is_remote && token.len() < SHORTEST {
        let message = format!("the token has fewer than {SHORTEST} characters, and other machines can guess it");
        field.report(message, "make another one: openssl rand -hex 32");
        return None;
    }
    Some(AdminToken::new(&token))
}
