//! What a request to a language model costs, in tokens: estimated from the body of the request, and known from the response.
//!
//! `request` reads the body of a request; `response` reads the usage and the amount of text of a response while it passes;
//! `filter` removes from a stream what only the gateway asked for.

pub mod filter;
pub mod pointer;
pub mod request;
pub mod response;

use std::fmt;
use std::str::FromStr;

use crate::limit::MAX_QUOTA;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request that were not in the provider's cache.
    pub input: u64,
    /// Tokens of the request that were in the provider's cache.
    pub cached: u64,
    pub output: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    pub input: Weight,
    pub cached: Weight,
    pub output: Weight,
}

impl Weights {
    /// The cost of a request, rounded up to a whole number, and at most [`MAX_QUOTA`].
    pub fn cost(&self, usage: Usage) -> u64 {
        let cost = |count: u64, weight: Weight| u128::from(count) * u128::from(weight.0);
        let sum = cost(usage.input, self.input) + cost(usage.cached, self.cached) + cost(usage.output, self.output);
        u64::try_from(sum.div_ceil(u128::from(Weight::ONE.0))).unwrap_or(MAX_QUOTA).min(MAX_QUOTA)
    }
}

pub const MAX_WEIGHT: u32 = 1000;

/// A decimal from 0 to [`MAX_WEIGHT`], in millionths. Most decimals are no floating-point numbers, so it is read from text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    pub const ONE: Self = Self(1_000_000);
    const MAX: Self = Self(MAX_WEIGHT * Self::ONE.0);
    /// The most digits after the point.
    const PLACES: usize = 6;
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl FromStr for Weight {
    /// For people.
    type Err = &'static str;

    /// Parses `4`, `0.1` or `12.50`.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction:0<width$}", width = Self::PLACES);
        let is_decimal =
            !whole.is_empty() && fraction.len() <= Self::PLACES && digits.bytes().all(|byte| byte.is_ascii_digit());
        let millionths = digits.parse().ok().filter(|_| is_decimal);
        let weight = millionths.map(Self).filter(|weight| weight.0 <= Self::MAX.0);
        weight.ok_or("it is not a decimal from 0 to 1000 with at most six places")
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / Self::ONE.0, self.0 % Self::ONE.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An estimate of the tokens in a text of this length.
pub fn tokens_of(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn weights_are_decimals() {
        for (text, millionths) in [
            ("0", 0),
            ("1", 1_000_000),
            ("0.1", 100_000),
            ("1000", 1_000_000_000),
            ("2.500000000", 2_500_000),
            ("0.000001", 1),
        ] {
            assert_eq!(text.parse(), Ok(Weight(millionths)), "{text}");
        }
        for text in [
            "",
            ".",
            ".5",
            "-1",
            "+1",
            "1e1",
            "0.0000001",
            "1000.000001",
            "1001",
            "99999999999999999999",
            "1.2.3",
            "NaN",
            "1,5",
        ] {
            assert!(text.parse::<Weight>().is_err(), "{text}");
        }
        assert_eq!(1.25_f64.to_string().parse(), Ok(Weight(1_250_000)));
        for text in ["0", "1", "0.1", "1000", "12.345678", "100"] {
            assert_eq!(text.parse::<Weight>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_cost_is_rounded_up_and_at_most_the_largest_quota() {
        let weights = Weights { cached: "0.1".parse().unwrap(), output: "4".parse().unwrap(), ..Weights::default() };
        assert_eq!(weights.cost(Usage { input: 10, cached: 11, output: 3 }), 24);
        assert_eq!(weights.cost(Usage { input: 0, cached: 10, output: 0 }), 1);
        assert_eq!(weights.cost(Usage::default()), 0);
        assert_eq!(weights.cost(Usage { input: u64::MAX, cached: u64::MAX, output: u64::MAX }), MAX_QUOTA);
    }

    #[test]
    fn a_token_is_four_bytes() {
        assert_eq!([0, 1, 4, 5, u64::MAX].map(tokens_of), [0, 1, 1, 2, 1 << 62]);
    }

    proptest! {
        #[test]
        fn a_cost_is_the_least_whole_number_that_is_enough(
            counts in [0_u64..1 << 40, 0_u64..1 << 40, 0_u64..1 << 40], weights in [0_u32..=Weight::MAX.0, 0_u32..=Weight::MAX.0, 0_u32..=Weight::MAX.0],
            shift in 0_u32..41,
        ) {
            let counts = counts.map(|count| count >> shift);
            let exact: u128 = counts.iter().zip(weights).map(|(count, weight)| u128::from(*count) * u128::from(weight)).sum();
            let [input, cached, output] = weights.map(Weight);
            let cost = Weights { input, cached, output }.cost(Usage { input: counts[0], cached: counts[1], output: counts[2] });
            let is_enough = |cost: u64| u128::from(cost) * 1_000_000 >= exact;
            prop_assert!(is_enough(cost) || cost == MAX_QUOTA);
            prop_assert!(cost <= MAX_QUOTA && (cost == 0 || !is_enough(cost - 1)));
        }

        #[test]
        fn a_weight_is_read_as_it_is_written(millionths in 0_u32..=Weight::MAX.0) {
            prop_assert_eq!(Weight(millionths).to_string().parse(), Ok(Weight(millionths)));
        }
    }
}
