//! New streams to endpoints, which may begin with the preamble of the PROXY protocol: that tells a server who the client is
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_util::either::Either;

use super::endpoint::{DestinationAddress, Endpoint};
use super::error::UpstreamError;
use super::stream::{self, Offered, Socket, UpstreamStream};
use crate::config::ProxyProtocol;
use crate::net::Names;

/// With it begins a preamble in version 2 of the PROXY protocol.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, and whom the connection is for.
const FOR_CLIENT: u8 = 0x21;
const FOR_ITSELF: u8 = 0x20;
/// TCP over IPv4 and over IPv6.
const OVER_IPV4: u8 = 0x11;
const OVER_IPV6: u8 = 0x21;

#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub(super) version: ProxyProtocol,
    /// `None` if the connection is for the gateway itself.
    pub(super) client: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// For the lookup of the name, the connection and its TLS handshake together.
    pub(super) timeout: Duration,
    pub(super) names: Arc<Names>,
}

impl Connector {
    /// Makes a stream to this endpoint. Its server is told of the client that is `announced`, and with TLS these protocols are
    /// `offered`. Does `then` with the stream, in the same time. Fails when the name has no address, no address accepts the
    /// connection, the server does not speak TLS or its certificate is not valid, or the time is over, and when `then` fails.
    pub(super) async fn connect<T>(
        &self,
        endpoint: &Endpoint,
        announced: Option<Announced>,
        offered: Offered,
        then: impl AsyncFnOnce(UpstreamStream) -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let place = endpoint.places.take()?;
        let connecting = async {
            let failed = |error| UpstreamError::of_connecting(error, endpoint.was_reached());
            let mut socket = self.socket(&endpoint.target.address).await.map_err(failed)?;
            if let Some(Announced { version, client }) = announced {
                let bytes = preamble(version, client, server_address(&socket));
                socket.write_all(&bytes).await.map_err(failed)?;
            }
            then(UpstreamStream::begin(socket, place, endpoint.target.tls.as_ref(), offered).await?).await
        };
        let timed = tokio::time::timeout(self.timeout, connecting).await;
        timed.unwrap_or(Err(UpstreamError::ConnectTimeout(self.timeout)))
    }

    async fn socket(&self, address: &DestinationAddress) -> io::Result<Socket> {
        match address {
            DestinationAddress::Socket(address) | DestinationAddress::Echo(address) => {
                stream::connect(&[*address]).await
            }
            DestinationAddress::Name(name, port) => stream::connect(&self.names.find(name, *port).await?).await,
            DestinationAddress::Unix(path) => UnixStream::connect(path).await.map(Either::Right),
        }
    }
}

/// `None` for a Unix socket.
fn server_address(socket: &Socket) -> Option<SocketAddr> {
    match socket {
        Either::Left(socket) => socket.peer_addr().ok(),
        Either::Right(_) => None,
    }
}

/// The preamble of the PROXY protocol for a connection to `server` for this client; for the gateway itself without a client. The
/// server of a Unix socket has no address.
fn preamble(version: ProxyProtocol, client: Option<SocketAddr>, server: Option<SocketAddr>) -> Vec<u8> {
    let pair = client.map(|client| same_family(client, server.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())));
    match version {
        ProxyProtocol::V1 => version_1(pair).into_bytes(),
        ProxyProtocol::V2 => version_2(pair),
    }
}

/// Both addresses in one family, as both versions demand: an IPv4 address has a form in IPv6 (RFC 4291, section 2.5.5.2).
fn same_family(client: SocketAddr, server: SocketAddr) -> (SocketAddr, SocketAddr) {
    let (from, to) = (client.ip().to_canonical(), server.ip().to_canonical());
    let mapped = |ip| match ip {
        IpAddr::V4(ip) if !(from.is_ipv4() && to.is_ipv4()) => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    (SocketAddr::new(mapped(from), client.port()), SocketAddr::new(mapped(to), server.port()))
}

fn version_1(pair: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((client, server)) = pair else { return "PROXY UNKNOWN\r\n".to_owned() };
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {} {} {} {}\r\n", client.ip(), server.ip(), client.port(), server.port())
}

fn version_2(pair: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut addresses = Vec::new();
    let mut push = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => addresses.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => addresses.extend_from_slice(&ip.octets()),
    };
    let (command, family) = match pair {
        None => (FOR_ITSELF, 0),
        Some((client, server)) => {
            push(client.ip());
            push(server.ip());
            addresses.extend_from_slice(&client.port().to_be_bytes());
            addresses.extend_from_slice(&server.port().to_be_bytes());
            (FOR_CLIENT, if client.is_ipv4() { OVER_IPV4 } else { OVER_IPV6 })
        }
    };
    // At most 36 bytes.
    let length = u16::try_from(addresses.len()).unwrap_or(0).to_be_bytes();
    [SIGNATURE, &[command, family], &length, &addresses].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(client: &str, server: &str) -> String {
        let encoded = preamble(ProxyProtocol::V1, Some(client.parse().unwrap()), server.parse().ok());
        String::from_utf8(encoded).unwrap()
    }

    #[test]
    fn version_1_is_a_line() {
        assert_eq!(text("192.0.2.1:4000", "10.0.0.1:80"), "PROXY TCP4 192.0.2.1 10.0.0.1 4000 80\r\n");
        assert_eq!(text("[2001:db8::1]:4000", "[::1]:80"), "PROXY TCP6 2001:db8::1 ::1 4000 80\r\n");
        assert_eq!(text("[::ffff:192.0.2.1]:1", "10.0.0.1:80"), "PROXY TCP4 192.0.2.1 10.0.0.1 1 80\r\n");
        assert_eq!(text("192.0.2.1:4000", "[::1]:80"), "PROXY TCP6 ::ffff:192.0.2.1 ::1 4000 80\r\n");
        assert_eq!(text("192.0.2.1:4000", "a unix socket"), "PROXY TCP4 192.0.2.1 0.0.0.0 4000 0\r\n");
        assert_eq!(preamble(ProxyProtocol::V1, None, None), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_is_binary() {
        let encoded = |client: &str| {
            let server = SocketAddr::from(([10, 0, 0, 1], 80));
            preamble(ProxyProtocol::V2, Some(client.parse().unwrap()), Some(server))
        };
        let four = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x0a\0\0\x01\x0f\xa0\0\x50";
        assert_eq!(encoded("192.0.2.1:4000"), four);
        let six = encoded("[2001:db8::1]:4000");
        assert_eq!((six.len(), &six[12..16], &six[48..]), (52, &b"\x21\x21\0\x24"[..], &b"\x0f\xa0\0\x50"[..]));
        assert_eq!(preamble(ProxyProtocol::V2, None, None), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
