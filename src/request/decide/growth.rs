//! Reservations that grow while a request is served, since its cost becomes known only then: one way for all meters.
//!
//! A meter says what a limit needs by now. If that is more than is reserved, the limit is asked for a step, so that the next
//! bytes need not ask, and if that has no room, for what is missing. In the end the reservations are settled at the cost.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{DecisionCounters, LimitMetrics};
use crate::base::clock;
use crate::config::Role;
use crate::store::{Answer, Ask, Asks, Reply, Reserved, Store};

/// What happens to a request that needs more than its limit has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// It goes on, and the limit is asked for nothing until the end.
    Settled,
    /// It goes on, and what it needs is charged while it does.
    Charged,
    /// It ends.
    Refused,
}

/// What a limit needs by now, and how much it asks for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    pub total: u64,
    pub step: u64,
}

/// What one limit has reserved for a request, and what the request has asked for since.
pub struct OpenReservation {
    reserved: SmallVec<[Reserved; 1]>,
    beyond: Beyond,
}

impl OpenReservation {
    pub fn new(reserved: Reserved, beyond: Beyond) -> Self {
        Self { reserved: SmallVec::from_iter([reserved]), beyond }
    }

    pub fn beyond(&self) -> Beyond {
        self.beyond
    }

    pub fn cost(&self) -> u64 {
        self.reserved.iter().map(Reserved::cost).sum()
    }

    /// What the decision has reserved.
    pub fn first(&self) -> Option<&Reserved> {
        self.reserved.first()
    }

    pub fn place(&self) -> Option<usize> {
        self.first().map(Reserved::place)
    }

    /// Settles all at a total of `cost`. The latest reservations are given back first.
    pub fn settle(&mut self, cost: u64, settle: impl Fn(Reserved, u64)) {
        let reserved = self.cost();
        let (mut given, mut more) = (reserved.saturating_sub(cost), cost.saturating_sub(reserved));
        for ticket in mem::take(&mut self.reserved).into_iter().rev() {
            let back = given.min(ticket.cost());
            let cost = ticket.cost() - back + mem::take(&mut more);
            given -= back;
            settle(ticket, cost);
        }
    }

    /// The ask for what is missing, or for a step if that is more; `None` if enough is reserved, or nothing is asked for.
    fn ask(&self, needed: Needed, extra: Extra) -> Option<Ask<'_>> {
        let missing = needed.total.saturating_sub(self.cost());
        let more = if extra == Extra::Step { missing.max(needed.step) } else { missing };
        let first = self.first().filter(|_| missing > 0 && self.beyond != Beyond::Settled)?;
        let ask = first.ask_for(more, Role::Refuses);
        Some(if self.beyond == Beyond::Charged { Ask { need: 0, ..ask } } else { ask })
    }

    fn lacks(&self, needed: Needed) -> bool {
        self.beyond == Beyond::Refused && self.ask(needed, Extra::None).is_some()
    }
}

/// How much is asked for beyond the need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Step,
    /// Nothing, since there was no room for a step.
    None,
}

/// A limit of a request that is metered.
pub trait Metered {
    fn open(&self) -> &OpenReservation;

    fn open_mut(&mut self) -> &mut OpenReservation;

    fn keep(limits: &mut [Self], reserved: Vec<Reserved>)
    where
        Self: Sized,
    {
        for reserved in reserved {
            let mut open = limits.iter_mut().map(Self::open_mut);
            if let Some(open) = open.find(|open| open.place() == Some(reserved.place())) {
                open.reserved.push(reserved);
            }
        }
    }
}

/// Asks for more while a request is served.
pub struct Growth {
    store: Arc<Store>,
    worker: usize,
    asked: Option<(oneshot::Receiver<Reply>, Extra)>,
}

impl Growth {
    pub fn new(store: Arc<Store>, worker: usize) -> Self {
        Self { store, worker, asked: None }
    }

    /// Ready when as much is reserved as these limits need, or when there is no room for it: then with the refusal. A store
    /// that does not answer refuses nothing.
    pub fn poll<L: Metered>(
        &mut self,
        cx: &mut Context<'_>,
        limits: &mut [L],
        needed: impl Fn(&L) -> Needed,
    ) -> Poll<Result<(), Reply>> {
        let mut extra = Extra::Step;
        loop {
            let answered = match &mut self.asked {
                Some((reply, asked)) => {
                    extra = *asked;
                    let reply = ready!(Pin::new(reply).poll(cx)).ok();
                    self.asked = None;
                    reply
                }
                None => {
                    let asks: Asks<'_> =
                        limits.iter().filter_map(|limit| limit.open().ask(needed(limit), extra)).collect();
                    let answer = self.decide(&asks);
                    drop(asks);
                    match answer {
                        None | Some(Answer::Away) => None,
                        Some(Answer::Now(reply)) => Some(reply),
                        Some(Answer::Later(reply)) => {
                            self.asked = Some((reply, extra));
                            continue;
                        }
                    }
                }
            };
            let Some(mut reply) = answered else { return Poll::Ready(Ok(())) };
            L::keep(limits, mem::take(&mut reply.reserved));
            let lacks = limits.iter().any(|limit| limit.open().lacks(needed(limit)));
            match (lacks, extra) {
                (false, _) => return Poll::Ready(Ok(())),
                (true, Extra::Step) => extra = Extra::None,
                (true, Extra::None) => return Poll::Ready(Err(reply)),
            }
        }
    }

    /// `None` if nothing is asked for.
    pub fn decide(&self, asks: &[Ask<'_>]) -> Option<Answer> {
        (!asks.is_empty()).then(|| self.store.decide(asks, clock::now(), self.worker))
    }

    pub fn counters<'l>(&self, limit: &'l LimitMetrics) -> &'l DecisionCounters {
        limit.workers.of(self.worker)
    }

    pub fn settle(&self, open: &mut OpenReservation, cost: u64) {
        open.settle(cost, |reserved, cost| _ = self.store.settle(reserved, cost, None, clock::now(), self.worker));
    }

    /// Gives back what was asked for if the reply was not read. A reply that has not come yet lapses.
    pub fn stop(&mut self) {
        let Some((mut reply, _)) = self.asked.take() else { return };
        reply.close();
        let reserved = reply.try_recv().map(|reply| reply.reserved).unwrap_or_default();
        reserved.into_iter().for_each(|step| _ = self.store.settle(step, 0, None, clock::now(), self.worker));
    }
}
