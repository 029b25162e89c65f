//! Decides whether a stated usage is final. A stream states counts before it has ended: the first event of Anthropic has an
//! output of 1, and each event of Gemini has the usage so far.
//!
//! A count is final if no text comes after it, and if the answer was complete before, or no part of the answer is in the same
//! event. So a count that stands alone is final, as in the last chunk of OpenAI; one beside a piece of the answer only with a
//! reason to finish.

#[derive(Default)]
pub(super) struct Ending {
    /// Whether the answer is complete: it has stated why it finished.
    pub(super) is_complete: bool,
    /// Whether the provider has reported a failure.
    pub(super) has_failed: bool,
    document: Document,
    /// How much text there was when a final count was last stated.
    said_at: Option<u64>,
}

/// What was seen of one document: a response, or a part of a stream.
#[derive(Default)]
struct Document {
    /// How much text there was before the document.
    before: u64,
    /// Whether the document has a piece of the answer.
    has_answer: bool,
    /// Whether the document states that more follows.
    is_early: bool,
}

impl Ending {
    /// Notes that the document has a piece of the answer.
    pub(super) fn answers(&mut self) {
        self.document.has_answer = true;
    }

    /// Notes that the document states that more follows.
    pub(super) fn begins(&mut self) {
        self.document.is_early = true;
    }

    /// Ends the document, after `text` bytes of text. `is_part` marks one of several. Returns whether a count in it is final.
    pub(super) fn document_ended(&mut self, text: u64, is_part: bool) -> bool {
        let next = Document { before: text, ..Document::default() };
        let Document { before, has_answer, is_early } = std::mem::replace(&mut self.document, next);
        let is_alone = !has_answer && text == before;
        !is_early && (!is_part || is_alone) || self.is_complete
    }

    /// Notes that a final count was stated after this much text.
    pub(super) fn said(&mut self, text: u64) {
        self.said_at = Some(text);
    }

    /// Whether the stated usage is final, with this much text now.
    pub(super) fn is_final(&self, text: u64) -> bool {
        self.said_at == Some(text)
    }
}

#[cfg(test)]
mod tests;
