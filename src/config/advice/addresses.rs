//! Advice about the addresses of servers.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use super::{Advice, Advised, address};
use crate::config::{Address, AdminAddress, Upstream};

/// Whether the server always has one address; a name may have several.
pub(super) fn is_one(server: &Address) -> bool {
    match server {
        Address::Http { host, .. } => address(host).is_some(),
        Address::Unix(_) | Address::Echo => true,
    }
}

/// `resolve_every` without any name to look up.
pub(super) fn names_never_looked_up(advised: &Advised<'_>) -> Vec<Advice> {
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
pub(super) fn own_listeners(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
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
