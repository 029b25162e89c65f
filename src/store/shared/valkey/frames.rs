//! The bytes of RESP3: words of commands, and frames of replies.
//!
//! The usual frames are read here, since the crate `redis-protocol` takes several times as long; it decodes the other ones. A
//! frame with others inside is read anew from its start with each piece that comes. Most replies come in one piece.
//!
//! Source: <https://github.com/redis/redis-specifications/blob/master/protocol/RESP3.md>.

use std::ops::Range;

use redis_protocol::resp3::decode::complete::decode_range;
use redis_protocol::resp3::types::RangeFrame;

use super::super::protocol::Garbage;

/// The largest frame in bytes; the server itself refuses more than 512 MB.
const LARGEST: usize = 64 << 20;
/// How deep frames may be inside each other.
const DEEPEST: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Several(Vec<Self>),
    Number(u64),
    /// Where its text is.
    Text(Range<usize>),
    Null,
    /// Where its message is.
    Error(Range<usize>),
}

/// Begins a command of so many words.
pub(super) fn command(words: usize, out: &mut Vec<u8>) {
    line(b'*', words as u64, out);
}

pub(super) fn word(word: &[u8], out: &mut Vec<u8>) {
    word_of([word], out);
}

/// A word of several parts.
pub(super) fn word_of<const PARTS: usize>(parts: [&[u8]; PARTS], out: &mut Vec<u8>) {
    line(b'$', parts.iter().map(|part| part.len() as u64).sum(), out);
    parts.into_iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    word(itoa::Buffer::new().format(number).as_bytes(), out);
}

fn line(kind: u8, number: u64, out: &mut Vec<u8>) {
    match u8::try_from(number) {
        // Most words are this short.
        Ok(digit @ 0..10) => out.extend_from_slice(&[kind, b'0' + digit, b'\r', b'\n']),
        _ => {
            out.push(kind);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends a command of these words.
pub(super) fn write<W: AsRef<[u8]>>(words: &[W], out: &mut Vec<u8>) {
    command(words.len(), out);
    words.iter().for_each(|of| word(of.as_ref(), out));
}

/// The frame that begins at `at`, and where the next one does; `None` while it is incomplete.
///
/// # Errors
/// When the bytes are no frame.
pub(super) fn frame(input: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    nested(input, at, DEEPEST)
}

/// Inside of it, frames may be so `deep`.
fn nested(input: &[u8], at: usize, deep: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    let rest = input.get(at..).ok_or(Garbage)?;
    let kind = match rest.first() {
        None => return Ok(None),
        Some(b'+' | b'-' | b'!' | b'=' | b'#' | b',' | b'(') => return rare(rest, at),
        Some(b'_') if rest.starts_with(b"_\r\n") => return Ok(Some((Frame::Null, at + 3))),
        Some(b'_') if b"_\r\n".starts_with(rest) => return Ok(None),
        Some(kind) => kind,
    };
    let Some((number, length)) = counted(rest)? else { return Ok(None) };
    let mut next = at + length;
    let frame = match kind {
        b':' => Frame::Number(number),
        b'$' => {
            let length = usize::try_from(number).ok().filter(|length| *length <= LARGEST).ok_or(Garbage)?;
            let place = next..next + length;
            next = place.end + 2;
            match input.get(place.end..next) {
                None => return Ok(None),
                Some(b"\r\n") => Frame::Text(place),
                Some(_) => return Err(Garbage),
            }
        }
        b'*' | b'~' | b'>' | b'%' => {
            let each = if *kind == b'%' { 2 } else { 1 };
            let count = number.checked_mul(each).filter(|_| deep > 0).ok_or(Garbage)?;
            let mut frames = Vec::new();
            for _ in 0..count {
                let Some((frame, after)) = nested(input, next, deep - 1)? else { return Ok(None) };
                frames.push(frame);
                next = after;
            }
            Frame::Several(frames)
        }
        _ => return Err(Garbage),
    };
    Ok(Some((frame, next)))
}

/// What hardly any reply is, and has no frames inside.
fn rare(rest: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    let Some((decoded, length)) = decode_range(rest).map_err(|_| Garbage)? else {
        return if rest.len() < LARGEST { Ok(None) } else { Err(Garbage) };
    };
    let place = |(start, end): (usize, usize)| at + start..at + end;
    let frame = match decoded {
        RangeFrame::SimpleString { data, .. } | RangeFrame::VerbatimString { data, .. } => Frame::Text(place(data)),
        RangeFrame::SimpleError { data, .. } | RangeFrame::BlobError { data, .. } => Frame::Error(place(data)),
        // No reply that matters here is one.
        RangeFrame::BigNumber { .. } | RangeFrame::Boolean { .. } | RangeFrame::Double { .. } => Frame::Null,
        _ => return Err(Garbage),
    };
    Ok(Some((frame, at + length)))
}

/// The number in the first line, behind its kind, and where the next line begins; `None` while the line is incomplete.
fn counted(rest: &[u8]) -> Result<Option<(u64, usize)>, Garbage> {
    let mut number = 0_u64;
    for (at, byte) in rest.iter().enumerate().skip(1) {
        number = match (byte, rest.get(at + 1)) {
            (b'0'..=b'9', _) => {
                let more = number.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(byte - b'0')));
                more.ok_or(Garbage)?
            }
            (b'\r', None) if at > 1 => return Ok(None),
            (b'\r', Some(b'\n')) if at > 1 => return Ok(Some((number, at + 2))),
            _ => return Err(Garbage),
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_counted_in_bytes() {
        let mut out = Vec::new();
        write(&[&b"SET"[..], b"k", b"\r\n\xff"], &mut out);
        number(17, &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n\r\n\xff\r\n$2\r\n17\r\n");
    }

    #[test]
    fn frames_are_read_in_place() {
        let read = |input: &[u8]| frame(&[b"xx", input].concat(), 2).unwrap();
        assert_eq!(read(b"$3\r\n\r\n!\r\n:1\r\n"), Some((Frame::Text(6..9), 11)));
        assert_eq!(read(b"+OK\r\n"), Some((Frame::Text(3..5), 7)));
        assert_eq!(read(b":12\r\n"), Some((Frame::Number(12), 7)));
        assert_eq!(read(b"_\r\n"), Some((Frame::Null, 5)));
        assert_eq!(read(b"-ERR no\r\n"), Some((Frame::Error(3..9), 11)));
        assert_eq!(read(b"!5\r\nNO no\r\n"), Some((Frame::Error(6..11), 13)));
        assert_eq!(read(b"=6\r\ntxt:ab\r\n"), Some((Frame::Text(10..12), 14)));
        assert_eq!([read(b"#t\r\n"), read(b",1.5\r\n")], [Some((Frame::Null, 6)), Some((Frame::Null, 8))]);
        let several = Frame::Several(vec![Frame::Number(1), Frame::Several(vec![Frame::Null, Frame::Text(18..19)])]);
        assert_eq!(read(b"*2\r\n:1\r\n%1\r\n_\r\n+a\r\n:2"), Some((several, 21)));
        for incomplete in [
            &b""[..],
            b"*",
            b"*51",
            b"*5\r",
            b"*2\r\n:1\r\n",
            b"_\r",
            b"$3\r\nab",
            b"$3\r\nabc",
            b"+O",
            b":1\r",
            b"-ERR",
        ] {
            assert_eq!(read(incomplete), None, "{incomplete:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"END\r\n",
            b"*-1\r\n",
            b"\x15\x03",
            b":-1\r\n",
            b"*x\r\n",
            b"*99999999999999999999\r\n",
            b"%18446744073709551615\r\n",
            b"$x\r\n",
            b":x\r\n",
            b"$3\r\nabcde",
            &b"*1\r\n".repeat(DEEPEST + 1),
        ] {
            assert_eq!(frame(input, 0), Err(Garbage), "{}", String::from_utf8_lossy(input));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_none(input in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((frame, next))) = frame(&input, 0) {
                prop_assert!(0 < next && next <= input.len());
                if let Frame::Text(place) | Frame::Error(place) = frame {
                    prop_assert!(place.start <= place.end && place.end < next);
                }
            }
        }

        #[test]
        fn any_word_is_read_as_it_was_written(written in prop::collection::vec(any::<u8>(), 0..200), cut in any::<usize>()) {
            let mut input = Vec::new();
            word(&written, &mut input);
            prop_assert_eq!(frame(&input[..cut % input.len()], 0), Ok(None));
            let Ok(Some((Frame::Text(place), next))) = frame(&input, 0) else { panic!("no text") };
            prop_assert_eq!((&input[place], next), (&written[..], input.len()));
        }
    }
}
