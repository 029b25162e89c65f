//! The usage, as providers say it.

use crate::base::json::count;
use crate::limit::tokens::Usage;

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

/// The last count of each field.
#[derive(Default)]
pub(super) struct Report {
    counts: [Option<u64>; 9],
    ignored: u32,
}

impl Report {
    /// A member has this value. `None` is one that is no number, or too long.
    pub(super) fn set(&mut self, field: Field, word: Option<&[u8]>) {
        match word.and_then(count) {
            Some(count) => self.counts[field as usize] = Some(count),
            None if word == Some(b"null") => {}
            None => self.ignored = self.ignored.saturating_add(1),
        }
    }

    pub(super) fn ignored(&self) -> u32 {
        self.ignored
    }

    /// What was used; `None` if neither input nor output are known.
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
        let output = said.or(known(Field::Total).map(|total| total.saturating_sub(input).saturating_sub(cached)));
        let is_known = known(Field::Prompt).or(known(Field::Input)).or(output).is_some();
        is_known.then_some(Usage { input, cached, output: output.unwrap_or(0) })
    }
}
