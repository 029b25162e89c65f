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
mod byte_meter;
mod arrival;
mod envoy;
mod decided;
mod finish;
mod tunnel;
mod forward;
mod deciding;

use std::cell::{LazyCell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use http_body::Body;

use crate::base::clock;
use crate::base::http::header_list;
use crate::base::http::request_id::{REQUEST_ID, RequestId};
use crate::base::http::trace_context::{TRACEPARENT_HEADER, TraceContext};
use crate::base::random::Random;
use crate::base::readiness::Readiness;
use crate::config::{AccessLog, Challenge, PathRules, Redirect};
use crate::net::Traffic;
use crate::net::tls::ClientCertificate;
use crate::request::decide::{Asker, CostKnown, DecisionState};
use crate::request::identify::KeyCache;
use crate::request::identify::client::Client;
use crate::request::identify::tokens::TokenCache;
use crate::request::resolve::{ArrivedRequest, NextStep, Resolved, Resolver, Target};
use crate::request::route::{RouteConditions, TemplateInput};
use crate::server::{ClientBody, ConnectedClient, Handler, HeadError, IncomingRequest, RequestGuard, TlsPeer};
use crate::sources::acme::Challenges;
use crate::upstream::{BoundConnections, ConnectionPools};

use respond::rate_limit_headers::RefusalCache;
use respond::{LocalResponse, redirect};
use snapshot::{Action, Forwarding};
use telemetry::{AccessLogEntry, MethodClass, ObservedBody, Outcome, RequestEnd, RequestRecord};

pub use body_memory::BodyMemory;
pub use decided::{refuse, settle};
pub use finish::ResponseChanges;
pub use inspection::read as read_body;
pub use worker_snapshot::{WorkerSnapshot, WorkerSnapshots};

use arrival::{Arrival, asked};
use byte_meter::ByteMeter;
use decided::{meter, refused, without_room};
use deciding::{Decided, Deciding};
use finish::{Finish, fill};
use forward::UpstreamCall;
use tunnel::Waits;

/// The path before the token of a challenge, as the certificate authority sends it (http-01, RFC 8555, section 8.3). Other
/// spellings are not challenges.
const CHALLENGES: &str = "/.well-known/acme-challenge/";
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

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
            client_cert: certificate.and_then(|certificate| certificate.subject.as_deref()),
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
    let (is_head, via) = (request.head.method == Method::HEAD, connection.via());
    let mut asked = asked(connection, &gateway, request, response);
    let refused_status = asked.as_ref().map(|_| gateway.refused_status);
    let request = asked.as_deref_mut().unwrap_or(request);
    let (head, body, ambiguity) = (&request.head, &mut request.body, request.ambiguity);
    let received = connection.arrived(head, body.as_ref(), ambiguity, refused_status.is_some());
    // The target and the next step are used where they are, since moving them would cost more than to read them.
    let resolved = gateway.resolver.resolve(received);
    let Resolved { client, scheme, ref target, route, .. } = resolved;
    let (challenge, route) = challenge_token(connection, head).map_or((None, route), |token| (Some(token), None));
    let [id, parent] = header_list::single_lines(&head.headers, [&REQUEST_ID, &TRACEPARENT_HEADER]);
    // Lazy because most refusals need no trace.
    let trace = LazyCell::new(|| TraceContext::of(parent, &worker.random, gateway.sampling(client.via_trusted)));
    let arrival =
        Arrival { connection, head, now, client, scheme, id: RequestId::of(id, &worker.random), is_head, via, guard };
    let mut record = arrival.open(&gateway, route, &target.host, || *trace);
    let conditions = RouteConditions { method: &head.method, headers: &head.headers, scheme };
    let Some(route) = route.and_then(|index| gateway.served.get(index)) else {
        let (outcome, answer) =
            without_route(challenge, resolved.next, &gateway.resolver, target, conditions, &mut record).await;
        return Finish { changes: None, head, refused_status }.respond(response, record, outcome, &answer);
    };

    let mut changes = ResponseChanges::new(route, conditions, &template_input(client, target, &record.id));
    let early = match resolved.next {
        NextStep::Refuse(why) => Some((Outcome::Refused, refused(&why, &mut record))),
        NextStep::Preflight => changes.preflight(&head.headers).map(|answer| (Outcome::Responded, answer)),
        NextStep::Unrouted | NextStep::Decide => None,
    };
    let finish = Finish { changes: Some(&changes), head, refused_status };
    if let Some((outcome, answer)) = early {
        return finish.respond(response, record, outcome, &answer);
    }
    let attributes = received.attributes(&client, target, &route.metrics.name);
    // Declared here because the decision borrows them.
    let (mut quotas, of_elements, limits) = (None, OnceCell::new(), &route.limits);
    let mut state = DecisionState::new(&gateway.store, worker.index);
    let (gate, is_shared) = (refused_status.map(|_| Asker { longest_hold: Duration::MAX }), client.via_trusted);
    let deciding = Deciding { connection, gateway: &gateway, route, limits, attributes, now, asker: gate, is_shared };
    let decided = match deciding.at_once(&mut state, &mut record) {
        Some(decided) => decided,
        None => deciding.run(body, quotas.insert(Default::default()), &of_elements, &mut state, &mut record).await,
    };
    let (balanced_by, metered) = match decided {
        Decided::Passes(balanced_by, metered) => (balanced_by, metered),
        Decided::Answered(outcome, answer, _) => return finish.respond(response, record, outcome, &answer),
        Decided::Unanswered(outcome, _) => {
            request.is_unanswered = true;
            return record.ended(outcome);
        }
    };
    let limits = of_elements.get().unwrap_or(limits);
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
            let (outcome, answer) = redirected(redirect, target, &head.uri, gateway.resolver.paths);
            fill(response, &record, answer);
            (outcome, CostKnown::FromResponse)
        }
        Action::Forward(forwarding) => {
            let input = template_input(client, target, &record.id);
            let for_server = route.request_headers.as_ref().map(|changes| changes.of(&input));
            drop(resolved.target);
            let (gateway, changes, trace) = (&gateway, (for_server.as_deref(), changes.headers.as_deref()), *trace);
            metered.iter().for_each(|metered| inspection::adapt(&mut request.head, metered.hides_usage));
            if state.reservations.counts_bytes() {
                record.count_bytes(ByteMeter::begin(&gateway.store, limits, &mut request.body, &mut state));
            }
            let call =
                UpstreamCall { gateway, route, forwarding, changes, connection, client, scheme, trace, balanced_by };
            call.forward(request, &mut record, response).await
        }
    };
    // Boxed because it is seldom needed and would make the future of each request larger.
    if record.byte_meter().is_some()
        && let Some((outcome, answer)) =
            Box::pin(without_room(connection, &gateway, limits, cost, response, &mut state, &mut record)).await
    {
        let finish = Finish { changes: Some(&changes), head: &request.head, refused_status: None };
        return finish.respond(response, record, outcome, &answer);
    }
    settle(limits, cost, response.status(), response.headers_mut(), &mut state, clock::now);
    let meter = meter(&gateway, route, limits, metered, cost, &mut state, response);
    meter.into_iter().for_each(|meter| record.meter(meter));
    let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Action::Forward(Forwarding { upstream, .. })) = (is_tunnel, &route.action) {
        changes.apply(response);
        return tunnel::begin(request, response, record, Waits::new(upstream, route.body_timeout));
    }
    Finish { changes: Some(&changes), head: &request.head, refused_status }.end(response, record, outcome);
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
        return answer_challenge(challenges, &target.host, token).await;
    }
    match next {
        NextStep::Refuse(why) => (Outcome::Refused, refused(&why, record)),
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
    match redirect::location(redirect, &target.host, &target.path, uri, rules) {
        Some(location) => (Outcome::Responded, respond::redirection(redirect.status, location)),
        None => {
            let why = "The request names no host, which the redirect needs.";
            (Outcome::Refused, respond::problem(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// The token, and what answers it, if a certificate authority checks whether the gateway answers for a name. Such a request
/// reaches no route and no limit, and gets only the answer of its challenge. `None` unless the listener is plain and such
/// challenges are answered.
fn challenge_token<'a>(connection: &'a ConnectionContext, head: &'a Parts) -> Option<(&'a str, &'a Challenges)> {
    let is_plain = connection.tls.is_none() && connection.traffic == Traffic::Requests;
    let challenges = &*connection.worker.challenges;
    if !is_plain || !challenges.answer(Challenge::Http01) {
        return None;
    }
    let token = head.uri.path().strip_prefix(CHALLENGES)?;
    // Other methods are answered like unknown tokens.
    Some((if matches!(head.method, Method::GET | Method::HEAD) { token } else { "" }, challenges))
}

async fn answer_challenge(challenges: &Challenges, host: &str, token: &str) -> (Outcome, LocalResponse) {
    match challenges.response(host, token).await {
        Some(answer) => (Outcome::Responded, respond::with_body(StatusCode::OK, OCTETS, Bytes::from(answer))),
        None => {
            let why = "No challenge with this token is under way.";
            (Outcome::Unrouted, respond::problem(StatusCode::NOT_FOUND, why))
        }
    }
}
