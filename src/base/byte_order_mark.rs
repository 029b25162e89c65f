//! The mark with which some editors begin a file in UTF-8. It is no part of the text, wherever a text is read.

/// The mark in UTF-8.
pub const MARK: &[u8] = b"\xef\xbb\xbf";

/// A text that begins a file, without the mark.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}
