//! The replies of Valkey and Redis to one exchange, read in place, in whatever pieces they arrive.

use std::ops::Range;

use super::super::protocol::{Echo, Garbage, Outcome, Place, Reader, Written, digits};
use super::frames::{Frame, frame};

/// How a value begins.
pub(super) const MARK: u8 = b'=';
/// What comes before a value: the mark, the version and the number.
const HEAD: usize = 1 + 8 + 4;

/// What the reply to a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The count after it; null if there was none.
    Sum(Echo),
    /// 1, or 0 if it had another version; null if there was none.
    Replaced,
    /// A text; null if there was one already.
    Stored,
    /// So many items.
    Items(usize),
}

/// After these errors, which are not about one key, only a new connection helps: the server has forgotten the scripts, follows
/// another one now, is cut off from those that follow it, or takes no writes. The greeting teaches the scripts, and finds out when
/// writes are taken again.
const OF_SERVER: [&[u8]; 6] = [b"NOSCRIPT", b"READONLY", b"OOM", b"MISCONF", b"NOREPLICAS", b"NOPERM"];
/// A right that is missing inside a script, as Redis and as Valkey say it.
const IN_SCRIPT: [&[u8]; 2] = [b"ERR The user executing the script", b"ERR ACL failure in script"];

/// What is expected of each command, the writes before the reads.
impl Reader for Vec<Expected> {
    fn read(&mut self, input: &[u8]) -> Result<Option<Outcome>, Garbage> {
        let mut outcome = Outcome { written: Vec::with_capacity(self.len()), ..Outcome::default() };
        let Outcome { length, written, items, is_read, is_failure, failure } = &mut outcome;
        // How many items could not be read, and whether any message is about the server.
        let (mut unread, mut is_of_server) = (0, false);
        let mut next = || {
            let (frame, end) = frame(input, *length)?.unzip();
            *length = end.unwrap_or(*length);
            Ok(frame)
        };
        for expected in self.iter().copied() {
            let Some(reply) = next()? else { return Ok(None) };
            if let Frame::Error(place) = &reply {
                is_of_server |= OF_SERVER.iter().chain(&IN_SCRIPT).any(|code| input[place.clone()].starts_with(code));
                failure.get_or_insert_with(|| String::from_utf8_lossy(&input[place.clone()]).into_owned());
            }
            match (expected, reply) {
                (Expected::Items(count), Frame::Several(found)) if found == count as u64 => {
                    items.reserve(count);
                    for _ in 0..found {
                        items.push(match next()? {
                            Some(Frame::Text(place)) => Some(item(place, input)),
                            Some(Frame::Null) => None,
                            Some(_) => return Err(Garbage),
                            None => return Ok(None),
                        });
                    }
                }
                (Expected::Items(count), Frame::Error(_)) => {
                    items.resize(items.len() + count, None);
                    unread += count;
                }
                (_, Frame::Error(_)) => written.push(Written::Failed),
                (Expected::Sum(Echo::Count), Frame::Number(count)) => written.push(Written::Count(count)),
                (Expected::Replaced, Frame::Number(0)) | (Expected::Stored, Frame::Null) => {
                    written.push(Written::Refused);
                }
                (Expected::Sum(Echo::Quiet) | Expected::Replaced, Frame::Number(_))
                | (Expected::Stored, Frame::Text(_)) => written.push(Written::Done),
                (Expected::Sum(_) | Expected::Replaced, Frame::Null) => written.push(Written::Missing),
                _ => return Err(Garbage),
            }
        }
        *is_read = unread == 0;
        let is_all = unread == items.len() && written.iter().all(|written| *written == Written::Failed);
        // Somebody else may have made an item of another type. That is about its key alone.
        let is_of_all = |message: &String| is_of_server || is_all && !message.starts_with("WRONGTYPE");
        *is_failure = failure.as_ref().is_some_and(is_of_all);
        Ok(Some(outcome))
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
    let number = |space: usize| Some((space, u32::try_from(digits(&bytes[space + 1..])?).ok()?));
    let (length, number) = memchr::memchr(b' ', bytes).and_then(number).unwrap_or((bytes.len(), 0));
    Place { value: place.start..place.start + length, number, version: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::protocol::{Item, Replies};

    fn reader(reads: usize) -> Vec<Expected> {
        let writes = [Expected::Sum(Echo::Quiet), Expected::Sum(Echo::Count), Expected::Replaced, Expected::Stored];
        let read = (reads > 0).then_some(Expected::Items(reads));
        writes.into_iter().chain(read).collect()
    }

    fn all(reader: &mut Vec<Expected>, input: &[u8]) -> Outcome {
        let outcome = reader.read(input).unwrap().unwrap();
        assert_eq!(outcome.length, input.len());
        outcome
    }

    fn results(input: &[u8]) -> Vec<Written> {
        all(&mut reader(0), input).written
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
        let outcome = reader.read(&next).unwrap().unwrap();
        assert_eq!(outcome.length, input.len());
        let replies = Replies { outcome: &outcome, input: &next };
        assert_eq!(replies.outcome.written, [Written::Done, Written::Count(8), Written::Done, Written::Done]);
        let item = |value, number, version| Some(Item { value, number, version });
        let items = [item(&b"5"[..], 0, 0), None, item(b"xy", 77, 9), item(b"12", 7, 0)];
        assert_eq!([0, 1, 2, 3].map(|place| replies.item(place)), items);
        assert_eq!((outcome.is_read, outcome.is_failure, &outcome.failure), (true, false, &None));
    }

    #[test]
    fn a_reply_that_has_become_another_one_is_read_again() {
        let mut reader = vec![Expected::Replaced, Expected::Items(1)];
        assert_eq!(reader.read(b"-NOSCRIPT No matching script.\r\n*1\r\n$1"), Ok(None));
        let input = b":1\r\n*1\r\n$1\r\n5\r\n";
        let outcome = all(&mut reader, input);
        let replies = Replies { outcome: &outcome, input };
        assert_eq!((&outcome.written[..], &outcome.failure), (&[Written::Done][..], &None));
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
            let Outcome { written, is_read, is_failure, failure, .. } = all(&mut reader(1), input);
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
            let mut reader = vec![Expected::Stored, Expected::Items(1), Expected::Items(1)];
            let Outcome { written, items, is_read, is_failure, .. } = all(&mut reader, input);
            (written, items.iter().map(Option::is_some).collect::<Vec<_>>(), is_read, is_failure)
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
