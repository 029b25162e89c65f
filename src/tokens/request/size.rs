//! How many tokens a request may have, and may ask for.

use crate::base::json::Kind;
use crate::tokens::tokens_of;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Bytes of all strings and all names of members, after decoding.
    pub text: u64,
    pub numbers: u64,
    /// The number of parts that are not text, and of references to earlier content.
    pub parts: u64,
}

impl InputSize {
    /// An estimate of the tokens, with `part` tokens for each part.
    pub fn tokens(self, part: u64) -> u64 {
        tokens_of(self.text).saturating_add(self.numbers).saturating_add(self.parts.saturating_mul(part))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedOutput {
    /// The greatest maximum that the request names.
    pub most: Option<u64>,
    /// Whether `most` may also have another meaning.
    pub is_uncertain: bool,
    /// For all prompts together.
    pub answers: u64,
}

impl AskedOutput {
    /// The most tokens of output, with `without_maximum` for an answer without a maximum.
    pub fn tokens(self, without_maximum: u64) -> u64 {
        let Self { most, is_uncertain, answers } = self;
        let at_least = if is_uncertain { without_maximum } else { 0 };
        most.map_or(without_maximum, |most| most.max(at_least)).saturating_mul(answers)
    }
}

/// Counts the prompts of a body that has them in an array.
pub(super) struct Prompts {
    /// The depth of the prompts in arrays and objects; `u32::MAX` while the reader is not in their array.
    depth: u32,
    /// The prompts of this array so far.
    count: u64,
    /// The most prompts in one array, at least one.
    most: u64,
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

    /// The number of prompts: one if they are in no array.
    pub(super) fn most(&self) -> u64 {
        self.most
    }
}
