//! `[store]`: where counters live.

mod login;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::kinds::{self, flag, number, shaped, size, text, wait, words};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Section, Setting, Shape, Wrong, report_repeated, tables};
use super::report::quoted;
use super::{secret, upstream, values};

pub use login::Login;

/// The maximum number of gateways that share limits, each with its own counters.
pub(in crate::config) const MOST_GATEWAYS: u64 = 10_000;

const SHARE: &str =
    "write share = 4, or share = \"dns:gateways.internal\" for a name with the addresses of all gateways";

#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    Memory {
        /// At least 1.
        max_keys: usize,
        /// For all counters, in bytes.
        max_memory: usize,
        /// The counters are written to this file at the end of the process, and read from it at the start.
        snapshot: Option<PathBuf>,
        /// `None` if no other gateway counts the same keys.
        share: Option<Share>,
    },
    Shared(SharedStore),
}

/// How many gateways share the limits, each with its own counters. Each enforces its part of every rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// At least 1, this one included.
    Gateways(u64),
    /// As many as this host name has addresses.
    Name(String),
}

impl Store {
    /// `None` for memory.
    fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::Memory { .. } => None,
            Self::Shared(shared) => Some(shared),
        }
    }

    /// What happens to a request if the store does not answer. Memory always answers.
    pub fn on_error(&self) -> OnError {
        self.shared().map_or(OnError::Allow, |shared| shared.on_error)
    }

    /// Its servers, or the names of primaries; none for memory.
    pub fn servers(&self) -> &[String] {
        self.shared().map_or(&[], |shared| &shared.servers)
    }

    /// As `type` names it.
    pub fn kind(&self) -> &'static str {
        self.shared().map_or("memory", |shared| shared.software.word())
    }

    /// What limits do after a change to this store.
    pub fn first_counts(&self) -> &'static str {
        self.shared().map_or("begin at 0", |_| "continue with what it has counted")
    }

    /// Which gateways share the limits, if each has its own counters.
    pub fn share(&self) -> Option<&Share> {
        if let Self::Memory { share, .. } = self { share.as_ref() } else { None }
    }

    /// How many gateways share the limits, as far as the file alone says; at least 1.
    pub fn fixed_gateways(&self) -> u64 {
        match self.share() {
            Some(Share::Gateways(gateways)) => *gateways,
            Some(Share::Name(_)) | None => 1,
        }
    }

    /// Whether both keep their counters in the same place, so that one store can serve both.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.shared() == other.shared()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SharedStore {
    pub software: Software,
    /// `host:port`, at least one; in a cluster some of its nodes; with sentinels, only the name of the primary.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest time that a request waits for a server.
    pub timeout: Duration,
    pub on_error: OnError,
    /// Whether an admission waits until the server has confirmed it.
    pub strict: bool,
    /// The default one for servers that know no users.
    pub login: Login,
}

#[cfg(test)]
impl SharedStore {
    /// With the defaults of the file.
    pub(crate) fn with_servers(software: Software, servers: Vec<String>) -> Self {
        Self {
            software,
            servers,
            prefix: "gw".to_owned(),
            timeout: Duration::from_millis(25),
            on_error: OnError::Local,
            strict: false,
            login: Login::default(),
        }
    }
}

/// What the servers of a shared store run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    Memcached,
    /// Valkey or Redis.
    Valkey,
}

impl Software {
    /// As users know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcached => "Memcached",
            Self::Valkey => "Valkey",
        }
    }

    /// As `type` spells it.
    pub fn word(self) -> &'static str {
        keys::r#type.word(Some(self))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Counted in this process, starting from the last known counts.
    Local,
    /// Admitted without being counted.
    Allow,
    /// Answered 503.
    Reject,
}

impl OnError {
    /// As `on_error` spells it.
    pub fn word(self) -> &'static str {
        keys::on_error.word(self)
    }
}

tables! {
    /// Where the gateway keeps its counters.
    keys {
        /// Keeps counters in this process, or on servers of Memcached (docs/memcached.md) or of Valkey or Redis
        /// (docs/stores.md), where any number of gateways share them.
        r#type: Option<Software> = words(&[
            ("memory", None), ("memcached", Some(Software::Memcached)), ("valkey", Some(Software::Valkey)),
            ("redis", Some(Software::Valkey)),
        ]), "memory";
        /// For `"memory"`: the maximum number of keys; the gateway drops the least recently used ones.
        max_keys: usize = number(1, 1_000_000_000).at_start(), 1_000_000;
        /// For `"memory"`: the maximum memory for the counters.
        max_memory: usize = size(8 << 20..=1 << 40).at_start(), "256MiB";
        /// For `"memory"`: a file to which the gateway writes the counters at its end, and from which it reads them at its
        /// start, so a restart begins no limit anew.
        snapshot: () = text() => "/var/lib/gateway/counters";
        /// For `"memory"`: the number of gateways that share the limits, or `"dns:NAME"` for the number of addresses of that
        /// name. Each gateway enforces its part of every rate (docs/scale.md).
        share: () = shaped(Shape::Or(&[Shape::Number(1, MOST_GATEWAYS), Shape::Pattern("^dns:.+$")]))
            => "dns:gateways.internal";
        /// For shared stores: the servers, at least one; keys are spread over them.
        servers: () = shaped(Shape::List(&Shape::Text, 1, 256)) => ["10.0.0.1:11211"];
        /// For `"valkey"`, instead of `servers`: the sentinels, which know the address of the primary called `master`.
        sentinels: () = shaped(Shape::List(&Shape::Text, 1, 256)) => ["10.0.0.1:26379"];
        /// For `"valkey"`: the name that the sentinels have for the primary.
        master: () = text() => "mymaster";
        /// For `"valkey"`: `servers` are some nodes of a cluster, which say where the others are.
        cluster: bool = flag(), false;
        /// For `"valkey"`: the user as whom the gateway speaks to the servers (ACL); by default the default user.
        username: () = text() => "gateway";
        /// For `"valkey"`: the password; also `"file:PATH"` or `"env:NAME"`.
        password: () = kinds::secret() => "file:valkey-password";
        /// For `"valkey"`: the number of the database; a cluster has only one.
        database: u16 = number(0, 65_535), 0;
        /// For `"valkey"`: TLS to the servers.
        tls: () = shaped(Shape::Table(&upstream::tls_keys::TABLE));
        /// For shared stores: the first part of every key.
        prefix: () = text(), "gw";
        /// For shared stores: the longest time that a request waits for a server.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(10)), "25ms";
        /// For shared stores: what happens while a server is away: `"local"` counts requests in this process, `"allow"` lets them
        /// pass uncounted, `"reject"` answers 503.
        on_error: OnError =
            words(&[("local", OnError::Local), ("allow", OnError::Allow), ("reject", OnError::Reject)]), "local";
        /// For shared stores: confirms each admission first, so that several gateways together never exceed the limit.
        strict: bool = flag(), false;
    }
}

/// Without the section, counters live in this process.
pub(super) fn read(section: Section<'_>, system: &SystemAuthorities) -> Store {
    let field = section.field(&keys::r#type);
    let kind = section.read(&keys::r#type);
    // It is hidden even where it does not belong.
    let password = section.field(&keys::password).and_then(|field| secret::read(&field, "password"));
    if section.given(&keys::r#type).is_none() && field.is_some() {
        // Without a valid type, nobody knows which keys are allowed.
        let (max_keys, max_memory) = (section.read(&keys::max_keys), section.read(&keys::max_memory));
        return Store::Memory { max_keys, max_memory, snapshot: None, share: None };
    }
    let add = |types: &str| match &field {
        Some(_) => "remove it, or use such a type".to_owned(),
        None => format!("add {types}, or remove it"),
    };
    if kind != Some(Software::Valkey) {
        let login = [keys::username.name, keys::password.name, keys::database.name, keys::tls.name];
        let places = [keys::sentinels.name, keys::master.name, keys::cluster.name];
        section.misplaced(&[&login[..], &places].concat(), "`type = \"valkey\"`", &add("type = \"valkey\""));
    }
    let store = match kind {
        None => {
            let of_shared =
                [keys::servers.name, keys::prefix.name, keys::timeout.name, keys::on_error.name, keys::strict.name];
            let owner = "`type = \"memcached\"` and `type = \"valkey\"`";
            let help = add("type = \"memcached\" or type = \"valkey\" (for Redis, too)");
            section.misplaced(&of_shared, owner, &help);
            memory(&section)
        }
        Some(software) => {
            let login = match software {
                Software::Memcached => Login::default(),
                Software::Valkey => login::read(&section, password, system),
            };
            Store::Shared(shared(&section, software, login))
        }
    };
    drop(section);
    store
}

fn memory(section: &Section<'_>) -> Store {
    let (max_keys, max_memory) = (section.read(&keys::max_keys), section.read(&keys::max_memory));
    let snapshot = section.field(&keys::snapshot).and_then(|field| {
        let name = field.text().filter(|name| !name.is_empty());
        name.and_then(|name| field.path(name))
    });
    let share = section.field(&keys::share).and_then(|field| share(&field));
    Store::Memory { max_keys, max_memory, snapshot, share }
}

fn shared(section: &Section<'_>, software: Software, login: Login) -> SharedStore {
    let name = software.name();
    let of_memory = [keys::max_keys.name, keys::max_memory.name, keys::snapshot.name];
    section.misplaced(&of_memory, "`type = \"memory\"`", &format!("remove it: {name} has its own memory"));
    let help = format!("remove it: gateways that use the same {name} count together");
    section.misplaced(&[keys::share.name], "`type = \"memory\"`", &help);
    let servers = if software == Software::Valkey && !login.cluster && section.field(&keys::sentinels).is_some() {
        login::primary(section)
    } else {
        let port = if software == Software::Valkey { 6379 } else { 11_211 };
        let help = format!("add the addresses of {name}: servers = [\"10.0.0.1:{port}\"]");
        let why = if login.cluster { "any node knows the others" } else { "keys are spread evenly over the servers" };
        section.required(&keys::servers, &help).map(|field| addresses(&field, &keys::servers, port, why))
    };
    SharedStore {
        servers: servers.unwrap_or_default(),
        prefix: section.read_as(&keys::prefix, |field| field.parse(|text| prefix(text, software))),
        software,
        timeout: section.read(&keys::timeout),
        on_error: section.read(&keys::on_error),
        strict: section.read(&keys::strict),
        login,
    }
}

/// `why` says why none of them is listed twice.
fn addresses(field: &Field<'_>, key: &Setting<()>, port: u16, why: &str) -> Vec<String> {
    let all = field.list(key).into_iter().flatten();
    let all: Vec<_> = all.filter_map(|field| Some((field.parse(|text| server(text, port))?, field))).collect();
    report_repeated(&all, "this server", &format!("{why}: list each of them once"));
    all.into_iter().map(|(server, _)| server).collect()
}

fn share(field: &Field<'_>) -> Option<Share> {
    if field.value.is_integer() {
        return field.integer(1..=MOST_GATEWAYS).map(Share::Gateways);
    }
    if !field.value.is_str() {
        field.mistyped("a number of gateways or their name", SHARE);
        return None;
    }
    field.parse(|text| {
        let Some(name) = text.strip_prefix("dns:") else {
            return Err(Wrong::new(format!("{} names no gateways", quoted(text)), SHARE));
        };
        values::hostname(name).map_err(|wrong| wrong.at("dns:".len()..text.len()))?;
        if name.parse::<IpAddr>().is_ok() {
            return Err(Wrong::new(format!("{} is an address, not a name", quoted(name)), SHARE));
        }
        Ok(Share::Name(name.to_owned()))
    })
}

fn prefix(text: &str, software: Software) -> Result<String, Wrong> {
    if !(1..=64).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = "a prefix is 1 to 64 printable ASCII characters without spaces";
        return Err(Wrong::new("this is not a prefix for keys", help));
    }
    if software == Software::Valkey && text.contains(['{', '}']) {
        let help = "what is in braces decides in which slot of a cluster a key is";
        return Err(Wrong::new("a prefix for keys of Valkey has no braces", help));
    }
    Ok(text.to_owned())
}

/// A server of the store; without a port, this one is added.
fn server(text: &str, port: u16) -> Result<String, Wrong> {
    if text.contains("://") {
        return Err(Wrong::not(text, "host:port", "write it without a scheme"));
    }
    let (host, port) = values::authority(text, port)?;
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_default_port() {
        assert_eq!(server("cache", 11_211).unwrap(), "cache:11211");
        assert_eq!(server("[::1]", 11_211).unwrap(), "[::1]:11211");
        assert_eq!(server("10.0.0.1:11212", 6379).unwrap(), "10.0.0.1:11212");
    }
}
