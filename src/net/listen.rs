//! Listening sockets.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use super::KEEP_ALIVE;

/// How many connections the kernel may hold for us until they are accepted.
const BACKLOG: i32 = 4096;

/// Binds `sockets` sockets to `address`. Port 0 picks one port for all of them. With `v6_only` a socket for the IPv6
/// wildcard leaves IPv4 to others; otherwise it takes both, whatever the system's default is.
///
/// # Errors
/// When the address is not this machine's, not allowed, or in use, also by another gateway.
pub fn bind(address: SocketAddr, sockets: usize, v6_only: bool) -> io::Result<Vec<std::net::TcpListener>> {
    if address.port() != 0 {
        // With SO_REUSEPORT a second gateway would quietly share the port: a plain socket finds out.
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

/// Whether a socket for `address` has to leave IPv4 alone, because one of `all` is an IPv4 address with its port.
pub fn is_v6_only(address: SocketAddr, all: &[SocketAddr]) -> bool {
    // Each socket for port 0 gets a port of its own.
    address.is_ipv6() && address.port() != 0 && all.iter().any(|one| one.is_ipv4() && one.port() == address.port())
}

fn socket(address: SocketAddr, v6_only: bool, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    // Connections take after their listener.
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
    fn a_wildcard_of_ipv6_takes_ipv4_unless_that_is_listed() {
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
