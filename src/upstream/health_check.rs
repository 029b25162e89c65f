//! One check of an endpoint: a request that its server has to answer well, on a connection of its own.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Version, header};
use tokio::time::timeout;

use super::Upstream;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::outgoing_body::BodySource;
use super::pool::ConnectionPools;
use super::request::{ForwardedInfo, Progress, Timing, UpstreamRequest};
use crate::config::{HealthCheck, Scheme, UNLIMITED};
use crate::request::identify::ambiguity::SingleSources;

/// How the gateway calls itself.
const USER_AGENT: HeaderValue = HeaderValue::from_static("gateway-health-check");

/// Sends the request of a check. `None` if this machine cannot, which says nothing about the endpoint.
///
/// # Errors
/// In words, why the endpoint is not healthy.
pub(super) async fn check(
    upstream: &Upstream,
    endpoint: &Arc<Endpoint>,
    rules: &HealthCheck,
) -> Option<Result<(), String>> {
    let mut headers = HeaderMap::new();
    headers.insert(header::USER_AGENT, USER_AGENT);
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    let request = UpstreamRequest {
        method: &Method::GET,
        target: &rules.path,
        headers: &headers,
        preserve_host: false,
        forwarded: ForwardedInfo {
            peer: "127.0.0.1",
            client: None,
            trusted: false,
            version: Version::HTTP_11,
            scheme: Scheme::Http,
            header: None,
            certificate: None,
            origin: None,
        },
        counted: &Arc::new(SingleSources::new([], &[])),
        body_timeout: rules.timeout,
        max_body_size: UNLIMITED,
        asks_for_websocket: false,
        websocket_key: None,
        interim: None,
        client: None,
        // It is not measured.
        worker: 0,
        balanced_by: None,
        progress: &Progress::default(),
        timing: &Timing::new(false, &|_| {}),
        changes: None,
        timeout: None,
        call_timeout: None,
    };
    // No connection of other requests is used, and none is kept.
    let pools = Rc::new(ConnectionPools::default());
    let mut response = HeaderMap::new();
    let mut body = BodySource::new(None, None);
    let sent = async {
        let connection = upstream.open(&pools, endpoint, &request, false).await?;
        upstream.exchange(connection, endpoint, &pools, (&request, &[]), &mut body, &mut response).await
    };
    Some(match timeout(rules.timeout, sent).await {
        Ok(Ok((status, _))) if rules.statuses.iter().any(|good| good.contains(&status.as_u16())) => Ok(()),
        Ok(Ok((status, _))) => Err(format!("its status is {}", status.as_u16())),
        Ok(Err(Failed { error: UpstreamError::Exhausted(error), .. })) => {
            tracing::debug!(server = %endpoint, %error, "a server cannot be checked");
            return None;
        }
        Ok(Err(failed)) => Err(failed.error.to_string()),
        Err(_) => Err(format!("no answer within {:?}", rules.timeout)),
    })
}
