//! Why a request did not end well: one word, the same in the access log and in the metrics.
//!
//! Where a limit of the configuration was met, the word is the name of its key.

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The upstream could not be connected to.
    Connect,
    /// The upstream did not take the connection in time.
    ConnectTimeout,
    /// The head of the response did not come in time.
    Timeout,
    /// The upstream closed the connection before anything of a response came.
    Closed,
    /// What the upstream sent is not a valid response.
    BadResponse,
    /// The upstream sent nothing more of a response for too long.
    ReadTimeout,
    /// The upstream's connection ended in the middle of a response.
    Truncated,
    /// The client sent nothing more of its body, or took nothing of the response, for too long.
    BodyTimeout,
    /// The client's body is larger than it may be.
    MaxBodySize,
    /// The client's body is not valid, or its connection ended in the middle of it.
    BadBody,
    /// The client gave what a limit decides by more than once, or spelled it so that servers read it differently.
    AmbiguousKey,
    /// What the client sent is no head of a request.
    BadHead,
    /// The head of the request is too large, or has too many fields.
    MaxHeaderSize,
    /// The head of the request did not come in time.
    HeaderTimeout,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 14] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Timeout,
        Self::Closed,
        Self::BadResponse,
        Self::ReadTimeout,
        Self::Truncated,
        Self::BodyTimeout,
        Self::MaxBodySize,
        Self::BadBody,
        Self::AmbiguousKey,
        Self::BadHead,
        Self::MaxHeaderSize,
        Self::HeaderTimeout,
    ];

    /// As logs and metrics say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::BadResponse => "bad_response",
            Self::ReadTimeout => "read_timeout",
            Self::Truncated => "truncated",
            Self::BodyTimeout => "body_timeout",
            Self::MaxBodySize => "max_body_size",
            Self::BadBody => "bad_body",
            Self::AmbiguousKey => "ambiguous_key",
            Self::BadHead => "bad_head",
            Self::MaxHeaderSize => "max_header_size",
            Self::HeaderTimeout => "header_timeout",
        }
    }

    /// Whether it is the upstream's doing rather than the client's.
    pub fn is_upstreams(self) -> bool {
        match self {
            Self::Connect
            | Self::ConnectTimeout
            | Self::Timeout
            | Self::Closed
            | Self::BadResponse
            | Self::ReadTimeout
            | Self::Truncated => true,
            Self::BodyTimeout
            | Self::MaxBodySize
            | Self::BadBody
            | Self::AmbiguousKey
            | Self::BadHead
            | Self::MaxHeaderSize
            | Self::HeaderTimeout => false,
        }
    }
}
