//! The byte stream of a client: its socket, or TLS on top of that. The HTTP library reads and writes it, while the task
//! of the connection watches whether the client still exists.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustls::server::{Acceptor, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::client_socket::ClientSocket;
use super::preamble::{Preamble, PreambleError};
use super::tls::asked_name;

/// The stream. Clones refer to the same one.
#[derive(Clone, Debug)]
pub struct ClientStream {
    socket: ClientSocket,
    tls: Option<Rc<RefCell<TlsStream<ClientSocket>>>>,
}

impl ClientStream {
    /// The stream of a connection that was accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self { socket: ClientSocket::new(stream), tls: None }
    }

    /// Takes the preamble of the PROXY protocol, which comes before anything else and before any TLS.
    ///
    /// # Errors
    /// When it is not valid, or does not come completely.
    pub async fn take_preamble(&self) -> Result<Preamble, PreambleError> {
        self.socket.take_preamble().await
    }

    /// Performs the TLS handshake. Afterwards the stream is encrypted.
    ///
    /// # Errors
    /// When the client does not speak TLS, or no accepted version of it. The client has been sent the reason.
    pub async fn start_tls(&mut self, config: Arc<ServerConfig>) -> io::Result<()> {
        // The state of a handshake is large, and is dropped after it.
        let tls = Box::pin(TlsAcceptor::from(config).accept(self.socket.clone())).await?;
        self.tls = Some(Rc::new(RefCell::new(tls)));
        Ok(())
    }

    /// The same where an authority may ask whether this gateway answers for a name: `answer` has what its handshake uses. Returns
    /// whether it was such a handshake. Then its connection has no other use.
    ///
    /// # Errors
    /// The same.
    pub async fn start_tls_or_answer(
        &mut self,
        config: Arc<ServerConfig>,
        answer: impl AsyncFnOnce(&str) -> Option<Arc<ServerConfig>>,
    ) -> io::Result<bool> {
        let begun = Box::pin(LazyConfigAcceptor::new(Acceptor::default(), self.socket.clone())).await?;
        let answered = match asked_name(&begun.client_hello()) {
            Some(name) => answer(&name).await,
            None => None,
        };
        let is_answered = answered.is_some();
        // Without an answer no protocol is agreed on, which ends the handshake.
        let tls = Box::pin(begun.into_stream(answered.unwrap_or(config))).await?;
        self.tls = Some(Rc::new(RefCell::new(tls)));
        Ok(is_answered)
    }

    /// What `read` returns for the state of the TLS connection, if there is one.
    pub fn of_tls<T>(&self, read: impl FnOnce(&ServerConnection) -> T) -> Option<T> {
        self.tls.as_ref().map(|tls| read(tls.borrow().get_ref().1))
    }

    /// Waits until the client sends no more or the connection has broken. Returns whether it has broken.
    pub async fn closed(&self) -> bool {
        self.socket.closed().await
    }

    /// Waits until the connection has broken.
    pub async fn broken(&self) {
        self.socket.broken().await;
    }

    /// Ready when there may be something to read, which includes the end and an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_decrypted() { Poll::Ready(()) } else { self.socket.poll_readable(cx) }
    }

    /// Whether the first bytes of the client, before any TLS, are these. They can still be read.
    pub async fn begins_with(&self, expected: &[u8]) -> bool {
        self.socket.begins_with(expected).await
    }

    /// The first byte that the client sends, before any TLS; `None` if it sends none. The byte can still be read.
    pub async fn first_byte(&self) -> Option<u8> {
        self.socket.first_byte().await
    }

    /// Whether the client has sent bytes that nobody has read.
    pub fn has_more(&self) -> bool {
        self.has_decrypted() || self.socket.has_more()
    }

    /// Whether TLS has decrypted bytes that are not read yet.
    fn has_decrypted(&self) -> bool {
        let Some(tls) = &self.tls else { return false };
        let mut tls = tls.borrow_mut();
        // The next read finds an error, if there is one.
        tls.get_mut().1.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Sends as many bytes as the system accepts at once.
    ///
    /// # Errors
    /// When it accepts none.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.try_write(bytes) };
        let cx = &mut Context::from_waker(Waker::noop());
        let mut tls = tls.borrow_mut();
        match Pin::new(&mut *tls).poll_write(cx, bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Tells the client that nothing more will be sent, if the system accepts that at once.
    pub fn finish(&self) {
        let cx = &mut Context::from_waker(Waker::noop());
        // The client may have gone.
        let _ = Pin::new(&mut self.clone()).poll_shutdown(cx);
    }

    /// Reads and discards what the client sends, until its end, an error, or `silence` for so long.
    pub async fn discard(&self, silence: Duration) {
        self.socket.discard(silence).await;
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &this.tls {
            None => Pin::new(&mut this.socket).poll_read(cx, buf),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &this.tls {
            None => Pin::new(&mut this.socket).poll_write(cx, bytes),
            Some(tls) => Pin::new(&mut *tls.borrow_mut()).poll_write(cx, bytes),
        }
    }

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
