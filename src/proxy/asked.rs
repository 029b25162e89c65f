//! The request about which another proxy asks. It replaces the question, and passes all steps but the last one.

use http::{Response, StatusCode};

use super::ConnectionContext;
use crate::net::Traffic;
use crate::proxy::telemetry::ObservedBody;
use crate::request::forward_auth;
use crate::server::IncomingRequest;

/// The request about which `question` asks; `None` if `question` is a plain request, or is refused itself. The request has no
/// body, since proxies ask before they have read it. `response` refuses the request with `refused_status` until it is filled:
/// the proxy gets this where a client gets no answer.
pub(super) fn asked(
    connection: &ConnectionContext,
    refused_status: StatusCode,
    question: &IncomingRequest,
    response: &mut Response<ObservedBody>,
) -> Option<Box<IncomingRequest>> {
    if connection.traffic == Traffic::Requests || question.ambiguity.is_some() {
        return None;
    }
    *response.status_mut() = refused_status;
    let (head, ambiguity) = match forward_auth::read(&question.head) {
        Ok(head) => (head, None),
        Err(why) => (question.head.clone(), Some(why)),
    };
    let (body, asks_for_websocket, interim, tunnel, is_unanswered) = (None, false, None, None, false);
    Some(Box::new(IncomingRequest { head, body, ambiguity, asks_for_websocket, interim, tunnel, is_unanswered }))
}
