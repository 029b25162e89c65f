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
                if let Some(product) = oldest.checked_mul(left) {
                    return product / width;
                }
                let share = u128::from(oldest) * u128::from(left) / u128::from(width);
                // The share is at most `oldest`, which is a u64.
                u64::try_from(share).unwrap_or(u64::MAX)
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
            let oldest = u128::from(*oldest);
            full -= oldest;
            let Some(room) = u128::from(quota - need).checked_sub(full) else { continue };
            let into = if oldest <= room {
                0
            } else if self.edge == Edge::Whole {
                continue;
            } else {
                let counted = ((room + 1) * u128::from(width) - 1) / oldest;
                width - u64::try_from(counted).unwrap_or(width).min(width)
            };
            return Some((ahead * width + into).saturating_sub(self.elapsed));
        }
        Some(self.counts.len() as u64 * width - self.elapsed)
    }
}
