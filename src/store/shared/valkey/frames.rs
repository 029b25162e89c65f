//! The bytes of RESP3: words of commands, and frames of replies.
//!
//! The crate `redis-protocol` decodes single frames. What has frames inside is unfolded here, because the crate would read it
//! by recursion, as deep as the sender likes, and anew from its start with each piece that comes.
//!
//! Source: <https://github.com/redis/redis-specifications/blob/master/protocol/RESP3.md>.

use std::ops::Range;

use redis_protocol::resp3::decode::complete::decode_range;
use redis_protocol::resp3::types::RangeFrame;

use super::super::protocol::Garbage;

/// The largest frame in bytes; the server itself refuses more than 512 MB.
const LARGEST: usize = 64 << 20;
/// A number in a line of at most this many bytes fits into 64 bits.
const SHORT_LINE: usize = 20;
/// The longest line that says what follows.
const LONGEST_LINE: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// So many frames follow, which are part of this one.
    Several(usize),
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

pub(super) fn number(number: u64, out: &mut Vec<u8>) {
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
pub(super) fn write<const WORDS: usize>(words: [&[u8]; WORDS], out: &mut Vec<u8>) {
    command(WORDS, out);
    words.into_iter().for_each(|of| word(of, out));
}

/// The frame that begins at `at`, and where the next one does; `None` while it is incomplete.
///
/// # Errors
/// When the bytes are no frame.
pub(super) fn frame(input: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    let rest = input.get(at..).ok_or(Garbage)?;
    let Some(kind) = rest.first() else { return Ok(None) };
    let frames_each = match kind {
        b'*' | b'~' | b'>' => 1,
        b'%' | b'|' => 2,
        b'$' | b'+' | b'-' | b'!' | b':' | b'_' | b'=' | b'#' | b',' | b'(' => return leaf(rest, at),
        _ => return Err(Garbage),
    };
    let Some(end) = rest.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
        return if rest.len() < LONGEST_LINE { Ok(None) } else { Err(Garbage) };
    };
    let digits = rest[1..end].strip_suffix(b"\r").and_then(|digits| str::from_utf8(digits).ok());
    let count: usize = digits.and_then(|digits| digits.parse().ok()).ok_or(Garbage)?;
    Ok(Some((Frame::Several(count.checked_mul(frames_each).ok_or(Garbage)?), at + end + 1)))
}

/// Like [`frame`], but the place returned is where all frames inside it end, too.
pub(super) fn whole(input: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    let Some((first, mut next)) = frame(input, at)? else { return Ok(None) };
    let inside = |frame: &Frame| if let Frame::Several(more) = frame { *more } else { 0 };
    let mut open = inside(&first);
    while open > 0 {
        let Some((frame, after)) = frame(input, next)? else { return Ok(None) };
        open = (open - 1).checked_add(inside(&frame)).ok_or(Garbage)?;
        next = after;
    }
    Ok(Some((first, next)))
}

/// The number in the first line, behind its kind, and where the next line begins; `None` if that is not all of the line.
fn counted(rest: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in rest.iter().enumerate().take(SHORT_LINE).skip(1) {
        match byte {
            b'0'..=b'9' => number = number * 10 + u64::from(byte - b'0'),
            b'\r' if at > 1 && rest.get(at + 1) == Some(&b'\n') => return Some((number, at + 2)),
            _ => break,
        }
    }
    None
}

/// What most replies are, if it is whole: a number, a text, or nothing.
fn usual(rest: &[u8], at: usize) -> Option<(Frame, usize)> {
    match rest {
        [b':', ..] => counted(rest).map(|(number, end)| (Frame::Number(number), at + end)),
        [b'$', ..] => {
            let (length, begin) = counted(rest)?;
            let end = begin.checked_add(usize::try_from(length).ok()?)?;
            (rest.get(end..)?.starts_with(b"\r\n")).then_some((Frame::Text(at + begin..at + end), at + end + 2))
        }
        [b'_', b'\r', b'\n', ..] => Some((Frame::Null, at + 3)),
        _ => None,
    }
}

fn leaf(rest: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    // The crate takes several times as long.
    if let Some(usual) = usual(rest, at) {
        return Ok(Some(usual));
    }
    let Some((decoded, length)) = decode_range(rest).map_err(|_| Garbage)? else {
        return if rest.len() < LARGEST { Ok(None) } else { Err(Garbage) };
    };
    let place = |(start, end): (usize, usize)| at + start..at + end;
    let frame = match decoded {
        RangeFrame::BlobString { data, .. }
        | RangeFrame::SimpleString { data, .. }
        | RangeFrame::VerbatimString { data, .. }
        | RangeFrame::BigNumber { data, .. } => Frame::Text(place(data)),
        RangeFrame::SimpleError { data, .. } | RangeFrame::BlobError { data, .. } => Frame::Error(place(data)),
        RangeFrame::Number { data, .. } => Frame::Number(u64::try_from(data).unwrap_or(0)),
        RangeFrame::Boolean { data, .. } => Frame::Number(data.into()),
        // No reply that matters here has one.
        RangeFrame::Double { .. } | RangeFrame::Null => Frame::Null,
        _ => return Err(Garbage),
    };
    Ok(Some((frame, at + length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_counted_in_bytes() {
        let mut out = Vec::new();
        write([b"SET", b"k", b"\r\n\xff"], &mut out);
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
        assert_eq!(read(b"*512\r\n:1"), Some((Frame::Several(512), 8)));
        assert_eq!(read(b"%7\r\n"), Some((Frame::Several(14), 6)));
        for incomplete in [&b""[..], b"*", b"*51", b"*5\r", b"$3\r\nab", b"$3\r\nabc", b"+O", b":1\r", b"-ERR"] {
            assert_eq!(read(incomplete), None, "{incomplete:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"END\r\n",
            b"*-1\r\n",
            b"*x\r\n",
            b"*99999999999999999999\r\n",
            b"%18446744073709551615\r\n",
            b"$x\r\n",
            b":x\r\n",
            b"*1111111111111111111111111111111111111",
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
