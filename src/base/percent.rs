//! The normal form of percent-encoding: in a segment of a path, each byte is either always escaped or never.
//!
//! RFC 3986, section 6.2.2, calls spellings equivalent only if they differ in unreserved characters. Servers decode all
//! escapes before they compare, so here `/a%3Ab` and `/a:b` are the same, too.

/// Whether a byte stands for itself in a segment: a `pchar` of RFC 3986, section 3.3.
pub const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',')
        || matches!(byte, b';' | b'=' | b':' | b'@')
}

/// Appends a byte in its normal form. Escapes are in upper case.
pub fn push(text: &mut String, byte: u8) {
    if is_plain(byte) {
        text.push(char::from(byte));
    } else {
        push_escaped(text, byte);
    }
}

/// In upper case.
pub fn push_escaped(text: &mut String, byte: u8) {
    text.push_str(percent_encoding::percent_encode_byte(byte));
}

/// Appends a part of a URI. Escapes stay, and only bytes that a URI cannot contain are escaped (RFC 3986, section 2).
pub fn push_as_written(text: &mut String, written: &str) {
    for byte in written.bytes() {
        match byte {
            b'/' | b'?' | b'%' => text.push(char::from(byte)),
            byte => push(text, byte),
        }
    }
}

/// The byte of two hexadecimal digits at the beginning of `text`.
pub fn unescape(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    match text {
        [high, low, ..] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_spelling_that_is_read_back() {
        for byte in 0..=u8::MAX {
            let mut text = String::new();
            push(&mut text, byte);
            match text.strip_prefix('%') {
                Some(digits) => assert_eq!(unescape(digits.as_bytes()), Some(byte)),
                None => assert_eq!(text.as_bytes(), [byte]),
            }
            assert_eq!(unescape(format!("{byte:02x}rest").as_bytes()), Some(byte));
        }
        let mut text = String::new();
        "a/é %;".bytes().for_each(|byte| push(&mut text, byte));
        assert_eq!(text, "a%2F%C3%A9%20%25;");
    }

    #[test]
    fn two_digits_are_wanted() {
        for text in ["", "4", "4g", "g4", "+1", " 1", "-0"] {
            assert_eq!(unescape(text.as_bytes()), None, "{text}");
        }
    }
}
