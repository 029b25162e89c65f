//! Whether what a response has said of its usage is final. A stream says counts before it has ended: the first event of
//! Anthropic has an output of 1, and each one of Gemini has what was used until then.
//!
//! A count is final if no text comes after it, and if the answer was complete before, or is nowhere in the same event. So one
//! that stands alone is, as the last chunk of OpenAI, and one beside a piece of the answer is only with a reason to finish.

/// What was seen of the answer.
#[derive(Default)]
pub(super) struct Ending {
    /// Whether the answer is complete: it has said why it has finished.
    pub(super) is_complete: bool,
    /// Whether the provider has said that it has failed.
    pub(super) has_failed: bool,
    document: Document,
    /// How much text there was when a final count was said last.
    said_at: Option<u64>,
}

/// What is seen of one document: a response, or a part of a stream.
#[derive(Default)]
struct Document {
    /// How much text there was before it.
    before: u64,
    /// Whether it has a piece of the answer.
    has_answer: bool,
    /// Whether it says that more follows.
    is_early: bool,
}

impl Ending {
    /// The document has a piece of the answer.
    pub(super) fn answers(&mut self) {
        self.document.has_answer = true;
    }

    /// The document is one of those at the beginning.
    pub(super) fn begins(&mut self) {
        self.document.is_early = true;
    }

    /// The document ends after so much text. Returns whether a count in it is final, if it is one of several or not.
    pub(super) fn document_ended(&mut self, text: u64, is_part: bool) -> bool {
        let next = Document { before: text, ..Document::default() };
        let Document { before, has_answer, is_early } = std::mem::replace(&mut self.document, next);
        let is_alone = !has_answer && text == before;
        !is_early && (!is_part || is_alone) || self.is_complete
    }

    /// A final count was said, after so much text.
    pub(super) fn said(&mut self, text: u64) {
        self.said_at = Some(text);
    }

    /// Whether what was said is final, if there is so much text now.
    pub(super) fn is_final(&self, text: u64) -> bool {
        self.said_at == Some(text)
    }
}

#[cfg(test)]
mod tests;
