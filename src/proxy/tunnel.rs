//! A request that becomes a tunnel: its response, and its record, which is closed when the tunnel ends.
//!
//! What a client sends after its handshake stays unread until the upstream has accepted. An upstream that declines would take
//! it for a request, which no limit has seen.

mod copy;
mod handshake;

use http::{HeaderValue, Response, StatusCode, Version, header};

use crate::base::reason::Reason;
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};
use crate::server::{IncomingRequest, TunnelStream};
use crate::upstream::UpstreamTunnel;

use copy::{Side, TunnelEnd, copy};

pub(super) use copy::Waits;
pub(super) use handshake::{accepts, new_key};

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
    record.accepted_tunnel(response.status());
    request.tunnel = Some(Box::new(move |client| Box::pin(run(client, upstream, record, waits))));
    response.body_mut().content = ResponseContent::default();
}

async fn run(client: TunnelStream, upstream: UpstreamTunnel, mut record: RequestRecord, waits: Waits) {
    // The rest of `upstream` counts the request as in flight until the tunnel has ended.
    let UpstreamTunnel { peer, stream, .. } = upstream;
    match copy(client, stream, waits, |bytes| record.sent(bytes)).await {
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
