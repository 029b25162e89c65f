//! The servers of an upstream as configured, and their current endpoints: each address of a name is one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::HeaderValue;

use super::balancer::Weighted;
use super::endpoint::{Destination, DestinationAddress, Endpoints, TargetTls};
use crate::config::{self, Address, UpstreamServer, UpstreamTls};
use crate::net::Names;

/// Of one name.
const MOST_ADDRESSES: usize = 256;
/// The `Host` of a server without a name.
const NO_NAME: HeaderValue = HeaderValue::from_static("localhost");

#[derive(Debug)]
pub(super) struct Servers {
    upstream: String,
    is_checked: bool,
    /// With their weights.
    targets: Vec<(Destination, u32)>,
    endpoints: Arc<Endpoints>,
    names: Arc<Names>,
}

impl Servers {
    /// `echo` is the address of the built-in server.
    pub(super) fn new(
        config: &config::Upstream,
        endpoints: Arc<Endpoints>,
        names: Arc<Names>,
        echo: Option<SocketAddr>,
    ) -> Self {
        let target = |server: &UpstreamServer| (target(&server.address, config, echo), server.weight);
        let targets = config.servers.iter().map(target).collect();
        Self { upstream: config.name.clone(), is_checked: config.health.is_some(), targets, endpoints, names }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().filter_map(|(target, _)| match &target.address {
            DestinationAddress::Name(name, _) => Some(name.as_str()),
            DestinationAddress::Socket(_) | DestinationAddress::Unix(_) | DestinationAddress::Echo(_) => None,
        })
    }

    /// The endpoints by the known addresses of the names. A name without a known address is an endpoint, too: its connections
    /// look it up.
    pub(super) fn endpoints(&self) -> Vec<Weighted> {
        let mut all: Vec<Weighted> = Vec::new();
        for (target, weight) in &self.targets {
            for address in self.addresses(&target.address) {
                let target = Destination { address, ..target.clone() };
                let endpoint = self.endpoints.get(&self.upstream, target, self.is_checked);
                // Two names may have the same address.
                if !all.iter().any(|other| other.endpoint.id == endpoint.id) {
                    all.push(Weighted { endpoint, weight: *weight });
                }
            }
        }
        all
    }

    fn addresses(&self, address: &DestinationAddress) -> Vec<DestinationAddress> {
        let DestinationAddress::Name(name, port) = address else { return vec![address.clone()] };
        let known = self.names.known(name);
        if known.is_empty() {
            return vec![address.clone()];
        }
        known
            .iter()
            .take(MOST_ADDRESSES)
            .map(|known| DestinationAddress::Socket(SocketAddr::new(*known, *port)))
            .collect()
    }
}

fn target(address: &Address, config: &config::Upstream, echo: Option<SocketAddr>) -> Destination {
    let plain = |address, authority| Destination { address, authority, tls: None, http2: config.http2 };
    match address {
        Address::Http { host, port, authority, tls: name } => {
            let tls =
                name.as_ref().zip(config.tls.as_ref()).map(|(name, UpstreamTls { server_name, settings, .. })| {
                    TargetTls { settings: settings.clone(), server_name: server_name.as_ref().unwrap_or(name).clone() }
                });
            let address = match host.parse::<IpAddr>() {
                Ok(address) => DestinationAddress::Socket(SocketAddr::new(address, *port)),
                Err(_) => DestinationAddress::Name(host.clone(), *port),
            };
            // The authority of a URL is always a valid header value.
            Destination { tls, ..plain(address, HeaderValue::try_from(authority).unwrap_or(NO_NAME)) }
        }
        Address::Unix(path) => plain(DestinationAddress::Unix(path.clone()), NO_NAME),
        Address::Echo => {
            // The echo server was started before the snapshot is built. Port 0 accepts no connection.
            let echo = echo.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
            plain(DestinationAddress::Echo(echo), HeaderValue::try_from(echo.to_string()).unwrap_or(NO_NAME))
        }
    }
}
