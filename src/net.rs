//! Sockets: where clients connect, the byte stream of a client, and what the system does for any connection.

mod client_socket;
mod client_stream;
mod listen;

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

pub use client_stream::ClientStream;
pub use listen::{bind, is_v6_only};

/// A connection on which nothing comes is asked about after this time, then this often and so many times: a peer that
/// vanished without a word is noticed within two minutes.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// Has the system ask on a quiet connection whether the peer is still there (RFC 9293, section 3.8.4).
///
/// # Errors
/// When the system does not take the setting.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_tcp_keepalive(&KEEP_ALIVE)
}
