//! One rate: so many requests per window, and the strategy by which they are counted.
//!
//! Every [`Rate`] is valid: its constructors refuse zero requests, empty windows and whatever could overflow later.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::calendar::{Calendar, Unit};
use crate::clock::{Time, micros};
use crate::units::{self, DurationError};

/// The largest quota, 2^32 requests per window, and the largest burst.
pub const MAX_QUOTA: u64 = 1 << 32;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_secs(1);
/// The longest window, 31 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 86_400);
/// The most buckets that a sliding window can be cut into.
pub const MAX_PRECISION: u32 = 60;
/// The largest quota of a sliding log, which remembers every request.
pub const MAX_LOG: u64 = 10_000;

/// How the oldest bucket counts while the window slides out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Edge {
    /// It counts by the share of it that still lies in the window.
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
}

impl Default for Strategy {
    fn default() -> Self {
        Self::SlidingWindow { precision: 1, edge: Edge::Weighted }
    }
}

/// At most `quota` requests per window, counted by a [`Strategy`].
///
/// ```
/// use gateway::limit::{Edge, Rate, Strategy};
///
/// let rate: Rate = "3000/10m".parse()?;
/// assert_eq!(rate.quota(), 3000);
/// assert_eq!(rate.window().as_secs(), 600);
/// assert_eq!(*rate.strategy(), Strategy::SlidingWindow { precision: 1, edge: Edge::Weighted });
///
/// let rate: Rate = "10/s burst 50".parse()?;
/// assert_eq!(*rate.strategy(), Strategy::TokenBucket { burst: 50 });
/// assert_eq!(rate.capacity(), 50);
/// # Ok::<(), gateway::limit::RateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    quota: u64,
    window: u64,
    /// Of a sliding window's bucket. It is kept because each decision needs it several times.
    width: u64,
    strategy: Strategy,
}

impl Rate {
    /// A rate of `quota` (1 to 2^32) per `window` (1 s to 31 days), counted by the default strategy: a sliding window of one
    /// bucket, weighted.
    ///
    /// # Errors
    ///
    /// [`RateError::Quota`] or [`RateError::Window`], if one of them is out of range.
    pub fn new(quota: u64, window: Duration) -> Result<Self, RateError> {
        if quota == 0 || quota > MAX_QUOTA {
            return Err(RateError::Quota);
        }
        if window < MIN_WINDOW || window > MAX_WINDOW {
            return Err(RateError::Window);
        }
        let window = micros(window);
        Ok(Self { quota, window, width: window, strategy: Strategy::default() })
    }

    /// The same rate, counted by another strategy. A calendar determines the window as well.
    ///
    /// ```
    /// use gateway::limit::{Rate, RateError, Strategy};
    ///
    /// let rate: Rate = "100/m".parse()?;
    /// assert!(rate.with_strategy(Strategy::FixedWindow).is_ok());
    /// let rate: Rate = "10001/m".parse()?;
    /// assert_eq!(rate.with_strategy(Strategy::SlidingLog), Err(RateError::Log));
    /// # Ok::<(), RateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RateError::Precision`] or [`RateError::Burst`], if these are out of range, and [`RateError::Log`], if a sliding log
    /// would have to remember too many requests.
    pub fn with_strategy(self, strategy: Strategy) -> Result<Self, RateError> {
        let window = match &strategy {
            Strategy::SlidingWindow { precision, .. } if !(1..=MAX_PRECISION).contains(precision) => {
                return Err(RateError::Precision);
            }
            Strategy::SlidingLog if self.quota > MAX_LOG => return Err(RateError::Log),
            Strategy::TokenBucket { burst } if !(1..=MAX_QUOTA).contains(burst) => return Err(RateError::Burst),
            Strategy::Calendar(calendar) => micros(calendar.longest()),
            _ => self.window,
        };
        let width = match strategy {
            Strategy::SlidingWindow { precision, .. } => window.div_ceil(u64::from(precision)),
            _ => window,
        };
        Ok(Self { quota: self.quota, window, width, strategy })
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

    /// The window, 1 s to 31 days; of a calendar, the longest that it has.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window)
    }

    /// How requests are counted.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Whether its state consists of counters, one for each bucket, to which several gateways can add. The state of other
    /// strategies is kept as a whole.
    pub fn uses_counters(&self) -> bool {
        matches!(self.strategy, Strategy::SlidingWindow { .. } | Strategy::Calendar(_))
    }

    /// Microseconds after which a state to which nothing more was charged equals a new one, if no more had been charged to it
    /// than the rate admits.
    pub fn memory(&self) -> u64 {
        match &self.strategy {
            Strategy::SlidingWindow { precision, .. } => self.width() * (u64::from(*precision) + 1),
            Strategy::TokenBucket { burst } => {
                let full = u128::from(*burst) * u128::from(self.window);
                u64::try_from(full.div_ceil(u128::from(self.quota))).unwrap_or(u64::MAX)
            }
            Strategy::FixedWindow | Strategy::SlidingLog => self.window,
            // A day lasts 25 hours where clocks are set back.
            Strategy::Calendar(_) => self.window + 3_600_000_000,
        }
    }

    /// The latest moment, in microseconds since 1970, at which a request no longer counts at `now`, if each request counts
    /// from its moment until exactly one window later; of a calendar, the last one before its window. `None` if there is
    /// none since 1970.
    ///
    /// ```
    /// use gateway::clock::Time;
    /// use gateway::limit::Rate;
    ///
    /// let rate: Rate = "10/s".parse()?;
    /// assert_eq!(rate.forgotten(Time::from_micros(5_000_000)), Some(4_000_000));
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn forgotten(&self, now: Time) -> Option<u64> {
        match &self.strategy {
            Strategy::Calendar(calendar) => calendar.window(now).0.checked_sub(1),
            _ => now.micros().checked_sub(self.window),
        }
    }

    /// Whether states of this rate have the same layout and meaning as those of `old`.
    pub fn is_kept_like(&self, old: &Self) -> bool {
        self.layout() == old.layout()
    }

    /// Describes the layout and the meaning of its state, which do not depend on the quota, the burst or the edge. Saved states
    /// are found by it.
    pub(super) fn layout(&self) -> String {
        let span = self.window;
        match &self.strategy {
            Strategy::SlidingWindow { precision, .. } => format!("{}x{precision}", self.width),
            Strategy::FixedWindow => format!("{span}f"),
            Strategy::SlidingLog => format!("{span}m"),
            Strategy::TokenBucket { .. } => format!("{span}b"),
            Strategy::Calendar(calendar) => format!("{}@{}", calendar.unit().name(), calendar.zone()),
        }
    }

    /// How the oldest bucket of a sliding window counts.
    pub(super) fn edge(&self) -> Edge {
        match self.strategy {
            Strategy::SlidingWindow { edge, .. } => edge,
            _ => Edge::default(),
        }
    }

    /// The window in microseconds.
    pub(super) fn span(&self) -> u64 {
        self.window
    }

    /// The width of a sliding window's bucket in microseconds. It is rounded up where the window does not divide evenly:
    /// the buckets then cover slightly more than the window, so that the window never has more than the quota.
    pub(super) fn width(&self) -> u64 {
        self.width
    }
}

/// Writes the rate as the configuration spells it: `10/s`, `3000/10m`, `10/s burst 50`, `5000/day`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.quota, self.period())?;
        match self.strategy {
            Strategy::TokenBucket { burst } if burst != self.quota => write!(f, " burst {burst}"),
            _ => Ok(()),
        }
    }
}

impl Rate {
    /// The period as the configuration spells it: `s`, `10m`, `day`.
    pub fn period(&self) -> String {
        match &self.strategy {
            Strategy::Calendar(calendar) => calendar.unit().name().to_owned(),
            _ => units::period(self.window()),
        }
    }
}

/// Reads `N/PERIOD`, where PERIOD is a unit (`s`, `m`, `h`, `d`), a duration (`10m`), or `day` or `month` of the
/// calendar in UTC; `N/PERIOD burst B` is a token bucket.
impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (quota, period) = text.split_once('/').ok_or(RateError::Form)?;
        let quota = number(quota)?.ok_or(RateError::Quota)?;
        let (period, burst) = match period.split_once("burst") {
            Some((period, burst)) => (period.trim(), Some(number(burst)?.ok_or(RateError::Burst)?)),
            None => (period.trim(), None),
        };
        if let Some(unit) = Unit::named(period) {
            let rate = Self::new(quota, unit.longest())?;
            return match burst {
                None => rate.with_strategy(Strategy::Calendar(Calendar::utc(unit))),
                Some(_) => Err(RateError::Form),
            };
        }
        let window = match period {
            "s" | "m" | "h" | "d" => units::duration(&format!("1{period}")),
            _ => units::duration(period),
        };
        let rate = Self::new(quota, window.map_err(RateError::Period)?)?;
        match burst {
            None => Ok(rate),
            Some(burst) => rate.with_strategy(Strategy::TokenBucket { burst }),
        }
    }
}

/// A number in digits alone; `None` if there are too many of them.
fn number(text: &str) -> Result<Option<u64>, RateError> {
    let digits = text.trim();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RateError::Form);
    }
    Ok(digits.parse().ok())
}

/// Why a text is not a rate, or why a rate cannot be counted by a strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum RateError {
    /// The text is not of the form `N/PERIOD`.
    Form,
    /// The quota is zero or over 2^32.
    Quota,
    /// The window is shorter than a second or longer than 31 days.
    Window,
    /// The part after the slash is not a duration.
    Period(DurationError),
    /// The precision is zero or over 60.
    Precision,
    /// The burst is zero or over 2^32.
    Burst,
    /// The quota is over 10 000, which is too much for a sliding log to remember.
    Log,
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "a rate is N/PERIOD, like \"10/s\" or \"3000/10m\"",
            Self::Quota => "the number of requests in a rate is from 1 to 4294967296",
            Self::Window => "the period of a rate is from 1s to 31d",
            Self::Period(_) => "the period of a rate is s, m, h, d or a duration like 10m",
            Self::Precision => "precision is from 1 to 60",
            Self::Burst => "a burst is from 1 to 4294967296",
            Self::Log => "a moving window remembers every request: at most 10000",
        })
    }
}

impl std::error::Error for RateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in [
            "10/s",
            "3000/10m",
            "100000/30d",
            "1/h",
            "5/90s",
            "4294967296/31d",
            "7/d",
            "10/s burst 50",
            "3/10m burst 1",
            "5000/day",
            "1000000/month",
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10/1s".parse::<Rate>().unwrap().to_string(), "10/s");
        assert_eq!("10/60s".parse::<Rate>().unwrap().to_string(), "10/m");
    }

    #[test]
    fn refuses_what_is_not_a_rate() {
        for text in ["", "10", "/s", "10/", "-1/s", "+1/s", "1.5/s", "10/x", "10/10", "10/s burst", "1/day burst 2"] {
            assert!(matches!(text.parse::<Rate>(), Err(RateError::Form | RateError::Period(_))), "{text}");
        }
        for text in ["0/s", "4294967297/s", "99999999999999999999999/s", "0/day"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Quota), "{text}");
        }
        for text in ["1/999ms", "1/32d", "1/0s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Window), "{text}");
        }
        for text in ["1/s burst 0", "1/s burst 4294967297", "1/s burst 99999999999999999999999"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Burst), "{text}");
        }
    }

    #[test]
    fn refuses_what_a_strategy_cannot_count() {
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        let sliding = |precision| Strategy::SlidingWindow { precision, edge: Edge::Whole };
        assert_eq!(rate("1/s").with_strategy(sliding(0)), Err(RateError::Precision));
        assert_eq!(rate("1/s").with_strategy(sliding(61)), Err(RateError::Precision));
        assert_eq!(rate("10001/s").with_strategy(Strategy::SlidingLog), Err(RateError::Log));
        assert!(rate("10000/s").with_strategy(Strategy::SlidingLog).is_ok());
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
