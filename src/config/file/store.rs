//! `[store]`: where counters live.

use std::net::IpAddr;

use crate::config::read::{Field, Section, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::{MOST_GATEWAYS, store};
use crate::config::{Share, SharedStore, Store, values};

const SHARE: &str =
    "write share = 4, or share = \"dns:gateways.internal\" for a name with the addresses of all gateways";

/// Without the section, counters live in this process.
pub(super) fn read(section: Section<'_>) -> Store {
    let field = section.field(&store::r#type);
    let is_shared = section.read(&store::r#type);
    if section.given(&store::r#type).is_none() && field.is_some() {
        // Without a valid type, nobody knows which keys are allowed.
        let (max_keys, max_memory) = (section.read(&store::max_keys), section.read(&store::max_memory));
        return Store::Memory { max_keys, max_memory, snapshot: None, share: None };
    }
    let store = if is_shared {
        let of_memory = [store::max_keys.name, store::max_memory.name, store::snapshot.name];
        section.misplaced(&of_memory, "`type = \"memory\"`", "remove it: Memcached has its own memory");
        let help = "remove it: gateways that use the same Memcached count together";
        section.misplaced(&[store::share.name], "`type = \"memory\"`", help);
        Store::Memcached(memcached(&section))
    } else {
        let of_memcached =
            [store::servers.name, store::prefix.name, store::timeout.name, store::on_error.name, store::strict.name];
        let help =
            if field.is_some() { "remove it, or use that type" } else { "add type = \"memcached\", or remove it" };
        section.misplaced(&of_memcached, "`type = \"memcached\"`", help);
        let (max_keys, max_memory) = (section.read(&store::max_keys), section.read(&store::max_memory));
        let snapshot = section.field(&store::snapshot).and_then(|field| {
            let name = field.text().filter(|name| !name.is_empty());
            name.and_then(|name| field.path(name))
        });
        let share = section.field(&store::share).and_then(|field| share(&field));
        Store::Memory { max_keys, max_memory, snapshot, share }
    };
    section.close();
    store
}

fn memcached(section: &Section<'_>) -> SharedStore {
    let help = format!("add the addresses of Memcached: servers = {}", store::servers.example);
    let servers = section.required(&store::servers, &help).and_then(|field| field.list(&store::servers));
    let servers = servers.into_iter().flatten().filter_map(|field| Some((field.parse(values::memcached)?, field)));
    let servers: Vec<_> = servers.collect();
    report_repeated(&servers, "this server", "keys are spread evenly over the servers: list each of them once");
    SharedStore {
        servers: servers.into_iter().map(|(server, _)| server).collect(),
        prefix: section.read_as(&store::prefix, |field| field.parse(prefix)),
        timeout: section.read(&store::timeout),
        on_error: section.read(&store::on_error),
        strict: section.read(&store::strict),
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
