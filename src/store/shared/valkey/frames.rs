//! The bytes of RESP3: words of commands, and frames of replies.
//!
//! Frames are read in place, one after the other: those inside another one follow it. The crates for this protocol take several
//! times as long (`redis-protocol` 1 000 instructions for a frame), and copy texts or follow frames inside frames until the stack
//! overflows. A reply is read anew from its start with each piece that comes. Most replies come in one piece.
//!
//! Source: <https://github.com/redis/redis-specifications/blob/master/protocol/RESP3.md>.

use std::ops::Range;

use memchr::memchr;

use super::super::protocol::{Garbage, digits};

/// The largest frame in bytes; the server itself refuses more than 512 MB.
const LARGEST: usize = 64 << 20;
/// The longest line in bytes: of an error.
const LONGEST_LINE: usize = 64 << 10;
/// The most frames inside one: a cluster has at most 16 384 parts, and an exchange reads fewer items.
const MOST: u64 = 1 << 15;

/// What tells the kind of a frame.
const KINDS: &[u8] = b":$*_+-!=%~>,#(";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// So many frames are inside of it.
    Several(u64),
    Number(u64),
    /// Where its text is.
    Text(Range<usize>),
    Null,
    /// Where its message is.
    Error(Range<usize>),
}

/// Begins a command of so many words.
pub(super) fn command(words: usize, out: &mut Vec<u8>) {
    line(b'*', words, out);
}

pub(super) fn word(word: &[u8], out: &mut Vec<u8>) {
    word_of([word], out);
}

/// A word of several parts.
pub(super) fn word_of<const PARTS: usize>(parts: [&[u8]; PARTS], out: &mut Vec<u8>) {
    line(b'$', parts.iter().map(|part| part.len()).sum(), out);
    parts.into_iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    word(itoa::Buffer::new().format(number).as_bytes(), out);
}

fn line(kind: u8, number: usize, out: &mut Vec<u8>) {
    let digit = |number| b"0123456789"[number % 10];
    match number {
        // Nearly all numbers. `itoa` takes several times as long.
        0..10 => out.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
        10..100 => out.extend_from_slice(&[kind, digit(number / 10), digit(number), b'\r', b'\n']),
        _ => {
            out.push(kind);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A command of these words.
pub(super) fn written<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut out = Vec::new();
    command(words.len(), &mut out);
    words.iter().for_each(|of| word(of.as_ref(), &mut out));
    out
}

/// The frame that begins at `at`, and where the next one does, which may be inside of it; `None` while it is incomplete. Fails
/// when the bytes are no frame.
pub(super) fn frame(input: &[u8], at: usize) -> Result<Option<(Frame, usize)>, Garbage> {
    let rest = input.get(at..).ok_or(Garbage)?;
    let kind = match rest.first() {
        None => return Ok(None),
        Some(kind) if KINDS.contains(kind) => kind,
        Some(_) => return Err(Garbage),
    };
    let Some(end) = memchr(b'\n', rest) else { return if rest.len() < LONGEST_LINE { Ok(None) } else { Err(Garbage) } };
    let line = rest[1..end].strip_suffix(b"\r").ok_or(Garbage)?;
    let place = at + 1..at + 1 + line.len();
    let number = || digits(line).ok_or(Garbage);
    let mut next = at + end + 1;
    let frame = match kind {
        b':' => Frame::Number(number()?),
        b'_' => line.is_empty().then_some(Frame::Null).ok_or(Garbage)?,
        b'-' => Frame::Error(place),
        // Doubles, booleans and large numbers are no reply that matters here.
        b'+' | b',' | b'#' | b'(' => Frame::Text(place),
        b'$' | b'!' | b'=' => {
            let length = usize::try_from(number()?).ok().filter(|length| *length <= LARGEST).ok_or(Garbage)?;
            let place = next..next + length;
            next = place.end + 2;
            match input.get(place.end..next) {
                None => return Ok(None),
                Some(b"\r\n") if *kind == b'!' => Frame::Error(place),
                // It begins with the kind of text, in three characters and a colon.
                Some(b"\r\n") if *kind == b'=' => Frame::Text(place.end.min(place.start + 4)..place.end),
                Some(b"\r\n") => Frame::Text(place),
                Some(_) => return Err(Garbage),
            }
        }
        _ => {
            let each = if *kind == b'%' { 2 } else { 1 };
            Frame::Several(number()?.checked_mul(each).filter(|count| *count <= MOST).ok_or(Garbage)?)
        }
    };
    Ok(Some((frame, next)))
}

/// The frame that begins at `at` and all that are inside of it, in their order, and where they end; `None` while they are
/// incomplete. Fails when the bytes are no frames.
pub(super) fn whole(input: &[u8], mut at: usize) -> Result<Option<(Vec<Frame>, usize)>, Garbage> {
    let (mut frames, mut missing) = (Vec::new(), 1);
    while missing > 0 {
        let Some((frame, next)) = frame(input, at)? else { return Ok(None) };
        missing += if let Frame::Several(inside) = frame { inside } else { 0 };
        (at, missing) = (next, missing - 1);
        frames.push(frame);
    }
    Ok(Some((frames, at)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_counted_in_bytes() {
        let mut out = written(&[&b"SET"[..], b"k", b"\r\n\xff"]);
        number(17, &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n\r\n\xff\r\n$2\r\n17\r\n");
        for length in [0, 9, 10, 11, 99, 100, 1234] {
            let (mut out, long) = (Vec::new(), "x".repeat(length));
            word(long.as_bytes(), &mut out);
            assert_eq!(out, format!("${length}\r\n{long}\r\n").as_bytes());
        }
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
        assert_eq!([read(b"#t\r\n"), read(b",1.5\r\n")], [Some((Frame::Text(3..4), 6)), Some((Frame::Text(3..6), 8))]);
        assert_eq!([read(b"*2\r\n"), read(b"%2\r\n")], [Some((Frame::Several(2), 6)), Some((Frame::Several(4), 6))]);
        for incomplete in [&b""[..], b"*", b"*51", b"*5\r", b"_\r", b"$3\r\nab", b"$3\r\nabc", b"+O", b":1\r", b"-ERR"]
        {
            assert_eq!(read(incomplete), None, "{incomplete:?}");
        }
    }

    #[test]
    fn a_frame_ends_after_all_that_is_inside_of_it() {
        let input = b"*2\r\n:1\r\n%1\r\n_\r\n+a\r\n:2\r\n";
        for cut in 0..19 {
            assert_eq!(whole(&input[..cut], 0), Ok(None), "{cut}");
        }
        let several = [Frame::Several(2), Frame::Number(1), Frame::Several(2), Frame::Null, Frame::Text(16..17)];
        assert_eq!(whole(input, 0), Ok(Some((several.to_vec(), 19))));
        assert_eq!(whole(input, 4), Ok(Some((vec![Frame::Number(1)], 8))));
        assert_eq!(whole(b"*1\r\n:x\r\n", 0), Err(Garbage));
        assert_eq!(whole(&b"*1\r\n".repeat(100_000), 0), Ok(None), "however deep");
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
            b"*1000000000\r\n",
            b"$x\r\n",
            b":x\r\n",
            b"$3\r\nabcde",
            b"_0\r\n",
            b":1\n",
            &b"+".repeat(LONGEST_LINE),
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
