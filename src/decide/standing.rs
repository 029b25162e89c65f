//! A refusal that stands until the counters say otherwise: the same request need not be read again to be refused again.

use smallvec::SmallVec;

use super::{AllJudged, Decision, Guard, Judged, Opinion};
use crate::clock::Time;
use crate::config::OnLimit;
use crate::fingerprint::Fingerprint;
use crate::store::{Ask, Asks, Store};

/// What a refused request asked, without the limits it was asked of.
#[derive(Debug)]
pub struct Standing {
    asked: SmallVec<[Asked; 2]>,
}

#[derive(Debug)]
struct Asked {
    place: usize,
    profile: usize,
    key: Fingerprint,
    need: u64,
}

impl Standing {
    /// Whether the counters alone made this decision, and those of one limit: of several, the one that is told may change.
    pub fn is_one(guards: &[Guard], decision: Decision, opinion: &Opinion<'_>) -> bool {
        let is_plain = |guard: &Guard| guard.on_limit == OnLimit::Reject;
        // Whoever was not asked was skipped or exempt, and whoever said more counts requests under way.
        let are_all = opinion.asks.len() == guards.len() && opinion.judged.len() == guards.len();
        let is_one = opinion.judged.iter().filter(|judged| !judged.verdict.admitted).count() == 1;
        decision == Decision::Rejected && is_one && are_all && guards.iter().all(is_plain)
    }

    /// What is to be asked again of the same guards, if this is one.
    pub fn new(opinion: &Opinion<'_>) -> Self {
        let asked = |(ask, judged): (&Ask<'_>, &Judged<'_>)| {
            let Ask { place, key, need, .. } = *ask;
            Asked { place, profile: judged.profile, key, need }
        };
        Self { asked: opinion.asks.iter().zip(&opinion.judged).map(asked).collect() }
    }

    /// What these guards, the same as before, say of the same request at `now`, if they still refuse it on the spot.
    pub fn judge<'a>(&self, guards: &'a [Guard], store: &Store, now: Time) -> Option<AllJudged<'a>> {
        let ask = |asked: &Asked| {
            let Asked { place, profile, key, need } = *asked;
            let limit = guards.get(place)?.terms.rates(profile)?;
            // It is charged nothing: it is not admitted here.
            Some(Ask { limit, key, need, cost: 0, settles: false, advisory: false, place })
        };
        let asks = self.asked.iter().map(ask).collect::<Option<Asks<'a>>>()?;
        let verdicts = store.refuses(&asks, now)?;
        let judged = asks.iter().zip(&self.asked).zip(verdicts);
        let judged = judged.map(|((ask, asked), (place, verdict))| Judged {
            place,
            profile: asked.profile,
            limit: ask.limit,
            need: ask.need,
            verdict,
        });
        Some(judged.collect())
    }

    /// Counts a request of this worker that was refused so.
    pub fn count(guards: &[Guard], judged: &[Judged<'_>], store: &Store, worker: usize) {
        for judged in judged {
            let Some(guard) = guards.get(judged.place) else { continue };
            let decided = guard.decided(worker);
            if judged.verdict.admitted { decided.spared.one() } else { decided.rejected.one() }
        }
        store.refused(worker);
    }
}
