//! The receiver of what a [`Reader`](super::Reader) reads.

use std::ops::Range;

/// A value that contains text or other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
}

/// Receives what the reader reads. Places are in bytes from the start of the document.
pub trait Visit {
    /// The name of the member whose value comes next, and its length in bytes; `None` if it is longer than
    /// [`MAX_NAME`](super::MAX_NAME).
    fn name(&mut self, name: Option<&[u8]>, length: usize);
    /// The next part of a name or a string as written, between two escapes.
    fn written(&mut self, _part: &[u8]) {}
    fn begin(&mut self, kind: Kind, at: usize);
    /// The next part of the current string, with decoded escapes.
    fn text(&mut self, part: &[u8]);
    /// The innermost open value ends before this place.
    fn end(&mut self, kind: Kind, at: usize);
    /// A number, `true`, `false`, `null` or another bare word, and its place; `None` if it is longer than
    /// [`MAX_WORD`](super::MAX_WORD).
    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>);
    /// An array or object follows the end of the document. Returns whether it is read as the next document.
    fn next(&mut self) -> bool {
        false
    }
}
