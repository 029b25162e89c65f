//! The sliding window counter: the buckets inside the window in full, the one it slides out of by its share.
//!
//! With `elapsed` of the newest bucket gone, the share of the oldest that still lies in the window is
//! `(width - elapsed) / width`; its requests are assumed to have come at a fixed rate. The method is the
//! one that Cloudflare described in 2017 ("How we built rate limiting capable of scaling to millions of domains").

use super::rate::{Edge, Rate};

/// What one rate has counted, seen from a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    rate: &'a Rate,
    edge: Edge,
    /// Newest first; one more than the rate has buckets.
    counts: &'a [u64],
    /// Microseconds of the newest bucket that are over, less than its width.
    elapsed: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(rate: &'a Rate, edge: Edge, counts: &'a [u64], elapsed: u64) -> Self {
        Self { rate, edge, counts, elapsed: elapsed.min(rate.width() - 1) }
    }

    /// The requests that count now. Stays at the largest number instead of wrapping.
    pub(super) fn estimate(&self) -> u64 {
        let (oldest, inside) = self.counts.split_last().unwrap_or((&0, &[]));
        let inside = inside.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        inside.saturating_add(self.share(*oldest))
    }

    fn share(&self, oldest: u64) -> u64 {
        match self.edge {
            Edge::Whole => oldest,
            Edge::Weighted if oldest == 0 => 0,
            Edge::Weighted => {
                let (width, left) = (self.rate.width(), self.rate.width() - self.elapsed);
                scaled(oldest, left, 0, width)
            }
        }
    }

    /// How many more requests fit now.
    pub(super) fn remaining(&self) -> u64 {
        self.rate.quota().saturating_sub(self.estimate())
    }

    /// Microseconds until `need` more fit if nothing else comes; 0 if they do now, `None` if they never will.
    ///
    /// The estimate only falls while nothing comes, also from one bucket to the next, so the first moment
    /// that fits is the answer: bucket by bucket, and inside the bucket by solving
    /// `full + floor(oldest * (width - e) / width) + need <= quota` for the smallest `e`.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        let quota = self.rate.quota();
        if need > quota {
            return None;
        }
        let width = self.rate.width();
        let mut full = self.counts.iter().fold(0, |sum: u128, count| sum + u128::from(*count));
        for (ahead, oldest) in (0u64..).zip(self.counts.iter().rev()) {
            full -= u128::from(*oldest);
            // At most the quota, which is a u64.
            let Some(room) = u128::from(quota - need).checked_sub(full).map(narrow) else { continue };
            let into = if *oldest <= room {
                0
            } else if self.edge == Edge::Whole {
                continue;
            } else {
                width - scaled(room + 1, width, 1, *oldest)
            };
            return Some((ahead * width + into).saturating_sub(self.elapsed));
        }
        Some(self.counts.len() as u64 * width - self.elapsed)
    }
}

/// `(a * b - less) / of`, for an `a * b` of at least `less` and a result that a u64 holds. Division by 64 bits is much
/// cheaper than by 128, and mostly enough.
fn scaled(a: u64, b: u64, less: u64, of: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => (product - less) / of,
        None => narrow((u128::from(a) * u128::from(b) - u128::from(less)) / u128::from(of)),
    }
}

/// A number that a u64 holds.
fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
