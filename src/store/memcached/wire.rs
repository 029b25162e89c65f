//! The commands of Memcached's meta protocol that counting takes, written into one buffer, and their answers, read in
//! place.
//!
//! `mg` reads a value, `ma` adds to a count and creates it where it is missing, `ms` replaces a value that nobody has
//! changed since or appends to it. Each is answered by one line, or by a line and a value, in the order in which they were sent:
//! <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>.

use memchr::memchr;

/// The longest line of an answer; what goes on for longer is none.
const LONGEST_LINE: usize = 2048;
/// The largest value; Memcached itself draws the line at 1 MiB unless told otherwise.
const LARGEST_VALUE: usize = 64 << 20;

/// The command that asks for nothing, to see that somebody answers, and its answer.
pub(super) const NOTHING: (&[u8], &[u8]) = (b"mn\r\n", b"MN\r\n");

/// Reads the count of that name.
pub(super) fn count(name: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    name(out);
    out.extend_from_slice(b" v\r\n");
}

/// Sees whether there is a count of that name.
pub(super) fn look(name: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    name(out);
    out.extend_from_slice(b"\r\n");
}

/// Adds to the count of that name and reads it then. Where it is missing, it is begun and lives for `lifetime`. What
/// [`amounts`] writes goes with it.
pub(super) fn add(name: impl FnOnce(&mut Vec<u8>), lifetime: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ma ");
    name(out);
    out.extend_from_slice(b" v");
    number(b" N", lifetime.into(), out);
}

/// How much is added to a count, or at what it is begun.
pub(super) fn amounts(amount: u64, initial: u64, out: &mut Vec<u8>) {
    number(b" D", amount, out);
    number(b" J", initial, out);
    out.extend_from_slice(b"\r\n");
}

/// Takes from the count of that name, if there is one, and reads it then. What [`amount`] writes goes with it.
pub(super) fn subtract(name: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"ma ");
    name(out);
    out.extend_from_slice(b" v MD");
}

/// How much is taken from a count.
pub(super) fn amount(amount: u64, out: &mut Vec<u8>) {
    number(b" D", amount, out);
    out.extend_from_slice(b"\r\n");
}

/// Reads the value of that name and what stands for its version.
pub(super) fn value(name: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    name(out);
    out.extend_from_slice(b" v c\r\n");
}

/// Appends to the value of that name, if there is one.
pub(super) fn append(name: impl FnOnce(&mut Vec<u8>), more: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"ms ");
    name(out);
    number(b" ", more.len() as u64, out);
    out.extend_from_slice(b" MA\r\n");
    out.extend_from_slice(more);
    out.extend_from_slice(b"\r\n");
}

/// Reads the value of that name and what stands for its version, and lets it live for `lifetime` from now on.
pub(super) fn value_kept(name: impl FnOnce(&mut Vec<u8>), lifetime: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    name(out);
    number(b" v c T", lifetime.into(), out);
    out.extend_from_slice(b"\r\n");
}

/// Replaces the value of that name if it still is of this version, or creates it where there was none.
pub(super) fn swap(
    name: impl FnOnce(&mut Vec<u8>),
    value: &[u8],
    version: Option<u64>,
    lifetime: u32,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"ms ");
    name(out);
    number(b" ", value.len() as u64, out);
    number(b" T", lifetime.into(), out);
    match version {
        Some(version) => number(b" C", version, out),
        None => out.extend_from_slice(b" ME"),
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn number(before: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// What Memcached answers to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// There is no such value.
    Missing,
    /// This is the value, and what stands for its version if that was asked for.
    Value(&'a [u8], Option<u64>),
    /// It is done.
    Done,
    /// It is not done, because somebody else was faster.
    Refused,
    /// It is not done, and this is what Memcached says about it.
    Failed(&'a str),
}

/// What is no answer of Memcached's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbage;

impl Answer<'_> {
    /// The count that was read, if there is one. What is no number counts for nothing.
    pub(super) fn count(self) -> Option<u64> {
        match self {
            // Memcached fills up with spaces what was longer before.
            Self::Value(text, _) => Some(digits(text.trim_ascii()).unwrap_or(0)),
            _ => None,
        }
    }
}

/// The first answer in `input` and its length; `None` while it has not come in full.
pub(super) fn answer(input: &[u8]) -> Result<Option<(Answer<'_>, usize)>, Garbage> {
    match input {
        // Nearly all that is answered to those who count: nothing yet, or a number of less than ten digits.
        [b'E', b'N', b'\r', b'\n', ..] => Ok(Some((Answer::Missing, 4))),
        [b'H', b'D', b'\r', b'\n', ..] => Ok(Some((Answer::Done, 4))),
        [b'V', b'A', b' ', size @ b'0'..=b'9', b'\r', b'\n', ..] => value_of(input, 6, usize::from(size - b'0'), None),
        _ => any_answer(input),
    }
}

fn any_answer(input: &[u8]) -> Result<Option<(Answer<'_>, usize)>, Garbage> {
    let Some(end) = memchr(b'\n', &input[..input.len().min(LONGEST_LINE)]) else {
        return if input.len() < LONGEST_LINE { Ok(None) } else { Err(Garbage) };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(Garbage)?;
    let length = end + 1;
    if let Some(rest) = line.strip_prefix(b"VA ") {
        let mut words = rest.split(|byte| *byte == b' ');
        let size = words.next().and_then(digits).and_then(|size| usize::try_from(size).ok()).ok_or(Garbage)?;
        let version = words.find_map(|word| word.strip_prefix(b"c"));
        let version = version.map(|word| digits(word).ok_or(Garbage)).transpose()?;
        return value_of(input, length, size, version);
    }
    let answer = match line {
        _ if line.starts_with(b"HD") => Answer::Done,
        b"EN" | b"NF" => Answer::Missing,
        b"EX" | b"NS" => Answer::Refused,
        _ if [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| line.starts_with(word)) => {
            Answer::Failed(str::from_utf8(line).map_err(|_| Garbage)?)
        }
        _ => return Err(Garbage),
    };
    Ok(Some((answer, length)))
}

/// Takes the value of that size which follows its line, and ends a line itself.
fn value_of(
    input: &[u8],
    line: usize,
    size: usize,
    version: Option<u64>,
) -> Result<Option<(Answer<'_>, usize)>, Garbage> {
    if size > LARGEST_VALUE {
        return Err(Garbage);
    }
    let length = line + size + 2;
    let Some(value) = input.get(line..length) else { return Ok(None) };
    let value = value.strip_suffix(b"\r\n").ok_or(Garbage)?;
    Ok(Some((Answer::Value(value, version), length)))
}

fn digits(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn name(out: &mut Vec<u8>) {
        out.extend_from_slice(b"gw:l:k#s.7");
    }

    #[test]
    fn commands_are_those_of_the_protocol() {
        assert_eq!(written(|out| count(name, out)), "mg gw:l:k#s.7 v\r\n");
        assert_eq!(written(|out| look(name, out)), "mg gw:l:k#s.7\r\n");
        assert_eq!(written(|out| add(name, 60, out)), "ma gw:l:k#s.7 v N60");
        assert_eq!(written(|out| amounts(3, 12, out)), " D3 J12\r\n");
        assert_eq!(written(|out| subtract(name, out)), "ma gw:l:k#s.7 v MD");
        assert_eq!(written(|out| amount(3, out)), " D3\r\n");
        assert_eq!(written(|out| value(name, out)), "mg gw:l:k#s.7 v c\r\n");
        assert_eq!(written(|out| swap(name, b"\x01\r\n", Some(9), 60, out)), "ms gw:l:k#s.7 3 T60 C9\r\n\x01\r\n\r\n");
        assert_eq!(written(|out| value_kept(name, 60, out)), "mg gw:l:k#s.7 v c T60\r\n");
        assert_eq!(written(|out| append(name, b"\x01\r\n", out)), "ms gw:l:k#s.7 3 MA\r\n\x01\r\n\r\n");
        assert_eq!(written(|out| swap(name, b"", None, 60, out)), "ms gw:l:k#s.7 0 T60 ME\r\n\r\n");
    }

    #[test]
    fn answers_are_read_in_place() {
        let read = |input: &'static [u8]| answer(input).unwrap();
        assert_eq!(read(b"EN\r\nHD\r\n"), Some((Answer::Missing, 4)));
        assert_eq!(read(b"HD c6\r\n"), Some((Answer::Done, 7)));
        assert_eq!(read(b"EX\r\n"), Some((Answer::Refused, 4)));
        assert_eq!(read(b"VA 2 c5\r\n\r\n\r\nEN"), Some((Answer::Value(b"\r\n", Some(5)), 13)));
        let failed = "SERVER_ERROR out of memory storing object";
        assert_eq!(read(b"SERVER_ERROR out of memory storing object\r\n"), Some((Answer::Failed(failed), 43)));
        assert_eq!(read(b"VA 3 \r\n12 \r\n").unwrap().0.count(), Some(12));
        assert_eq!(read(b"VA 3\r\nabc\r\n").unwrap().0.count(), Some(0));
        assert_eq!(read(b"VA 20\r\n99999999999999999999\r\n").unwrap().0.count(), Some(0));
        assert_eq!(read(b"EN\r\n").unwrap().0.count(), None);
    }

    #[test]
    fn what_has_not_come_in_full_is_waited_for() {
        let whole = b"VA 12 c77\r\n123456789012\r\n";
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length]), Ok(None), "{length}");
        }
        assert!(answer(whole).unwrap().is_some());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\n",
            b"EN\n",
            b"VA\r\n",
            b"VA x\r\n",
            b"VA 1\r\n12\r\n",
            b"VA 1 cx\r\n1\r\n",
            b"VA 99999999999\r\n",
            b"SERVER_ERROR \xff\r\n",
            &[b'x'; LONGEST_LINE],
        ] {
            assert_eq!(answer(input), Err(Garbage), "{}", String::from_utf8_lossy(input));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_none(input in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((_, length))) = answer(&input) {
                prop_assert!(length <= input.len());
            }
        }

        #[test]
        fn any_value_is_read_as_it_was_written(value in prop::collection::vec(any::<u8>(), 0..200), version: u64) {
            let mut input = format!("VA {} c{version}\r\n", value.len()).into_bytes();
            input.extend_from_slice(&value);
            input.extend_from_slice(b"\r\n");
            prop_assert_eq!(answer(&input), Ok(Some((Answer::Value(&value, Some(version)), input.len()))));
        }
    }
}
