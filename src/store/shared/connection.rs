//! The connection to one server: it connects, asks questions, and passes bytes in both directions.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::failure::{Garbage, LinkFailure};
use crate::config::UpstreamTls;

/// The bytes that are read from a server at once: in most cases the replies to a full exchange.
const INPUT: usize = 64 << 10;

/// The most bytes of answers that are not taken yet.
const LONGEST_INPUT: usize = 64 << 20;

/// The connection to one server. It alone owns the socket, reads and writes.
pub(super) enum Connection {
    Closed,
    Connecting(Opening),
    Open(Socket),
}

/// Connects to a server, and greets it.
pub type Opening = Pin<Box<dyn Future<Output = Result<Socket, LinkFailure>> + Send>>;

/// Looks for redirections in all that a server has replied to these exchanges. Has other servers do what it redirects; `None` if that
/// is nothing.
pub(super) type Redirects = Box<dyn Fn(&VecDeque<Vec<u8>>, &[u8]) -> Result<Option<Following>, Garbage> + Send>;

/// All that was replied, with the replies of other servers in the places of redirections. Fails if one that has got commands does not
/// answer.
pub(super) type Following = Pin<Box<dyn Future<Output = Result<Vec<u8>, LinkFailure>> + Send>>;

/// The bytes of a connection, plain or encrypted.
type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

pub struct Socket {
    stream: Stream,
    /// The bytes to be written, and how many of them have been.
    output: Vec<u8>,
    written: usize,
    /// All that was read and is not taken yet.
    pub(super) input: BytesMut,
    pub(super) redirects: Option<Redirects>,
    /// The exchanges that are not answered yet, if commands may be redirected.
    sent: VecDeque<Vec<u8>>,
    /// The input as it will be.
    following: Option<Following>,
    /// Ends when the server must not be used any more.
    pub(super) end: Option<Pin<Box<dyn Future<Output = LinkFailure> + Send>>>,
}

impl Connection {
    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        match self {
            Self::Open(socket) => socket.write(bytes),
            Self::Closed | Self::Connecting(_) => {}
        }
    }

    /// Until the connection is made (`None`), or something was read: returns the socket that has it. Cancel-safe. Fails if the
    /// server cannot be connected to or does not answer as it should, or if the connection is closed or broken.
    pub(super) async fn proceed(&mut self) -> Result<Option<&mut Socket>, LinkFailure> {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Connecting(connecting) => {
                let opened = connecting.await;
                // A completed future must not be polled again.
                *self = Self::Closed;
                *self = Self::Open(opened?);
                Ok(None)
            }
            Self::Open(socket) => socket.transfer().await.map(|()| Some(socket)),
        }
    }
}

impl Socket {
    /// `address` is looked up each time, because that may have changed.
    pub(super) async fn connect(address: &str, tls: Option<&UpstreamTls>) -> Result<Self, LinkFailure> {
        let stream = connect(address, tls).await?;
        let (output, input, sent) = (Vec::new(), BytesMut::with_capacity(INPUT), VecDeque::new());
        Ok(Self { stream, output, written: 0, input, redirects: None, sent, following: None, end: None })
    }

    /// Asks something of which `read` makes a result, or `None` while the answer is incomplete.
    pub(super) async fn ask<T>(
        &mut self,
        question: Vec<u8>,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, LinkFailure>,
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

    /// So much of the input has answered so many exchanges.
    pub(super) fn take(&mut self, length: usize, exchanges: usize) {
        self.input.advance(length);
        (0..exchanges).for_each(|_| drop(self.sent.pop_front()));
    }

    fn write(&mut self, bytes: Vec<u8>) {
        if self.redirects.is_some() {
            self.sent.push_back(bytes.clone());
        }
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
        let Self { stream, output, written, input, redirects, sent, following, end } = self;
        if let Some(Poll::Ready(failure)) = end.as_mut().map(|end| end.as_mut().poll(cx)) {
            // A completed future must not be polled again.
            *end = None;
            return Poll::Ready(Err(failure));
        }
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
        if following.is_none() {
            if ready!(pin!(stream.read_buf(input)).poll(cx))? == 0 {
                return Poll::Ready(Err(LinkFailure::Closed));
            }
            if input.len() > LONGEST_INPUT {
                return Poll::Ready(Err(LinkFailure::Garbage));
            }
            if let Some(redirects) = redirects {
                *following = redirects(sent, input)?;
            }
        }
        if let Some(replies) = following {
            let replies = ready!(replies.as_mut().poll(cx));
            *following = None;
            // It keeps its room.
            input.clear();
            input.extend_from_slice(&replies?);
        }
        Poll::Ready(Ok(()))
    }
}

async fn connect(address: &str, tls: Option<&UpstreamTls>) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let Some(UpstreamTls { server_name, settings, .. }) = tls else { return Ok(Stream::Left(stream)) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = server_name.as_ref().map_or(host.into(), ServerName::to_str);
    Ok(Stream::Right(Box::new(settings.connect(&name, stream).await?)))
}
