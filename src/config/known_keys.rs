//! The keys that exist, for a limit. Any other key was invented by a client, or is no longer in use. A file has them, one on each
//! line, as texts or as digests.
//!
//! There may be a million keys. They are secrets, so only the first half of the SHA-256 digest of each is stored, 16 bytes
//! per key. With 128 bits, nobody can find another key with the same half. Common tools can make SHA-256 digests for a file.

use std::io::{BufRead, BufReader};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

use super::key::Source;
use super::read::{Field, Wrong};
use super::regular_file::{NamedFile, RegularFile};
use super::written_key::WrittenPart;
use crate::base::byte_order_mark::without_mark;
use crate::base::hex;

const MOST_KEYS: usize = 1_000_000;
const LINE: &str = "a line is a key, `sha256:` with the digest of one, or a # comment";
const DIGEST: &str = "after `sha256:` come 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints them";

/// In bytes. A longer key is unknown without hashing.
pub const LONGEST: usize = 4096;

/// The first half of a SHA-256 digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(u128);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownKeys {
    /// Sorted, without duplicates.
    digests: Box<[Digest]>,
}

impl Digest {
    pub fn of(key: &[u8]) -> Self {
        let hash = digest(&SHA256, key);
        Self(hash.as_ref().iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    /// Parses the 64 hexadecimal digits of a whole digest. The error is the place, from 0, of the first character that is not
    /// such a digit or is too many; if there are too few, the length.
    pub fn parse(digits: &str) -> Result<Self, usize> {
        let wrong = digits.chars().take(64).position(|digit| !digit.is_ascii_hexdigit());
        let length = digits.chars().count();
        if let Some(place) = wrong.or((length != 64).then_some(length.min(64))) {
            return Err(place);
        }
        digits.get(..32).and_then(|half| u128::from_str_radix(half, 16).ok()).map(Self).ok_or(0)
    }
}

/// The whole digest of a key as 64 hexadecimal digits in lower case, by which other systems can look up a key that they do
/// not store.
pub fn whole_digest(key: &[u8]) -> String {
    hex::text(digest(&SHA256, key).as_ref())
}

impl KnownKeys {
    pub fn new(mut digests: Vec<Digest>) -> Self {
        digests.sort_unstable();
        digests.dedup();
        Self { digests: digests.into() }
    }

    /// Costs one hash, and about 20 comparisons for a million keys.
    pub fn contains(&self, key: &[u8]) -> bool {
        key.len() <= LONGEST && self.digests.binary_search(&Digest::of(key)).is_ok()
    }

    pub fn count(&self) -> usize {
        self.digests.len()
    }
}

/// `part` is the first one of the limit's key.
pub(super) fn read(field: &Field<'_>, part: WrittenPart<'_>) -> Option<Arc<KnownKeys>> {
    let file = NamedFile::new(field)?;
    if !part.sources.is_empty() && !part.sources.iter().any(Source::is_chosen_by_clients) {
        let help =
            "`known_keys` needs a first part of `key` that clients choose, like \"header:x-api-key | client-ip\"";
        field.report("`known_keys` has no effect with this `key`: clients cannot invent its values", help);
        return None;
    }
    let opened = RegularFile::open(&file.path).map_err(|error| file.unreadable(&error)).ok()?;
    Some(Arc::new(KnownKeys::new(lines(&file, BufReader::new(opened), part))))
}

/// The digests of all keys of a file, or of those before an error of reading.
fn lines(file: &NamedFile<'_>, mut text: impl BufRead, part: WrittenPart<'_>) -> Vec<Digest> {
    let (mut digests, mut bytes, mut number) = (Vec::new(), Vec::new(), 0);
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
        match line(&bytes, number == 1, part) {
            Ok(known) => digests.extend(known),
            Err((column, wrong)) => file.report(number, column, &wrong.message, &wrong.help),
        }
        if digests.len() > MOST_KEYS {
            file.report(number, 1, "the file has too many keys", &format!("allowed: {MOST_KEYS}"));
            return digests;
        }
    }
    // With an empty file, which may be an accident, every client's key would be unknown.
    if file.report_rest() && digests.is_empty() {
        file.report(number.max(1), 1, "the file has no keys", LINE);
    }
    digests
}

/// The digests of the values by which the key on a line is counted, if there is one; or the column and the problem. Messages show
/// no part of a line, since keys are secrets.
fn line(bytes: &[u8], is_first: bool, part: WrittenPart<'_>) -> Result<Vec<Digest>, (u64, Wrong)> {
    let bytes = if is_first { without_mark(bytes) } else { bytes };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let column = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).chars().count() as u64 + 1;
        (column, Wrong::new("the line is not UTF-8", LINE))
    })?;
    let key = text.trim();
    if key.is_empty() || key.starts_with('#') {
        return Ok(Vec::new());
    }
    let before = text.chars().take_while(|character| character.is_whitespace()).count();
    let at = |place: usize, message: &str, help: &str| ((before + place + 1) as u64, Wrong::new(message, help));
    if let Some(digits) = key.strip_prefix("sha256:") {
        let digest =
            Digest::parse(digits).map_err(|place| at("sha256:".len() + place, "this is not a digest", DIGEST))?;
        return Ok(vec![digest]);
    }
    if let Some(place) = key.chars().position(|character| character.is_whitespace() || character.is_control()) {
        let help = "a line must contain only one key; write a key with such characters as `sha256:` and its digest";
        return Err(at(place, "a key has a space or a control character in it", help));
    }
    if key.len() > LONGEST {
        return Err(at(0, &format!("a key has {} bytes", key.len()), &format!("allowed: at most {LONGEST} bytes")));
    }
    let values = part.values(key, false).map_err(|wrong| at(0, "no request has this key", &wrong.help))?;
    Ok(values.iter().map(|value| Digest::of(value.as_bytes())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyForms;

    fn line(bytes: &[u8], is_first: bool) -> Result<Vec<Digest>, (u64, Wrong)> {
        line_of(bytes, is_first, &[Source::Bearer])
    }

    fn line_of(bytes: &[u8], is_first: bool, sources: &[Source]) -> Result<Vec<Digest>, (u64, Wrong)> {
        super::line(bytes, is_first, WrittenPart { sources, forms: KeyForms::default() })
    }

    /// `printf %s abc | sha256sum` (FIPS 180-4, example).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_represents_its_key() {
        assert_eq!(Digest::parse(ABC), Ok(Digest::of(b"abc")));
        assert_eq!(Digest::parse(&ABC.to_uppercase()), Ok(Digest::of(b"abc")));
        assert_ne!(Digest::of(b"abc"), Digest::of(b"abd"));
        for (digits, place) in [
            (ABC[1..].to_owned(), 63),
            (format!("{ABC}0"), 64),
            (ABC.replace('8', "g"), 3),
            (ABC.replacen('b', "+", 1), 0),
            ("\u{e4}".to_owned() + ABC, 0),
            (String::new(), 0),
        ] {
            assert_eq!(Digest::parse(&digits), Err(place), "{digits}");
        }
    }

    #[test]
    fn it_knows_its_keys_and_no_others() {
        let long = "k".repeat(LONGEST);
        let known = KnownKeys::new([&b"abc"[..], b"", b"abc", b"\xff", long.as_bytes()].map(Digest::of).to_vec());
        assert_eq!(known.count(), 4);
        for key in [&b"abc"[..], b"", b"\xff", long.as_bytes()] {
            assert!(known.contains(key));
        }
        for key in [&b"ab"[..], b"abcd", b"\xfe", ABC.as_bytes(), (long + "k").as_bytes()] {
            assert!(!known.contains(key));
        }
        assert!(!KnownKeys::default().contains(b""));
    }

    #[test]
    fn a_million_keys_take_16_megabytes() {
        // Slow without optimization, so debug builds use a tenth of the keys.
        let count: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
        let known = KnownKeys::new((0..count).map(|number| Digest::of(number.to_string().as_bytes())).collect());
        assert_eq!((known.count(), size_of_val(&*known.digests)), (count, 16 * count));
        assert!((0..count).step_by(997).all(|number| known.contains(number.to_string().as_bytes())));
        assert!(!known.contains(count.to_string().as_bytes()));
    }

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
            assert_eq!(line(text.as_bytes(), false), Ok(vec![Digest::of(b"abc")]), "{text:?}");
        }
        assert_eq!(line("\u{feff}abc\r\n".as_bytes(), true), Ok(vec![Digest::of(b"abc")]));
        for text in ["", "\n", "  \r\n", "# abc", "  #abc\n"] {
            assert_eq!(line(text.as_bytes(), false), Ok(vec![]), "{text:?}");
        }
        let long = "k".repeat(LONGEST);
        assert_eq!(line(long.as_bytes(), false), Ok(vec![Digest::of(long.as_bytes())]));
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

    #[test]
    fn a_key_is_known_by_each_value_that_counts_requests_with_it() {
        let (host, tenant) = (Source::Host, Source::Capture("t".to_owned()));
        let known = |sources: &[Source], text: &str| line_of(text.as_bytes(), false, sources);
        assert_eq!(known(std::slice::from_ref(&host), "API.test:80"), Ok(vec![Digest::of(b"api.test")]));
        let both = [b"A.test", b"a.test"].map(|text| Digest::of(text)).to_vec();
        assert_eq!(known(&[Source::Bearer, host.clone()], "A.test"), Ok(both));
        assert_eq!(known(&[host], " a/b").map_err(|(column, _)| column), Err(2));
        let (_, wrong) = known(&[tenant], "a/b").unwrap_err();
        assert!(!wrong.message.contains("a/b") && !wrong.help.contains("a/b"), "{wrong:?}");
    }
}
