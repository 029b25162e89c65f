//! Sending and receiving without the C library in between.
//!
//! There, every call that might block is a point at which its thread may be cancelled, and in a process of several
//! threads each such call takes two locked instructions for that: 1 % of a request's time.

use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

/// A connection on which nothing comes is asked about after this time, then this often and so many times: a peer that
/// vanished without a word is noticed within two minutes.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TRIES: u32 = 4;

/// Has the system ask on a quiet connection whether the peer is still there (RFC 9293, section 3.8.4).
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TRIES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Sends what the system takes of `bytes` at once.
pub fn poll_send(stream: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        match stream.try_io(Interest::WRITABLE, || Ok(send(stream, bytes, SendFlags::empty())?)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(stream.poll_write_ready(cx))?,
            sent => return Poll::Ready(sent),
        }
    }
}

/// Receives what the system has, as much of it as there is `room` for, and hands it to `take`. Tells how much that
/// was: 0 if the other side has closed, as long as there is room at all.
pub fn poll_receive(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    room: &mut [MaybeUninit<u8>],
    mut take: impl FnMut(&[u8]),
) -> Poll<io::Result<usize>> {
    poll_receiving(stream, cx, room.len(), || {
        let ((bytes, _), length) = recv(stream, &mut *room, RecvFlags::empty())?;
        take(bytes);
        Ok(length)
    })
}

/// Receives straight into `buf`, like [`poll_receive`].
pub fn poll_receive_into(stream: &TcpStream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
    poll_receiving(stream, cx, buf.remaining(), || stream.try_read_buf(buf))
}

fn poll_receiving(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    room: usize,
    mut receive: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let mut received = None;
        let tried = stream.try_io(Interest::READABLE, || {
            let length = *received.insert(receive()?);
            // Less than there is room for was all. Then the next to ask is to wait rather than to call for nothing.
            if length > 0 && length < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (received, tried) {
            (Some(length), _) => return Poll::Ready(Ok(length)),
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => ready!(stream.poll_read_ready(cx))?,
            (None, tried) => return Poll::Ready(tried.map(|()| 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), accepted.unwrap().0)
    }

    /// What comes next, in a room of so many bytes.
    async fn receive(stream: &TcpStream, room: usize) -> Vec<u8> {
        let mut room = vec![MaybeUninit::uninit(); room];
        let mut all = Vec::new();
        let length = poll_fn(|cx| poll_receive(stream, cx, &mut room, |bytes| all.extend_from_slice(bytes)));
        assert_eq!(length.await.unwrap(), all.len());
        all
    }

    #[tokio::test]
    async fn receives_what_came_and_waits_for_more() {
        let (mut client, server) = pair().await;
        client.write_all(b"abcde").await.unwrap();
        assert_eq!(receive(&server, 3).await, b"abc", "no more than there is room for");
        assert_eq!(receive(&server, 3).await, b"de");
        let (received, sent) = tokio::join!(receive(&server, 3), client.write_all(b"f"));
        sent.unwrap();
        assert_eq!(received, b"f");
        drop(client);
        assert_eq!(receive(&server, 3).await, b"", "the end");
    }

    #[tokio::test]
    async fn sends_at_the_pace_of_the_other_side() {
        let (client, mut server) = pair().await;
        let all: Vec<u8> = (0..=u8::MAX).cycle().take(16 << 20).collect();
        let send = async {
            let mut rest = &all[..];
            while !rest.is_empty() {
                rest = &rest[poll_fn(|cx| poll_send(&client, cx, rest)).await.unwrap()..];
            }
        };
        let mut received = vec![0; all.len()];
        let ((), read) = tokio::join!(send, server.read_exact(&mut received));
        read.unwrap();
        assert!(received == all);
        drop(server);
        let broken = async { while poll_fn(|cx| poll_send(&client, cx, b"x")).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(10), broken).await.expect("an error in the end");
    }
}
