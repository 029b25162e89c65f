//! `[store]`: where counters live.

use std::net::IpAddr;

use super::upstream_tls::SystemAuthorities;
use super::{secret, upstream_tls};
use crate::config::read::{Field, Section, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::{MOST_GATEWAYS, store};
use crate::config::{Login, Password, Share, SharedStore, Software, Store, StoreType, values};

const SHARE: &str =
    "write share = 4, or share = \"dns:gateways.internal\" for a name with the addresses of all gateways";

/// Without the section, counters live in this process.
pub(super) fn read(section: Section<'_>, system: &SystemAuthorities) -> Store {
    let field = section.field(&store::r#type);
    let kind = section.read(&store::r#type);
    // It is hidden even where it does not belong.
    let password = section.field(&store::password).and_then(|field| secret::read(&field, "password"));
    if section.given(&store::r#type).is_none() && field.is_some() {
        // Without a valid type, nobody knows which keys are allowed.
        let (max_keys, max_memory) = (section.read(&store::max_keys), section.read(&store::max_memory));
        return Store::Memory { max_keys, max_memory, snapshot: None, share: None };
    }
    let add = |word: &str| match &field {
        Some(_) => "remove it, or use that type".to_owned(),
        None => format!("add type = \"{word}\", or remove it"),
    };
    if kind != StoreType::Valkey {
        let of_valkey = [store::username.name, store::password.name, store::database.name, store::tls.name];
        section.misplaced(&of_valkey, "`type = \"valkey\"`", &add("valkey"));
    }
    let store = match kind {
        StoreType::Memory => {
            let of_shared = [
                store::servers.name,
                store::prefix.name,
                store::timeout.name,
                store::on_error.name,
                store::strict.name,
            ];
            let owner = "`type = \"memcached\"` and `type = \"valkey\"`";
            section.misplaced(&of_shared, owner, &add("memcached"));
            memory(&section)
        }
        StoreType::Memcached => Store::Shared(shared(&section, Software::Memcached)),
        StoreType::Valkey => Store::Shared(shared(&section, Software::Valkey(login(&section, password, system)))),
    };
    section.close();
    store
}

fn memory(section: &Section<'_>) -> Store {
    let (max_keys, max_memory) = (section.read(&store::max_keys), section.read(&store::max_memory));
    let snapshot = section.field(&store::snapshot).and_then(|field| {
        let name = field.text().filter(|name| !name.is_empty());
        name.and_then(|name| field.path(name))
    });
    let share = section.field(&store::share).and_then(|field| share(&field));
    Store::Memory { max_keys, max_memory, snapshot, share }
}

fn shared(section: &Section<'_>, software: Software) -> SharedStore {
    let name = software.name();
    let of_memory = [store::max_keys.name, store::max_memory.name, store::snapshot.name];
    section.misplaced(&of_memory, "`type = \"memory\"`", &format!("remove it: {name} has its own memory"));
    let help = format!("remove it: gateways that use the same {name} count together");
    section.misplaced(&[store::share.name], "`type = \"memory\"`", &help);
    let port = software.port();
    let help = format!("add the addresses of {name}: servers = [\"10.0.0.1:{port}\"]");
    let servers = section.required(&store::servers, &help).and_then(|field| field.list(&store::servers));
    let servers = servers.into_iter().flatten();
    let servers = servers.filter_map(|field| Some((field.parse(|text| values::store_server(text, port))?, field)));
    let servers: Vec<_> = servers.collect();
    report_repeated(&servers, "this server", "keys are spread evenly over the servers: list each of them once");
    SharedStore {
        servers: servers.into_iter().map(|(server, _)| server).collect(),
        prefix: section.read_as(&store::prefix, |field| field.parse(|text| prefix(text, &software))),
        software,
        timeout: section.read(&store::timeout),
        on_error: section.read(&store::on_error),
        strict: section.read(&store::strict),
    }
}

fn login(section: &Section<'_>, password: Option<String>, system: &SystemAuthorities) -> Login {
    let username = section.field(&store::username).and_then(|field| field.text().map(str::to_owned));
    let tls = section.table(&store::tls).zip(section.field(&store::servers));
    Login {
        username: username.unwrap_or_default(),
        password: Password::new(password.unwrap_or_default()),
        database: section.read(&store::database),
        tls: tls.and_then(|(section, servers)| upstream_tls::read(Some(section), &servers, system)).map(Box::new),
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

fn prefix(text: &str, software: &Software) -> Result<String, Wrong> {
    if !(1..=64).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = "a prefix is 1 to 64 printable ASCII characters without spaces";
        return Err(Wrong::new("this is not a prefix for keys", help));
    }
    if software.has_slots() && text.contains(['{', '}']) {
        let help = "what is in braces decides in which slot of a cluster a key is";
        return Err(Wrong::new("a prefix for keys of Valkey has no braces", help));
    }
    Ok(text.to_owned())
}
