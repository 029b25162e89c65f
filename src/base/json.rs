//! Reads JSON that arrives in pieces, cut anywhere, and keeps no value: a [`Visit`] gets beginnings, texts and ends. The
//! reader's memory is bounded for any input: a name or word that was cut, and a bit for each level.
//!
//! It reads RFC 8259, and what servers read besides: a byte order mark, `NaN` and other bare words, control characters in
//! strings, and surrogates without their other half, which become U+FFFD. Bytes that are no UTF-8 pass unchanged. After
//! anything else that is no JSON, the reader stops.

mod bytes;
mod kept;
mod number;
mod state;
mod visit;

use bytes::{escaped, is_of_word, plain_length, with_digit, word_length};
use kept::Kept;
use state::{Levels, State};

pub use number::{count, is_number, normal};
pub use visit::{Kind, Visit};

/// The longest reported name, in bytes after decoding.
pub const MAX_NAME: usize = 192;
/// The longest reported number or other bare word, in bytes.
pub const MAX_WORD: usize = 64;
/// Of nested arrays and objects.
pub const MAX_DEPTH: usize = 63 << 10;

/// Reads a JSON document, in any number of pieces, and others that follow it if the [`Visit`] wants them.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// Bytes read so far.
    pub at: usize,
    levels: Levels,
    is_name: bool,
    /// The beginning of a name or word that was cut, or that had escapes.
    kept: Kept,
    /// Where the current word began.
    began: usize,
    /// The read digits of `\u0000`, and their value.
    digits: u8,
    code: u32,
    /// The first half of a pair of surrogates.
    high: Option<u32>,
}

impl Reader {
    /// Returns how many bytes of the piece were read: all, unless the next one is no JSON.
    pub fn read(&mut self, piece: &[u8], to: &mut impl Visit) -> usize {
        let mut at = 0;
        while at < piece.len() {
            let rest = &piece[at..];
            at += match self.state {
                State::String => self.string(rest, plain_length(rest), self.at + at, to),
                State::Word => self.word(rest, self.at + at, to),
                State::TooDeep | State::Broken | State::Trailing => break,
                State::Escape => self.escape(rest[0], to),
                State::Unicode => self.unicode(rest[0], to),
                _ => self.structure(rest, self.at + at, to),
            }
        }
        self.at += at;
        at
    }

    /// Nothing follows. Returns whether there was one whole value.
    pub fn finish(&mut self, to: &mut impl Visit) -> bool {
        if self.state == State::Word {
            self.end_word(&[], self.at, to);
        }
        self.state == State::Done
    }

    pub fn reset(&mut self) {
        // A whole document leaves nothing behind.
        if self.state != State::Done {
            self.high = None;
            self.levels.clear();
            self.kept.clear();
        }
        (self.state, self.at) = (State::Value, 0);
    }

    pub fn is_new(&self) -> bool {
        self.at == 0 && self.state == State::Value
    }

    /// How many bytes have come of a word that is in no array or object, and whose end has not come.
    pub fn begun_word(&self) -> usize {
        if self.state == State::Word && self.levels.is_empty() { self.at - self.began } else { 0 }
    }

    /// Whether there was one whole value, and something else after it.
    pub fn is_trailing(&self) -> bool {
        self.state == State::Trailing
    }

    /// Whether the reader stopped at an array or object that is nested too deeply, in what may be JSON.
    pub fn is_too_deep(&self) -> bool {
        self.state == State::TooDeep
    }

    /// Reads what is between values, and the next value. Returns how many bytes were read, as do the functions below.
    #[inline]
    fn structure(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let mut length = 0;
        while let Some(byte) = rest.get(length).copied() {
            let state = self.state;
            let takes_value = matches!(state, State::Value | State::FirstItem);
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b',' if state == State::NextItem => self.state = State::Value,
                b',' if state == State::NextMember => self.state = State::Name,
                b'[' if (takes_value || state == State::Done && to.next()) && self.levels.push(false) => {
                    self.state = State::FirstItem;
                    to.begin(Kind::Array, at + length);
                }
                b'{' if (takes_value || state == State::Done && to.next()) && self.levels.push(true) => {
                    self.state = State::FirstName;
                    to.begin(Kind::Object, at + length);
                }
                b']' if matches!(state, State::FirstItem | State::NextItem) => {
                    self.close(Kind::Array, at + length, to);
                }
                b'}' if matches!(state, State::FirstName | State::NextMember) => {
                    self.close(Kind::Object, at + length, to);
                }
                b':' if state == State::Colon => self.state = State::Value,
                b'"' if takes_value || matches!(state, State::FirstName | State::Name) => {
                    if takes_value {
                        to.begin(Kind::String, at + length);
                    }
                    length += 1;
                    length += self.first_of_string(!takes_value, &rest[length..], at + length, to);
                    if matches!(self.state, State::String | State::Escape) {
                        return length;
                    }
                    continue;
                }
                _ if takes_value && is_of_word(byte) => {
                    length += self.first_of_word(&rest[length..], at + length, to);
                    continue;
                }
                // A byte order mark. Within so few bytes, nothing else gets here.
                _ if state == State::Value && [0xef, 0xbb, 0xbf].get(at + length) == Some(&byte) => {}
                _ => {
                    self.state = match byte {
                        b'[' | b'{' if takes_value => State::TooDeep,
                        _ if state == State::Done => State::Trailing,
                        _ => State::Broken,
                    };
                    return length;
                }
            }
            length += 1;
        }
        length
    }

    #[inline]
    fn close(&mut self, kind: Kind, at: usize, to: &mut impl Visit) {
        self.levels.pop();
        self.ended();
        to.end(kind, at + 1);
    }

    #[inline]
    fn ended(&mut self) {
        self.state = match self.levels.is_in_object() {
            _ if self.levels.is_empty() => State::Done,
            true => State::NextMember,
            false => State::NextItem,
        };
    }

    /// Reads a string from its beginning, like [`Self::string`]. Most have no escape and are whole in this piece.
    #[inline]
    fn first_of_string(&mut self, is_name: bool, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let end = plain_length(rest);
        let part = &rest[..end];
        if rest.get(end) != Some(&b'"') {
            (self.is_name, self.state) = (is_name, State::String);
            if end < rest.len() {
                return self.string(rest, end, at, to);
            }
            if !part.is_empty() {
                to.written(part);
                self.push(part, to);
            }
            return end;
        }
        if !part.is_empty() {
            to.written(part);
        }
        if is_name {
            to.name((end <= MAX_NAME).then_some(part), end);
            return self.end_name(&rest[end + 1..]) + end + 1;
        }
        self.end_string(part, at + end + 1, to);
        end + 1
    }

    /// The last part of a string that is no name, and its end.
    #[inline]
    fn end_string(&mut self, part: &[u8], end: usize, to: &mut impl Visit) {
        if !part.is_empty() {
            to.text(part);
        }
        self.ended();
        to.end(Kind::String, end);
    }

    /// Reads a string up to its end, or to an escape that the piece cuts. The first `plain` bytes have no escape.
    #[inline(never)]
    fn string(&mut self, rest: &[u8], mut plain: usize, at: usize, to: &mut impl Visit) -> usize {
        let mut begin = 0;
        // Where an escape begins that the piece cuts.
        let end = loop {
            let end = begin + plain;
            let part = &rest[begin..end];
            if !part.is_empty() {
                self.lone_surrogate(to);
                to.written(part);
            }
            match rest.get(end) {
                Some(b'"') if self.is_name => {
                    self.last_of_name(part, to);
                    return self.end_name(&rest[end + 1..]) + end + 1;
                }
                Some(b'"') => {
                    self.lone_surrogate(to);
                    self.end_string(part, at + end + 1, to);
                    return end + 1;
                }
                next => {
                    if !part.is_empty() {
                        self.push(part, to);
                    }
                    if next.is_none() {
                        return end;
                    }
                }
            }
            begin = match rest[end + 1..] {
                [b'u', a, b, c, d, ..] => {
                    let Some(value) = [a, b, c, d].into_iter().try_fold(0, with_digit) else { break end };
                    self.code_unit(value, to);
                    end + 6
                }
                [byte, ..] => {
                    let Some(decoded) = escaped(byte) else { break end };
                    self.lone_surrogate(to);
                    self.push(&[decoded], to);
                    end + 2
                }
                [] => break end,
            };
            // Escapes often follow each other.
            plain = if rest.get(begin) == Some(&b'\\') { 0 } else { plain_length(&rest[begin..]) };
        };
        self.state = State::Escape;
        end + 1
    }

    /// The last part of a name, of which earlier parts may have been kept.
    fn last_of_name(&mut self, part: &[u8], to: &mut impl Visit) {
        self.lone_surrogate(to);
        let length = self.kept.length() + part.len();
        to.name(self.kept.whole(part, MAX_NAME), length);
        self.kept.clear();
    }

    /// Reads what follows a name: mostly the colon.
    #[inline]
    fn end_name(&mut self, rest: &[u8]) -> usize {
        let has_colon = rest.first() == Some(&b':');
        self.state = if has_colon { State::Value } else { State::Colon };
        usize::from(has_colon)
    }

    #[inline]
    fn push(&mut self, part: &[u8], to: &mut impl Visit) {
        if self.is_name {
            self.kept.push(part, MAX_NAME);
        } else {
            to.text(part);
        }
    }

    fn push_char(&mut self, value: u32, to: &mut impl Visit) {
        let decoded = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.push(decoded.encode_utf8(&mut [0; 4]).as_bytes(), to);
    }

    /// The second half of a pair did not follow the first.
    #[inline]
    fn lone_surrogate(&mut self, to: &mut impl Visit) {
        if let Some(high) = self.high.take() {
            self.push_char(high, to);
        }
    }

    #[inline(never)]
    fn escape(&mut self, byte: u8, to: &mut impl Visit) -> usize {
        match escaped(byte) {
            Some(decoded) => {
                self.lone_surrogate(to);
                self.push(&[decoded], to);
                self.state = State::String;
                1
            }
            None if byte == b'u' => {
                (self.state, self.digits, self.code) = (State::Unicode, 0, 0);
                1
            }
            None => {
                self.state = State::Broken;
                0
            }
        }
    }

    #[inline(never)]
    fn unicode(&mut self, byte: u8, to: &mut impl Visit) -> usize {
        let Some(code) = with_digit(self.code, byte) else {
            self.state = State::Broken;
            return 0;
        };
        (self.code, self.digits) = (code, self.digits + 1);
        if self.digits == 4 {
            self.state = State::String;
            self.code_unit(code, to);
        }
        1
    }

    /// A character written as `\u0000`, or a half of one.
    fn code_unit(&mut self, value: u32, to: &mut impl Visit) {
        match (self.high, value) {
            (Some(high), 0xdc00..=0xdfff) => {
                self.high = None;
                self.push_char(0x1_0000 + ((high - 0xd800) << 10) + (value - 0xdc00), to);
            }
            (_, 0xd800..=0xdbff) => {
                self.lone_surrogate(to);
                self.high = Some(value);
            }
            _ => {
                self.lone_surrogate(to);
                self.push_char(value, to);
            }
        }
    }

    /// Reads a word from its beginning, up to its end or the end of the piece.
    #[inline]
    fn first_of_word(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let Some(length) = word_length(rest) else {
            (self.state, self.began) = (State::Word, at);
            self.kept.push(rest, MAX_WORD);
            return rest.len();
        };
        let word = &rest[..length];
        to.word((length <= MAX_WORD).then_some(word), at..at + length);
        self.ended();
        length
    }

    #[inline(never)]
    fn word(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let Some(length) = word_length(rest) else {
            self.kept.push(rest, MAX_WORD);
            return rest.len();
        };
        self.end_word(&rest[..length], at + length, to);
        length
    }

    fn end_word(&mut self, part: &[u8], end: usize, to: &mut impl Visit) {
        let began = self.began;
        let word = self.kept.whole(part, MAX_WORD);
        to.word(word, began..end);
        self.kept.clear();
        self.ended();
    }
}

#[cfg(test)]
mod tests;
