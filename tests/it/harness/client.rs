//! A client that sends given bytes and reads what comes.

use std::io::{ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use http::{HeaderMap, Request};
use socket2::{Domain, Socket, Type};

use super::wire::{Framing, Headers, Wire};

pub(crate) struct Client {
    pub(crate) wire: Wire,
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) version: String,
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Headers,
}

impl Client {
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        Self { wire: Wire::new(stream) }
    }

    pub(crate) fn connect_from(from: IpAddr, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        Self { wire: Wire::new(socket.into()) }
    }

    pub(crate) fn local_address(&self) -> SocketAddr {
        self.wire.stream().local_addr().unwrap()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.write(bytes.as_ref()).unwrap();
    }

    #[track_caller]
    pub(crate) fn call(&mut self, request: impl AsRef<[u8]>) -> Response {
        let request = request.as_ref();
        self.send(request);
        self.response(request.starts_with(b"HEAD "))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.get_with(path, "")
    }

    /// The status of a GET; `None` if the connection is closed instead.
    pub(crate) fn try_get(&mut self) -> Option<u16> {
        self.wire.write(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n").ok()?;
        self.try_response(false).ok().map(|response| response.status)
    }

    /// GET with more fields, each ending with `\r\n`.
    #[track_caller]
    pub(crate) fn get_with(&mut self, path: &str, fields: impl AsRef<[u8]>) -> Response {
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n").into_bytes();
        request.extend_from_slice(fields.as_ref());
        request.extend_from_slice(b"\r\n");
        self.call(request)
    }

    /// `bodiless` for the answer to HEAD.
    #[track_caller]
    pub(crate) fn response(&mut self, bodiless: bool) -> Response {
        self.try_response(bodiless).unwrap_or_else(|error| panic!("no response: {error}"))
    }

    pub(crate) fn try_response(&mut self, bodiless: bool) -> Result<Response> {
        let (mut response, framing) = self.try_head()?;
        if !bodiless {
            let body = &mut response.body;
            response.trailers = self.wire.body(framing, &mut |piece| body.extend_from_slice(piece))?;
        }
        Ok(response)
    }

    /// The head of the next response, and the framing of its body.
    pub(crate) fn try_head(&mut self) -> Result<(Response, Framing)> {
        let (line, headers) = self.wire.head()?.ok_or(ErrorKind::UnexpectedEof)?;
        let (version, rest) = line.split_once(' ').ok_or(ErrorKind::InvalidData)?;
        let status = rest.get(..3).and_then(|status| status.parse().ok()).ok_or(ErrorKind::InvalidData)?;
        let framing = match status {
            100..=199 | 204 | 304 => Framing::Length(0),
            _ => headers.framing(Framing::UntilClose)?,
        };
        let (version, body, trailers) = (version.to_owned(), Vec::new(), Headers::default());
        Ok((Response { version, status, headers, body, trailers }, framing))
    }

    /// Waits until the gateway closes, and returns what it still sent.
    #[track_caller]
    pub(crate) fn closed(&mut self) -> Vec<u8> {
        let (rest, closed) = self.wire.rest();
        assert!(closed, "the connection stays open");
        rest
    }
}

impl Response {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body without the identifier of the request, which differs each time.
    pub(crate) fn anonymous(&self) -> String {
        self.text().replace(self.headers.must("x-request-id"), "")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// Fails unless the body is a problem document of this status about this request, as the gateway's own errors are.
    #[track_caller]
    pub(crate) fn expect_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers.must("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["request_id"], self.headers.must("x-request-id"), "{problem}");
        assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    }
}

/// The statuses and headers of the responses to these successive requests on an HTTP/2 connection.
#[track_caller]
pub(crate) fn over_http2(gateway: SocketAddr, requests: Vec<Request<()>>) -> Vec<(u16, HeaderMap)> {
    let all = async {
        let stream = tokio::net::TcpStream::connect(gateway).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut answers = Vec::new();
        for request in requests {
            client = client.ready().await.unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            let (head, _) = response.await.unwrap().into_parts();
            answers.push((head.status.as_u16(), head.headers));
        }
        answers
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), all).await }).unwrap()
}
