//! Why an admin listener gives no usable answer.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use super::token::TOKEN_VARIABLE;
use crate::net::fetch::ConnectError;

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
