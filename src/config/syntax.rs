//! Words the errors of the parser for people who do not know the grammar.
//!
//! If an array has no end, the parser takes all that follows for its elements, so its own errors are about other lines. Then only
//! that array is reported.

use std::ops::Range;

use super::report::{Problem, within};
use super::texts::place;

/// How the parser calls a key without `=`.
const NO_VALUE: &str = "key with no value";
const LINE: &str = "a line of TOML is [section], key = value or # comment";

/// Word processors and web pages write these instead of `"` and `'`.
const TYPOGRAPHIC_QUOTES: [char; 10] = ['“', '”', '„', '‟', '«', '»', '‘', '’', '‚', '″'];

/// Unlike other syntax errors, a duplicate key leaves the rest of the file readable.
pub(super) fn is_duplicate(error: &toml::de::Error) -> bool {
    error.message() == "duplicate key"
}

/// `text` begins at `start` in the texts of the configuration.
pub(super) fn all(text: &str, start: usize, errors: &[toml::de::Error]) -> Vec<Problem> {
    let mut repeated = None;
    // If a table is defined twice, its repeated keys are not separate mistakes.
    let is_reported = |error: &&toml::de::Error| {
        let at = within(text, &error.span().unwrap_or_default()).start;
        if !is_duplicate(error) {
            return true;
        }
        if table_title(text, at).is_some() {
            repeated = Some(at);
            return true;
        }
        repeated.and_then(|table| text.get(table..at)).is_none_or(|between| between.contains("\n["))
    };
    let is_broken = errors.iter().any(|error| !is_duplicate(error));
    if let Some((span, line)) = is_broken.then(|| unclosed_array(text)).flatten() {
        // All other errors are about lines that the parser took for parts of the array.
        let help = format!("add the ] that is missing: line {line} begins something else");
        return vec![Problem::new(span, "syntax error: this array is not closed", help).shifted(start)];
    }
    let start_of = |error: &toml::de::Error| within(text, &error.span().unwrap_or_default()).start;
    let mut reported: Vec<_> = errors.iter().filter(is_reported).collect();
    reported.sort_by_key(|error| start_of(error));
    // What follows the first mistake of a line is no mistake of its own if the line is of another format.
    reported.dedup_by(|later, earlier| {
        later.message().starts_with(NO_VALUE) && !text[start_of(earlier)..start_of(later)].contains('\n')
    });
    reported.into_iter().map(|error| syntax(text, error).shifted(start)).collect()
}

/// Words the error for people who do not know the grammar.
fn syntax(text: &str, error: &toml::de::Error) -> Problem {
    let span = within(text, &error.span().unwrap_or(text.len()..text.len()));
    let written = &text[span.clone()];
    if is_duplicate(error) {
        return duplicate(text, span);
    }
    let kinds =
        ["string values must be quoted", "invalid boolean", "invalid integer", "invalid float", "invalid datetime"];
    let value = kinds.iter().any(|kind| error.message().starts_with(kind));
    if text[span.start..].starts_with(TYPOGRAPHIC_QUOTES) {
        let plain =
            written.trim_start_matches(TYPOGRAPHIC_QUOTES).trim_end_matches(TYPOGRAPHIC_QUOTES).trim_end_matches('"');
        let example = if plain.is_empty() { "like \"10s\"".to_owned() } else { format!("{plain:?}") };
        let help = format!("write plain quotes, {example}");
        return Problem::new(span, "syntax error: these are typographic quotes", help);
    }
    let (message, help) = match error.message() {
        _ if written.starts_with(['\u{a0}', '\u{202f}', '\u{200b}', '\u{feff}']) => {
            ("this is an invisible character", "write a plain space, or remove it")
        }
        _ if value && written.is_empty() => ("a value is missing", "write one after the ="),
        _ if value => ("this is not a value", "a text needs quotes, like \"10s\" or \"127.0.0.1:8080\""),
        _ if text[span.start..].starts_with(':') || text[..span.start].trim_end_matches(' ').ends_with(':') => {
            ("a key and its value are joined by =", LINE)
        }
        message if message.starts_with(NO_VALUE) || message.starts_with("invalid unquoted key") => (message, LINE),
        message => (message, ""),
    };
    Problem::new(span, format!("syntax error: {message}"), help)
}

/// Says what is defined twice, and how to correct that.
fn duplicate(text: &str, span: Range<usize>) -> Problem {
    let (message, help) = match table_title(text, span.start) {
        Some(title) => {
            let help = match title.rsplit_once('.') {
                Some((kind, _)) if !kind.contains('.') || kind.rsplit('.').next() == Some("tiers") => {
                    format!("join the two, or give one of them another name: [{kind}.NAME]")
                }
                _ => "join the two: each [table] is written once".to_owned(),
            };
            (format!("[{title}] is defined twice"), help)
        }
        None => {
            let help = "remove one of them: each key is written once in its table";
            (format!("`{}` is defined twice", &text[span.clone()]), help.to_owned())
        }
    };
    Problem::new(span, message, help)
}

/// The title of the table that begins on this line: `limits.l` for `[limits.l]`.
fn table_title(text: &str, offset: usize) -> Option<&str> {
    let line_start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    let title = text[line_start..].lines().next()?.trim_start().strip_prefix('[')?;
    // Two brackets begin an element of a list, whose title may occur many times.
    title.split(']').next().filter(|title| !title.starts_with('['))
}

/// The first array that contains a line that cannot be an element: the place of the bracket, and the number of that line.
fn unclosed_array(text: &str) -> Option<(Range<usize>, usize)> {
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
            let (bracket, next) = unclosed_array(text).unwrap();
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
            assert!(unclosed_array(text).is_none(), "{text}");
        }
    }

    #[test]
    fn nothing_is_cut_within_a_character() {
        for text in ["a = [\u{e4}\n\u{e4} = 1\n", "\u{e4}\"\\\u{e4}", "'\u{e4}", "#\u{e4}", "#", "#\n"] {
            let _ = unclosed_array(text);
        }
    }
}
