//! A request that becomes a tunnel: its response, and its record, which is closed when the tunnel ends.
//!
//! What a client sends after its handshake stays unread until the upstream has accepted. An upstream that declines would take
//! it for a request, which no limit has seen.

mod copy;

use std::task::{Context, Poll};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header};

use crate::base::reason::Reason;
use crate::proxy::byte_meter::Direction;
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};
use crate::server::{IncomingRequest, TunnelStream};
use crate::upstream::UpstreamTunnel;

use copy::{Side, TunnelEnd, copy};

pub(super) use copy::Waits;

/// A server appends this to the key before it hashes both (RFC 6455, section 1.3).
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Tells the client that its handshake is accepted. The tunnel begins when the response has been sent.
pub(super) fn begin(
    request: &mut IncomingRequest,
    response: &mut Response<ObservedBody>,
    mut record: RequestRecord,
    waits: Waits,
) {
    let upstream = match &mut response.body_mut().content {
        ResponseContent::Upstream(body) => body.take_tunnel(),
        ResponseContent::Own(_) | ResponseContent::Message(_) => None,
    };
    let Some(upstream) = upstream else { return record.settle(Outcome::Failed, response) };
    let headers = response.headers_mut();
    if request.head.version == Version::HTTP_2 {
        // RFC 8441, section 5.
        headers.remove(header::SEC_WEBSOCKET_ACCEPT);
        *response.status_mut() = StatusCode::OK;
    } else {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    record.status = Some(response.status());
    request.tunnel = Some(Box::new(move |client| Box::pin(run(client, upstream, record, waits))));
    response.body_mut().content = ResponseContent::default();
}

async fn run(client: TunnelStream, upstream: UpstreamTunnel, mut record: RequestRecord, waits: Waits) {
    // The rest of `upstream` counts the request as in flight until the tunnel has ended.
    let UpstreamTunnel { peer, stream, .. } = upstream;
    let meter = record.byte_meter().cloned();
    let pass = |cx: &mut Context<'_>, direction: Direction, bytes| match &meter {
        Some(meter) => meter.poll_pass(cx, direction, bytes),
        None => Poll::Ready(Ok(())),
    };
    match copy(client, stream, waits, pass, |bytes| record.sent(bytes)).await {
        TunnelEnd::Exhausted => {
            record.ended(Outcome::Limited);
            record.fail(Reason::BytesExhausted, &peer, &"a limit has no room for more bytes");
        }
        TunnelEnd::Closed => record.ended(Outcome::Tunneled),
        TunnelEnd::Failed(Side::Client, error) => tracing::debug!(%error, "the client's side of a tunnel failed"),
        TunnelEnd::Failed(Side::Upstream, error) => {
            record.ended(Outcome::Failed);
            record.fail(Reason::Truncated, &peer, &error);
        }
        TunnelEnd::Idle(limit) => {
            record.fail(Reason::TunnelIdleTimeout, &peer, &format_args!("nothing came for {limit:?}"));
        }
        TunnelEnd::Stalled(Side::Client, limit) => {
            record.fail(Reason::BodyTimeout, &peer, &format_args!("a tunnel waited {limit:?} for the client"));
        }
        TunnelEnd::Stalled(Side::Upstream, limit) => {
            record.ended(Outcome::Failed);
            record.fail(Reason::ReadTimeout, &peer, &format_args!("a tunnel waited {limit:?} for it"));
        }
    }
}

pub(super) fn new_key() -> String {
    // The key only shows that the server speaks WebSocket, so it need not be secret.
    STANDARD.encode(fastrand::u128(..).to_ne_bytes())
}

/// Whether these response headers answer a handshake with this key (RFC 6455, section 4.1).
pub(super) fn accepts(headers: &HeaderMap, key: &str) -> bool {
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{SUFFIX}").as_bytes()));
    headers.get(header::SEC_WEBSOCKET_ACCEPT).is_some_and(|found| found.as_bytes() == accept.as_bytes())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_example_of_the_standard_is_accepted() {
        let answer = |accept| HeaderMap::from_iter([(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept))]);
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        assert!(accepts(&answer("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), key));
        assert!(!accepts(&answer("s3pPLMBiTxaQ9kYGzzhZRbK+xO0="), key) && !accepts(&HeaderMap::new(), key));
        let keys = [new_key(), new_key()];
        assert!(keys[0] != keys[1] && keys[0].len() == 24);
    }
}
