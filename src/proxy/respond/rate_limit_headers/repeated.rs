//! The last refusal on a connection. A refused client often tries again within the same second, and gets the same refusal.
//! Verdicts are compared to detect that, before any text is written.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::RateLimitHeaders;
use super::forms::{millis, seconds};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::proxy::respond::LocalResponse;
use crate::request::decide::{LimitOutcome, LimitVerdict};

#[derive(Debug, Default)]
pub struct RefusalCache(pub(super) Option<Box<LastRefusal>>);

#[derive(Debug)]
pub(super) struct LastRefusal {
    rate_limit_headers: Arc<RateLimitHeaders>,
    verdicts: SmallVec<[SentVerdict; 2]>,
    /// Whether one limit alone refuses. Among several, the one that takes longest may change within the second.
    is_sole: bool,
    pub(super) response: Rc<LocalResponse>,
}

/// Everything in a verdict on which its response depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SentVerdict {
    place: usize,
    profile: (bool, u64),
    need: u64,
    /// Set only if partition keys are sent.
    partition: Option<Fingerprint>,
    admitted: bool,
    /// The index of the rate; `None` for a bound on requests in flight, a ban, and an unknown verdict.
    rate: Option<u16>,
    remaining: Option<u64>,
    /// Until more remains: in whole seconds, or in milliseconds if a form has them. The same moment in seconds since the Unix
    /// epoch.
    until: Option<(u64, u64)>,
}

impl SentVerdict {
    fn of(rate_limit_headers: &RateLimitHeaders, outcome: &LimitOutcome<'_>, now: Time) -> Self {
        let LimitOutcome { place, profile, partition, need, verdict, .. } = *outcome;
        let partition = partition.filter(|_| rate_limit_headers.partition_secret.is_some());
        let (admitted, remaining, until) = (verdict.admitted(), verdict.remaining(), outcome.until());
        let rate = match verdict {
            LimitVerdict::Rates(verdict) => Some(verdict.rate),
            LimitVerdict::InFlight { .. } | LimitVerdict::Banned { .. } | LimitVerdict::Unknown => None,
        };
        let counted = if rate_limit_headers.has_millis() { millis } else { seconds };
        let until = until.map(|until| (counted(now, until), until.seconds_up()));
        Self { place, profile: profile.id(), need, partition, admitted, rate, remaining, until }
    }
}

impl LastRefusal {
    pub(super) fn new(
        rate_limit_headers: &Arc<RateLimitHeaders>,
        outcomes: &[LimitOutcome<'_>],
        now: Time,
        response: Rc<LocalResponse>,
    ) -> Self {
        let verdicts = outcomes.iter().map(|outcome| SentVerdict::of(rate_limit_headers, outcome, now)).collect();
        let is_sole = outcomes.iter().filter(|outcome| !outcome.verdict.admitted()).count() == 1;
        Self { rate_limit_headers: rate_limit_headers.clone(), verdicts, is_sole, response }
    }
}

impl RefusalCache {
    /// Whether the last refusal also answers these outcomes.
    pub(super) fn has(
        &self,
        rate_limit_headers: &Arc<RateLimitHeaders>,
        outcomes: &[LimitOutcome<'_>],
        now: Time,
    ) -> bool {
        // A reload replaces the headers, so refusals of an earlier configuration do not match.
        let is_of = |last: &&LastRefusal| Arc::ptr_eq(&last.rate_limit_headers, rate_limit_headers);
        let Some(last) = self.0.as_deref().filter(is_of).filter(|last| last.is_sole) else { return false };
        let is_same = |(sent, outcome): (&SentVerdict, &LimitOutcome<'_>)| {
            *sent == SentVerdict::of(rate_limit_headers, outcome, now)
        };
        last.verdicts.len() == outcomes.len() && last.verdicts.iter().zip(outcomes).all(is_same)
    }
}
