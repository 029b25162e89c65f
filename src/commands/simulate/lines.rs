//! The lines of a file or of standard input, also compressed by gzip.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::base::byte_order_mark::without_mark;
use crate::base::printable::printable;

/// Of a line. Requests have heads of at most 1 MiB.
const MAX_LINE: usize = 1 << 20;
const BUFFER: usize = 1 << 16;
/// How a gzip file begins (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

pub(super) struct Lines {
    pub(super) name: String,
    /// In bytes; `None` if it is not known.
    pub(super) size: Option<u64>,
    /// Of the last line, from 1.
    pub(super) number: u64,
    reader: Box<dyn BufRead>,
    read: Rc<Cell<u64>>,
    line: Vec<u8>,
}

pub(super) enum Text<'a> {
    /// Without the end of the line.
    Whole(&'a [u8]),
    /// Longer than 1 MiB.
    Long,
}

struct Counted<R> {
    inner: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

impl Lines {
    /// `-` is standard input.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::new("standard input", None, io::stdin());
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Self::new(&path.display().to_string(), metadata.is_file().then_some(metadata.len()), file)
    }

    pub(super) fn new(name: &str, size: Option<u64>, input: impl Read + 'static) -> io::Result<Self> {
        let read = Rc::new(Cell::new(0));
        let mut input = Counted { inner: input, read: read.clone() };
        let mut start = Vec::new();
        input.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
        let is_compressed = start == GZIP;
        let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(input));
        let reader: Box<dyn BufRead> = if is_compressed {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self { name: printable(name), size, number: 0, reader, read, line: Vec::new() })
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read.get()
    }

    /// `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Text<'_>>> {
        self.line.clear();
        let mut is_long = false;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                if self.line.is_empty() && !is_long {
                    return Ok(None);
                }
                break;
            }
            let end = memchr::memchr(b'\n', available);
            let part = available.get(..end.unwrap_or(available.len())).unwrap_or_default();
            is_long |= self.line.len() + part.len() > MAX_LINE;
            if !is_long {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        self.number += 1;
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let line = if self.number == 1 { without_mark(line) } else { line };
        Ok(Some(if is_long { Text::Long } else { Text::Whole(line) }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn all(input: Vec<u8>) -> (Vec<String>, Option<io::ErrorKind>) {
        let mut lines = Lines::new("test", None, Cursor::new(input)).unwrap();
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
}
