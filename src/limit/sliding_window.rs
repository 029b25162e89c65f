//! The sliding window counter: the buckets inside the window count in full, and the oldest one, which the window is leaving,
//! counts by its share that is still inside.
//!
//! With `elapsed` of the newest bucket gone, that share is `(width - elapsed) / width`; the requests of the bucket are
//! assumed to have come at a fixed rate. Cloudflare described the method in 2017 ("How we built rate limiting capable of
//! scaling to millions of domains").
//!
//! Buckets are aligned to the Unix clock, so that all gateways use the same names for them. If a window is not a multiple of
//! its number of buckets, their length is rounded up: then they cover slightly more than the window, and the limit still
//! holds.

use std::cmp::Ordering;

use super::counting::{Buckets, Charge, Context, Counting, GivenBack, StateView, add};
use super::rate::{Edge, Rate};
use crate::base::clock::Time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlidingWindow {
    /// The index of the newest bucket since 1970.
    newest: u64,
    counts: BucketCounts,
}

/// The newest first: one more than the rate has buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BucketCounts {
    /// A window of one bucket is the common case, so its counts need no allocation.
    Two([u64; 2]),
    Many(Box<[u64]>),
}

impl BucketCounts {
    fn as_slice(&self) -> &[u64] {
        match self {
            Self::Two(counts) => counts,
            Self::Many(counts) => counts,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u64] {
        match self {
            Self::Two(counts) => counts,
            Self::Many(counts) => counts,
        }
    }
}

impl SlidingWindow {
    pub(super) fn new(rate: &Rate, precision: u32, now: Time) -> Self {
        let counts = match precision {
            1 => BucketCounts::Two([0; 2]),
            _ => BucketCounts::Many(vec![0; precision as usize + 1].into()),
        };
        Self { newest: now.micros() / rate.width(), counts }
    }

    pub(super) fn allocation(&self) -> usize {
        match &self.counts {
            BucketCounts::Two(_) => 0,
            BucketCounts::Many(counts) => size_of_val(&**counts),
        }
    }

    fn add(&mut self, cost: u64) {
        if let Some(newest) = self.counts.as_mut_slice().first_mut() {
            add(newest, cost);
        }
    }

    /// Raises what counts at `now` to what counts in another window. The difference is added to the newest bucket; if nothing
    /// has been counted, all buckets are copied instead.
    pub(super) fn raise(&mut self, rate: &Rate, least: &Self, now: Time) {
        if self.counts.as_slice().iter().any(|count| *count > 0) {
            let view = StateView { rate, log: None, now };
            return self.add(least.used(view).saturating_sub(self.used(view)));
        }
        // The other window may be a moment ahead; then its newest bucket is in this window as well.
        self.newest = self.newest.max(least.newest);
        for (age, count) in (0..).zip(least.counts.as_slice()) {
            if let Some(own) = self.counter_mut(least.newest.saturating_sub(age)) {
                *own = *count;
            }
        }
    }

    /// Microseconds of the newest bucket that are over, less than its width.
    fn elapsed(&self, rate: &Rate, now: Time) -> u64 {
        now.micros().saturating_sub(self.newest * rate.width()).min(rate.width() - 1)
    }
}

impl Counting for SlidingWindow {
    /// If the clock was set back, all counts move back along: they leave the window later, never earlier.
    fn advance(&mut self, Context { rate, .. }: &mut Context<'_>, now: Time) -> bool {
        let begun = self.newest.saturating_mul(rate.width());
        if now.micros().checked_sub(begun).is_some_and(|elapsed| elapsed < rate.width()) {
            return false;
        }
        let bucket = now.micros() / rate.width();
        if bucket > self.newest {
            let counts = self.counts.as_mut_slice();
            let by = usize::try_from(bucket - self.newest).unwrap_or(usize::MAX);
            if by < counts.len() {
                counts.copy_within(..counts.len() - by, by);
                counts[..by].fill(0);
            } else {
                counts.fill(0);
            }
        } else if !now.is_set_back_from(Time::from_micros(begun)) {
            return false;
        }
        self.newest = bucket;
        true
    }

    fn is_spent(&self, StateView { rate, now, .. }: StateView<'_>) -> bool {
        (now.micros() / rate.width()).saturating_sub(self.newest) >= self.counts.as_slice().len() as u64
    }

    fn charge(&mut self, _context: &mut Context<'_>, Charge { cost, .. }: Charge) {
        self.add(cost);
    }

    fn used(&self, StateView { rate, now, .. }: StateView<'_>) -> u64 {
        let (oldest, inside) = self.counts.as_slice().split_last().unwrap_or((&0, &[]));
        let inside = inside.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let share = match rate.edge() {
            Edge::Weighted if *oldest > 0 => scaled(*oldest, rate.width() - self.elapsed(rate, now), 0, rate.width()),
            _ => *oldest,
        };
        inside.saturating_add(share)
    }

    /// While nothing comes, the estimate only falls, also from one bucket to the next. So the answer is the first moment that
    /// fits: bucket by bucket, and inside a bucket by solving `full + floor(oldest * (width - e) / width) + need <= quota`
    /// for the smallest `e`.
    fn wait(&self, StateView { rate, now, .. }: StateView<'_>, need: u64) -> u64 {
        let (counts, width, elapsed) = (self.counts.as_slice(), rate.width(), self.elapsed(rate, now));
        let mut full = counts.iter().fold(0, |sum: u128, count| sum + u128::from(*count));
        for (ahead, oldest) in (0u64..).zip(counts.iter().rev()) {
            full -= u128::from(*oldest);
            // At most the quota, which is a u64.
            let Some(room) = u128::from(rate.quota() - need).checked_sub(full).map(narrow) else { continue };
            let into = if *oldest <= room {
                0
            } else if rate.edge() == Edge::Whole {
                continue;
            } else {
                width - scaled(room + 1, width, 1, *oldest)
            };
            return (ahead * width + into).saturating_sub(elapsed);
        }
        counts.len() as u64 * width - elapsed
    }

    fn mark(&self, _now: Time) -> u64 {
        self.newest
    }

    fn give_back(&mut self, _context: &mut Context<'_>, GivenBack { mark, cost, .. }: GivenBack) {
        self.give_back_to(mark, cost);
    }

    fn certain_at(&self, rate: &Rate, cost: u64, mark: u64, at: Time) -> u64 {
        let width = rate.width();
        let oldest = self.counts.as_slice().len() as u64 - 1;
        match self.newest.saturating_sub(mark).cmp(&oldest) {
            Ordering::Less => cost,
            Ordering::Equal if rate.edge() == Edge::Whole => cost,
            Ordering::Equal => scaled(cost, width - at.micros() % width, 0, width),
            Ordering::Greater => 0,
        }
    }

    fn begin(&mut self, _rate: &Rate, sum: u64, _at: Time) {
        self.add(sum);
    }
}

impl Buckets for SlidingWindow {
    fn counters(&self) -> (u64, &[u64]) {
        (self.newest, self.counts.as_slice())
    }

    fn counters_mut(&mut self) -> (u64, &mut [u64]) {
        (self.newest, self.counts.as_mut_slice())
    }
}

/// `(a * b - less) / of`. `a * b` must be at least `less`, and the result must fit a u64. Division by 64 bits is much cheaper
/// than by 128, and mostly enough.
fn scaled(a: u64, b: u64, less: u64, of: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => (product - less) / of,
        None => narrow((u128::from(a) * u128::from(b) - u128::from(less)) / u128::from(of)),
    }
}

/// The number must fit a u64.
fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
