//! Serves gRPC calls: `envoy.service.ratelimit.v3.RateLimitService`, by which Envoy asks whether a request may pass, and
//! `grpc.health.v1.Health`.
//!
//! All descriptors of a call are one decision: either all their limits are charged, or none. A call that cannot be understood
//! fails, and Envoy then does what it is configured to do without a service (`failure_mode_deny`).

mod descriptors;

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode, Version};
use prost::Message;

use super::arrival::Arrival;
use super::deciding::{Decided, Deciding};
use super::finish::Finish;
use super::inspection::collect;
use super::{ConnectionContext, WorkerSnapshot, decided};
use crate::base::clock;
use crate::base::http::header_list;
use crate::base::http::request_id::{REQUEST_ID, RequestId};
use crate::base::http::trace_context::{TRACEPARENT_HEADER, TraceContext};
use crate::base::reason::Reason;
use crate::config::{Cost, Scheme};
use crate::net::Traffic;
use crate::proxy::respond::grpc::{self, Code, MessageBody};
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord, ResponseContent};
use crate::request::decide::{Asker, DecisionState, response_cost};
use crate::request::descriptors::messages::{HealthCheckRequest, HealthCheckResponse, RateLimitRequest, Serving};
use crate::request::forward_auth;
use crate::request::identify::RequestAttributes;
use crate::request::identify::client::Client;
use crate::request::resolve::Rejection;
use crate::server::{ClientBody, IncomingRequest, RequestGuard};

use descriptors::{Question, answer, too_large, unlimited};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
/// The services with a health check. The empty name is the whole server.
const SERVICES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];

/// The most bytes of a message. A call from Envoy has some hundred, unless a client enlarges it. A call that is too large is
/// answered with a refusal, since Envoy would let the request pass if the call failed.
const MOST_BYTES: u64 = 1 << 20;
/// The most descriptors of a call. Envoy's configuration decides how many there are.
const MOST_DESCRIPTORS: usize = 32;

/// Whether this is a gRPC call. A request that names a target asks in HTTP, and its other headers may be its client's.
pub(super) fn is_call(connection: &ConnectionContext, request: &IncomingRequest) -> bool {
    let IncomingRequest { head, ambiguity, .. } = request;
    connection.traffic == Traffic::Decisions
        && head.version == Version::HTTP_2
        && ambiguity.is_none()
        && grpc::is_message(&head.method, &head.headers)
        && !forward_auth::names_target(&head.headers)
}

pub(super) async fn serve(
    connection: &ConnectionContext,
    gateway: &Rc<WorkerSnapshot>,
    request: &mut IncomingRequest,
    response: &mut Response<ObservedBody>,
    guard: RequestGuard,
) {
    let (head, random) = (&request.head, &connection.worker.random);
    let [id, parent] = header_list::single_lines(&head.headers, [&REQUEST_ID, &TRACEPARENT_HEADER]);
    let trace = || TraceContext::of(parent, random, gateway.sampling(false));
    let host = head.uri.host().unwrap_or_default();
    let arrival = Arrival {
        connection,
        head,
        now: clock::now(),
        client: Client::of_peer(connection.peer),
        scheme: if connection.tls.is_some() { Scheme::Https } else { Scheme::Http },
        id: RequestId::of(id, random),
        is_head: false,
        via: Some("envoy"),
        guard,
    };
    let mut record = arrival.open(gateway, None, host, trace);
    let answered = match message(&mut request.body, gateway.body_timeout).await {
        Ok(message) => call(connection, gateway, head, message, &mut record).await,
        Err(Rejection { reason: Some(Reason::MaxBodySize), .. }) if head.uri.path() == SHOULD_RATE_LIMIT => {
            record.reason = Some(Reason::MaxBodySize);
            Ok((Outcome::Refused, written(&too_large())))
        }
        Err(why) => Err(refused(&why, &mut record)),
    };
    match answered {
        Ok((outcome, answer)) => {
            *response = answer;
            response.headers_mut().insert(REQUEST_ID, record.id.to_header());
            record.settle(outcome, response);
        }
        Err((outcome, answer)) => {
            Finish { changes: None, head, refused_status: None }.respond(response, record, outcome, &answer);
        }
    }
}

type Answered = Result<(Outcome, Response<ObservedBody>), (Outcome, LocalResponse)>;

async fn message(body: &mut Option<ClientBody>, limit: Option<Duration>) -> Result<Bytes, Rejection> {
    let Some(body) = body else { return Err(wrong("There is no message in the body.")) };
    let (body, _) = collect(body, MOST_BYTES, Reason::MaxBodySize, limit, None).await?;
    grpc::message_of(body).map_err(|(status, why)| Rejection { status, ..wrong(why) })
}

async fn call(
    connection: &ConnectionContext,
    gateway: &Rc<WorkerSnapshot>,
    head: &Parts,
    message: Bytes,
    record: &mut RequestRecord,
) -> Answered {
    match head.uri.path() {
        SHOULD_RATE_LIMIT => {
            let asked = decode::<RateLimitRequest>(message).and_then(|call| check(&call).map(|()| call));
            match asked {
                Ok(call) => decide(connection, gateway, head, &call, record).await,
                Err(why) => Err(refused(&why, record)),
            }
        }
        HEALTH => match decode::<HealthCheckRequest>(message) {
            Ok(HealthCheckRequest { service }) if SERVICES.contains(&&*service) => {
                let is_ready = connection.worker.readiness.is_ready();
                let status = if is_ready { Serving::Serving } else { Serving::NotServing }.into();
                Ok((Outcome::Responded, written(&HealthCheckResponse { status })))
            }
            Ok(_) => Ok(unknown(Code::NotFound, "This service is not known.")),
            Err(why) => Err(refused(&why, record)),
        },
        _ => Ok(unknown(Code::Unimplemented, "This procedure is not known.")),
    }
}

async fn decide(
    connection: &ConnectionContext,
    gateway: &Rc<WorkerSnapshot>,
    head: &Parts,
    call: &RateLimitRequest,
    record: &mut RequestRecord,
) -> Answered {
    let attributes = RequestAttributes {
        method: &head.method,
        host: "",
        path: head.uri.path(),
        query: None,
        headers: &head.headers,
        client: connection.peer,
        contradictory: &[],
        client_cert: None,
        tokens: &[],
        route: "",
        body: None,
        descriptors: &[],
    };
    let of_domain = gateway.descriptors.of_domain(&call.domain);
    // Its route is known only now.
    record.recorder = gateway.recorder(of_domain.map(|rule| gateway.rule_index(rule))).clone();
    let question = Question::new(gateway, call, &attributes);
    let Some(route) = question.limits.first().and_then(|asked| gateway.rule(asked.rule)) else {
        return Ok((Outcome::Responded, written(&unlimited(call))));
    };
    let limits = gateway.of_descriptors(&question.limits);
    let (now, mut quotas, of_elements) = (clock::now(), Default::default(), OnceCell::new());
    let attributes = RequestAttributes { descriptors: &question.descriptors, ..attributes };
    let mut state = DecisionState::new(&gateway.store, connection.worker.index);
    // Three quarters of the call's timeout, so the answer arrives in time.
    let longest_hold = grpc::timeout(&head.headers).map_or(Duration::MAX, |timeout| timeout * 3 / 4);
    let asker = Some(Asker { longest_hold });
    let deciding = Deciding { connection, gateway, route, limits: &limits, attributes, now, asker, is_shared: false };
    let decided = deciding.run(&mut None, &mut quotas, &of_elements, &mut state, record).await;
    // It may have waited for a store or a source of quotas.
    let now = clock::now();
    state.outcomes.extend(state.told.drain(..));
    let (outcome, refusing, told) = match decided {
        Decided::Passes(..) => {
            let cost_of = |charged: &Cost| response_cost(charged, StatusCode::OK, &head.headers);
            state.reservations.settle(cost_of, &mut state.outcomes, clock::now);
            let mut told = HeaderMap::new();
            limits.headers.add_headers(&mut told, &state.outcomes, &state.shadowed, now);
            (Outcome::Responded, None, respond::with_headers(StatusCode::OK, told))
        }
        Decided::Answered(outcome @ Outcome::Unavailable, answer, _) => {
            return Err((outcome, Rc::unwrap_or_clone(answer)));
        }
        Decided::Answered(outcome, answer, place) => (outcome, place, Rc::unwrap_or_clone(answer)),
        Decided::Unanswered(outcome, place) => (outcome, Some(place), respond::empty(StatusCode::TOO_MANY_REQUESTS)),
    };
    let told = respond::finish(told, &record.id);
    let answer = answer(&question, outcome == Outcome::Responded, refusing, &state, now, told);
    Ok((outcome, written(&answer)))
}

fn check(call: &RateLimitRequest) -> Result<(), Rejection> {
    match call.descriptors.len() {
        _ if call.domain.is_empty() => Err(wrong("The domain is empty.")),
        0 => Err(wrong("There are no descriptors.")),
        1..=MOST_DESCRIPTORS => Ok(()),
        _ => Err(wrong("There are more than 32 descriptors.")),
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Rejection> {
    M::decode(message).map_err(|_| wrong("The message is not one that this procedure takes."))
}

fn written(message: &impl Message) -> Response<ObservedBody> {
    MessageBody::response(message).map(|body| ResponseContent::Message(body).into())
}

fn unknown(code: Code, why: &'static str) -> (Outcome, Response<ObservedBody>) {
    (Outcome::Unrouted, grpc::failed(code, why).map(|body| ResponseContent::Own(body).into()))
}

fn wrong(why: &'static str) -> Rejection {
    Rejection::new(StatusCode::BAD_REQUEST, Reason::AskedRequest, why)
}

fn refused(why: &Rejection, record: &mut RequestRecord) -> (Outcome, LocalResponse) {
    (Outcome::Refused, decided::refused(why, record))
}
