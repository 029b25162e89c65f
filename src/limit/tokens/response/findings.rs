//! What was found in a response: it is told what a reader of JSON reads.
//!
//! The text is what the charge depends on if the usage is missing. In a stream it is below members called `delta`: other
//! events repeat it as a whole when it is finished, and that is not counted again. In other responses it is below `content`
//! and the like, and if there is nothing known, all strings are text. What is no JSON is text in any case.

use std::mem;
use std::ops::Range;

use super::member::{Class, Member};
use super::report::Report;
use super::{Provider, Source};
use crate::base::json::{Kind, Visit};
use crate::limit::tokens::pointer::Follower;

pub(super) struct Findings {
    source: Source,
    is_stream: bool,
    pub(super) report: Report,
    pub(super) provider: Option<Provider>,
    /// Bytes of strings by their class.
    text: [u64; 4],
    /// The greatest class of text that has been there.
    seen: Class,
    /// Bytes of what is no JSON.
    other_text: u64,
    document: Document,
}

/// Where in a document the reader is, and what was seen of it.
#[derive(Default)]
struct Document {
    follower: Follower,
    /// How many arrays and objects the reader is in.
    depth: usize,
    /// The innermost of these, and the outermost of these.
    place: Place,
    places: [Place; 5],
    /// The member that comes next.
    member: Member,
    class: Class,
    /// For each class how deep what has it begins, and the class around that.
    classes: [(usize, Class); 4],
    /// The class of the string that is read.
    string: Class,
    has_usage: bool,
    has_no_choices: bool,
}

/// An array or an object that leads to the usage.
#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    /// The document is in none.
    #[default]
    Outside,
    /// An array of responses.
    List,
    /// A response, or an event.
    Response,
    /// A response in an event.
    Wrapped,
    Usage,
    Choices,
    Elsewhere,
}

impl Findings {
    pub(super) fn new(source: &Source, is_stream: bool) -> Self {
        Self {
            source: source.clone(),
            is_stream,
            report: Report::default(),
            provider: None,
            text: [0; 4],
            seen: Class::Plain,
            other_text: 0,
            document: Document::default(),
        }
    }

    /// So many bytes came that are no JSON.
    pub(super) fn other_text(&mut self, length: usize) {
        self.other_text += length as u64;
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

    /// Begins with the next document. Returns whether the last one only said the usage.
    pub(super) fn next_document(&mut self) -> bool {
        let Document { has_usage, has_no_choices, .. } = mem::take(&mut self.document);
        has_usage && has_no_choices
    }

    /// A value begins. Returns what member it is.
    fn value(&mut self, kind: Option<Kind>) -> Member {
        let document = &mut self.document;
        let member = mem::take(&mut document.member);
        match (document.place, member) {
            (Place::Choices, _) => document.has_no_choices = false,
            // An array of responses does not only say the usage.
            _ if document.place != Place::Response || document.depth != 1 => {}
            (_, Member::Usage) => document.has_usage = kind == Some(Kind::Object),
            (_, Member::Choices) => document.has_no_choices = kind == Some(Kind::Array),
            _ => {}
        }
        member
    }

    /// A number or a string may be a count.
    fn count(&mut self, member: Member, word: Option<&[u8]>) {
        let Self { source, document, report, .. } = self;
        match (source, member) {
            (Source::Auto, Member::Field(field)) if document.place == Place::Usage => report.set(field, word),
            (Source::Auto, _) => {}
            (Source::Pointers(compiled), _) => {
                let place = document.follower.value(&compiled.pointers);
                let ends = compiled.pointers.ends().iter().zip(&compiled.fields);
                ends.filter(|(end, _)| Some(**end) == place).for_each(|(_, field)| report.set(*field, word));
            }
        }
    }
}

impl Visit for Findings {
    fn name(&mut self, name: Option<&[u8]>) {
        let document = &mut self.document;
        document.member = name.map_or(Member::Other, Member::of);
        if let Source::Pointers(compiled) = &self.source {
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
        // An event has a whole response before there is text in it, with what the request has said, or repeats it at the end.
        let is_response = kind == Kind::Object && member == Member::Response;
        let is_repeated = self.is_stream && is_response && self.document.place == Place::Response;
        let class = self.document.class.of(if is_repeated { Member::NoText } else { member });
        if matches!(member, Member::Delta | Member::Text) && class != Class::NoText {
            self.seen = self.seen.max(class);
        }
        if kind == Kind::String {
            self.count(member, None);
            self.document.string = class;
            return;
        }
        let document = &mut self.document;
        if let Source::Pointers(compiled) = &self.source {
            document.follower.begin(&compiled.pointers, kind);
        }
        if class != document.class {
            document.classes[class as usize] = (document.depth, document.class);
            document.class = class;
        }
        document.place = match (document.place, kind, member) {
            (Place::Outside, Kind::Array, _) => Place::List,
            (Place::Outside | Place::List, Kind::Object, _) => Place::Response,
            (Place::Response, Kind::Object, Member::Message | Member::Response) => Place::Wrapped,
            (Place::Response | Place::Wrapped, Kind::Object, Member::Usage | Member::UsageMetadata)
            | (Place::Usage, Kind::Object, Member::Details) => Place::Usage,
            (Place::Response, Kind::Array, Member::Choices) => Place::Choices,
            _ => Place::Elsewhere,
        };
        if let Some(place) = document.places.get_mut(document.depth) {
            *place = document.place;
        }
        document.depth += 1;
    }

    fn text(&mut self, part: &[u8]) {
        self.text[self.document.string as usize] += part.len() as u64;
    }

    fn end(&mut self, kind: Kind, _: usize) {
        if kind == Kind::String {
            return;
        }
        let document = &mut self.document;
        if matches!(self.source, Source::Pointers(_)) {
            document.follower.end(kind);
        }
        document.depth -= 1;
        let (depth, around) = document.classes[document.class as usize];
        if document.class != Class::Plain && document.depth == depth {
            document.class = around;
        }
        document.place = match document.depth {
            0 => Place::Outside,
            depth => document.places.get(depth - 1).copied().unwrap_or(Place::Elsewhere),
        };
    }

    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>) {
        let member = self.value(None);
        self.count(member, word);
        if self.document.depth == 0 {
            self.text[Class::Plain as usize] += at.len() as u64;
        }
    }
}
