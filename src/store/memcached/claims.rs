//! Admissions that wait until Memcached has confirmed them: with `strict` all, else where there is plenty of room.
//!
//! What is admitted is added to the counters first; the answer is the count after all gateways. What others have taken
//! the place of is given back, and refused. So if all is claimed, across any number of gateways no more is admitted than
//! the limit allows: of those that add to a counter at once, only they are admitted who find their own share within it.
//! And it takes one exchange where reading first and adding later takes two.
//!
//! With `strict` a claim is confirmed by an exchange that also read the newest bucket after it was made. At the turn of a
//! bucket, a claim on the old one is late: whoever counts in the new one may have read the old one before. So it is looked at
//! again, after the new bucket was read; then at least one of the two knows of the other.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Wish;
use super::counters::{CounterId, signed};
use super::known::{Known, Stage};
use crate::clock::Time;
use crate::limit::Limit;

/// Something charged to a cell that is to be confirmed.
#[derive(Debug)]
pub(super) struct Claim {
    /// The job.
    pub(super) number: u64,
    /// Which of its asks.
    pub(super) ask: usize,
    pub(super) cost: u64,
    /// By whose quota it was made: limits of the same shape share a cell.
    limit: Arc<Limit>,
    /// When it was made. It is to fit as of then: later, what it was counted with may have faded.
    at: Time,
    /// Where it was counted: places of rates, and buckets.
    buckets: SmallVec<[(usize, u64); 2]>,
    /// Whether it is part of the exchange that is under way.
    pub(super) sent: bool,
}

/// Some claims, in the order in which they were made.
pub(super) type Claims = SmallVec<[Box<Claim>; 1]>;

/// What became of a claim.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) claim: Box<Claim>,
    /// Whether it stands; else it has been given back.
    pub(super) stands: bool,
}

/// How the claims of a job stand, one for each of its asks.
pub(super) type Claimed = SmallVec<[Standing; 2]>;

/// How one claim stands.
#[derive(Debug)]
pub(super) enum Standing {
    /// There is none: nothing was charged, and the limit admitted or not.
    Unclaimed(bool),
    /// Not confirmed yet.
    Open,
    /// Confirmed, or in no need of that.
    Stands(Box<Claim>),
    /// Given back, because others were there first.
    Lost,
}

impl Known {
    /// A claim on what has just been charged.
    pub(super) fn claim(&self, number: u64, ask: usize, wish: &Wish) -> Claim {
        let (limit, cost) = (wish.limit.clone(), wish.cost);
        let buckets = self.cell.newest(limit.rates()).collect();
        Claim { number, ask, cost, limit, at: self.now, buckets, sent: false }
    }

    /// Whether something may be claimed without `strict`. Who sees it before it is given back takes it for admitted as long
    /// as it counts, so it is one request's cost at a time, and never blindly.
    pub(super) fn may_claim(&self) -> bool {
        self.was_read && self.stage != Stage::Asked && self.waiting.is_empty() && self.claims.is_empty()
    }

    /// Whether there is so much room that what others have done in the last moment hardly matters, and that a claim need
    /// not look first: a flood of what is refused must not inflate the counters. While a counter is in doubt nothing is
    /// added to it, so nothing would be confirmed.
    pub(super) fn has_plenty(&self, limit: &Limit, need: u64) -> bool {
        let margin = limit.capacity() / 8;
        self.whole.is_none()
            && !self.is_behind()
            && !self.counters.is_unacknowledged()
            && limit.admits(&self.cell, self.now, need.saturating_add(margin))
    }

    /// What became of the claims that were part of the exchange that has just been answered. If it confirms none, those
    /// that are not lost go on waiting.
    pub(super) fn settle_claims(&mut self, is_confirmed: bool) -> SmallVec<[Outcome; 2]> {
        let sent = self.claims.iter().position(|claim| !claim.sent).unwrap_or(self.claims.len());
        let has_room = |claim: &Claim| claim.limit.admits(&self.cell, claim.at, 1);
        if is_confirmed && self.claims[..sent].iter().all(|claim| has_room(claim)) {
            // With all that is claimed there is room for more.
            return self.claims.drain(..sent).map(|claim| Outcome { claim, stands: true }).collect();
        }
        let mut claims = std::mem::take(&mut self.claims);
        let later: Claims = claims.drain(sent..).collect();
        // What was claimed later is not in Memcached yet.
        later.iter().for_each(|claim| self.take_back(claim));
        let mut lost = SmallVec::new();
        while let Some(claim) = claims.pop() {
            self.take_back(&claim);
            if claim.limit.admits(&self.cell, claim.at, claim.cost) {
                self.put_again(&claim);
                claims.push(claim);
                break;
            }
            self.owe_back(&claim);
            lost.push(Outcome { claim, stands: false });
        }
        later.iter().for_each(|claim| self.put_again(claim));
        if is_confirmed {
            lost.extend(claims.into_iter().map(|claim| Outcome { claim, stands: true }));
            self.claims = later;
        } else {
            claims.iter_mut().for_each(|claim| claim.sent = false);
            self.claims = claims.into_iter().chain(later).collect();
        }
        lost
    }

    /// Waits no longer for the claim of a job for this ask, which stays charged.
    pub(super) fn withdraw(&mut self, number: u64, ask: usize) {
        self.claims.retain(|claim| (claim.number, claim.ask) != (number, ask));
    }

    /// Gives back a claim that stood.
    pub(super) fn give_back(&mut self, claim: &Claim) {
        self.take_back(claim);
        self.owe_back(claim);
    }

    fn take_back(&mut self, claim: &Claim) {
        let Self { cell, names, .. } = self;
        let rates = names.limit.rates();
        for (place, bucket) in &claim.buckets {
            cell.correct(rates, *place, *bucket, |count| count.saturating_sub(claim.cost));
        }
        names.limit.take_back_whole(cell, claim.cost);
    }

    fn put_again(&mut self, claim: &Claim) {
        let Self { cell, names, now, .. } = self;
        let rates = names.limit.rates();
        for (place, bucket) in &claim.buckets {
            cell.correct(rates, *place, *bucket, |count| count.saturating_add(claim.cost));
        }
        names.limit.charge_whole(cell, *now, claim.cost, claim.at);
    }

    fn owe_back(&mut self, claim: &Claim) {
        let amount = signed(claim.cost);
        for (rate, bucket) in &claim.buckets {
            self.counters.add(CounterId { rate: *rate, bucket: *bucket }, -amount);
        }
        if let Some(whole) = &mut self.whole {
            self.names.limit.took_back(&mut self.cell, claim.cost);
            let memory = self.cell.certain_memory(self.names.limit.rates(), claim.cost);
            whole.owe_back(amount, self.now, memory);
        }
    }
}
