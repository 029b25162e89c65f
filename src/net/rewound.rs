//! A stream from which somebody has read too much: the bytes that were read are put in front again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

/// Returns `early` first, and then what the inner stream receives.
pub struct Rewound<S> {
    early: Bytes,
    stream: S,
}

impl<S> Rewound<S> {
    pub fn new(early: Bytes, stream: S) -> Self {
        // An empty slice would still keep its whole buffer.
        let early = if early.is_empty() { Bytes::new() } else { early };
        Self { early, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { early, stream } = self.get_mut();
        if early.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let length = early.len().min(buf.remaining());
        buf.put_slice(&early[..length]);
        early.advance(length);
        if early.is_empty() {
            // Frees the buffer.
            *early = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_was_read_comes_first() {
        let mut stream = Rewound::new(Bytes::from_static(b"early"), &b"later"[..]);
        let mut first = [0; 3];
        stream.read_exact(&mut first).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&first, &*rest), (b"ear", &b"lylater"[..]));
    }
}
