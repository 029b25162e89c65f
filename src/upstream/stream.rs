//! The stream of bytes to an upstream server: a socket of TCP, with or without TLS, or a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::ClientConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::connection_limits::{Place, are_taken};
use super::endpoint::{DestinationAddress, TargetTls};
use super::error::UpstreamError;
use crate::net::keep_alive;
use crate::net::tls::{ALPN_HTTP1, ALPN_HTTP2};

#[derive(Debug)]
pub(super) struct UpstreamStream {
    transport: Transport,
    place: Place,
}

pub(super) type Socket = Either<TcpStream, UnixStream>;
/// Without TLS, or with it.
type Transport = Either<Socket, Box<TlsStream<TcpStream>>>;

/// What a server is offered in ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    Http1,
    /// HTTP/2, and HTTP/1.1 for a server that does not speak it.
    Http2,
}

/// Connects to the first of these addresses that accepts the connection. The error says why the last one does not.
pub(super) async fn connect(addresses: &[SocketAddr]) -> io::Result<Socket> {
    let socket = TcpStream::connect(addresses).await?;
    socket.set_nodelay(true)?;
    keep_alive(&socket)?;
    Ok(Either::Left(socket))
}

impl UpstreamStream {
    /// Takes over a socket with its place. Completes a TLS handshake if `tls` is set. The error is [`UpstreamError::Tls`]:
    /// nothing of a request was sent.
    pub(super) async fn begin(
        socket: Socket,
        place: Place,
        tls: Option<&TargetTls>,
        offered: Offered,
    ) -> Result<Self, UpstreamError> {
        // The configuration has no Unix socket with TLS.
        let (settings, server_name, socket) = match (tls, socket) {
            (Some(TargetTls { settings, server_name }), Either::Left(socket)) => (settings, server_name, socket),
            (_, socket) => return Ok(Self { transport: Either::Left(socket), place }),
        };
        let protocols: &[&[u8]] = match offered {
            Offered::Http1 => &[ALPN_HTTP1],
            Offered::Http2 => &[ALPN_HTTP2, ALPN_HTTP1],
        };
        let protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let connector = TlsConnector::from(settings.config.clone());
        // The state of a handshake is large. Boxed, it is freed right after the handshake.
        let handshake = Box::pin(connector.with_alpn(protocols).connect(server_name.clone(), socket));
        let tls = handshake.await.map_err(UpstreamError::Tls)?;
        Ok(Self { transport: Either::Right(Box::new(tls)), place })
    }

    pub(super) fn is_place_wanted(&self) -> bool {
        are_taken(self.place.semaphore())
    }

    pub(super) fn places(&self) -> Arc<Semaphore> {
        self.place.semaphore().clone()
    }

    /// Fails when the connection is already closed.
    pub(super) fn peer(&self) -> io::Result<DestinationAddress> {
        match &self.transport {
            Either::Left(Either::Left(socket)) => socket.peer_addr().map(DestinationAddress::Socket),
            Either::Left(Either::Right(socket)) => {
                let address = socket.peer_addr()?;
                Ok(DestinationAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned()))
            }
            Either::Right(tls) => tls.get_ref().0.peer_addr().map(DestinationAddress::Socket),
        }
    }

    /// `None` without TLS.
    fn session(&self) -> Option<&ClientConnection> {
        match &self.transport {
            Either::Left(_) => None,
            Either::Right(tls) => Some(tls.get_ref().1),
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.session().is_some()
    }

    pub(super) fn has_chosen_http2(&self) -> bool {
        self.session().is_some_and(|session| session.alpn_protocol() == Some(ALPN_HTTP2))
    }

    /// Whether bytes that were written still wait in this process, encrypted.
    pub(super) fn is_unsent(&self) -> bool {
        self.session().is_some_and(|session| session.wants_write())
    }

    /// Whether the stream is still open and there is nothing to read. Uses what the runtime knows, and makes no system call if
    /// nothing has happened. Does not poll, because the runtime lets no task poll too often, and would then report every
    /// stream as quiet.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_blocked = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let tls = match &mut self.transport {
            // Any other result means that the stream is closed, or that there is something to read.
            Either::Left(Either::Left(socket)) => return socket.try_read(&mut [0; 1]).is_err_and(is_blocked),
            Either::Left(Either::Right(socket)) => return socket.try_read(&mut [0; 1]).is_err_and(is_blocked),
            Either::Right(tls) => tls,
        };
        let (socket, session) = tls.get_mut();
        // Messages of TLS itself, such as tickets, may come at any time.
        while let Ok(state) = session.process_new_packets() {
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return false;
            }
            match session.read_tls(&mut Readable(socket)) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return is_blocked(error),
            }
        }
        false
    }
}

/// Does not wait.
struct Readable<'a>(&'a TcpStream);

impl io::Read for Readable<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Drop for UpstreamStream {
    /// Tells the server that nothing more will come (RFC 8446, section 6.1), if the system accepts that at once.
    fn drop(&mut self) {
        if let Either::Right(tls) = &mut self.transport {
            let _ = Pin::new(tls).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_read(cx, buf)
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}
