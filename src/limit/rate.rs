//! One rate: so many requests per window, and the strategy by which they are counted.
//!
//! Every [`Rate`] is valid: its constructors refuse zero requests, empty windows and whatever could overflow later.

mod text;

use std::time::Duration;

use super::calendar::Calendar;
use crate::base::clock::{Time, micros};

pub use text::RateTextError;

/// The largest quota, 2^32 requests per window, and the largest burst.
pub const MAX_QUOTA: u64 = 1 << 32;
/// The largest quota and burst in bytes, 256 TiB: the largest power of two that an integer in a header can say (RFC 9651).
pub const MAX_BYTES: u64 = 1 << 48;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_secs(1);
/// The longest window, 31 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 86_400);
/// The most buckets that a sliding window can be cut into.
pub const MAX_PRECISION: u32 = 60;
/// The largest quota of a sliding log, which remembers every request.
pub const MAX_LOG: u64 = 10_000;

/// How the oldest bucket counts while it leaves the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Edge {
    /// It counts by its share that still lies in the window.
    #[default]
    Weighted,
    /// It counts in full until it has left the window, so that no window ever has more than the quota.
    Whole,
}

/// The algorithm by which requests are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The sliding window counter: the window is cut into buckets, which are aligned to the Unix clock.
    SlidingWindow {
        /// How many buckets the window has, 1 to 60.
        precision: u32,
        /// How the oldest bucket counts.
        edge: Edge,
    },
    /// A window that begins with the key's first request and lasts its whole length.
    FixedWindow,
    /// The exact log of what was admitted: a request counts from its moment until exactly one window later. The quota is at
    /// most 10 000 requests per window. The configuration calls it `moving-window`.
    SlidingLog,
    /// A bucket of `burst` tokens (1 to 2^32) that fills at the rate.
    TokenBucket {
        /// How many requests a full bucket lets through at once.
        burst: u64,
    },
    /// Windows that begin at midnight or on the first of the month.
    Calendar(Calendar),
    /// Counts bans instead of requests, see [`Limit::bans`]. The window is the longest that a ban lasts.
    ///
    /// [`Limit::bans`]: super::Limit::bans
    Ban {
        /// How many microseconds the first of several bans lasts.
        first: u64,
    },
}

impl Default for Strategy {
    fn default() -> Self {
        Self::SlidingWindow { precision: 1, edge: Edge::Weighted }
    }
}

/// At most `quota` requests per window, counted by a [`Strategy`].
///
/// ```
/// use std::time::Duration;
///
/// use gateway::limit::{Edge, Rate, Strategy};
///
/// let rate = Rate::new(3000, Duration::from_secs(600))?;
/// assert_eq!(rate.quota(), 3000);
/// assert_eq!(rate.window().as_secs(), 600);
/// assert_eq!(*rate.strategy(), Strategy::SlidingWindow { precision: 1, edge: Edge::Weighted });
///
/// let rate = Rate::new(10, Duration::from_secs(1))?.with_strategy(Strategy::TokenBucket { burst: 50 })?;
/// assert_eq!(*rate.strategy(), Strategy::TokenBucket { burst: 50 });
/// assert_eq!(rate.capacity(), 50);
/// # Ok::<(), gateway::limit::RateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    quota: u64,
    window: u64,
    /// The width of a sliding window's bucket, cached because each decision needs it several times.
    width: u64,
    strategy: Strategy,
    /// Whether it counts bytes, so that it is written as a size.
    is_in_bytes: bool,
    is_unlimited: bool,
}

impl Rate {
    /// A rate of `quota` (1 to 2^32) per `window` (1 s to 31 days), counted by the default strategy: a sliding window of one
    /// bucket, weighted. Fails with [`RateError::Quota`] or [`RateError::Window`] if one of them is out of range.
    pub fn new(quota: u64, window: Duration) -> Result<Self, RateError> {
        Self::in_unit(quota, window, false)
    }

    /// Like [`Self::new`], or with `is_in_bytes` a rate of `quota` bytes (1 to [`MAX_BYTES`]) per `window`. Fails with
    /// [`RateError::Quota`] or [`RateError::Window`] if one of them is out of range.
    pub fn in_unit(quota: u64, window: Duration, is_in_bytes: bool) -> Result<Self, RateError> {
        if quota == 0 || quota > most(is_in_bytes) {
            return Err(RateError::Quota);
        }
        if window < MIN_WINDOW || window > MAX_WINDOW {
            return Err(RateError::Window);
        }
        let window = micros(window);
        Ok(Self { quota, window, width: window, strategy: Strategy::default(), is_in_bytes, is_unlimited: false })
    }

    /// The same rate, counted by another strategy. A calendar determines the window as well. Fails with
    /// [`RateError::Precision`] or [`RateError::Burst`] if these are out of range, and with [`RateError::Log`] if a sliding log
    /// would have to remember too many requests.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::limit::{Rate, RateError, Strategy};
    ///
    /// let rate = Rate::new(100, Duration::from_secs(60))?;
    /// assert!(rate.with_strategy(Strategy::FixedWindow).is_ok());
    /// let rate = Rate::new(10_001, Duration::from_secs(60))?;
    /// assert_eq!(rate.with_strategy(Strategy::SlidingLog), Err(RateError::Log));
    /// # Ok::<(), RateError>(())
    /// ```
    pub fn with_strategy(self, strategy: Strategy) -> Result<Self, RateError> {
        let window = match &strategy {
            Strategy::SlidingWindow { precision, .. } if !(1..=MAX_PRECISION).contains(precision) => {
                return Err(RateError::Precision);
            }
            Strategy::SlidingLog if self.quota > MAX_LOG => return Err(RateError::Log),
            Strategy::TokenBucket { burst } if !(1..=most(self.is_in_bytes)).contains(burst) => {
                return Err(RateError::Burst);
            }
            Strategy::Calendar(calendar) => micros(calendar.unit().longest()),
            _ => self.window,
        };
        let width = match strategy {
            Strategy::SlidingWindow { precision, .. } => window.div_ceil(u64::from(precision)),
            _ => window,
        };
        Ok(Self { window, width, strategy, ..self })
    }

    /// The part of the rate for each of `gateways` that count separately: quota and burst are divided, rounded down, but at
    /// least 1. Together they never admit more than the rate, or one each if there are more gateways than that.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::limit::Rate;
    ///
    /// let rate = Rate::new(10, Duration::from_secs(1))?;
    /// assert_eq!(rate.part(3).quota(), 3);
    /// assert_eq!(rate.part(11).quota(), 1);
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    #[must_use]
    pub fn part(&self, gateways: u64) -> Self {
        let part = |whole: u64| (whole / gateways.max(1)).max(1);
        let mut strategy = self.strategy.clone();
        if let Strategy::TokenBucket { burst } = &mut strategy {
            *burst = part(*burst);
        }
        Self { quota: part(self.quota), strategy, ..*self }
    }

    /// The same rate with the largest capacity that its strategy can count: it only counts, as before. So a token bucket is
    /// refilled as fast as before.
    #[must_use]
    pub fn unlimited(&self) -> Self {
        let most = most(self.is_in_bytes);
        let (quota, strategy) = match self.strategy {
            Strategy::TokenBucket { .. } => (self.quota, Strategy::TokenBucket { burst: most }),
            Strategy::SlidingLog => (MAX_LOG, Strategy::SlidingLog),
            ref other => (most, other.clone()),
        };
        Self { quota, strategy, is_unlimited: true, ..*self }
    }

    /// Whether it is [`Self::unlimited`], so that nobody needs to know of it.
    pub fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    /// Requests per window, 1 to 2^32.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// The most that one request may cost: the burst of a token bucket, else the quota.
    pub fn capacity(&self) -> u64 {
        match self.strategy {
            Strategy::TokenBucket { burst } => burst,
            _ => self.quota,
        }
    }

    /// The window, 1 s to 31 days; of a calendar, its longest window.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window)
    }

    /// Whether it counts bytes.
    pub fn is_in_bytes(&self) -> bool {
        self.is_in_bytes
    }

    /// How requests are counted.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Whether its state consists of counters, to which several gateways can add. Other states are kept as a whole.
    pub fn uses_counters(&self) -> bool {
        matches!(self.strategy, Strategy::SlidingWindow { .. } | Strategy::Calendar(_))
    }

    /// Whether charges drain from the state, so that each open reservation must be tracked.
    pub(super) fn drains(&self) -> bool {
        matches!(self.strategy, Strategy::TokenBucket { .. })
    }

    /// All such rates of a limit share one log.
    pub(super) fn is_logged(&self) -> bool {
        self.strategy == Strategy::SlidingLog
    }

    /// Microseconds after the last charge until a state equals a new one, if it was charged no more than the rate admits.
    pub fn memory(&self) -> u64 {
        self.memory_after(0)
    }

    /// [`Self::memory`] if up to `cost` was charged, which may be more than the rate admits.
    pub(super) fn memory_after(&self, cost: u64) -> u64 {
        match &self.strategy {
            Strategy::SlidingWindow { precision, .. } => self.width() * (u64::from(*precision) + 1),
            Strategy::TokenBucket { burst } => {
                let full = u128::from(cost.max(*burst)) * u128::from(self.window);
                u64::try_from(full.div_ceil(u128::from(self.quota))).unwrap_or(u64::MAX)
            }
            Strategy::FixedWindow | Strategy::SlidingLog => self.window,
            // While a ban runs, and until it is forgiven.
            Strategy::Ban { .. } => 2 * self.window,
            // A day lasts 25 hours where clocks are set back.
            Strategy::Calendar(_) => self.window + 3_600_000_000,
        }
    }

    /// Microseconds from `now` until the counter of this bucket no longer matters. A day of the calendar may last 25 hours.
    pub fn memory_of(&self, bucket: u64, now: Time) -> u64 {
        match &self.strategy {
            Strategy::Calendar(calendar) => {
                let (_, end) = calendar.window(Time::from_micros(bucket.saturating_mul(1_000_000)));
                end.saturating_sub(now.micros())
            }
            _ => self.memory(),
        }
    }

    /// The latest moment, in microseconds since 1970, whose requests no longer count at `now`, if each counts for exactly one
    /// window; of a calendar, the last moment before the window. `None` if that is before 1970.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::Rate;
    ///
    /// let rate = Rate::new(10, Duration::from_secs(1))?;
    /// assert_eq!(rate.forgotten(Time::from_micros(5_000_000)), Some(4_000_000));
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn forgotten(&self, now: Time) -> Option<u64> {
        match &self.strategy {
            Strategy::Calendar(calendar) => calendar.window(now).0.checked_sub(1),
            _ => now.micros().checked_sub(self.window),
        }
    }

    /// The index of the `old` rate from which this one continues: the one of the same period.
    pub fn predecessor(&self, old: &[Self]) -> Option<usize> {
        old.iter().position(|old| match (&self.strategy, &old.strategy) {
            (Strategy::Calendar(calendar), Strategy::Calendar(old)) => calendar.unit() == old.unit(),
            (Strategy::Ban { .. }, Strategy::Ban { .. }) => true,
            (Strategy::Calendar(_) | Strategy::Ban { .. }, _) | (_, Strategy::Calendar(_) | Strategy::Ban { .. }) => {
                false
            }
            _ => self.window == old.window,
        })
    }

    /// Whether states of this rate have the same layout and meaning as those of `old`.
    pub fn is_kept_like(&self, old: &Self) -> bool {
        self.layout() == old.layout()
    }

    /// The layout and meaning of the state, without quota, burst, edge and length of bans. Saved states are found by it.
    pub(super) fn layout(&self) -> String {
        let span = self.window;
        match &self.strategy {
            Strategy::SlidingWindow { precision, .. } => format!("{}x{precision}", self.width),
            Strategy::FixedWindow => format!("{span}f"),
            Strategy::SlidingLog => format!("{span}m"),
            Strategy::TokenBucket { .. } => format!("{span}b"),
            Strategy::Calendar(calendar) => format!("{}@{}", calendar.unit().name(), calendar.zone()),
            Strategy::Ban { .. } => "bans".to_owned(),
        }
    }

    pub(super) fn edge(&self) -> Edge {
        match self.strategy {
            Strategy::SlidingWindow { edge, .. } => edge,
            _ => Edge::default(),
        }
    }

    /// In microseconds.
    pub(super) fn span(&self) -> u64 {
        self.window
    }

    /// In microseconds. Rounded up: the buckets cover at least the window, which then never has more than the quota.
    pub(super) fn width(&self) -> u64 {
        self.width
    }
}

/// The largest quota and burst.
fn most(is_in_bytes: bool) -> u64 {
    if is_in_bytes { MAX_BYTES } else { MAX_QUOTA }
}

/// Why a rate is invalid, or a strategy cannot count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The quota is zero or over 2^32, of bytes over 2^48.
    #[error("a rate is from 1 to 4294967296, of bytes from 1B to 256TiB")]
    Quota,
    /// The window is shorter than a second or longer than 31 days.
    #[error("the period of a rate is from 1s to 31d")]
    Window,
    /// The precision is zero or over 60.
    #[error("precision is from 1 to 60")]
    Precision,
    /// The burst is zero or over 2^32, of bytes over 2^48.
    #[error("a burst is from 1 to 4294967296, of bytes from 1B to 256TiB")]
    Burst,
    /// The quota is over 10 000, too many requests for a sliding log to remember.
    #[error("a sliding log remembers every request: at most 10000")]
    Log,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Strategy, *};

    #[test]
    fn refuses_what_a_strategy_cannot_count() {
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        let sliding = |precision| Strategy::SlidingWindow { precision, edge: Edge::Whole };
        assert_eq!(rate("1/s").with_strategy(sliding(0)), Err(RateError::Precision));
        assert_eq!(rate("1/s").with_strategy(sliding(61)), Err(RateError::Precision));
        assert_eq!(rate("10001/s").with_strategy(Strategy::SlidingLog), Err(RateError::Log));
        assert!(rate("10000/s").with_strategy(Strategy::SlidingLog).is_ok());
    }

    proptest! {
        #[test]
        fn gateways_together_admit_no_more_than_the_rate_or_one_each(
            quota in 1..=MAX_QUOTA,
            burst in 1..=MAX_QUOTA,
            gateways in 1..=20_000_u64,
        ) {
            let rate = Rate::new(quota, Duration::from_secs(60)).unwrap();
            let log = Rate::new(quota.min(MAX_LOG), Duration::from_secs(60)).unwrap();
            for rate in [
                rate.clone(),
                rate.with_strategy(Strategy::TokenBucket { burst }).unwrap(),
                log.with_strategy(Strategy::SlidingLog).unwrap(),
                "9/month".parse().unwrap(),
            ] {
                let part = rate.part(gateways);
                for (part, whole) in [(part.quota(), rate.quota()), (part.capacity(), rate.capacity())] {
                    prop_assert!(part >= 1 && (part == 1 || part * gateways <= whole));
                    prop_assert!((part + 1) * gateways > whole, "no part is smaller than need be");
                }
                prop_assert!(part.is_kept_like(&rate) && part.window() == rate.window(), "counts go on");
                prop_assert_eq!(rate.part(1), rate);
            }
        }
    }

    #[test]
    fn buckets_cover_the_window() {
        for precision in 1..=MAX_PRECISION {
            let sliding = Strategy::SlidingWindow { precision, edge: Edge::Weighted };
            let rate = Rate::new(1, Duration::from_secs(1)).unwrap().with_strategy(sliding).unwrap();
            assert!(rate.width() * u64::from(precision) >= 1_000_000);
        }
    }
}
