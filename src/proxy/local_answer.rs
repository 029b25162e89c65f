//! Answers that the gateway itself gives to requests, in the form that those who get them understand.

use http::request::Parts;
use http::{Response, StatusCode};

use super::ResponseChanges;
use crate::proxy::respond::{self, LocalResponse, grpc};
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};

/// Writes an answer of the gateway itself to this request into its place.
pub(super) fn fill(response: &mut Response<ObservedBody>, record: &RequestRecord, answer: LocalResponse) {
    let (head, body) = respond::finish(answer, record.request_id()).into_parts();
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    *response.extensions_mut() = head.extensions;
    // The box of the body is used again.
    response.body_mut().content = ResponseContent::Own(body);
}

/// By what the response to one request is finished.
pub(super) struct Finish<'a, 'r> {
    changes: Option<&'a ResponseChanges<'r>>,
    head: &'a Parts,
    refused_status: Option<StatusCode>,
}

impl<'a, 'r> Finish<'a, 'r> {
    /// For the request with this head. The route that takes it, if one does, makes these changes of the headers. Another proxy
    /// that only asks about it is told by the `refused_status` that a limit refuses it.
    pub(super) fn new(
        changes: Option<&'a ResponseChanges<'r>>,
        head: &'a Parts,
        refused_status: Option<StatusCode>,
    ) -> Self {
        Self { changes, head, refused_status }
    }

    /// Answers the request.
    pub(super) fn respond(
        self,
        response: &mut Response<ObservedBody>,
        record: RequestRecord,
        outcome: Outcome,
        answer: LocalResponse,
    ) {
        fill(response, &record, answer);
        self.end(response, record, outcome);
    }

    /// The same for a response that is in its place, which may be a server's.
    pub(super) fn end(self, response: &mut Response<ObservedBody>, record: RequestRecord, outcome: Outcome) {
        if let Some(changes) = self.changes {
            changes.apply(response);
        }
        match self.refused_status {
            Some(status) if matches!(outcome, Outcome::Limited | Outcome::Silenced | Outcome::Blocked) => {
                *response.status_mut() = status;
            }
            // The status has to tell everything, so it is never that of an answer in gRPC, 200.
            Some(_) => {}
            None => translate(response, outcome, self.head),
        }
        record.settle(outcome, response);
    }
}

/// Gives a failure to serve a gRPC call the form that its client understands. A route has said itself what it answers, and so
/// has a limit that does not show that it exists.
fn translate(response: &mut Response<ObservedBody>, outcome: Outcome, head: &Parts) {
    if matches!(outcome, Outcome::Forwarded | Outcome::Responded | Outcome::Silenced) {
        return;
    }
    if let Some(kind) = grpc::content_type(&head.method, &head.headers)
        && let ResponseContent::Own(body) = &mut response.body_mut().content
    {
        let body = std::mem::take(body).into_inner().unwrap_or_default();
        let answer = std::mem::take(response).map(|_| body);
        *response = grpc::translate(answer, kind, outcome == Outcome::Limited).map(ObservedBody::from);
    }
}
