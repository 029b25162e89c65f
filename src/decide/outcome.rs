//! What one limit says of a request.

use smallvec::SmallVec;

use crate::limit::{Limit, Verdict};

/// What one limit says of a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome<'a> {
    /// Which guard of the route.
    pub place: usize,
    /// Which of the limit's rates hold, 0 for its own.
    pub profile: usize,
    /// These rates.
    pub limit: &'a Limit,
    /// How much room the request needs, 1 or more: what it costs, where that is known.
    pub need: u64,
    /// What they say. A rate beyond the last is the number of requests under way.
    pub verdict: Verdict,
}

/// A few of them.
pub type LimitOutcomes<'a> = SmallVec<[LimitOutcome<'a>; 2]>;

/// Of the limits that refuse, the one that does so for longest: the one that is told.
pub fn longest_refusal<'j, 'a>(outcomes: &'j [LimitOutcome<'a>]) -> Option<&'j LimitOutcome<'a>> {
    let refusals = outcomes.iter().filter(|outcomes| !outcomes.verdict.admitted);
    refusals.max_by_key(|outcomes| outcomes.verdict.wait.unwrap_or(u64::MAX))
}

impl LimitOutcome<'_> {
    /// Whether it is about rates, not about requests under way.
    pub(super) fn is_of_rates(&self) -> bool {
        self.verdict.rate < self.limit.rates().len()
    }
}
