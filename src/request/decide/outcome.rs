//! What one limit decides about a request, as clients see it.

use smallvec::SmallVec;

use super::rate_selector::RateSet;
use crate::base::clock::Time;
use crate::limit::{Limit, Verdict};

/// The decision of one limit about a request. A limit with rates and `max_in_flight` has one outcome for each.
#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome<'a> {
    pub place: usize,
    pub profile: RateSet<'a>,
    /// The rates of `profile`.
    pub limit: &'a Limit,
    /// How much room the request needs, 1 or more: its cost, as far as known.
    pub need: u64,
    pub verdict: LimitVerdict,
    pub as_of: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    Rates(Verdict),
    /// The verdict of its bound on requests in flight.
    InFlight {
        admitted: bool,
        remaining: u64,
    },
    /// The key is banned, so the request is refused even if the rates have room.
    Banned {
        /// When the ban has ended and the rates admit the request.
        until: Time,
    },
    /// The rates were not asked, because another limit refuses the request.
    Unknown,
}

/// Inline for two, because most routes have at most two limits.
pub type LimitOutcomes<'a> = SmallVec<[LimitOutcome<'a>; 2]>;

/// The refusal with the longest wait, which decides how long the client has to wait.
pub fn longest_refusal<'o, 'a>(outcomes: &'o [LimitOutcome<'a>]) -> Option<&'o LimitOutcome<'a>> {
    let refusals = outcomes.iter().filter(|outcome| !outcome.verdict.admitted());
    refusals.max_by_key(|outcome| outcome.until().unwrap_or(Time::MAX))
}

/// The outcome that tells a client most: the refusal with the longest wait, otherwise that with the least remaining.
pub fn binding<'o, 'a: 'o>(outcomes: impl Iterator<Item = &'o LimitOutcome<'a>>) -> Option<&'o LimitOutcome<'a>> {
    outcomes.min_by_key(|outcome| match (outcome.verdict.admitted(), outcome.verdict.remaining()) {
        (false, _) => (0, u64::MAX - outcome.until().unwrap_or(Time::MAX).micros()),
        (true, Some(remaining)) => (1, remaining),
        (true, None) => (2, 0),
    })
}

impl LimitVerdict {
    pub fn admitted(&self) -> bool {
        match *self {
            Self::Rates(Verdict { admitted, .. }) | Self::InFlight { admitted, .. } => admitted,
            Self::Banned { .. } => false,
            Self::Unknown => true,
        }
    }

    /// How many more requests the limit admits now; `None` if unknown.
    pub fn remaining(&self) -> Option<u64> {
        match *self {
            Self::Rates(Verdict { remaining, .. }) | Self::InFlight { remaining, .. } => Some(remaining),
            Self::Banned { .. } => Some(0),
            Self::Unknown => None,
        }
    }
}

impl LimitOutcome<'_> {
    /// When the limit admits more, as in [`Verdict::wait`]. `None` for requests in flight, whose end cannot be predicted.
    pub fn until(&self) -> Option<Time> {
        match self.verdict {
            LimitVerdict::Rates(verdict) => Some(self.as_of.after_micros(verdict.wait?)),
            LimitVerdict::Banned { until } => Some(until),
            LimitVerdict::InFlight { .. } | LimitVerdict::Unknown => None,
        }
    }

    /// Turns the verdict into a ban until this moment, or until the end of its own refusal if that is later.
    pub(super) fn ban(&mut self, until: Time) {
        let own = if self.verdict.admitted() { None } else { self.until() };
        self.verdict = LimitVerdict::Banned { until: own.map_or(until, |own| own.max(until)) };
    }
}
