//! Warnings about settings that are valid but probably not intended: each is one rule of a table.
//!
//! A rule looks at the configuration as it runs. It looks at the text only to tell a written value from a default.

mod keys;
mod paths;
mod spellings;
mod unused;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::read::Source;
use super::{AccessLog, Address, AdminAddress, Config, Limit, UNLIMITED, Upstream};
use crate::limit::{Rate, Strategy};

pub(super) struct Advised<'a> {
    config: &'a Config,
    table: &'a Spanned<DeTable<'a>>,
    source: &'a Source<'a>,
}

type Rule = fn(&Advised<'_>);

const RULES: &[Rule] = &[
    everybody_is_trusted,
    keys::chosen_addresses,
    keys::of_proxies,
    keys::addresses_of_proxies,
    keys::invented,
    rates_without_effect,
    shared_bytes,
    retries,
    hosts_of_others,
    log_file_without_lines,
    drain_delay_unseen,
    names_never_looked_up,
    inspected_beyond_the_maximum,
    checks_that_overlap,
    keys::never_missing,
    paths::of_others,
    paths::without_rest,
    no_spans,
    own_listeners,
    paths::endless_redirects,
    spellings::ways_around,
    unused::limits,
    unused::upstreams,
    unused::tokens,
    unused::tiers,
    unused::priorities,
    unused::unseen,
];

pub(super) fn warn(config: &Config, table: &Spanned<DeTable<'_>>, source: &Source<'_>) {
    let advised = Advised { config, table, source };
    RULES.iter().for_each(|rule| rule(&advised));
}

impl<'a> Advised<'a> {
    /// Warns at the longest part of the path that the text has.
    fn warn(&self, path: &[&dyn Display], message: impl Into<String>, help: impl Into<String>) {
        let found = (1..=path.len()).rev().find_map(|count| self.written(&path[..count]));
        self.source.warn(found.map_or(0..0, Spanned::span), message, help);
    }

    /// Warns at the key with which the path ends.
    fn warn_at_key(&self, path: &[&dyn Display], message: impl Into<String>, help: impl Into<String>) {
        let key = path.split_last().and_then(|(key, table)| {
            let table = self.written(table)?.get_ref().as_table()?;
            Some(table.get_key_value(key.to_string().as_str())?.0.span())
        });
        self.source.warn(key.unwrap_or_default(), message, help);
    }

    /// The value at a path in the text: the names of the tables, then the key; a number names an element of a list.
    fn written(&self, path: &[&dyn Display]) -> Option<&'a Spanned<DeValue<'a>>> {
        let (first, rest) = path.split_first()?;
        let mut value = self.table.get_ref().get(first.to_string().as_str())?;
        for step in rest {
            let step = step.to_string();
            value = match value.get_ref() {
                DeValue::Table(table) => table.get(step.as_str())?,
                DeValue::Array(list) => list.get(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(value)
    }
}

fn everybody_is_trusted(advised: &Advised<'_>) {
    for (index, network) in advised.config.server.trusted_proxies.iter().enumerate() {
        if network.prefix_len() == 0 {
            let message =
                format!("{network} trusts everybody, so every client chooses the address by which it is counted");
            let help = "list the networks of your own proxies only";
            advised.warn(&[&"server", &"trusted_proxies", &index], message, help);
        }
    }
}

fn shared_bytes(advised: &Advised<'_>) {
    for limit in advised.config.limits.iter().filter(|limit| limit.counts_bytes()) {
        if !limit.tells_clients_apart() && !limit.charges_in_steps() {
            let name = &limit.name;
            let message = format!("a client can hold all bytes of `{name}` by a body that it neither sends nor reads");
            let help =
                "clients share this limit: add on_exhausted = \"cut\" to the cost, so each body holds at most a step";
            advised.warn(&[&"limits", name, &"cost"], message, help);
        }
    }
}

fn rates_without_effect(advised: &Advised<'_>) {
    for Limit { name, rates, .. } in &advised.config.limits {
        for (index, rate) in rates.iter().enumerate() {
            if let Some(stricter) = rates.iter().find(|other| is_stricter(other, rate)) {
                let message = format!("\"{rate}\" of `{name}` never refuses anything: \"{stricter}\" is stricter");
                let help = "remove it, or check whether the two are mixed up";
                advised.warn(&[&"limits", name, &"rates", &index], message, help);
            }
        }
    }
}

/// Whether `one` refuses whatever `other` would refuse.
fn is_stricter(one: &Rate, other: &Rate) -> bool {
    let is_window = |rate: &Rate| {
        matches!(rate.strategy(), Strategy::SlidingWindow { .. } | Strategy::FixedWindow | Strategy::SlidingLog)
    };
    if !is_window(one) || !is_window(other) || one == other {
        return false;
    }
    // A window of the other rate overlaps at most this many windows of the first.
    let windows = other.window().as_micros().div_ceil(one.window().as_micros().max(1)) + 1;
    let within = u128::from(one.quota()) * windows;
    let is_longer = one.window() >= other.window() && one.quota() <= other.quota();
    is_longer || (one.window() < other.window() && within <= u128::from(other.quota()))
}

fn retries(advised: &Advised<'_>) {
    for upstream in &advised.config.upstreams {
        let (name, retries) = (&upstream.name, upstream.retry.retries);
        if retries == 0 && !upstream.retry.statuses.is_empty() {
            let message = format!("`retry.status` of `{name}` has no effect with retries = 0");
            advised.warn(&[&"upstreams", name, &"retry", &"status"], message, "set `retries`, or remove it");
        }
        let path: [&dyn Display; 3] = [&"upstreams", name, &"retries"];
        let is_alone = matches!(&upstream.servers[..], [server] if is_one(&server.address));
        if retries > 0 && is_alone && advised.written(&path).is_some() {
            let message = format!("`{name}` has one server, and a request is sent again only to another one");
            advised.warn(&path, message, "add another server, or remove `retries`");
        }
    }
}

fn hosts_of_others(advised: &Advised<'_>) {
    let Some(admin) = &advised.config.admin else { return };
    if !admin.hosts.is_empty() && !admin.listen.is_loopback() {
        let what = if matches!(admin.listen, AdminAddress::Unix(_)) { "a Unix socket" } else { "this listener" };
        let message = format!("`hosts` has no effect: {what} answers to any name");
        advised.warn(&[&"admin", &"hosts"], message, "remove it: it is for a listener on loopback");
    }
}

fn log_file_without_lines(advised: &Advised<'_>) {
    let log = &advised.config.log;
    if log.access_file.is_some() && log.access == AccessLog::Off {
        let message = "`access_file` stays empty, because `access` is false";
        advised.warn(&[&"log", &"access_file"], message, "remove one of the two");
    }
}

fn drain_delay_unseen(advised: &Advised<'_>) {
    if !advised.config.server.drain_delay.is_zero() && advised.config.admin.is_none() {
        let message =
            "nobody sees `drain_delay`: it is the time for which /readyz says 503, and there is no admin listener";
        let help = "add [admin] with listen = \"127.0.0.1:9901\", or remove it";
        advised.warn(&[&"server", &"drain_delay"], message, help);
    }
}

fn inspected_beyond_the_maximum(advised: &Advised<'_>) {
    let Config { server, routes, .. } = advised.config;
    let check = |path: &[&dyn Display], inspect: usize, most: u64| {
        if most != UNLIMITED && inspect as u64 > most && advised.written(path).is_some() {
            let message = "`inspect_body` is above `max_body_size`, so the rest of it is never read";
            advised.warn(path, message, "make it smaller, or `max_body_size` larger");
        }
    };
    check(&[&"server", &"inspect_body"], server.inspect_body, server.max_body_size);
    for (index, route) in routes.iter().enumerate() {
        check(&[&"routes", &index, &"inspect_body"], route.inspect_body, route.max_body_size);
    }
}

fn checks_that_overlap(advised: &Advised<'_>) {
    for Upstream { name, health, .. } in &advised.config.upstreams {
        if health.as_ref().is_some_and(|health| health.timeout > health.interval) {
            let message = format!("the `timeout` of the checks of `{name}` is longer than their `interval`");
            let help = "make it shorter: a server that does not answer is checked less often than `interval` says";
            advised.warn(&[&"upstreams", name, &"health", &"timeout"], message, help);
        }
    }
}

fn no_spans(advised: &Advised<'_>) {
    let Config { tracing, server, .. } = advised.config;
    let is_off = tracing.as_ref().is_some_and(|tracing| tracing.sample <= 0.0);
    if is_off && server.trusted_proxies.is_empty() {
        let message = "with sample = 0 no request is traced: no trusted proxy could ask for it";
        advised.warn(&[&"tracing", &"sample"], message, "give a share above 0, or remove [tracing]");
    }
}

/// Parses an address with or without brackets.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether the server always has one address; a name may have several.
fn is_one(server: &Address) -> bool {
    match server {
        Address::Http { host, .. } => address(host).is_some(),
        Address::Unix(_) | Address::Echo => true,
    }
}

/// `resolve_every` without any name to look up.
fn names_never_looked_up(advised: &Advised<'_>) {
    for Upstream { name, servers, .. } in &advised.config.upstreams {
        let path: [&dyn Display; 3] = [&"upstreams", name, &"resolve_every"];
        if servers.iter().all(|server| is_one(&server.address)) && advised.written(&path).is_some() {
            let message = format!("`resolve_every` of `{name}` has no effect: its servers are addresses, not names");
            advised.warn(&path, message, "remove it, or name the servers");
        }
    }
}

/// Upstreams that send to a listener of this gateway.
fn own_listeners(advised: &Advised<'_>) {
    let config = advised.config;
    let admin = config.admin.iter().filter_map(|admin| match admin.listen {
        AdminAddress::Tcp(address) => Some(address),
        AdminAddress::Unix(_) => None,
    });
    let listeners: Vec<SocketAddr> = config.listeners().map(|listener| listener.address).chain(admin).collect();
    for Upstream { name, servers, .. } in &config.upstreams {
        for (index, server) in servers.iter().enumerate() {
            let Address::Http { host, port, .. } = &server.address else { continue };
            if let Some(listener) = listeners.iter().find(|listener| is_own(listener, host, *port)) {
                let message = format!("a server of `{name}` is this gateway itself, which listens on {listener}");
                let help = "name the server behind it: a request that comes back twice is answered 508";
                advised.warn(&[&"upstreams", name, &"servers", &index], message, help);
            }
        }
    }
}

fn is_own(listener: &SocketAddr, host: &str, port: u16) -> bool {
    let (own, is_local) = (listener.ip().to_canonical(), host.eq_ignore_ascii_case("localhost"));
    let is_reached = match address(host).map(|address| address.to_canonical()) {
        Some(address) => address == own || own.is_unspecified() && (address.is_loopback() || address.is_unspecified()),
        None => is_local && (own.is_loopback() || own.is_unspecified()),
    };
    port == listener.port() && is_reached
}
