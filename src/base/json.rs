//! Reads JSON that arrives in pieces, cut anywhere, and keeps no value: a [`Visit`] is told what begins, its text, and where
//! it ends. What is kept is bounded, whatever comes: a name or a word that was cut, and a bit for each level.
//!
//! It reads RFC 8259, and what servers read besides: a byte order mark, `NaN` and other bare words, control characters in
//! strings, and surrogates without their other half, which become U+FFFD. Bytes that are no UTF-8 are passed on as they are.
//! Behind anything else that is no JSON it reads no more.

mod bytes;
mod number;
mod visit;

use smallvec::SmallVec;

use bytes::{escaped, is_of_word, plain_length, with_digit};

pub use number::{count, is_number, normal};
pub use visit::{Kind, Visit};

/// The longest name that is told, in bytes after decoding.
pub const MAX_NAME: usize = 192;
/// The longest number or other bare word that is told, in bytes.
pub const MAX_WORD: usize = 64;
/// The most arrays and objects in each other.
pub const MAX_DEPTH: usize = 1 << 16;

/// Reads one JSON document, in as many pieces as it comes.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// How many bytes have been read.
    at: usize,
    depth: usize,
    /// A bit for each level, the innermost one last: whether it is an object. These are the last ones, up to 64.
    levels: u64,
    /// And these are those before them.
    outer_levels: SmallVec<[u64; 2]>,
    /// Whether the string is a name.
    is_name: bool,
    /// The beginning of a name or of a word that was not whole in one piece, or had escapes.
    kept: Vec<u8>,
    /// How long that is, also if it is too long to be kept.
    kept_length: usize,
    /// Where the word began.
    began: usize,
    /// How many digits of `\u0000` were read, and their value.
    digits: u8,
    code: u32,
    /// The first half of a pair of surrogates.
    high: Option<u32>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// A value has to come.
    #[default]
    Value,
    /// A value, or the end of an array.
    FirstItem,
    /// A name, or the end of an object.
    FirstName,
    Name,
    Colon,
    /// A comma, or the end of what the value is in.
    Next,
    /// Only white space may come.
    Done,
    /// Something else has come behind the value.
    Trailing,
    String,
    Escape,
    /// The digits of `\u0000`.
    Unicode,
    Word,
    Broken,
}

impl Reader {
    /// Reads the next piece and returns how many bytes of it: all, unless it is no JSON behind these.
    pub fn read(&mut self, piece: &[u8], to: &mut impl Visit) -> usize {
        let mut at = 0;
        while at < piece.len() {
            let rest = &piece[at..];
            at += match self.state {
                State::String => self.string(rest, self.at + at, to),
                State::Word => self.word(rest, self.at + at, to),
                State::Broken | State::Trailing => break,
                State::Escape => self.escape(rest[0], to),
                State::Unicode => self.unicode(rest[0], to),
                _ => self.structure(rest, self.at + at, to),
            }
        }
        self.at += at;
        at
    }

    /// Says that nothing follows, and returns whether there was one whole value.
    pub fn finish(&mut self, to: &mut impl Visit) -> bool {
        if self.state == State::Word {
            self.end_word(&[], self.at, to);
        }
        self.state == State::Done
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        (self.state, self.at, self.depth, self.high) = (State::Value, 0, 0, None);
        self.outer_levels.clear();
        self.forget();
    }

    /// How many bytes it has read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether nothing has come yet.
    pub fn is_new(&self) -> bool {
        self.at == 0 && self.state == State::Value
    }

    /// Whether it reads no more.
    pub fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken | State::Trailing)
    }

    /// Whether there was one whole value, and something else behind it.
    pub fn is_trailing(&self) -> bool {
        self.state == State::Trailing
    }

    /// Reads what is between values, and the value that follows. Returns how many bytes were read, as do the functions below.
    #[inline]
    fn structure(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let mut length = 0;
        while let Some(byte) = rest.get(length).copied() {
            let state = self.state;
            let takes_value = matches!(state, State::Value | State::FirstItem);
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b',' if state == State::Next => {
                    self.state = if self.is_in_object() { State::Name } else { State::Value };
                }
                b'{' | b'[' if takes_value && self.depth < MAX_DEPTH => self.open(byte == b'{', at + length, to),
                b']' if state == State::FirstItem || state == State::Next && !self.is_in_object() => {
                    self.close(Kind::Array, at + length, to);
                }
                b'}' if state == State::FirstName || state == State::Next && self.is_in_object() => {
                    self.close(Kind::Object, at + length, to);
                }
                b':' if state == State::Colon => self.state = State::Value,
                b'"' if takes_value => {
                    self.is_name = false;
                    self.state = State::String;
                    to.begin(Kind::String, at + length);
                    return length + 1;
                }
                b'"' if matches!(state, State::FirstName | State::Name) => {
                    self.is_name = true;
                    self.state = State::String;
                    return length + 1;
                }
                _ if takes_value && is_of_word(byte) => {
                    self.began = at + length;
                    self.state = State::Word;
                    length += self.word(&rest[length..], at + length, to);
                    continue;
                }
                // A byte order mark. In so few bytes, nothing else gets here.
                _ if state == State::Value && [0xef, 0xbb, 0xbf].get(at + length) == Some(&byte) => {}
                _ => {
                    self.state = if state == State::Done { State::Trailing } else { State::Broken };
                    return length;
                }
            }
            length += 1;
        }
        length
    }

    #[inline]
    fn is_in_object(&self) -> bool {
        self.levels & 1 == 1
    }

    #[inline]
    fn open(&mut self, is_object: bool, at: usize, to: &mut impl Visit) {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.outer_levels.push(self.levels);
        }
        self.levels = self.levels << 1 | u64::from(is_object);
        self.depth += 1;
        if is_object {
            self.state = State::FirstName;
            to.begin(Kind::Object, at);
        } else {
            self.state = State::FirstItem;
            to.begin(Kind::Array, at);
        }
    }

    #[inline]
    fn close(&mut self, kind: Kind, at: usize, to: &mut impl Visit) {
        self.levels >>= 1;
        self.depth -= 1;
        if self.depth.is_multiple_of(64) {
            self.levels = self.outer_levels.pop().unwrap_or_default();
        }
        self.ended();
        to.end(kind, at + 1);
    }

    #[inline]
    fn ended(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::Next };
    }

    /// Reads a string up to its end, or to an escape that is not whole in this piece.
    #[inline]
    fn string(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let mut begin = 0;
        // Where an escape begins that is not whole, or none.
        let end = loop {
            let end = begin + plain_length(&rest[begin..]);
            let part = &rest[begin..end];
            if !part.is_empty() {
                self.lone_surrogate(to);
                to.written(part);
            }
            match rest.get(end) {
                Some(b'"') if self.is_name => return self.end_name(part, &rest[end + 1..], to) + end + 1,
                Some(b'"') => {
                    self.lone_surrogate(to);
                    if !part.is_empty() {
                        to.text(part);
                    }
                    self.ended();
                    to.end(Kind::String, at + end + 1);
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
        };
        self.state = State::Escape;
        end + 1
    }

    /// The last part of a name, and what follows it.
    fn end_name(&mut self, part: &[u8], rest: &[u8], to: &mut impl Visit) -> usize {
        self.lone_surrogate(to);
        let length = self.kept_length + part.len();
        if length > MAX_NAME {
            to.long_name(length);
        }
        let name = self.whole(part, MAX_NAME);
        to.name(name);
        self.forget();
        // The colon mostly follows at once.
        let has_colon = rest.first() == Some(&b':');
        self.state = if has_colon { State::Value } else { State::Colon };
        usize::from(has_colon)
    }

    /// A decoded part of a string.
    #[inline]
    fn push(&mut self, part: &[u8], to: &mut impl Visit) {
        if self.is_name {
            self.keep(part, MAX_NAME);
        } else {
            to.text(part);
        }
    }

    fn push_char(&mut self, value: u32, to: &mut impl Visit) {
        let decoded = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.push(decoded.encode_utf8(&mut [0; 4]).as_bytes(), to);
    }

    /// The first half of a pair was not followed by the other one.
    #[inline]
    fn lone_surrogate(&mut self, to: &mut impl Visit) {
        if let Some(high) = self.high.take() {
            self.push_char(high, to);
        }
    }

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

    /// A character that is written as `\u0000`, or a half of one.
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

    #[inline]
    fn word(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let Some(length) = rest.iter().position(|byte| !is_of_word(*byte)) else {
            self.keep(rest, MAX_WORD);
            return rest.len();
        };
        self.end_word(&rest[..length], at + length, to);
        length
    }

    #[inline]
    fn end_word(&mut self, part: &[u8], end: usize, to: &mut impl Visit) {
        let began = self.began;
        let word = self.whole(part, MAX_WORD);
        to.word(word, began..end);
        self.forget();
        self.ended();
    }

    fn keep(&mut self, part: &[u8], most: usize) {
        self.kept_length += part.len();
        if self.kept_length <= most {
            self.kept.extend_from_slice(part);
        }
    }

    /// What was kept, with its last part.
    #[inline]
    fn whole<'a>(&'a mut self, part: &'a [u8], most: usize) -> Option<&'a [u8]> {
        if self.kept_length == 0 && part.len() <= most {
            return Some(part);
        }
        self.keep(part, most);
        (self.kept_length <= most).then_some(&self.kept)
    }

    fn forget(&mut self) {
        self.kept.clear();
        self.kept_length = 0;
    }
}

#[cfg(test)]
mod tests;
