//! Finishes responses: the changes of a route to the headers of every response to one request (`response_headers`, then
//! `cors`), and answers of the gateway itself in the form that their receivers understand.

use std::mem;

use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::config::Scheme;
use crate::proxy::respond::cors::CorsHeaders;
use crate::proxy::respond::{self, LocalBody, LocalResponse, grpc};
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};
use crate::request::route::{CurrentChanges, RouteConditions, TemplateInput};

pub struct ResponseChanges<'r> {
    pub headers: Option<CurrentChanges<'r>>,
    cors: Option<CorsHeaders<'r>>,
    is_over_tls: bool,
}

impl<'r> ResponseChanges<'r> {
    #[expect(clippy::inline_always, reason = "most routes change nothing")]
    #[inline(always)]
    pub fn new(route: &'r CompiledRoute, request: RouteConditions<'_>, input: &TemplateInput<'_>) -> Self {
        Self {
            headers: route.response_headers.as_ref().map(|changes| changes.of(input)),
            cors: route.cors.as_ref().map(|cors| cors.headers(request.method, request.headers)),
            is_over_tls: request.scheme == Scheme::Https,
        }
    }

    /// The answer of `cors` to a preflight, with all its headers of CORS.
    pub fn preflight(&mut self, request: &HeaderMap) -> Option<LocalResponse> {
        self.cors.take().map(|cors| cors.policy.preflight(request))
    }

    pub fn apply<B>(&self, response: &mut Response<B>) {
        if let Some(changes) = &self.headers {
            changes.apply(response.headers_mut(), self.is_over_tls);
        }
        if let Some(cors) = &self.cors {
            cors.apply(response.headers_mut());
        }
    }
}

pub(super) fn fill(response: &mut Response<ObservedBody>, record: &RequestRecord, answer: LocalResponse) {
    let (head, body) = answer.into_parts();
    put(response, record, head.status, head.headers, &body);
}

#[expect(clippy::inline_always, reason = "a call would copy the headers")]
#[inline(always)]
fn put(
    response: &mut Response<ObservedBody>,
    record: &RequestRecord,
    status: StatusCode,
    headers: HeaderMap,
    body: &LocalBody,
) {
    *response.status_mut() = status;
    let before = mem::replace(response.headers_mut(), headers);
    if before.capacity() == 0 {
        // The map owns no memory, as mostly here. To drop its parts would find that out for each of them.
        mem::forget(before);
    }
    // They may be of a server's response, which this one replaces.
    response.extensions_mut().clear();
    let body = respond::identify(response.headers_mut(), body, &record.id);
    // The box of the body is reused.
    response.body_mut().content = ResponseContent::Own(body);
}

pub(super) struct Finish<'a, 'r> {
    pub(super) changes: Option<&'a ResponseChanges<'r>>,
    /// Of the request.
    pub(super) head: &'a Parts,
    /// By which a proxy that only asks learns that a limit refuses the request.
    pub(super) refused_status: Option<StatusCode>,
}

impl Finish<'_, '_> {
    pub(super) fn respond(
        self,
        response: &mut Response<ObservedBody>,
        record: RequestRecord,
        outcome: Outcome,
        answer: &LocalResponse,
    ) {
        put(response, &record, answer.status(), answer.headers().clone(), answer.body());
        self.end(response, record, outcome);
    }

    /// Finishes a response that is filled already, which may be a server's.
    pub(super) fn end(self, response: &mut Response<ObservedBody>, record: RequestRecord, outcome: Outcome) {
        if let Some(changes) = self.changes {
            changes.apply(response);
        }
        match self.refused_status {
            Some(status) if matches!(outcome, Outcome::Limited | Outcome::Silenced | Outcome::Blocked) => {
                *response.status_mut() = status;
            }
            // The proxy reads only the status, so it never gets the status of an answer in gRPC, 200.
            Some(_) => {}
            None => translate(response, outcome, self.head),
        }
        record.settle(outcome, response);
    }
}

/// Turns a failure to serve a gRPC call into the form that its client understands. Answers that a route specifies, and those
/// of a limit that hides itself, stay as they are.
fn translate(response: &mut Response<ObservedBody>, outcome: Outcome, head: &Parts) {
    if matches!(outcome, Outcome::Forwarded | Outcome::Responded | Outcome::Silenced) {
        return;
    }
    if let Some(kind) = grpc::content_type(&head.method, &head.headers)
        && let ResponseContent::Own(body) = &mut response.body_mut().content
    {
        let body = mem::take(body).into_inner().unwrap_or_default();
        let answer = mem::take(response).map(|_| body);
        *response =
            grpc::translate(answer, kind, outcome == Outcome::Limited).map(|body| ResponseContent::Own(body).into());
    }
}
