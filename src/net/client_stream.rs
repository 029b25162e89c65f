//! The byte stream of a client: its socket, or TLS on top of it. The HTTP library reads and writes it, while the task of
//! the connection watches whether the client still exists.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::server::{Acceptor, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_socket::ClientSocket;
use super::tls::asked_name;

/// Clones refer to the same stream.
#[derive(Clone, Debug)]
pub struct ClientStream {
    /// Below TLS, if there is any.
    pub socket: ClientSocket,
    tls: Option<Rc<RefCell<TlsStream<ClientSocket>>>>,
}

impl ClientStream {
    pub fn new(stream: TcpStream) -> Self {
        Self { socket: ClientSocket::new(stream), tls: None }
    }

    /// Performs the TLS handshake. Afterwards the stream is encrypted. An authority may ask in the handshake whether this
    /// gateway answers for a name: `answer` returns the configuration of such a handshake. Returns whether the handshake was
    /// such a question. Its connection has no other use. Fails when the client does not speak TLS, or no accepted version of
    /// it. The client has been sent the reason.
    pub async fn start_tls(
        &mut self,
        config: Arc<ServerConfig>,
        answer: impl AsyncFnOnce(&str) -> Option<Arc<ServerConfig>>,
    ) -> io::Result<bool> {
        // The state of a handshake is large. Boxed, it is freed right after the handshake.
        let begun = Box::pin(LazyConfigAcceptor::new(Acceptor::default(), self.socket.clone())).await?;
        let answered = match asked_name(&begun.client_hello()) {
            Some(name) => answer(&name).await,
            None => None,
        };
        let is_answered = answered.is_some();
        // Without an answer the two sides agree on no protocol, which ends the handshake.
        let tls = Box::pin(begun.into_stream(answered.unwrap_or(config))).await?;
        self.tls = Some(Rc::new(RefCell::new(tls)));
        Ok(is_answered)
    }

    pub fn of_tls<T>(&self, read: impl FnOnce(&ServerConnection) -> T) -> Option<T> {
        self.tls.as_ref().map(|tls| read(tls.borrow().get_ref().1))
    }

    /// Ready when there may be something to read; the end and an error count, too.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_decrypted() { Poll::Ready(()) } else { self.socket.poll_readable(cx) }
    }

    pub fn has_more(&self) -> bool {
        self.has_decrypted() || self.socket.has_more()
    }

    fn has_decrypted(&self) -> bool {
        let Some(tls) = &self.tls else { return false };
        let mut tls = tls.borrow_mut();
        tls.get_mut().1.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Sends as many bytes as the system accepts at once. Fails when it accepts none.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.try_write(bytes) };
        let cx = &mut Context::from_waker(Waker::noop());
        let mut tls = tls.borrow_mut();
        match Pin::new(&mut *tls).poll_write(cx, bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Ends our side of the stream, if the system accepts that at once.
    pub fn finish(&self) {
        let cx = &mut Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.clone()).poll_shutdown(cx);
    }
}

#[expect(clippy::inline_always, reason = "every request does this, and mostly only passes on the call")]
impl AsyncRead for ClientStream {
    #[inline(always)]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &this.tls {
            None => Pin::new(&mut this.socket).poll_read(cx, buf),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_read(cx, buf),
        }
    }
}

#[expect(clippy::inline_always, reason = "every request does this, and mostly only passes on the call")]
impl AsyncWrite for ClientStream {
    #[inline(always)]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &this.tls {
            None => Pin::new(&mut this.socket).poll_write(cx, bytes),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_write(cx, bytes),
        }
    }

    #[inline(always)]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.tls {
            None => Poll::Ready(Ok(())),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &this.tls {
            None => Pin::new(&mut this.socket).poll_shutdown(cx),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_shutdown(cx),
        }
    }
}
