//! Holds requests until their limit has room: in order of arrival, for a bounded time, and in bounded number.

use std::ops::ControlFlow;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, sleep, timeout_at};

use super::wait_queues::QueueSlot;
use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict};
use crate::base::clock::{self, Time, micros};
use crate::limit::Verdict;
use crate::store::{Answer, Ask, RefusedAsk, Reply};

/// How often a held request asks again if other requests may give back a part of their reservations.
const RECHECK: Duration = Duration::from_millis(20);

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
        let Some(reply) = answer else { return state.unknown(&input) };
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
            None => return state.conclude(&input, reply),
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
    (held + wait <= max_delay).then_some(wait)
}

/// Whether a request with this reply is held because it may pass later.
pub(super) fn is_held(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>, reply: &Reply) -> bool {
    longest_delay(input, state, reply).is_some_and(|longest| hold(input, state, longest, Duration::ZERO).is_some())
}

/// The limit in whose queue this request would wait, if that queue is full, and the longest delay of that limit.
pub(super) fn full_queue(input: &DecisionInput<'_, '_>, state: &DecisionState<'_>) -> Option<(usize, Duration)> {
    let ask = state.unasked().iter().find(|ask| must_queue(input, ask))?;
    let (max_delay, max_delayed) = delay(input, ask.place)?;
    input.wait_queues.is_full(ask.key, max_delayed).then_some((ask.place, max_delay))
}

/// Whether requests of the same key are held, so this one queues behind them.
fn must_queue(input: &DecisionInput<'_, '_>, ask: &Ask<'_>) -> bool {
    delay(input, ask.place).is_some() && input.wait_queues.has_waiters(ask.key)
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
    let key = state.unasked().iter().find(|ask| ask.place == place)?.key;
    let mut slot = input.wait_queues.join(key, max_delayed)?;
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
        let found = self.asks.iter().zip(&self.profiles).find(|(ask, _)| ask.place == place);
        if let Some((ask, _)) = found {
            input.limits[place].record_key(input, ask.key, true);
        }
        let key = found.map(|(ask, _)| ask.key);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(micros(max_delay)), level: 0 };
        let as_of = self.now(input.now);
        let outcome = found.map(|(ask, profile)| {
            let Ask { limit, need, .. } = *ask;
            LimitOutcome { place, profile: *profile, limit, need, verdict: LimitVerdict::Rates(verdict), as_of }
        });
        self.outcomes = SmallVec::from_iter(outcome);
        key.into_iter().for_each(|key| self.refused_unasked(input, place, key));
        decision
    }
}
