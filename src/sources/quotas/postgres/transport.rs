//! Connects to a PostgreSQL server, over TCP or a Unix socket, with or without TLS.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_rustls::TlsConnector;

use crate::config::PostgresTls;
use crate::net::tls::ConnectorTls;

/// For one address of a name, so that another can be tried.
const CONNECT_LIMIT: Duration = Duration::from_millis(1500);

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
            let mut stream = tcp(name, port).await?;
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

/// Connects to the first address of the name that answers.
async fn tcp(name: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((name, port)).await? {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
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
