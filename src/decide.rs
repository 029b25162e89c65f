//! May this request pass? Every limit of its route is asked at once; all are charged, or none.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Time;
use crate::config::Missing;
use crate::identify::{Facts, Identity};
use crate::limit::{Limit, Verdict};
use crate::store::{Answer, Ask, Asks, Store, Verdicts};
use crate::tally::{Counter, PerWorker};

/// One limit as it guards one route.
pub struct Guard {
    /// The limit.
    pub limit: Arc<Limit>,
    /// How its key is read from the route's requests.
    pub identity: Identity,
    /// What happens without a key.
    pub missing: Missing,
    /// What it has decided.
    pub tally: Arc<LimitTally>,
}

/// What a limit has decided, on all routes.
#[derive(Debug)]
pub struct LimitTally {
    /// Its name.
    pub name: String,
    /// By worker.
    pub workers: PerWorker<Decided>,
}

/// The decisions of one limit on one worker.
#[derive(Debug, Default)]
pub struct Decided {
    /// Let through by this limit and all others of the route.
    pub admitted: Counter,
    /// Refused by this limit.
    pub rejected: Counter,
    /// Would have been let through by this limit, refused by another: not charged.
    pub spared: Counter,
    /// Not asked, for want of a key.
    pub skipped: Counter,
    /// Refused for want of a key.
    pub keyless: Counter,
    /// Not decided, because the store did not answer.
    pub unknown: Counter,
}

/// The verdict of one guard, by its index on the route.
pub type Judged = SmallVec<[(usize, Verdict); 2]>;

/// The outcome for a request.
#[derive(Debug)]
pub enum Decision {
    /// It may pass; so say these guards, of which there may be none.
    Admitted(Judged),
    /// At least one guard refuses.
    Rejected(Judged),
    /// This guard, by its index, wants a key.
    NoKey(usize),
    /// The store does not answer.
    Unknown,
}

/// The route's asks with the guards they are for, or the guard that refuses a request without a key.
fn gather<'a>(
    guards: &'a [Guard],
    facts: &Facts<'_>,
    worker: usize,
) -> Result<(Asks<'a>, SmallVec<[usize; 2]>), usize> {
    let mut asks = Asks::new();
    let mut asked = SmallVec::new();
    for (index, guard) in guards.iter().enumerate() {
        let key = match (guard.identity.of(facts), guard.missing) {
            (Some(key), _) => key,
            (None, Missing::Shared) => guard.identity.nobody(),
            (None, Missing::Skip) => {
                guard.tally.workers.of(worker).skipped.one();
                continue;
            }
            (None, Missing::Reject) => {
                guard.tally.workers.of(worker).keyless.one();
                return Err(index);
            }
        };
        asks.push(Ask { limit: &guard.limit, key, cost: 1 });
        asked.push(index);
    }
    Ok((asks, asked))
}

/// Decides. With a store in this process it answers on the spot; otherwise it waits `timeout` at most.
pub async fn decide(
    guards: &[Guard],
    facts: &Facts<'_>,
    store: &Store,
    timeout: Duration,
    now: Time,
    worker: usize,
) -> Decision {
    let (asks, asked) = match gather(guards, facts, worker) {
        Ok(gathered) => gathered,
        Err(guard) => return Decision::NoKey(guard),
    };
    if asks.is_empty() {
        return Decision::Admitted(Judged::new());
    }
    let verdicts = match store.decide(&asks, now) {
        Answer::Now(verdicts) => Some(verdicts),
        Answer::Later(verdicts) => tokio::time::timeout(timeout, verdicts).await.ok().and_then(Result::ok),
        Answer::Away => None,
    };
    match verdicts {
        Some(verdicts) => settle(guards, &asked, verdicts, worker),
        None => {
            asked.iter().for_each(|index| guards[*index].tally.workers.of(worker).unknown.one());
            Decision::Unknown
        }
    }
}

fn settle(guards: &[Guard], asked: &[usize], verdicts: Verdicts, worker: usize) -> Decision {
    let judged: Judged = asked.iter().copied().zip(verdicts).collect();
    let all = judged.iter().all(|(_, verdict)| verdict.admitted);
    for (index, verdict) in &judged {
        let decided = guards[*index].tally.workers.of(worker);
        match verdict.admitted {
            true if all => decided.admitted.one(),
            true => decided.spared.one(),
            false => decided.rejected.one(),
        }
    }
    if all { Decision::Admitted(judged) } else { Decision::Rejected(judged) }
}
