//! Why a request failed: one word, the same in the access log and in the metrics.
//!
//! If a request exceeded a bound of the configuration, the word is the name of that key.

use crate::base::named::named;

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reason {
        /// No connection to the upstream.
        Connect = "connect",
        /// The TLS handshake with the upstream failed.
        Tls = "tls",
        /// The upstream did not accept the connection in time.
        ConnectTimeout = "connect_timeout",
        /// Each server of the upstream had its maximum of requests in flight.
        MaxInFlight = "max_in_flight",
        /// The head of the response did not arrive in time.
        Timeout = "timeout",
        /// The upstream closed the connection before it sent anything of a response.
        Closed = "closed",
        /// The upstream sent no valid response.
        BadResponse = "bad_response",
        /// The upstream paused in the middle of a response for too long.
        ReadTimeout = "read_timeout",
        /// The upstream's connection ended in the middle of a response.
        Truncated = "truncated",
        /// The machine of the gateway has no file handle or memory for another connection to an upstream.
        Exhausted = "exhausted",
        /// The client sent nothing of its body, or read nothing of the response, for too long.
        BodyTimeout = "body_timeout",
        /// The client's body is too large.
        MaxBodySize = "max_body_size",
        /// The client's body is larger than what the gateway reads of it before the decision.
        InspectBody = "inspect_body",
        /// Bodies that are read before the decision take too much memory, and this one takes most.
        InspectMemory = "inspect_memory",
        /// The client's body is not valid, or its connection ended in the middle of it.
        BadBody = "bad_body",
        /// Another proxy asks for a decision, but does not name one request, or names it in two ways.
        AskedRequest = "asked_request",
        /// The request has the key of a limit more than once, or in a spelling that servers read differently.
        AmbiguousKey = "ambiguous_key",
        /// The request lacks a valid token that a limit of its route requires.
        InvalidToken = "invalid_token",
        /// The client did not send a valid request head.
        BadHead = "bad_head",
        /// The request head is too large, or has too many fields.
        MaxHeaderSize = "max_header_size",
        /// The request head did not arrive in time.
        HeaderTimeout = "header_timeout",
        /// The client spoke HTTP without TLS on a TLS listener.
        PlainHttp = "plain_http",
        /// No byte passed through a tunnel for too long.
        TunnelIdleTimeout = "tunnel_idle_timeout",
        /// The client's time limit for a gRPC call was over.
        GrpcTimeout = "grpc_timeout",
        /// The key of the request is banned, because a limit has refused it too often.
        Banned = "banned",
        /// A stream has used all tokens that its limits allow.
        TokensExhausted = "tokens_exhausted",
        /// A body or a tunnel has used all bytes that its limits allow.
        BytesExhausted = "bytes_exhausted",
        /// The gateway itself has sent the request, more than once.
        Loop = "loop",
    }
}

impl Reason {
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
        assert!(Reason::ALL.iter().enumerate().all(|(place, reason)| *reason as usize == place));
    }
}
