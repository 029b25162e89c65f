//! Why a request failed: one word, the same in the access log and in the metrics.
//!
//! If a request exceeded a bound of the configuration, the word is the name of that key.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No connection to the upstream.
    Connect,
    /// The TLS handshake with the upstream failed.
    Tls,
    /// The upstream did not accept the connection in time.
    ConnectTimeout,
    /// Each server of the upstream had its maximum of requests in flight.
    MaxInFlight,
    /// The head of the response did not arrive in time.
    Timeout,
    /// The upstream closed the connection before it sent anything of a response.
    Closed,
    /// The upstream sent no valid response.
    BadResponse,
    /// The upstream paused in the middle of a response for too long.
    ReadTimeout,
    /// The upstream's connection ended in the middle of a response.
    Truncated,
    /// The machine of the gateway has no file handle or memory for another connection to an upstream.
    Exhausted,
    /// The client sent nothing of its body, or read nothing of the response, for too long.
    BodyTimeout,
    /// The client's body is too large.
    MaxBodySize,
    /// The client's body is larger than what the gateway reads of it before the decision.
    InspectBody,
    /// Bodies that are read before the decision take too much memory, and this one takes most.
    InspectMemory,
    /// The client's body is not valid, or its connection ended in the middle of it.
    BadBody,
    /// Another proxy asks for a decision, but does not name one request, or names it in two ways.
    AskedRequest,
    /// The request has the key of a limit more than once, or in a spelling that servers read differently.
    AmbiguousKey,
    /// The request lacks a valid token that a limit of its route requires.
    InvalidToken,
    /// The client did not send a valid request head.
    BadHead,
    /// The request head is too large, or has too many fields.
    MaxHeaderSize,
    /// The request head did not arrive in time.
    HeaderTimeout,
    /// The client spoke HTTP without TLS on a TLS listener.
    PlainHttp,
    /// No byte passed through a tunnel for too long.
    TunnelIdleTimeout,
    /// The client's time limit for a gRPC call was over.
    GrpcTimeout,
    /// The key of the request is banned, because a limit has refused it too often.
    Banned,
    /// A stream has used all tokens that its limits allow.
    TokensExhausted,
    /// A body or a tunnel has used all bytes that its limits allow.
    BytesExhausted,
    /// The gateway itself has sent the request, more than once.
    Loop,
}

impl Reason {
    /// In the order of the variants, with their names in logs and metrics.
    pub const ALL: [(Self, &'static str); 28] = [
        (Self::Connect, "connect"),
        (Self::Tls, "tls"),
        (Self::ConnectTimeout, "connect_timeout"),
        (Self::MaxInFlight, "max_in_flight"),
        (Self::Timeout, "timeout"),
        (Self::Closed, "closed"),
        (Self::BadResponse, "bad_response"),
        (Self::ReadTimeout, "read_timeout"),
        (Self::Truncated, "truncated"),
        (Self::Exhausted, "exhausted"),
        (Self::BodyTimeout, "body_timeout"),
        (Self::MaxBodySize, "max_body_size"),
        (Self::InspectBody, "inspect_body"),
        (Self::InspectMemory, "inspect_memory"),
        (Self::BadBody, "bad_body"),
        (Self::AskedRequest, "asked_request"),
        (Self::AmbiguousKey, "ambiguous_key"),
        (Self::InvalidToken, "invalid_token"),
        (Self::BadHead, "bad_head"),
        (Self::MaxHeaderSize, "max_header_size"),
        (Self::HeaderTimeout, "header_timeout"),
        (Self::PlainHttp, "plain_http"),
        (Self::TunnelIdleTimeout, "tunnel_idle_timeout"),
        (Self::GrpcTimeout, "grpc_timeout"),
        (Self::Banned, "banned"),
        (Self::TokensExhausted, "tokens_exhausted"),
        (Self::BytesExhausted, "bytes_exhausted"),
        (Self::Loop, "loop"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether the upstream, or the way to it, was the cause, not the client.
    pub fn is_upstreams(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Tls
                | Self::ConnectTimeout
                | Self::MaxInFlight
                | Self::Timeout
                | Self::Closed
                | Self::BadResponse
                | Self::ReadTimeout
                | Self::Truncated
                | Self::Exhausted
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_place() {
        assert!(Reason::ALL.iter().enumerate().all(|(place, (reason, _))| *reason as usize == place));
    }
}
