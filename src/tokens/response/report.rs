//! The usage as providers state it, and whether a stated usage is final.

use crate::base::json::count;
use crate::tokens::Usage;

/// The meaning of a member of the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageField {
    /// The input, with all that was read from the cache.
    Prompt,
    /// Like `Prompt`, unless the usage also states what was read from the cache besides the input.
    Input,
    /// The part of the input that was read from the cache.
    CachedPart,
    /// Read from the cache, and not in the input.
    CacheRead,
    /// Written to the cache, and not in the input.
    CacheCreation,
    /// Results of tools, not in the input.
    ToolUse,
    Output,
    /// Output that is not in `Output`.
    Thoughts,
    /// Input and output.
    Total,
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    Count(u64),
    Null,
    Other,
}

impl Value {
    /// `None` is a word that is too long, or not a word.
    pub(super) fn of(word: Option<&[u8]>) -> Self {
        match word.and_then(count) {
            Some(count) => Self::Count(count),
            None if word == Some(b"null") => Self::Null,
            None => Self::Other,
        }
    }
}

/// The greatest count of each field. A smaller count in a later event does not take back what was used.
#[derive(Default)]
pub struct Report {
    counts: [Option<u64>; 9],
    /// How many values in the place of a count were ignored: negative ones, fractions, 2^64 and more, and texts.
    pub ignored: u32,
}

impl Report {
    pub(super) fn set(&mut self, field: UsageField, value: Value) {
        let known = &mut self.counts[field as usize];
        match value {
            Value::Count(count) => *known = (*known).max(Some(count)),
            Value::Null => {}
            Value::Other => self.ignored = self.ignored.saturating_add(1),
        }
    }

    pub fn has_input(&self) -> bool {
        let fields = [UsageField::Prompt, UsageField::Input, UsageField::Total];
        fields.into_iter().any(|field| self.counts[field as usize].is_some())
    }

    /// Whether the output is stated by this report alone, in which all values are counts. For a response with text it must
    /// not be zero.
    pub(super) fn has_output(&self, has_text: bool, is_part: bool) -> bool {
        let known = |field| self.counts[field as usize].is_some();
        let is_said = known(UsageField::Output)
            || known(UsageField::Thoughts)
            || known(UsageField::Total)
            || !has_text && !is_part;
        is_said && self.ignored == 0 && self.usage().is_some_and(|usage| usage.output > 0 || !has_text)
    }

    /// The usage so far; `None` if neither input nor output is known. If the total leaves more output, that counts, since some
    /// providers count reasoning only there.
    pub fn usage(&self) -> Option<Usage> {
        let known = |field| self.counts[field as usize];
        let count = |field| known(field).unwrap_or(0);
        let (input, cached) = match (known(UsageField::Prompt), known(UsageField::CachedPart)) {
            (None, None) => (
                count(UsageField::Input).saturating_add(count(UsageField::CacheCreation)),
                count(UsageField::CacheRead),
            ),
            (prompt, cached) => {
                let prompt = prompt.unwrap_or(count(UsageField::Input));
                let cached = cached.unwrap_or(0).min(prompt);
                ((prompt - cached).saturating_add(count(UsageField::ToolUse)), cached)
            }
        };
        let said = known(UsageField::Output)
            .or(known(UsageField::Thoughts))
            .map(|_| count(UsageField::Output).saturating_add(count(UsageField::Thoughts)));
        let output = said.max(known(UsageField::Total).map(|total| total.saturating_sub(input).saturating_sub(cached)));
        let is_known = known(UsageField::Prompt).or(known(UsageField::Input)).or(output).is_some();
        is_known.then_some(Usage { input, cached, output: output.unwrap_or(0) })
    }
}

/// How many answers of one response are told apart. OpenAI allows 128.
const MOST_ANSWERS: u64 = 127;

/// Decides whether a stated usage is final. A stream states counts before it has ended: the first event of Anthropic has an
/// output of 1, and each event of Gemini has the usage so far.
///
/// A count is final if no text comes after it, and if the answer was complete before, or no part of the answer is in the same
/// event. So a count that stands alone is final, as in the last chunk of OpenAI; one beside a piece of the answer only with a
/// reason to finish, of each answer that has begun. If pointers state it, what is a piece of the answer is unknown: a count
/// beside text is final at the end.
#[derive(Default)]
pub struct Ending {
    /// Whether a reason to finish was stated.
    has_finished: bool,
    /// The answers of which something has come, a bit for each index.
    begun: u128,
    /// Those that have stated why they finished.
    finished: u128,
    /// Whether the provider has reported a failure.
    pub has_failed: bool,
    document: Document,
    /// How much text there was when a final count was last stated.
    said: Option<(u64, Finality)>,
}

/// When a count is final that no text follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finality {
    /// At once.
    Alone,
    /// At once if the response has one answer: others go on after the first has finished.
    Finished,
    /// At the proper end of the response.
    AtEnd,
}

/// What was seen of one document: a response, or a part of a stream.
#[derive(Clone, Copy, Default)]
struct Document {
    /// How much text there was before the document.
    before: u64,
    /// Whether the document has a piece of the answer.
    has_answer: bool,
    /// Whether the document states that more follows.
    is_early: bool,
    /// Of the current piece.
    index: u64,
    /// Whether the current piece states why its answer finished.
    is_last: bool,
}

impl Ending {
    /// Notes that a piece of the answer begins.
    pub(super) fn answers(&mut self) {
        // Gemini leaves out the index 0.
        self.document = Document { has_answer: true, index: 0, is_last: false, ..self.document };
    }

    /// Notes the index of the answer of which this is a piece.
    pub(super) fn has_index(&mut self, index: u64) {
        self.document.index = index;
    }

    /// Notes a reason to finish.
    pub(super) fn finishes(&mut self) {
        (self.has_finished, self.document.is_last) = (true, true);
    }

    /// Notes the end of a piece of one of several answers.
    pub(super) fn piece_ended(&mut self) {
        let Document { index, is_last, .. } = self.document;
        // Answers beyond the bits share the last one, and never count as finished.
        let bit = 1 << index.min(MOST_ANSWERS);
        self.begun |= bit;
        self.finished |= if is_last && index < MOST_ANSWERS { bit } else { 0 };
    }

    /// Whether all answers that have begun have stated why they finished.
    pub fn is_complete(&self) -> bool {
        self.has_finished && self.begun == self.finished
    }

    /// Notes that the document states that more follows.
    pub(super) fn begins(&mut self) {
        self.document.is_early = true;
    }

    /// Begins the next document, after `text` bytes of text.
    pub(super) fn next_document(&mut self, text: u64) {
        self.document = Document { before: text, ..Document::default() };
    }

    /// Notes that the document, now at its end, has stated a count, after `text` bytes of text. `is_part` marks one of several
    /// documents.
    pub(super) fn said(&mut self, text: u64, is_part: bool, by_pointers: bool) {
        let Document { before, has_answer, is_early, .. } = self.document;
        let is_alone = !is_part || !has_answer && text == before;
        let finality = match (is_alone, is_early) {
            (true, early) if by_pointers || !early => Some(Finality::Alone),
            _ if by_pointers => Some(Finality::AtEnd),
            _ => self.is_complete().then_some(Finality::Finished),
        };
        if let Some(finality) = finality {
            self.said = Some((text, finality));
        }
    }

    /// When the stated usage is final, with this much text now.
    pub(super) fn finality(&self, text: u64) -> Option<Finality> {
        self.said.filter(|(at, _)| *at == text).map(|(_, finality)| finality)
    }
}

#[cfg(test)]
mod tests;
