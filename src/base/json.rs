//! Reads JSON that arrives in pieces, cut anywhere, and keeps no value: a [`Visit`] is told what begins, its text, and where
//! it ends. What is kept is bounded, whatever comes: a name or a word that was cut, and a bit for each level.
//!
//! It reads RFC 8259, and what servers read besides: a byte order mark, `NaN` and other bare words, control characters in
//! strings, and surrogates without their other half, which become U+FFFD. Bytes that are no UTF-8 are passed on as they are.
//! Behind anything else that is no JSON it reads no more.

mod number;

use std::mem;
use std::ops::Range;

use memchr::memchr2;
use smallvec::SmallVec;

pub use number::{count, normal};

/// The longest name that is told, in bytes after decoding.
pub const MAX_NAME: usize = 192;
/// The longest number or other bare word that is told, in bytes.
pub const MAX_WORD: usize = 64;
/// The most arrays and objects in each other.
pub const MAX_DEPTH: usize = 1 << 16;

/// What has text or other values in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An object.
    Object,
    /// An array.
    Array,
    /// A string.
    String,
}

/// Who is told what was read. Places are in bytes from the first one that was read.
pub trait Visit {
    /// The name of the member whose value comes next; `None` if it is longer than [`MAX_NAME`].
    fn name(&mut self, name: Option<&[u8]>);
    /// A value begins at this place.
    fn begin(&mut self, kind: Kind, at: usize);
    /// The next part of the string that has begun. Its escapes are decoded.
    fn text(&mut self, part: &[u8]);
    /// What began last, and has not ended yet, ends before this place.
    fn end(&mut self, kind: Kind, at: usize);
    /// A number, `true`, `false`, `null` or another bare word, and its place; `None` if it is longer than [`MAX_WORD`].
    fn word(&mut self, word: Option<&[u8]>, at: Range<usize>);
}

/// See the head of this file.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// How many bytes have been read.
    at: usize,
    depth: usize,
    /// A bit for each level: whether it is an object.
    levels: SmallVec<[u64; 2]>,
    /// Whether the string is a name.
    is_name: bool,
    /// The beginning of a name or of a word that was not whole in one piece, or had escapes.
    kept: Vec<u8>,
    is_too_long: bool,
    /// Where the word began.
    began: usize,
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
    String,
    Escape,
    /// How many digits of `\u0000` were read, and their value.
    Unicode(u8, u32),
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
                State::Broken => break,
                State::Escape => self.escape(rest[0], to),
                State::Unicode(count, value) => self.unicode(rest[0], count, value, to),
                _ => self.structure(rest[0], self.at + at, to),
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
        *self = Self { levels: mem::take(&mut self.levels), kept: mem::take(&mut self.kept), ..Self::default() };
        self.kept.clear();
    }

    /// Whether it reads no more.
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Reads a byte between values. Returns how many bytes were read, as do the functions below.
    #[inline]
    fn structure(&mut self, byte: u8, at: usize, to: &mut impl Visit) -> usize {
        match (self.state, byte) {
            (_, b' ' | b'\n' | b'\r' | b'\t') => {}
            (State::FirstName | State::Name, b'"') => {
                self.is_name = true;
                self.state = State::String;
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::Next, b',') => self.state = if self.is_in_object() { State::Name } else { State::Value },
            (State::Next, b'}') if self.is_in_object() => self.close(Kind::Object, at, to),
            (State::FirstName, b'}') => self.close(Kind::Object, at, to),
            (State::Next, b']') if !self.is_in_object() => self.close(Kind::Array, at, to),
            (State::FirstItem, b']') => self.close(Kind::Array, at, to),
            (State::Value | State::FirstItem, b'"') => {
                self.is_name = false;
                self.state = State::String;
                to.begin(Kind::String, at);
            }
            (State::Value | State::FirstItem, b'{') => return self.open(Kind::Object, at, to),
            (State::Value | State::FirstItem, b'[') => return self.open(Kind::Array, at, to),
            (State::Value | State::FirstItem, _) if is_of_word(byte) => {
                self.began = at;
                self.state = State::Word;
                return 0;
            }
            // A byte order mark. In so few bytes, nothing else gets here.
            (State::Value, _) if [0xef, 0xbb, 0xbf].get(at) == Some(&byte) => {}
            _ => {
                self.state = State::Broken;
                return 0;
            }
        }
        1
    }

    fn is_in_object(&self) -> bool {
        let level = self.depth - 1;
        self.levels[level / 64] >> (level % 64) & 1 == 1
    }

    fn open(&mut self, kind: Kind, at: usize, to: &mut impl Visit) -> usize {
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if self.depth == MAX_DEPTH {
            self.state = State::Broken;
            return 0;
        }
        if word == self.levels.len() {
            self.levels.push(0);
        }
        if kind == Kind::Object {
            self.levels[word] |= bit;
            self.state = State::FirstName;
        } else {
            self.levels[word] &= !bit;
            self.state = State::FirstItem;
        }
        self.depth += 1;
        to.begin(kind, at);
        1
    }

    fn close(&mut self, kind: Kind, at: usize, to: &mut impl Visit) {
        self.depth -= 1;
        self.ended();
        to.end(kind, at + 1);
    }

    fn ended(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::Next };
    }

    #[inline]
    fn string(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let length = plain_length(rest);
        let (part, end) = (&rest[..length], rest.get(length));
        if self.high.is_some() && (!part.is_empty() || end == Some(&b'"')) {
            self.lone_surrogate(to);
        }
        if end == Some(&b'"') && self.is_name {
            let name = self.whole(part, MAX_NAME);
            to.name(name);
            self.forget();
            // The colon mostly follows at once.
            let has_colon = rest.get(length + 1) == Some(&b':');
            self.state = if has_colon { State::Value } else { State::Colon };
            return length + 1 + usize::from(has_colon);
        }
        if !part.is_empty() {
            self.push(part, to);
        }
        match end {
            Some(b'"') => {
                self.ended();
                to.end(Kind::String, at + length + 1);
            }
            Some(_) => self.state = State::Escape,
            None => return length,
        }
        length + 1
    }

    /// A decoded part of a string.
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
    fn lone_surrogate(&mut self, to: &mut impl Visit) {
        if let Some(high) = self.high.take() {
            self.push_char(high, to);
        }
    }

    fn escape(&mut self, byte: u8, to: &mut impl Visit) -> usize {
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = State::Unicode(0, 0);
                return 1;
            }
            _ => {
                self.state = State::Broken;
                return 0;
            }
        };
        self.lone_surrogate(to);
        self.push(&[decoded], to);
        self.state = State::String;
        1
    }

    fn unicode(&mut self, byte: u8, count: u8, value: u32, to: &mut impl Visit) -> usize {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = State::Broken;
            return 0;
        };
        let value = value << 4 | digit;
        if count < 3 {
            self.state = State::Unicode(count + 1, value);
            return 1;
        }
        self.state = State::String;
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
        1
    }

    #[inline]
    fn word(&mut self, rest: &[u8], at: usize, to: &mut impl Visit) -> usize {
        let length = rest.iter().position(|byte| !is_of_word(*byte));
        match length {
            Some(length) => self.end_word(&rest[..length], at + length, to),
            None => self.keep(rest, MAX_WORD),
        }
        length.unwrap_or(rest.len())
    }

    fn end_word(&mut self, part: &[u8], end: usize, to: &mut impl Visit) {
        let began = self.began;
        let word = self.whole(part, MAX_WORD);
        to.word(word, began..end);
        self.forget();
        self.ended();
    }

    fn keep(&mut self, part: &[u8], most: usize) {
        if self.kept.len() + part.len() > most {
            self.is_too_long = true;
        } else {
            self.kept.extend_from_slice(part);
        }
    }

    /// What was kept, with its last part.
    #[inline]
    fn whole<'a>(&'a mut self, part: &'a [u8], most: usize) -> Option<&'a [u8]> {
        if self.kept.is_empty() && part.len() <= most && !self.is_too_long {
            return Some(part);
        }
        self.keep(part, most);
        (!self.is_too_long).then_some(&self.kept)
    }

    fn forget(&mut self) {
        self.kept.clear();
        self.is_too_long = false;
    }
}

/// How many bytes come before the next quotation mark or backslash.
#[inline]
fn plain_length(rest: &[u8]) -> usize {
    let mut at = 0;
    // Most strings are short, so a call would take longer than to look for them here.
    while let Some(chunk) = rest[at..].first_chunk().filter(|_| at < 24) {
        let word = u64::from_le_bytes(*chunk);
        let found = zeros(word ^ 0x2222_2222_2222_2222) | zeros(word ^ 0x5c5c_5c5c_5c5c_5c5c);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    memchr2(b'"', b'\\', &rest[at..]).map_or(rest.len(), |length| at + length)
}

/// Marks the lowest byte that is zero.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

#[cfg(test)]
mod tests;
