//! How many tokens a request may have, and may ask for.

use crate::base::json::Kind;
use crate::tokens::tokens_of;

/// How large the input of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Bytes of all strings and all names of members, after decoding.
    pub text: u64,
    /// How many numbers it has.
    pub numbers: u64,
    /// How many parts it has that are no text, and references to earlier content.
    pub parts: u64,
}

impl InputSize {
    /// An estimate of its tokens, if each part has so many.
    pub fn tokens(self, part: u64) -> u64 {
        tokens_of(self.text).saturating_add(self.numbers).saturating_add(self.parts.saturating_mul(part))
    }
}

/// How much output a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedOutput {
    /// The greatest maximum that it names.
    pub most: Option<u64>,
    /// Whether that may mean something else, too.
    pub is_uncertain: bool,
    /// For how many answers it asks, all prompts together.
    pub answers: u64,
}

impl AskedOutput {
    /// The most tokens of output, if an answer without a maximum has so many.
    pub fn tokens(self, without_maximum: u64) -> u64 {
        let Self { most, is_uncertain, answers } = self;
        let at_least = if is_uncertain { without_maximum } else { 0 };
        most.map_or(without_maximum, |most| most.max(at_least)).saturating_mul(answers)
    }
}

/// Counts the prompts of a body that has them in an array.
pub(super) struct Prompts {
    /// How many arrays and objects they are in; `usize::MAX` if the reader is not in their array.
    depth: usize,
    /// How many there are so far.
    count: u64,
    /// The most that there were in one array, or one.
    most: u64,
}

impl Default for Prompts {
    fn default() -> Self {
        Self { depth: usize::MAX, count: 0, most: 1 }
    }
}

impl Prompts {
    /// Their array begins: they are in so many arrays and objects.
    pub(super) fn begin(&mut self, depth: usize) {
        (self.depth, self.count) = (depth, 0);
    }

    /// A value begins that is in so many arrays and objects.
    #[inline]
    pub(super) fn value(&mut self, depth: usize) {
        if depth == self.depth {
            self.count += 1;
        }
    }

    /// A value ends that is in so many arrays and objects.
    #[inline]
    pub(super) fn end(&mut self, kind: Kind, depth: usize) {
        if kind == Kind::Array && depth + 1 == self.depth {
            (self.depth, self.most) = (usize::MAX, self.most.max(self.count));
        }
    }

    /// How many prompts there are: one if they are in no array.
    pub(super) fn most(&self) -> u64 {
        self.most
    }
}
