//! A client for HTTP/2 without TLS, by prior knowledge: many requests at once on one connection.

use std::fmt::Display;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::exchange::{Exchange, Request, Response};
use super::http1::PATIENCE;

fn failed(error: impl Display) -> Error {
    Error::other(format!("HTTP/2: {error}"))
}

fn head(host: &str, request: &Request) -> Result<http::Request<()>> {
    let mut head = http::Request::builder().method(request.method).uri(format!("http://{host}{}", request.path));
    for (name, value) in &request.headers {
        head = head.header(name.to_lowercase(), value.as_slice());
    }
    head.body(()).map_err(failed)
}

async fn finish(sent: Instant, response: h2::client::ResponseFuture) -> Result<Exchange> {
    let (head, mut body) = response.await.map_err(failed)?.into_parts();
    let received = Instant::now();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(failed)?;
        body.flow_control().release_capacity(chunk.len()).map_err(failed)?;
        bytes.extend_from_slice(&chunk);
    }
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    Ok(Exchange { sent, received, response: Response { status: head.status.as_u16(), headers, body: bytes } })
}

/// Sends these requests at once, as streams of one connection, as many at the same time as the server permits.
pub(crate) async fn at_once(address: SocketAddr, host: &str, requests: &[Request]) -> Result<Vec<Exchange>> {
    let work = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = h2::client::handshake(stream).await.map_err(failed)?;
        let driver = tokio::spawn(connection);
        let mut responses = Vec::new();
        for request in requests {
            sender = sender.ready().await.map_err(failed)?;
            let sent = Instant::now();
            let (response, _) = sender.send_request(head(host, request)?, true).map_err(failed)?;
            // A task of its own, since the next one may have to wait for its end.
            responses.push(tokio::spawn(finish(sent, response)));
        }
        let mut exchanges = Vec::new();
        for response in responses {
            exchanges.push(response.await.map_err(failed)??);
        }
        driver.abort();
        Ok(exchanges)
    };
    timeout(PATIENCE, work).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
}
