//! `known_keys`: a file of the keys that exist, one on each line, as texts or as digests.

use std::io::{BufRead, BufReader};
use std::sync::Arc;

use crate::base::byte_order_mark::without_mark;
use crate::config::file::named_file::{MOST_REPORTED, NamedFile};
use crate::config::known_keys::{Digest, KnownKeys, LONGEST};
use crate::config::read::{Section, Wrong};
use crate::config::regular_file::RegularFile;
use crate::config::settings::limit;
use crate::config::{Key, Source};

const MOST_KEYS: usize = 1_000_000;
const LINE: &str = "a line is a key, `sha256:` with the digest of one, or a # comment";
const DIGEST: &str = "after `sha256:` come 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints them";

/// `key` is that of the limit.
pub(super) fn read(section: &Section<'_>, key: Option<&Key>) -> Option<Arc<KnownKeys>> {
    let field = section.field(&limit::known_keys)?;
    let file = NamedFile::new(&field)?;
    let first = key.and_then(|key| key.parts.first());
    if first.is_some_and(|sources| !sources.iter().any(Source::is_chosen_by_clients)) {
        let help =
            "`known_keys` needs a first part of `key` that clients choose, like \"header:x-api-key | client-ip\"";
        field.report("`known_keys` has no effect with this `key`: clients cannot invent its values", help);
        return None;
    }
    match RegularFile::open(&file.path()) {
        Ok(opened) => Some(Arc::new(KnownKeys::new(lines(&file, BufReader::new(opened))))),
        Err(error) => {
            file.unreadable(&error);
            None
        }
    }
}

/// The digests of all keys of a file, or of those before an error of reading.
fn lines(file: &NamedFile<'_>, mut text: impl BufRead) -> Vec<Digest> {
    let (mut digests, mut bytes, mut number, mut problems) = (Vec::new(), Vec::new(), 0, 0);
    loop {
        bytes.clear();
        match text.read_until(b'\n', &mut bytes) {
            Ok(0) => break,
            Ok(_) => number += 1,
            Err(error) => {
                file.unreadable(&error);
                return digests;
            }
        }
        match line(&bytes, number == 1) {
            Ok(digest) => digests.extend(digest),
            Err((column, wrong)) => {
                problems += 1;
                if problems <= MOST_REPORTED {
                    file.report(number, column, &wrong.message, &wrong.help);
                }
            }
        }
        if digests.len() > MOST_KEYS {
            file.report(number, 1, "the file has too many keys", &format!("allowed: {MOST_KEYS}"));
            return digests;
        }
    }
    file.report_rest(problems);
    // With an empty file, which may be an accident, every client's key would be unknown.
    if digests.is_empty() && problems == 0 {
        file.report(number.max(1), 1, "the file has no keys", LINE);
    }
    digests
}

/// The digest of the key on a line, if there is one; or the column and the problem. Messages show no part of a line, since keys
/// are secrets.
fn line(bytes: &[u8], is_first: bool) -> Result<Option<Digest>, (u64, Wrong)> {
    let bytes = if is_first { without_mark(bytes) } else { bytes };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let column = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).chars().count() as u64 + 1;
        (column, Wrong::new("the line is not UTF-8", LINE))
    })?;
    let key = text.trim();
    if key.is_empty() || key.starts_with('#') {
        return Ok(None);
    }
    let before = text.chars().take_while(|character| character.is_whitespace()).count();
    let at = |place: usize, message: &str, help: &str| ((before + place + 1) as u64, Wrong::new(message, help));
    if let Some(digits) = key.strip_prefix("sha256:") {
        let digest =
            Digest::parse(digits).map_err(|place| at("sha256:".len() + place, "this is not a digest", DIGEST))?;
        return Ok(Some(digest));
    }
    if let Some(place) = key.chars().position(|character| character.is_whitespace() || character.is_control()) {
        let help = "a line must contain only one key; write a key with such characters as `sha256:` and its digest";
        return Err(at(place, "a key has a space or a control character in it", help));
    }
    if key.len() > LONGEST {
        let help = format!("allowed: at most {LONGEST} bytes");
        return Err(at(0, &format!("a key has {} bytes", key.len()), &help));
    }
    Ok(Some(Digest::of(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_keys_digests_or_comments() {
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for text in [
            "abc",
            "abc\n",
            " abc \t\r\n",
            abc,
            "\tsha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\n",
        ] {
            assert_eq!(line(text.as_bytes(), false), Ok(Some(Digest::of(b"abc"))), "{text:?}");
        }
        assert_eq!(line("\u{feff}abc\r\n".as_bytes(), true), Ok(Some(Digest::of(b"abc"))));
        for text in ["", "\n", "  \r\n", "# abc", "  #abc\n"] {
            assert_eq!(line(text.as_bytes(), false), Ok(None), "{text:?}");
        }
        let long = "k".repeat(LONGEST);
        assert_eq!(line(long.as_bytes(), false), Ok(Some(Digest::of(long.as_bytes()))));
        for (text, column) in [
            (&b"abc # partner 7"[..], 4),
            (b"  a\0b\n", 4),
            (b"\xc3\xa4\xff", 2),
            (b" sha256:", 9),
            (b"sha256:12345g", 13),
            (b"sha256: ba78", 8),
            ((abc.to_owned() + "0\n").as_bytes(), 72),
            ((" ".to_owned() + &long + "k").as_bytes(), 2),
        ] {
            let shown = String::from_utf8_lossy(text);
            assert_eq!(line(text, false).map_err(|(column, _)| column), Err(column), "{shown:?}");
        }
    }
}
