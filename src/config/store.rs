//! `[store]`: where counters live.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::kinds::{flag, number, shaped, size, text, wait, words};
use super::read::{Field, Section, Shape, Wrong, report_repeated, tables};
use super::report::quoted;
use super::values;

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
    Memcached(SharedStore),
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
    /// What happens to a request if the store does not answer. Memory always answers.
    pub fn on_error(&self) -> OnError {
        match self {
            Self::Memory { .. } => OnError::Allow,
            Self::Memcached(memcached) => memcached.on_error,
        }
    }

    /// As `type` names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Memcached(_) => "memcached",
        }
    }

    /// What limits do after a change to this store.
    pub fn first_counts(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "begin at 0",
            Self::Memcached(_) => "continue with what it has counted",
        }
    }

    /// Which gateways share the limits, if each has its own counters.
    pub fn share(&self) -> Option<&Share> {
        match self {
            Self::Memory { share, .. } => share.as_ref(),
            Self::Memcached(_) => None,
        }
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
        match (self, other) {
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            (Self::Memcached(memcached), Self::Memcached(other)) => memcached == other,
            (Self::Memory { .. }, Self::Memcached(_)) | (Self::Memcached(_), Self::Memory { .. }) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SharedStore {
    /// `host:port`, at least one.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest time that a request waits for Memcached.
    pub timeout: Duration,
    pub on_error: OnError,
    /// Whether an admission waits until Memcached has confirmed it.
    pub strict: bool,
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

tables! {
    /// Where the gateway keeps its counters.
    keys {
        /// Keeps counters in this process, or in Memcached, where any number of gateways share them (docs/memcached.md).
        r#type: bool = words(&[("memory", false), ("memcached", true)]), "memory";
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
        /// For `"memcached"`: its servers, at least one.
        servers: () = shaped(Shape::List(&Shape::Text, 1, 256)) => ["10.0.0.1:11211"];
        /// For `"memcached"`: the first part of every key.
        prefix: () = text(), "gw";
        /// For `"memcached"`: the longest time that a request waits for it.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(10)), "25ms";
        /// For `"memcached"`: what happens while it is away: `"local"` counts requests in this process, `"allow"` lets them
        /// pass uncounted, `"reject"` answers 503.
        on_error: OnError =
            words(&[("local", OnError::Local), ("allow", OnError::Allow), ("reject", OnError::Reject)]), "local";
        /// For `"memcached"`: confirms each admission first, so that several gateways together never exceed the limit.
        strict: bool = flag(), false;
    }
}

/// Without the section, counters live in this process.
pub(super) fn read(section: Section<'_>) -> Store {
    let field = section.field(&keys::r#type);
    let is_shared = section.read(&keys::r#type);
    if section.given(&keys::r#type).is_none() && field.is_some() {
        // Without a valid type, nobody knows which keys are allowed.
        let (max_keys, max_memory) = (section.read(&keys::max_keys), section.read(&keys::max_memory));
        return Store::Memory { max_keys, max_memory, snapshot: None, share: None };
    }
    let store = if is_shared {
        let of_memory = [keys::max_keys.name, keys::max_memory.name, keys::snapshot.name];
        section.misplaced(&of_memory, "`type = \"memory\"`", "remove it: Memcached has its own memory");
        let help = "remove it: gateways that use the same Memcached count together";
        section.misplaced(&[keys::share.name], "`type = \"memory\"`", help);
        Store::Memcached(memcached(&section))
    } else {
        let of_memcached =
            [keys::servers.name, keys::prefix.name, keys::timeout.name, keys::on_error.name, keys::strict.name];
        let help =
            if field.is_some() { "remove it, or use that type" } else { "add type = \"memcached\", or remove it" };
        section.misplaced(&of_memcached, "`type = \"memcached\"`", help);
        let (max_keys, max_memory) = (section.read(&keys::max_keys), section.read(&keys::max_memory));
        let snapshot = section.field(&keys::snapshot).and_then(|field| {
            let name = field.text().filter(|name| !name.is_empty());
            name.and_then(|name| field.path(name))
        });
        let share = section.field(&keys::share).and_then(|field| share(&field));
        Store::Memory { max_keys, max_memory, snapshot, share }
    };
    section.close();
    store
}

fn memcached(section: &Section<'_>) -> SharedStore {
    let help = format!("add the addresses of Memcached: servers = {}", keys::servers.example);
    let servers = section.required(&keys::servers, &help).and_then(|field| field.list(&keys::servers));
    let servers = servers.into_iter().flatten().filter_map(|field| Some((field.parse(server)?, field)));
    let servers: Vec<_> = servers.collect();
    report_repeated(&servers, "this server", "keys are spread evenly over the servers: list each of them once");
    SharedStore {
        servers: servers.into_iter().map(|(server, _)| server).collect(),
        prefix: section.read_as(&keys::prefix, |field| field.parse(prefix)),
        timeout: section.read(&keys::timeout),
        on_error: section.read(&keys::on_error),
        strict: section.read(&keys::strict),
    }
}

fn share(field: &Field<'_>) -> Option<Share> {
    if field.is_number() {
        return field.integer(1..=MOST_GATEWAYS).map(Share::Gateways);
    }
    if !field.is_text() {
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

fn prefix(text: &str) -> Result<String, Wrong> {
    if (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let help = "a prefix is 1 to 64 printable ASCII characters without spaces";
    Err(Wrong::new("this is not a prefix for keys", help))
}

/// A server of the store; without a port, the default port is added.
fn server(text: &str) -> Result<String, Wrong> {
    if text.contains("://") {
        return Err(Wrong::new(format!("{} is not host:port", quoted(text)), "write it without a scheme"));
    }
    let (host, port) = values::authority(text, 11_211)?;
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_default_port() {
        assert_eq!(server("cache").unwrap(), "cache:11211");
        assert_eq!(server("[::1]").unwrap(), "[::1]:11211");
        assert_eq!(server("10.0.0.1:11212").unwrap(), "10.0.0.1:11212");
    }
}
