//! Reads a response of a language model while it passes: the tokens that it says it used, and how much text it has. Nothing
//! of it is kept.
//!
//! The usage may come in parts, so it is what each of its members said last. An event, or a line, that is no JSON has no
//! effect on the next one.

mod findings;
mod member;
mod report;

use std::sync::Arc;

use super::Usage;
use super::pointer::{Pointer, Pointers};
use crate::base::{event_stream, json};
use findings::Findings;
use report::Field;

/// Where a response says what was used.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// Where the providers say it, recognized by the names of members.
    #[default]
    Auto,
    /// Elsewhere.
    Pointers(Arc<CompiledPointers>),
}

/// Where an API says what was used. Cached tokens are part of the input, and the total is that of input and output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePointers {
    /// The tokens of the request.
    pub input: Option<Pointer>,
    /// How many of these were read from a cache.
    pub cached: Option<Pointer>,
    /// The tokens of the response.
    pub output: Option<Pointer>,
    /// The tokens of both, from which those of the response are known if nothing else says them.
    pub total: Option<Pointer>,
}

/// [`UsagePointers`] that are ready to be found.
#[derive(Debug)]
pub struct CompiledPointers {
    pointers: Pointers,
    /// What each pointer points to.
    fields: Vec<Field>,
}

impl From<&UsagePointers> for Source {
    fn from(usage: &UsagePointers) -> Self {
        let all = [
            (&usage.input, Field::Input),
            (&usage.cached, Field::CachedPart),
            (&usage.output, Field::Output),
            (&usage.total, Field::Total),
        ];
        let given = || all.iter().filter_map(|(pointer, field)| Some((pointer.as_ref()?, *field)));
        let pointers = Pointers::new(given().map(|(pointer, _)| pointer));
        Self::Pointers(Arc::new(CompiledPointers { pointers, fields: given().map(|(_, field)| field).collect() }))
    }
}

/// Whose API a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// OpenAI, or one of the many that have the same API.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Google.
    Gemini,
}

/// See the head of this file.
pub struct ResponseReader {
    format: Format,
    json: json::Reader,
    findings: Findings,
}

enum Format {
    /// One value.
    Json,
    /// A value in each event.
    Events(event_stream::Reader),
    /// A value in each line.
    Lines,
    /// Nothing but text.
    Text,
}

impl ResponseReader {
    /// Begins with a response of this content type, as its header says it.
    pub fn new(content_type: &str, source: &Source) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let format = match essence.as_str() {
            "text/event-stream" => Format::Events(event_stream::Reader::default()),
            "application/x-ndjson" | "application/jsonl" | "application/x-jsonlines" => Format::Lines,
            json if json == "application/json" || json.ends_with("+json") => Format::Json,
            _ => Format::Text,
        };
        let is_stream = matches!(format, Format::Events(_) | Format::Lines);
        Self { format, json: json::Reader::default(), findings: Findings::new(source, is_stream) }
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        self.read_events(piece, |_, _| ());
    }

    /// Reads the next piece, and tells of each event where in the piece it ends, and whether it only says the usage: it has
    /// an object `usage` and an empty array `choices`.
    pub(super) fn read_events(&mut self, piece: &[u8], ended: impl FnMut(usize, bool)) {
        let mut document = Document { json: &mut self.json, findings: &mut self.findings, ended };
        match &mut self.format {
            Format::Json => document.read(piece),
            Format::Events(events) => events.read(piece, &mut document),
            Format::Lines => {
                for line in piece.split_inclusive(|byte| *byte == b'\n') {
                    document.read(line);
                    if line.ends_with(b"\n") {
                        document.finish();
                    }
                }
            }
            Format::Text => self.findings.other_text(piece.len()),
        }
    }

    /// What was used, as far as the response has said it: of a stream that has not ended this may be too little.
    pub fn usage(&self) -> Option<Usage> {
        self.findings.report.usage()
    }

    /// How many bytes of text have passed.
    pub fn text(&self) -> u64 {
        self.findings.text()
    }

    /// Whose API this is, once that is seen.
    pub fn provider(&self) -> Option<Provider> {
        self.findings.provider
    }

    /// How many values were ignored because they are in the place of a count and none: negative, a fraction, 2^64 or more,
    /// or text.
    pub fn ignored(&self) -> u32 {
        self.findings.report.ignored()
    }

    /// Whether this is a stream of events.
    pub fn is_event_stream(&self) -> bool {
        self.events().is_some()
    }

    /// The reader of events, if these are some.
    pub(super) fn events(&self) -> Option<&event_stream::Reader> {
        match &self.format {
            Format::Events(events) => Some(events),
            _ => None,
        }
    }
}

/// One value of a response.
struct Document<'a, F> {
    json: &'a mut json::Reader,
    findings: &'a mut Findings,
    ended: F,
}

impl<F> Document<'_, F> {
    fn read(&mut self, part: &[u8]) {
        let length = self.json.read(part, self.findings);
        self.findings.other_text(part.len() - length);
    }

    /// Begins with the next value. Returns whether there was one, and it only says the usage.
    fn finish(&mut self) -> bool {
        let is_whole = self.json.finish(self.findings);
        self.json.reset();
        self.findings.next_document() && is_whole
    }
}

impl<F: FnMut(usize, bool)> event_stream::Visit for Document<'_, F> {
    fn data(&mut self, part: &[u8]) {
        self.read(part);
    }

    fn end(&mut self, at: usize) {
        let only_says_usage = self.finish();
        (self.ended)(at, only_says_usage);
    }
}

#[cfg(test)]
mod tests;
