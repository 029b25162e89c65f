//! Connects to a PostgreSQL server, over TCP or a Unix socket, with or without TLS, and watches the byte stream: when data came
//! last, and whether it is valid messages.
//!
//! A message begins with one byte for its kind and four for its length (PostgreSQL, "Message Formats"). The client library
//! buffers a whole message, so a long one would make the memory grow. It is dropped as it comes, and the library reads an error
//! instead, so that only the lookup with the long row fails.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_postgres::config::Host;

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

/// The caller bounds the time. Fails when there is no connection, or its certificate is not one to trust.
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
            let stream = tls.connect(name, stream).await;
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

/// How much is read at once, in bytes.
const PIECE: usize = 8 << 10;

/// The length includes these bytes.
const LENGTH_BYTES: u32 = 4;

/// The kinds of messages (PostgreSQL, "Message Formats").
const DATA_ROW: u8 = b'D';
const ERROR_RESPONSE: u8 = b'E';
const NOTICE_RESPONSE: u8 = b'N';

/// Follows message boundaries in what is read.
#[derive(Debug, Default)]
struct Messages {
    head: [u8; 5],
    have: usize,
    /// The number of missing bytes after the head.
    rest: usize,
    /// Whether these are dropped.
    is_too_long: bool,
}

impl Messages {
    /// Passes the messages on to `out`, with an error in the place of a row that is too long. Fails if it is not the protocol,
    /// or another message is too long.
    fn read(&mut self, mut bytes: &[u8], out: &mut BytesMut) -> io::Result<()> {
        while !bytes.is_empty() {
            let (content, after) = bytes.split_at(self.rest.min(bytes.len()));
            self.rest -= content.len();
            if !self.is_too_long {
                out.extend_from_slice(content);
            }
            let missing = self.head.iter_mut().skip(self.have).zip(after);
            let taken = missing.map(|(place, byte)| *place = *byte).count();
            self.have += taken;
            bytes = after.get(taken..).unwrap_or_default();
            if self.have == self.head.len() {
                let [kind, length @ ..] = self.head;
                let length = u32::from_be_bytes(length);
                if !kind.is_ascii_alphanumeric() || length < LENGTH_BYTES {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak PostgreSQL's protocol"));
                }
                self.is_too_long = length > LONGEST_MESSAGE;
                if self.is_too_long {
                    out.extend_from_slice(&substitute(kind, length)?);
                } else {
                    out.extend_from_slice(&self.head);
                }
                self.have = 0;
                self.rest = (length - LENGTH_BYTES) as usize;
            }
        }
        Ok(())
    }
}

/// A short message in the place of one that is too long.
fn substitute(kind: u8, length: u32) -> io::Result<Vec<u8>> {
    let text = format!("it sends a message of {length} bytes, and {LONGEST_MESSAGE} are allowed");
    let kind = match kind {
        DATA_ROW | ERROR_RESPONSE => ERROR_RESPONSE,
        NOTICE_RESPONSE => NOTICE_RESPONSE,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, text)),
    };
    // 54000 is `program_limit_exceeded`.
    let fields = format!("SERROR\0C54000\0M{text}\0\0").into_bytes();
    let length = LENGTH_BYTES + u32::try_from(fields.len()).map_err(io::Error::other)?;
    Ok([&[kind][..], &length.to_be_bytes(), &fields].concat())
}

#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    messages: Messages,
    /// What was read, and the library has not taken yet.
    ready: BytesMut,
    heard: Rc<Cell<Instant>>,
}

impl<S> Watched<S> {
    /// The cell has the time at which something was last read from `stream`.
    pub(super) fn new(stream: S) -> (Self, Rc<Cell<Instant>>) {
        let heard = Rc::new(Cell::new(Instant::now()));
        let (messages, ready) = Default::default();
        (Self { stream, messages, ready, heard: heard.clone() }, heard)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, messages, ready, heard } = &mut *self;
        while ready.is_empty() {
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut piece))?;
            heard.set(Instant::now());
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            messages.read(piece.filled(), ready)?;
        }
        out.put_slice(&ready.split_to(ready.len().min(out.remaining())));
        Poll::Ready(Ok(()))
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

    /// Reads the messages in pieces of `size`. Returns what the library gets; `None` after an error.
    fn passed(bytes: &[u8], size: usize) -> Option<BytesMut> {
        let (mut messages, mut out) = (Messages::default(), BytesMut::new());
        bytes.chunks(size).try_for_each(|piece| messages.read(piece, &mut out)).ok().map(|()| out)
    }

    // The content of the messages has bytes that would be invalid heads.
    const GOOD: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I1\0\0\0\x04D\0\0\0\x0a\xff\xff\xff\xff\xff\xff";

    #[test]
    fn messages_are_followed_in_whatever_pieces_they_come() {
        for size in 1..=GOOD.len() {
            assert_eq!(passed(GOOD, size).as_deref(), Some(GOOD), "pieces of {size}");
            for bad in [&b"\0\0\0\0\x08"[..], b"D\0\0\0\x03", b"T\x00\x10\x00\x01", b"HTTP/1.1 400 Bad Request"] {
                assert!(passed(&[GOOD, bad].concat(), size).is_none(), "{bad:?} in pieces of {size}");
            }
        }
        assert!(passed(b"D\x00\x10\x00\x00", 2).is_some(), "the longest one");
    }

    #[test]
    fn a_message_that_is_too_long_is_replaced() {
        let content = vec![0xff; LONGEST_MESSAGE as usize + 1 - LENGTH_BYTES as usize];
        for (kind, replaced) in [(b"D", b'E'), (b"E", b'E'), (b"N", b'N')] {
            let all = [GOOD, kind, b"\x00\x10\x00\x01", &content, GOOD].concat();
            for size in [1, 7, 8192, all.len()] {
                let out = passed(&all, size).unwrap();
                let short = out.strip_prefix(GOOD).unwrap().strip_suffix(GOOD).unwrap();
                let length = u32::from_be_bytes(short[1..5].try_into().unwrap());
                assert_eq!((short[0], length as usize + 1), (replaced, short.len()));
                assert!(short.ends_with(b"it sends a message of 1048577 bytes, and 1048576 are allowed\0\0"));
            }
        }
    }
}
