//! Reads the body of a request to a language model: the targets of keys, its size, and how much output it asks for.
//!
//! A client must not choose how it is counted with a body that servers read in another way. So repeated members, under any
//! spelling, are reported, and what servers read in several ways counts as the most that they read.

mod api;
mod base64;
mod found;
mod known;
mod parts;
mod size;
mod usage_asking;

use std::ops::Range;

use super::pointer::{Follower, Pointer};
use crate::base::json::{Kind, MAX_WORD, Reader, Visit, is_number, normal};
use api::LastName;
use found::Found;
use known::Known;
use parts::Parts;
use size::{Amount, Prompts};
use usage_asking::{Asking, UsageAsking};

pub use api::Api;
pub use found::{Form, Inspected, MAX_ELEMENTS, Patch, PointedTo};
pub use known::BodyPointers;
pub use size::{AskedOutput, InputSize};

/// Whether a body may be JSON in UTF-16 or UTF-32: it begins with a byte order mark, or one of its first four bytes is zero,
/// which is how servers recognize these encodings.
pub fn has_other_encoding(body: &[u8]) -> bool {
    body.starts_with(b"\xff\xfe") || body.starts_with(b"\xfe\xff") || body.iter().take(4).any(|byte| *byte == 0)
}

/// The most bytes that are read at once. They take a worker so long that it serves other requests before the next piece.
const PIECE: usize = 1 << 16;

/// The pieces in which a body is read, cut between characters.
pub fn pieces(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let is_within = |at: &usize| body.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
        let length = PIECE.min(body.len());
        let cut = (length.saturating_sub(3)..=length).rev().find(|at| !is_within(at)).unwrap_or(length);
        let (piece, rest) = body.split_at_checked(cut)?;
        body = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The place of a whole document, to which the empty pointer leads.
const DOCUMENT: usize = 0;

/// The most bytes of a text that is kept, since it is copied at once: as long as the longest line of a head.
const MAX_TEXT: usize = 1 << 16;

pub fn inspect(body: &[u8], pointers: &BodyPointers) -> Inspected {
    let mut inspection = Inspection::new(pointers, Api::Other);
    pieces(body).for_each(|piece| inspection.read(piece));
    inspection.finish(body.len() as u64)
}

pub struct Inspection<'a> {
    reader: Reader,
    said: Said<'a>,
}

impl<'a> Inspection<'a> {
    pub fn new(pointers: &'a BodyPointers, api: Api) -> Self {
        Self { reader: Reader::default(), said: Said::new(pointers, api) }
    }

    pub fn read(&mut self, piece: &[u8]) {
        self.reader.read(piece, &mut self.said);
        self.said.is_strict &= str::from_utf8(piece).is_ok();
    }

    /// Ends after the whole body, which has `length` bytes.
    pub fn finish(self, length: u64) -> Inspected {
        let Self { mut reader, mut said } = self;
        let is_whole = reader.finish(&mut said);
        // Some servers read a whole value and ignore what follows it.
        let is_begun = reader.is_trailing() && said.is_structure;
        let form = match (is_whole, is_begun) {
            (true, _) if said.is_strict => Form::Json,
            _ if reader.is_too_deep() => Form::TooDeep,
            (false, false) => Form::Other,
            _ => Form::AlmostJson,
        };
        match form {
            Form::TooDeep | Form::Other => {
                // A lenient server may still read the items of a broken array.
                let elements = said.elements();
                Inspected { form, elements, ..Said::new(said.pointers, said.api).text_only(length) }
            }
            _ if is_begun => Inspected { form, usage_patches: None, ..said.text_only(length) },
            _ => said.result(form),
        }
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is one thing that the body says")]
struct Said<'a> {
    pointers: &'a BodyPointers,
    api: Api,
    follower: Follower,
    last_name: LastName,
    found: Found,
    /// The place of the string that is being read, and its text if it has a meaning.
    string: Option<usize>,
    string_text: Vec<u8>,
    /// Whether the whole is an array or an object.
    is_structure: bool,
    is_strict: bool,
    text: u64,
    words: u64,
    parts: Parts,
    output: AskedOutput,
    prompts: Prompts,
    streams: bool,
    is_background: bool,
    /// Where the members of the outermost object begin.
    members: Option<usize>,
    usage_asking: UsageAsking,
}

impl<'a> Said<'a> {
    fn new(pointers: &'a BodyPointers, api: Api) -> Self {
        Self {
            pointers,
            api,
            follower: Follower::new(pointers.divides),
            last_name: LastName::default(),
            found: Found::new(pointers),
            string: None,
            string_text: Vec::new(),
            is_structure: false,
            is_strict: true,
            text: 0,
            words: 0,
            parts: Parts::default(),
            output: AskedOutput { most: 0, is_bounded: false, is_uncertain: false, answers: 1 },
            prompts: Prompts::default(),
            streams: false,
            is_background: false,
            members: None,
            usage_asking: UsageAsking::default(),
        }
    }

    /// How many documents have begun, if the body is an array of them.
    fn elements(&self) -> Option<usize> {
        self.follower.is_divided().then_some(self.found.count)
    }

    fn result(self, form: Form) -> Inspected {
        let Self { pointers, words, streams, is_background, .. } = self;
        let elements = self.elements();
        let is_repeated =
            |(_, place): &(&Pointer, usize)| elements.is_none() && self.found.is_repeated(pointers, *place);
        let repeated = pointers.known().find(is_repeated);
        let answers = match self.api {
            Api::Embeddings => 0,
            _ => self.output.answers.saturating_mul(self.prompts.most),
        };
        Inspected {
            form,
            documents: self.found.documents(pointers),
            elements,
            input: InputSize { text: self.text.saturating_sub(self.parts.data), words, parts: self.parts.count },
            output: AskedOutput { answers, ..self.output },
            streams,
            is_background,
            usage_patches: self.members.map(|members| self.usage_asking.patches(members)),
            repeated: repeated.map(|(pointer, _)| pointer.clone()),
        }
    }

    /// Counts all of the body as text, since what servers read of it is unknown.
    fn text_only(self, length: u64) -> Inspected {
        let said = self.result(Form::Other);
        Inspected { input: InputSize { text: length, ..said.input }, ..said }
    }

    /// Notes a value at this place. Returns its meaning to the gateway, and whether a key points to it; neither for a
    /// repeated value, since such a body is refused.
    #[inline]
    fn at(&mut self, place: usize) -> (Option<Known>, bool) {
        if !self.found.is_first(place) {
            return (None, false);
        }
        (self.known_at(place), self.pointers.keys().contains(&place))
    }

    /// A value begins at this depth: in an array of documents, it may be the next one.
    #[inline]
    fn next_element(&mut self, depth: u32) {
        if depth == 1 && self.follower.is_divided() && self.found.next_element(self.pointers) {
            self.follower.follow_no_more();
        }
    }

    /// The meaning of this place to the gateway. What the documents of an array ask of a model is unknown.
    fn known_at(&self, place: usize) -> Option<Known> {
        self.pointers.known_at(place).filter(|_| !self.follower.is_divided())
    }

    #[inline(never)]
    fn begin_at(&mut self, place: usize, kind: Kind, at: usize, depth: u32) {
        let (known, is_wanted) = self.at(place);
        if place == DOCUMENT && depth == 0 {
            self.is_structure = kind != Kind::String;
            self.members = (kind == Kind::Object).then_some(at + 1);
        }
        let is_said = matches!(known, Some(Known::MaxOutput | Known::Choices | Known::Stream | Known::Background));
        if kind == Kind::String && (is_wanted || is_said) {
            self.string = Some(place);
            self.string_text.clear();
        }
        match known {
            Some(Known::Prompts) if kind == Kind::Array => self.prompts.begin(depth + 1),
            Some(Known::Requests) if kind == Kind::Array => {
                self.output.is_uncertain = true;
                self.prompts.begin(depth + 1);
            }
            Some(Known::FirstMessage) if kind == Kind::Array => self.prompts.begin(depth),
            Some(Known::Options) => self.usage_asking.begin(Asking::Options, kind, at, depth),
            Some(Known::IncludeUsage) => self.usage_asking.begin(Asking::Include, kind, at, depth),
            // Some servers read the number or the truth of an array or object.
            Some(known) if kind != Kind::String => self.say(known, LARGEST),
            _ => {}
        }
    }

    #[inline(never)]
    fn keep(&mut self, part: &[u8]) {
        if self.string_text.len() <= MAX_TEXT {
            self.string_text.extend_from_slice(part);
        }
    }

    #[inline(never)]
    fn end_string(&mut self, place: usize) {
        if self.pointers.keys().contains(&place) {
            let value = match self.string_text.len() {
                0..=MAX_TEXT => PointedTo::Value(String::from_utf8_lossy(&self.string_text).into_owned()),
                _ => PointedTo::Ambiguous,
            };
            self.found.set(place, value);
        }
        if let Some(known) = self.known_at(place) {
            let text = std::mem::take(&mut self.string_text);
            self.say(known, &text);
            // Some servers accept a text as the value.
            self.streams |= known == Known::Stream;
            self.string_text = text;
        }
    }

    /// Reads a word that is not `null`, or the text of a string.
    fn say(&mut self, known: Known, text: &[u8]) {
        match known {
            Known::MaxOutput | Known::Choices => {
                let amount = if text.len() <= MAX_WORD { Amount::of(text) } else { Amount::LARGEST };
                let output = &mut self.output;
                if known == Known::Choices {
                    output.answers = output.answers.max(amount.most);
                } else {
                    output.most = output.most.max(amount.most);
                    output.is_bounded |= self.last_name.maximum.is_some_and(|maximum| self.api.knows(maximum));
                    output.is_uncertain |= !amount.is_certain;
                }
            }
            Known::Stream => self.streams |= !matches!(text, b"false" | b"0" | b""),
            Known::Background => {
                let text = text.trim_ascii();
                let is = |known: &str| text.eq_ignore_ascii_case(known.as_bytes());
                let is_false = is("") || is("false") || normal(text).is_some_and(|number| number == "0");
                // Pictures have a background, too.
                let is_of_picture = self.api != Api::Responses && ["transparent", "opaque", "auto"].into_iter().any(is);
                self.is_background |= !is_false && !is_of_picture;
            }
            Known::Prompts | Known::FirstMessage | Known::Requests | Known::Options | Known::IncludeUsage => {}
        }
    }

    #[inline(never)]
    fn word_at(&mut self, place: usize, word: Option<&[u8]>, at: Range<usize>) {
        let (known, is_wanted) = self.at(place);
        if is_wanted {
            let value = |word| normal(word).map_or(PointedTo::Missing, PointedTo::Value);
            self.found.set(place, word.map_or(PointedTo::Ambiguous, value));
        }
        match known {
            Some(Known::Options) => self.usage_asking.word(Asking::Options, word, at),
            Some(Known::IncludeUsage) => self.usage_asking.word(Asking::Include, word, at),
            Some(known) if word != Some(&b"null"[..]) => self.say(known, word.unwrap_or(LARGEST)),
            _ => {}
        }
    }
}

#[expect(clippy::inline_always, reason = "where the kind of a value is known, little of them is left")]
impl Visit for Said<'_> {
    #[inline(always)]
    fn name(&mut self, name: Option<&[u8]>, length: usize) {
        self.text += length as u64;
        self.follower.name(&self.pointers.all, name);
        let depth = self.follower.depth;
        self.parts.name(name, depth);
        if depth < 3 {
            self.usage_asking.name(name, depth == 1);
            if self.follower.member.is_some() {
                self.last_name.read(name, depth == 1);
            }
        }
    }

    #[inline]
    fn written(&mut self, part: &[u8]) {
        self.is_strict = self.is_strict && part.iter().fold(0, |found, byte| found | u8::from(*byte < b' ')) == 0;
    }

    #[inline]
    fn begin(&mut self, kind: Kind, at: usize) {
        let depth = self.follower.depth;
        self.next_element(depth);
        if let Some(place) = self.follower.begin(&self.pointers.all, kind) {
            self.begin_at(place, kind, at, depth);
        }
        self.prompts.value(depth);
        self.parts.begin(kind, depth);
    }

    #[inline]
    fn text(&mut self, part: &[u8]) {
        self.text += part.len() as u64;
        if self.string.is_some() {
            self.keep(part);
        }
        self.parts.text(part);
    }

    #[inline(always)]
    fn end(&mut self, kind: Kind, at: usize) {
        self.follower.end(kind);
        let depth = self.follower.depth;
        self.parts.end(kind, depth);
        if kind == Kind::String
            && let Some(place) = self.string.take()
        {
            self.end_string(place);
        }
        // Neither options nor prompts nor items of `input` are deeper.
        if depth < 3 {
            if kind != Kind::String {
                self.parts.end_outer(depth);
            }
            if self.usage_asking.is_open() {
                self.usage_asking.end(at, depth);
            }
            self.prompts.end(kind, depth);
        }
    }

    #[inline(always)]
    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        match word {
            Some(word) => {
                // `-` and digits come before letters and `_` in ASCII. Further out, other words are settings.
                self.words += u64::from(word.first() <= Some(&b'9') || self.follower.depth > 2);
                self.is_strict = self.is_strict && is_json(word);
            }
            // The word is a long number.
            None => {
                self.words += 1;
                self.text += at.len() as u64;
            }
        }
        self.parts.word();
        self.next_element(self.follower.depth);
        if let Some(place) = self.follower.value(&self.pointers.all) {
            self.word_at(place, word, at);
        }
    }
}

/// A number of which servers read at most this many digits.
const LARGEST: &[u8] = &[b'9'; MAX_WORD];

#[inline]
fn is_json(word: &[u8]) -> bool {
    is_number(word) || matches!(word, b"true" | b"false" | b"null")
}

#[cfg(test)]
mod tests;
