//! Charges the bytes of bodies while they pass: of requests, of responses, and of tunnels.
//!
//! What has a length is reserved before it passes, a response before its head is sent. What has none is reserved in steps, and
//! so is what several clients share if it is cut: otherwise one that sends or reads nothing could hold all of it.
//! In the end the reservation becomes what has passed. One meter counts both directions of a request, because one
//! reservation covers both.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::{Body, SizeHint};
use smallvec::SmallVec;

use crate::base::body_gate::{Exhausted, Gated};
use crate::base::fingerprint::Fingerprint;
use crate::config::{ByteCost, Cost, OnExhausted, Role};
use crate::request::decide::{
    Beyond, Decision, DecisionState, Growth, LimitMetrics, Needed, OpenReservation, PendingReservation, RouteLimit,
};
use crate::server::ClientBody;
use crate::store::{Answer, Ask, Asks, Reply, Store};

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
    /// By direction, because each waits for answers of its own.
    growth: [Growth; 2],
    limits: Vec<ByteLimit>,
    /// The bytes that have passed, by direction.
    passed: [u64; 2],
    /// How many may pass, or will as the head says, by direction.
    expected: [u64; 2],
    /// Whether the head says how many, by direction.
    is_stated: [bool; 2],
    /// The refusal that has cut a body.
    refused: Option<Reply>,
}

struct ByteLimit {
    /// Several if the limit is the pool of others. The largest cost counts.
    costs: SmallVec<[ByteCost; 1]>,
    role: Role,
    metrics: Arc<LimitMetrics>,
    open: OpenReservation,
    /// What is reserved at once of a body whose length is not known.
    step: u64,
    /// Whether no more is reserved at once of other bodies either.
    in_steps: bool,
}

impl ByteLimit {
    fn new(limits: &[RouteLimit], PendingReservation { costs, reserved, .. }: PendingReservation<'_>) -> Option<Self> {
        let limit = limits.get(reserved.place)?;
        let in_bytes = |(_, cost, _)| if let &Cost::Bytes(cost) = cost { Some(cost) } else { None };
        let costs: SmallVec<[ByteCost; 1]> = costs.into_iter().filter_map(in_bytes).collect();
        let step = costs.iter().map(|cost| cost.reserve).max().unwrap_or(1).min(reserved.capacity());
        let (role, metrics) = (limit.on_limit.role(), limit.metrics.clone());
        let cuts = role == Role::Refuses && costs.iter().any(|cost| cost.on_exhausted == OnExhausted::Cut);
        let open = OpenReservation::new(reserved, if cuts { Beyond::Refused } else { Beyond::Charged });
        Some(Self { costs, role, metrics, open, step, in_steps: limit.charges_in_steps() })
    }

    /// What so many bytes of each direction cost.
    fn cost(&self, bytes: [u64; 2]) -> u64 {
        self.costs.iter().map(|cost| cost.counted.of(bytes)).max().unwrap_or(0)
    }

    fn missing(&self, expected: [u64; 2]) -> u64 {
        self.cost(expected).saturating_sub(self.open.cost())
    }

    /// What it needs before so many bytes have passed. No step goes beyond a length that `is_stated`.
    fn needed(&self, passed: [u64; 2], expected: [u64; 2], is_stated: bool) -> Needed {
        let total = self.cost(if self.in_steps { passed } else { expected });
        Needed { total, step: if is_stated { self.step.min(self.missing(expected)) } else { self.step } }
    }

    /// Whether this reply says that the limit has no room.
    fn is_over(&self, reply: &Reply) -> bool {
        self.open.place().and_then(|place| reply.verdict(place)).is_some_and(|verdict| !verdict.admitted)
    }
}

impl Meter {
    fn poll_pass(&mut self, cx: &mut Context<'_>, direction: Direction, bytes: usize) -> Poll<Result<(), Exhausted>> {
        let at = direction as usize;
        let mut passed = self.passed;
        passed[at] = passed[at].saturating_add(bytes as u64);
        self.expected[at] = self.expected[at].max(passed[at]);
        let needed = |limit: &ByteLimit| limit.needed(passed, self.expected, self.is_stated[at]);
        let limits = self.limits.iter_mut().map(|limit| (needed(limit), &mut limit.open));
        let growth = &mut self.growth[at];
        if let Err(refused) = ready!(growth.poll(cx, limits)) {
            let over = self.limits.iter().filter(|limit| limit.is_over(&refused));
            over.for_each(|limit| growth.counters(&limit.metrics).bytes.cut.one());
            self.refused = Some(refused);
            return Poll::Ready(Err(Exhausted));
        }
        self.passed = passed;
        for limit in &mut self.limits {
            let cost = limit.cost(self.passed);
            growth.settle_spent(&mut limit.open, cost);
        }
        Poll::Ready(Ok(()))
    }

    /// The places of the limits that this reply refuses, and their keys.
    fn over(&self, reply: &Reply) -> SmallVec<[(usize, Fingerprint); 1]> {
        let over = self.limits.iter().filter(|limit| limit.is_over(reply));
        over.filter_map(|limit| limit.open.first().map(|first| (first.place, first.key()))).collect()
    }

    /// Asks for a response before its head is sent. Limits that only report refuse nothing.
    fn ask_for_response(&mut self, length: Option<u64>) -> Option<Answer> {
        let at = Direction::Response as usize;
        (self.expected[at], self.is_stated[at]) = (length.unwrap_or(0), length.is_some());
        let asks = self.limits.iter().filter(|limit| limit.cost([0, 1]) > 0).filter_map(|limit| {
            let step = if length.is_none() { limit.step } else { 0 };
            let need = limit.missing(self.expected).max(step);
            let cost = if limit.in_steps { need.min(limit.step) } else { need };
            let first = limit.open.first().filter(|_| need > 0)?;
            Some(Ask { need, ..first.ask_for(cost, limit.role) })
        });
        self.growth[at].decide(&asks.collect::<Asks<'_>>())
    }

    /// `with_step` says whether the limits were asked for a step, which a refusal then names.
    fn conclude(
        &mut self,
        limits: &[RouteLimit],
        mut reply: Reply,
        with_step: bool,
        state: &mut DecisionState<'_>,
    ) -> Decision {
        Growth::keep(self.limits.iter_mut().map(|limit| &mut limit.open), mem::take(&mut reply.reserved));
        let need = |place: usize| {
            let limit = self.limits.iter().find(|limit| limit.open.place() == Some(place));
            limit.map_or(1, |limit| limit.missing(self.expected).max(if with_step { limit.step } else { 1 }))
        };
        let decision = state.conclude_later(limits, &reply, need);
        // A limit that only reports is not charged for what it would have refused.
        let is_reported = |limit: &mut ByteLimit| limit.role == Role::Reports && limit.is_over(&reply);
        for mut limit in self.limits.extract_if(.., is_reported) {
            let cost = limit.cost([self.expected[Direction::Request as usize], 0]);
            self.growth[0].settle(&mut limit.open, cost);
        }
        if decision != Decision::Admitted {
            self.settle();
        }
        decision
    }

    /// Settles everything at what has passed.
    fn settle(&mut self) {
        self.growth.iter_mut().for_each(Growth::stop);
        let [growth, _] = &self.growth;
        let [request, response] = self.passed;
        for limit in &mut self.limits {
            if limit.open.place().is_some() {
                let bytes = &growth.counters(&limit.metrics).bytes;
                bytes.requests.add(limit.cost([request, 0]));
                bytes.responses.add(limit.cost([0, response]));
            }
            let cost = limit.cost([request, response]);
            growth.settle(&mut limit.open, cost);
        }
    }
}

impl ByteMeter {
    /// Counts the bytes of this body, and of the response.
    pub(super) fn begin(
        store: &Arc<Store>,
        limits: &[RouteLimit],
        body: &mut Option<ClientBody>,
        state: &mut DecisionState<'_>,
    ) -> Self {
        let opened = state.reservations.open_bytes().into_iter();
        let limits = opened.filter_map(|opened| ByteLimit::new(limits, opened)).collect();
        let growth = [(), ()].map(|()| Growth::new(store.clone(), state.reservations.worker));
        // The decision has asked for room for the length that the head states.
        let length = body.as_ref().and_then(|body| body.size_hint().exact());
        let (expected, is_stated) = ([length.unwrap_or(0), 0], [length.is_some(), false]);
        let meter = Meter { growth, limits, passed: [0; 2], expected, is_stated, refused: None };
        let meter = Self(Rc::new(RefCell::new(meter)));
        *body = body.take().map(|body| body.through(meter.gate(Direction::Request)));
        meter
    }

    pub(super) fn gate(&self, direction: Direction) -> Gated {
        let meter = self.clone();
        Gated::new(Box::new(move |cx, bytes| meter.poll_pass(cx, direction, bytes)))
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
    /// body was cut, which may begin a ban. Corrects the outcomes.
    pub(super) async fn decide(
        &self,
        store: &Store,
        limits: &[RouteLimit],
        size: Option<SizeHint>,
        state: &mut DecisionState<'_>,
    ) -> Decision {
        let refused = self.0.borrow_mut().refused.take();
        if let Some(reply) = refused {
            let over = self.0.borrow().over(&reply);
            for (place, key) in over {
                if let Some(limit) = limits.get(place) {
                    limit.strike_later(key, store, state.reservations.worker).await;
                }
            }
            return self.0.borrow_mut().conclude(limits, reply, false, state);
        }
        let Some(size) = size else { return Decision::Admitted };
        let answer = self.0.borrow_mut().ask_for_response(size.exact());
        let reply = match answer {
            None => return Decision::Admitted,
            Some(Answer::Now(reply)) => Some(reply),
            Some(Answer::Later(reply)) => reply.await.ok(),
            Some(Answer::Away) => None,
        };
        let with_step = size.exact().is_none();
        reply.map_or(Decision::Unknown, |reply| self.0.borrow_mut().conclude(limits, reply, with_step, state))
    }

    pub fn settle(&self) {
        self.0.borrow_mut().settle();
    }
}
