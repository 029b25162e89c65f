//! Makes foreign texts safe to print: a client's key or a server's answer can contain control sequences for terminals.

use std::borrow::Cow;
use std::fmt::Write as _;

/// In characters.
const LONGEST: usize = 256;

/// Escapes control characters, and characters that change the direction of a line. Cuts a long text.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len().min(LONGEST));
    for (at, character) in text.chars().enumerate() {
        if at == LONGEST {
            safe.push('…');
            break;
        }
        if character.is_control() || is_invisible(character) {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Whether a character changes how others are shown, or ends a line for some readers.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
    )
}

/// Escapes in a line of JSON the control characters that JSON allows, and characters that change the direction of a line.
/// ASCII control characters stay: JSON has escaped them already, and the colours of a log consist of some.
pub fn with_escapes(line: &[u8]) -> Cow<'_, [u8]> {
    // All of these characters begin with a byte from 0xc2 on, or are DEL. Most lines have none.
    if line.iter().all(|byte| *byte < 0x7f) {
        return Cow::Borrowed(line);
    }
    let Ok(text) = std::str::from_utf8(line) else { return Cow::Borrowed(line) };
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if character >= '\u{7f}' && character.is_control() || is_invisible(character) {
            // All of these characters are in the first plane. Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_stays_what_it_is() {
        let text = "k\u{9b}2J\u{7f}\u{85}\u{2028}\u{202e}ä€\u{1f980}\u{feff}";
        let line = serde_json::to_vec(text).unwrap();
        let escaped = with_escapes(&line);
        let shown = "\"k\\u009b2J\\u007f\\u0085\\u2028\\u202eä€\u{1f980}\\ufeff\"";
        assert_eq!(std::str::from_utf8(&escaped).unwrap(), shown);
        assert_eq!(serde_json::from_slice::<String>(&escaped).unwrap(), text);
        for same in [&b"{\"a\":1}\n"[..], b"\x1b[2m12:00\x1b[0m \xff", b""] {
            assert!(matches!(with_escapes(same), Cow::Borrowed(line) if line == same));
        }
    }

    #[test]
    fn nothing_controls_a_terminal() {
        assert_eq!(printable("k-1 ä\"<>"), "k-1 ä\"<>");
        assert_eq!(printable("\x1b[2Ja\nb\u{202e}c\u{9b}"), "\\u{1b}[2Ja\\u{a}b\\u{202e}c\\u{9b}");
        assert_eq!(printable(&"x".repeat(LONGEST)).len(), LONGEST);
        assert_eq!(printable(&"x".repeat(LONGEST + 5)), "x".repeat(LONGEST) + "…");
    }
}
