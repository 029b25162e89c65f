//! The listening sockets that the process opens when it starts.

use std::io;
use std::net::{SocketAddr, TcpListener};

use super::StartError;
use crate::config::{self, Config};
use crate::net;
use crate::server::Listener;

/// All listening sockets.
pub(super) struct Listeners {
    /// For each worker, one for each address.
    pub(super) http: Vec<Vec<Listener>>,
    pub(super) admin: Option<TcpListener>,
}

impl Listeners {
    pub(super) fn open(config: &Config, workers: usize) -> Result<Self, StartError> {
        let mut http: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
        let admin = config.admin.as_ref().map(|admin| admin.listen);
        let all: Vec<SocketAddr> = config.server.listen.iter().map(|listener| listener.address).chain(admin).collect();
        let bind = |address, sockets| {
            let bound = net::bind(address, sockets, net::is_v6_only(address, &all));
            bound.map_err(|error| StartError::Bind(address, error))
        };
        for config::Listener { address, tls: is_tls } in &config.server.listen {
            let sockets = bind(*address, workers)?;
            announce(if *is_tls { "https" } else { "http" }, &sockets)?;
            let listeners = sockets.into_iter().map(|socket| Listener { socket, is_tls: *is_tls });
            http.iter_mut().zip(listeners).for_each(|(worker, listener)| worker.push(listener));
        }
        let admin = match admin {
            Some(address) => {
                let sockets = bind(address, 1)?;
                announce("admin", &sockets)?;
                sockets.into_iter().next()
            }
            None => None,
        };
        Ok(Self { http, admin })
    }
}

/// Logs the address of a listener. With port 0 there is no other way to know it.
fn announce(listener: &str, sockets: &[TcpListener]) -> io::Result<()> {
    if let Some(socket) = sockets.first() {
        tracing::info!(listener, address = %socket.local_addr()?, "listening");
    }
    Ok(())
}
