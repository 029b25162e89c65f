//! Finds an array without an end. The parser takes all that follows for its elements, so its own errors are about other lines.

use std::ops::Range;

use super::texts::place;

/// The first array that contains a line that cannot be an element: the place of the bracket, and the number of that line.
pub(super) fn array(text: &str) -> Option<(Range<usize>, usize)> {
    let mut open: Vec<Range<usize>> = Vec::new();
    // Tables in an array may have lines of their own.
    let (mut is_value, mut braces, mut at) = (false, 0_usize, 0);
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'\n' => {
                is_value &= !open.is_empty();
                if let Some(bracket) = open.first()
                    && braces == 0
                    && begins_something_else(text[at + 1..].lines().next()?)
                {
                    return Some((bracket.clone(), place(text, at + 1).0));
                }
            }
            b'#' => at += text[at..].find('\n')? - 1,
            b'"' | b'\'' => at += string(&text[at..])?,
            b'=' => is_value = true,
            b'[' if is_value => open.push(at..at + 1),
            b']' if is_value => _ = open.pop(),
            b'{' => braces += 1,
            b'}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether a line cannot be an element of an array: the title of a table, or a key with a value.
fn begins_something_else(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().trim();
    let is_name = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let inner = |text| str::strip_suffix(str::strip_prefix(text, "[")?, "]");
    let header = inner(line).map(|title| inner(title).unwrap_or(title));
    // An array of flags in an array is no title.
    header.is_some_and(|title| is_name(title) && !["true", "false"].contains(&title))
        || line.split_once('=').is_some_and(|(key, _)| is_name(key.trim()))
}

/// The length of a string without its last byte; `None` if the string has no end.
fn string(text: &str) -> Option<usize> {
    let mark = &text[..1];
    let long = mark.repeat(3);
    let end = if text.starts_with(&long) { &long } else { mark };
    let mut at = end.len();
    while !text[at..].starts_with(end) {
        let character = text[at..].chars().next()?;
        if end.len() == 1 && character == '\n' {
            return None;
        }
        at += character.len_utf8();
        if mark == "\"" && character == '\\' {
            at += text[at..].chars().next()?.len_utf8();
        }
    }
    Some(at + end.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_without_an_end_is_found_where_it_begins() {
        for (text, line, then) in [
            ("[a]\nb = [1, 2\n[c]\nd = [1]\n", 2, 3),
            ("b = [\"x\",\n  \"y\" # ]\n\nc = 3\n", 1, 4),
            ("b = [{ k = \"]\" }\n[[d]]\n", 1, 2),
            ("a = \"\"\"[\n\"\"\"\nb = [[1], [2]\nc.d = '['\n", 3, 4),
            ("# [\na = '\\'\nb = [\n[limits.x] # c\n", 3, 4),
        ] {
            let (bracket, next) = array(text).unwrap();
            assert_eq!((place(text, bracket.start).0, next), (line, then), "{text}");
        }
        for text in [
            "",
            "[a]\nb = [1,\n2]\n[[c]]\nd = [\n[1],\n[true],\n[true]\n, \"x = 3\",\n]\n[e]\n",
            "a = \"b\nc = [\n",
            "[a\nb = 3\n",
            "a = [\n  { b = 1,\n    c = 2 },\n]\n",
            "a = \"\\\"[\"\nb = 1\n",
            "a = '''\n[\n'''\nb = 1",
            "a = [ # ]",
        ] {
            assert!(array(text).is_none(), "{text}");
        }
    }

    #[test]
    fn nothing_is_cut_within_a_character() {
        for text in ["a = [\u{e4}\n\u{e4} = 1\n", "\u{e4}\"\\\u{e4}", "'\u{e4}", "#\u{e4}", "#", "#\n"] {
            let _ = array(text);
        }
    }
}
