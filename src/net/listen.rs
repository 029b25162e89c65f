//! Listening sockets.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use super::KEEP_ALIVE;

/// How many connections may wait in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

/// Binds `sockets` sockets to `address`. With port 0 the system chooses one port for all of them. With `v6_only` a
/// socket for the IPv6 wildcard accepts only IPv6; otherwise it accepts both, whatever the default of the system is.
///
/// # Errors
/// When the address does not belong to this machine, is not allowed, or is in use, also by another gateway.
pub fn bind(address: SocketAddr, sockets: usize, v6_only: bool) -> io::Result<Vec<std::net::TcpListener>> {
    if address.port() != 0 {
        // With SO_REUSEPORT a second gateway would share the port without an error. A plain socket detects that.
        socket(address, v6_only, false)?;
    }
    let first = socket(address, v6_only, true)?;
    let address = first.local_addr()?;
    let mut bound = vec![first];
    for _ in 1..sockets {
        bound.push(socket(address, v6_only, true)?);
    }
    Ok(bound)
}

/// Whether a socket for `address` must not accept IPv4, because one of `all` is an IPv4 address with the same port.
pub fn is_v6_only(address: SocketAddr, all: &[SocketAddr]) -> bool {
    // Each socket for port 0 gets its own port.
    address.is_ipv6() && address.port() != 0 && all.iter().any(|one| one.is_ipv4() && one.port() == address.port())
}

fn socket(address: SocketAddr, v6_only: bool, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    // Connections inherit this from their listener.
    socket.set_tcp_keepalive(&KEEP_ALIVE)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_wildcard_accepts_ipv4_unless_that_is_listed() {
        for (address, all, v6_only) in [
            ("[::]:80", &["[::]:80"][..], false),
            ("[::]:80", &["[::]:80", "0.0.0.0:81"], false),
            ("[::]:80", &["0.0.0.0:80", "[::]:80"], true),
            ("[::]:80", &["[::]:80", "127.0.0.1:80"], true),
            ("0.0.0.0:80", &["0.0.0.0:80", "[::]:80"], false),
            ("[::]:0", &["0.0.0.0:0", "[::]:0"], false),
        ] {
            let all: Vec<SocketAddr> = all.iter().map(|one| one.parse().unwrap()).collect();
            assert_eq!(is_v6_only(address.parse().unwrap(), &all), v6_only, "{address} of {all:?}");
        }
    }
}
