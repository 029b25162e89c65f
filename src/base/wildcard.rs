//! Patterns in which `*` stands for any text, also an empty one.

use memchr::memmem;

/// Every byte except `*` stands for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard(pub String);

impl Wildcard {
    /// The text may be any bytes.
    pub fn matches(&self, text: &[u8]) -> bool {
        let mut pieces = self.0.as_bytes().split(|byte| *byte == b'*');
        let Some(mut text) = pieces.next().and_then(|start| text.strip_prefix(start)) else { return false };
        let Some(end) = pieces.next_back() else { return text.is_empty() };
        for piece in pieces {
            let Some(place) = memmem::find(text, piece) else { return false };
            text = &text[place + piece.len()..];
        }
        text.ends_with(end)
    }

    /// Ignores the case of ASCII letters.
    pub fn matches_ignoring_case(&self, text: &[u8]) -> bool {
        Self(self.0.to_ascii_lowercase()).matches(&text.to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, fits, others) in [
            ("a", &["a"][..], &["", "b", "aa", "a*"][..]),
            ("", &[""], &["a"]),
            ("*", &["", "a", "/a/b"], &[]),
            ("**", &["", "a"], &[]),
            ("/v1/*", &["/v1/", "/v1/a/b"], &["/v1", "/v2/v1/"]),
            ("*.png", &[".png", "a.png"], &["a.png?", "png"]),
            ("a*a", &["aa", "aba"], &["a", "ab", ""]),
            ("a*b*c", &["abc", "a-b-c", "abbc", "abcc"], &["ac", "acb", "abca"]),
            ("ab*ba", &["abba", "ab-ba"], &["aba", "ab"]),
            ("a*b*b*c", &["a-b-b-c"], &["a-b-c"]),
            ("a**b", &["ab", "a-b"], &["a", "b"]),
        ] {
            let pattern = Wildcard(pattern.to_owned());
            fits.iter().for_each(|text| assert!(pattern.matches(text.as_bytes()), "{pattern:?} {text:?}"));
            others.iter().for_each(|text| assert!(!pattern.matches(text.as_bytes()), "{pattern:?} {text:?}"));
        }
    }

    #[test]
    fn case_matters_unless_it_is_ignored() {
        let pattern = Wildcard("gpt-4O*".to_owned());
        assert!(!pattern.matches(b"GPT-4o-mini") && pattern.matches_ignoring_case(b"GPT-4o-mini"));
        assert!(!pattern.matches_ignoring_case(b"gpt-4"));
    }
}
