//! Reads a response of a language model while it passes, without keeping it: its stated usage, and how much text it has.
//!
//! The usage may come in parts, so each of its members counts with its greatest value. An event or a line that is not JSON
//! has no effect on the next one.

mod document;
mod findings;
mod member;
mod report;

use std::sync::Arc;

use memchr::memchr;

use super::pointer::{Pointer, Pointers};
use crate::base::{event_stream, json};
use findings::Findings;
use report::{Finality, UsageField};

#[derive(Clone, Debug, Default)]
pub enum UsageSource {
    /// Where the providers state it, recognized by the names of members.
    #[default]
    Auto,
    /// Elsewhere.
    Pointers(Arc<CompiledPointers>),
}

/// Where an API states the usage. Cached tokens are part of the input, and the total is that of input and output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePointers {
    pub input: Option<Pointer>,
    /// The tokens of the request that were read from a cache.
    pub cached: Option<Pointer>,
    pub output: Option<Pointer>,
    /// The tokens of both: the response has at least the total without the request.
    pub total: Option<Pointer>,
}

#[derive(Debug)]
pub struct CompiledPointers {
    pointers: Pointers,
    fields: Vec<UsageField>,
}

impl From<&UsagePointers> for UsageSource {
    fn from(usage: &UsagePointers) -> Self {
        let all = [
            (&usage.input, UsageField::Input),
            (&usage.cached, UsageField::CachedPart),
            (&usage.output, UsageField::Output),
            (&usage.total, UsageField::Total),
        ];
        let given = || all.iter().filter_map(|(pointer, field)| Some((pointer.as_ref()?, *field)));
        let pointers = Pointers::new(given().map(|(pointer, _)| pointer));
        Self::Pointers(Arc::new(CompiledPointers { pointers, fields: given().map(|(_, field)| field).collect() }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// OpenAI, or one of the many providers with the same API: completions, and responses that are not streams.
    OpenAi,
    /// The stream of OpenAI's Responses API, which has its own events.
    OpenAiResponses,
    Anthropic,
    Gemini,
}

/// How a stream is divided into parts, between which it can be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    Events,
    /// Lines, each with a value.
    Lines,
    /// The elements of an array.
    Elements,
    /// Values one after the other.
    Values,
}

pub struct ResponseReader {
    format: Format,
    json: json::Reader,
    pub findings: Findings,
}

enum Format {
    /// Mostly one value.
    Json,
    /// A value in each event.
    Events(event_stream::Reader),
    /// A value in each line.
    Lines,
    Text,
    /// Sound or pictures.
    Data,
}

impl ResponseReader {
    pub fn new(content_type: &str, source: &UsageSource) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let format = match essence.as_str() {
            "text/event-stream" => Format::Events(event_stream::Reader::default()),
            "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/x-jsonlines"
            | "application/jsonlines" => Format::Lines,
            json if json == "application/json" || json.ends_with("+json") => Format::Json,
            data if ["audio/", "image/", "video/"].iter().any(|kind| data.starts_with(kind)) => Format::Data,
            _ => Format::Text,
        };
        let is_stream = matches!(format, Format::Events(_) | Format::Lines);
        Self { format, json: json::Reader::default(), findings: Findings::new(source, is_stream) }
    }

    pub fn read(&mut self, piece: &[u8]) {
        self.read_parts(piece, |_, _| ());
    }

    /// Reads the next piece. Calls `ended` for each part of a stream, or only for the last one, with its end in the piece and
    /// with whether it is an event that only states the usage: one that has an object `usage` and an empty array `choices`.
    pub(super) fn read_parts(&mut self, piece: &[u8], ended: impl FnMut(usize, bool)) {
        let mut document = Document { json: &mut self.json, findings: &mut self.findings, ended };
        match &mut self.format {
            Format::Json => document.read_values(piece),
            Format::Events(events) => events.read(piece, &mut document),
            Format::Lines => document.read_lines(piece),
            Format::Text => self.findings.other_text(piece.len()),
            Format::Data => {}
        }
    }

    /// How this stream is divided; `None` if it is not a stream, or that is not known yet.
    pub fn parts(&self) -> Option<Parts> {
        match &self.format {
            Format::Events(_) => Some(Parts::Events),
            Format::Lines => Some(Parts::Lines),
            Format::Json if self.findings.is_list => Some(Parts::Elements),
            Format::Json => self.findings.is_stream.then_some(Parts::Values),
            Format::Text | Format::Data => None,
        }
    }

    /// Whether the content type allows a stream that can be divided.
    pub fn may_have_parts(&self) -> bool {
        !matches!(self.format, Format::Text | Format::Data)
    }

    /// Whether the response has stated its usage, if this is its proper end.
    pub fn says_usage(&self) -> bool {
        self.findings.finality().is_some()
    }

    /// Whether the response has stated its usage and will not state more, if it has this many `answers`.
    pub fn says_usage_before_end(&self, answers: u64) -> bool {
        match self.findings.finality() {
            Some(Finality::Alone) => true,
            Some(Finality::Finished) => answers <= 1,
            Some(Finality::AtEnd) | None => false,
        }
    }

    /// How many bytes of text have come.
    pub fn text(&self) -> u64 {
        self.findings.text_with(self.json.begun_word())
    }

    /// The models that have answered, as far as known, each once, in the order in which they came.
    pub fn models(&self) -> impl Iterator<Item = &[u8]> {
        self.findings.models.iter().map(|model| &**model)
    }

    pub(super) fn events(&self) -> Option<&event_stream::Reader> {
        match &self.format {
            Format::Events(events) => Some(events),
            _ => None,
        }
    }
}

struct Document<'a, F> {
    json: &'a mut json::Reader,
    findings: &'a mut Findings,
    ended: F,
}

impl<F: FnMut(usize, bool)> Document<'_, F> {
    fn read(&mut self, part: &[u8]) {
        let length = self.json.read(part, self.findings);
        self.findings.other_text(part.len() - length);
    }

    /// Reads values that follow each other, or the elements of one.
    fn read_values(&mut self, piece: &[u8]) {
        let before = self.json.at;
        self.read(piece);
        if let Some(end) = self.findings.part_end.take() {
            (self.ended)(end - before, false);
        }
    }

    fn read_lines(&mut self, piece: &[u8]) {
        let mut from = 0;
        while let Some(length) = line_length(&piece[from..]) {
            self.read(&piece[from..from + length]);
            from += length + 1;
            self.finish();
            (self.ended)(from, false);
        }
        self.read(&piece[from..]);
    }

    /// Begins the next value. Returns whether there was one, and it only states the usage.
    #[inline]
    fn finish(&mut self) -> bool {
        if self.json.is_new() {
            return false;
        }
        let is_whole = self.json.finish(self.findings);
        self.json.reset();
        self.findings.next_document() && is_whole
    }
}

/// How many bytes come before the next line feed.
fn line_length(rest: &[u8]) -> Option<usize> {
    // For a short line, a call takes longer than a search here.
    let start = rest.len().min(16);
    let is_end = |byte: &u8| *byte == b'\n';
    rest[..start].iter().position(is_end).or_else(|| memchr(b'\n', &rest[start..]).map(|at| start + at))
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
