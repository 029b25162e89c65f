//! What one limit decides about a request, as clients see it.

use smallvec::SmallVec;

use super::rate_selector::RateSet;
use crate::base::clock::Time;
use crate::limit::{Limit, Verdict};

/// What one limit decides about a request. A limit with rates and `max_in_flight` has one outcome for each.
#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome<'a> {
    /// The index of the limit on its route.
    pub place: usize,
    /// Which of the limit's sets of rates applies.
    pub profile: RateSet<'a>,
    /// These rates.
    pub limit: &'a Limit,
    /// How much room the request needs, 1 or more: its cost, as far as that is known.
    pub need: u64,
    pub verdict: LimitVerdict,
    pub as_of: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    Rates(Verdict),
    /// That of its bound on requests in flight.
    InFlight {
        /// Whether the request may join those in flight.
        admitted: bool,
        /// How many more could join them now.
        remaining: u64,
    },
    /// Its key is banned, so it is refused whatever its rates have room for.
    Banned {
        /// When the ban has ended and its rates admit the request.
        until: Time,
    },
    /// Nothing is known of its rates, because another limit refuses the request.
    Unknown,
}

/// The outcomes of one request. Most routes have at most two limits.
pub type LimitOutcomes<'a> = SmallVec<[LimitOutcome<'a>; 2]>;

/// The refusal that takes longest, which is the one that the client has to wait for.
pub fn longest_refusal<'o, 'a>(outcomes: &'o [LimitOutcome<'a>]) -> Option<&'o LimitOutcome<'a>> {
    let refusals = outcomes.iter().filter(|outcome| !outcome.verdict.admitted());
    refusals.max_by_key(|outcome| outcome.until().unwrap_or(Time::MAX))
}

/// The outcome that says most to a client: the refusal that takes longest, or else the one with the least remaining. One of which
/// nothing is known is the last.
pub fn binding<'o, 'a: 'o>(outcomes: impl Iterator<Item = &'o LimitOutcome<'a>>) -> Option<&'o LimitOutcome<'a>> {
    outcomes.min_by_key(|outcome| match (outcome.verdict.admitted(), outcome.verdict.remaining()) {
        (false, _) => (0, u64::MAX - outcome.until().unwrap_or(Time::MAX).micros()),
        (true, Some(remaining)) => (1, remaining),
        (true, None) => (2, 0),
    })
}

impl LimitVerdict {
    /// Whether the limit admits the request, as far as is known.
    pub fn admitted(&self) -> bool {
        match *self {
            Self::Rates(Verdict { admitted, .. }) | Self::InFlight { admitted, .. } => admitted,
            Self::Banned { .. } => false,
            Self::Unknown => true,
        }
    }

    /// How many more requests the limit admits now; `None` if that is not known.
    pub fn remaining(&self) -> Option<u64> {
        match *self {
            Self::Rates(Verdict { remaining, .. }) | Self::InFlight { remaining, .. } => Some(remaining),
            Self::Banned { .. } => Some(0),
            Self::Unknown => None,
        }
    }
}

impl LimitOutcome<'_> {
    /// When the limit admits more, as in [`Verdict::wait`]. `None` for requests in flight, since their end cannot be predicted.
    pub fn until(&self) -> Option<Time> {
        match self.verdict {
            LimitVerdict::Rates(verdict) => Some(self.as_of.after_micros(verdict.wait?)),
            LimitVerdict::Banned { until } => Some(until),
            LimitVerdict::InFlight { .. } | LimitVerdict::Unknown => None,
        }
    }

    /// From now on its key is banned until this moment.
    pub(super) fn ban(&mut self, until: Time) {
        let own = if self.verdict.admitted() { None } else { self.until() };
        self.verdict = LimitVerdict::Banned { until: own.map_or(until, |own| own.max(until)) };
    }
}
