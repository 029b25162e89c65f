//! The commands of Valkey and Redis that counting needs, and how items are kept there.
//!
//! Every item is a string, so that one `MGET` reads all items of an exchange. A count is its digits, after a reset followed by
//! a space and the number of the reset. A value begins with `=`, its version in 8 bytes and its number in 4.
//!
//! The gateway draws versions at random: a server that replaces a failed one may lack its last writes, and would give out a
//! version of its own counting once more for something else.
//!
//! An exchange is its writes in the order in which they were collected, and one `MGET`. Each has one reply. In a cluster, each
//! item has an `MGET` of its own: one for items of several slots is refused, and one for several items of a slot that moves, too.

use std::mem;

use super::super::protocol::{Commands, Condition, Echo, Initial, Lifetime, Name, Reader};
use super::frames;
use super::replies::{Expected, MARK};
use super::scripts::{ADD, APPEND, REPLACE, Script};

#[derive(Debug, Default)]
pub(super) struct FrameCommands {
    /// The writes, and what is expected in reply to each.
    writes: Vec<u8>,
    expected: Vec<Expected>,
    /// The names to be read, as words.
    names: Vec<u8>,
    reads: usize,
    /// Whether each item is read by a command of its own, which then stands before its name.
    is_cluster: bool,
    /// The name of the present command.
    name: Vec<u8>,
}

impl Commands for FrameCommands {
    fn read(&mut self, name: Name<'_>) {
        self.name.clear();
        name(&mut self.name);
        if self.is_cluster {
            read(1, &mut self.names);
        }
        frames::word(&self.name, &mut self.names);
        self.reads += 1;
    }

    fn add(&mut self, name: Name<'_>, amount: i64, initial: Option<Initial>, echo: Echo) {
        self.call(&ADD, name, if initial.is_some() { 3 } else { 1 }, Expected::Sum(echo));
        frames::number(amount, &mut self.writes);
        if let Some(Initial { count, lifetime }) = initial {
            frames::number(count, &mut self.writes);
            frames::number(lifetime.seconds, &mut self.writes);
        }
    }

    fn store_count(&mut self, name: Name<'_>, count: u64, lifetime: Lifetime, number: u32) {
        self.set(name, [format!("{count} {number}").as_bytes()], lifetime, false);
    }

    fn store(&mut self, name: Name<'_>, value: &[u8], condition: Condition, lifetime: Lifetime, number: u32) {
        let (version, number) = (fastrand::u64(..).to_be_bytes(), number.to_be_bytes());
        let value = [&[MARK], &version[..], &number, value];
        if let Condition::Version(version) = condition {
            self.call(&REPLACE, name, 3, Expected::Replaced);
            frames::word_of([&[MARK], &version.to_be_bytes()], &mut self.writes);
            frames::word_of(value, &mut self.writes);
            return frames::number(lifetime.seconds, &mut self.writes);
        }
        self.set(name, value, lifetime, condition == Condition::Missing);
    }

    fn append(&mut self, name: Name<'_>, more: &[u8], lifetime: Lifetime) {
        self.call(&APPEND, name, 3, Expected::Replaced);
        frames::word_of([&[MARK], &fastrand::u64(..).to_be_bytes()], &mut self.writes);
        frames::word(more, &mut self.writes);
        frames::number(lifetime.seconds, &mut self.writes);
    }

    fn delete(&mut self, name: Name<'_>) {
        self.begin(2, &["$3\r\nDEL\r\n"], name, Expected::Sum(Echo::Quiet));
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Box<dyn Reader> {
        out.append(&mut self.writes);
        let (mut expected, reads) = (mem::take(&mut self.expected), mem::take(&mut self.reads));
        if self.is_cluster {
            expected.resize(expected.len() + reads, Expected::Items(1));
        } else if reads > 0 {
            read(reads, out);
            expected.push(Expected::Items(reads));
        }
        out.append(&mut self.names);
        Box::new(expected)
    }
}

/// Begins to read so many items.
fn read(names: usize, out: &mut Vec<u8>) {
    frames::command(1 + names, out);
    frames::word(b"MGET", out);
}

impl FrameCommands {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self { is_cluster, ..Self::default() }
    }

    /// Begins a command of so many words. The first of them, as bytes of the protocol, come before a name.
    fn begin(&mut self, words: usize, first: &[&str], name: Name<'_>, expected: Expected) {
        self.name.clear();
        name(&mut self.name);
        frames::command(words, &mut self.writes);
        first.iter().for_each(|bytes| self.writes.extend_from_slice(bytes.as_bytes()));
        frames::word(&self.name, &mut self.writes);
        self.expected.push(expected);
    }

    fn call(&mut self, script: &Script, name: Name<'_>, arguments: usize, expected: Expected) {
        let first = ["$7\r\nEVALSHA\r\n$40\r\n", script.digest, "\r\n$1\r\n1\r\n"];
        self.begin(4 + arguments, &first, name, expected);
    }

    /// Stores a value of these parts, whatever is there or only if nothing is.
    fn set<const PARTS: usize>(&mut self, name: Name<'_>, value: [&[u8]; PARTS], lifetime: Lifetime, is_first: bool) {
        self.begin(if is_first { 6 } else { 5 }, &["$3\r\nSET\r\n"], name, Expected::Stored);
        frames::word_of(value, &mut self.writes);
        self.writes.extend_from_slice(b"$2\r\nEX\r\n");
        frames::number(lifetime.seconds, &mut self.writes);
        if is_first {
            frames::word(b"NX", &mut self.writes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::protocol::Replies;
    use crate::store::shared::valkey::frames::Frame;

    const MINUTE: Lifetime = Lifetime { seconds: 60, from: 1_700_000_000 };

    fn named(name: &str) -> impl Fn(&mut Vec<u8>) {
        move |out| out.extend_from_slice(name.as_bytes())
    }

    /// The words of all commands; `#` stands for the digest of a script, and `v` for the bytes of a version.
    fn words(collect: impl FnOnce(&mut FrameCommands)) -> Vec<String> {
        let (mut commands, mut out) = (FrameCommands::default(), Vec::new());
        collect(&mut commands);
        commands.finish(&mut out);
        let (mut at, mut all) = (0, Vec::new());
        while let Some((command, end)) = frames::whole(&out, at).unwrap() {
            all.extend(command);
            at = end;
        }
        let word = |frame| match frame {
            Frame::Several(words) => format!("{words}:"),
            Frame::Text(place) if place.len() == 40 => "#".to_owned(),
            Frame::Text(place) if out[place.start] == MARK => {
                format!("=v{}", out[place.start + 9..place.end].escape_ascii())
            }
            Frame::Text(place) => out[place].escape_ascii().to_string(),
            other => panic!("{other:?}"),
        };
        all.into_iter().map(word).collect()
    }

    #[test]
    fn commands_are_those_of_the_protocol() {
        let written = |write: &dyn Fn(&mut FrameCommands)| words(write).join(" ");
        let initial = Some(Initial { count: 12, lifetime: MINUTE });
        let (name, echo) = (&named("k"), Echo::Quiet);
        assert_eq!(written(&|commands| commands.add(name, 3, initial, echo)), "7: EVALSHA # 1 k 3 12 60");
        assert_eq!(written(&|commands| commands.add(name, 3, None, echo)), "5: EVALSHA # 1 k 3");
        assert_eq!(written(&|commands| commands.add(name, -3, None, echo)), "5: EVALSHA # 1 k -3");
        assert_eq!(written(&|commands| commands.store_count(name, 0, MINUTE, 77)), "5: SET k 0 77 EX 60");
        let stored = |condition| written(&|commands| commands.store(name, b"\x01", condition, MINUTE, 77));
        assert_eq!(stored(Condition::Always), "5: SET k =v\\x00\\x00\\x00M\\x01 EX 60");
        assert_eq!(stored(Condition::Missing), "6: SET k =v\\x00\\x00\\x00M\\x01 EX 60 NX");
        assert_eq!(stored(Condition::Version(9)), "7: EVALSHA # 1 k =v =v\\x00\\x00\\x00M\\x01 60");
        assert_eq!(written(&|commands| commands.delete(name)), "2: DEL k");
        assert_eq!(written(&|commands| commands.append(name, b"xy", MINUTE)), "7: EVALSHA # 1 k =v xy 60");
    }

    #[test]
    fn writes_come_before_reads_whatever_was_collected_first() {
        let (mut commands, mut out) = (FrameCommands::default(), Vec::new());
        for _ in 0..2 {
            commands.read(&named("b"));
            commands.store_count(&named("a"), 0, MINUTE, 1);
            commands.read(&named("c"));
            out.clear();
            commands.finish(&mut out);
            let text = "*5\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n0 1\r\n$2\r\nEX\r\n$2\r\n60\r\n*3\r\n$4\r\nMGET\r\n$1\r\nb\r\n$1\r\nc\r\n";
            assert_eq!(String::from_utf8_lossy(&out), text, "what is collected next begins anew");
        }
    }

    #[test]
    fn in_a_cluster_each_item_is_read_by_itself() {
        let (mut commands, mut out) = (FrameCommands::new(true), Vec::new());
        commands.read(&named("b"));
        commands.store_count(&named("a"), 0, MINUTE, 1);
        commands.read(&named("c"));
        let mut reader = commands.finish(&mut out);
        let text = "*5\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n0 1\r\n$2\r\nEX\r\n$2\r\n60\r\n\
                    *2\r\n$4\r\nMGET\r\n$1\r\nb\r\n*2\r\n$4\r\nMGET\r\n$1\r\nc\r\n";
        assert_eq!(String::from_utf8_lossy(&out), text);
        let input = b"+OK\r\n*1\r\n$1\r\n5\r\n*1\r\n_\r\n";
        let outcome = reader.read(input).unwrap().unwrap();
        assert_eq!((outcome.length, outcome.is_read), (input.len(), true));
        let replies = Replies { outcome: &outcome, input };
        assert_eq!([0, 1].map(|place| replies.item(place).and_then(|item| item.count())), [Some(5), None]);
    }

    #[test]
    fn versions_differ() {
        let mut commands = FrameCommands::default();
        let mut version = || {
            commands.append(&named("a"), b"", MINUTE);
            mem::take(&mut commands.writes)
        };
        assert_ne!(version(), version());
    }
}
