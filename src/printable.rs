//! Texts of others that are safe to print: a key of a client or the answer of a server can contain sequences that control a
//! terminal.

/// The most characters of a text that are kept.
const LONGEST: usize = 256;

/// The text with control characters, and characters that change the direction of a line, as escapes. A long text is cut.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len().min(LONGEST));
    for (at, character) in text.chars().enumerate() {
        if at == LONGEST {
            safe.push('…');
            break;
        }
        let is_invisible = matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        );
        if character.is_control() || is_invisible {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_controls_a_terminal() {
        assert_eq!(printable("k-1 ä\"<>"), "k-1 ä\"<>");
        assert_eq!(printable("\x1b[2Ja\nb\u{202e}c\u{9b}"), "\\u{1b}[2Ja\\u{a}b\\u{202e}c\\u{9b}");
        assert_eq!(printable(&"x".repeat(LONGEST)).len(), LONGEST);
        assert_eq!(printable(&"x".repeat(LONGEST + 5)), "x".repeat(LONGEST) + "…");
    }
}
