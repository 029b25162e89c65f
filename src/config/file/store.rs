//! `[store]`: where counters live.

use std::time::Duration;

use crate::config::read::{Section, Wrong, report_repeated, set};
use crate::config::{OnError, SharedStore, Store, values};

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Memory,
    Memcached,
}

const OF_MEMORY: [&str; 3] = ["max_keys", "max_memory", "snapshot"];
const OF_MEMCACHED: [&str; 5] = ["servers", "prefix", "timeout", "on_error", "strict"];
const SERVERS: &str = "[\"10.0.0.1:11211\"]";

/// Reads the section. Without it, counters live in this process.
pub(super) fn read(section: Option<Section<'_>>) -> Store {
    let (mut max_keys, mut max_memory) = (1_000_000, 256 << 20);
    let Some(section) = section else { return Store::Memory { max_keys, max_memory, snapshot: None } };
    let field = section.field("type");
    let given = field.is_some();
    let types = [("memory", Type::Memory), ("memcached", Type::Memcached)];
    let Some(kind) = field.map_or(Some(Type::Memory), |field| field.choice(&types)) else {
        // Without a valid type it is unknown which keys are allowed.
        return Store::Memory { max_keys, max_memory, snapshot: None };
    };
    let store = match kind {
        Type::Memory => {
            let help = if given { "remove it, or use that type" } else { "add type = \"memcached\", or remove it" };
            section.misplaced(&OF_MEMCACHED, "`type = \"memcached\"`", help);
            let read = section.field("max_keys").and_then(|field| field.integer(1..=1_000_000_000));
            set(&mut max_keys, read.and_then(|keys| usize::try_from(keys).ok()));
            let size = values::bytes(&section, "max_memory", (8 << 20)..=(1 << 40), "8MiB to 1TiB");
            set(&mut max_memory, size);
            let snapshot = section.field("snapshot").and_then(|field| {
                let name = field.text().filter(|name| !name.is_empty());
                name.and_then(|name| field.path(name))
            });
            Store::Memory { max_keys, max_memory, snapshot }
        }
        Type::Memcached => {
            section.misplaced(&OF_MEMORY, "`type = \"memory\"`", "remove it: Memcached has its own memory");
            Store::Memcached(memcached(&section))
        }
    };
    section.close();
    store
}

fn memcached(section: &Section<'_>) -> SharedStore {
    let mut store = SharedStore {
        servers: Vec::new(),
        prefix: "gw".to_owned(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        strict: false,
    };
    let servers = section.required("servers", &format!("add the addresses of Memcached: servers = {SERVERS}"));
    if let Some(list) = servers.and_then(|field| field.some(SERVERS, 256)) {
        let read: Vec<_> =
            list.into_iter().filter_map(|field| Some((field.parse(values::memcached)?, field))).collect();
        report_repeated(&read, "this server", "keys are spread evenly over the servers: list each of them once");
        store.servers = read.into_iter().map(|(server, _)| server).collect();
    }
    if let Some(field) = section.field("prefix") {
        set(&mut store.prefix, field.parse(prefix));
    }
    set(&mut store.timeout, values::wait(section, "timeout", Duration::from_millis(1)..=Duration::from_secs(10)));
    let actions = [OnError::Local, OnError::Allow, OnError::Reject].map(|action| (action.name(), action));
    set(&mut store.on_error, section.choice("on_error", &actions));
    set(&mut store.strict, section.field("strict").and_then(|field| field.boolean()));
    store
}

fn prefix(text: &str) -> Result<String, Wrong> {
    if (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let help = "a prefix is 1 to 64 printable ASCII characters without spaces";
    Err(Wrong::new("this is not a prefix for keys", help))
}
