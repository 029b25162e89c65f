//! What is found in the body of a request. At the places of pointers, each document of a body that is an array has values of its
//! own.

use std::ops::Range;

use super::known::BodyPointers;
use super::{AskedOutput, InputSize};
use crate::tokens::pointer::Pointer;

/// The most documents of one body that are told apart. JSON-RPC and GraphQL servers allow far fewer.
pub const MAX_ELEMENTS: usize = 1000;

#[derive(Debug, PartialEq, Eq)]
pub struct Inspected {
    /// If this is not JSON, nothing is found in the body, and all of it is text.
    pub form: Form,
    /// For each document the targets of the pointers, in the order of the pointers. A body that is an array and is divided has
    /// any number of documents, of which the first [`MAX_ELEMENTS`] are here; others have one.
    pub documents: Vec<Vec<PointedTo>>,
    /// How many documents the body has if it is an array and is divided.
    pub elements: Option<usize>,
    pub input: InputSize,
    pub output: AskedOutput,
    /// Whether the response is to be a stream of events.
    pub streams: bool,
    /// Whether the response comes later, in reply to another request.
    pub is_background: bool,
    /// The changes that make the response to a chat or a completion state its usage; `None` if that is not possible.
    pub usage_patches: Option<Vec<Patch>>,
    /// A member with a meaning to the gateway that is repeated, under any spelling.
    pub repeated: Option<Pointer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON in UTF-8.
    Json,
    /// Not valid JSON, but some servers read it.
    AlmostJson,
    /// Not read to its end, since it is nested deeper than [`MAX_DEPTH`](crate::base::json::MAX_DEPTH). Some servers read it.
    TooDeep,
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PointedTo {
    /// Nothing, or neither a string nor a number.
    #[default]
    Missing,
    /// The text of a string, in which U+FFFD replaces what is not UTF-8, or a number in its normal form.
    Value(String),
    /// The target or something on the way to it is repeated, or it is a number or a text that is too long to be known.
    Ambiguous,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    pub at: Range<usize>,
    pub with: &'static str,
}

pub(super) struct Found {
    /// For each place of the pointers, what was found and how often.
    places: Vec<(PointedTo, usize)>,
    /// Whether any place occurs more than once.
    repeats: bool,
    /// The targets of keys in each document of an array that has ended, at most [`MAX_ELEMENTS`].
    ended: Vec<Vec<PointedTo>>,
    /// How many documents of an array have begun.
    pub(super) count: usize,
}

impl Found {
    pub(super) fn new(pointers: &BodyPointers) -> Self {
        Self {
            places: vec![(PointedTo::Missing, 0); pointers.all.places.len()],
            repeats: false,
            ended: Vec::new(),
            count: 0,
        }
    }

    /// Notes a value at this place. Returns whether it is the first one.
    pub(super) fn is_first(&mut self, place: usize) -> bool {
        let count = &mut self.places[place].1;
        *count += 1;
        self.repeats |= *count > 1;
        *count == 1
    }

    pub(super) fn set(&mut self, place: usize, value: PointedTo) {
        self.places[place].0 = value;
    }

    /// Whether a value of this member, or of something on the way to it, is repeated.
    pub(super) fn is_repeated(&self, pointers: &BodyPointers, place: usize) -> bool {
        self.repeats && pointers.all.way(place).any(|place| self.places[place].1 > 1)
    }

    /// The targets of keys, in the order of the pointers.
    fn keys(&self, pointers: &BodyPointers) -> Vec<PointedTo> {
        let key = |end: &usize| match self.is_repeated(pointers, *end) {
            true => PointedTo::Ambiguous,
            false => self.places[*end].0.clone(),
        };
        pointers.keys().iter().map(key).collect()
    }

    /// The next document of an array begins. Returns whether it is only counted, because there are too many.
    #[inline]
    pub(super) fn next_element(&mut self, pointers: &BodyPointers) -> bool {
        self.count += 1;
        if self.count <= MAX_ELEMENTS + 1 {
            self.begin_element(pointers);
        }
        self.count > MAX_ELEMENTS
    }

    #[inline(never)]
    fn begin_element(&mut self, pointers: &BodyPointers) {
        if self.count > 1 {
            self.ended.push(self.keys(pointers));
        }
        self.places.fill((PointedTo::Missing, 0));
        self.repeats = false;
    }

    /// The targets of keys in each document, at most [`MAX_ELEMENTS`].
    pub(super) fn documents(mut self, pointers: &BodyPointers) -> Vec<Vec<PointedTo>> {
        if self.count <= MAX_ELEMENTS {
            self.ended.push(self.keys(pointers));
        }
        self.ended
    }
}
