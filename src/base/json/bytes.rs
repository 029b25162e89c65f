//! What single bytes of JSON mean.

use memchr::memchr2;

/// The byte behind an escape such as `\n`.
#[inline]
pub(super) fn escaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

pub(super) fn with_digit(value: u32, byte: u8) -> Option<u32> {
    char::from(byte).to_digit(16).map(|digit| value << 4 | digit)
}

/// The number of bytes before the next quotation mark or backslash.
#[inline]
pub(super) fn plain_length(rest: &[u8]) -> usize {
    let mut at = 0;
    // Most strings are short, so a call to memchr would take longer than this search.
    while let Some(chunk) = rest[at..].first_chunk().filter(|_| at < 24) {
        let word = u64::from_le_bytes(*chunk);
        let found = zeros(word ^ 0x2222_2222_2222_2222) | zeros(word ^ 0x5c5c_5c5c_5c5c_5c5c);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let length = match &rest[at..] {
        short if short.len() < 8 => short.iter().position(|byte| matches!(byte, b'"' | b'\\')),
        long => memchr2(b'"', b'\\', long),
    };
    length.map_or(rest.len(), |length| at + length)
}

/// Marks the lowest zero byte.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}

/// The number of bytes before the first one that cannot be in a word. `None` if there is none.
#[inline]
pub(super) fn word_length(rest: &[u8]) -> Option<usize> {
    rest.iter().position(|byte| !is_of_word(*byte))
}

#[inline]
pub(super) fn is_of_word(byte: u8) -> bool {
    OF_WORD[usize::from(byte)]
}

static OF_WORD: [bool; 256] = {
    let mut of_word = [false; 256];
    let mut byte: u8 = 0;
    while byte < 128 {
        of_word[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_');
        byte += 1;
    }
    of_word
};
