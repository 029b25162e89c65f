//! What this gateway has counted of a cell itself and not given back, bucket by bucket.
//!
//! Where gateways give back what they have reserved, counters shrink, so what was read before says nothing of what is there
//! now. But no counter is below what one gateway alone has counted in it, unless it was lost and begun anew by another.

use smallvec::SmallVec;

/// The shares of one cell.
#[derive(Debug, Default)]
pub(super) struct Shares(SmallVec<[Share; 1]>);

#[derive(Debug)]
struct Share {
    place: usize,
    bucket: u64,
    amount: u64,
}

impl Shares {
    /// Counts `amount` more in the bucket of the rate at `place`, or less.
    pub(super) fn add(&mut self, place: usize, bucket: u64, amount: i64) {
        match self.0.iter_mut().find(|share| (share.place, share.bucket) == (place, bucket)) {
            Some(share) => share.amount = share.amount.saturating_add_signed(amount),
            None => self.0.push(Share { place, bucket, amount: 0u64.saturating_add_signed(amount) }),
        }
    }

    /// What is counted in the bucket of the rate at `place`.
    pub(super) fn of(&self, place: usize, bucket: u64) -> u64 {
        let found = self.0.iter().find(|share| (share.place, share.bucket) == (place, bucket));
        found.map_or(0, |share| share.amount)
    }

    /// Drops the buckets, of which rate ever, that `matter` to nobody any more.
    pub(super) fn retain(&mut self, matter: impl Fn(usize, u64) -> bool) {
        self.0.retain(|share| matter(share.place, share.bucket));
    }
}
