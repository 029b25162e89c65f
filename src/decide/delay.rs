//! Holding requests until their limit has room, in order of arrival, for a while and in bounded number.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, sleep, timeout_at};

use super::wait_queues::QueueSlot;
use super::{Decision, DecisionInput, Evaluation, LimitOutcome};
use crate::clock::{self, micros};
use crate::config::OnLimit;
use crate::limit::Verdict;
use crate::store::{Answer, Ask, Reply, Verdicts};

/// How long a request that is held waits at most until it is seen whether something was given back.
const GIVEN_BACK: Duration = Duration::from_millis(20);

/// Decides where guards may delay. Dropped, it leaves its line at once.
///
/// A request stands in one line at a time, that of the limit that holds it longest, so no two wait for each other.
pub(super) async fn decide<'a>(input: &DecisionInput<'a, '_>, evaluation: &mut Evaluation<'a, '_>) -> Decision {
    let begun = Instant::now();
    let mut now = input.now;
    // Who comes while others wait for the same key goes behind them.
    let waits = |ask: &&Ask<'_>| delay(input, ask.place).is_some() && input.wait_queues.is_waited_for(ask.key);
    let mut wanted = evaluation.state.asks.iter().find(waits).map(|ask| ask.place);
    let mut turn: Option<(usize, QueueSlot)> = None;
    loop {
        if let Some(place) = wanted.take()
            && let Some((longest, most)) = delay(input, place)
        {
            // The line before is left first, so that nobody stands in two.
            drop(turn.take());
            match stand(input, evaluation, place, begun + longest, most).await {
                Some(joined) => turn = Some((place, joined)),
                None => return evaluation.give_up(input, place, longest),
            }
            now = clock::now();
        }
        let answer = input.store.decide(&evaluation.state.asks, now, input.worker);
        let Some(reply) = received(answer).await else { return evaluation.unknown(input) };
        let Some((place, verdict)) = longest(input, evaluation, &reply.verdicts) else {
            return evaluation.conclude(input, reply);
        };
        // What was reserved may be given back at any time.
        let soonest = if settles(evaluation, place) { GIVEN_BACK } else { Duration::MAX };
        let wait = verdict.wait.map(|wait| Duration::from_micros(wait).min(soonest));
        let most = delay(input, place).map(|(most, _)| most);
        // What cannot be waited for is told at once.
        match (most, wait) {
            (Some(most), Some(wait)) if begun.elapsed() + wait <= most => {
                if turn.as_ref().is_some_and(|(line, _)| *line == place) {
                    sleep(wait).await;
                    now = clock::now();
                } else {
                    wanted = Some(place);
                }
            }
            _ => return evaluation.conclude(input, reply),
        }
    }
}

/// Whether this guard's requests give back what they do not cost.
fn settles(evaluation: &Evaluation<'_, '_>, place: usize) -> bool {
    evaluation.state.asks.iter().any(|ask| ask.place == place && ask.settles)
}

async fn received(answer: Answer) -> Option<Reply> {
    match answer {
        Answer::Now(reply) => Some(reply),
        Answer::Later(reply) => reply.await.ok(),
        Answer::Away => None,
    }
}

/// How long and how many this guard holds.
fn delay(input: &DecisionInput<'_, '_>, place: usize) -> Option<(Duration, usize)> {
    match input.limits[place].on_limit {
        OnLimit::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
        _ => None,
    }
}

/// Stands in the line of this guard until nobody is before it; `None` if that is full or lasts beyond `until`.
async fn stand(
    input: &DecisionInput<'_, '_>,
    evaluation: &mut Evaluation<'_, '_>,
    place: usize,
    until: Instant,
    most: usize,
) -> Option<QueueSlot> {
    let key = evaluation.state.asks.iter().find(|ask| ask.place == place)?.key;
    let mut turn = input.wait_queues.join(key, most)?;
    evaluation.state.held_since.get_or_insert(input.now);
    input.limits[place].decided(input.worker).delayed.one();
    timeout_at(until, turn.first()).await.ok()?;
    Some(turn)
}

/// The guard that holds the request longest, if only such as delay refuse it.
fn longest(
    input: &DecisionInput<'_, '_>,
    evaluation: &Evaluation<'_, '_>,
    verdicts: &Verdicts,
) -> Option<(usize, Verdict)> {
    if !evaluation.refusing(verdicts).all(|(place, _)| delay(input, place).is_some()) {
        return None;
    }
    evaluation.refusing(verdicts).max_by_key(|(_, verdict)| verdict.wait.unwrap_or(u64::MAX))
}

impl Evaluation<'_, '_> {
    /// Refuses what stood in line for too long, or found the line full: those before it are gone after `longest`.
    fn give_up(&mut self, input: &DecisionInput<'_, '_>, place: usize, longest: Duration) -> Decision {
        input.limits[place].decided(input.worker).rejected.one();
        let found = self.state.asks.iter().zip(&self.profiles).find(|(ask, _)| ask.place == place);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(micros(longest)) };
        let outcomes = found.map(|(ask, profile)| {
            let Ask { limit, need, .. } = *ask;
            LimitOutcome { place, profile: *profile, limit, need, verdict }
        });
        self.state.outcomes = SmallVec::from_iter(outcomes);
        Decision::Rejected
    }
}
