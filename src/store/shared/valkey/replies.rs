//! The replies of Valkey and Redis to one exchange, read in place, in whatever pieces they arrive.

use std::mem;
use std::ops::Range;

use super::super::protocol::{Echo, Garbage, Place, Reader, Replies, Written, digits};
use super::frames::{Frame, frame};

/// How a value begins.
pub(super) const MARK: u8 = b'=';
/// What comes before a value: the mark, the version and the number.
const HEAD: usize = 1 + 8 + 4;

/// What the reply to a write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The count after it; null if there was none.
    Sum(Echo),
    /// 1, or 0 if it had another version; null if there was none.
    Replaced,
    /// A text; null if there was one already.
    Stored,
}

/// After these errors, which are not about one key, only a new connection helps: the server has forgotten the scripts, follows
/// another one now, is cut off from those that follow it, or takes no writes. The greeting teaches the scripts, and finds out when
/// writes are taken again.
const OF_SERVER: [&[u8]; 6] = [b"NOSCRIPT", b"READONLY", b"OOM", b"MISCONF", b"NOREPLICAS", b"NOPERM"];
/// A right that is missing inside a script, as Redis and as Valkey say it.
const IN_SCRIPT: [&[u8]; 2] = [b"ERR The user executing the script", b"ERR ACL failure in script"];

#[derive(Debug, Default)]
pub(super) struct FrameReader {
    expected: Vec<Expected>,
    written: Vec<Written>,
    reads: usize,
    /// How many items each command reads, and how many more come in the present reply.
    reads_each: usize,
    inside: usize,
    items: Vec<Option<Place>>,
    /// How many items could not be read, because of an error.
    unread: usize,
    /// The place of the first message, and whether any of them is about the server.
    failure: Option<Range<usize>>,
    is_of_server: bool,
}

impl FrameReader {
    /// One command reads `reads_each` items.
    pub(super) fn new(expected: Vec<Expected>, reads: usize, reads_each: usize) -> Self {
        let (written, items) = (Vec::with_capacity(expected.len()), Vec::with_capacity(reads));
        Self { expected, written, reads, reads_each, items, ..Self::default() }
    }

    fn fail(&mut self, place: Range<usize>, input: &[u8]) {
        self.is_of_server |= OF_SERVER.iter().chain(&IN_SCRIPT).any(|code| input[place.clone()].starts_with(code));
        self.failure.get_or_insert(place);
    }

    fn take(&mut self, frame: Frame, input: &[u8]) -> Result<(), Garbage> {
        if let Some(expected) = self.expected.get(self.written.len()) {
            let written = match (expected, frame) {
                (_, Frame::Error(place)) => {
                    self.fail(place, input);
                    Written::Failed
                }
                (Expected::Sum(Echo::Count), Frame::Number(count)) => Written::Count(count),
                (Expected::Replaced, Frame::Number(0)) | (Expected::Stored, Frame::Null) => Written::Refused,
                (Expected::Sum(Echo::Quiet) | Expected::Replaced, Frame::Number(_))
                | (Expected::Stored, Frame::Text(_)) => Written::Done,
                (Expected::Sum(_) | Expected::Replaced, Frame::Null) => Written::Missing,
                _ => return Err(Garbage),
            };
            self.written.push(written);
            return Ok(());
        }
        let is_inside = self.inside > 0;
        match frame {
            Frame::Several(count) if !is_inside && count == self.reads_each as u64 => self.inside = self.reads_each,
            Frame::Text(_) | Frame::Null if is_inside => {
                self.items.push(if let Frame::Text(place) = frame { Some(item(place, input)) } else { None });
                self.inside -= 1;
            }
            Frame::Error(place) if !is_inside => {
                self.fail(place, input);
                self.unread += self.reads_each;
                self.items.resize(self.items.len() + self.reads_each, None);
            }
            _ => return Err(Garbage),
        }
        Ok(())
    }
}

impl Reader for FrameReader {
    fn read(&mut self, input: &[u8]) -> Result<Option<usize>, Garbage> {
        // Replies that were read before may have changed meanwhile: another server has done what this one had not.
        *self = Self::new(mem::take(&mut self.expected), self.reads, self.reads_each);
        let mut length = 0;
        while self.written.len() < self.expected.len() || self.items.len() < self.reads {
            let Some((frame, next)) = frame(input, length)? else { return Ok(None) };
            self.take(frame, input)?;
            length = next;
        }
        Ok(Some(length))
    }

    fn replies<'a>(&'a self, input: &'a [u8]) -> Replies<'a> {
        let Self { written, reads, items, unread, is_of_server, failure, .. } = self;
        let is_all = unread == reads && written.iter().all(|written| *written == Written::Failed);
        let message = failure.clone().and_then(|place| str::from_utf8(input.get(place)?).ok());
        // Somebody else has made an item of another type. That is about its key alone.
        let is_of_key = message.is_some_and(|message| message.starts_with("WRONGTYPE"));
        Replies {
            written,
            items,
            input,
            is_read: *unread == 0,
            is_failure: failure.is_some() && (is_all && !is_of_key || *is_of_server),
            failure: message,
        }
    }
}

/// What is not ours is a value without a version.
fn item(place: Range<usize>, input: &[u8]) -> Place {
    let bytes = &input[place.clone()];
    if let [MARK, rest @ ..] = bytes
        && let Some((version, rest)) = rest.split_first_chunk()
        && let Some((number, _)) = rest.split_first_chunk()
    {
        let (number, version) = (u32::from_be_bytes(*number), u64::from_be_bytes(*version));
        return Place { value: place.start + HEAD..place.end, number, version };
    }
    let space = memchr::memchr(b' ', bytes);
    let number = space.and_then(|space| digits(&bytes[space + 1..])).and_then(|number| u32::try_from(number).ok());
    let end = if number.is_some() { place.start + space.unwrap_or(bytes.len()) } else { place.end };
    Place { value: place.start..end, number: number.unwrap_or(0), version: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::protocol::Item;

    fn reader(reads: usize) -> FrameReader {
        let writes = [Expected::Sum(Echo::Quiet), Expected::Sum(Echo::Count), Expected::Replaced, Expected::Stored];
        FrameReader::new(writes.to_vec(), reads, reads)
    }

    fn results(input: &[u8]) -> Vec<Written> {
        let mut reader = reader(0);
        assert_eq!(reader.read(input), Ok(Some(input.len())));
        reader.written
    }

    #[test]
    fn every_write_and_every_name_has_its_reply() {
        let input =
            b":7\r\n:8\r\n:1\r\n+OK\r\n*4\r\n$1\r\n5\r\n_\r\n$15\r\n=\0\0\0\0\0\0\0\x09\0\0\0\x4dxy\r\n$4\r\n12 7\r\n";
        let mut reader = reader(4);
        // However the bytes arrive.
        for cut in 0..input.len() {
            assert_eq!(reader.read(&input[..cut]), Ok(None), "{cut}");
        }
        let next = [&input[..], b":1\r\n"].concat();
        assert_eq!(reader.read(&next), Ok(Some(input.len())));
        let replies = reader.replies(&next);
        assert_eq!(replies.written, [Written::Done, Written::Count(8), Written::Done, Written::Done]);
        let item = |value, number, version| Some(Item { value, number, version });
        let items = [item(&b"5"[..], 0, 0), None, item(b"xy", 77, 9), item(b"12", 7, 0)];
        assert_eq!([0, 1, 2, 3].map(|place| replies.item(place)), items);
        assert_eq!((replies.is_read, replies.is_failure, replies.failure), (true, false, None));
    }

    #[test]
    fn a_reply_that_has_become_another_one_is_read_again() {
        let mut reader = FrameReader::new(vec![Expected::Replaced], 1, 1);
        assert_eq!(reader.read(b"-NOSCRIPT No matching script.\r\n*1\r\n$1"), Ok(None));
        let input = b":1\r\n*1\r\n$1\r\n5\r\n";
        assert_eq!(reader.read(input), Ok(Some(input.len())));
        let replies = reader.replies(input);
        assert_eq!((replies.written, replies.failure), (&[Written::Done][..], None));
        assert_eq!(replies.item(0).and_then(|item| item.count()), Some(5));
    }

    #[test]
    fn null_says_what_was_missing_or_there() {
        use Written::{Missing, Refused};
        assert_eq!(results(b"_\r\n_\r\n_\r\n_\r\n"), [Missing, Missing, Missing, Refused]);
        assert_eq!(results(b":0\r\n:0\r\n:0\r\n+OK\r\n"), [Written::Done, Written::Count(0), Refused, Written::Done]);
    }

    #[test]
    fn an_error_is_about_one_command() {
        let after = |input: &[u8]| {
            let mut reader = reader(1);
            assert_eq!(reader.read(input), Ok(Some(input.len())));
            let Replies { written, is_read, is_failure, failure, .. } = reader.replies(input);
            (written.iter().filter(|one| **one == Written::Failed).count(), is_read, is_failure, failure.is_some())
        };
        assert_eq!(after(b":1\r\n-WRONGTYPE 1\r\n:1\r\n+OK\r\n*1\r\n_\r\n"), (1, true, false, true));
        assert_eq!(after(b":1\r\n-OOM 1\r\n:1\r\n+OK\r\n*1\r\n_\r\n"), (1, true, true, true));
        assert_eq!(after(b":1\r\n:1\r\n:1\r\n+OK\r\n-NOPERM 1\r\n"), (0, false, true, true));
        assert_eq!(after(b":1\r\n-ERR ACL failure in script: 1\r\n:1\r\n+OK\r\n*1\r\n_\r\n"), (1, true, true, true));
        assert_eq!(
            after(b":1\r\n-ERR The user executing the script can't\r\n:1\r\n+OK\r\n*1\r\n_\r\n"),
            (1, true, true, true)
        );
        assert_eq!(after(&b"-LOADING 1\r\n".repeat(5)), (4, false, true, true));
        assert_eq!(after(b":1\r\n-NOSCRIPT 1\r\n:1\r\n+OK\r\n*1\r\n_\r\n"), (1, true, true, true));
        assert_eq!(after(b"-READONLY 1\r\n:1\r\n:1\r\n+OK\r\n*1\r\n_\r\n"), (1, true, true, true));
    }

    #[test]
    fn reads_of_one_item_each_fail_alone() {
        let after = |input: &[u8]| {
            let mut reader = FrameReader::new(vec![Expected::Stored], 2, 1);
            assert_eq!(reader.read(input), Ok(Some(input.len())));
            let Replies { written, items, is_read, is_failure, .. } = reader.replies(input);
            (written.to_vec(), items.iter().map(Option::is_some).collect::<Vec<_>>(), is_read, is_failure)
        };
        let (done, failed) = (vec![Written::Done], vec![Written::Failed]);
        assert_eq!(after(b"+OK\r\n*1\r\n+5\r\n*1\r\n+6\r\n"), (done.clone(), vec![true, true], true, false));
        assert_eq!(after(b"+OK\r\n-ASK 1 a:1\r\n*1\r\n+6\r\n"), (done, vec![false, true], false, false));
        assert_eq!(after(b"-CLUSTERDOWN\r\n*1\r\n_\r\n-A\r\n"), (failed.clone(), vec![false; 2], false, false));
        assert_eq!(after(&b"-CLUSTERDOWN no\r\n".repeat(3)), (failed, vec![false; 2], false, true));
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        for input in [
            &b"+OK\r\n"[..],
            b":1\r\n:1\r\n:1\r\n:1\r\n",
            b":1\r\n:1\r\n:1\r\n+OK\r\n*2\r\n_\r\n_\r\n",
            b":1\r\n:1\r\n:1\r\n+OK\r\n_\r\n",
            b":1\r\n:1\r\n:1\r\n+OK\r\n*1\r\n*1\r\n_\r\n",
            b"*1\r\n_\r\n",
        ] {
            assert_eq!(reader(1).read(input), Err(Garbage), "{}", String::from_utf8_lossy(input));
        }
    }

    #[test]
    fn what_is_not_ours_has_no_version() {
        let read = |bytes: &[u8]| item(0..bytes.len(), bytes);
        for (bytes, value) in
            [(&b"="[..], 0..1), (b"=123", 0..4), (b"12 x", 0..4), (b"", 0..0), (b"7 99999999999", 0..13)]
        {
            let Place { value: place, number, version } = read(bytes);
            assert_eq!((place, number, version), (value, 0, 0), "{bytes:?}");
        }
    }
}
