//! HTTP/1 messages as bytes on a connection, read strictly: malformed input is an error, and is never repaired.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// For a read or a write: a test that hangs shall fail instead.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
}

/// The fields of a message in their order, with names in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers(pub(crate) Vec<(String, Vec<u8>)>);

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

impl Headers {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(other, _)| other == name)?;
        Some(std::str::from_utf8(value).unwrap())
    }

    #[track_caller]
    pub(crate) fn must(&self, name: &str) -> &str {
        self.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    /// All fields with this name, joined as the standard allows.
    pub(crate) fn joined(&self, name: &str) -> String {
        let values = self.0.iter().filter(|(other, _)| other == name);
        values.map(|(_, value)| String::from_utf8_lossy(value)).collect::<Vec<_>>().join(", ")
    }

    /// The framing of the following body, for a message with a body.
    pub(crate) fn framing(&self, otherwise: Framing) -> Result<Framing> {
        match (self.get("content-length"), self.get("transfer-encoding")) {
            (None, None) => Ok(otherwise),
            (Some(length), None) => length.parse().map(Framing::Length).map_err(|_| broken("content-length")),
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
            _ => Err(broken("framing")),
        }
    }
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::with_capacity(1 << 16, stream) }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// A line without its end; `None` if the peer closed before it began.
    pub(crate) fn first_line(&mut self) -> Result<Option<String>> {
        Ok(self.line()?.map(|line| String::from_utf8_lossy(&line).into_owned()))
    }

    /// The first line and the fields; `None` if the peer closed before they began.
    pub(crate) fn head(&mut self) -> Result<Option<(String, Headers)>> {
        let Some(first) = self.line()? else { return Ok(None) };
        let first = String::from_utf8(first).map_err(|_| broken("first line"))?;
        Ok(Some((first, self.fields()?)))
    }

    /// The fields of a head or of trailers, until the empty line.
    fn fields(&mut self) -> Result<Headers> {
        let mut headers = Headers::default();
        loop {
            let line = self.line()?.ok_or(ErrorKind::UnexpectedEof)?;
            if line.is_empty() {
                return Ok(headers);
            }
            let colon = line.iter().position(|byte| *byte == b':').ok_or_else(|| broken("field"))?;
            let name = String::from_utf8(line[..colon].to_ascii_lowercase()).map_err(|_| broken("field"))?;
            headers.0.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.pop() != Some(b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if line.pop() != Some(b'\r') {
            return Err(broken("end of a line"));
        }
        Ok(Some(line))
    }

    /// Feeds the body to `sink` piece by piece and returns the trailers.
    pub(crate) fn body(&mut self, framing: Framing, sink: &mut dyn FnMut(&[u8])) -> Result<Headers> {
        match framing {
            Framing::Length(length) => self.exactly(length, sink).map(|()| Headers::default()),
            Framing::UntilClose => loop {
                let piece = self.reader.fill_buf()?;
                if piece.is_empty() {
                    return Ok(Headers::default());
                }
                let length = piece.len();
                sink(piece);
                self.reader.consume(length);
            },
            Framing::Chunked => loop {
                let line = self.line()?.ok_or(ErrorKind::UnexpectedEof)?;
                let size = std::str::from_utf8(&line).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
                match size.ok_or_else(|| broken("chunk size"))? {
                    0 => return self.fields(),
                    size => self.exactly(size, sink)?,
                }
                if self.line()? != Some(Vec::new()) {
                    return Err(broken("end of a chunk"));
                }
            },
        }
    }

    fn exactly(&mut self, mut left: u64, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        while left > 0 {
            let piece = self.reader.fill_buf()?;
            if piece.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            sink(&piece[..length]);
            self.reader.consume(length);
            left -= length as u64;
        }
        Ok(())
    }

    pub(crate) fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.reader.read_exact(buffer)
    }

    /// Reads until the peer closes, cleanly or not. Returns what came, and whether it closed at all.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut rest = Vec::new();
        let closed = match self.reader.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
        (rest, closed)
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("broken {what}"))
}

/// Bytes of any length that can be checked without being kept. Their period is no power of two, so it stays visible.
pub(crate) struct Pattern {
    twice: Vec<u8>,
    at: usize,
}

impl Pattern {
    const PERIOD: usize = 65_521;

    pub(crate) fn new() -> Self {
        let once = (0..Self::PERIOD).map(|at| u8::try_from((at * 31 + (at >> 8) * 7) % 251).unwrap());
        Self { twice: once.clone().chain(once).collect(), at: 0 }
    }

    /// The next `length` bytes, one period at most.
    pub(crate) fn next(&mut self, length: usize) -> &[u8] {
        let at = self.at % Self::PERIOD;
        self.at += length;
        &self.twice[at..at + length]
    }

    /// Panics unless `piece` is what comes next.
    pub(crate) fn check(&mut self, piece: &[u8]) {
        for part in piece.chunks(Self::PERIOD) {
            assert!(self.next(part.len()) == part, "the body differs before byte {}", self.at);
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.at as u64
    }
}
