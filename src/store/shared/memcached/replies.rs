//! The replies of Memcached to one exchange, read in place and each only once, in whatever pieces they arrive.
//!
//! An expected success has no reply, and an error does not name its write. So the results of the writes are known only when
//! all replies are there.

use std::mem;

use memchr::memchr;

use super::super::protocol::{Garbage, Item, Outcome, Place, Reader, Written, count, digits};

/// The longest line of a reply in bytes; anything longer is no reply.
const LONGEST_LINE: usize = 2048;
/// The largest value in bytes; by default Memcached itself refuses more than 1 MiB.
const LARGEST_VALUE: usize = 64 << 20;
/// How the error begins that says that a counter cannot be added to.
const NO_NUMBER: &str = "CLIENT_ERROR cannot increment";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply<'a> {
    Written(usize, Written),
    Item(&'a [u8], Item<'a>),
    EndOfItems,
    /// No more replies to writes follow.
    EndOfWrites,
    Failed(&'a str),
}

#[derive(Debug, Default)]
pub(super) struct TextReader {
    /// The result of each write is by tag, and `Unknown` while there is no reply. Of the items, those that were skipped are `None`.
    outcome: Outcome,
    /// The number of other commands that never have a reply.
    silent: usize,
    /// The names to be read, each followed by a space, and their number.
    names: Vec<u8>,
    reads: usize,
    /// How many commands read them, and how many of those are over.
    lines: usize,
    ended: usize,
    is_written: bool,
    /// The length of the names in `names` of all items that have come.
    matched: usize,
    /// How many writes and how many reads failed.
    failed_writes: usize,
    failed_reads: usize,
}

impl TextReader {
    /// `written` has the result of each write if no reply comes; `silent` other commands never have a reply. `names` has
    /// `reads` names, each followed by a space, which are read by `lines` commands.
    pub(super) fn new(written: Vec<Written>, silent: usize, names: Vec<u8>, reads: usize, lines: usize) -> Self {
        let is_written = written.is_empty();
        let outcome = Outcome { written, items: Vec::with_capacity(reads), ..Outcome::default() };
        Self { outcome, silent, names, reads, lines, is_written, ..Self::default() }
    }

    /// The names between the last item and this one are missing.
    fn skip_to(&mut self, name: &[u8]) -> Result<(), Garbage> {
        loop {
            let rest = &self.names[self.matched..];
            let end = memchr(b' ', rest).ok_or(Garbage)?;
            let is_found = rest[..end] == *name;
            self.matched += end + 1;
            if is_found {
                return Ok(());
            }
            self.outcome.items.push(None);
        }
    }

    fn judge(&mut self) {
        let Outcome { written, items, is_read, is_failure, failure, .. } = &mut self.outcome;
        items.resize(self.reads, None);
        *is_read = self.failed_reads == 0;
        let is_all = self.failed_reads == self.lines && self.failed_writes >= written.len() + self.silent;
        // Somebody else may have made a counter a word. That is about its key alone.
        *is_failure = is_all && failure.as_ref().is_some_and(|message| !message.starts_with(NO_NUMBER));
        let is_open = |written: &&Written| matches!(written, Written::Unknown | Written::Failed);
        let silence = match self.failed_writes {
            0 => Written::Done,
            // As many errors as there are writes without a reply: all of these failed.
            failed if failed == written.iter().filter(is_open).count() + self.silent => Written::Failed,
            _ => Written::Unknown,
        };
        written.iter_mut().filter(|written| **written == Written::Unknown).for_each(|written| *written = silence);
    }
}

impl Reader for TextReader {
    fn read(&mut self, input: &[u8]) -> Result<Option<Outcome>, Garbage> {
        while !self.is_written || self.ended < self.lines {
            let Some((reply, length)) = reply(&input[self.outcome.length..])? else { return Ok(None) };
            match reply {
                Reply::Written(tag, written) if !self.is_written => {
                    *self.outcome.written.get_mut(tag).ok_or(Garbage)? = written;
                }
                Reply::EndOfWrites if !self.is_written => self.is_written = true,
                Reply::Item(name, Item { value, number, version }) if self.is_written => {
                    self.skip_to(name)?;
                    // A line end follows the value.
                    let end = self.outcome.length + length - 2;
                    self.outcome.items.push(Some(Place { value: end - value.len()..end, number, version }));
                }
                Reply::EndOfItems if self.is_written => self.ended += 1,
                Reply::Failed(what) => {
                    if self.is_written {
                        self.failed_reads += 1;
                        self.ended += 1;
                    } else {
                        self.failed_writes += 1;
                    }
                    self.outcome.failure.get_or_insert_with(|| what.to_owned());
                }
                _ => return Err(Garbage),
            }
            self.outcome.length += length;
        }
        self.judge();
        Ok(Some(mem::take(&mut self.outcome)))
    }
}

/// The first reply in `input` and its length; `None` while it is incomplete. Fails when the bytes are no reply.
fn reply(input: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Garbage> {
    let Some(end) = memchr(b'\n', &input[..input.len().min(LONGEST_LINE)]) else {
        return if input.len() < LONGEST_LINE { Ok(None) } else { Err(Garbage) };
    };
    let (line, length) = (input[..end].strip_suffix(b"\r").ok_or(Garbage)?, end + 1);
    let mut words = line.split(|byte| *byte == b' ');
    let reply = match words.next().ok_or(Garbage)? {
        b"VALUE" => {
            let name = words.next().ok_or(Garbage)?;
            let mut next = || words.next().and_then(digits).ok_or(Garbage);
            let (number, size, version) = (next()?, next()?, next()?);
            let number = u32::try_from(number).map_err(|_| Garbage)?;
            let Some((value, length)) = block(input, length, size)? else { return Ok(None) };
            return Ok(Some((Reply::Item(name, Item { value, number, version }), length)));
        }
        b"VA" => {
            let size = words.next().and_then(digits).ok_or(Garbage)?;
            let tag = tag(words)?;
            let Some((value, length)) = block(input, length, size)? else { return Ok(None) };
            return Ok(Some((Reply::Written(tag, Written::Count(count(value).ok_or(Garbage)?)), length)));
        }
        // Memcached before 1.6.40 replies so when it has created an item, even to a quiet command.
        b"HD" => Reply::Written(tag(words)?, Written::Done),
        b"NF" => Reply::Written(tag(words)?, Written::Missing),
        b"EX" | b"NS" => Reply::Written(tag(words)?, Written::Refused),
        b"END" if line.len() == 3 => Reply::EndOfItems,
        b"VERSION" => Reply::EndOfWrites,
        b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => Reply::Failed(str::from_utf8(line).map_err(|_| Garbage)?),
        _ => return Err(Garbage),
    };
    Ok(Some((reply, length)))
}

fn tag<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<usize, Garbage> {
    let tag = words.find_map(|word| word.strip_prefix(b"O")).and_then(digits).ok_or(Garbage)?;
    usize::try_from(tag).map_err(|_| Garbage)
}

/// The block after the line that ends at `line`, and where it ends; `None` while it is incomplete.
fn block(input: &[u8], line: usize, size: u64) -> Result<Option<(&[u8], usize)>, Garbage> {
    let size = usize::try_from(size).ok().filter(|size| *size <= LARGEST_VALUE).ok_or(Garbage)?;
    let length = line + size + 2;
    let Some(block) = input.get(line..length) else { return Ok(None) };
    Ok(Some((block.strip_suffix(b"\r\n").ok_or(Garbage)?, length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::shared::memcached::commands::TextCommands;
    use crate::store::shared::protocol::{Commands, Echo, Initial, Lifetime, Replies};

    fn named(name: &str) -> impl Fn(&mut Vec<u8>) {
        move |out| out.extend_from_slice(name.as_bytes())
    }

    const MINUTE: Lifetime = Lifetime { seconds: 60, from: 0 };
    const INITIAL: Option<Initial> = Some(Initial { count: 1, lifetime: MINUTE });

    /// The reader for so many increments, and for reads of these names.
    fn asked(writes: usize, names: &[&str]) -> Box<dyn Reader> {
        let mut commands = TextCommands::default();
        (0..writes).for_each(|_| commands.add(&named("w"), 1, INITIAL, Echo::Quiet));
        names.iter().for_each(|name| commands.read(&named(name)));
        commands.finish(&mut Vec::new())
    }

    #[test]
    fn replies_are_read_in_place() {
        let read = |input: &'static [u8]| reply(input).unwrap();
        assert_eq!(read(b"HD O12\r\nEND\r\n"), Some((Reply::Written(12, Written::Done), 8)));
        assert_eq!(read(b"NF O1\r\n"), Some((Reply::Written(1, Written::Missing), 7)));
        assert_eq!(read(b"EX O1\r\n"), Some((Reply::Written(1, Written::Refused), 7)));
        assert_eq!(read(b"NS O1\r\n"), Some((Reply::Written(1, Written::Refused), 7)));
        assert_eq!(read(b"VA 3 O7\r\n12 \r\n"), Some((Reply::Written(7, Written::Count(12)), 14)));
        let item = Item { value: b"\r\n", number: 77, version: 5 };
        assert_eq!(read(b"VALUE a 77 2 5\r\n\r\n\r\nEND"), Some((Reply::Item(b"a", item), 20)));
        assert_eq!(read(b"END\r\n"), Some((Reply::EndOfItems, 5)));
        assert_eq!(read(b"VERSION 1.6.18\r\n"), Some((Reply::EndOfWrites, 16)));
        let failed = "SERVER_ERROR out of memory storing object";
        assert_eq!(read(b"SERVER_ERROR out of memory storing object\r\n"), Some((Reply::Failed(failed), 43)));
        let counted = |value| Item { value, number: 0, version: 1 }.count();
        assert_eq!(
            [counted(b"12 "), counted(b"abc"), counted(b""), counted(b"99999999999999999999")],
            [Some(12), None, None, None]
        );
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\n",
            b"END\n",
            b"END x\r\n",
            b"HD\r\n",
            b"HD Ox\r\n",
            b"VA\r\n",
            b"VA 1\r\n1\r\n",
            b"VA 1 O1\r\n12\r\n",
            b"VALUE a 0 1\r\n1\r\n",
            b"VALUE a 5000000000 1 1\r\n1\r\n",
            b"VALUE a 0 99999999999 1\r\n",
            b"SERVER_ERROR \xff\r\n",
            &[b'x'; LONGEST_LINE],
        ] {
            assert_eq!(reply(input), Err(Garbage), "{}", String::from_utf8_lossy(input));
        }
    }

    /// What Memcached 1.6.18 replied to three writes and the names a, b, c and d.
    const EXCHANGE: &[u8] =
        b"HD O0\r\nNS O2\r\nVERSION 1.6.18\r\nVALUE b 0 1 7\r\n5\r\nVALUE d 77 2 9\r\n14\r\nEND\r\n";

    #[test]
    fn every_write_and_every_name_has_its_reply() {
        let mut reader = asked(3, &["a", "b", "c", "d"]);
        // However the bytes arrive.
        for cut in 0..EXCHANGE.len() {
            assert_eq!(reader.read(&EXCHANGE[..cut]), Ok(None), "{cut}");
        }
        let next = [EXCHANGE, b"HD O0\r\n"].concat();
        let outcome = reader.read(&next).unwrap().unwrap();
        let replies = Replies { outcome: &outcome, input: &next };
        assert_eq!(outcome.length, EXCHANGE.len());
        assert_eq!(replies.outcome.written, [Written::Done, Written::Done, Written::Refused]);
        let items: Vec<_> = (0..4).map(|place| replies.item(place)).collect();
        let (five, fourteen) =
            (Item { value: b"5", number: 0, version: 7 }, Item { value: b"14", number: 77, version: 9 });
        assert_eq!(items, [None, Some(five), None, Some(fourteen)]);
        assert_eq!((outcome.is_read, outcome.is_failure, &outcome.failure), (true, false, &None));
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        for names in [&["b"][..], &["d", "b"], &["a", "b"]] {
            assert_eq!(asked(3, names).read(EXCHANGE), Err(Garbage), "{names:?}");
        }
        assert_eq!(asked(2, &["b", "d"]).read(EXCHANGE), Err(Garbage), "there is no third write");
        for input in [
            &b"END\r\nVERSION 1.6.18\r\n"[..],
            b"VALUE a 0 1 7\r\n5\r\n",
            b"VERSION 1.6.18\r\nHD O0\r\n",
            b"VERSION 1.6.18\r\nVERSION 1.6.18\r\n",
        ] {
            assert_eq!(asked(1, &["a"]).read(input), Err(Garbage), "{}", String::from_utf8_lossy(input));
        }
    }

    /// The results of two quiet writes and one with an echo, and one read, after these replies.
    fn after(input: &[u8]) -> (Vec<Written>, bool, bool) {
        let mut commands = TextCommands::default();
        commands.add(&named("a"), 1, INITIAL, Echo::Quiet);
        commands.append(&named("b"), b"x", MINUTE);
        commands.add(&named("c"), 1, INITIAL, Echo::Count);
        commands.read(&named("a"));
        let mut reader = commands.finish(&mut Vec::new());
        let outcome = reader.read(input).unwrap().unwrap();
        assert_eq!((outcome.length, outcome.failure.is_some()), (input.len(), input.starts_with(b"ERROR 1")));
        (outcome.written, outcome.is_read, outcome.is_failure)
    }

    #[test]
    fn an_error_leaves_unknown_what_has_no_reply_unless_it_is_about_all_of_that() {
        use Written::{Count, Done, Failed, Missing, Unknown};
        let all = |count, rest: &[u8]| [&b"ERROR 1\r\n".repeat(count), rest].concat();
        assert_eq!(after(&all(4, b"VERSION 1.6.18\r\nERROR 2\r\n")), (vec![Failed, Failed, Failed], false, true));
        assert_eq!(after(&all(4, b"VERSION 1.6.18\r\nEND\r\n")), (vec![Failed, Failed, Failed], true, false));
        let one_is_done = (vec![Unknown, Unknown, Failed], false, false);
        assert_eq!(after(&all(3, b"VERSION 1.6.18\r\nERROR 2\r\n")), one_is_done);
        assert_eq!(after(b"ERROR 1\r\nHD O0\r\nVERSION 1.6.18\r\nEND\r\n").0, [Done, Unknown, Failed]);
        assert_eq!(after(b"VA 1 O2\r\n7\r\nVERSION 1.6.18\r\nEND\r\n"), (vec![Done, Done, Count(7)], true, false));
        assert_eq!(after(b"ERROR 1\r\nVA 1 O2\r\n7\r\nVERSION 1.6.18\r\nEND\r\n").0, [Unknown, Unknown, Count(7)]);
        assert_eq!(after(b"ERROR 1\r\nNF O1\r\nVERSION 1.6.18\r\nEND\r\n").0, [Unknown, Missing, Failed]);
        let mut alone = asked(1, &["a"]);
        let failed = b"SERVER_ERROR out of memory storing object\r\nVERSION 1.6.18\r\nEND\r\n";
        assert_eq!(alone.read(failed).unwrap().unwrap().written, [Failed], "no other write can have failed");
    }

    #[test]
    fn a_counter_that_somebody_else_has_made_a_word_is_no_failure_of_the_server() {
        let after = |error: &str| {
            let mut reader = asked(1, &[]);
            let input = format!("{error}\r\nVERSION 1.6.18\r\n");
            let outcome = reader.read(input.as_bytes()).unwrap().unwrap();
            assert_eq!(outcome.length, input.len());
            (outcome.written, outcome.is_failure, outcome.failure.is_some())
        };
        let failed = vec![Written::Failed];
        let word = "CLIENT_ERROR cannot increment or decrement non-numeric value";
        assert_eq!(after(word), (failed.clone(), false, true));
        assert_eq!(after("SERVER_ERROR out of memory"), (failed, true, true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reply_or_none(input in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((_, length))) = reply(&input) {
                prop_assert!(0 < length && length <= input.len());
            }
        }

        #[test]
        fn any_value_is_read_as_it_was_written(
            value in prop::collection::vec(any::<u8>(), 0..200),
            (number, version, cut) in any::<(u32, u64, usize)>(),
        ) {
            let mut input = format!("VALUE a {number} {} {version}\r\n", value.len()).into_bytes();
            input.extend_from_slice(&value);
            input.extend_from_slice(b"\r\nEND\r\n");
            let mut reader = asked(0, &["a"]);
            prop_assert_eq!(reader.read(&input[..cut % input.len()]), Ok(None));
            let outcome = reader.read(&input).unwrap().unwrap();
            prop_assert_eq!(outcome.length, input.len());
            let replies = Replies { outcome: &outcome, input: &input };
            prop_assert_eq!(replies.item(0), Some(Item { value: &value[..], number, version }));
        }
    }
}
