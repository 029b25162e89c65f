//! Connects to a PostgreSQL server, over TCP or a Unix socket, with or without TLS, and watches the byte stream: when data came
//! last, and whether it is valid messages.
//!
//! A message begins with one byte for its kind and four for its length (PostgreSQL, "Message Formats"). The client library
//! buffers a whole message, so without this check a server could claim a huge length and make the memory grow.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_postgres::config::Host;
use tokio_rustls::TlsConnector;

use crate::config::PostgresTls;
use crate::net::fetch;
use crate::net::tls::ConnectorTls;

/// The message `SSLRequest`: its length and its code (PostgreSQL, "Message Formats").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The answers to `SSLRequest`.
const WITH_TLS: u8 = b'S';
const WITHOUT_TLS: u8 = b'N';

pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Transport for S {}

/// The caller bounds the time.
///
/// # Errors
/// When that fails, or its certificate is not one to trust.
pub(super) async fn connect(
    host: &Host,
    port: u16,
    mode: PostgresTls,
    tls: Option<&ConnectorTls>,
) -> io::Result<Box<dyn Transport>> {
    match host {
        Host::Unix(folder) => Ok(Box::new(UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await?)),
        Host::Tcp(name) => {
            let mut stream = fetch::connect(name, port).await?;
            stream.set_nodelay(true)?;
            if mode == PostgresTls::Never || !offers_tls(&mut stream).await? {
                return match mode {
                    PostgresTls::Never | PostgresTls::IfOffered => Ok(Box::new(stream)),
                    PostgresTls::Always => Err(io::Error::other("it offers no TLS, and sslmode asks for it")),
                };
            }
            let tls = tls.ok_or_else(|| io::Error::other("there are no authorities to trust"))?;
            let name = ServerName::try_from(name.clone()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(tls.config());
            let stream = connector.connect(name, stream).await;
            Ok(Box::new(stream.map_err(|error| io::Error::new(error.kind(), format!("TLS fails: {error}")))?))
        }
    }
}

/// Asks for TLS. Reads only the one byte of the answer, so that nothing that was sent before the handshake is taken for protected
/// data.
async fn offers_tls(stream: &mut TcpStream) -> io::Result<bool> {
    stream.write_all(&SSL_REQUEST).await?;
    match stream.read_u8().await? {
        WITH_TLS => Ok(true),
        WITHOUT_TLS => Ok(false),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak PostgreSQL's protocol")),
    }
}

/// In bytes. The row of a quota has a thousandth of that.
const LONGEST_MESSAGE: u32 = 1 << 20;

/// The length includes these bytes.
const LENGTH_BYTES: u32 = 4;

/// Follows message boundaries in what is read.
#[derive(Debug, Default)]
struct Messages {
    head: [u8; 5],
    have: usize,
    /// The number of missing bytes after the head.
    rest: usize,
}

impl Messages {
    /// # Errors
    /// If it is not the protocol, or a message is too long.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = bytes.get(passed..).unwrap_or_default();
            let missing = self.head.iter_mut().skip(self.have).zip(bytes);
            let taken = missing.map(|(place, byte)| *place = *byte).count();
            self.have += taken;
            bytes = bytes.get(taken..).unwrap_or_default();
            if self.have == self.head.len() {
                let [kind, length @ ..] = self.head;
                let length = u32::from_be_bytes(length);
                if !kind.is_ascii_alphanumeric() || length < LENGTH_BYTES {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak PostgreSQL's protocol"));
                }
                if length > LONGEST_MESSAGE {
                    let text = format!("it sends a message of {length} bytes, and {LONGEST_MESSAGE} are allowed");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                self.have = 0;
                self.rest = (length - LENGTH_BYTES) as usize;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    messages: Messages,
    heard: Rc<Cell<Instant>>,
}

impl<S> Watched<S> {
    /// The cell has the time at which something was last read from `stream`.
    pub(super) fn new(stream: S) -> (Self, Rc<Cell<Instant>>) {
        let heard = Rc::new(Cell::new(Instant::now()));
        (Self { stream, messages: Messages::default(), heard: heard.clone() }, heard)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, out))?;
        self.heard.set(Instant::now());
        Poll::Ready(self.messages.read(out.filled().get(before..).unwrap_or_default()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the messages in pieces of `size`.
    fn accepts(bytes: &[u8], size: usize) -> bool {
        let mut messages = Messages::default();
        bytes.chunks(size).all(|piece| messages.read(piece).is_ok())
    }

    #[test]
    fn messages_are_followed_in_whatever_pieces_they_come() {
        // The content of the messages has bytes that would be invalid heads.
        let good = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I1\0\0\0\x04D\0\0\0\x0a\xff\xff\xff\xff\xff\xff";
        for size in 1..=good.len() {
            assert!(accepts(good, size), "pieces of {size}");
            for bad in [&b"\0\0\0\0\x08"[..], b"D\0\0\0\x03", b"D\x00\x10\x00\x01", b"HTTP/1.1 400 Bad Request"] {
                assert!(!accepts(&[good, bad].concat(), size), "{bad:?} in pieces of {size}");
            }
        }
        assert!(accepts(b"D\x00\x10\x00\x00", 2), "the longest one");
    }
}
