//! Charges the bytes of bodies while they pass: of requests, of responses, and of tunnels.
//!
//! What has a length is reserved before it passes, a response before its head is sent. What has none is reserved in steps.
//! In the end the reservation becomes what has passed. One meter counts both directions of a request, because one
//! reservation covers both.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http_body::{Body, SizeHint};
use smallvec::SmallVec;

use crate::base::body_gate::{BodyGate, Exhausted};
use crate::config::{ByteCost, OnExhausted, Role};
use crate::request::decide::{
    Beyond, Decision, DecisionState, Growth, LimitMetrics, Metered, Needed, OpenReservation, RouteLimit, SettledByBytes,
};
use crate::server::ClientBody;
use crate::store::{Answer, Asks, Reply, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client to the upstream.
    Request,
    Response,
}

/// Shared by the bodies of a request and of its response, and by the record of the request, which settles it.
#[derive(Clone)]
pub struct ByteMeter(Rc<RefCell<Meter>>);

struct Meter {
    growth: Growth,
    limits: Vec<ByteLimit>,
    request: Flow,
    response: Flow,
    /// By direction: whom to wake when the other one has taken the answer of the store for which both wait.
    waiting: [Option<Waker>; 2],
    /// The refusal that has cut a body.
    refused: Option<Reply>,
}

/// The bytes of one direction.
#[derive(Clone, Copy, Default)]
struct Flow {
    passed: u64,
    /// How many may pass, or will as the head says.
    expected: u64,
}

struct ByteLimit {
    /// Several if the limit is the pool of others. The largest cost counts.
    costs: SmallVec<[ByteCost; 1]>,
    role: Role,
    metrics: Arc<LimitMetrics>,
    open: OpenReservation,
    capacity: u64,
}

impl Metered for ByteLimit {
    fn open(&self) -> &OpenReservation {
        &self.open
    }

    fn open_mut(&mut self) -> &mut OpenReservation {
        &mut self.open
    }
}

impl ByteLimit {
    fn new(limits: &[RouteLimit], SettledByBytes { costs, reserved }: SettledByBytes) -> Option<Self> {
        let limit = limits.get(reserved.place())?;
        let role = limit.on_limit.role();
        let cuts = costs.iter().any(|(_, cost)| cost.on_exhausted == OnExhausted::Cut) && role == Role::Refuses;
        let beyond = if cuts { Beyond::Refused } else { Beyond::Charged };
        Some(Self {
            costs: costs.into_iter().map(|(_, cost)| cost).collect(),
            role,
            metrics: limit.metrics.clone(),
            capacity: reserved.capacity(),
            open: OpenReservation::new(reserved, beyond),
        })
    }

    fn cost(&self, request: u64, response: u64) -> u64 {
        let cost = |cost: &ByteCost| {
            let request = if cost.counted.has_requests() { request } else { 0 };
            request.saturating_add(if cost.counted.has_responses() { response } else { 0 })
        };
        self.costs.iter().map(cost).max().unwrap_or(0)
    }

    fn needed(&self, request: Flow, response: Flow) -> Needed {
        let step = self.costs.iter().map(|cost| cost.reserve).max().unwrap_or(1).min(self.capacity);
        Needed { total: self.cost(request.expected, response.expected), step }
    }

    fn missing(&self, request: Flow, response: Flow) -> u64 {
        self.needed(request, response).total.saturating_sub(self.open.cost())
    }
}

impl Meter {
    fn flow(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    fn poll_pass(&mut self, cx: &mut Context<'_>, direction: Direction, bytes: usize) -> Poll<Result<(), Exhausted>> {
        let flow = self.flow(direction);
        let passed = flow.passed.saturating_add(bytes as u64);
        flow.expected = flow.expected.max(passed);
        let (request, response) = (self.request, self.response);
        let polled = self.growth.poll(cx, &mut self.limits, |limit| limit.needed(request, response));
        let Poll::Ready(polled) = polled else {
            self.waiting[direction as usize] = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.wake_other(direction);
        if let Err(refused) = polled {
            let is_over = |place| refused.verdicts.iter().any(|(of, verdict)| Some(*of) == place && !verdict.admitted);
            let over = self.limits.iter().filter(|limit| is_over(limit.open.place()));
            over.for_each(|limit| self.growth.counters(&limit.metrics).bytes.cut.one());
            self.refused = Some(refused);
            return Poll::Ready(Err(Exhausted));
        }
        self.flow(direction).passed = passed;
        let (request, response) = (self.request.passed, self.response.passed);
        for limit in &mut self.limits {
            let cost = limit.cost(request, response);
            self.growth.settle_spent(&mut limit.open, cost);
        }
        Poll::Ready(Ok(()))
    }

    fn wake_other(&mut self, direction: Direction) {
        self.waiting[direction as usize] = None;
        self.waiting.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    /// Asks for a response before its head is sent. Limits that only report refuse nothing.
    fn ask_for_response(&mut self, length: Option<u64>) -> Option<Answer> {
        let (request, mut response) = (self.request, self.response);
        response.expected = length.unwrap_or(0);
        let asks = self.limits.iter().filter(|limit| limit.cost(0, 1) > 0).filter_map(|limit| {
            let step = if length.is_none() { limit.needed(request, response).step } else { 0 };
            let more = limit.missing(request, response).max(step);
            limit.open.first().filter(|_| more > 0).map(|first| first.ask_for(more, limit.role))
        });
        let answer = self.growth.decide(&asks.collect::<Asks<'_>>());
        self.response = response;
        answer
    }

    fn conclude(&mut self, limits: &[RouteLimit], mut reply: Reply, state: &mut DecisionState<'_>) -> Decision {
        Growth::keep(&mut self.limits, mem::take(&mut reply.reserved));
        Growth::tell(&self.limits, &reply);
        let (request, response) = (self.request, self.response);
        let need = |place: usize| {
            let limit = self.limits.iter().find(|limit| limit.open.place() == Some(place));
            limit.map_or(1, |limit| limit.missing(request, response).max(1))
        };
        let decision = state.conclude_later(limits, &reply, need);
        // A limit that only reports is not charged for what it would have refused.
        let is_over = |place| reply.verdicts.iter().any(|(of, verdict)| Some(*of) == place && !verdict.admitted);
        let is_reported = |limit: &mut ByteLimit| limit.role == Role::Reports && is_over(limit.open.place());
        for mut limit in self.limits.extract_if(.., is_reported) {
            let cost = limit.cost(request.expected, 0);
            self.growth.settle(&mut limit.open, cost);
        }
        if decision != Decision::Admitted {
            self.settle();
        }
        decision
    }

    /// Settles everything at what has passed.
    fn settle(&mut self) {
        self.growth.stop();
        let (request, response) = (self.request.passed, self.response.passed);
        for limit in &mut self.limits {
            if limit.open.place().is_some() {
                let bytes = &self.growth.counters(&limit.metrics).bytes;
                bytes.requests.add(if limit.cost(1, 0) > 0 { request } else { 0 });
                bytes.responses.add(if limit.cost(0, 1) > 0 { response } else { 0 });
            }
            let cost = limit.cost(request, response);
            self.growth.settle(&mut limit.open, cost);
        }
    }
}

impl ByteMeter {
    /// Counts the bytes of this body, and of the response. `None` if no limit counts the bytes of the request.
    pub(super) fn begin(
        store: &Arc<Store>,
        limits: &[RouteLimit],
        body: &mut Option<ClientBody>,
        state: &mut DecisionState<'_>,
    ) -> Option<Self> {
        let opened = state.reservations.open_bytes().into_iter();
        let limits: Vec<_> = opened.filter_map(|opened| ByteLimit::new(limits, opened)).collect();
        if limits.is_empty() {
            return None;
        }
        let growth = Growth::new(store.clone(), state.reservations.worker());
        // The decision has reserved the length that the head states.
        let length = body.as_ref().and_then(|body| body.size_hint().exact());
        let request = Flow { passed: 0, expected: length.unwrap_or(0) };
        let (response, waiting, refused) = Default::default();
        let meter = Self(Rc::new(RefCell::new(Meter { growth, limits, request, response, waiting, refused })));
        *body = body.take().map(|body| body.through(meter.gate(Direction::Request)));
        Some(meter)
    }

    pub(super) fn gate(&self, direction: Direction) -> impl BodyGate + use<> {
        Gate(self.clone(), direction)
    }

    pub(super) fn poll_pass(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        bytes: usize,
    ) -> Poll<Result<(), Exhausted>> {
        self.0.borrow_mut().poll_pass(cx, direction, bytes)
    }

    /// Decides before its head is sent about a response whose body has this size, or about an answer of the gateway because a
    /// body was cut. Corrects the outcomes.
    pub(super) async fn decide(
        &self,
        limits: &[RouteLimit],
        size: Option<SizeHint>,
        state: &mut DecisionState<'_>,
    ) -> Decision {
        let refused = self.0.borrow_mut().refused.take();
        if let Some(reply) = refused {
            return self.0.borrow_mut().conclude(limits, reply, state);
        }
        let Some(size) = size else { return Decision::Admitted };
        let answer = self.0.borrow_mut().ask_for_response(size.exact());
        let reply = match answer {
            None => return Decision::Admitted,
            Some(Answer::Now(reply)) => Some(reply),
            Some(Answer::Later(reply)) => reply.await.ok(),
            Some(Answer::Away) => None,
        };
        reply.map_or(Decision::Unknown, |reply| self.0.borrow_mut().conclude(limits, reply, state))
    }

    pub fn settle(&self) {
        self.0.borrow_mut().settle();
    }
}

struct Gate(ByteMeter, Direction);

impl Drop for Gate {
    /// The other direction may have to wait for an answer of the store that this one was to take.
    fn drop(&mut self) {
        if let Ok(mut meter) = self.0.0.try_borrow_mut() {
            meter.wake_other(self.1);
        }
    }
}

impl BodyGate for Gate {
    fn poll_pass(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<Result<(), Exhausted>> {
        self.0.poll_pass(cx, self.1, bytes)
    }
}
