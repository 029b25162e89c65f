//! Why a request got no response from its upstream, and which status and text the client gets instead; why a body breaks off.

use std::io;
use std::time::Duration;

use http::StatusCode;
use rustix::io::Errno;

use super::resend::Ending;
use super::response_rules::BadHead;
use crate::base::body_gate::Exhausted;
use crate::base::reason::Reason;
use crate::server::ClientBodyError;

#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection was refused, the address is not reachable, or the name is unknown.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// This machine has no file handle or memory for another connection.
    #[error("this machine cannot open another connection: {0}")]
    Exhausted(io::Error),
    /// The TLS handshake failed: the server's certificate is not valid, or there is nothing that both sides accept.
    #[error("no TLS connection: {0}")]
    Tls(io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("closed before a response: {0}")]
    Closed(io::Error),
    /// What came instead of a valid response.
    #[error("sent {0}")]
    Bad(&'static str),
    /// Why the response is not valid.
    #[error("sent something that is not valid in HTTP/2: {0}")]
    BadHttp2(String),
    #[error("HTTP/2 cannot express the request")]
    NoHttp2,
    #[error("there are no servers")]
    NoEndpoint,
    #[error("each server has its maximum of requests in flight")]
    Overloaded,
    #[error("the client broke off: {0}")]
    Client(ClientBodyError),
    #[error("nothing of the request's body came for {0:?}")]
    BodyTimeout(Duration),
    #[error("the request's body is too large")]
    TooLarge,
    #[error("the request names more than 100 headers in Connection")]
    TooManyNamed,
    #[error("the client's deadline of {0:?} has passed")]
    Deadline(Duration),
}

impl From<BadHead> for UpstreamError {
    fn from(bad: BadHead) -> Self {
        Self::Bad(bad.0)
    }
}

impl UpstreamError {
    /// Why there is no connection to an address. `was_reached` says whether one succeeded before: a lack of this machine is not
    /// the server's fault.
    pub(super) fn of_connecting(error: io::Error, was_reached: bool) -> Self {
        const LACKS: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        let is_own = Errno::from_io_error(&error).is_some_and(|errno| {
            // Without IPv6, each IPv6 address gives ADDRNOTAVAIL, too. For an address that was reached, this machine lacks a
            // port.
            LACKS.contains(&errno) || (was_reached && errno == Errno::ADDRNOTAVAIL)
        });
        if is_own { Self::Exhausted(error) } else { Self::Connect(error) }
    }

    /// The same error for another request that has waited for the same attempt to connect.
    pub(super) fn of_another_request(&self) -> Self {
        let copy = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            Self::Exhausted(error) => Self::Exhausted(copy(error)),
            Self::Tls(error) => Self::Tls(copy(error)),
            Self::ConnectTimeout(limit) => Self::ConnectTimeout(*limit),
            Self::Closed(error) => Self::Closed(copy(error)),
            Self::BadHttp2(why) => Self::BadHttp2(why.clone()),
            Self::Connect(error) => Self::Connect(copy(error)),
            other => Self::Connect(io::Error::other(other.to_string())),
        }
    }

    pub fn reason(&self) -> Reason {
        match self {
            Self::Connect(_) | Self::NoEndpoint => Reason::Connect,
            Self::Overloaded => Reason::MaxInFlight,
            Self::Exhausted(_) => Reason::Exhausted,
            Self::Tls(_) => Reason::Tls,
            Self::ConnectTimeout(_) => Reason::ConnectTimeout,
            Self::Timeout(_) => Reason::Timeout,
            Self::Closed(_) => Reason::Closed,
            Self::Bad(_) | Self::BadHttp2(_) => Reason::BadResponse,
            Self::Client(error) => of_client(error),
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::TooLarge => Reason::MaxBodySize,
            Self::TooManyNamed | Self::NoHttp2 => Reason::BadHead,
            Self::Deadline(_) => Reason::GrpcTimeout,
        }
    }

    /// How an attempt ends with this error, as far as the error says it.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Connect(_) | Self::Tls(_) | Self::ConnectTimeout(_) => Ending::NotConnected,
            Self::Closed(_) | Self::Bad(_) | Self::BadHttp2(_) | Self::Timeout(_) => Ending::Unknown,
            _ => Ending::Final,
        }
    }

    /// 503 if there was no room, 504 if the upstream was too slow, 502 if it failed, and 4xx if the client failed.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(_) | Self::Tls(_) | Self::NoEndpoint | Self::Closed(_) | Self::Bad(_) | Self::BadHttp2(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::Overloaded | Self::Exhausted(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::ConnectTimeout(_) | Self::Timeout(_) | Self::Deadline(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Client(_) | Self::TooManyNamed | Self::NoHttp2 => StatusCode::BAD_REQUEST,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// Contains no address: only the log shows those.
    pub fn detail(&self) -> &'static str {
        match self {
            Self::Connect(_) => "The upstream server cannot be reached.",
            Self::Tls(_) => "The upstream server cannot be reached over a secure connection.",
            Self::Exhausted(_) => "The gateway cannot open another connection at the moment.",
            Self::NoEndpoint => "The upstream has no servers.",
            Self::Overloaded => "The upstream servers have too many requests at the moment.",
            Self::ConnectTimeout(_) => "The upstream server did not accept a connection in time.",
            Self::Timeout(_) => "The upstream server did not answer in time.",
            Self::Closed(_) => "The upstream server closed the connection before it answered.",
            Self::Bad(_) | Self::BadHttp2(_) => "The upstream server's answer is not a valid HTTP response.",
            Self::Client(_) => "The body of the request is not valid.",
            Self::BodyTimeout(_) => "The body of the request did not arrive in time.",
            Self::TooLarge => "The body of the request is too large.",
            Self::NoHttp2 => "The request cannot be sent in HTTP/2, which the upstream server speaks.",
            Self::TooManyNamed => "The Connection header names more than 100 headers.",
            Self::Deadline(_) => "The deadline of the call has passed.",
        }
    }
}

pub(super) struct Failed {
    pub(super) error: UpstreamError,
    pub(super) ending: Ending,
}

impl Failed {
    pub(super) fn to_connect(error: UpstreamError) -> Self {
        let is_own = error.ending() == Ending::Final;
        Self { error, ending: if is_own { Ending::Final } else { Ending::NotConnected } }
    }

    /// An exchange over HTTP/1.1 has failed. The connection `is_new` or has carried other requests.
    pub(super) fn over_http1(error: UpstreamError, is_new: bool) -> Self {
        let is_stale = !is_new && matches!(error, UpstreamError::Closed(_));
        Self { ending: if is_stale { Ending::Stale } else { error.ending() }, error }
    }
}

impl From<UpstreamError> for Failed {
    fn from(error: UpstreamError) -> Self {
        Self { ending: error.ending(), error }
    }
}

pub(super) enum RequestBodyError {
    Client(ClientBodyError),
    TooLarge,
    /// The upstream accepts no more. It may have sent a response.
    Upstream,
}

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("{0}")]
    Io(io::Error),
    #[error("the upstream closed the connection before the end of the body")]
    Truncated,
    /// The upstream has ended the stream in HTTP/2, or what it sends there is not valid.
    #[error("{0}")]
    Http2(h2::Error),
    #[error("the upstream's chunked coding is not valid")]
    NotChunked,
    #[error("nothing of the response's body came for {0:?}")]
    ReadTimeout(Duration),
    #[error("the client broke off: {0}")]
    Client(ClientBodyError),
    #[error("nothing of the request's body came for {0:?}")]
    BodyTimeout(Duration),
    #[error("the request's body is too large")]
    TooLarge,
    #[error("the client's deadline has passed")]
    Deadline,
    #[error("a limit has no room for more bytes")]
    Exhausted,
}

impl From<Exhausted> for BodyError {
    fn from(_: Exhausted) -> Self {
        Self::Exhausted
    }
}

fn of_client(error: &ClientBodyError) -> Reason {
    match error {
        ClientBodyError::Exhausted => Reason::BytesExhausted,
        ClientBodyError::Http1(_) | ClientBodyError::Http2(_) => Reason::BadBody,
    }
}

impl BodyError {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Http2(error) if error.is_library() => Reason::BadResponse,
            Self::Io(_) | Self::Truncated | Self::Http2(_) => Reason::Truncated,
            Self::NotChunked => Reason::BadResponse,
            Self::ReadTimeout(_) => Reason::ReadTimeout,
            Self::Client(error) => of_client(error),
            Self::Exhausted => Reason::BytesExhausted,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::TooLarge => Reason::MaxBodySize,
            Self::Deadline => Reason::GrpcTimeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_lacks_is_no_fault_of_a_server() {
        let is_own = |errno: Errno, was_reached| {
            matches!(UpstreamError::of_connecting(errno.into(), was_reached), UpstreamError::Exhausted(_))
        };
        for was_reached in [false, true] {
            assert!(is_own(Errno::MFILE, was_reached) && !is_own(Errno::CONNREFUSED, was_reached));
        }
        assert_eq!([false, true].map(|was_reached| is_own(Errno::ADDRNOTAVAIL, was_reached)), [false, true]);
    }
}
