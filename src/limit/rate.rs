//! One rate: so many requests per window, and how the window is cut into buckets.
//!
//! A rate that exists is valid: zero requests, an empty window or an overflow cannot be written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::micros;
use crate::units::{self, DurationError};

/// The largest quota, 2^32 requests per window.
pub const MAX_QUOTA: u64 = 1 << 32;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_secs(1);
/// The longest window, 31 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 86_400);
/// The most buckets that a window can be cut into.
pub const MAX_PRECISION: u32 = 60;

/// How the oldest bucket counts while the window slides out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edge {
    /// By the share of it that still lies in the window.
    #[default]
    Weighted,
    /// In full until it is gone: never more than the quota in any window.
    Whole,
}

/// At most `quota` requests per `window`, counted in `precision` buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    quota: u64,
    window: u64,
    precision: u32,
    edge: Edge,
}

impl Rate {
    /// A rate of `quota` (1 to 2^32) per `window` (1 s to 31 days) in one bucket, weighted.
    pub fn new(quota: u64, window: Duration) -> Result<Self, RateError> {
        if quota == 0 || quota > MAX_QUOTA {
            return Err(RateError::Quota);
        }
        if window < MIN_WINDOW || window > MAX_WINDOW {
            return Err(RateError::Window);
        }
        Ok(Self { quota, window: micros(window), precision: 1, edge: Edge::Weighted })
    }

    /// The same rate with its window cut into `precision` buckets (1 to 60), the oldest counted as `edge` says.
    pub fn cut(self, precision: u32, edge: Edge) -> Result<Self, RateError> {
        if precision == 0 || precision > MAX_PRECISION {
            return Err(RateError::Precision);
        }
        Ok(Self { precision, edge, ..self })
    }

    /// Requests per window, 1 to 2^32.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// The window, 1 s to 31 days.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window)
    }

    /// How many buckets the window is cut into, 1 to 60.
    pub fn precision(&self) -> u32 {
        self.precision
    }

    /// How the oldest bucket counts.
    pub fn edge(&self) -> Edge {
        self.edge
    }

    /// How many counters stand for this rate: the buckets of a window and the one it slides out of.
    pub fn slots(&self) -> usize {
        self.precision as usize + 1
    }

    /// The width of a bucket in microseconds. Rounded up where the window does not divide evenly:
    /// the buckets then cover a hair more than the window, and the promise holds for the window.
    pub fn width(&self) -> u64 {
        self.window.div_ceil(u64::from(self.precision))
    }
}

/// Writes the rate as the configuration spells it: `10/s`, `3000/10m`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.quota, units::period(self.window()))
    }
}

/// Reads `N/PERIOD`, where PERIOD is a unit (`s`, `m`, `h`, `d`) or a duration (`10m`).
impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (quota, period) = text.split_once('/').ok_or(RateError::Form)?;
        let digits = quota.trim();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RateError::Form);
        }
        // Only digits are left, so a failure means too many of them.
        let quota = digits.parse().map_err(|_| RateError::Quota)?;
        let period = period.trim();
        let window = match period {
            "s" | "m" | "h" | "d" => units::duration(&format!("1{period}")),
            _ => units::duration(period),
        };
        Self::new(quota, window.map_err(RateError::Period)?)
    }
}

/// Why a text or a number is not a rate.
#[derive(Clone, Debug, PartialEq)]
pub enum RateError {
    /// Not of the form `N/PERIOD`.
    Form,
    /// The quota is zero or over 2^32.
    Quota,
    /// The window is shorter than a second or longer than 31 days.
    Window,
    /// The part after the slash is not a duration.
    Period(DurationError),
    /// The precision is zero or over 60.
    Precision,
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("a rate is N/PERIOD, like \"10/s\" or \"3000/10m\""),
            Self::Quota => f.write_str("the number of requests in a rate is from 1 to 4294967296"),
            Self::Window => f.write_str("the period of a rate is from 1s to 31d"),
            Self::Period(_) => f.write_str("the period of a rate is s, m, h, d or a duration like 10m"),
            Self::Precision => f.write_str("precision is from 1 to 60"),
        }
    }
}

impl std::error::Error for RateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["10/s", "3000/10m", "100000/30d", "1/h", "5/90s", "4294967296/31d", "7/d"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10/1s".parse::<Rate>().unwrap().to_string(), "10/s");
        assert_eq!("10/60s".parse::<Rate>().unwrap().to_string(), "10/m");
    }

    #[test]
    fn refuses_what_is_not_a_rate() {
        for text in ["", "10", "/s", "10/", "-1/s", "+1/s", "1.5/s", "10/x", "10/10"] {
            assert!(matches!(text.parse::<Rate>(), Err(RateError::Form | RateError::Period(_))), "{text}");
        }
        for text in ["0/s", "4294967297/s", "99999999999999999999999/s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Quota), "{text}");
        }
        for text in ["1/999ms", "1/32d", "1/0s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Window), "{text}");
        }
    }

    #[test]
    fn buckets_cover_the_window() {
        let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
        for precision in 1..=MAX_PRECISION {
            let rate = rate.cut(precision, Edge::Weighted).unwrap();
            assert!(rate.width() * u64::from(precision) >= 1_000_000);
        }
        assert_eq!(rate.cut(0, Edge::Whole), Err(RateError::Precision));
        assert_eq!(rate.cut(61, Edge::Whole), Err(RateError::Precision));
    }
}
