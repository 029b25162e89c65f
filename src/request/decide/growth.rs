//! Reservations that grow while a request is served, since its cost becomes known only then: one way for all meters.
//!
//! A meter says what a limit needs by now. If that is more than is reserved, the limit is asked for a step, so that the next
//! bytes need not ask, and if that has no room, for what is missing. In the end the reservations are settled at the cost.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{DecisionCounters, DecisionInput, LimitMetrics, RouteLimit};
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

/// How many reservations of a request are kept although they are spent. A stream may ask for a million.
const MOST_SPENT: usize = 4;

/// What one limit has reserved for a request, and what the request has asked for since.
pub struct OpenReservation {
    reserved: SmallVec<[Reserved; 1]>,
    /// What earlier reservations were, which are settled already.
    spent: u64,
    pub beyond: Beyond,
}

impl OpenReservation {
    pub fn new(reserved: Reserved, beyond: Beyond) -> Self {
        Self { reserved: SmallVec::from_iter([reserved]), spent: 0, beyond }
    }

    pub fn cost(&self) -> u64 {
        self.spent + self.reserved.iter().map(Reserved::cost).sum::<u64>()
    }

    /// The earliest reservation that is not settled: what the decision has reserved, unless that is spent.
    pub fn first(&self) -> Option<&Reserved> {
        self.reserved.first()
    }

    pub fn place(&self) -> Option<usize> {
        self.first().map(|first| first.place)
    }

    /// The ask for what is missing, or `with_step` for a step if that is more; `None` if enough is reserved, or nothing is
    /// asked for.
    fn ask(&self, needed: Needed, with_step: bool) -> Option<Ask<'_>> {
        let missing = needed.total.saturating_sub(self.cost());
        let more = if with_step { missing.max(needed.step) } else { missing };
        let first = self.first().filter(|_| missing > 0 && self.beyond != Beyond::Settled)?;
        let ask = first.ask_for(more, Role::Refuses);
        Some(if self.beyond == Beyond::Charged { Ask { need: 0, ..ask } } else { ask })
    }

    fn lacks(&self, needed: Needed) -> bool {
        self.beyond == Beyond::Refused && self.ask(needed, false).is_some()
    }
}

impl RouteLimit {
    /// See [`crate::config::Limit::charges_in_steps`].
    pub fn charges_in_steps(&self) -> bool {
        self.cost.cuts_bytes() && !self.key.tells_clients_apart()
    }
}

impl DecisionInput<'_, '_> {
    /// Whether the limit at this place does. If another proxy asks, the body passes elsewhere.
    pub(super) fn charges_in_steps(&self, place: usize) -> bool {
        self.limits[place].charges_in_steps() && self.asker.is_none()
    }
}

/// Asks for more while a request is served.
pub struct Growth {
    store: Arc<Store>,
    worker: usize,
    /// The reply that is awaited, and whether a step was asked for.
    asked: Option<(oneshot::Receiver<Reply>, bool)>,
}

impl Growth {
    pub fn new(store: Arc<Store>, worker: usize) -> Self {
        Self { store, worker, asked: None }
    }

    /// Ready when as much is reserved as each limit needs, or when there is no room for it: then with the refusal. A store
    /// that does not answer refuses nothing.
    pub fn poll<'m>(
        &mut self,
        cx: &mut Context<'_>,
        limits: impl Iterator<Item = (Needed, &'m mut OpenReservation)>,
    ) -> Poll<Result<(), Reply>> {
        let (mut limits, mut with_step): (SmallVec<[_; 1]>, _) = (limits.collect(), true);
        loop {
            let answer = match self.asked.take() {
                Some((reply, asked_with_step)) => {
                    with_step = asked_with_step;
                    Some(Answer::Later(reply))
                }
                None => {
                    let asks = limits.iter().filter_map(|(needed, open)| open.ask(*needed, with_step));
                    self.decide(&asks.collect::<Asks<'_>>())
                }
            };
            let reply = match answer {
                Some(Answer::Later(mut reply)) => {
                    let Poll::Ready(reply) = Pin::new(&mut reply).poll(cx) else {
                        self.asked = Some((reply, with_step));
                        return Poll::Pending;
                    };
                    reply.ok()
                }
                Some(Answer::Now(reply)) => Some(reply),
                Some(Answer::Away) | None => None,
            };
            let Some(mut reply) = reply else { return Poll::Ready(Ok(())) };
            Self::keep(limits.iter_mut().map(|(_, open)| &mut **open), mem::take(&mut reply.reserved));
            match limits.iter().any(|(needed, open)| open.lacks(*needed)) {
                false => return Poll::Ready(Ok(())),
                // There may be room for what is missing.
                true if with_step => with_step = false,
                true => return Poll::Ready(Err(reply)),
            }
        }
    }

    pub fn keep<'m>(limits: impl Iterator<Item = &'m mut OpenReservation>, mut reserved: Vec<Reserved>) {
        for open in limits {
            let Some(place) = open.place() else { continue };
            for mut more in reserved.extract_if(.., |one| one.place == place) {
                more.watch = open.first().map(|first| first.watch.of(more.cost())).unwrap_or_default();
                open.reserved.push(more);
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

    /// Settles all at a total of `cost`. The latest reservations are given back first.
    pub fn settle(&self, open: &mut OpenReservation, cost: u64) {
        let reserved = open.cost();
        let (mut given, mut more) = (reserved.saturating_sub(cost), cost.saturating_sub(reserved));
        for ticket in mem::take(&mut open.reserved).into_iter().rev() {
            let back = given.min(ticket.cost());
            let cost = ticket.cost() - back + mem::take(&mut more);
            given -= back;
            self.settle_one(ticket, cost);
        }
    }

    /// Settles the earliest reservations, if there are many and no less than `cost` will be charged in the end.
    pub fn settle_spent(&self, open: &mut OpenReservation, cost: u64) {
        while open.reserved.len() > MOST_SPENT && open.spent + open.reserved[0].cost() <= cost {
            let ticket = open.reserved.remove(0);
            let cost = ticket.cost();
            open.spent += cost;
            self.settle_one(ticket, cost);
        }
    }

    fn settle_one(&self, reserved: Reserved, cost: u64) {
        self.store.settle(reserved, cost, None, clock::now(), self.worker);
    }

    /// Gives back what was asked for if the reply was not read. A reply that has not come yet lapses.
    pub fn stop(&mut self) {
        let Some((mut reply, _)) = self.asked.take() else { return };
        reply.close();
        let reserved = reply.try_recv().map(|reply| reply.reserved).unwrap_or_default();
        reserved.into_iter().for_each(|step| self.settle_one(step, 0));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::{Limit, Strategy};
    use crate::store::Counters;
    use crate::store::memory::Memory;

    /// Grows a reservation to `total` in steps of 3, until that is refused. Returns what is reserved, and used after settling
    /// at `cost`.
    fn grown(quota: &str, beyond: Beyond, total: u64, cost: u64) -> (u64, u64) {
        let rate = quota.parse::<crate::limit::Rate>().unwrap();
        let burst = Strategy::TokenBucket { burst: rate.quota() };
        let limit = Arc::new(Limit::new("l", &[rate.with_strategy(burst).unwrap()]));
        let store = Arc::new(Store::from(Memory::new(100, usize::MAX)));
        let ask = Ask::new(&limit, Fingerprint::of(b"key"), 0);
        let mut open = OpenReservation::new(Reserved::nothing(&ask), beyond);
        let mut growth = Growth::new(store.clone(), 0);
        let cx = &mut Context::from_waker(Waker::noop());
        for total in 1..=total {
            let polled = growth.poll(cx, [(Needed { total, step: 3 }, &mut open)].into_iter());
            if !matches!(polled, Poll::Ready(Ok(()))) {
                break;
            }
            growth.settle_spent(&mut open, total.min(cost));
            assert!(open.reserved.len() <= MOST_SPENT + 1, "they take no memory");
        }
        let reserved = open.cost();
        growth.settle(&mut open, cost);
        let Counters::Memory(memory) = &store.counters else { unreachable!() };
        (reserved, memory.peek(&limit, ask.key, clock::now()).rates[0].used)
    }

    #[test]
    fn a_stream_of_many_steps_keeps_few_reservations() {
        assert_eq!(grown("100000/31d", Beyond::Refused, 10_000, 10_000), (10_002, 10_000));
        assert_eq!(grown("100000/31d", Beyond::Charged, 10_000, 9_995), (10_002, 9_995));
    }

    #[test]
    fn what_there_is_no_room_for_is_refused_or_charged_or_left_to_the_end() {
        assert_eq!(grown("100/31d", Beyond::Refused, 200, 100), (100, 100));
        assert_eq!(grown("100/31d", Beyond::Charged, 200, 200), (201, 200));
        assert_eq!(grown("100/31d", Beyond::Settled, 200, 200), (0, 200));
    }
}
