//! A client for HTTP/1.1 that sends what it is given byte for byte, so that it can send what libraries refuse to send.

use std::fmt::Display;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::exchange::{Exchange, Request, Response};

/// A limiter that says nothing for so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const MOST_HEADERS: usize = 100;

pub(crate) struct Connection {
    stream: TcpStream,
    /// Received, but not yet read.
    buffer: Vec<u8>,
    /// The peer has said that it closes, or its last response ended with the connection.
    pub(crate) is_over: bool,
}

enum Length {
    Known(usize),
    Chunked,
    UntilTheEnd,
}

fn malformed(what: impl Display) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the response is malformed: {what}"))
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await.map_err(|_| ErrorKind::TimedOut)??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), is_over: false })
    }

    /// Returns the moment before the first byte.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<Instant> {
        let sent = Instant::now();
        timeout(PATIENCE, self.stream.write_all(bytes)).await.map_err(|_| ErrorKind::TimedOut)??;
        Ok(sent)
    }

    pub(crate) async fn ask(&mut self, host: &str, request: &Request) -> Result<Exchange> {
        let sent = self.send(&request.bytes(host)).await?;
        self.receive(sent, request.method == "HEAD").await
    }

    /// The next response to a request that was sent at that moment.
    pub(crate) async fn receive(&mut self, sent: Instant, is_head: bool) -> Result<Exchange> {
        let read = async {
            let mut response = self.head().await?;
            while (100..200).contains(&response.status) {
                response = self.head().await?;
            }
            // The limiter has decided now, however long the body takes.
            let received = Instant::now();
            response.body = self.body(&response, is_head).await?;
            Ok(Exchange { sent, received, response })
        };
        timeout(PATIENCE, read).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
    }

    async fn more(&mut self) -> Result<()> {
        self.buffer.reserve(4096);
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            self.is_over = true;
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    async fn head(&mut self) -> Result<Response> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut head = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(length) = head.parse(&self.buffer).map_err(malformed)? {
                let headers = head.headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect();
                let response = Response { status: head.code.unwrap_or_default(), headers, body: Vec::new() };
                self.buffer.drain(..length);
                return Ok(response);
            }
            self.more().await?;
        }
    }

    async fn body(&mut self, response: &Response, is_head: bool) -> Result<Vec<u8>> {
        let closes = response.header("connection").is_some_and(|value| value.to_lowercase().contains("close"));
        self.is_over |= closes;
        if is_head || [204, 304].contains(&response.status) {
            return Ok(Vec::new());
        }
        let is_chunked =
            response.header("transfer-encoding").is_some_and(|value| value.to_lowercase().contains("chunked"));
        let length = match response.header("content-length") {
            _ if is_chunked => Length::Chunked,
            Some(length) => Length::Known(length.parse().map_err(malformed)?),
            None => Length::UntilTheEnd,
        };
        match length {
            Length::Known(length) => self.take(length).await,
            Length::Chunked => self.chunks().await,
            Length::UntilTheEnd => {
                self.is_over = true;
                self.stream.read_to_end(&mut self.buffer).await?;
                Ok(std::mem::take(&mut self.buffer))
            }
        }
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < length {
            self.more().await?;
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            match httparse::parse_chunk_size(&self.buffer).map_err(|_| malformed("the size of a chunk"))? {
                httparse::Status::Partial => self.more().await?,
                httparse::Status::Complete((line, size)) => {
                    let size = usize::try_from(size).map_err(malformed)?;
                    self.take(line).await?;
                    // Trailers are not looked at: no limiter sends any in a short body.
                    let chunk = self.take(size + 2).await?;
                    if size == 0 {
                        return Ok(body);
                    }
                    body.extend_from_slice(&chunk[..size]);
                }
            }
        }
    }
}
