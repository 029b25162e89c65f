//! Asks the admin listener of a running gateway, over TCP or a Unix socket, with TLS and a token if needed.

mod target;

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::base::printable::printable;
use crate::net::fetch::{ConnectError, Connection};
use crate::net::tls::ConnectorTls;

pub use target::{AdminLocation, TOKEN_VARIABLE, TokenSource};

/// Of a problem document.
const MAX_PROBLEM: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct AdminClient {
    pub location: AdminLocation,
    token: TokenSource,
    /// `None` trusts the authorities of the system.
    tls: Option<ConnectorTls>,
}

/// An answer with status 200, whose body comes in pieces.
pub struct AdminResponse {
    content_type: Option<HeaderValue>,
    body: Incoming,
    /// The connection ends when the answer is dropped.
    _connection: Connection,
}

impl AdminClient {
    /// Trusts the certificates of `tls`, or the system's authorities.
    pub fn new(location: AdminLocation, token: TokenSource, tls: Option<ConnectorTls>) -> Self {
        Self { location, token, tls }
    }

    /// Sends a GET request, and waits for the head of the answer within `limit`. The error says why there is no answer with
    /// status 200.
    pub async fn get(&self, path: &'static str, limit: Duration) -> Result<AdminResponse, String> {
        within(limit, self.ask(path)).await
    }

    async fn ask(&self, path: &'static str) -> Result<AdminResponse, String> {
        let token = self.token.authorization().await;
        let authorization = token.map_err(|error| format!("cannot read the token: {error}"))?;
        let (connection, host) = match &self.location {
            AdminLocation::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(ConnectError::Tcp).map_err(not_connected)?;
                (Connection::over(stream).await.map_err(not_connected)?, "localhost")
            }
            AdminLocation::Http(url) => {
                let tls = match (&url.server_name, &self.tls) {
                    (None, _) => None,
                    (Some(_), Some(tls)) => Some(tls.clone()),
                    (Some(_), None) => {
                        Some(ConnectorTls::of_system().map_err(ConnectError::Tls).map_err(not_connected)?)
                    }
                };
                (Connection::open(url, tls.as_ref()).await.map_err(not_connected)?, &*url.authority)
            }
        };
        send(connection, host, path, authorization).await
    }
}

async fn send(
    mut connection: Connection,
    host: &str,
    path: &'static str,
    authorization: Option<HeaderValue>,
) -> Result<AdminResponse, String> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    // The authority of a URL is a valid value.
    headers.insert(header::HOST, HeaderValue::try_from(host).unwrap_or(HeaderValue::from_static("")));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    let is_sent = authorization.is_some();
    headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
    let (head, body) = connection.send(request).await.map_err(|error| broken(&error))?.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE).cloned();
    let answer = AdminResponse { content_type, body, _connection: connection };
    match head.status {
        StatusCode::OK => Ok(answer),
        StatusCode::UNAUTHORIZED if is_sent => Err("the token is not that of its [admin]".to_owned()),
        StatusCode::UNAUTHORIZED => {
            Err(format!("it needs the token of its [admin]: set {TOKEN_VARIABLE}, or use --token-file"))
        }
        status => Err(refusal(status, answer).await),
    }
}

/// A gateway says why in a problem document, or in one line for its probes.
async fn refusal(status: StatusCode, answer: AdminResponse) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    let (is_problem, is_text) = (answer.is("application/problem+json"), answer.is("text/plain"));
    let body = answer.whole(MAX_PROBLEM).await.unwrap_or_default();
    let detail = match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if is_problem => problem.detail,
        _ if is_text => String::from_utf8_lossy(&body).trim().to_owned(),
        _ => return NOT_A_GATEWAY.to_owned(),
    };
    let colon = if detail.is_empty() { "" } else { ": " };
    format!("it answers {}{colon}{}", status.as_u16(), printable(&detail))
}

impl AdminResponse {
    pub fn is(&self, media_type: &str) -> bool {
        let named = self.content_type.as_ref().and_then(|value| value.to_str().ok());
        named
            .and_then(|named| named.split(';').next())
            .is_some_and(|named| named.trim().eq_ignore_ascii_case(media_type))
    }

    /// The next piece of the body; `None` at the end. Fails when the connection breaks.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(piece) = frame.map_err(|error| closed(&error))?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The whole body, up to `most` bytes. Fails when the body is longer, or the connection breaks.
    pub async fn whole(mut self, most: usize) -> Result<Vec<u8>, String> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > most {
                return Err(too_large(most));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

/// Waits for an answer, but not for longer than `limit`. The error says why there is no answer.
pub(super) async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("no answer within {}", humantime::format_duration(limit)));
    timeout(limit, answer).await.unwrap_or_else(late)
}

// Why there is no usable answer: the texts follow the address and a colon.

pub(super) const NOT_A_GATEWAY: &str = "what answers there is not the admin listener of a gateway";

pub(super) fn too_large(most: usize) -> String {
    format!("it sends more than {} MiB at once", most >> 20)
}

fn not_connected(error: ConnectError) -> String {
    match error {
        ConnectError::Tcp(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "nothing listens there: is the gateway running, and is this the `listen` of its [admin]?".to_owned()
        }
        ConnectError::Tcp(error) => format!("cannot connect: {error}"),
        ConnectError::Tls(error) => format!("the TLS handshake fails: {error}"),
        ConnectError::Http(error) => broken(&error),
    }
}

fn broken(error: &hyper::Error) -> String {
    let is_of_system = matches!(error.source(), Some(source) if source.is::<io::Error>());
    if is_of_system || error.is_incomplete_message() {
        return closed(error);
    }
    format!("what answers there does not speak HTTP: {error}")
}

fn closed(error: &hyper::Error) -> String {
    format!("the connection was closed: {error}")
}
