//! The connection to one server: it connects, greets, and passes bytes in both directions.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::failure::LinkFailure;
use super::protocol::{Greeting, Protocol, Redirects};
use crate::config::UpstreamTls;

/// The bytes that are read from a server at once: in most cases the replies to a full exchange.
const INPUT: usize = 64 << 10;

/// The connection to one server. It alone owns the socket, connects, reads and writes.
pub(super) enum Connection {
    Closed,
    Connecting(Pin<Box<dyn Future<Output = Result<Socket, LinkFailure>>>>),
    Open(Socket),
}

/// The bytes of a connection, plain or encrypted.
type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A socket to a server that has answered the greeting.
pub(super) struct Socket {
    stream: Stream,
    /// The bytes to be written, and how many of them have been.
    output: Vec<u8>,
    written: usize,
    input: BytesMut,
    redirects: Option<Box<dyn Redirects>>,
    /// Whether it has begun to follow redirections among what was read.
    is_redirected: bool,
}

impl Connection {
    /// [`Self::proceed`] makes the connection. The name is looked up each time, because its address may have changed.
    pub(super) fn open(server: String, protocol: &dyn Protocol) -> Self {
        let redirects = protocol.redirects(&server);
        let opening = Socket::open(server, protocol);
        Self::Connecting(Box::pin(async { Ok(opening.await?.following(redirects)) }))
    }

    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        match self {
            Self::Open(socket) => socket.write(bytes),
            Self::Closed | Self::Connecting(_) => {}
        }
    }

    /// Until the connection is made (`None`), or something was read: returns all that is not taken yet. Cancel-safe.
    ///
    /// # Errors
    /// If the server cannot be connected to or does not answer as it should, or if the connection is closed or broken.
    pub(super) async fn proceed(&mut self) -> Result<Option<&mut BytesMut>, LinkFailure> {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Connecting(connecting) => {
                let opened = connecting.await;
                // A completed future must not be polled again.
                *self = Self::Closed;
                *self = Self::Open(opened?);
                Ok(None)
            }
            Self::Open(socket) => socket.transfer().await.map(|()| Some(&mut socket.input)),
        }
    }
}

impl Socket {
    pub(super) fn open(
        server: String,
        protocol: &dyn Protocol,
    ) -> impl Future<Output = Result<Self, LinkFailure>> + Send + use<> {
        let (tls, greeting) = (protocol.tls().cloned(), protocol.greeting(&server));
        let address = protocol.locate(server);
        async move { Self::greet(&address.await?, tls.as_ref(), greeting).await }
    }

    pub(super) async fn greet(
        address: &str,
        tls: Option<&UpstreamTls>,
        mut greeting: Box<dyn Greeting>,
    ) -> Result<Self, LinkFailure> {
        let mut socket = Self::connect(address, tls).await?;
        while !greeting.proceed(&socket.input, &mut socket.output)? {
            socket.transfer().await?;
        }
        socket.input.clear();
        Ok(socket)
    }

    /// From now on it follows redirections.
    pub(super) fn following(self, redirects: Option<Box<dyn Redirects>>) -> Self {
        Self { redirects, ..self }
    }

    /// Without a greeting.
    pub(super) async fn connect(address: &str, tls: Option<&UpstreamTls>) -> Result<Self, LinkFailure> {
        let stream = connect(address, tls).await?;
        Ok(Self {
            stream,
            output: Vec::new(),
            written: 0,
            input: BytesMut::with_capacity(INPUT),
            redirects: None,
            is_redirected: false,
        })
    }

    /// Asks something of which `read` makes a result, or `None` while the answer is incomplete.
    pub(super) async fn ask<T>(
        &mut self,
        question: Vec<u8>,
        read: impl Fn(&[u8]) -> Result<Option<T>, LinkFailure>,
    ) -> Result<T, LinkFailure> {
        self.write(question);
        loop {
            self.transfer().await?;
            if let Some(result) = read(&self.input)? {
                self.input.clear();
                return Ok(result);
            }
        }
    }

    fn write(&mut self, bytes: Vec<u8>) {
        self.redirects.iter_mut().for_each(|redirects| redirects.sent(&bytes));
        if self.output.is_empty() {
            self.output = bytes;
        } else {
            self.output.extend_from_slice(&bytes);
        }
    }

    /// Writes what is to be written, until something was read. Cancel-safe.
    async fn transfer(&mut self) -> Result<(), LinkFailure> {
        poll_fn(|cx| self.poll_transfer(cx)).await
    }

    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkFailure>> {
        let Self { stream, output, written, input, redirects, is_redirected } = self;
        while *written < output.len() {
            let Poll::Ready(length) = Pin::new(&mut *stream).poll_write(cx, &output[*written..])? else { break };
            *written += length;
            if *written == output.len() {
                output.clear();
                *written = 0;
            }
        }
        // It goes on by itself with the next call.
        let _ = Pin::new(&mut *stream).poll_flush(cx)?;
        let mut length = 0;
        if !*is_redirected {
            length = ready!(pin!(stream.read_buf(input)).poll(cx))?;
            if length == 0 {
                return Poll::Ready(Err(LinkFailure::Closed));
            }
        }
        let Some(redirects) = redirects else { return Poll::Ready(Ok(())) };
        let followed = redirects.poll(input, length, cx);
        *is_redirected = followed.is_pending();
        followed
    }
}

async fn connect(address: &str, tls: Option<&UpstreamTls>) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let Some(UpstreamTls { server_name, settings, .. }) = tls else { return Ok(Stream::Left(stream)) };
    let name = match server_name {
        Some(name) => name.clone(),
        None => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?
        }
    };
    let stream = TlsConnector::from(settings.config()).connect(name, stream).await?;
    Ok(Stream::Right(Box::new(stream)))
}
