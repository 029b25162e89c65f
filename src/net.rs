//! Sockets and TLS: listening sockets, the byte stream of a client with the PROXY protocol in front of it, and the
//! addresses of names.

pub mod tls;
pub mod fetch;
mod client_socket;
mod client_stream;
mod listen;
mod preamble;
mod rewound;
mod resolver;
mod names;

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

pub use client_stream::ClientStream;
pub use listen::{Traffic, bind, bind_unix, is_v6_only};
pub use names::Names;
#[cfg(any(test, fuzzing))]
pub(crate) use preamble::check as check_preamble;
pub use preamble::{Preamble, PreambleError};
pub use rewound::{Duplex, Rewound};

/// A peer that has disappeared is noticed within two minutes.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Lets the system probe a quiet connection, or those that a listening socket accepts, to find out whether the peer
/// still exists (RFC 9293, section 3.8.4).
///
/// # Errors
/// When the system refuses the setting.
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

#[cfg(test)]
mod tests {
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
}
