//! Follows the bytes of a connection from request to request, and notices what could be read in two ways. Pure.
//!
//! hyper reads such bytes in one way without an error: a bare line feed ends a line, a target ends at a fragment, and
//! chunks count more than a length. A proxy in front may read them in the other way (RFC 9112, sections 2.2 and 11.2), and
//! then sees other requests. Bytes behind the handshake of a tunnel need not be HTTP, so only the ambiguous message itself
//! is refused.

use std::collections::VecDeque;

use memchr::memchr;

use crate::base::http::written_target;

/// In bytes. Longer lines belong to heads that are refused for their size, or are attacks.
const MAX_LINE: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct FramingCheck {
    state: State,
    /// The beginning of a line whose end has not come yet.
    carried: Vec<u8>,
    head: HeadFraming,
    first_line: usize,
    complete: u64,
    /// The first message that could be read in two ways, from 0.
    first_ambiguous: Option<u64>,
    /// Targets that the library is shown in another way, with the numbers of their messages.
    written: VecDeque<(u64, Vec<u8>)>,
    /// Whether a request has asked for another protocol. What follows may be anything, so it is not changed.
    may_switch: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body(u64),
    ChunkSize,
    /// The bytes of data that are left, including the line end after them.
    ChunkData(u64),
    Trailers,
    /// The bytes are not HTTP. If the library reports no error for them, it reads them differently.
    Lost,
}

#[derive(Debug, Default)]
struct HeadFraming {
    begun: bool,
    /// Whether the library takes its first line as it is.
    is_plain: bool,
    length: Option<u64>,
    coded: bool,
}

impl FramingCheck {
    /// Whether something could be read in two ways. This never becomes false again, because what follows is not reliable either.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.first_ambiguous.is_some()
    }

    /// Whether the message with this number, from 0, or one before it could be read in two ways. Later ambiguities do not affect
    /// it. In a tunnel, the bytes behind the request are no message at all.
    pub(super) fn is_ambiguous_at(&self, message: u64) -> bool {
        self.first_ambiguous.is_some_and(|first| first <= message)
    }

    /// The target of the message with this number as the client has written it, if the library was shown another one. Forgets
    /// those of earlier messages.
    pub(super) fn take_written(&mut self, message: u64) -> Option<Vec<u8>> {
        while let Some((number, target)) = self.written.pop_front_if(|(number, _)| *number <= message) {
            if number == message {
                return Some(target);
            }
        }
        None
    }

    fn found_ambiguity(&mut self) {
        self.first_ambiguous.get_or_insert(self.complete);
    }

    pub(super) fn is_in_body(&self) -> bool {
        matches!(self.state, State::Body(_) | State::ChunkSize | State::ChunkData(_) | State::Trailers)
    }

    /// The length of the last head's first line, as far as it has come.
    pub(super) fn first_line(&self) -> usize {
        let is_in_it = self.state == State::Head && !self.head.begun && !self.carried.is_empty();
        if is_in_it { self.carried.len() } else { self.first_line }
    }

    /// The number of messages that have begun. Empty lines begin none. If the bytes cannot be followed, it is the maximum.
    pub(super) fn begun(&self) -> u64 {
        match self.state {
            State::Head => self.complete + u64::from(self.head.begun || !self.carried.is_empty()),
            State::Body(_) | State::ChunkSize | State::ChunkData(_) | State::Trailers => self.complete + 1,
            State::Lost => u64::MAX,
        }
    }

    /// Follows the next bytes. Rewrites a target that the library would refuse although servers accept it.
    pub(super) fn follow(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Lost => return,
                State::Body(left) | State::ChunkData(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= here as u64;
                    bytes = &mut bytes[here..];
                    match self.state {
                        State::Body(0) => self.end_message(),
                        State::ChunkData(0) => self.state = State::ChunkSize,
                        _ => {}
                    }
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    if self.state == State::Head && self.head.begun && self.carried.is_empty() {
                        bytes = after_silent_fields(bytes);
                        if let [b'\r', b'\n', ..] = bytes {
                            bytes = &mut bytes[2..];
                            self.head_end();
                            continue;
                        }
                    }
                    let is_target = self.state == State::Head && !self.head.begun && !self.may_switch;
                    let Some(end) = memchr(b'\n', bytes) else {
                        let before = self.carried.len();
                        self.carry(bytes);
                        if is_target {
                            written_target::hide(self.carried.get(..before).unwrap_or_default(), bytes);
                        }
                        return;
                    };
                    let (line, rest) = bytes.split_at_mut(end);
                    bytes = &mut rest[1..];
                    if self.carried.is_empty() {
                        self.line(line);
                        if is_target && !self.head.is_plain {
                            written_target::hide(&[], line);
                        }
                    } else {
                        self.end_carried(line, is_target);
                    }
                }
            }
        }
    }

    /// The line whose beginning is carried ends with these bytes.
    #[cold]
    fn end_carried(&mut self, end: &mut [u8], is_target: bool) {
        let before = self.carried.len();
        self.carry(end);
        let line = std::mem::take(&mut self.carried);
        self.line(&line);
        if is_target && !self.head.is_plain {
            written_target::hide(line.get(..before).unwrap_or_default(), end);
        }
    }

    fn carry(&mut self, bytes: &[u8]) {
        if self.carried.len() + bytes.len() > MAX_LINE {
            self.lose();
            self.carried = Vec::new();
        } else {
            self.carried.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let text = match line {
            [text @ .., b'\r'] => text,
            line => {
                self.found_ambiguity();
                line
            }
        };
        match self.state {
            State::Head if text.is_empty() => self.head_end(),
            State::Head => self.head_line(text),
            State::ChunkSize => match chunk(text) {
                State::Lost => self.lose(),
                state => self.state = state,
            },
            State::Trailers if text.is_empty() => self.end_message(),
            _ => {}
        }
    }

    fn lose(&mut self) {
        self.found_ambiguity();
        self.state = State::Lost;
    }

    fn end_message(&mut self) {
        self.complete += 1;
        self.state = State::Head;
    }

    #[cold]
    fn target(&mut self, line: &[u8]) {
        if has_fragment(line) {
            self.found_ambiguity();
        }
        if let Some(target) = written_target::refused(line).filter(|_| !self.may_switch) {
            self.written.push_back((self.complete, target.to_vec()));
        }
    }

    fn head_line(&mut self, text: &[u8]) {
        if !self.head.begun {
            (self.head.begun, self.first_line) = (true, text.len());
            self.head.is_plain = written_target::is_plain(text);
            if !self.head.is_plain {
                self.target(text);
            }
        }
        match text.first() {
            Some(b'c' | b'C') => {
                if let Some(value) = value(text, b"content-length:") {
                    match std::str::from_utf8(value).ok().and_then(|value| value.trim().parse().ok()) {
                        Some(length) => self.head.length = Some(length),
                        None => self.lose(),
                    }
                }
            }
            Some(b't' | b'T') if value(text, b"transfer-encoding:").is_some() => self.head.coded = true,
            Some(b'u' | b'U') if value(text, b"upgrade:").is_some() => self.may_switch = true,
            _ => {}
        }
    }

    fn head_end(&mut self) {
        let head = std::mem::take(&mut self.head);
        // An empty line before a request does not belong to it (RFC 9112, section 2.2).
        if !head.begun {
            return;
        }
        match head.length {
            length if head.coded => {
                if length.is_some() {
                    self.found_ambiguity();
                }
                self.state = State::ChunkSize;
            }
            None | Some(0) => self.end_message(),
            Some(length) => self.state = State::Body(length),
        }
    }
}

/// Whether the target in the first line of a request has a fragment. The library drops a fragment, and some servers read it
/// as a part of the path. A `#` in the method is no fragment.
fn has_fragment(line: &[u8]) -> bool {
    memchr(b' ', line).and_then(|method| line.get(method..)).is_some_and(|target| memchr(b'#', target).is_some())
}

/// What follows the first lines of `bytes` that are surely fields which do not matter here, as most do not, by the first letters
/// of their names.
fn after_silent_fields(mut bytes: &mut [u8]) -> &mut [u8] {
    while let [first, second, ..] = *bytes
        && first != b'\r'
        && !matches!([first | 0x20, second | 0x20], [b'c', b'o'] | [b't', b'r'] | [b'u', b'p'])
        && let Some(end) = memchr(b'\n', bytes)
        && let Some([.., b'\r']) = bytes.get(2..end)
    {
        bytes = &mut bytes[end + 1..];
    }
    bytes
}

/// The value of a header line, if it begins with `name`, which includes the colon.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    found.eq_ignore_ascii_case(name).then_some(value)
}

/// The state after the line with the size of a chunk: digits and perhaps an extension (RFC 9112, section 7.1).
///
/// The library accepts blanks after the size, and anything in an extension. Other servers end a line at a bare carriage
/// return, or do not read a size that a blank follows, and then find the next request at another place.
fn chunk(line: &[u8]) -> State {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extension) = line.split_at(digits);
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if !matches!(extension.first(), None | Some(b';')) || extension.iter().any(is_control) {
        return State::Lost;
    }
    let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match size {
        Some(0) => State::Trailers,
        Some(size) if size < u64::MAX - 2 => State::ChunkData(size + 2),
        _ => State::Lost,
    }
}

/// It makes no difference how the bytes are cut, and the first ambiguous message stays the same.
#[cfg(any(test, fuzzing))]
pub(crate) fn check(bytes: &[u8]) {
    let all_known = |check: &FramingCheck| {
        (check.state, check.first_ambiguous, check.begun(), check.is_in_body(), check.written.clone())
    };
    let (mut whole, mut shown) = (FramingCheck::default(), bytes.to_vec());
    whole.follow(&mut shown);
    for step in [1, 2, 7, 64] {
        let (mut pieces, mut shown_in_pieces) = (FramingCheck::default(), bytes.to_vec());
        for piece in shown_in_pieces.chunks_mut(step) {
            let first = pieces.first_ambiguous;
            pieces.follow(piece);
            assert!(first.is_none() || pieces.first_ambiguous == first, "by {step}");
        }
        assert_eq!(all_known(&pieces), all_known(&whole), "by {step}");
        assert_eq!(shown_in_pieces, shown, "by {step}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn follow(bytes: &[u8], step: usize) -> FramingCheck {
        let mut framing = FramingCheck::default();
        bytes.to_vec().chunks_mut(step).for_each(|piece| framing.follow(piece));
        framing
    }

    const PLAIN: &[&str] = &[
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\nbare\nbytes\n\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n4;x\r\na\nb\n\r\n0\r\nt: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "G#T /%23 HTTP/1.1\r\nReferer: /a#b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ];

    #[test]
    fn unambiguous_requests_pass() {
        for text in PLAIN {
            for step in 1..text.len() {
                let framing = follow(text.as_bytes(), step);
                assert!(!framing.is_ambiguous(), "{text:?} by {step}");
                assert_eq!((framing.state, framing.head.begun), (State::Head, false), "{text:?} by {step}");
            }
        }
    }

    #[test]
    fn messages_before_an_ambiguous_one_are_not_affected() {
        for (at, before) in PLAIN.iter().enumerate() {
            for text in ["GET / HTTP/1.1\nHost: a\r\n\r\n", "\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"] {
                let text = format!("{before}{text}");
                let requests = if at < 2 { 1 } else { 2 };
                for step in [1, 3, 1000] {
                    let framing = follow(text.as_bytes(), step);
                    assert_eq!(framing.first_ambiguous, Some(requests), "{text:?} by {step}");
                    assert!(!framing.is_ambiguous_at(requests - 1) && framing.is_ambiguous_at(requests + 1));
                }
            }
        }
    }

    #[test]
    fn ambiguous_heads_are_noticed_also_after_other_requests() {
        for text in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length:5\r\n\r\n0\r\n\r\n",
            "GET /k#f HTTP/1.1\r\n\r\n",
            "GET http://a/k?q#f HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            for before in PLAIN {
                let text = format!("{before}{text}");
                for step in [1, 2, 3, 7, 1000] {
                    assert!(follow(text.as_bytes(), step).is_ambiguous(), "{text:?} by {step}");
                }
            }
        }
    }

    #[test]
    fn a_message_begins_with_its_first_line() {
        let text = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na\r\n";
        let second = text.windows(4).position(|four| four == b"POST").unwrap();
        let mut framing = FramingCheck::default();
        for (at, byte) in text.iter().enumerate() {
            framing.follow(&mut [*byte]);
            // The first byte of an empty line may be that of a message.
            if *byte != b'\r' {
                let begun = u64::from(at >= 2) + u64::from(at >= second);
                assert_eq!(framing.begun(), begun, "{at}");
            }
        }
        assert_eq!(follow(b"GET / HTTP/1.1\r\nContent-Length: x\r\n", 1000).begun(), u64::MAX);
    }

    #[test]
    fn a_chunk_has_a_size_and_perhaps_an_extension() {
        for (line, plain) in [
            ("4", true),
            ("0004", true),
            ("4;name", true),
            ("4;name=value;other=\"a b\\tc\"", true),
            ("4;a\u{e9}", true),
            ("4 ", false),
            ("4\t", false),
            (" 4", false),
            ("4 ;name", false),
            ("+4", false),
            ("0x4", false),
            ("4x", false),
            ("", false),
            (";name", false),
            ("4;a\0b", false),
            ("4;a\rb", false),
            ("4;a\u{1b}[0m", false),
            ("4;a\u{7f}", false),
        ] {
            let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{line}\r\nabcd\r\n0\r\n\r\n");
            for step in [1, 3, 1000] {
                assert_eq!(!follow(text.as_bytes(), step).is_ambiguous(), plain, "{line:?} by {step}");
            }
        }
    }

    #[test]
    fn lines_that_are_too_long_are_ambiguous() {
        let zeros = "0".repeat(MAX_LINE);
        let size = format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{zeros}1\r\na\r\n0\r\n\r\n");
        assert!(follow(size.as_bytes(), 1000).is_ambiguous());
    }

    proptest! {
        #[test]
        fn does_not_panic_or_depend_on_how_bytes_are_split(bytes in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), any::<u8>()], 0..200)) {
            check(&bytes);
        }
    }
}
