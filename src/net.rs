//! Sockets: listening sockets, the byte stream of a client with what a proxy says in front of it, and keep-alive probes
//! for every connection.

mod client_socket;
mod client_stream;
mod listen;
mod preamble;
mod rewound;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

pub use client_stream::ClientStream;
pub use listen::{bind, bind_unix, is_v6_only};
pub use preamble::{Preamble, PreambleError};
pub use rewound::{Duplex, Rewound};

/// When and how often the system probes a connection on which nothing comes. A peer that has disappeared is noticed
/// within two minutes.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Lets the system probe a quiet connection, or those that a listening socket accepts, to find out whether the peer still exists (RFC 9293, section 3.8.4).
///
/// # Errors
/// When the system refuses the setting.
pub fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_keepalive(&KEEP_ALIVE)
}
