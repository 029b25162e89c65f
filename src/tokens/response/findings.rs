//! Collects what a reader of JSON finds in a response.
//!
//! The charge depends on the amount of text if the usage is missing. In a stream, text is below members called `delta`: other
//! events repeat it as a whole when it is finished, which is not counted again. In other responses, text is below `content`
//! and similar members. If no known member is found, all strings are text. What is not JSON is text in any case.
//!
//! `report` decides whether the answer is complete, and whether the usage is final.

use std::ops::Range;

use smallvec::SmallVec;

use super::document::{Document, Place};
use super::member::{Class, KeptString, Member, ShortText};
use super::report::{Ending, Finality, Report, Value};
use super::{Provider, UsageSource};
use crate::base::json::{Kind, Visit, count};
use crate::tokens::Usage;
use crate::tokens::pointer::Follower;

/// How many models of one response are kept.
const MOST_MODELS: usize = 16;

#[derive(Default)]
pub struct Findings {
    source: UsageSource,
    /// Whether values may follow each other with nothing between them.
    is_undivided: bool,
    /// Whether there are several values, each a part of the response.
    pub(super) is_stream: bool,
    /// Whether the values are the elements of an array.
    pub(super) is_list: bool,
    pub report: Report,
    /// The usage that the current document states by itself, if any.
    own: Option<Report>,
    pub ending: Ending,
    pub provider: Option<Provider>,
    /// The models that have answered, as far as known.
    pub(super) models: SmallVec<[ShortText; 1]>,
    pub sequence_number: Option<u64>,
    /// Where the last part ended, if parts are elements or values.
    pub(super) part_end: Option<usize>,
    /// Follows the pointers to the usage, if there are any.
    follower: Follower,
    kept: KeptString,
    /// The class of the current string.
    string: Class,
    /// Bytes of strings by their class.
    text: [u64; 4],
    /// The greatest class of text seen so far.
    seen: Class,
    /// Bytes that are not JSON.
    other_text: u64,
    document: Document,
}

impl Findings {
    pub(super) fn new(source: &UsageSource, is_stream: bool) -> Self {
        Self { source: source.clone(), is_undivided: !is_stream, is_stream, ..Self::default() }
    }

    pub(super) fn other_text(&mut self, length: usize) {
        self.other_text += length as u64;
        self.document.has_ended &= length == 0;
    }

    fn text(&self) -> u64 {
        self.text_with(0)
    }

    /// How many bytes of text there are, with a word of which so many have come, but not the end.
    pub(super) fn text_with(&self, begun: usize) -> u64 {
        let of = |class: Class| self.text[class as usize] + if class == Class::Plain { begun as u64 } else { 0 };
        let text = match self.seen {
            // Events have other strings before there is text.
            Class::Plain if self.is_stream && self.provider.is_some() => 0,
            Class::Plain => of(Class::Plain),
            Class::Delta if self.is_stream => of(Class::Delta),
            _ => of(Class::Text) + of(Class::Delta),
        };
        text + self.other_text
    }

    /// Bytes that are text beyond doubt.
    fn visible(&self) -> u64 {
        self.text[Class::Text as usize] + self.text[Class::Delta as usize] + self.other_text
    }

    /// Bytes of what may be text. Until an unknown API has text, its other strings may be that.
    fn said(&self) -> u64 {
        let is_unknown = self.provider.is_none() || self.has_pointers();
        let plain = if is_unknown && self.seen == Class::Plain { self.text[Class::Plain as usize] } else { 0 };
        plain + self.visible()
    }

    fn has_pointers(&self) -> bool {
        matches!(self.source, UsageSource::Pointers(_))
    }

    /// When the stated usage is final; `None` if none is stated, or more will be. Zeros beside text state nothing, nor does a
    /// stream that has failed before its answers were complete.
    pub(super) fn finality(&self) -> Option<Finality> {
        let has_input = self.report.has_input() || self.has_pointers();
        let is_nothing = self.report.usage().is_none_or(|usage| usage == Usage::default()) && self.text() > 0;
        let is_part = self.is_stream || self.is_list;
        let has_broken_off = is_part && self.ending.has_failed && !self.ending.is_complete();
        self.ending.finality(self.said()).filter(|_| has_input && !is_nothing && !has_broken_off)
    }

    fn document_ended(&mut self) {
        let said = self.said();
        if self.own.is_some() {
            self.usage_ended(said);
        }
        self.ending.next_document(said);
    }

    #[inline(never)]
    fn usage_ended(&mut self, said: u64) {
        let is_part = self.is_stream || self.is_list;
        let has_text = if is_part { said > 0 } else { self.visible() > 0 };
        if self.own.take().is_some_and(|own| own.has_output(has_text, is_part)) {
            self.ending.said(said, is_part, self.has_pointers());
        }
    }

    /// Begins the next document. Returns whether the last one only stated the usage.
    pub(super) fn next_document(&mut self) -> bool {
        let only_says_usage = self.document.only_says_usage();
        if self.document.depth > 0 {
            // The document is incomplete.
            self.kept.begin(None);
            if self.has_pointers() {
                self.follower.reset();
            }
        }
        self.document.reset();
        only_says_usage
    }

    /// Notes what the beginning of a value means, whatever is in it.
    fn see(&mut self, member: Member) {
        let document = &self.document;
        match (document.place, member) {
            (Place::Response | Place::Wrapped, Member::Error) => self.ending.has_failed = true,
            (Place::Response | Place::Wrapped, Member::Candidates | Member::Delta) | (Place::Choices, _) => {
                self.ending.answers();
            }
            (Place::Response, Member::Message) if self.is_stream => self.ending.begins(),
            _ => {}
        }
    }

    fn value_ended(&mut self, at: usize) {
        if self.document.depth == usize::from(self.is_list) || self.document.depth == 0 {
            self.part_end = Some(at);
        }
    }

    fn keeps(&self, member: Member) -> bool {
        let document = &self.document;
        match member {
            Member::Model | Member::Status => matches!(document.place, Place::Response | Place::Wrapped),
            Member::Type => document.place == Place::Response,
            // Elsewhere, a client could have it repeated, or a model could write it into the arguments of a tool.
            Member::StopReason | Member::FinishReason => match document.place {
                Place::Choice | Place::Delta => true,
                Place::Response => !self.is_stream && !self.is_list,
                _ => false,
            },
            _ => false,
        }
    }

    /// Ends the string that is kept.
    #[inline(never)]
    fn know(&mut self) {
        let Some((member, text)) = self.kept.end() else { return };
        match (member, &*text) {
            (Member::StopReason | Member::FinishReason, text)
                if text != b"null" && !text.ends_with(b"_UNSPECIFIED") =>
            {
                self.ending.finishes();
            }
            (Member::Model, _) if self.models.len() < MOST_MODELS && !self.models.contains(&text) => {
                self.models.push(text);
            }
            (Member::Status, b"in_progress" | b"queued") => self.ending.begins(),
            (Member::Status, b"completed" | b"incomplete" | b"failed" | b"cancelled") => self.ending.finishes(),
            (Member::Type, b"error") => self.ending.has_failed = true,
            (Member::Type, text) if text.starts_with(b"response.") => {
                self.provider = Some(Provider::OpenAiResponses);
            }
            _ => {}
        }
    }

    /// Begins a value that is no member: a response, an event, or an array of them.
    #[inline]
    fn begin_outermost(&mut self, kind: Kind) {
        let document = &mut self.document;
        let place = match (kind, document.place) {
            (Kind::String, _) => {
                self.string = Class::Plain;
                self.count(Member::Other, None);
                return;
            }
            (Kind::Object, _) => Place::Response,
            (Kind::Array, Place::Outside) => {
                self.is_list |= !self.is_stream;
                Place::List
            }
            (Kind::Array, _) => Place::Elsewhere,
        };
        if let UsageSource::Pointers(compiled) = &self.source {
            self.follower.begin(&compiled.pointers, kind);
        }
        document.enter(place);
    }

    #[inline(never)]
    fn begin_inner(&mut self, kind: Kind) {
        let document = &mut self.document;
        let is_elsewhere = document.place == Place::Elsewhere && matches!(self.source, UsageSource::Auto);
        if is_elsewhere && document.member == Member::Other {
            // Most of a response gets here, and has no meaning.
            if kind == Kind::String {
                self.string = document.class;
            } else {
                document.enter(Place::Elsewhere);
            }
            return;
        }
        let member = self.document.take_member(Some(kind));
        if member == Member::Other && kind == Kind::String && self.document.place != Place::Choices {
            self.string = self.document.class;
            self.count(member, None);
            return;
        }
        // An event has a whole response before any text, with what the request said, or repeats it at the end.
        let is_response = kind == Kind::Object && member == Member::Response;
        let is_repeated = self.is_stream && is_response && self.document.place == Place::Response;
        let class = self.document.class.of(if is_repeated { Member::NoText } else { member });
        if matches!(member, Member::Delta | Member::Text) && class != Class::NoText {
            self.seen = self.seen.max(class);
        }
        self.see(member);
        if kind == Kind::String {
            self.count(member, None);
            self.string = class;
            self.kept.begin(Some(member).filter(|member| self.keeps(*member)));
            return;
        }
        let document = &mut self.document;
        if let UsageSource::Pointers(compiled) = &self.source {
            self.follower.begin(&compiled.pointers, kind);
        }
        document.enter_class(class);
        let place = match (document.place, kind, member) {
            (Place::Response, Kind::Object, Member::Message | Member::Response) => Place::Wrapped,
            (Place::Response | Place::Wrapped, Kind::Object, Member::Usage | Member::UsageMetadata)
            | (Place::Usage, Kind::Object, Member::Details) => Place::Usage,
            (Place::Response, Kind::Object, Member::Output) => Place::Output,
            (Place::Response, Kind::Object, Member::Delta) => Place::Delta,
            (Place::Response | Place::Wrapped | Place::Output, Kind::Array, Member::Choices | Member::Candidates) => {
                Place::Choices
            }
            (Place::Choices, Kind::Object, _) => Place::Choice,
            _ => Place::Elsewhere,
        };
        document.enter(place);
    }

    #[inline(never)]
    fn word_of_member(&mut self, word: Option<&[u8]>) {
        let member = self.document.take_member(None);
        match (self.document.place, member) {
            (Place::Response, Member::SequenceNumber) => self.sequence_number = word.and_then(count),
            (Place::Choice, Member::Index) => self.ending.has_index(word.and_then(count).unwrap_or_default()),
            _ => {}
        }
        self.count(member, word);
    }

    #[inline]
    fn count(&mut self, member: Member, word: Option<&[u8]>) {
        if matches!(member, Member::Field(_)) || self.has_pointers() {
            self.count_at_place(member, word);
        }
    }

    #[inline(never)]
    fn count_at_place(&mut self, member: Member, word: Option<&[u8]>) {
        let Self { source, document, report, own, .. } = self;
        let mut set = |field| {
            let value = Value::of(word);
            report.set(field, value);
            own.get_or_insert_default().set(field, value);
        };
        match (source, member) {
            (UsageSource::Auto, Member::Field(field)) if document.place == Place::Usage => set(field),
            (UsageSource::Auto, _) => {}
            (UsageSource::Pointers(compiled), _) => {
                let place = self.follower.value(&compiled.pointers);
                let ends = compiled.pointers.ends.iter().zip(&compiled.fields);
                ends.filter(|(end, _)| Some(**end) == place).for_each(|(_, field)| set(*field));
            }
        }
    }
}

impl Visit for Findings {
    fn name(&mut self, name: Option<&[u8]>, _: usize) {
        let document = &mut self.document;
        document.member = name.map_or(Member::Other, Member::of);
        if let UsageSource::Pointers(compiled) = &self.source {
            self.follower.name(&compiled.pointers, name);
        }
        if self.provider.is_none() && matches!(document.place, Place::Response | Place::Wrapped) {
            self.provider = match document.member {
                Member::Choices | Member::Object => Some(Provider::OpenAi),
                Member::StopReason => Some(Provider::Anthropic),
                Member::Candidates | Member::UsageMetadata => Some(Provider::Gemini),
                _ => None,
            };
        }
    }

    #[inline]
    fn begin(&mut self, kind: Kind, _: usize) {
        if matches!(self.document.place, Place::Outside | Place::List) {
            self.begin_outermost(kind);
        } else {
            self.begin_inner(kind);
        }
    }

    fn text(&mut self, part: &[u8]) {
        self.text[self.string as usize] += part.len() as u64;
        self.kept.push(part);
    }

    fn end(&mut self, kind: Kind, at: usize) {
        if kind == Kind::String {
            if self.kept.has_begun() {
                self.know();
            }
            self.value_ended(at);
            return;
        }
        let document = &mut self.document;
        if matches!(self.source, UsageSource::Pointers(_)) {
            self.follower.end(kind);
        }
        if document.place == Place::Choice {
            self.ending.piece_ended();
        }
        document.leave();
        if document.depth <= 1 {
            if kind == Kind::Object && matches!(document.place, Place::Outside | Place::List) {
                self.document_ended();
            }
            self.value_ended(at);
        }
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        let has_meaning = !matches!(self.document.place, Place::Outside | Place::List | Place::Elsewhere);
        if has_meaning || self.has_pointers() {
            self.word_of_member(word);
        } else {
            self.document.member = Member::Other;
        }
        if self.document.depth == 0 {
            self.text[Class::Plain as usize] += at.len() as u64;
        }
        self.value_ended(at.end);
    }

    /// Another value follows, so the response is a stream.
    fn next(&mut self) -> bool {
        let follows = self.is_undivided && self.document.has_ended;
        if follows {
            self.is_stream = true;
            self.next_document();
        }
        follows
    }
}
