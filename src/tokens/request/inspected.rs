//! What was found in the body of a request.

use std::ops::Range;

use super::{AskedOutput, InputSize};
use crate::tokens::pointer::Pointer;

#[derive(Debug, PartialEq, Eq)]
pub struct Inspected {
    /// If this is not JSON, nothing is found in the body, and all of it is text.
    pub form: Form,
    /// For each document the targets of the pointers, in the order of the pointers. A body that is an array and is divided has
    /// any number of documents, of which the first [`MAX_ELEMENTS`](super::MAX_ELEMENTS) are here; others have one.
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
