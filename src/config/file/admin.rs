//! `[admin]`: where the admin listener binds, and who may use it.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use crate::config::read::{Field, Section, Wrong, set};
use crate::config::report::{self, quoted};
use crate::config::{Admin, AdminAddress, AdminToken, regular_file, values};

/// The most names of `hosts`.
const MOST_HOSTS: usize = 64;
/// The longest path of a Unix socket in bytes: Linux has room for 108 with the byte that ends it.
const LONGEST_PATH: usize = 107;
/// The longest token in bytes, so that it fits into the head of a request.
const LONGEST_TOKEN: usize = 4096;

/// Reads the section. An address of TCP and its place go to `bound`.
pub(super) fn read(section: Section<'_>, bound: &mut Vec<(SocketAddr, Range<usize>)>) -> Option<Admin> {
    let field = section.required("listen", "add its address: listen = \"127.0.0.1:9901\"");
    let listen = field.as_ref().and_then(|field| field.parse(address));
    let given = section.field("token");
    // An empty token is none, and a token that is wrong is reported once, not also as missing.
    let is_given = given.as_ref().is_some_and(|field| !field.is_text() || field.text() != Some(""));
    let token = given.filter(|_| is_given).and_then(|field| token(&field));
    let mut hosts = Vec::new();
    if let Some(list) = section.field("hosts").and_then(|field| {
        let list = field.list("[\"gateway.internal\"]")?;
        field.at_most(&list, MOST_HOSTS);
        Some(list)
    }) {
        let name = |text: &str| values::hostname(text).map(|()| text.to_ascii_lowercase());
        hosts = list.iter().filter_map(|field| field.parse(name)).collect();
    }
    let mut show_keys = false;
    set(&mut show_keys, section.field("show_keys").and_then(|field| field.boolean()));
    section.close(&[]);
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

/// Reads a token: as it is, from a file or from the environment. Messages never show it.
fn token(field: &Field<'_>) -> Option<AdminToken> {
    let text = field.text()?;
    let read = if let Some(path) = text.strip_prefix("file:") {
        let text = regular_file::read(&field.source.file(path))
            .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
        match text {
            Ok(text) => Ok(text.trim_ascii().to_owned()),
            Err(error) => {
                let help = report::how_to_read(error.kind(), "its path starts at the folder of this file");
                field.report(format!("cannot read the token from {}: {error}", quoted(path)), help);
                return None;
            }
        }
    } else if let Some(name) = text.strip_prefix("env:") {
        // A name with one of these bytes would not be looked up.
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        is_name.then(|| std::env::var(name).ok()).flatten().ok_or_else(|| {
            let message = format!("there is no environment variable {} for the token", quoted(name));
            Wrong::new(message, "set it where the gateway is started, or use \"file:PATH\"")
        })
    } else {
        Ok(text.to_owned())
    };
    let checked = read.and_then(|token| {
        let is_sendable = token.bytes().all(|byte| byte.is_ascii_graphic());
        if is_sendable && (1..=LONGEST_TOKEN).contains(&token.len()) {
            return Ok(AdminToken::new(&token));
        }
        let help = format!("a token is 1 to {LONGEST_TOKEN} visible ASCII characters without spaces");
        Err(Wrong::new("the token cannot be sent in a header", help))
    });
    checked.map_err(|wrong| field.refuse(wrong)).ok()
}
