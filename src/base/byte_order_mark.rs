//! The mark with which some editors begin a file in UTF-8. The mark is never part of the text.

pub const MARK: &[u8] = b"\xef\xbb\xbf";

pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}
