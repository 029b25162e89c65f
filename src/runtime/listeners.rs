//! The listening sockets that the process opens when it starts.

use std::io;
use std::net::{SocketAddr, TcpListener};

use super::StartError;
use crate::admin::AdminListener;
use crate::config::{self, AdminAddress, Config};
use crate::net;
use crate::server::Listener;

/// All listening sockets.
pub(super) struct Listeners {
    /// For each worker, one for each address.
    pub(super) http: Vec<Vec<Listener>>,
    pub(super) admin: Option<AdminListener>,
}

impl Listeners {
    pub(super) fn open(config: &Config, workers: usize) -> Result<Self, StartError> {
        let mut http: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
        let admin = config.admin.as_ref().map(|admin| &admin.listen);
        let admin_tcp = admin.and_then(|address| match address {
            AdminAddress::Tcp(address) => Some(*address),
            AdminAddress::Unix(_) => None,
        });
        let addresses = config.server.listen.iter().map(|listener| listener.address);
        let all: Vec<SocketAddr> = addresses.chain(admin_tcp).collect();
        let bind = |address, sockets| {
            let bound = net::bind(address, sockets, net::is_v6_only(address, &all));
            bound.map_err(|error| StartError::Bind(address.to_string(), error))
        };
        for config::Listener { address, tls: is_tls } in &config.server.listen {
            let sockets = bind(*address, workers)?;
            announce(if *is_tls { "https" } else { "http" }, &sockets)?;
            let listeners = sockets.into_iter().map(|socket| Listener { socket, is_tls: *is_tls });
            http.iter_mut().zip(listeners).for_each(|(worker, listener)| worker.push(listener));
        }
        let admin = match admin {
            Some(AdminAddress::Tcp(address)) => {
                let sockets = bind(*address, 1)?;
                announce("admin", &sockets)?;
                sockets.into_iter().next().map(AdminListener::Tcp)
            }
            Some(address @ AdminAddress::Unix(path)) => {
                let bound = net::bind_unix(path).map_err(|error| StartError::Bind(address.to_string(), error))?;
                tracing::info!(listener = "admin", %address, "listening");
                Some(AdminListener::Unix(bound))
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
