//! Reads and writes the chunked coding (RFC 9112, section 7.1). Pure.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Includes extensions.
const MAX_SIZE_LINE: usize = 4096;
/// In bytes.
const MAX_TRAILERS: usize = 16 * 1024;
const MAX_TRAILER_FIELDS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Decoder(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Done,
}

#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Data(Bytes),
    /// Ends the data, and comes before `End`.
    Trailers(HeaderMap),
    End,
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotChunked;

impl Decoder {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    pub(super) fn decode(&mut self, bytes: &mut BytesMut) -> Result<Piece, NotChunked> {
        loop {
            match &mut self.0 {
                State::Size => {
                    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                        return if bytes.len() > MAX_SIZE_LINE { Err(NotChunked) } else { Ok(Piece::More) };
                    };
                    let size = size(&bytes[..end])?;
                    bytes.advance(end + 1);
                    self.0 = if size == 0 { State::Trailers } else { State::Data(size) };
                }
                State::Data(left) => {
                    if bytes.is_empty() {
                        return Ok(Piece::More);
                    }
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= length as u64;
                    if *left == 0 {
                        self.0 = State::DataEnd;
                    }
                    return Ok(Piece::Data(bytes.split_to(length).freeze()));
                }
                State::DataEnd => match bytes.get(..2) {
                    Some(b"\r\n") => {
                        bytes.advance(2);
                        self.0 = State::Size;
                    }
                    Some(_) => return Err(NotChunked),
                    None => return Ok(Piece::More),
                },
                State::Trailers => {
                    let Some((length, trailers)) = trailers(bytes)? else { return Ok(Piece::More) };
                    bytes.advance(length);
                    self.0 = State::Done;
                    return Ok(if trailers.is_empty() { Piece::End } else { Piece::Trailers(trailers) });
                }
                State::Done => return Ok(Piece::End),
            }
        }
    }
}

/// `line` has no line feed.
fn size(line: &[u8]) -> Result<u64, NotChunked> {
    let line = line.strip_suffix(b"\r").ok_or(NotChunked)?;
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(line).trim_ascii_end();
    // 15 digits are more than any body needs, and cannot overflow.
    if digits.is_empty() || digits.len() > 15 || line.len() > MAX_SIZE_LINE {
        return Err(NotChunked);
    }
    digits.iter().try_fold(0, |size, digit| {
        let value = char::from(*digit).to_digit(16).ok_or(NotChunked)?;
        Ok(size << 4 | u64::from(value))
    })
}

/// `None` if they are incomplete.
fn trailers(bytes: &[u8]) -> Result<Option<(usize, HeaderMap)>, NotChunked> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    match httparse::parse_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete((length, fields))) if length <= MAX_TRAILERS => {
            let mut trailers = HeaderMap::new();
            for field in fields {
                let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| NotChunked)?;
                trailers.append(name, HeaderValue::from_bytes(field.value).map_err(|_| NotChunked)?);
            }
            Ok(Some((length, trailers)))
        }
        Ok(httparse::Status::Partial) if bytes.len() <= MAX_TRAILERS => Ok(None),
        _ => Err(NotChunked),
    }
}

/// Writes the head of a chunk of `length` bytes, which must not be zero; the data and a line end follow.
pub(super) fn encode_size(length: usize, out: &mut Vec<u8>) {
    let digits = format!("{length:x}\r\n");
    out.extend_from_slice(digits.as_bytes());
}

#[expect(clippy::inline_always, reason = "where the name is known, it is copied without a call")]
#[inline(always)]
pub(super) fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn encode_end<'a>(trailers: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        line(out, name.as_str(), value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a decoder reads from these bytes if they come in pieces of this size.
    fn decode(bytes: &[u8], step: usize) -> Result<(Vec<u8>, HeaderMap, usize), NotChunked> {
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let (mut data, mut trailers, mut steps) = (Vec::new(), HeaderMap::new(), bytes.chunks(step));
        loop {
            match decoder.decode(&mut buffer)? {
                Piece::Data(more) => data.extend_from_slice(&more),
                Piece::Trailers(found) => trailers = found,
                Piece::End => return Ok((data, trailers, buffer.len() + steps.map(<[u8]>::len).sum::<usize>())),
                Piece::More => buffer.extend_from_slice(steps.next().ok_or(NotChunked)?),
            }
        }
    }

    #[test]
    fn reads_chunks_extensions_and_trailers() {
        let body = b"5\r\nhello\r\n6 ;x=\"y\"\r\n world\r\n0\r\nx-sum: 1\r\n\r\nnext";
        for step in 1..body.len() {
            let (data, trailers, left) = decode(body, step).unwrap();
            assert_eq!((&data[..], trailers["x-sum"].as_bytes(), left), (&b"hello world"[..], &b"1"[..], 4));
        }
    }

    #[test]
    fn refuses_what_could_be_read_in_two_ways() {
        for body in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"5\r\nhello0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"\r\nhello\r\n0\r\n\r\n",
            b"ffffffffffffffff\r\nhello",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"0\r\nbad trailer\r\n\r\n",
        ] {
            assert_eq!(decode(body, 3), Err(NotChunked), "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(decode(&[b'0'; 10_000], 100), Err(NotChunked));
    }

    #[test]
    fn trailers_have_a_largest_size_and_number() {
        let body = |fields: usize, size: usize| {
            let value = "x".repeat(size - "x: \r\n".len());
            format!("0\r\n{}\r\n", format!("x: {value}\r\n").repeat(fields)).into_bytes()
        };
        let count = |fields, size, step| decode(&body(fields, size), step).map(|(_, trailers, _)| trailers.len());
        for step in [100, 100_000] {
            assert_eq!([count(64, 100, step), count(65, 100, step)], [Ok(64), Err(NotChunked)]);
            assert_eq!([count(16, 1000, step), count(17, 1000, step)], [Ok(16), Err(NotChunked)]);
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8), step in 1..200usize) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                encode_size(chunk.len(), &mut wire);
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            encode_end([], &mut wire);
            prop_assert_eq!(decode(&wire, step).unwrap().0, chunks.concat());
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1..20usize) {
            let _ = decode(&bytes, step);
        }
    }
}
