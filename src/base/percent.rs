//! The normal form of percent-encoding: in a segment of a path, each byte is either always escaped or never.
//!
//! RFC 3986, section 6.2.2, calls spellings equivalent only if they differ in unreserved characters. Servers decode all
//! escapes before they compare, so here `/a%3Ab` and `/a:b` are the same, too.

use std::borrow::Cow;

use percent_encoding::percent_decode;

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

/// Decodes the escapes of a name or a value of a form, and each `+` to a space, as `form_urlencoded` does, but to bytes.
pub fn decode_form(written: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'+', written).is_none() {
        return percent_decode(written).into();
    }
    let spaced: Vec<u8> = written.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&spaced).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded_as_by_their_standard() {
        for written in ["", "a", "+", "%2B+%2b", "a%20b", "%", "%4", "%4g+%", "%25%34%31", "gr%C3%BCn", "gr\u{fc}n+x"] {
            let expected = form_urlencoded::parse(written.as_bytes()).next().map(|(name, _)| name.into_owned());
            assert_eq!(decode_form(written.as_bytes()), expected.unwrap_or_default().as_bytes(), "{written}");
        }
        assert_eq!(*decode_form(b"%FF+%fe"), *b"\xff \xfe");
        assert!(matches!(decode_form(b"plain"), Cow::Borrowed(b"plain")), "it is not copied");
    }

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
