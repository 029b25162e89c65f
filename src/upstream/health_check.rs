//! One check of an endpoint: a request that its server has to answer well, on a connection of its own.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, header};
use tokio::time::timeout;

use super::Upstream;
use super::delivery::{Connections, Delivery};
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::outgoing_body::BodySource;
use super::request::{ForwardedInfo, Progress, RequestHead, UpstreamRequest};
use crate::config::HealthCheck;

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
    let head = RequestHead {
        method: &Method::GET,
        target: &rules.path,
        headers: &headers,
        preserve_host: false,
        forwarded: ForwardedInfo::OWN,
        changes: None,
        asks_for_websocket: false,
    };
    let progress = Progress::default();
    let request =
        UpstreamRequest { head, body: None, timeout: None, client: None, response_changes: None, progress: &progress };
    // No connection of other requests is used, and none is kept.
    let connections = Connections { pools: &Rc::default(), bound: &Rc::default() };
    let delivery = Delivery { upstream, connections, request: &request };
    let (mut response, mut body) = (HeaderMap::new(), BodySource::new(None, None));
    let sent = async {
        let connection = delivery.open(endpoint).await?;
        delivery.exchange(connection, endpoint, None, &[], &mut body, &mut response).await
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
