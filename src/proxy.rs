//! Passes one request through the steps, in order. Start reading here.

pub mod shed;
pub mod respond;
pub mod telemetry;
pub mod log;
mod own_origins;
pub mod snapshot;
mod worker_snapshot;
mod body_memory;
mod inspection;
mod token_meter;
mod metering;
mod arrival;
mod asked;
mod envoy;
mod challenge;
mod local_answer;
mod decided;
mod quotas;
mod response_changes;
mod tunnel;
mod forward;
mod refusal;
mod priority;
mod deciding;
mod target;

use std::cell::{LazyCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Response, StatusCode, Uri};
use http_body::Body;

use crate::base::clock::{self, Time};
use crate::base::http::header_list;
use crate::base::http::request_id::{REQUEST_ID, RequestId};
use crate::base::http::trace_context::{TRACEPARENT_HEADER, TraceContext};
use crate::base::random::Random;
use crate::base::readiness::Readiness;
use crate::config::{AccessLog, PathRules, Redirect};
use crate::net::Traffic;
use crate::net::tls::ClientCertificate;
use crate::request::decide::{self, Asker, CostKnown, Decision, DecisionState, RouteLimit};
use crate::request::identify::client::Client;
use crate::request::identify::tokens::TokenCache;
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::request::resolve::{ArrivedRequest, NextStep, Resolved, Resolver, Target};
use crate::request::route::{RouteConditions, TemplateInput};
use crate::server::{ClientBody, ConnectedClient, Handler, HeadError, IncomingRequest, RequestGuard, TlsPeer};
use crate::sources::acme::Challenges;
use crate::upstream::{BoundConnections, ConnectionPools};

use respond::LocalResponse;
use respond::rate_limit_headers::RefusalCache;
use respond::redirect::{self, RedirectedRequest};
use snapshot::{Action, CompiledRoute, Forwarding};
use telemetry::{AccessLogEntry, MethodClass, ObservedBody, Outcome, RequestEnd, RequestRecord};

pub use body_memory::BodyMemory;
pub use decided::settle;
pub use inspection::read as read_body;
pub use response_changes::ResponseChanges;
pub use worker_snapshot::{WorkerSnapshot, WorkerSnapshots};

use arrival::Arrival;
use asked::asked;
use deciding::{Decided, Deciding};
use forward::UpstreamCall;
use local_answer::{Finish, fill};
use tunnel::Waits;

pub struct Worker {
    pub index: usize,
    pub snapshots: WorkerSnapshots,
    pub pools: Rc<ConnectionPools>,
    pub tokens: RefCell<TokenCache>,
    /// For bodies that are read before the decision.
    pub body_memory: BodyMemory,
    pub random: Random,
    pub challenges: Arc<Challenges>,
    /// Whether load balancers should send requests.
    pub readiness: Arc<Readiness>,
}

/// What the requests of one connection share: the peer, the worker, and caches from the last request.
pub struct ConnectionContext {
    worker: Rc<Worker>,
    peer: IpAddr,
    port: u16,
    /// The peer's address as text, which is sent to upstreams with every request.
    address: String,
    tls: Option<Rc<TlsPeer>>,
    traffic: Traffic,
    key_cache: RefCell<KeyCache>,
    refusal_cache: RefCell<RefusalCache>,
    /// Connections to servers that only this connection uses.
    bound: Rc<BoundConnections>,
}

impl ConnectionContext {
    pub fn new(worker: Rc<Worker>, client: &ConnectedClient) -> Self {
        let peer = client.address.ip().to_canonical();
        Self {
            worker,
            peer,
            port: client.address.port(),
            address: peer.to_string(),
            tls: client.tls.clone(),
            traffic: client.traffic,
            key_cache: RefCell::default(),
            refusal_cache: RefCell::default(),
            bound: Rc::default(),
        }
    }
}

impl ConnectionContext {
    fn certificate(&self) -> Option<&ClientCertificate> {
        self.tls.as_ref()?.certificate.as_ref()
    }

    /// How other proxies ask on this connection; `None` if it carries plain requests.
    fn via(&self) -> Option<&'static str> {
        match self.traffic {
            Traffic::Requests => None,
            Traffic::Decisions => Some("http"),
        }
    }

    /// A request on this connection, or one about which its peer asks. The TLS of that peer says nothing about its clients.
    fn arrived<'a>(
        &'a self,
        head: &'a Parts,
        body: Option<&ClientBody>,
        ambiguity: Option<&'static str>,
        is_asked: bool,
    ) -> ArrivedRequest<'a> {
        let certificate = self.certificate().filter(|_| !is_asked);
        ArrivedRequest {
            head,
            peer: self.peer,
            uses_tls: self.tls.is_some() && !is_asked,
            client_cert: certificate.map(|certificate| certificate.subject.as_str()),
            body: body.map(|body| body.size_hint().lower()),
            ambiguity,
            is_asked,
        }
    }
}

impl Handler for ConnectionContext {
    type Body = ObservedBody;

    fn handle(
        &self,
        request: &mut IncomingRequest,
        response: &mut Response<ObservedBody>,
        guard: RequestGuard,
    ) -> impl Future<Output = ()> {
        serve(self, request, response, guard)
    }

    fn refused(&self, refusal: &HeadError) -> Vec<u8> {
        let HeadError { status, reason, took } = *refusal;
        let gateway = self.worker.snapshots.current();
        // The headers are unknown, so the client is the peer.
        let entry = (gateway.access_log != AccessLog::Off)
            .then(|| AccessLogEntry { via: self.via(), ..AccessLogEntry::new(self.peer) });
        let (method, outcome) = (MethodClass::Other, Outcome::Refused);
        let (now, micros) = (clock::now(), clock::micros(took));
        let end = RequestEnd { method, outcome, reason: Some(reason), status: Some(status), at: now, micros };
        let id = RequestId::new(&self.worker.random);
        gateway.recorder(None).close(end, &id, entry.as_ref());
        respond::bad_head(status, reason, &id, now)
    }
}

async fn serve(
    connection: &ConnectionContext,
    request: &mut IncomingRequest,
    response: &mut Response<ObservedBody>,
    guard: RequestGuard,
) {
    let (worker, now) = (&*connection.worker, clock::now());
    let gateway = worker.snapshots.current();
    if envoy::is_call(connection, request) {
        return Box::pin(envoy::serve(connection, &gateway, request, response, guard)).await;
    }
    let is_head = request.head.method == Method::HEAD;
    let mut asked = asked(connection, gateway.refused_status, request, response);
    let refused_status = asked.as_ref().map(|_| gateway.refused_status);
    let request = asked.as_deref_mut().unwrap_or(request);
    let IncomingRequest { head, body, ambiguity, .. } = &mut *request;
    let head = &*head;
    let received = connection.arrived(head, body.as_ref(), *ambiguity, refused_status.is_some());
    let Resolved { client, scheme, target, route, next } = gateway.resolver.resolve(received);
    let (challenge, route) = challenge::token(connection, head).map_or((None, route), |token| (Some(token), None));
    let [id, parent] = header_list::single_lines(&head.headers, [&REQUEST_ID, &TRACEPARENT_HEADER]);
    // Lazy because most refusals need no trace.
    let trace = LazyCell::new(|| TraceContext::of(parent, &worker.random, gateway.sampling(client.via_trusted)));
    let via = connection.via();
    let arrival =
        Arrival { connection, head, now, client, scheme, id: RequestId::of(id, &worker.random), is_head, via, guard };
    let mut record = arrival.open(&gateway, route, &target.host, || *trace);
    let conditions = RouteConditions { method: &head.method, headers: &head.headers, scheme };
    let Some(route) = route.and_then(|index| gateway.served.get(index)) else {
        let challenge = challenge.map(|token| (token, &*worker.challenges));
        let (outcome, answer) =
            without_route(challenge, next, &gateway.resolver, &target, conditions, &mut record).await;
        return Finish::new(None, head, refused_status).respond(response, record, outcome, answer);
    };

    let mut changes = ResponseChanges::new(route, conditions, &template_input(client, &target, record.request_id()));
    match next {
        NextStep::Refuse(why) => {
            let answer = refusal::answer(&why, &mut record);
            return Finish::new(Some(&changes), head, refused_status).respond(
                response,
                record,
                Outcome::Refused,
                answer,
            );
        }
        NextStep::Preflight => {
            if let Some(answer) = changes.preflight(&head.headers) {
                return Finish::new(Some(&changes), head, None).respond(response, record, Outcome::Responded, answer);
            }
        }
        NextStep::Unrouted | NextStep::Decide => {}
    }
    let attributes = received.attributes(client, &target, &route.metrics.name);
    // Declared here because the decision borrows them.
    let mut quotas = Default::default();
    let mut state = DecisionState::new(&gateway.store, worker.index);
    let (gate, is_shared) = (refused_status.map(|_| Asker { longest_hold: Duration::MAX }), client.via_trusted);
    let deciding = Deciding { connection, gateway: &gateway, route, attributes, now, asker: gate, is_shared };
    let (balanced_by, metered) = match deciding.run(body, &mut quotas, &mut state, &mut record).await {
        Decided::Passes(balanced_by, metered) => (balanced_by, metered),
        Decided::Answered(outcome, answer, _) => {
            return Finish::new(Some(&changes), head, refused_status).respond(response, record, outcome, answer);
        }
        Decided::Unanswered(outcome, _) => {
            record.ended(outcome);
            request.is_unanswered = true;
            return;
        }
    };
    record.hold(&mut state.permits);

    let (outcome, cost) = match &route.action {
        // Another proxy forwards the request, and its cost never becomes known.
        _ if refused_status.is_some() => {
            fill(response, &record, respond::empty(StatusCode::OK));
            (Outcome::Responded, CostKnown::Never)
        }
        Action::Respond { status, body, content_type } => {
            fill(response, &record, respond::with_body(*status, content_type.clone(), body.clone()));
            (Outcome::Responded, CostKnown::FromResponse)
        }
        Action::Redirect(redirect) => {
            let (outcome, answer) = redirected(redirect, &target, &head.uri, gateway.resolver.paths);
            fill(response, &record, answer);
            (outcome, CostKnown::FromResponse)
        }
        Action::Forward(forwarding) => {
            let input = template_input(client, &target, record.request_id());
            let request_headers = route.request_headers.as_ref().map(|changes| changes.of(&input));
            drop(target);
            let (gateway, changes, trace) = (&gateway, (request_headers.as_deref(), changes.headers()), *trace);
            if let Some(metered) = &metered {
                inspection::adapt(&mut request.head, metered.hides_usage);
            }
            let call =
                UpstreamCall { gateway, route, forwarding, changes, connection, client, scheme, trace, balanced_by };
            call.forward(request, &mut record, response).await
        }
    };
    settle(route, cost, response.status(), response.headers_mut(), &mut state, clock::now);
    metering::begin(&gateway, route, metered, cost, &mut state, &mut record, response);
    if let (StatusCode::SWITCHING_PROTOCOLS, Action::Forward(Forwarding { upstream, .. })) =
        (response.status(), &route.action)
    {
        changes.apply(response);
        return tunnel::begin(request, response, record, Waits::new(upstream, route.body_timeout));
    }
    Finish::new(Some(&changes), &request.head, refused_status).end(response, record, outcome);
}

/// The answer to a request that no route takes, or to the challenge of a certificate authority.
async fn without_route(
    challenge: Option<(&str, &Challenges)>,
    next: NextStep,
    resolver: &Resolver,
    target: &Target<'_>,
    conditions: RouteConditions<'_>,
    record: &mut RequestRecord,
) -> (Outcome, LocalResponse) {
    if let Some((token, challenges)) = challenge {
        return challenge::answer(challenges, &target.host, token).await;
    }
    match next {
        NextStep::Refuse(why) => (Outcome::Refused, refusal::answer(&why, record)),
        NextStep::Unrouted | NextStep::Preflight | NextStep::Decide => {
            let allowed = resolver.routes.allowed(&target.host, &target.path, conditions);
            (Outcome::Unrouted, respond::unrouted(&allowed))
        }
    }
}

/// The parts of a request that values of headers can contain.
fn template_input<'a>(client: Client, target: &'a Target<'_>, id: &'a RequestId) -> TemplateInput<'a> {
    TemplateInput { client_ip: client.address, host: &target.host, path: &target.path, request_id: id.as_bytes() }
}

pub fn redirected(redirect: &Redirect, target: &Target<'_>, uri: &Uri, rules: PathRules) -> (Outcome, LocalResponse) {
    let request = RedirectedRequest { host: &target.host, path: &target.path, uri, rules };
    match redirect::location(redirect, &request) {
        Some(location) => (Outcome::Responded, respond::redirection(redirect.status, location)),
        None => {
            let why = "The request names no host, which the redirect needs.";
            (Outcome::Refused, respond::problem(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// The response to a request that its limits do not admit. `now` is when they were asked.
pub fn refuse(
    route: &CompiledRoute,
    decision: Decision,
    state: &mut DecisionState<'_>,
    attributes: &RequestAttributes<'_>,
    now: Time,
    last: &mut RefusalCache,
) -> LocalResponse {
    let answer = refusal(route, decision, state, attributes, state.now(now), last);
    // The charge of a request whose token proved invalid stays, as the response says.
    state.reservations.settle(answer.status(), answer.headers(), &mut [], clock::now);
    answer
}

fn refusal(
    route: &CompiledRoute,
    decision: Decision,
    state: &DecisionState<'_>,
    attributes: &RequestAttributes<'_>,
    now: Time,
    last: &mut RefusalCache,
) -> LocalResponse {
    let told = &route.rate_limit_headers;
    match decision {
        Decision::Rejected => told.reject(&state.outcomes, now, last),
        Decision::Silenced(place) => told.silence(place),
        Decision::TooCostly { place, most } => {
            let of_descriptor = attributes.descriptors.get(place).map(|descriptor| descriptor.hits.to_string());
            let stated = |limit: &RouteLimit| decide::stated_cost(&limit.cost, attributes.headers);
            let cost = of_descriptor.or_else(|| route.limits.get(place).map(stated));
            told.too_costly(place, &cost.unwrap_or_default(), most)
        }
        Decision::Blocked(place) => told.blocked(place),
        Decision::Banned { place, until, .. } => told.banned(place, until, &state.outcomes, now, last),
        Decision::NoKey(place) => told.keyless(place),
        Decision::Admitted | Decision::Unknown => told.unknown(),
    }
}
