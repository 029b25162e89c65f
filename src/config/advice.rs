//! Warnings about settings that are valid but probably not intended: each is one rule of a table.
//!
//! A rule looks at the configuration as it runs. It looks at the text only to tell a written value from a default.

mod keys;
mod paths;

use std::borrow::Cow;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::read::Source;
use super::{AccessLog, Address, AdminAddress, Config, Limit, UNLIMITED, Upstream};
use crate::limit::{Rate, Strategy};

pub(super) struct Advised<'a> {
    config: &'a Config,
    table: &'a Spanned<DeTable<'a>>,
}

struct Advice {
    /// The names of the tables, then the key.
    path: Vec<String>,
    message: String,
    help: Cow<'static, str>,
}

type Rule = fn(&Advised<'_>) -> Vec<Advice>;

const RULES: &[Rule] = &[
    everybody_is_trusted,
    keys::chosen_addresses,
    keys::invented,
    rates_without_effect,
    retries,
    hosts_of_others,
    log_file_without_lines,
    drain_delay_unseen,
    names_never_looked_up,
    inspected_beyond_the_maximum,
    checks_that_overlap,
    keys::networks_of_other_keys,
    keys::never_missing,
    paths::of_others,
    paths::without_rest,
    no_spans,
    own_listeners,
];

pub(super) fn warn(config: &Config, table: &Spanned<DeTable<'_>>, source: &Source<'_>) {
    let advised = Advised { config, table };
    for advice in RULES.iter().flat_map(|rule| rule(&advised)) {
        source.warn(advised.place(&advice.path), advice.message, advice.help);
    }
}

impl Advice {
    fn new(path: &[&dyn Display], message: impl Into<String>, help: impl Into<Cow<'static, str>>) -> Self {
        Self { path: path.iter().map(ToString::to_string).collect(), message: message.into(), help: help.into() }
    }
}

impl<'a> Advised<'a> {
    /// The value at a path in the text; a number names an element of a list.
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

    /// The place of the longest part of a path that the text has.
    fn place(&self, path: &[String]) -> Range<usize> {
        let steps: Vec<&dyn Display> = path.iter().map(|step| step as &dyn Display).collect();
        let found = (1..=steps.len()).rev().find_map(|count| self.written(&steps[..count]));
        found.map_or(0..0, Spanned::span)
    }
}

fn everybody_is_trusted(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let networks = config.server.trusted_proxies.iter().enumerate().filter(|(_, network)| network.prefix_len() == 0);
    let advice = |(index, network): (usize, &ipnet::IpNet)| {
        let message = format!("{network} trusts everybody, so every client chooses the address by which it is counted");
        Advice::new(&[&"server", &"trusted_proxies", &index], message, "list the networks of your own proxies only")
    };
    networks.map(advice).collect()
}

fn rates_without_effect(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let of_limit = |limit: &Limit| {
        let name = &limit.name;
        let without_effect = limit.rates.iter().enumerate().filter_map(|(index, rate)| {
            let stricter = limit.rates.iter().find(|other| is_stricter(other, rate))?;
            let message = format!("\"{rate}\" of `{name}` never refuses anything: \"{stricter}\" is stricter");
            let help = "remove it, or check whether the two are mixed up";
            Some(Advice::new(&[&"limits", name, &"rates", &index], message, help))
        });
        without_effect.collect::<Vec<_>>()
    };
    config.limits.iter().flat_map(of_limit).collect()
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

fn retries(advised: &Advised<'_>) -> Vec<Advice> {
    let mut all = Vec::new();
    for upstream in &advised.config.upstreams {
        let (name, retries) = (&upstream.name, upstream.retry.retries);
        if retries == 0 && !upstream.retry.statuses.is_empty() {
            let message = format!("`retry.status` of `{name}` has no effect with retries = 0");
            all.push(Advice::new(&[&"upstreams", name, &"retry", &"status"], message, "set `retries`, or remove it"));
        }
        let path: [&dyn Display; 3] = [&"upstreams", name, &"retries"];
        let is_alone = matches!(&upstream.servers[..], [server] if is_one(&server.address));
        if retries > 0 && is_alone && advised.written(&path).is_some() {
            let message = format!("`{name}` has one server, and a request is sent again only to another one");
            all.push(Advice::new(&path, message, "add another server, or remove `retries`"));
        }
    }
    all
}

fn hosts_of_others(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let admin = config.admin.iter().filter(|admin| !admin.hosts.is_empty() && !admin.listen.is_loopback());
    let advice = |admin: &super::Admin| {
        let what = if matches!(admin.listen, AdminAddress::Unix(_)) { "a Unix socket" } else { "this listener" };
        let message = format!("`hosts` has no effect: {what} answers to any name");
        Advice::new(&[&"admin", &"hosts"], message, "remove it: it is for a listener on loopback")
    };
    admin.map(advice).collect()
}

fn log_file_without_lines(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let is_empty = config.log.access_file.is_some() && config.log.access == AccessLog::Off;
    let message = "`access_file` stays empty, because `access` is false";
    let advice = || Advice::new(&[&"log", &"access_file"], message, "remove one of the two");
    is_empty.then(advice).into_iter().collect()
}

fn drain_delay_unseen(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let is_unseen = !config.server.drain_delay.is_zero() && config.admin.is_none();
    let message =
        "nobody sees `drain_delay`: it is the time for which /readyz says 503, and there is no admin listener";
    let advice = || {
        Advice::new(&[&"server", &"drain_delay"], message, "add [admin] with listen = \"127.0.0.1:9901\", or remove it")
    };
    is_unseen.then(advice).into_iter().collect()
}

fn inspected_beyond_the_maximum(advised: &Advised<'_>) -> Vec<Advice> {
    let Advised { config, .. } = advised;
    let beyond = |path: &[&dyn Display], inspect: usize, most: u64| {
        let is_beyond = most != UNLIMITED && inspect as u64 > most && advised.written(path).is_some();
        let message = "`inspect_body` is above `max_body_size`, so the rest of it is never read";
        is_beyond.then(|| Advice::new(path, message, "make it smaller, or `max_body_size` larger"))
    };
    let server: [&dyn Display; 2] = [&"server", &"inspect_body"];
    let of_server = beyond(&server, config.server.inspect_body, config.server.max_body_size);
    let of_routes = config.routes.iter().enumerate().filter_map(|(index, route)| {
        beyond(&[&"routes", &index, &"inspect_body"], route.inspect_body, route.max_body_size)
    });
    of_server.into_iter().chain(of_routes).collect()
}

fn checks_that_overlap(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let checked = config.upstreams.iter().filter_map(|upstream| Some((&upstream.name, upstream.health.as_ref()?)));
    let overlapping = checked.filter(|(_, health)| health.timeout > health.interval);
    let advice = |(name, _): (&String, _)| {
        let message = format!("the `timeout` of the checks of `{name}` is longer than their `interval`");
        let help = "make it shorter: a server that does not answer is checked less often than `interval` says";
        Advice::new(&[&"upstreams", name, &"health", &"timeout"], message, help)
    };
    overlapping.map(advice).collect()
}

fn no_spans(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let is_off = config.tracing.as_ref().is_some_and(|tracing| tracing.sample <= 0.0);
    let message = "with sample = 0 no request is traced: no trusted proxy could ask for it";
    let advice = || Advice::new(&[&"tracing", &"sample"], message, "give a share above 0, or remove [tracing]");
    (is_off && config.server.trusted_proxies.is_empty()).then(advice).into_iter().collect()
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
fn names_never_looked_up(advised: &Advised<'_>) -> Vec<Advice> {
    let has_no_names = |upstream: &&Upstream| upstream.servers.iter().all(|server| is_one(&server.address));
    let advice = |upstream: &Upstream| {
        let path: [&dyn Display; 3] = [&"upstreams", &upstream.name, &"resolve_every"];
        advised.written(&path)?;
        let message =
            format!("`resolve_every` of `{}` has no effect: its servers are addresses, not names", upstream.name);
        Some(Advice::new(&path, message, "remove it, or name the servers"))
    };
    advised.config.upstreams.iter().filter(has_no_names).filter_map(advice).collect()
}

/// Upstreams that send to a listener of this gateway.
fn own_listeners(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let admin = config.admin.iter().filter_map(|admin| match admin.listen {
        AdminAddress::Tcp(address) => Some(address),
        AdminAddress::Unix(_) => None,
    });
    let listeners: Vec<SocketAddr> = config.listeners().map(|listener| listener.address).chain(admin).collect();
    let mut all = Vec::new();
    for upstream in &config.upstreams {
        for (index, server) in upstream.servers.iter().enumerate() {
            let Address::Http { host, port, .. } = &server.address else { continue };
            if let Some(listener) = listeners.iter().find(|listener| is_own(listener, host, *port)) {
                let message =
                    format!("a server of `{}` is this gateway itself, which listens on {listener}", upstream.name);
                let help = "name the server behind it: a request that comes back twice is answered 508";
                all.push(Advice::new(&[&"upstreams", &upstream.name, &"servers", &index], message, help));
            }
        }
    }
    all
}

fn is_own(listener: &SocketAddr, host: &str, port: u16) -> bool {
    let (own, is_local) = (listener.ip().to_canonical(), host.eq_ignore_ascii_case("localhost"));
    let is_reached = match address(host).map(|address| address.to_canonical()) {
        Some(address) => address == own || (own.is_unspecified() && is_of_this_machine(address)),
        None => is_local && (own.is_loopback() || own.is_unspecified()),
    };
    port == listener.port() && is_reached
}

fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}
