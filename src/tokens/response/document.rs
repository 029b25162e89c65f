//! Where in a document of a response the reader is, and what was seen of the document.

use std::mem;

use super::member::{Class, Member};
use crate::base::json::Kind;

/// A whole response, or a part of a stream.
#[derive(Default)]
pub(super) struct Document {
    /// How many arrays and objects are around the reader.
    pub(super) depth: usize,
    /// The innermost array or object around the reader.
    pub(super) place: Place,
    /// The outermost ones.
    places: [Place; 5],
    pub(super) member: Member,
    pub(super) class: Class,
    /// For each class, the depth at which it begins, and the class around it.
    classes: [(usize, Class); 4],
    /// Whether an array or object has ended.
    pub(super) has_ended: bool,
    has_usage: bool,
    has_no_choices: bool,
}

/// An array or an object that leads to the usage.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Place {
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

impl Document {
    /// An array or object begins, which leads to this place.
    #[inline]
    pub(super) fn enter(&mut self, place: Place) {
        self.place = place;
        if let Some(outer) = self.places.get_mut(self.depth) {
            *outer = place;
        }
        self.depth += 1;
    }

    /// The strings in the array or object that begins are of this class.
    pub(super) fn enter_class(&mut self, class: Class) {
        if class != self.class {
            self.classes[class as usize] = (self.depth, self.class);
            self.class = class;
        }
    }

    /// The innermost array or object ends.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
        self.place = match self.depth {
            0 => Place::Outside,
            depth => self.places.get(depth - 1).copied().unwrap_or(Place::Elsewhere),
        };
        if self.class != Class::Plain {
            let (depth, around) = self.classes[self.class as usize];
            if self.depth == depth {
                self.class = around;
            }
        }
        self.has_ended |= self.depth == 0;
    }

    /// A value begins, which is a word if it has no kind. Returns which member it is.
    pub(super) fn take_member(&mut self, kind: Option<Kind>) -> Member {
        let member = mem::take(&mut self.member);
        match (self.place, member) {
            (Place::Choices, _) => self.has_no_choices = false,
            // An array of responses does not only state the usage.
            _ if self.place != Place::Response || self.depth != 1 => {}
            (_, Member::Usage) => self.has_usage = kind == Some(Kind::Object),
            (_, Member::Choices) => self.has_no_choices = kind == Some(Kind::Array),
            _ => {}
        }
        member
    }

    pub(super) fn only_says_usage(&self) -> bool {
        self.has_usage && self.has_no_choices
    }

    /// Begins the next document. The last one may be incomplete.
    #[inline]
    pub(super) fn reset(&mut self) {
        (self.has_ended, self.has_usage, self.has_no_choices) = (false, false, false);
        if self.depth > 0 {
            (self.depth, self.place) = (0, Place::Outside);
            (self.member, self.class) = (Member::Other, Class::Plain);
        }
    }
}
