//! What a limiter is said to do: N requests in each window, counted in one of four ways.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// N requests in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) quota: usize,
    pub(crate) window: Duration,
}

/// How a limiter counts, which decides how much may pass at an edge.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Algorithm {
    /// Each admitted request counts until it is as old as the window: no window has more than N
    Log,
    /// The window before counts by its share in the sliding window: N, and N x t / window more in a time t
    SlidingWindow,
    /// N at once, and N x t / window more in a time t
    TokenBucket,
    /// A counter that begins again: 2 N around an edge
    FixedWindow,
}

impl Rate {
    /// The most that may pass within less than a window. `has_edge` says whether an edge of a fixed window may be inside.
    pub(crate) fn most(self, algorithm: Algorithm, within: Duration, has_edge: bool) -> usize {
        let drained = self.quota as f64 * within.as_secs_f64() / self.window.as_secs_f64();
        match algorithm {
            Algorithm::Log => self.quota,
            Algorithm::FixedWindow => self.quota * if has_edge { 2 } else { 1 },
            Algorithm::TokenBucket => self.quota + drained as usize,
            // An estimate is rounded down once.
            Algorithm::SlidingWindow => self.quota + drained as usize + 1,
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no rate: write N/TIME, such as 20/10s, 100/m or 5/500ms");
        let (quota, time) = text.split_once('/').ok_or_else(wrong)?;
        let digits = time.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = time.split_at(digits);
        let number = if number.is_empty() { 1 } else { number.parse::<u32>().map_err(|_| wrong())? };
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return Err(wrong()),
        };
        let rate = Self { quota: quota.parse().map_err(|_| wrong())?, window: unit * number };
        if rate.window.is_zero() || !(3..=1000).contains(&rate.quota) {
            return Err(format!("`{text}` cannot be measured: N is from 3 to 1000, and the time is not 0"));
        }
        Ok(rate)
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} s", self.quota, self.window.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let rate = |quota, millis| Ok(Rate { quota, window: Duration::from_millis(millis) });
        assert_eq!("20/10s".parse(), rate(20, 10_000));
        assert_eq!("100/m".parse(), rate(100, 60_000));
        assert_eq!("5/500ms".parse(), rate(5, 500));
        for wrong in ["20", "20/", "/s", "20/0s", "1/s", "20/10d", "-5/s", "20/s5"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_may_pass_depends_on_how_it_is_counted() {
        let rate = Rate { quota: 10, window: Duration::from_secs(10) };
        let most = |algorithm, millis| rate.most(algorithm, Duration::from_millis(millis), true);
        assert_eq!([0, 9999].map(|time| most(Algorithm::Log, time)), [10, 10]);
        assert_eq!([0, 5500].map(|time| most(Algorithm::TokenBucket, time)), [10, 15]);
        assert_eq!([0, 5500].map(|time| most(Algorithm::SlidingWindow, time)), [11, 16]);
        assert_eq!([0, 9999].map(|time| most(Algorithm::FixedWindow, time)), [20, 20]);
    }
}
