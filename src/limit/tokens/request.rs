//! Reads the body of a request to a language model: what keys point to, how much text it has, and how much output it asks for.
//!
//! A client must not choose how it is counted with a body that servers read in another way. So what is there twice, under
//! any spelling, is ambiguous.

use std::ops::Range;
use std::sync::LazyLock;

use super::pointer::{Follower, Pointer, Pointers};
use crate::base::json::{Kind, Reader, Visit, count, normal};

/// What a body says.
#[derive(Debug, PartialEq, Eq)]
pub struct Inspected {
    /// What the body is. If it is no JSON, nothing is found in it, and all of it is text.
    pub form: Form,
    /// What each pointer points to, in the order of the pointers.
    pub found: Vec<Found>,
    /// Bytes of all strings after decoding, without the names of members.
    pub text: u64,
    /// The greatest number of tokens that it allows the response, times the number of answers that it asks for.
    pub max_output: Option<u64>,
    /// Whether the response shall be a stream of events.
    pub streams: bool,
    /// Whether it has `messages`, as chat completions have. Requests of Anthropic have them too.
    pub has_messages: bool,
    /// What makes `stream_options.include_usage` true; `None` if it is already, or its place is taken by something else.
    pub include_usage: Option<Patch>,
}

/// How the body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// It begins with a value, in UTF-8.
    Json,
    /// Something else.
    Other,
    /// Perhaps JSON in UTF-16 or UTF-32, which some servers read.
    OtherEncoding,
}

/// What a pointer points to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or neither a string nor a number.
    #[default]
    Missing,
    /// The text of a string, in which U+FFFD stands for what is no UTF-8, or a number in its normal form.
    Value(String),
    /// It or something on the way to it is there twice, or it is a number that is too long to be known.
    Ambiguous,
}

/// A change of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The bytes that are replaced.
    pub at: Range<usize>,
    /// What stands there then.
    pub with: &'static str,
}

/// Whether a body may be JSON in UTF-16 or UTF-32: it begins with a byte order mark, or one of its first four bytes is zero,
/// which is how servers tell it.
fn has_other_encoding(body: &[u8]) -> bool {
    body.starts_with(b"\xff\xfe") || body.starts_with(b"\xfe\xff") || body.iter().take(4).any(|byte| *byte == 0)
}

/// Reads a whole body.
pub fn inspect(body: &[u8], pointers: &Pointers) -> Inspected {
    let unread = |form| Inspected { form, text: body.len() as u64, ..Inspection::new(pointers).result(body) };
    if has_other_encoding(body) {
        return unread(Form::OtherEncoding);
    }
    let (said, length) = first_value(body, pointers);
    if let Some(said) = said {
        return said;
    }
    // Behind an object that is whole there may be something else: some servers read the first, and leave that.
    let first = body[..length].trim_ascii_end();
    let said = first.ends_with(b"}").then(|| first_value(first, pointers).0).flatten();
    match said {
        Some(said) => Inspected { text: body.len() as u64, include_usage: None, ..said },
        None => unread(Form::Other),
    }
}

/// What a body says that is one value, and how much of it could be read.
fn first_value(body: &[u8], pointers: &Pointers) -> (Option<Inspected>, usize) {
    let (mut inspection, mut reader) = (Inspection::new(pointers), Reader::default());
    let length = reader.read(body, &mut inspection);
    (reader.finish(&mut inspection).then(|| inspection.result(body)), length)
}

/// The members that mean something to the gateway.
static KNOWN: LazyLock<Pointers> = LazyLock::new(|| {
    let pointers: Vec<Pointer> = Known::ALL.iter().flat_map(|(_, pointer)| pointer.parse()).collect();
    Pointers::new(&pointers)
});

#[derive(Clone, Copy, PartialEq)]
enum Known {
    MaxOutput,
    Choices,
    Stream,
    Messages,
    Options,
    IncludeUsage,
}

impl Known {
    /// Google's servers take both spellings of each name.
    const ALL: [(Self, &str); 16] = [
        (Self::MaxOutput, "/max_tokens"),
        (Self::MaxOutput, "/max_completion_tokens"),
        (Self::MaxOutput, "/max_output_tokens"),
        (Self::MaxOutput, "/generationConfig/maxOutputTokens"),
        (Self::MaxOutput, "/generationConfig/max_output_tokens"),
        (Self::MaxOutput, "/generation_config/maxOutputTokens"),
        (Self::MaxOutput, "/generation_config/max_output_tokens"),
        (Self::Choices, "/n"),
        (Self::Choices, "/generationConfig/candidateCount"),
        (Self::Choices, "/generationConfig/candidate_count"),
        (Self::Choices, "/generation_config/candidateCount"),
        (Self::Choices, "/generation_config/candidate_count"),
        (Self::Stream, "/stream"),
        (Self::Messages, "/messages"),
        (Self::Options, "/stream_options"),
        (Self::IncludeUsage, "/stream_options/include_usage"),
    ];

    /// What is known of a place in [`KNOWN`].
    fn at(place: Option<usize>) -> Option<Self> {
        let index = KNOWN.ends().iter().position(|end| Some(*end) == place)?;
        Some(Self::ALL[index].0)
    }
}

/// What was seen so far.
struct Inspection<'a> {
    pointers: &'a Pointers,
    wanted: Follower,
    /// What was found at each place of `pointers`, and how often something was there.
    found: Vec<(Found, usize)>,
    /// The place of the string that is being read, and its text, if it is pointed to.
    string: Option<(usize, Vec<u8>)>,
    known: Follower,
    text: u64,
    max_output: Option<u64>,
    choices: u64,
    streams: bool,
    has_messages: bool,
    /// Where the members of the outermost object begin.
    members: usize,
    has_options: bool,
    include_usage: Option<Patch>,
}

impl<'a> Inspection<'a> {
    fn new(pointers: &'a Pointers) -> Self {
        Self {
            pointers,
            wanted: Follower::default(),
            found: vec![(Found::Missing, 0); pointers.places()],
            string: None,
            known: Follower::default(),
            text: 0,
            max_output: None,
            choices: 1,
            streams: false,
            has_messages: false,
            members: 0,
            has_options: false,
            include_usage: None,
        }
    }

    /// Notes that something is at a place of `pointers`, and returns it if it is pointed to.
    fn at_wanted(&mut self, place: Option<usize>) -> Option<usize> {
        let place = place?;
        self.found[place].1 += 1;
        Some(place).filter(|place| self.pointers.ends().contains(place))
    }

    fn result(self, body: &[u8]) -> Inspected {
        let found = self.pointers.ends().iter().map(|end| {
            let is_ambiguous = self.pointers.way(*end).any(|place| self.found[place].1 > 1);
            if is_ambiguous { Found::Ambiguous } else { self.found[*end].0.clone() }
        });
        let inserted = Patch { at: self.members..self.members, with: "\"stream_options\":{\"include_usage\":true}," };
        let mut include_usage = if self.has_options { self.include_usage } else { Some(inserted) };
        if let Some(Patch { at, with: with @ MEMBER }) = &mut include_usage
            && body[at.end..].trim_ascii_start().starts_with(b"}")
        {
            *with = ONLY_MEMBER;
        }
        Inspected {
            form: Form::Json,
            found: found.collect(),
            text: self.text,
            max_output: self.max_output.map(|most| most.saturating_mul(self.choices)),
            streams: self.streams,
            has_messages: self.has_messages,
            include_usage: include_usage.filter(|_| self.has_messages && self.streams),
        }
    }
}

const MEMBER: &str = "\"include_usage\":true,";
const ONLY_MEMBER: &str = "\"include_usage\":true";

impl Visit for Inspection<'_> {
    fn name(&mut self, name: Option<&[u8]>) {
        self.wanted.name(self.pointers, name);
        self.known.name(&KNOWN, name);
    }

    fn begin(&mut self, kind: Kind, at: usize) {
        let place = self.wanted.begin(self.pointers, kind);
        let wanted = self.at_wanted(place);
        self.string = wanted.filter(|_| kind == Kind::String).map(|place| (place, Vec::new()));
        let place = self.known.begin(&KNOWN, kind);
        if place == Some(0) {
            self.members = at + 1;
        }
        match Known::at(place) {
            Some(Known::Messages) => self.has_messages |= kind == Kind::Array,
            // Some servers take the text for the value.
            Some(Known::Stream) => self.streams |= kind == Kind::String,
            Some(Known::Options) => {
                self.has_options = true;
                self.include_usage = (kind == Kind::Object).then_some(Patch { at: at + 1..at + 1, with: MEMBER });
            }
            Some(Known::IncludeUsage) => self.include_usage = None,
            _ => {}
        }
    }

    fn text(&mut self, part: &[u8]) {
        self.text += part.len() as u64;
        if let Some((_, text)) = &mut self.string {
            text.extend_from_slice(part);
        }
    }

    fn end(&mut self, kind: Kind, _: usize) {
        self.wanted.end(kind);
        self.known.end(kind);
        if let Some((place, text)) = self.string.take() {
            self.found[place].0 = Found::Value(String::from_utf8_lossy(&text).into_owned());
        }
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        let place = self.wanted.value(self.pointers);
        if let Some(place) = self.at_wanted(place) {
            let value = |word| normal(word).map_or(Found::Missing, Found::Value);
            self.found[place].0 = word.map_or(Found::Ambiguous, value);
        }
        let known = Known::at(self.known.value(&KNOWN));
        let number = known.and(word).and_then(count);
        match (known, word) {
            (Some(Known::MaxOutput), _) => self.max_output = self.max_output.max(number),
            (Some(Known::Choices), _) => self.choices = self.choices.max(number.unwrap_or(1)),
            (Some(Known::Stream), Some(word)) => self.streams |= !matches!(word, b"false" | b"null" | b"0"),
            (Some(Known::Options), _) => {
                self.has_options = true;
                self.include_usage = (word == Some(b"null")).then_some(Patch { at, with: "{\"include_usage\":true}" });
            }
            (Some(Known::IncludeUsage), _) => {
                let is_false = matches!(word, Some(b"false" | b"null"));
                self.include_usage = is_false.then_some(Patch { at, with: "true" });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
