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

    /// Settles the earliest reservations, if there are many and no less than `cost` will be charged in the end.
    fn settle_spent(&mut self, cost: u64, settle: impl Fn(Reserved, u64)) {
        while self.reserved.len() > MOST_SPENT && self.spent + self.reserved[0].cost() <= cost {
            let ticket = self.reserved.remove(0);
            let cost = ticket.cost();
            self.spent += cost;
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
            Self::keep(limits, mem::take(&mut reply.reserved));
            let lacks = limits.iter().any(|limit| limit.open().lacks(needed(limit)));
            match (lacks, extra) {
                (false, _) => return Poll::Ready(Ok(())),
                (true, Extra::Step) => extra = Extra::None,
                (true, Extra::None) => {
                    Self::tell(limits, &reply);
                    return Poll::Ready(Err(reply));
                }
            }
        }
    }

    pub fn keep<L: Metered>(limits: &mut [L], reserved: Vec<Reserved>) {
        for mut reserved in reserved {
            let mut open = limits.iter_mut().map(L::open_mut);
            if let Some(open) = open.find(|open| open.place() == Some(reserved.place())) {
                open.first().into_iter().for_each(|first| reserved.watch_by(first.watch().clone()));
                open.reserved.push(reserved);
            }
        }
    }

    /// Tells what a refusal says about watched limits.
    pub fn tell<L: Metered>(limits: &[L], refusal: &Reply) {
        if !refusal.reached.is_empty() {
            let first = limits.iter().filter_map(|limit| limit.open().first());
            first.for_each(|first| first.watch().tell_of(&refusal.reached, first.place()));
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
        open.settle(cost, |reserved, cost| self.settle_one(reserved, cost));
    }

    /// At least `cost` will be charged in the end.
    pub fn settle_spent(&self, open: &mut OpenReservation, cost: u64) {
        open.settle_spent(cost, |reserved, cost| self.settle_one(reserved, cost));
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

    struct Stream(OpenReservation);

    impl Metered for Stream {
        fn open(&self) -> &OpenReservation {
            &self.0
        }

        fn open_mut(&mut self) -> &mut OpenReservation {
            &mut self.0
        }
    }

    /// Grows a reservation to `total` in steps of 3, until that is refused. Returns what is reserved, and used after settling
    /// at `cost`.
    fn grown(quota: &str, beyond: Beyond, total: u64, cost: u64) -> (u64, u64) {
        let rate = quota.parse::<crate::limit::Rate>().unwrap();
        let burst = Strategy::TokenBucket { burst: rate.quota() };
        let limit = Arc::new(Limit::new("l", &[rate.with_strategy(burst).unwrap()]));
        let store = Arc::new(Store::from(Memory::new(100, usize::MAX)));
        let ask = Ask::new(&limit, Fingerprint::of(b"key"), 0);
        let mut limits = [Stream(OpenReservation::new(Reserved::nothing(&ask), beyond))];
        let mut growth = Growth::new(store.clone(), 0);
        let cx = &mut Context::from_waker(Waker::noop());
        for total in 1..=total {
            let polled = growth.poll(cx, &mut limits, |_| Needed { total, step: 3 });
            if !matches!(polled, Poll::Ready(Ok(()))) {
                break;
            }
            growth.settle_spent(&mut limits[0].0, total.min(cost));
            assert!(limits[0].0.reserved.len() <= MOST_SPENT + 1, "they take no memory");
        }
        let reserved = limits[0].0.cost();
        growth.settle(&mut limits[0].0, cost);
        let Counters::Memory(memory) = store.counters() else { unreachable!() };
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
