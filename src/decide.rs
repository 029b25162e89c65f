//! May this request pass? Every limit of its route is asked at once; all are charged, or none.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Time;
use crate::config::Missing;
use crate::identify::{Facts, Identity, Memo};
use crate::limit::Limit;
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

/// The outcome for a request.
#[derive(Debug)]
pub enum Decision {
    /// It may pass; so say these guards, of which there may be none.
    Admitted(Verdicts),
    /// At least one guard refuses.
    Rejected(Verdicts),
    /// This guard, by its index, wants a key.
    NoKey(usize),
    /// The store does not answer.
    Unknown,
}

/// The route's asks, or the guard that refuses a request without a key.
fn gather<'a>(guards: &'a [Guard], facts: &Facts<'_>, memo: &mut Memo, worker: usize) -> Result<Asks<'a>, usize> {
    let mut asks = Asks::new();
    for (place, guard) in guards.iter().enumerate() {
        let key = match (guard.identity.of(facts, place, memo), guard.missing) {
            (Some(key), _) => key,
            (None, Missing::Shared) => guard.identity.nobody(),
            (None, Missing::Skip) => {
                guard.tally.workers.of(worker).skipped.one();
                continue;
            }
            (None, Missing::Reject) => {
                guard.tally.workers.of(worker).keyless.one();
                return Err(place);
            }
        };
        asks.push(Ask { limit: &guard.limit, key, need: 1, cost: 1, advisory: false, place });
    }
    Ok(asks)
}

/// Decides. With a store in this process it answers on the spot; otherwise it waits `timeout` at most.
pub async fn decide(
    guards: &[Guard],
    facts: &Facts<'_>,
    memo: &RefCell<Memo>,
    store: &Store,
    timeout: Duration,
    now: Time,
    worker: usize,
) -> Decision {
    let asks = match gather(guards, facts, &mut memo.borrow_mut(), worker) {
        Ok(asks) => asks,
        Err(guard) => return Decision::NoKey(guard),
    };
    if asks.is_empty() {
        return Decision::Admitted(Verdicts::new());
    }
    let verdicts = match store.decide(&asks, now) {
        Answer::Now(verdicts) => Some(verdicts),
        Answer::Later(verdicts) => tokio::time::timeout(timeout, verdicts).await.ok().and_then(Result::ok),
        Answer::Away => None,
    };
    match verdicts {
        Some(verdicts) => settle(guards, verdicts, worker),
        None => {
            asks.iter().for_each(|ask| guards[ask.place].tally.workers.of(worker).unknown.one());
            Decision::Unknown
        }
    }
}

fn settle(guards: &[Guard], verdicts: Verdicts, worker: usize) -> Decision {
    let all = verdicts.iter().all(|(_, verdict)| verdict.admitted);
    for (place, verdict) in &verdicts {
        let decided = guards[*place].tally.workers.of(worker);
        match verdict.admitted {
            true if all => decided.admitted.one(),
            true => decided.spared.one(),
            false => decided.rejected.one(),
        }
    }
    if all { Decision::Admitted(verdicts) } else { Decision::Rejected(verdicts) }
}
