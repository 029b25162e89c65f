//! How a rate is written: `10/s`, `3000/10m`, `10/s burst 50`, `5000/day`; a rate of bytes as a size: `10GiB/d`.

use std::fmt;
use std::str::FromStr;

use super::super::calendar::{Calendar, Unit};
use super::{Rate, RateError, Strategy};
use crate::base::units::{self, DurationError};

/// Reads `N/PERIOD`, where PERIOD is a unit (`s`, `m`, `h`, `d`), a duration (`10m`), or `day` or `month` of the calendar in
/// UTC; `N/PERIOD burst B` is a token bucket. If N is a size, the rate counts bytes, and so must its burst.
impl FromStr for Rate {
    type Err = RateTextError;

    fn from_str(text: &str) -> Result<Self, RateTextError> {
        let (quota, period) = text.split_once('/').ok_or(RateTextError::Form)?;
        let is_in_bytes = quota.trim_end().ends_with(|last: char| last.is_ascii_alphabetic());
        let amount = |text: &str| if is_in_bytes { size(text).map(Some) } else { number(text) };
        let quota = amount(quota)?.ok_or(RateError::Quota)?;
        let (period, burst) = match period.split_once("burst") {
            Some((period, burst)) => (period.trim(), Some(amount(burst)?.ok_or(RateError::Burst)?)),
            None => (period.trim(), None),
        };
        if let Some(unit) = Unit::named(period) {
            let rate = Self::in_unit(quota, unit.longest(), is_in_bytes)?;
            return match burst {
                None => Ok(rate.with_strategy(Strategy::Calendar(Calendar::utc(unit)))?),
                Some(_) => Err(RateTextError::Form),
            };
        }
        let window = match period {
            "s" | "m" | "h" | "d" => units::duration(&format!("1{period}")),
            _ => units::duration(period),
        };
        let rate = Self::in_unit(quota, window.map_err(RateTextError::Period)?, is_in_bytes)?;
        match burst {
            None => Ok(rate),
            Some(burst) => Ok(rate.with_strategy(Strategy::TokenBucket { burst })?),
        }
    }
}

/// As in the configuration, but without a burst that equals the quota.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.amount(self.quota()), self.period())?;
        match self.strategy() {
            Strategy::TokenBucket { burst } if *burst != self.quota() => write!(f, " burst {}", self.amount(*burst)),
            _ => Ok(()),
        }
    }
}

impl Rate {
    /// A part of the quota, in the unit of the rate: `7` or `64KiB`.
    pub fn amount(&self, amount: u64) -> String {
        if self.is_in_bytes() { units::spelled_size(amount) } else { amount.to_string() }
    }

    /// The period as the configuration spells it: `s`, `10m`, `day`.
    pub fn period(&self) -> String {
        match self.strategy() {
            Strategy::Calendar(calendar) => calendar.unit().name().to_owned(),
            _ => units::period(self.window()),
        }
    }
}

/// A number of digits only; `None` if it is too large.
fn number(text: &str) -> Result<Option<u64>, RateTextError> {
    let digits = text.trim();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RateTextError::Form);
    }
    Ok(digits.parse().ok())
}

fn size(text: &str) -> Result<u64, RateTextError> {
    units::size(text.trim()).ok_or(RateTextError::Form)
}

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RateTextError {
    /// It is not of the form `N/PERIOD`.
    #[error("a rate is N/PERIOD, like \"10/s\" or \"3000/10m\"")]
    Form,
    /// The part after the slash is not a duration.
    #[error("the period of a rate is s, m, h, d or a duration like 10m")]
    Period(DurationError),
    /// There is no such rate.
    #[error("{0}")]
    Rate(#[from] RateError),
}

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
            "10GiB/d",
            "500MB/h",
            "1001B/s burst 64KiB",
            "256TiB/month",
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10/1s".parse::<Rate>().unwrap().to_string(), "10/s");
        assert_eq!("10/60s".parse::<Rate>().unwrap().to_string(), "10/m");
    }

    #[test]
    fn refuses_what_is_not_a_rate() {
        for text in [
            "",
            "10",
            "/s",
            "10/",
            "-1/s",
            "+1/s",
            "1.5/s",
            "10/x",
            "10/10",
            "10/s burst",
            "1/day burst 2",
            "1GiB/s burst 5",
            "1/s burst 5KiB",
            "9XB/s",
        ] {
            assert!(matches!(text.parse::<Rate>(), Err(RateTextError::Form | RateTextError::Period(_))), "{text}");
        }
        for text in ["0/s", "4294967297/s", "99999999999999999999999/s", "0/day", "0B/s", "257TiB/d"] {
            assert_eq!(text.parse::<Rate>(), Err(RateTextError::Rate(RateError::Quota)), "{text}");
        }
        for text in ["1/999ms", "1/32d", "1/0s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateTextError::Rate(RateError::Window)), "{text}");
        }
        for text in ["1/s burst 0", "1/s burst 4294967297", "1/s burst 99999999999999999999999"] {
            assert_eq!(text.parse::<Rate>(), Err(RateTextError::Rate(RateError::Burst)), "{text}");
        }
    }
}
