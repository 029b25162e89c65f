//! Who reads JSON with a [`Reader`](super::Reader).

use std::ops::Range;

/// What has text or other values in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
}

/// Who is told what was read. Places are in bytes from the first one that was read.
pub trait Visit {
    /// The name of the member whose value comes next, and its length in bytes; `None` if that is more than
    /// [`MAX_NAME`](super::MAX_NAME).
    fn name(&mut self, name: Option<&[u8]>, length: usize);
    /// The next part of a name or a string, as it is written between two escapes.
    fn written(&mut self, _part: &[u8]) {}
    /// A value begins at this place.
    fn begin(&mut self, kind: Kind, at: usize);
    /// The next part of the string that has begun. Its escapes are decoded.
    fn text(&mut self, part: &[u8]);
    /// What began last, and has not ended yet, ends before this place.
    fn end(&mut self, kind: Kind, at: usize);
    /// A number, `true`, `false`, `null` or another bare word, and its place; `None` if it is longer than [`MAX_WORD`](super::MAX_WORD).
    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>);
}
