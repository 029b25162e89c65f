//! Listening sockets that another process has opened for this one: systemd, or a program that starts the next gateway before
//! the last one ends (`sd_listen_fds(3)`). Connections wait in them while no gateway accepts any.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;

use crate::net;

#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    tcp: Vec<TcpListener>,
    unix: Vec<UnixListener>,
}

impl InheritedSockets {
    /// The sockets that this process was started with. They are not passed on to other processes.
    ///
    /// # Errors
    /// When one of them is not a listening socket of TCP or Unix.
    pub(super) fn of_process() -> io::Result<Self> {
        let (mut passed, mut all) = (ListenFd::from_env(), Self::default());
        for index in 0..passed.len() {
            if let Ok(Some(socket)) = passed.take_unix_listener(index) {
                socket.set_nonblocking(true)?;
                all.unix.push(socket);
            } else if let Some(socket) = passed.take_tcp_listener(index)? {
                socket.set_nonblocking(true)?;
                net::keep_alive(&socket)?;
                all.tcp.push(socket);
            }
        }
        Ok(all)
    }

    /// The socket that listens on this address. A wildcard address also accepts the IPv6 wildcard.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let is_wanted = |socket: &TcpListener| socket.local_addr().is_ok_and(|bound| is_same(bound, address));
        let at = self.tcp.iter().position(is_wanted)?;
        Some(self.tcp.remove(at))
    }

    pub(super) fn take_unix(&mut self, path: &Path) -> Option<UnixListener> {
        let is_wanted =
            |socket: &UnixListener| socket.local_addr().is_ok_and(|bound| bound.as_pathname() == Some(path));
        let at = self.unix.iter().position(is_wanted)?;
        Some(self.unix.remove(at))
    }

    /// Warns of sockets that no listener uses: connections to them would wait for ever.
    pub(super) fn warn_of_rest(self) {
        for socket in &self.tcp {
            let address = socket.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string());
            let help = "add its address to server.listen, or make it that of decisions.listen";
            tracing::warn!(
                address,
                help,
                "closed a socket that was passed to the gateway: no listener has its address"
            );
        }
        for socket in &self.unix {
            let address = socket.local_addr().ok();
            let help = "name its path in admin.listen";
            tracing::warn!(
                ?address,
                help,
                "closed a socket that was passed to the gateway: no listener has its address"
            );
        }
    }
}

/// Whether a socket bound to `bound` serves a listener for `wanted`. The wildcard of IPv6 accepts IPv4, too, and is what
/// systemd binds if only a port is configured.
fn is_same(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let is_any_of_both = bound.ip() == IpAddr::from([0_u16; 8]) && wanted.ip().is_unspecified();
    bound.port() == wanted.port() && (bound.ip() == wanted.ip() || is_any_of_both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_serves_its_address_or_all() {
        for (bound, wanted, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "0.0.0.0:80", false),
            ("0.0.0.0:80", "127.0.0.1:80", false),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "[::]:80", true),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            assert_eq!(is_same(bound.parse().unwrap(), wanted.parse().unwrap()), expected, "{bound} for {wanted}");
        }
    }
}
