//! Why a request got no response from its upstream, and which status and text the client gets instead.

use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use crate::reason::Reason;

/// Why there is no response.
#[derive(Debug)]
pub enum UpstreamError {
    /// The connection was refused, the address is not reachable, or the name is unknown.
    Connect(io::Error),
    /// The TLS handshake failed: the server's certificate is not valid, or there is nothing that both sides accept.
    Tls(io::Error),
    /// There was no connection within this time.
    ConnectTimeout(Duration),
    /// No head of a response came within this time.
    Timeout(Duration),
    /// The connection ended before a byte of a response came.
    Closed(io::Error),
    /// The upstream has sent this instead of a valid response.
    Bad(&'static str),
    /// The upstream has no endpoints.
    NoEndpoint,
    /// The client broke off while it sent its body.
    Client(hyper::Error),
    /// The client sent nothing of an incomplete body for this time.
    BodyTimeout(Duration),
    /// The client's body is larger than it may be.
    TooLarge,
    /// The client's Connection header names too many headers.
    TooManyNamed,
}

impl UpstreamError {
    /// The reason for logs and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Connect(_) | Self::NoEndpoint => Reason::Connect,
            Self::Tls(_) => Reason::Tls,
            Self::ConnectTimeout(_) => Reason::ConnectTimeout,
            Self::Timeout(_) => Reason::Timeout,
            Self::Closed(_) => Reason::Closed,
            Self::Bad(_) => Reason::BadResponse,
            Self::Client(_) => Reason::BadBody,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::TooLarge => Reason::MaxBodySize,
            Self::TooManyNamed => Reason::BadHead,
        }
    }

    /// The status for the client: 504 if the upstream was too slow, 502 if it failed, and 4xx if the client failed.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(_) | Self::Tls(_) | Self::NoEndpoint | Self::Closed(_) | Self::Bad(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::ConnectTimeout(_) | Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Client(_) | Self::TooManyNamed => StatusCode::BAD_REQUEST,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// The text for the client. It contains no address, which only the log shows.
    pub fn detail(&self) -> &'static str {
        match self {
            Self::Connect(_) => "The upstream server cannot be reached.",
            Self::Tls(_) => "The upstream server cannot be reached over a secure connection.",
            Self::NoEndpoint => "The upstream has no servers.",
            Self::ConnectTimeout(_) => "The upstream server did not accept a connection in time.",
            Self::Timeout(_) => "The upstream server did not answer in time.",
            Self::Closed(_) => "The upstream server closed the connection before it answered.",
            Self::Bad(_) => "The upstream server's answer is not a valid HTTP response.",
            Self::Client(_) => "The body of the request is not valid.",
            Self::BodyTimeout(_) => "The body of the request did not arrive in time.",
            Self::TooLarge => "The body of the request is too large.",
            Self::TooManyNamed => "The Connection header names more than 100 headers.",
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Tls(error) => write!(f, "no TLS connection: {error}"),
            Self::ConnectTimeout(limit) => write!(f, "no connection within {limit:?}"),
            Self::Timeout(limit) => write!(f, "no response within {limit:?}"),
            Self::Closed(error) => write!(f, "closed before a response: {error}"),
            Self::Bad(bad) => write!(f, "sent {bad}"),
            Self::NoEndpoint => f.write_str("there are no servers"),
            Self::Client(error) => write!(f, "the client broke off: {error}"),
            Self::BodyTimeout(limit) => write!(f, "nothing of the request's body came for {limit:?}"),
            Self::TooLarge => f.write_str("the request's body is too large"),
            Self::TooManyNamed => f.write_str("the request names more than 100 headers in Connection"),
        }
    }
}
