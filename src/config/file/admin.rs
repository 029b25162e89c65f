//! `[admin]`: where the admin listener binds, and who may use it.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use super::secret;
use crate::config::read::{Field, Section, Wrong};
use crate::config::report::quoted;
use crate::config::settings::admin;
use crate::config::{Admin, AdminAddress, AdminToken, values};

/// The longest path of a Unix socket in bytes: Linux has room for 108 with the byte that ends it.
const LONGEST_PATH: usize = 107;
/// The longest token in bytes, so that it fits into the head of a request.
const LONGEST_TOKEN: usize = 4096;

/// Reads the section. An address of TCP and its place go to `bound`.
pub(super) fn read(section: Section<'_>, bound: &mut Vec<(SocketAddr, Range<usize>)>) -> Option<Admin> {
    let field = section.required(&admin::listen, "add its address: listen = \"127.0.0.1:9901\"");
    let listen = field.as_ref().and_then(|field| field.parse(address));
    let given = section.field(&admin::token);
    // An empty token is none, and a token that is wrong is reported once, not also as missing.
    let is_given = given.as_ref().is_some_and(|field| !field.is_text() || field.text() != Some(""));
    let token = given.filter(|_| is_given).and_then(|field| token(&field));
    let name = |text: &str| values::hostname(text).map(|()| text.to_ascii_lowercase());
    let hosts = section.list(&admin::hosts).iter().flatten().filter_map(|field| field.parse(name)).collect();
    let show_keys = section.read(&admin::show_keys);
    section.close();
    let (listen, field) = (listen?, field?);
    if let AdminAddress::Tcp(address) = listen {
        bound.push((address, field.span.clone()));
        if !listen.is_loopback() && !is_given {
            let message = format!("the admin listener needs a token: other machines can reach {address}");
            field.report(message, "add token = \"file:admin-token\" or \"env:NAME\", or listen on 127.0.0.1");
        }
    }
    Some(Admin { listen, token, hosts, show_keys })
}

fn address(text: &str) -> Result<AdminAddress, Wrong> {
    let Some(path) = text.strip_prefix("unix:") else { return values::socket(text).map(AdminAddress::Tcp) };
    if !path.starts_with('/') || path.len() > LONGEST_PATH {
        let help = format!("write an absolute path of at most {LONGEST_PATH} bytes: \"unix:/run/gateway-admin.sock\"");
        return Err(Wrong::new(format!("{} is not the path of a Unix socket", quoted(path)), help));
    }
    Ok(AdminAddress::Unix(PathBuf::from(path)))
}

/// Reads a token. Messages never show it.
fn token(field: &Field<'_>) -> Option<AdminToken> {
    let token = secret::read(field, "token")?;
    let is_sendable = token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_sendable && (1..=LONGEST_TOKEN).contains(&token.len()) {
        return Some(AdminToken::new(&token));
    }
    let help = format!("a token is 1 to {LONGEST_TOKEN} visible ASCII characters without spaces");
    field.report("the token cannot be sent in a header", help);
    None
}
