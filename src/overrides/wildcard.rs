//! Texts with `*` for any text, matched byte by byte: clients send what is not UTF-8.

/// Whether all of `text` is like `pattern`. Takes at most as many steps as both lengths multiplied.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Where the last `*` is, and up to where in the text it has taken everything.
    let mut star: Option<(usize, usize)> = None;
    while seen < text.len() {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, seen));
                at += 1;
            }
            (Some(byte), _) if *byte == text[seen] => (at, seen) = (at + 1, seen + 1),
            // What follows the star does not fit here: let the star take one more.
            (_, Some((place, taken))) => {
                star = Some((place, taken + 1));
                (at, seen) = (place + 1, taken + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a"),
            ("a*", "a"),
            ("a*", "ab"),
            ("*a", "a"),
            ("*a", "ba"),
            ("a*b*c", "aXbbYc"),
            ("**", ""),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("a*", "b"), ("a*", ""), ("*a", "ab"), ("a*b", "a"), ("a*b*c", "acb"), ("", "a")] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        assert!(matches(b"a*", b"a\xff\x00"));
    }

    #[test]
    fn long_texts_take_bounded_time() {
        let (pattern, text) = ("a*".repeat(50) + "b", "a".repeat(64 << 10));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
