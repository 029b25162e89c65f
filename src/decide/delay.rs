//! Holds requests until their limit has room: in order of arrival, for a bounded time, and in bounded number.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, sleep, timeout_at};

use super::wait_queues::QueueSlot;
use super::{Decision, DecisionInput, Evaluation, LimitOutcome, LimitVerdict};
use crate::clock::{self, micros};
use crate::config::OnLimit;
use crate::limit::Verdict;
use crate::store::{Answer, Ask, Verdicts};

/// How often a held request asks again where other requests may give back what they have reserved.
const RECHECK: Duration = Duration::from_millis(20);

/// Decides on a route with limits that may delay. If the future is dropped, the request leaves its queue at once.
///
/// A request is in one queue at a time, that of the limit that holds it longest, so no two requests wait for each
/// other.
pub(super) async fn decide<'a>(input: &DecisionInput<'a, '_>, evaluation: &mut Evaluation<'a, '_>) -> Decision {
    let begun = Instant::now();
    let mut now = input.now;
    // If requests of the same key are held, this one queues behind them.
    let must_queue = |ask: &&Ask<'_>| delay(input, ask.place).is_some() && input.wait_queues.has_waiters(ask.key);
    let mut next_queue = evaluation.state.asks.iter().find(must_queue).map(|ask| ask.place);
    let mut slot: Option<(usize, QueueSlot)> = None;
    loop {
        if let Some(place) = next_queue.take()
            && let Some((max_delay, max_delayed)) = delay(input, place)
        {
            // The request leaves its queue before it joins another, so that it is never in two.
            drop(slot.take());
            match queue(input, evaluation, place, begun + max_delay, max_delayed).await {
                Some(joined) => slot = Some((place, joined)),
                None => return evaluation.give_up(input, place, max_delay),
            }
            now = clock::now();
        }
        let answer = match input.store.decide(&evaluation.state.asks, now, input.worker) {
            Answer::Now(reply) => Some(reply),
            Answer::Later(reply) => evaluation.receive(input, reply).await,
            Answer::Away => None,
        };
        let Some(reply) = answer else { return evaluation.unknown(input) };
        let Some((place, verdict)) = longest_delay(input, evaluation, &reply.verdicts) else {
            return evaluation.conclude(input, reply);
        };
        // Other requests may give back their reservations at any time.
        let soonest = if settles(evaluation, place) { RECHECK } else { Duration::MAX };
        let wait = verdict.wait.map(|wait| Duration::from_micros(wait).min(soonest));
        let max_delay = delay(input, place).map(|(max_delay, _)| max_delay);
        // A request that would wait too long is refused at once.
        match (max_delay, wait) {
            (Some(max_delay), Some(wait)) if begun.elapsed() + wait <= max_delay => {
                if slot.as_ref().is_some_and(|(queue, _)| *queue == place) {
                    sleep(wait).await;
                    now = clock::now();
                } else {
                    next_queue = Some(place);
                }
            }
            _ => return evaluation.conclude(input, reply),
        }
    }
}

/// Whether requests of this limit may give back a part of what they reserve.
fn settles(evaluation: &Evaluation<'_, '_>, place: usize) -> bool {
    evaluation.state.asks.iter().any(|ask| ask.place == place && ask.settles)
}

/// How long this limit may hold a request, and how many of a key.
fn delay(input: &DecisionInput<'_, '_>, place: usize) -> Option<(Duration, usize)> {
    match input.limits[place].on_limit {
        OnLimit::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
        _ => None,
    }
}

/// Joins the queue of this limit and waits until the request is the first; `None` if the queue is full or that takes
/// longer than `until`.
async fn queue(
    input: &DecisionInput<'_, '_>,
    evaluation: &mut Evaluation<'_, '_>,
    place: usize,
    until: Instant,
    max_delayed: usize,
) -> Option<QueueSlot> {
    let key = evaluation.state.asks.iter().find(|ask| ask.place == place)?.key;
    let mut slot = input.wait_queues.join(key, max_delayed)?;
    evaluation.state.held_since.get_or_insert(input.now);
    input.limits[place].counters(input.worker).delayed.one();
    timeout_at(until, slot.wait_until_first()).await.ok()?;
    Some(slot)
}

/// The limit that holds the request longest. `None` if the request is admitted or a limit refuses it that does not
/// delay.
fn longest_delay(
    input: &DecisionInput<'_, '_>,
    evaluation: &Evaluation<'_, '_>,
    verdicts: &Verdicts,
) -> Option<(usize, Verdict)> {
    if !evaluation.refusals(verdicts).all(|(place, _)| delay(input, place).is_some()) {
        return None;
    }
    evaluation.refusals(verdicts).max_by_key(|(_, verdict)| verdict.wait.unwrap_or(u64::MAX))
}

impl Evaluation<'_, '_> {
    /// Refuses a request that was queued for too long or found the queue full. The requests before it are gone after
    /// `max_delay`.
    fn give_up(&mut self, input: &DecisionInput<'_, '_>, place: usize, max_delay: Duration) -> Decision {
        input.limits[place].counters(input.worker).rejected.one();
        let found = self.state.asks.iter().zip(&self.profiles).find(|(ask, _)| ask.place == place);
        if let Some((ask, _)) = found {
            input.limits[place].record_key(input, ask.key, true);
        }
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(micros(max_delay)) };
        let outcome = found.map(|(ask, profile)| {
            let Ask { limit, need, .. } = *ask;
            LimitOutcome { place, profile: *profile, limit, need, verdict: LimitVerdict::Rates(verdict) }
        });
        self.state.outcomes = SmallVec::from_iter(outcome);
        Decision::Rejected
    }
}
