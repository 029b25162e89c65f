//! How many tokens a request may have, and may ask for. Servers accept more than numbers: texts of numbers, and values that mean
//! unlimited.

use crate::base::json::{Kind, normal};
use crate::tokens::tokens_of;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Bytes of all strings and all names of members, after decoding.
    pub text: u64,
    /// Numbers, and other bare words.
    pub words: u64,
    /// The number of parts that are not text, and of references to earlier content.
    pub parts: u64,
}

impl InputSize {
    /// An estimate of the tokens, with `part` tokens for each part.
    pub fn tokens(self, part: u64) -> u64 {
        tokens_of(self.text).saturating_add(self.words).saturating_add(self.parts.saturating_mul(part))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedOutput {
    /// The greatest maximum that the request names; 0 if it names none.
    pub most: u64,
    /// Whether the request names a maximum that its server knows.
    pub is_bounded: bool,
    /// Whether a maximum may also have another meaning.
    pub is_uncertain: bool,
    /// For all prompts together.
    pub answers: u64,
}

impl AskedOutput {
    /// The most tokens of output, with `without_maximum` for an answer without a maximum.
    pub fn tokens(self, without_maximum: u64) -> u64 {
        let Self { most, is_bounded, is_uncertain, answers } = self;
        let at_least = if is_bounded && !is_uncertain { 0 } else { without_maximum };
        most.max(at_least).saturating_mul(answers)
    }
}

/// Counts the prompts of a body that has them in an array.
pub(super) struct Prompts {
    /// The depth of the prompts in arrays and objects; `u32::MAX` while the reader is not in their array.
    depth: u32,
    /// The prompts of this array so far.
    count: u64,
    /// The number of prompts: the most in one array, and one if they are in no array.
    pub(super) most: u64,
}

impl Default for Prompts {
    fn default() -> Self {
        Self { depth: u32::MAX, count: 0, most: 1 }
    }
}

impl Prompts {
    /// The array of prompts begins. Its items are at this depth.
    pub(super) fn begin(&mut self, depth: u32) {
        (self.depth, self.count) = (depth, 0);
    }

    /// A value begins at this depth of arrays and objects.
    #[inline]
    pub(super) fn value(&mut self, depth: u32) {
        if depth == self.depth {
            self.count += 1;
        }
    }

    /// A value ends at this depth of arrays and objects.
    #[inline]
    pub(super) fn end(&mut self, kind: Kind, depth: u32) {
        if kind == Kind::Array && depth + 1 == self.depth {
            (self.depth, self.most) = (u32::MAX, self.most.max(self.count));
        }
    }
}

/// What a word or a text may mean as a number of tokens or of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount {
    /// The largest whole number that it can mean.
    pub(super) most: u64,
    /// Whether every server that accepts it reads this number. Otherwise it may also mean that there is no maximum, as 0 does.
    pub(super) is_certain: bool,
}

impl Amount {
    /// A number with more digits than are read, or what has numbers in it.
    pub(super) const LARGEST: Self = Self { most: u64::MAX, is_certain: false };
    const NONE: Self = Self { most: 0, is_certain: false };

    /// Reads a word of JSON, or the text of a string.
    pub(super) fn of(text: &[u8]) -> Self {
        let text = text.trim_ascii();
        let is_short = (1..=19).contains(&text.len());
        match digits(text) {
            Some(number) if is_short => Self { most: number, is_certain: number > 0 },
            _ if text.starts_with(b"-") => Self::NONE,
            _ => normal(text).map_or_else(|| Self::unusual(text), |form| Self::of_number(&form)),
        }
    }

    /// Reads a number in its normal form that is not negative.
    fn of_number(form: &str) -> Self {
        if let Ok(number) = form.parse() {
            return Self { most: number, is_certain: number > 0 };
        }
        let most = match (form.split_once('.'), form.contains("e-")) {
            (Some((whole, _)), _) => whole.parse().map_or(u64::MAX, |whole: u64| whole.saturating_add(1)),
            (None, true) => 1,
            (None, false) => u64::MAX,
        };
        Self { most, is_certain: false }
    }

    /// Reads what is not a number of JSON: one with a sign, separators, another base, or something after it.
    fn unusual(text: &[u8]) -> Self {
        if !text.is_ascii() {
            // Some languages read the digits of all scripts.
            return Self::LARGEST;
        }
        let text: Vec<u8> = text.iter().filter(|byte| !b"_,' +".contains(byte)).map(u8::to_ascii_lowercase).collect();
        let hexadecimal = text.strip_prefix(b"0x").map(|rest| leading(rest, 16));
        let binary = text.strip_prefix(b"0b").map(|rest| leading(rest, 2));
        let octal = text.strip_prefix(b"0o").map(|rest| leading(rest, 8));
        let other = hexadecimal.or(binary).or(octal);
        let most = other.unwrap_or_else(|| {
            let mut rest = text.iter().skip_while(|byte| byte.is_ascii_digit()).skip_while(|byte| **byte == b'.');
            let is_power = text.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.')
                && rest.find(|byte| !byte.is_ascii_digit()) == Some(&b'e');
            let is_fraction = text.iter().find(|byte| !byte.is_ascii_digit()) == Some(&b'.');
            match is_power || text.starts_with(b"inf") {
                true => u64::MAX,
                // Servers may round a fraction up.
                false => leading(&text, 10).saturating_add(is_fraction.into()),
            }
        });
        Self { most, is_certain: false }
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| number.saturating_mul(10).saturating_add(digit.into()))
    })
}

/// The number at the beginning of the text.
fn leading(text: &[u8], base: u32) -> u64 {
    let digits = text.iter().map_while(|byte| char::from(*byte).to_digit(base));
    digits.fold(0, |number: u64, digit| number.saturating_mul(base.into()).saturating_add(digit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_the_largest_that_a_server_may_read() {
        for (text, most) in
            [("80", 80), (" 4000\n", 4000), ("1e3", 1000), ("2.0", 2), ("007", 7), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(Amount::of(text.as_bytes()), Amount { most, is_certain: true }, "{text}");
        }
        for (text, most) in [
            ("", 0),
            ("0", 0),
            ("00", 0),
            ("0.0", 0),
            ("0e5", 0),
            ("lots", 0),
            ("null", 0),
            ("-1", 0),
            ("-1e300", 0),
            ("0.5", 1),
            ("4000.7", 4001),
            ("1e-300", 1),
            ("1e300", u64::MAX),
            ("18446744073709551616", u64::MAX),
            ("99999999999999999999999999999", u64::MAX),
            ("+4000", 4000),
            ("4_000", 4000),
            ("4,000", 4000),
            ("4000 tokens", 4000),
            ("4000.", 4001),
            ("0x1000", 4096),
            ("0b11", 3),
            ("0o17", 15),
            ("04e3x", u64::MAX),
            ("Infinity", u64::MAX),
            ("inf", u64::MAX),
            ("４０００", u64::MAX),
        ] {
            assert_eq!(Amount::of(text.as_bytes()), Amount { most, is_certain: false }, "{text}");
        }
    }
}
