//! The socket of a client: bytes are read and written while the task of the connection watches whether the client still
//! exists. The system reports the end of the client's data and a reset as separate events (EPOLLRDHUP, EPOLLERR), even while
//! unread data is in front of them. hyper would instead read ahead, into a buffer that it allocates for every request.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::preamble::{self, Preamble, PreambleError};

/// Clones refer to the same socket.
#[derive(Clone, Debug)]
pub struct ClientSocket(Rc<TcpStream>);

impl ClientSocket {
    pub(super) fn new(stream: TcpStream) -> Self {
        let socket = Self(Rc::new(stream));
        socket.notice_silence();
        socket
    }

    /// The runtime assumes that a socket is readable until a read has found nothing. Without this peek, the first wait for
    /// a silent client would return at once.
    fn notice_silence(&self) {
        let _ = self.0.try_io(Interest::READABLE, || self.socket().peek(&mut [MaybeUninit::uninit()]));
    }

    /// Waits until the client has ended its data or the connection has broken. Returns whether it has broken.
    ///
    /// The runtime gets both events anyway, so this makes no system call, and unread bytes do not hide them. `PRIORITY` also
    /// stands for urgent data, but no stream is registered for that, so here it means the end of the client's data.
    pub async fn closed(&self) -> bool {
        let is_broken = |ready: io::Result<Ready>| ready.map_or(true, Ready::is_error);
        is_broken(self.0.ready(Interest::PRIORITY | Interest::ERROR).await)
    }

    pub async fn broken(&self) {
        let _ = self.0.ready(Interest::ERROR).await;
    }

    /// Ready when there may be something to read; the end and an error count, too.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(cx).map(|_| ())
    }

    /// Whether the client has sent bytes that are not read yet. Asks the system, which knows of them before the runtime does.
    pub(super) fn has_more(&self) -> bool {
        self.socket().peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
    }

    /// Peeks at the next byte; `None` if the client has ended its data.
    pub async fn first_byte(&self) -> Option<u8> {
        let mut byte = [0];
        let peeked =
            self.0.async_io(Interest::READABLE, || Ok(rustix::net::recv(&*self.0, &mut byte, RecvFlags::PEEK)?.0));
        (peeked.await.ok()? > 0).then_some(byte[0])
    }

    /// Peeks whether the client's data begins with `expected`, and returns as soon as that is known.
    pub async fn begins_with(&self, expected: &[u8]) -> bool {
        let mut bytes = vec![0; expected.len()];
        while let Ok(ready) = self.0.ready(Interest::READABLE).await {
            let begins = self.0.try_io(Interest::READABLE, || {
                let (length, _) = rustix::net::recv(&*self.0, &mut bytes[..], RecvFlags::PEEK)?;
                let is_undecided = length < expected.len() && expected.starts_with(&bytes[..length]);
                // These bytes are not enough: wait for the next event.
                if is_undecided { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(bytes == expected) }
            });
            match begins {
                Ok(begins) => return begins,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ready.is_read_closed() => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Takes the preamble of the PROXY protocol from the beginning of the client's data, and nothing of what follows. Fails
    /// when it is not valid, or does not come completely.
    pub async fn take_preamble(&self) -> Result<Preamble, PreambleError> {
        let (mut bytes, mut length) = ([0; preamble::MOST_READ], 0);
        loop {
            let ready = self.0.ready(Interest::READABLE).await?;
            let read = self.0.try_io(Interest::READABLE, || {
                (length, _) = rustix::net::recv(&*self.0, &mut bytes[..], RecvFlags::PEEK)?;
                // If these bytes are not enough, wait for the next event.
                preamble::read(&bytes[..length]).transpose().ok_or(io::ErrorKind::WouldBlock.into())
            });
            match read {
                Ok(preamble) => {
                    let preamble = preamble?;
                    self.skip(preamble.length).await?;
                    return Ok(preamble);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ready.is_read_closed() => {}
                Err(_) if length == 0 => return Err(PreambleError::Nothing),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) => return Err(PreambleError::CutOff),
            }
        }
    }

    async fn skip(&self, mut length: usize) -> Result<(), PreambleError> {
        let mut scrap = vec![0; length.min(4096)];
        while length > 0 {
            self.0.readable().await?;
            let most = length.min(scrap.len());
            match self.0.try_read(&mut scrap[..most]) {
                Ok(0) => return Err(PreambleError::CutOff),
                Ok(read) => length -= read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.notice_silence();
        Ok(())
    }

    /// Sends as many bytes as the system accepts at once. Fails when it accepts none.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    /// Reads and discards until the end of the client's data, an error, or a pause as long as `silence`.
    pub async fn discard(&self, silence: Duration) {
        let mut scrap = vec![0; 4096];
        while matches!(timeout(silence, self.0.readable()).await, Ok(Ok(()))) {
            match self.0.try_read(&mut scrap) {
                Ok(0) => return,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }

    fn socket(&self) -> SockRef<'_> {
        SockRef::from(&*self.0)
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let capacity = buf.remaining();
        loop {
            let mut received = None;
            let tried = self.0.try_io(Interest::READABLE, || {
                let length = *received.insert(self.0.try_read_buf(buf)?);
                // If the buffer is not full, the socket is empty. Then the next read waits for an event instead of making a
                // system call that finds nothing.
                if length > 0 && length < capacity { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (received, tried) {
                (Some(_), _) => return Poll::Ready(Ok(())),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.0.poll_read_ready(cx))?;
                }
                (None, tried) => return Poll::Ready(tried),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.0.poll_write_ready(cx))?,
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket().shutdown(std::net::Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, ClientSocket) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), ClientSocket::new(accepted.unwrap().0))
    }

    async fn receive(stream: &mut ClientSocket, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let length = stream.read(&mut bytes).await.unwrap();
        bytes.truncate(length);
        bytes
    }

    #[tokio::test]
    async fn receives_bytes_and_waits_for_more() {
        let (mut client, mut server) = pair().await;
        client.write_all(b"abcde").await.unwrap();
        assert_eq!(receive(&mut server, 3).await, b"abc", "no more than the buffer holds");
        assert_eq!(receive(&mut server, 3).await, b"de");
        let (received, sent) = tokio::join!(receive(&mut server, 3), client.write_all(b"f"));
        sent.unwrap();
        assert_eq!(received, b"f");
        drop(client);
        assert_eq!(receive(&mut server, 3).await, b"", "the end");
    }

    #[tokio::test]
    async fn a_silent_client_is_waited_for() {
        let (mut client, server) = pair().await;
        assert!(poll_fn(|cx| Poll::Ready(server.poll_readable(cx).is_pending())).await);
        client.write_all(b"a").await.unwrap();
        poll_fn(|cx| server.poll_readable(cx)).await;
    }

    #[tokio::test]
    async fn sends_at_the_pace_of_the_reader() {
        let (mut client, mut server) = pair().await;
        let all: Vec<u8> = (0..=u8::MAX).cycle().take(16 << 20).collect();
        let mut received = vec![0; all.len()];
        let (written, read) = tokio::join!(server.write_all(&all), client.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
        assert!(received == all);
        drop(client);
        let broken = async { while server.write_all(b"x").await.is_ok() {} };
        timeout(Duration::from_secs(10), broken).await.expect("an error in the end");
    }

    #[tokio::test]
    async fn the_first_bytes_are_known_as_soon_as_they_decide() {
        for (pieces, expected) in [
            (&["PRI *"][..], true),
            (&["P", "R", "I ", "*"], true),
            (&["PRI * and more"], true),
            (&["POST"], false),
            (&["P", "OST"], false),
            (&["G"], false),
        ] {
            let (mut client, server) = pair().await;
            let send = async {
                for piece in pieces {
                    client.write_all(piece.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let (begins, ()) = tokio::join!(server.begins_with(b"PRI *"), send);
            assert_eq!(begins, expected, "{pieces:?}");
            let mut server = server;
            assert_eq!(receive(&mut server, 1).await, &pieces[0].as_bytes()[..1], "nothing was taken away");
        }
        let (mut client, server) = pair().await;
        client.write_all(b"PRI").await.unwrap();
        client.shutdown().await.unwrap();
        assert!(!server.begins_with(b"PRI *").await, "no more will come");
    }

    #[tokio::test]
    async fn the_end_is_seen_behind_bytes_that_nobody_reads() {
        let (mut client, server) = pair().await;
        client.write_all(b"G").await.unwrap();
        client.shutdown().await.unwrap();
        assert!(!server.closed().await, "it still reads what is sent");
        assert!(server.has_more());
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        server.broken().await;
        assert!(server.closed().await);
    }
}
