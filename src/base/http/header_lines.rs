//! Reads the lines of a head one by one, and knows those that arrive again and again. A server sends most lines again in each
//! response, and to find one here takes a fraction of the instructions that it takes to parse it.
//!
//! Each worker has a table with one place for each hash. A line takes the place of the one before it.

use std::cell::RefCell;

use http::{HeaderName, HeaderValue};
use memchr::memchr;

/// A power of two, with which common lines have places of their own.
const PLACES: usize = 128;
/// In bytes. Longer lines are parsed each time.
const LONGEST: usize = 256;

/// The last line of each hash.
pub struct HeaderLines([Option<Known>; PLACES]);

struct Known {
    /// As it was written, with its end.
    line: Box<[u8]>,
    name: HeaderName,
    value: HeaderValue,
    /// How many other lines have had this hash since one was found here.
    others: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderLine {
    Field,
    /// The empty line after the last field.
    End,
    Incomplete,
    Invalid,
}

thread_local! {
    static LINES: RefCell<HeaderLines> = const { RefCell::new(HeaderLines([const { None }; PLACES])) };
}

impl HeaderLines {
    /// Calls `use_lines` with the lines of this worker.
    pub fn with<R>(use_lines: impl FnOnce(&mut Self) -> R) -> R {
        LINES.with_borrow_mut(use_lines)
    }

    /// Removes a line from `rest`, which is the line with this number of its head. A field goes to `take`.
    pub fn read(
        &mut self,
        number: usize,
        rest: &mut &[u8],
        take: impl FnOnce(&HeaderName, &HeaderValue),
    ) -> HeaderLine {
        if let Some(after) = rest.strip_prefix(b"\r\n") {
            *rest = after;
            return HeaderLine::End;
        }
        // The number tells lines apart whose names begin alike. Their values seldom matter, so a new one replaces the old one.
        let beginning = rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let hash = (beginning ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let place = &mut self.0[hash as usize % PLACES];
        let mut others = 2;
        if let Some(known) = place {
            if let Some(after) = rest.strip_prefix(&*known.line) {
                (*rest, known.others) = (after, 0);
                take(&known.name, &known.value);
                return HeaderLine::Field;
            }
            known.others = known.others.saturating_add(1);
            others = known.others;
        }
        let whole = *rest;
        let Some(text) = next_line(rest) else { return HeaderLine::Incomplete };
        if text.is_empty() {
            return HeaderLine::End;
        }
        let Some((name, value)) = field(text, place.as_ref()) else { return HeaderLine::Invalid };
        take(&name, &value);
        let line = &whole[..whole.len() - rest.len()];
        // A line that is always different is seldom kept, since that would be in vain.
        if others > 1 && others.is_power_of_two() && line.len() <= LONGEST {
            *place = Some(Known { line: line.into(), name, value, others });
        }
        HeaderLine::Field
    }
}

/// Removes a line from `bytes` and returns it without its end; `None` if it is incomplete.
pub fn next_line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (line, after) = bytes.split_at(memchr(b'\n', bytes)?);
    *bytes = &after[1..];
    Some(line.strip_suffix(b"\r").unwrap_or(line))
}

/// If `known` has the same name, a copy of that needs no allocation.
fn field(line: &[u8], known: Option<&Known>) -> Option<(HeaderName, HeaderValue)> {
    let colon = memchr(b':', line)?;
    let name = match known.filter(|known| known.line.starts_with(&line[..=colon])) {
        Some(known) => known.name.clone(),
        None => HeaderName::from_bytes(&line[..colon]).ok()?,
    };
    let mut value = &line[colon + 1..];
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    Some((name, HeaderValue::from_bytes(value).ok()?))
}

#[cfg(test)]
mod tests {
    use httparse::Status;
    use proptest::prelude::*;

    use super::*;

    /// The fields of a head, and what comes after them.
    fn read(lines: &mut HeaderLines, mut head: &[u8]) -> (Vec<(HeaderName, HeaderValue)>, HeaderLine) {
        let mut fields = Vec::new();
        loop {
            let number = fields.len();
            let line = lines.read(number, &mut head, |name, value| fields.push((name.clone(), value.clone())));
            if line != HeaderLine::Field {
                return (fields, line);
            }
        }
    }

    fn empty() -> HeaderLines {
        HeaderLines([const { None }; PLACES])
    }

    fn kept(lines: &HeaderLines) -> usize {
        lines.0.iter().flatten().count()
    }

    #[test]
    fn nearly_all_common_lines_have_places_of_their_own() {
        let head = "Server: nginx/1.22.1\r\nDate: Sun, 29 Nov 2026 11:35:20 GMT\r\nContent-Type: text/html; charset=utf-8\r\n\
                    Content-Length: 5120\r\nConnection: keep-alive\r\nCache-Control: no-store\r\nETag: \"3f80f-1b6\"\r\n\
                    Last-Modified: Sun, 29 Nov 2026 11:35:20 GMT\r\nVary: Accept-Encoding\r\nSet-Cookie: a=b\r\n\
                    Strict-Transport-Security: max-age=63072000\r\nX-Content-Type-Options: nosniff\r\n\
                    X-Frame-Options: DENY\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Methods: GET\r\n\r\n";
        let mut lines = empty();
        let (fields, _) = read(&mut lines, head.as_bytes());
        assert!(fields.len() == 15 && kept(&lines) >= 13, "{}", kept(&lines));
    }

    #[test]
    fn a_line_is_kept_unless_it_is_always_different() {
        let mut lines = empty();
        let head = |number: usize| format!("date: {}\r\nx-request-id: {number:05}\r\n\r\n", number / 100);
        let mut was_kept = [0; 2];
        for number in 0..1000 {
            let head = head(number);
            let is_kept = |line: &str| lines.0.iter().flatten().any(|known| *known.line == *line.as_bytes());
            for (line, count) in head.split_inclusive("\r\n").zip(&mut was_kept) {
                *count += usize::from(is_kept(line));
            }
            read(&mut lines, head.as_bytes());
            assert!(kept(&lines) <= 2);
        }
        // Each date is new at first, and kept when it comes again.
        assert_eq!(was_kept, [981, 0]);
    }

    proptest! {
        #[test]
        fn reads_what_the_library_reads_whatever_came_before(
            heads in prop::collection::vec("(([aA]-b|x|Content-Type):[ \t]?[aé:\x7f\r]{0,2}[a-c ]{0,9}\r?\n|[a :]{0,9}\n?){0,4}(\r?\n)?", 1..5),
        ) {
            let mut lines = empty();
            for head in heads.iter().chain(&heads).chain(&heads) {
                let mut fields = [httparse::EMPTY_HEADER; 16];
                let expected = httparse::parse_headers(head.as_bytes(), &mut fields);
                let (found, last) = read(&mut lines, head.as_bytes());
                match expected {
                    Ok(Status::Complete((_, expected))) => {
                        let expected = expected.iter().map(|field| (field.name.to_ascii_lowercase(), field.value));
                        let found = found.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes()));
                        prop_assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
                        prop_assert_eq!(last, HeaderLine::End);
                    }
                    Ok(Status::Partial) => prop_assert_eq!(last, HeaderLine::Incomplete),
                    // The library does not wait for the end of the line.
                    Err(_) => prop_assert!(matches!(last, HeaderLine::Invalid | HeaderLine::Incomplete)),
                }
            }
        }
    }
}
