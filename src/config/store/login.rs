//! How the gateway speaks to servers of Valkey or Redis: as whom, with TLS or without, and which sentinels know the primary.

use super::{addresses, keys};
use crate::base::hidden::Hidden;
use crate::config::pem_files::SystemAuthorities;
use crate::config::read::{Section, Wrong};
use crate::config::report::quoted;
use crate::config::upstream::{UpstreamTls, read_tls};

/// Of sentinels for which none is given.
const SENTINEL_PORT: u16 = 26_379;

/// As whom, and how, the gateway speaks to a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Login {
    /// Empty for the default user.
    pub username: String,
    /// Empty if there is none.
    pub password: Hidden<String>,
    pub database: u16,
    pub tls: Option<Box<UpstreamTls>>,
    /// `host:port` of those that know the address of the primary; empty if the servers have addresses themselves.
    pub sentinels: Vec<String>,
    /// Whether the servers are nodes of a cluster.
    pub cluster: bool,
}

/// The name of the primary, whose address the sentinels know.
pub(super) fn primary(section: &Section<'_>) -> Option<Vec<String>> {
    let help = "the sentinels know where the server is: remove one of the two keys";
    section.refuse(&[keys::servers.name], "does not go with `sentinels`", help);
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let help = "it has printable characters without spaces";
    let wrong = |text| Wrong::new(format!("{} is no name of a primary", quoted(text)), help);
    section.field(&keys::master)?.parse(|text| if is_name(text) { Ok(vec![text.to_owned()]) } else { Err(wrong(text)) })
}

/// The password may be secret, so it has been read before.
pub(super) fn read(section: &Section<'_>, password: Option<String>, system: &SystemAuthorities) -> Login {
    let username = section.field(&keys::username).and_then(|field| field.text().map(str::to_owned));
    let sentinels = section.field(&keys::sentinels);
    let cluster = section.read(&keys::cluster);
    if cluster {
        let help = "a cluster has database 0 alone: remove it";
        section.refuse(&[keys::database.name], "does not go with `cluster`", help);
        let help = "the nodes themselves replace a primary that dies: list some of them in `servers` instead";
        section.refuse(&[keys::sentinels.name, keys::master.name], "does not go with `cluster`", help);
    } else {
        section.both(&keys::sentinels, &keys::master);
    }
    let tls = section.table(&keys::tls).zip(sentinels.clone().or_else(|| section.field(&keys::servers)));
    Login {
        username: username.unwrap_or_default(),
        password: Hidden(password.unwrap_or_default()),
        database: section.read(&keys::database),
        tls: tls.and_then(|(section, servers)| read_tls(Some(&section), &servers, system)).map(Box::new),
        sentinels: sentinels
            .map(|field| addresses(&field, &keys::sentinels, SENTINEL_PORT, "each sentinel has one vote"))
            .unwrap_or_default(),
        cluster,
    }
}
