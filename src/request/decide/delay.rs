//! Holds requests until their limit has room: in order of arrival, for a bounded time, and in bounded number. Only the first
//! request of a queue asks the store.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict};
use crate::base::clock::{self, Time, micros};
use crate::base::fingerprint::Fingerprint;
use crate::limit::Verdict;
use crate::store::{Answer, Ask, RefusedAsk, Reply};

/// How often a held request asks again if other requests may give back a part of their reservations.
const RECHECK: Duration = Duration::from_millis(20);
/// How often any held request asks again, since an operator may have reset its key.
const RESET_CHECK: Duration = Duration::from_secs(1);

/// Decides on a route with limits that may delay. If the future is dropped, the request leaves its queue at once, and is
/// charged only if another proxy asks.
///
/// A request is in one queue at a time, that of the limit that holds it longest, so no two requests wait for each other.
pub(super) async fn decide<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    let begun = Instant::now();
    let mut input = DecisionInput { ..*input };
    let mut next_queue = state.unasked().iter().find(|ask| must_queue(&input, ask)).map(|ask| ask.place);
    let mut slot: Option<(usize, QueueSlot)> = None;
    loop {
        if let Some(place) = next_queue.take()
            && let Some((max_delay, max_delayed)) = delay(&input, place)
        {
            // The request leaves its queue before it joins another, so it is never in two.
            drop(slot.take());
            state.leave_flight();
            state.begin_to_wait(&input);
            let joined = queue(&input, state, place, begun + max_delay, max_delayed).await;
            input.now = state.now(input.now);
            match joined {
                Some(joined) => slot = Some((place, joined)),
                None => {
                    state.end_waiting();
                    return state.give_up(&input, place, max_delay);
                }
            }
        }
        if let ControlFlow::Break(decision) = state.rejoin_flight(&input) {
            state.end_waiting();
            return decision;
        }
        let answer = match input.store.decide(state.unasked(), input.now, input.worker) {
            Answer::Now(reply) => Some(reply),
            Answer::Later(reply) => state.receive(&input, reply).await,
            Answer::Away => None,
        };
        state.end_waiting();
        let Some(mut reply) = answer else { return state.unknown(&input) };
        let Some(refusal) = longest_delay(&input, state, &reply) else {
            // The next request in the queue may ask now.
            drop(slot);
            return state.hold_or_conclude(&input, reply).await;
        };
        let place = refusal.place;
        match hold(&input, state, refusal, begun.elapsed()) {
            Some(wait) if slot.as_ref().is_some_and(|(queue, _)| *queue == place) => {
                state.leave_flight();
                state.begin_to_wait(&input);
                sleep(wait).await;
                input.now = state.now(input.now);
            }
            Some(_) => next_queue = Some(place),
            None => return state.conclude(&input, &mut reply),
        }
    }
}

/// How long the limit holds a request that was already held for `held`. `None` refuses it, because that would be too long.
fn hold(
    input: &DecisionInput<'_, '_>,
    state: &DecisionState<'_>,
    refusal: RefusedAsk,
    held: Duration,
) -> Option<Duration> {
    // Other requests may give back their reservations at any time.
    let soonest = if settles(state, refusal.place) { RECHECK } else { Duration::MAX };
    let wait = Duration::from_micros(refusal.wait()?).min(soonest);
    let (max_delay, _) = delay(input, refusal.place)?;
    (held + wait <= max_delay).then_some(wait.min(RESET_CHECK))
}

/// Whether a request with this reply is held because it may pass later.
pub(super) fn is_held(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>, reply: &Reply) -> bool {
    longest_delay(input, state, reply).is_some_and(|longest| hold(input, state, longest, Duration::ZERO).is_some())
}

/// The limit in whose queue this request would wait, if that queue is full, and the longest delay of that limit.
pub(super) fn full_queue(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>) -> Option<(usize, Duration)> {
    let ask = state.unasked().iter().find(|ask| must_queue(input, ask))?;
    let (max_delay, max_delayed) = delay(input, ask.place)?;
    input.wait_queues.is_full(queue_of(ask), max_delayed).then_some((ask.place, max_delay))
}

/// The queue of requests of the same key with the same rates. Those with other rates, such as those of a tier or of a new
/// override, may have room when these have none.
pub(super) fn queue_of(ask: &Ask<'_>) -> Fingerprint {
    ask.key.with(ask.limit.terms())
}

/// Whether requests of the same queue are held, so this one queues behind them.
fn must_queue(input: &DecisionInput<'_, '_>, ask: &Ask<'_>) -> bool {
    delay(input, ask.place).is_some() && input.wait_queues.has_waiters(queue_of(ask))
}

/// Whether requests of this limit, or of its pool, may give back a part of their reservations.
fn settles(state: &DecisionState<'_>, place: usize) -> bool {
    let asks = state.unasked();
    let of_pool = |ask: &Ask<'_>| asks.iter().any(|pool| ask.overflow == Some(pool.place) && pool.settles);
    asks.iter().any(|ask| ask.place == place && (ask.settles || of_pool(ask)))
}

/// How long this limit may hold a request, and how many of a key. A report of past use is not held.
fn delay(input: &DecisionInput<'_, '_>, place: usize) -> Option<(Duration, usize)> {
    let (max_delay, max_delayed) = input.limits.get(place)?.on_limit.delay()?;
    input.reported(place).is_none().then_some((max_delay.min(input.longest_hold()), max_delayed))
}

/// Joins the queue of this limit and waits for the turn of the request. `None` if the queue is full, or at `until`.
async fn queue(
    input: &DecisionInput<'_, '_>,
    state: &mut DecisionState<'_>,
    place: usize,
    until: Instant,
    max_delayed: usize,
) -> Option<QueueSlot> {
    let queue = queue_of(state.unasked().iter().find(|ask| ask.place == place)?);
    let mut slot = input.wait_queues.join(queue, max_delayed)?;
    state.begin_to_hold(input.now);
    input.limits[place].counters(input.worker).delayed.one();
    timeout_at(until, slot.wait_until_first()).await.ok()?;
    Some(slot)
}

/// The limit that holds the request longest. `None` if the request is admitted, or if a limit that does not delay refuses it.
fn longest_delay(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>, reply: &Reply) -> Option<RefusedAsk> {
    let refusals = || reply.refusals(state.unasked());
    if !refusals().all(|refusal| delay(input, refusal.place).is_some()) {
        return None;
    }
    refusals().max_by_key(|refusal| refusal.wait().unwrap_or(u64::MAX))
}

impl<'a> DecisionState<'a> {
    /// The current time, if the clock said `read` when the decision began. Reads it again only after a wait.
    pub fn now(&self, read: Time) -> Time {
        if self.has_waited { clock::now() } else { read }
    }

    pub(super) fn begin_to_hold(&mut self, now: Time) {
        self.held_since.get_or_insert(now);
        self.has_waited = true;
    }

    /// The request waits until it may ask for room. A proxy that asks may forward it without an answer, so its limits charge
    /// it if the future is dropped before the answer. If the store admits it in the same moment, it is charged twice, which
    /// is better than not at all.
    fn begin_to_wait(&mut self, input: &DecisionInput<'a, '_>) {
        if input.asker.is_some() {
            let asks = self.asks.iter().skip(self.asked);
            self.reservations.charge_if_dropped(asks.filter(|ask| ask.cost > 0 && input.reported(ask.place).is_none()));
        }
    }

    /// The wait is over, so a drop no longer charges the request.
    fn end_waiting(&mut self) {
        self.reservations.charge_if_dropped([].into_iter());
    }

    /// Refuses a request that found the queue full or waited for too long. The requests before it are gone by `max_delay`.
    pub(super) fn give_up(&mut self, input: &DecisionInput<'a, '_>, place: usize, max_delay: Duration) -> Decision {
        let decision = self.over(input, place);
        self.outcomes.clear();
        let found = self.asks.iter().zip(&self.profiles).find(|(ask, _)| ask.place == place);
        let Some((&Ask { limit, key, need, .. }, &profile)) = found else { return decision };
        let route_limit = &input.limits[place];
        route_limit.record_key(input, key, true);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(micros(max_delay)), level: 0 };
        let (partition, verdict) = (route_limit.key.partition(key), LimitVerdict::Rates(verdict));
        let as_of = self.now(input.now);
        self.outcomes.push(LimitOutcome { place, profile, limit, partition, need, verdict, as_of });
        self.refused_unasked(input, place, key);
        decision
    }
}

/// The queues of this process. An empty queue is removed.
#[derive(Debug, Default)]
pub struct WaitQueues {
    queues: Mutex<HashMap<Fingerprint, Queue, RandomState>>,
    next_ticket: AtomicU64,
}

/// Requests by their tickets, in order of arrival. The sender wakes a request that becomes the first; `None` if it knows.
type Queue = BTreeMap<u64, Option<oneshot::Sender<()>>>;

/// A place in a queue. Dropping it leaves the queue.
pub struct QueueSlot {
    wait_queues: Arc<WaitQueues>,
    key: Fingerprint,
    ticket: u64,
    /// `None` once the slot is the first of its queue.
    became_first: Option<oneshot::Receiver<()>>,
}

impl WaitQueues {
    pub fn has_waiters(&self, key: Fingerprint) -> bool {
        self.queues.lock().contains_key(&key)
    }

    pub fn is_full(&self, key: Fingerprint, max_delayed: usize) -> bool {
        self.queues.lock().get(&key).is_some_and(|queue| queue.len() >= max_delayed)
    }

    pub fn join(self: &Arc<Self>, key: Fingerprint, max_delayed: usize) -> Option<QueueSlot> {
        let mut queues = self.queues.lock();
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let queue = queues.entry(key).or_default();
        if queue.len() >= max_delayed {
            return None;
        }
        let (notify_first, became_first) = oneshot::channel();
        let is_first = queue.is_empty();
        queue.insert(ticket, (!is_first).then_some(notify_first));
        Some(QueueSlot { wait_queues: self.clone(), key, ticket, became_first: (!is_first).then_some(became_first) })
    }

    pub fn held(&self) -> usize {
        self.queues.lock().values().map(Queue::len).sum()
    }
}

impl QueueSlot {
    pub async fn wait_until_first(&mut self) {
        if let Some(became_first) = &mut self.became_first {
            // The sender is dropped only together with this slot.
            let _ = became_first.await;
            self.became_first = None;
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut queues = self.wait_queues.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else { return };
        queue.remove(&self.ticket);
        if let Some(mut first) = queue.first_entry() {
            // A request is notified once. If its receiver is gone, it is about to leave the queue too.
            let _ = first.get_mut().take().map(|notify| notify.send(()));
        } else {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Instant;

    use super::*;

    fn is_first(slot: &mut QueueSlot) -> bool {
        pin!(slot.wait_until_first()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn requests_are_served_in_order_when_others_leave() {
        let wait_queues = Arc::new(WaitQueues::default());
        let key = Fingerprint::of(b"a");
        let mut slots: Vec<QueueSlot> = (0..4).map(|_| wait_queues.join(key, 4).unwrap()).collect();
        assert!(wait_queues.join(key, 4).is_none(), "the queue is full");
        assert!(wait_queues.join(Fingerprint::of(b"b"), 4).is_some());
        assert!(is_first(&mut slots[0]) && !is_first(&mut slots[1]) && !is_first(&mut slots[2]));
        drop(slots.remove(1));
        assert!(!is_first(&mut slots[1]), "one in the middle has left");
        drop(slots.remove(0));
        assert!(is_first(&mut slots[0]) && !is_first(&mut slots[1]));
        drop(slots.remove(0));
        assert!(is_first(&mut slots[0]));
        assert!(wait_queues.has_waiters(key));
        drop(slots);
        assert!(!wait_queues.has_waiters(key) && wait_queues.held() == 0);
    }

    #[test]
    fn it_takes_no_longer_to_leave_a_long_queue() {
        const LONG: usize = 100_000;
        let wait_queues = Arc::new(WaitQueues::default());
        let key = Fingerprint::of(b"a");
        let mut slots: Vec<QueueSlot> = (0..LONG).map(|_| wait_queues.join(key, LONG).unwrap()).collect();
        let begun = Instant::now();
        // The last one leaves first. If each looked at all others, this would take minutes.
        while slots.pop().is_some() {}
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(!wait_queues.has_waiters(key));
    }
}
