//! New streams to endpoints.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio_util::either::Either;

use super::endpoint::{DestinationAddress, Endpoint};
use super::error::UpstreamError;
use super::proxy_protocol;
use super::stream::{self, Offered, Socket, UpstreamStream};
use crate::config::ProxyProtocol;
use crate::net::Names;

#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub(super) version: ProxyProtocol,
    /// `None` if the connection is for the gateway itself.
    pub(super) client: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub(super) struct Connector {
    timeout: Duration,
    names: Arc<Names>,
}

impl Connector {
    /// `timeout` is for the lookup of the name, the connection and its TLS handshake together.
    pub(super) fn new(timeout: Duration, names: Arc<Names>) -> Self {
        Self { timeout, names }
    }

    /// Makes a stream to this endpoint. Its server is told of the client that is `announced`, and with TLS these protocols are
    /// `offered`. Does `then` with the stream, in the same time.
    ///
    /// # Errors
    /// When the name has no address, no address accepts the connection, the server does not speak TLS or its certificate is not
    /// valid, or the time is over; and those of `then`.
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
                let preamble = proxy_protocol::encode(version, client, server_address(&socket));
                socket.write_all(&preamble).await.map_err(failed)?;
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
            DestinationAddress::Unix(path) => stream::connect_unix(path).await,
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
