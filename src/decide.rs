//! May this request pass? Every limit of its route is asked at once; all are charged, or none.

mod terms;
mod judged;
mod bill;
mod flights;
mod lines;
mod hold;

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Time;
use crate::config::{Cost, Missing, OnLimit};
use crate::fingerprint::Fingerprint;
use crate::identify::{Facts, Identity, Memo};
use crate::limit::{Limit, Verdict};
use crate::store::{Answer, Ask, Asks, Reply, Store, Verdicts};
use crate::tally::{Counter, PerWorker};

pub use bill::{Bill, stated};
pub use flights::{Flights, Permit};
pub use judged::{AllJudged, Judged, longest_refusal};
pub use lines::Lines;
pub use terms::{Grants, Term, Terms};

/// One limit as it guards one route.
pub struct Guard {
    /// Which rates hold for whom.
    pub terms: Terms,
    /// How many requests of a key may be under way.
    pub max_in_flight: Option<u64>,
    /// How its key is read from the route's requests.
    pub identity: Identity,
    /// What requests cost.
    pub cost: Cost,
    /// What happens over the limit.
    pub on_limit: OnLimit,
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
    /// Over this limit, and let through because it only reports.
    pub shadowed: Counter,
    /// Over this limit, and answered as if all were well.
    pub silenced: Counter,
    /// Held by this limit until there was room, or until that took too long.
    pub delayed: Counter,
    /// Would have been let through by this limit, refused by another: not charged.
    pub spared: Counter,
    /// Not counted, because the key is exempt.
    pub exempt: Counter,
    /// Refused, because the key is blocked.
    pub blocked: Counter,
    /// Not asked, for want of a key.
    pub skipped: Counter,
    /// Refused for want of a key.
    pub keyless: Counter,
    /// Not decided, because the store did not answer.
    pub unknown: Counter,
}

/// All that a decision is made from.
pub struct Case<'a, 'r> {
    /// The limits of the route.
    pub guards: &'a [Guard],
    /// The request.
    pub facts: &'r Facts<'r>,
    /// What the connection's requests were last identified as.
    pub memo: &'r RefCell<Memo>,
    /// Where counters live.
    pub store: &'a Store,
    /// Who is under way.
    pub flights: &'a Arc<Flights>,
    /// Who is held.
    pub lines: &'a Arc<Lines>,
    /// When the request came.
    pub now: Time,
    /// Which worker serves it.
    pub worker: usize,
    /// Whether it passes if the store does not answer.
    pub passes_unknown: bool,
}

/// What belongs to a decision and outlives it. Made where it is needed and filled in place: it is too large to be moved
/// about for every request.
pub struct Opinion<'a> {
    /// What the limits say that were asked, those that clients are told of.
    pub judged: AllJudged<'a>,
    /// What the store was asked.
    pub asks: Asks<'a>,
    /// The guards that only report, and would have refused the request.
    pub shadowed: SmallVec<[usize; 2]>,
    /// What is reserved until the response.
    pub bill: Bill<'a>,
    /// What holds its place among those under way.
    pub permits: Vec<Permit>,
    /// Since when it was held, if it was.
    pub held_since: Option<Time>,
}

/// The outcome for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may pass.
    Admitted,
    /// At least one limit refuses.
    Rejected,
    /// This guard wants it answered without anybody being asked.
    Silenced(usize),
    /// This guard lets nothing of its key pass.
    Blocked(usize),
    /// It costs more than a guard ever allows at once.
    TooCostly {
        /// Which guard.
        place: usize,
        /// The most that is allowed.
        most: u64,
    },
    /// This guard wants a key.
    NoKey(usize),
    /// The store does not answer.
    Unknown,
}

impl<'a> Opinion<'a> {
    /// Nothing yet.
    pub fn new(store: &'a Store, worker: usize) -> Self {
        let bill = Bill::new(store, worker);
        let (judged, asks, shadowed) = (SmallVec::new(), Asks::new(), SmallVec::new());
        Self { judged, asks, shadowed, bill, permits: Vec::new(), held_since: None }
    }
}

impl Guard {
    fn decided(&self, worker: usize) -> &Decided {
        self.tally.workers.of(worker)
    }
}

/// Decides. With a store in this process it answers on the spot, unless the request is to be held; otherwise it waits
/// for as long as the store lets it.
pub async fn decide<'a>(case: &Case<'a, '_>, opinion: &mut Opinion<'a>) -> Decision {
    if case.guards.is_empty() {
        return Decision::Admitted;
    }
    let mut open = Open { profiles: SmallVec::new(), boarded: SmallVec::new(), opinion };
    let decision = match open.read(case) {
        Some(decision) => decision,
        None if open.opinion.asks.is_empty() => Decision::Admitted,
        None if case.guards.iter().any(|guard| matches!(guard.on_limit, OnLimit::Delay { .. })) => {
            Box::pin(hold::decide(case, &mut open)).await
        }
        None => match case.store.decide(&open.opinion.asks, case.now, case.worker) {
            Answer::Now(reply) => open.conclude(case, reply),
            Answer::Later(reply) => match reply.await {
                Ok(reply) => open.conclude(case, reply),
                Err(_) => open.unknown(case),
            },
            Answer::Away => open.unknown(case),
        },
    };
    let passes = decision == Decision::Admitted || decision == Decision::Unknown && case.passes_unknown;
    for place in &open.boarded {
        let decided = case.guards[*place].decided(case.worker);
        if passes { decided.admitted.one() } else { decided.spared.one() }
    }
    decision
}

/// What a guard is to decide: which rates, for whom.
struct Claim<'a> {
    place: usize,
    key: Fingerprint,
    profile: usize,
    limit: &'a Arc<Limit>,
}

/// A case while it is open.
struct Open<'a, 'o> {
    /// For each ask, which of the limit's rates hold.
    profiles: SmallVec<[usize; 2]>,
    /// The guards that have let it aboard and have no rates to ask for.
    boarded: SmallVec<[usize; 2]>,
    opinion: &'o mut Opinion<'a>,
}

impl<'a> Open<'a, '_> {
    /// Reads keys, rates and costs; what that alone decides is the answer.
    fn read(&mut self, case: &Case<'a, '_>) -> Option<Decision> {
        let memo = &mut case.memo.borrow_mut();
        for (place, guard) in case.guards.iter().enumerate() {
            let decided = guard.decided(case.worker);
            let known = guard.identity.of(case.facts, place, memo);
            let key = match (known, guard.missing) {
                (Some(key), _) => key,
                (None, Missing::Shared) => guard.identity.nobody(),
                (None, Missing::Skip) => {
                    decided.skipped.one();
                    continue;
                }
                (None, Missing::Reject) => {
                    decided.keyless.one();
                    return Some(Decision::NoKey(place));
                }
            };
            match guard.terms.of(&guard.identity, known.is_some(), case.facts, memo) {
                Term::Exempt => decided.exempt.one(),
                Term::Block if guard.on_limit == OnLimit::Shadow => self.shadow(decided, place),
                Term::Block => {
                    decided.blocked.one();
                    return Some(Decision::Blocked(place));
                }
                Term::Rates(profile, limit) => {
                    let claim = Claim { place, key, profile, limit };
                    let decision = self.board(case, &claim).or_else(|| self.prepare(case, &claim));
                    if decision.is_some() {
                        return decision;
                    }
                }
            }
        }
        None
    }

    /// Takes a place among those under way, if their number is limited.
    fn board(&mut self, case: &Case<'a, '_>, claim: &Claim<'a>) -> Option<Decision> {
        let Claim { place, key, profile, limit } = *claim;
        let guard = &case.guards[place];
        let decided = guard.decided(case.worker);
        let taken = case.flights.enter(key, guard.max_in_flight?);
        let (admitted, remaining) = (taken.is_some(), taken.as_ref().map_or(0, |(_, left)| *left));
        let verdict = Verdict { admitted, rate: limit.rates().len(), remaining, wait: None };
        let judged = Judged { place, profile, limit, need: 1, verdict };
        match (taken, guard.on_limit) {
            (Some((permit, _)), _) => {
                self.opinion.permits.push(permit);
                if guard.on_limit.is_told() {
                    self.opinion.judged.push(judged);
                }
                if limit.rates().is_empty() {
                    self.boarded.push(place);
                }
                None
            }
            (None, OnLimit::Shadow) => {
                self.shadow(decided, place);
                None
            }
            (None, OnLimit::Silent) => {
                decided.silenced.one();
                Some(Decision::Silenced(place))
            }
            (None, OnLimit::Reject | OnLimit::Delay { .. }) => {
                decided.rejected.one();
                self.opinion.judged = SmallVec::from_iter([judged]);
                Some(Decision::Rejected)
            }
        }
    }

    /// Notes what to ask the store.
    fn prepare(&mut self, case: &Case<'a, '_>, claim: &Claim<'a>) -> Option<Decision> {
        let Claim { place, key, profile, limit } = *claim;
        if limit.rates().is_empty() {
            return None;
        }
        let guard = &case.guards[place];
        let most = limit.capacity();
        let cost = bill::price_within(&guard.cost, most, case.facts.headers);
        if cost > most && guard.on_limit.is_told() {
            guard.decided(case.worker).rejected.one();
            return Some(Decision::TooCostly { place, most });
        }
        let (settles, advisory) = (bill::is_settled(&guard.cost), guard.on_limit == OnLimit::Shadow);
        let ask = Ask { limit, key, need: cost, cost, settles, advisory, place };
        if settles {
            self.opinion.bill.owe(&guard.cost, ask);
        }
        self.opinion.asks.push(ask);
        self.profiles.push(profile);
        None
    }

    fn shadow(&mut self, decided: &Decided, place: usize) {
        decided.shadowed.one();
        if !self.opinion.shadowed.contains(&place) {
            self.opinion.shadowed.push(place);
        }
    }

    fn unknown(&self, case: &Case<'_, '_>) -> Decision {
        self.opinion.asks.iter().for_each(|ask| case.guards[ask.place].decided(case.worker).unknown.one());
        Decision::Unknown
    }

    /// The guards that these verdicts would have refuse the request.
    fn refusing<'s>(&'s self, verdicts: &'s Verdicts) -> impl Iterator<Item = (usize, Verdict)> {
        let asked = self.opinion.asks.iter().zip(verdicts);
        let refused = asked.filter(|(ask, (_, verdict))| !verdict.admitted && !ask.advisory);
        refused.map(|(ask, (_, verdict))| (ask.place, *verdict))
    }

    /// What the verdicts come to. Nobody is held any more.
    fn conclude(&mut self, case: &Case<'a, '_>, Reply { verdicts, reserved }: Reply) -> Decision {
        let is_silent = |place: usize| case.guards[place].on_limit == OnLimit::Silent;
        let decision = match self.refusing(&verdicts).fold(None, |found: Option<(usize, bool)>, (place, _)| {
            let (first, silent) = found.unwrap_or((place, true));
            Some((first, silent && is_silent(place)))
        }) {
            None => Decision::Admitted,
            Some((first, true)) => Decision::Silenced(first),
            Some((_, false)) => Decision::Rejected,
        };
        let all = decision == Decision::Admitted;
        for at in 0..verdicts.len().min(self.opinion.asks.len()) {
            let (place, verdict) = (self.opinion.asks[at].place, verdicts[at].1);
            let guard = &case.guards[place];
            let decided = guard.decided(case.worker);
            match (verdict.admitted, guard.on_limit) {
                (true, _) if all => decided.admitted.one(),
                (true, _) => decided.spared.one(),
                (false, OnLimit::Shadow) => self.shadow(decided, place),
                (false, OnLimit::Silent) => decided.silenced.one(),
                (false, OnLimit::Reject | OnLimit::Delay { .. }) => decided.rejected.one(),
            }
            if !guard.on_limit.is_told() {
                continue;
            }
            let Ask { limit, need, .. } = self.opinion.asks[at];
            self.opinion.judged.push(Judged { place, profile: self.profiles[at], limit, need, verdict });
        }
        self.opinion.bill.reserved(reserved);
        if !self.opinion.permits.is_empty() {
            // What is said of requests under way was said first: back to the order of the route.
            self.opinion.judged.sort_by_key(|judged| judged.place);
        }
        decision
    }
}
