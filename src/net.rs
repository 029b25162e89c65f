//! Sockets and TLS: listening sockets, the byte stream of a client with the PROXY protocol in front of it, and the
//! addresses of names.

pub mod tls;
pub mod fetch;
mod client_socket;
mod client_stream;
mod preamble;
mod rewound;
mod names;

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::base::fingerprint::Fingerprint;

#[cfg(any(test, fuzzing))]
pub(crate) use preamble::check as check_preamble;

pub use client_stream::ClientStream;
pub use names::Names;
pub use preamble::{Preamble, PreambleError};
pub use rewound::{Duplex, Rewound};

/// A peer that has disappeared is noticed within two minutes.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Lets the system probe a quiet connection, or those that a listening socket accepts, to find out whether the peer still
/// exists (RFC 9293, section 3.8.4). Fails when the system refuses the setting.
pub fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_keepalive(&KEEP_ALIVE)
}

/// The address by which the connections and requests of a client are counted. For IPv6 it is the network of 64 bits,
/// because a client usually has all of it.
pub fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// [`network_of`] a client as a key.
pub fn network_key(client: IpAddr) -> Fingerprint {
    let address = match network_of(client) {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Fingerprint::from_bytes(address.octets())
}

/// Connections that may wait in the kernel.
const BACKLOG: i32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Requests,
    /// Other proxies ask about requests of their clients.
    Decisions,
}

/// Binds `sockets` sockets to `address`. With port 0 the system chooses one port for all of them. With `v6_only` a socket for
/// the IPv6 wildcard accepts only IPv6; otherwise it accepts both, whatever the system's default. With `alone` it fails if any
/// process uses the port; otherwise this process may already use the port for another address. Fails when the address does not
/// belong to this machine, is not allowed, or is in use, also by another gateway.
pub fn bind(address: SocketAddr, sockets: usize, v6_only: bool, alone: bool) -> io::Result<Vec<std::net::TcpListener>> {
    if alone && address.port() != 0 {
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

/// For the owner and the group.
const SOCKET_MODE: u32 = 0o660;

/// Binds a Unix socket to `path`. Replaces the socket of a process that has ended. Fails when another process listens there,
/// the path is something other than a socket, or its folder cannot be written.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let address = SockAddr::unix(path)?;
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            let message = format!("{} is there, which is not replaced: remove it, or name another path", kind(&there));
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let trial = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Otherwise `connect` would wait for a process that does not accept.
        trial.set_nonblocking(true)?;
        if trial.connect(&address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            fs::remove_file(path)?;
        }
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&address)?;
    // Nobody can connect before `listen`, so nobody connects before the mode is set.
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What is at a path that has no socket.
fn kind(there: &fs::Metadata) -> &'static str {
    if there.is_dir() {
        "a folder"
    } else if there.is_symlink() {
        "a link"
    } else if there.is_file() {
        "a file"
    } else {
        "a pipe or a device"
    }
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
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ipv6_is_counted_by_network_and_ipv4_by_address() {
        for (client, counted) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            assert_eq!(network_of(client.parse().unwrap()), counted.parse::<IpAddr>().unwrap(), "{client}");
        }
    }

    #[test]
    fn a_unix_socket_replaces_one_that_nobody_listens_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = bind_unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert_eq!(bind_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let second = bind_unix(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(second);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file of somebody").unwrap();
        let why = |path: &Path| bind_unix(path).unwrap_err().to_string();
        assert!(why(&path).starts_with("a file is there, which is not replaced"), "{}", why(&path));
        assert_eq!(fs::read(&path).unwrap(), b"a file of somebody");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("nothing"), &link).unwrap();
        assert!(why(&link).starts_with("a link is there"), "{}", why(&link));
        assert!(why(folder.path()).starts_with("a folder is there"), "{}", why(folder.path()));
    }

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
