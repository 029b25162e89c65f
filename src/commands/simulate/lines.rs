//! The lines of a file or of standard input, also compressed by gzip, without what container runtimes and journald write before
//! and around them.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use super::json_line::Object;
use crate::base::byte_order_mark::without_mark;
use crate::base::printable::printable;

/// Of a line. Requests have heads of at most 1 MiB.
const MAX_LINE: usize = 1 << 20;
const BUFFER: usize = 1 << 16;
/// How a gzip file begins (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

pub(super) struct Lines {
    pub(super) name: String,
    /// Of the last line, from 1.
    pub(super) number: u64,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
}

pub(super) enum Text<'a> {
    /// Without the end of the line.
    Whole(&'a [u8]),
    /// Longer than 1 MiB.
    Long,
}

impl Lines {
    /// `-` is standard input. The bar shows how much was read.
    pub(super) fn open(path: &Path, bar: &ProgressBar) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::new("standard input", bar.wrap_read(io::stdin()));
        }
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Self::new(&path.display().to_string(), bar.wrap_read(file))
    }

    pub(super) fn new(name: &str, mut input: impl Read + 'static) -> io::Result<Self> {
        let mut start = Vec::new();
        input.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
        let is_compressed = start == GZIP;
        let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(input));
        let reader: Box<dyn BufRead> = if is_compressed {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self { name: printable(name), number: 0, reader, line: Vec::new() })
    }

    /// `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Text<'_>>> {
        self.line.clear();
        let with_end = MAX_LINE + 1;
        if self.reader.by_ref().take(with_end as u64).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.len() == with_end && !self.line.ends_with(b"\n") {
            self.reader.skip_until(b'\n')?;
            return Ok(Some(Text::Long));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some(Text::Whole(if self.number == 1 { without_mark(line) } else { line })))
    }
}

/// The line as the server wrote it.
pub(super) fn unwrapped(line: &[u8]) -> Cow<'_, [u8]> {
    if line.starts_with(b"{") {
        return of_json(line).map_or(Cow::Borrowed(line), Cow::Owned);
    }
    Cow::Borrowed(of_kubernetes(line).or_else(|| of_journal(line)).unwrap_or(line))
}

/// Docker's json-file, `{"log":"...\n","stream":"stdout","time":"..."}`, and `journalctl -o json`.
fn of_json(line: &[u8]) -> Option<Vec<u8>> {
    // Most JSON lines are neither, so they are parsed only once.
    let is_named = |name: &[u8]| memchr::memmem::find(line, name).is_some();
    let (text, beside) = match () {
        () if is_named(b"\"log\"") && is_named(b"\"stream\"") => ("log", "stream"),
        () if is_named(b"\"MESSAGE\"") && is_named(b"\"__REALTIME_TIMESTAMP\"") => ("MESSAGE", "__REALTIME_TIMESTAMP"),
        () => return None,
    };
    let object = Object::read(line)?;
    object.text(beside)?;
    let written = object.text(text)?;
    Some(written.trim_end_matches(['\r', '\n']).as_bytes().to_vec())
}

/// `2016-10-06T00:17:09.669794202Z stdout F ...`, as the runtimes of Kubernetes write (CRI).
fn of_kubernetes(line: &[u8]) -> Option<&[u8]> {
    let (time, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    let (tag, rest) = word(rest)?;
    let is_time = time.first().is_some_and(u8::is_ascii_digit) && time.contains(&b'T');
    (is_time && matches!(stream, b"stdout" | b"stderr") && tag == b"F").then_some(rest)
}

/// `Nov 27 01:02:03 host unit[123]: ...`, as journalctl and syslog write.
fn of_journal(line: &[u8]) -> Option<&[u8]> {
    let (month, rest) = word(line)?;
    let (_day, rest) = word(rest.trim_ascii_start())?;
    let (time, rest) = word(rest)?;
    let (_host, rest) = word(rest)?;
    let (unit, rest) = word(rest)?;
    let is_time = month.len() == 3 && month.iter().all(u8::is_ascii_alphabetic) && time.get(2) == Some(&b':');
    (is_time && unit.ends_with(b":")).then_some(rest)
}

/// The text up to a space, and the rest after that space.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at(memchr::memchr(b' ', text)?);
    Some((word, &rest[1..]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn all(input: Vec<u8>) -> (Vec<String>, Option<io::ErrorKind>) {
        let mut lines = Lines::new("test", Cursor::new(input)).unwrap();
        let mut found = Vec::new();
        loop {
            match lines.next() {
                Ok(Some(Text::Whole(line))) => found.push(String::from_utf8_lossy(line).into_owned()),
                Ok(Some(Text::Long)) => found.push("long".to_owned()),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.kind())),
            }
        }
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lines_end_where_they_end() {
        for (text, lines) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("a\nb\r\n\nc\n", &["a", "b", "", "c"]),
            ("\n", &[""]),
            ("\u{1f}", &["\u{1f}"]),
            ("\u{feff}a\n\u{feff}b", &["a", "\u{feff}b"]),
        ] {
            assert_eq!(all(text.into()), (lines.iter().map(|line| (*line).to_owned()).collect(), None), "{text:?}");
        }
    }

    #[test]
    fn a_long_line_is_passed_over() {
        let text = format!("a\n{}\nb\n{}", "x".repeat(MAX_LINE + 1), "y".repeat(MAX_LINE + 1));
        assert_eq!(all(text.into_bytes()).0, ["a", "long", "b", "long"]);
        assert_eq!(all("x".repeat(MAX_LINE).into_bytes()).0, ["x".repeat(MAX_LINE)]);
    }

    #[test]
    fn compressed_files_are_unpacked_also_if_they_are_appended() {
        let both = [compressed("a\nb\n"), compressed("c\n")].concat();
        assert_eq!(all(both.clone()), (vec!["a".into(), "b".into(), "c".into()], None));
        let (_, error) = all(both[..both.len() - 5].to_vec());
        assert_eq!(error, Some(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn a_line_comes_out_as_it_was_written() {
        const LINE: &str = "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 1";
        let quoted = serde_json::to_string(LINE).unwrap();
        for wrapped in [
            LINE.to_owned(),
            format!("2000-10-10T13:55:36.669794202Z stdout F {LINE}"),
            format!("2000-10-10T13:55:36.66+02:00 stderr F {LINE}"),
            format!(
                "{{\"log\":{},\"stream\":\"stdout\",\"time\":\"2000-10-10T13:55:36Z\"}}",
                quoted.replace("1\"", "1\\n\"")
            ),
            format!("{{\"__REALTIME_TIMESTAMP\":\"971186136000000\",\"MESSAGE\":{quoted},\"_PID\":\"1\"}}"),
            format!("Oct 10 13:55:36 web-1 nginx[123]: {LINE}"),
            format!("Oct  9 13:55:36 web-1 gateway: {LINE}"),
        ] {
            assert_eq!(String::from_utf8(unwrapped(wrapped.as_bytes()).into_owned()).unwrap(), LINE, "{wrapped}");
        }
        for other in [
            "",
            "{",
            "{\"client\":\"192.0.2.1\",\"log\":\"x\"}",
            "2000-10-10T13:55:36Z stdout P part",
            "2000-10-10T13:55:36Z stdout F",
            "Oct 10 13:55:36 web-1 no unit here",
        ] {
            assert_eq!(&*unwrapped(other.as_bytes()), other.as_bytes());
        }
    }
}
