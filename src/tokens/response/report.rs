//! The usage, as providers say it.

use crate::base::json::count;
use crate::tokens::Usage;

/// What a member of the usage says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The input, with all that was read from the cache.
    Prompt,
    /// The same, unless it is known what was read from the cache beside it.
    Input,
    /// What is in the input and was read from the cache.
    CachedPart,
    /// What is not in the input, and was read from the cache.
    CacheRead,
    /// What is not in the input, and was written to the cache.
    CacheCreation,
    /// Results of tools, beside the input.
    ToolUse,
    Output,
    /// Output that is not in `Output`.
    Thoughts,
    /// Input and output.
    Total,
}

/// The value of a member of the usage.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Count(u64),
    Null,
    /// What is no count.
    Other,
}

impl Value {
    /// That of a word. `None` is what is no word, or too long.
    pub(super) fn of(word: Option<&[u8]>) -> Self {
        match word.and_then(count) {
            Some(count) => Self::Count(count),
            None if word == Some(b"null") => Self::Null,
            None => Self::Other,
        }
    }
}

/// The greatest count of each field: what a later event says to be less does not take back what was used.
#[derive(Default)]
pub(super) struct Report {
    counts: [Option<u64>; 9],
    ignored: u32,
}

impl Report {
    /// A member has this value.
    pub(super) fn set(&mut self, field: Field, value: Value) {
        let known = &mut self.counts[field as usize];
        match value {
            Value::Count(count) => *known = (*known).max(Some(count)),
            Value::Null => {}
            Value::Other => self.ignored = self.ignored.saturating_add(1),
        }
    }

    pub(super) fn ignored(&self) -> u32 {
        self.ignored
    }

    /// Whether it says how much input there was.
    pub(super) fn has_input(&self) -> bool {
        [Field::Prompt, Field::Input, Field::Total].iter().any(|field| self.counts[*field as usize].is_some())
    }

    /// Whether it says by itself what the output was: of a response with text that is not nothing, and where something else is
    /// no count, only the total is good enough.
    pub(super) fn has_output(&self, has_text: bool, is_part: bool) -> bool {
        let known = |field| self.counts[field as usize].is_some();
        let is_said = known(Field::Output) || known(Field::Thoughts) || known(Field::Total) || !has_text && !is_part;
        let is_sound = self.ignored == 0 || known(Field::Total);
        is_said && is_sound && self.usage().is_some_and(|usage| usage.output > 0 || !has_text)
    }

    /// What was used; `None` if neither input nor output are known. The output is what is left of the total, if that is more:
    /// some do not count reasoning otherwise.
    pub(super) fn usage(&self) -> Option<Usage> {
        let known = |field| self.counts[field as usize];
        let count = |field| known(field).unwrap_or(0);
        let (input, cached) = match (known(Field::Prompt), known(Field::CachedPart)) {
            (None, None) => (count(Field::Input).saturating_add(count(Field::CacheCreation)), count(Field::CacheRead)),
            (prompt, cached) => {
                let prompt = prompt.unwrap_or(count(Field::Input));
                let cached = cached.unwrap_or(0).min(prompt);
                ((prompt - cached).saturating_add(count(Field::ToolUse)), cached)
            }
        };
        let said = known(Field::Output)
            .or(known(Field::Thoughts))
            .map(|_| count(Field::Output).saturating_add(count(Field::Thoughts)));
        let output = said.max(known(Field::Total).map(|total| total.saturating_sub(input).saturating_sub(cached)));
        let is_known = known(Field::Prompt).or(known(Field::Input)).or(output).is_some();
        is_known.then_some(Usage { input, cached, output: output.unwrap_or(0) })
    }
}
