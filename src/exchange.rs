//! One request through the steps, in order. Start reading here.

mod snapshot;
mod target;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body;

use crate::accept::{Arrival, Handler, Refusal};
use crate::account::{Account, Content, End, Line, Outcome, Settled};
use crate::clock::{self, Time};
use crate::config::{AccessLog, OnError};
use crate::decide::{self, Case, Decision, Opinion};
use crate::forward::{Origin, Outbound, Pools, Upstream};
use crate::gateway::{Action, Served};
use crate::identify::client::{Client, client};
use crate::identify::{Facts, Memo};
use crate::reason::Reason;
use crate::respond::limits::LastRefusal;
use crate::respond::{self, Answer};
use crate::route::path;
use crate::store::Store;

pub use snapshot::{Snapshot, Snapshots};

/// What a worker serves requests with.
pub struct Worker {
    /// Which one it is, from 0.
    pub index: usize,
    /// What is in force.
    pub snapshots: Snapshots,
    /// Where counters live.
    pub store: Arc<Store>,
    /// Its connections to upstreams.
    pub pools: Rc<Pools>,
}

/// Who opened a connection, and the worker that serves it.
pub struct Caller {
    worker: Rc<Worker>,
    peer: IpAddr,
    /// The peer's address as text, for every request to hand on.
    address: String,
    memo: RefCell<Memo>,
    last_refusal: RefCell<LastRefusal>,
}

impl Caller {
    /// The caller at this address.
    pub fn new(worker: Rc<Worker>, peer: IpAddr) -> Self {
        let peer = peer.to_canonical();
        Self {
            worker,
            peer,
            address: peer.to_string(),
            memo: RefCell::default(),
            last_refusal: RefCell::default(),
        }
    }
}

impl Handler for Caller {
    type Body = Settled;

    async fn handle(&self, request: &mut Arrival) -> Response<Settled> {
        serve(self, request).await
    }

    fn refused(&self, refusal: &Refusal) -> Vec<u8> {
        let Refusal { status, reason, took } = *refusal;
        let gateway = self.worker.snapshots.current();
        // Nothing of its head is believed, so the client is the peer.
        let line = (gateway.access_log != AccessLog::Off).then(|| Line::new(self.peer));
        let end = End { outcome: Outcome::Refused, reason: Some(reason), status: Some(status) };
        gateway.book(None).close(end, clock::micros(took), line.as_ref());
        respond::refused(status, reason, clock::now())
    }

    fn stalled(&self, response: &mut Settled) {
        response.stalled();
    }
}

/// Serves one request: route, identify, decide, forward, account.
async fn serve(caller: &Caller, request: &mut Arrival) -> Response<Settled> {
    let worker = &*caller.worker;
    let now = clock::now();
    let gateway = worker.snapshots.current();
    let Arrival { head, .. } = &*request;
    let client = client(caller.peer, &head.headers, &gateway.trusted_proxies);

    let target = match target::read(request, gateway.paths) {
        Ok(target) => target,
        Err(why) => {
            let account = open(&gateway, None, now, client, head, "");
            let answer = respond::problem(why.status, why.detail);
            // What comes after it on the connection may be part of what was not understood.
            return own(account, Outcome::Refused, respond::last(answer));
        }
    };
    let found = gateway.routes.find(&target.host, &target.path, &head.method, &head.headers);
    let mut account = open(&gateway, found, now, client, head, &target.host);
    let Some(route) = found.and_then(|index| gateway.served.get(index)) else {
        let allowed = gateway.routes.allowed(&target.host, &target.path, &head.headers);
        return own(account, Outcome::Unrouted, respond::unrouted(&allowed));
    };

    // Nothing is decided on it, so it is charged nowhere.
    if request.body.as_ref().is_some_and(|body| body.size_hint().lower() > route.max_body_size) {
        account.refused_for(Reason::MaxBodySize);
        let answer = respond::problem(StatusCode::PAYLOAD_TOO_LARGE, "The body of the request is too large.");
        return own(account, Outcome::Refused, respond::last(answer));
    }
    let path = path::key(&target.path, gateway.paths, route.ignore_case);
    let facts = Facts {
        method: &head.method,
        host: &target.host,
        path: &path,
        query: head.uri.query(),
        headers: &head.headers,
        client: client.address,
        route: &route.tally.name,
    };
    if let Some(ambiguity) = route.single.ambiguity(&facts) {
        account.refused_for(Reason::AmbiguousKey);
        return own(account, Outcome::Refused, respond::problem(StatusCode::BAD_REQUEST, &ambiguity.to_string()));
    }
    let case = Case {
        guards: &route.guards,
        facts: &facts,
        memo: &caller.memo,
        store: &worker.store,
        flights: &gateway.flights,
        lines: &gateway.lines,
        now,
        worker: worker.index,
        passes_unknown: gateway.on_error != OnError::Reject,
    };
    let mut opinion = Opinion::new(&worker.store, worker.index);
    let decision = decide::decide(&case, &mut opinion).await;
    caller.memo.borrow_mut().forget_long_keys();
    account.held(opinion.held_since);
    match decision {
        Decision::Admitted => {}
        Decision::Unknown if case.passes_unknown => {}
        decision => {
            account.refused_by(refusing(decision, &opinion).and_then(|place| Some(&route.guards.get(place)?.tally)));
            let answer = refuse(route, decision, &opinion, facts.headers, now, &mut caller.last_refusal.borrow_mut());
            return own(account, outcome(decision), answer);
        }
    }
    account.hold(std::mem::take(&mut opinion.permits));
    drop(path);
    drop(target);

    let (outcome, mut response) = match &route.action {
        Action::Respond { status, body, content_type } => {
            let answer = respond::with_body(*status, content_type.clone(), body.clone());
            (Outcome::Responded, answer.map(Content::Own))
        }
        Action::Forward { upstream, strip, preserve_host } => {
            let (strip, preserve_host) = (*strip, *preserve_host);
            let hop = Hop { gateway: &gateway, route, upstream, strip, preserve_host, caller, client };
            hop.take(request, &mut account).await
        }
    };
    let status = response.status();
    // Where the client breaks its request off, the answer is ours and says nothing of the cost: the upstream may have acted
    // on what came. So it stays charged, as for a client that goes away.
    if outcome != Outcome::Refused {
        opinion.bill.settle(status, response.headers(), &mut opinion.judged);
    }
    route.report.tell(response.headers_mut(), &opinion.judged, &opinion.shadowed, now);
    response.map(|content| account.settle(outcome, status, content))
}

/// How a request ends that its limits do not let through.
fn outcome(decision: Decision) -> Outcome {
    match decision {
        Decision::Rejected | Decision::TooCostly { .. } => Outcome::Limited,
        Decision::Silenced(_) => Outcome::Silenced,
        Decision::Blocked(_) => Outcome::Blocked,
        Decision::NoKey(_) => Outcome::Refused,
        Decision::Admitted | Decision::Unknown => Outcome::Unavailable,
    }
}

/// The limit that does not let a request through, by its place on the route.
fn refusing(decision: Decision, opinion: &Opinion<'_>) -> Option<usize> {
    match decision {
        Decision::Rejected => decide::longest_refusal(&opinion.judged).map(|judged| judged.place),
        Decision::Silenced(place)
        | Decision::Blocked(place)
        | Decision::NoKey(place)
        | Decision::TooCostly { place, .. } => Some(place),
        Decision::Admitted | Decision::Unknown => None,
    }
}

/// The answer to a request that its limits do not let through.
pub fn refuse(
    route: &Served,
    decision: Decision,
    opinion: &Opinion<'_>,
    headers: &HeaderMap,
    now: Time,
    last: &mut LastRefusal,
) -> Answer {
    let name = |guard: usize| route.guards.get(guard).map_or("", |guard| guard.terms.own().name());
    match decision {
        Decision::Rejected => route.report.reject(&opinion.judged, now, last),
        Decision::Silenced(guard) => route.report.silence(guard),
        Decision::TooCostly { place, most } => {
            let cost = route.guards.get(place).map(|guard| decide::stated(&guard.cost, headers));
            route.report.too_costly(place, &cost.unwrap_or_default(), most)
        }
        Decision::Blocked(guard) => {
            let why = format!("The limit \"{}\" blocks this client.", name(guard));
            respond::problem(StatusCode::FORBIDDEN, &why)
        }
        Decision::NoKey(guard) => {
            let why = format!("The request lacks what the limit \"{}\" counts by.", name(guard));
            respond::problem(StatusCode::BAD_REQUEST, &why)
        }
        Decision::Admitted | Decision::Unknown => {
            let why = "The store of the rate limits does not answer.";
            respond::problem(StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }
}

fn open(gateway: &Snapshot, route: Option<usize>, now: Time, client: Client, head: &Parts, host: &str) -> Account {
    let line = (gateway.access_log != AccessLog::Off).then(|| {
        Box::new(Line {
            method: Some(head.method.clone()),
            host: host.to_owned(),
            path: head.uri.path().to_owned(),
            ..Line::new(client.address)
        })
    });
    Account::open(gateway.book(route).clone(), now, &head.method, line)
}

fn own(account: Account, outcome: Outcome, answer: Answer) -> Response<Settled> {
    let status = answer.status();
    answer.map(|body| account.settle(outcome, status, Content::Own(body)))
}

/// The way of one request to its upstream.
struct Hop<'a> {
    gateway: &'a Snapshot,
    route: &'a Served,
    upstream: &'a Upstream,
    strip: usize,
    preserve_host: bool,
    caller: &'a Caller,
    client: Client,
}

impl Hop<'_> {
    /// Sends the request on; what goes wrong becomes an answer and a log line.
    async fn take(&self, request: &mut Arrival, account: &mut Account) -> (Outcome, Response<Content>) {
        let Some(server) = self.upstream.choose() else {
            let answer = respond::problem(StatusCode::BAD_GATEWAY, "The upstream has no servers.");
            return (Outcome::Failed, answer.map(Content::Own));
        };
        let Arrival { head, body, .. } = request;
        let target = target::onward(&head.uri, self.strip, self.gateway.paths);
        target::name_host(&head.uri, &mut head.headers);
        // HTTP/1.0 need not name a host, and HTTP/1.1 may name an empty one; what is sent on has to name one.
        let preserve_host = self.preserve_host && head.headers.get(header::HOST).is_some_and(|host| !host.is_empty());
        let mut outbound = Outbound {
            method: &head.method,
            target: &target,
            headers: std::mem::take(&mut head.headers),
            origin: Origin {
                peer: &self.caller.address,
                client: Some(self.client.address).filter(|client| *client != self.caller.peer),
                trusted: self.client.via_trusted,
                authority: (!preserve_host).then_some(&server.authority),
            },
            counted: &self.route.single,
            body_timeout: self.gateway.body_timeout,
            max_body_size: self.route.max_body_size,
        };
        match self.upstream.send(server, &self.caller.worker.pools, &mut outbound, body.take()).await {
            Ok(response) => (Outcome::Forwarded, response.map(Content::Upstream)),
            Err(failure) => {
                let reason = failure.reason();
                account.fail(reason, server, &failure);
                let answer = respond::problem(failure.status(), failure.detail());
                if reason.is_upstreams() {
                    return (Outcome::Failed, answer.map(Content::Own));
                }
                // What comes next on the connection is the rest of this request's body.
                (Outcome::Refused, respond::last(answer).map(Content::Own))
            }
        }
    }
}
