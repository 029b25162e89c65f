//! Collects what a reader of JSON finds in a response.
//!
//! The charge depends on the amount of text if the usage is missing. In a stream, text is below members called `delta`: other
//! events repeat it as a whole when it is finished, which is not counted again. In other responses, text is below `content`
//! and similar members. If no known member is found, all strings are text. What is not JSON is text in any case.
//!
//! `report` decides whether the answer is complete, and whether the usage is final.

use std::mem;
use std::ops::Range;

use smallvec::SmallVec;

use super::member::{Class, KeptString, Member, ShortText};
use super::report::{Ending, Finality, Report, Value};
use super::{Provider, UsageSource};
use crate::base::json::{Kind, Visit, count};
use crate::tokens::Usage;
use crate::tokens::pointer::Follower;

/// How many models of one response are kept.
const MOST_MODELS: usize = 16;

#[derive(Default)]
pub(super) struct Findings {
    source: UsageSource,
    /// Whether there are several values, each a part of the response.
    pub(super) is_stream: bool,
    /// Whether the values are the elements of an array.
    pub(super) is_list: bool,
    pub(super) report: Report,
    /// The usage that the current document states by itself, if any.
    own: Option<Report>,
    pub(super) ending: Ending,
    pub(super) provider: Option<Provider>,
    /// The models that have answered, as far as known.
    pub(super) models: SmallVec<[ShortText; 1]>,
    pub(super) sequence_number: Option<u64>,
    /// Where the last part ended, if parts are elements or values.
    pub(super) part_end: Option<usize>,
    kept: KeptString,
    /// Bytes of strings by their class.
    text: [u64; 4],
    /// The greatest class of text seen so far.
    seen: Class,
    /// Bytes that are not JSON.
    other_text: u64,
    document: Document,
}

/// Where in a document the reader is, and what was seen of the document.
#[derive(Default)]
struct Document {
    follower: Follower,
    /// How many arrays and objects are around the reader.
    depth: usize,
    /// The innermost and the outermost arrays and objects around the reader.
    place: Place,
    places: [Place; 5],
    /// The next member.
    member: Member,
    class: Class,
    /// Whether an array or object has ended.
    has_ended: bool,
    /// For each class, the depth at which it begins, and the class around it.
    classes: [(usize, Class); 4],
    string: Class,
    has_usage: bool,
    has_no_choices: bool,
}

/// An array or an object that leads to the usage.
#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    /// Around the document.
    #[default]
    Outside,
    /// An array of responses.
    List,
    /// A response, or an event.
    Response,
    /// A response in an event.
    Wrapped,
    /// What some servers wrap around the choices.
    Output,
    Usage,
    /// An array of answers.
    Choices,
    Choice,
    Delta,
    Elsewhere,
}

impl Findings {
    pub(super) fn new(source: &UsageSource, is_stream: bool) -> Self {
        Self { source: source.clone(), is_stream, ..Self::default() }
    }

    pub(super) fn other_text(&mut self, length: usize) {
        self.other_text += length as u64;
        self.document.has_ended &= length == 0;
    }

    pub(super) fn text(&self) -> u64 {
        let of = |class: Class| self.text[class as usize];
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

    /// When the stated usage is final; `None` if none is stated, or more will be. Zeros beside text state nothing.
    pub(super) fn finality(&self) -> Option<Finality> {
        let has_input = self.report.has_input() || self.has_pointers();
        let is_nothing = self.report.usage().is_none_or(|usage| usage == Usage::default()) && self.text() > 0;
        self.ending.finality(self.said()).filter(|_| has_input && !is_nothing)
    }

    fn document_ended(&mut self) {
        let (is_part, said) = (self.is_stream || self.is_list, self.said());
        let finality = self.ending.document_ended(said, is_part, self.has_pointers());
        if let Some(own) = &self.own {
            let has_text = if is_part { said > 0 } else { self.visible() > 0 };
            if let Some(finality) = finality.filter(|_| own.has_output(has_text, is_part)) {
                self.ending.said(said, finality);
            }
            self.own = None;
        }
    }

    /// Begins the next document. Returns whether the last one only stated the usage.
    pub(super) fn next_document(&mut self) -> bool {
        let only_says_usage = self.document.has_usage && self.document.has_no_choices;
        if self.document.depth == 0 {
            // Nothing else remains of a whole document.
            self.document.has_usage = false;
            self.document.has_no_choices = false;
            self.document.has_ended = false;
        } else {
            self.document = Document::default();
            self.kept.begin(None);
        }
        only_says_usage
    }

    /// Whether a value has ended, so another one may follow.
    pub(super) fn is_behind_value(&self) -> bool {
        self.document.has_ended
    }

    /// Another value follows, so the response is a stream.
    pub(super) fn next_value(&mut self) {
        self.is_stream = true;
        self.next_document();
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

    fn know(&mut self, member: Member, text: ShortText) {
        match (member, &*text) {
            (Member::StopReason | Member::FinishReason, text) => {
                self.ending.is_complete |= !(text == b"null" || text.ends_with(b"_UNSPECIFIED"));
            }
            (Member::Model, _) if self.models.len() < MOST_MODELS && !self.models.contains(&text) => {
                self.models.push(text);
            }
            (Member::Status, b"in_progress" | b"queued") => self.ending.begins(),
            (Member::Status, b"completed" | b"incomplete" | b"failed" | b"cancelled") => {
                self.ending.is_complete = true;
            }
            (Member::Type, b"error") => self.ending.has_failed = true,
            (Member::Type, text) if text.starts_with(b"response.") => {
                self.provider = Some(Provider::OpenAiResponses);
            }
            _ => {}
        }
    }

    /// Begins a value. Returns which member it is.
    fn value(&mut self, kind: Option<Kind>) -> Member {
        let document = &mut self.document;
        let member = mem::take(&mut document.member);
        match (document.place, member) {
            (Place::Choices, _) => document.has_no_choices = false,
            // An array of responses does not only state the usage.
            _ if document.place != Place::Response || document.depth != 1 => {}
            (_, Member::Usage) => document.has_usage = kind == Some(Kind::Object),
            (_, Member::Choices) => document.has_no_choices = kind == Some(Kind::Array),
            _ => {}
        }
        member
    }

    fn count(&mut self, member: Member, word: Option<&[u8]>) {
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
                let place = document.follower.value(&compiled.pointers);
                let ends = compiled.pointers.ends().iter().zip(&compiled.fields);
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
            document.follower.name(&compiled.pointers, name);
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

    fn begin(&mut self, kind: Kind, _: usize) {
        let member = self.value(Some(kind));
        let document = &mut self.document;
        if member == Member::Other && document.place == Place::Elsewhere && matches!(self.source, UsageSource::Auto) {
            // Most of a response gets here, and has no meaning.
            if kind == Kind::String {
                document.string = document.class;
            } else {
                if let Some(place) = document.places.get_mut(document.depth) {
                    *place = Place::Elsewhere;
                }
                document.depth += 1;
            }
            return;
        }
        if member == Member::Other && kind == Kind::String && document.place != Place::Choices {
            self.document.string = self.document.class;
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
            self.document.string = class;
            self.kept.begin(Some(member).filter(|member| self.keeps(*member)));
            return;
        }
        let document = &mut self.document;
        if let UsageSource::Pointers(compiled) = &self.source {
            document.follower.begin(&compiled.pointers, kind);
        }
        if class != document.class {
            document.classes[class as usize] = (document.depth, document.class);
            document.class = class;
        }
        document.place = match (document.place, kind, member) {
            (Place::Outside, Kind::Array, _) => {
                self.is_list |= !self.is_stream;
                Place::List
            }
            (Place::Outside | Place::List, Kind::Object, _) => Place::Response,
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
        if let Some(place) = document.places.get_mut(document.depth) {
            *place = document.place;
        }
        document.depth += 1;
    }

    fn text(&mut self, part: &[u8]) {
        self.text[self.document.string as usize] += part.len() as u64;
        self.kept.push(part);
    }

    fn end(&mut self, kind: Kind, at: usize) {
        if kind == Kind::String {
            if let Some((member, text)) = self.kept.end() {
                self.know(member, text);
            }
            self.value_ended(at);
            return;
        }
        let document = &mut self.document;
        if matches!(self.source, UsageSource::Pointers(_)) {
            document.follower.end(kind);
        }
        document.depth -= 1;
        if document.class != Class::Plain {
            let (depth, around) = document.classes[document.class as usize];
            if document.depth == depth {
                document.class = around;
            }
        }
        document.place = match document.depth {
            0 => Place::Outside,
            depth => document.places.get(depth - 1).copied().unwrap_or(Place::Elsewhere),
        };
        if document.depth <= 1 {
            document.has_ended |= document.depth == 0;
            if kind == Kind::Object && matches!(document.place, Place::Outside | Place::List) {
                self.document_ended();
            }
            self.value_ended(at);
        }
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        if self.document.place == Place::Elsewhere && matches!(self.source, UsageSource::Auto) {
            self.document.member = Member::Other;
            return;
        }
        let member = self.value(None);
        if member == Member::SequenceNumber && self.document.place == Place::Response {
            self.sequence_number = word.and_then(count);
        }
        self.count(member, word);
        if self.document.depth == 0 {
            self.text[Class::Plain as usize] += at.len() as u64;
        }
        self.value_ended(at.end);
    }
}
