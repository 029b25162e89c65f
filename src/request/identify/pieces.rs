//! Divides a Cookie header or a query into pairs as servers do: some servers know separators that others do not. Pure.

use std::borrow::Cow;

use crate::base::percent::decode_form;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Separation {
    /// All servers know the separators around the piece.
    Certain,
    /// Only some servers know one of the separators, so others read the piece together with its neighbor.
    Disputed,
}

/// The pieces of a text between two separators: one that all servers know, and one that only some know.
pub(super) struct Pieces<'a> {
    text: Option<&'a [u8]>,
    known_to_all: u8,
    known_to_some: u8,
    /// Whether only some servers know the separator before the rest.
    is_disputed: bool,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(text: &'a [u8], known_to_all: u8, known_to_some: u8) -> Self {
        Self { text: Some(text), known_to_all, known_to_some, is_disputed: false }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = (Separation, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.text?;
        let end = memchr::memchr2(self.known_to_all, self.known_to_some, text);
        let (piece, rest) = end.map_or((text, None), |end| (&text[..end], Some(&text[end + 1..])));
        let was_disputed = self.is_disputed;
        self.is_disputed = end.is_some_and(|end| text[end] == self.known_to_some);
        self.text = rest;
        Some((if was_disputed || self.is_disputed { Separation::Disputed } else { Separation::Certain }, piece))
    }
}

/// The parameters of a query, as all servers divide it: their decoded names, and their values as written.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    let pairs = query.as_bytes().split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    pairs.map(name_and_value).map(|(name, value)| (decode_form(name), value))
}

pub(super) fn name_and_value(pair: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
    (&pair[..end], pair.get(end + 1..).unwrap_or_default())
}
