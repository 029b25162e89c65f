//! Asks the admin listener of a running gateway, over TCP or a Unix socket, with TLS and a token if needed.

mod target;

use std::error::Error as _;
use std::time::Duration;
use std::{fmt, io};

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
    location: AdminLocation,
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
    pub fn new(location: AdminLocation, token: TokenSource) -> Self {
        Self { location, token, tls: None }
    }

    /// Trusts these certificates instead of the system's authorities.
    #[must_use]
    pub fn with_tls(self, tls: ConnectorTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    pub fn location(&self) -> &AdminLocation {
        &self.location
    }

    /// Sends a GET request, and waits for the head of the answer within `limit`.
    ///
    /// # Errors
    /// When there is no answer with status 200.
    pub async fn get(&self, path: &'static str, limit: Duration) -> Result<AdminResponse, AskError> {
        timeout(limit, self.ask(path)).await.unwrap_or(Err(AskError::TimedOut(limit)))
    }

    async fn ask(&self, path: &'static str) -> Result<AdminResponse, AskError> {
        let authorization = self.token.authorization().await.map_err(AskError::Token)?;
        let (connection, host) = match &self.location {
            AdminLocation::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(AskError::Connect)?;
                (Connection::over(stream).await?, "localhost")
            }
            AdminLocation::Http(url) => {
                let tls = match (&url.server_name, &self.tls) {
                    (None, _) => None,
                    (Some(_), Some(tls)) => Some(tls.clone()),
                    (Some(_), None) => Some(ConnectorTls::of_system().map_err(AskError::Tls)?),
                };
                (Connection::open(url, tls.as_ref()).await?, &*url.authority)
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
) -> Result<AdminResponse, AskError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    // The authority of a URL is a valid value.
    headers.insert(header::HOST, HeaderValue::try_from(host).unwrap_or(HeaderValue::from_static("")));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    let sent = authorization.is_some();
    headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
    let (head, body) = connection.send(request).await.map_err(AskError::of_exchange)?.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE).cloned();
    let answer = AdminResponse { content_type, body, _connection: connection };
    match head.status {
        StatusCode::OK => Ok(answer),
        StatusCode::UNAUTHORIZED => Err(AskError::Unauthorized { sent }),
        status => Err(refusal(status, answer).await),
    }
}

/// A gateway says why in a problem document, or in one line for its probes.
async fn refusal(status: StatusCode, answer: AdminResponse) -> AskError {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    let (is_problem, is_text) = (answer.is("application/problem+json"), answer.is("text/plain"));
    let body = answer.whole(MAX_PROBLEM).await.unwrap_or_default();
    let detail = match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if is_problem => problem.detail,
        _ if is_text => String::from_utf8_lossy(&body).trim().to_owned(),
        _ => return AskError::NotAGateway,
    };
    AskError::Status(status, printable(&detail))
}

impl AdminResponse {
    pub fn is(&self, media_type: &str) -> bool {
        let named = self.content_type.as_ref().and_then(|value| value.to_str().ok());
        named
            .and_then(|named| named.split(';').next())
            .is_some_and(|named| named.trim().eq_ignore_ascii_case(media_type))
    }

    /// The next piece of the body; `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, AskError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(piece) = frame.map_err(AskError::Closed)?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The whole body, up to `most` bytes.
    ///
    /// # Errors
    /// When the body is longer, or the connection breaks.
    pub async fn whole(mut self, most: usize) -> Result<Vec<u8>, AskError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > most {
                return Err(AskError::TooLarge(most));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

#[derive(Debug)]
pub enum AskError {
    /// The token cannot be read.
    Token(io::Error),
    /// There is no connection.
    Connect(io::Error),
    /// The TLS handshake fails, or there are no authorities to trust.
    Tls(io::Error),
    /// The server does not speak HTTP.
    NotHttp(hyper::Error),
    /// The connection ends too early.
    Closed(hyper::Error),
    /// The token is wrong or missing.
    Unauthorized { sent: bool },
    /// Another status than 200, with the sentence of the gateway.
    Status(StatusCode, String),
    /// The server is no admin listener of a gateway.
    NotAGateway,
    /// The gateway has another version.
    OtherVersion(serde_json::Error),
    /// The answer is longer than this many bytes.
    TooLarge(usize),
    /// The answer takes longer than this.
    TimedOut(Duration),
}

impl AskError {
    pub(super) fn of_exchange(error: hyper::Error) -> Self {
        let is_of_system = matches!(error.source(), Some(source) if source.is::<io::Error>());
        if is_of_system || error.is_incomplete_message() { Self::Closed(error) } else { Self::NotHttp(error) }
    }
}

impl From<ConnectError> for AskError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Tcp(error) => Self::Connect(error),
            ConnectError::Tls(error) => Self::Tls(error),
            ConnectError::Http(error) => Self::of_exchange(error),
        }
    }
}

/// The text follows the address and a colon.
impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(error) => write!(f, "cannot read the token: {error}"),
            Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                f.write_str("nothing listens there: is the gateway running, and is this the `listen` of its [admin]?")
            }
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Tls(error) => write!(f, "the TLS handshake fails: {error}"),
            Self::NotHttp(error) => write!(f, "what answers there does not speak HTTP: {error}"),
            Self::Closed(error) => write!(f, "the connection was closed: {error}"),
            Self::Unauthorized { sent: true } => f.write_str("the token is not that of its [admin]"),
            Self::Unauthorized { sent: false } => {
                write!(f, "it needs the token of its [admin]: set {TOKEN_VARIABLE}, or use --token-file")
            }
            Self::Status(status, detail) if detail.is_empty() => write!(f, "it answers {}", status.as_u16()),
            Self::Status(status, detail) => write!(f, "it answers {}: {detail}", status.as_u16()),
            Self::NotAGateway => f.write_str("what answers there is not the admin listener of a gateway"),
            Self::OtherVersion(error) => {
                write!(f, "this version cannot read what it sends, so the gateway may have another version: {error}")
            }
            Self::TooLarge(most) => write!(f, "it sends more than {} MiB at once", most >> 20),
            Self::TimedOut(limit) => write!(f, "no answer within {}", humantime::format_duration(*limit)),
        }
    }
}

impl std::error::Error for AskError {}
