//! Holding requests until their limit has room, in order of arrival, for a while and in bounded number.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, sleep, timeout_at};

use super::lines::Turn;
use super::{Case, Decision, Judged, Open};
use crate::clock::{self, micros};
use crate::config::OnLimit;
use crate::limit::Verdict;
use crate::store::{Answer, Ask, Reply, Verdicts};

/// How long a request that is held waits at most until it is seen whether something was given back.
const GIVEN_BACK: Duration = Duration::from_millis(20);

/// Decides where guards may delay. Dropped, it leaves its line at once.
///
/// A request stands in one line at a time, that of the limit that holds it longest, so no two wait for each other.
pub(super) async fn decide<'a>(case: &Case<'a, '_>, open: &mut Open<'a, '_>) -> Decision {
    let begun = Instant::now();
    let mut now = case.now;
    // Who comes while others wait for the same key goes behind them.
    let waits = |ask: &&Ask<'_>| delay(case, ask.place).is_some() && case.lines.is_waited_for(ask.key);
    let mut wanted = open.opinion.asks.iter().find(waits).map(|ask| ask.place);
    let mut turn: Option<(usize, Turn)> = None;
    loop {
        if let Some(place) = wanted.take()
            && let Some((longest, most)) = delay(case, place)
        {
            // The line before is left first, so that nobody stands in two.
            drop(turn.take());
            match stand(case, open, place, begun + longest, most).await {
                Some(joined) => turn = Some((place, joined)),
                None => return open.give_up(case, place, longest),
            }
            now = clock::now();
        }
        let answer = case.store.decide(&open.opinion.asks, now, case.worker);
        let Some(reply) = received(answer).await else { return open.unknown(case) };
        let Some((place, verdict)) = longest(case, open, &reply.verdicts) else { return open.conclude(case, reply) };
        // What was reserved may be given back at any time.
        let soonest = if settles(open, place) { GIVEN_BACK } else { Duration::MAX };
        let wait = verdict.wait.map(|wait| Duration::from_micros(wait).min(soonest));
        let most = delay(case, place).map(|(most, _)| most);
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
            _ => return open.conclude(case, reply),
        }
    }
}

/// Whether this guard's requests give back what they do not cost.
fn settles(open: &Open<'_, '_>, place: usize) -> bool {
    open.opinion.asks.iter().any(|ask| ask.place == place && ask.settles)
}

async fn received(answer: Answer) -> Option<Reply> {
    match answer {
        Answer::Now(reply) => Some(reply),
        Answer::Later(reply) => reply.await.ok(),
        Answer::Away => None,
    }
}

/// How long and how many this guard holds.
fn delay(case: &Case<'_, '_>, place: usize) -> Option<(Duration, usize)> {
    match case.guards[place].on_limit {
        OnLimit::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
        _ => None,
    }
}

/// Stands in the line of this guard until nobody is before it; `None` if that is full or lasts beyond `until`.
async fn stand(
    case: &Case<'_, '_>,
    open: &mut Open<'_, '_>,
    place: usize,
    until: Instant,
    most: usize,
) -> Option<Turn> {
    let key = open.opinion.asks.iter().find(|ask| ask.place == place)?.key;
    let mut turn = case.lines.join(key, most)?;
    open.opinion.held_since.get_or_insert(case.now);
    case.guards[place].decided(case.worker).delayed.one();
    timeout_at(until, turn.first()).await.ok()?;
    Some(turn)
}

/// The guard that holds the request longest, if only such as delay refuse it.
fn longest(case: &Case<'_, '_>, open: &Open<'_, '_>, verdicts: &Verdicts) -> Option<(usize, Verdict)> {
    if !open.refusing(verdicts).all(|(place, _)| delay(case, place).is_some()) {
        return None;
    }
    open.refusing(verdicts).max_by_key(|(_, verdict)| verdict.wait.unwrap_or(u64::MAX))
}

impl Open<'_, '_> {
    /// Refuses what stood in line for too long, or found the line full: those before it are gone after `longest`.
    fn give_up(&mut self, case: &Case<'_, '_>, place: usize, longest: Duration) -> Decision {
        case.guards[place].decided(case.worker).rejected.one();
        let found = self.opinion.asks.iter().zip(&self.profiles).find(|(ask, _)| ask.place == place);
        let verdict = Verdict { admitted: false, rate: 0, remaining: 0, wait: Some(micros(longest)) };
        let judged = found.map(|(ask, profile)| {
            let Ask { limit, need, .. } = *ask;
            Judged { place, profile: *profile, limit, need, verdict }
        });
        self.opinion.judged = SmallVec::from_iter(judged);
        Decision::Rejected
    }
}
