//! A connection to a server that the gateway itself asks.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Url;
use crate::net::tls::ConnectorTls;

/// For one address of a name, so that time is left to try another.
const CONNECT_LIMIT: Duration = Duration::from_millis(1500);
/// Of a response, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Dropping it closes the connection.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinSet<hyper::Result<()>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}")]
    Tcp(io::Error),
    #[error("{0}")]
    Tls(io::Error),
    #[error("{0}")]
    Http(hyper::Error),
}

impl Connection {
    /// Connects to the server of a URL. `tls` is needed for `https`. Fails when there is no connection to any of its addresses.
    pub async fn open(url: &Url, tls: Option<&ConnectorTls>) -> Result<Self, ConnectError> {
        let stream = connect(&url.host, url.port).await.map_err(ConnectError::Tcp)?;
        // Requests are small, and each waits for its answer.
        let _ = stream.set_nodelay(true);
        let Some(name) = &url.server_name else { return Self::over(stream).await };
        let Some(tls) = tls else {
            return Err(ConnectError::Tls(io::Error::other("there are no authorities to trust")));
        };
        let connecting = TlsConnector::from(tls.config.clone()).connect(name.clone(), stream);
        Self::over(connecting.await.map_err(ConnectError::Tls)?).await
    }

    /// Fails when the connection ends at once.
    pub async fn over(
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let opened = Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(ConnectError::Http)?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(Self { sender, driver })
    }

    /// Sends a request as it is, and waits for the head of its response. Fails if there is none.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let sent = self.sender.send_request(request).await;
        // If the connection has ended before the request was sent, the driver knows why.
        if sent.as_ref().is_err_and(hyper::Error::is_canceled)
            && let Some(Ok(Err(why))) = self.driver.join_next().await
        {
            return Err(why);
        }
        sent
    }

    pub fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Waits until another request can be sent; `false` if the connection has ended.
    pub async fn becomes_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }
}

/// Connects to the first address of the name that answers. Fails if none does.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}
