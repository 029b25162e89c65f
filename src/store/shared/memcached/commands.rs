//! The commands of Memcached's protocol that counting needs.
//!
//! An exchange is written in this order, and Memcached replies in it:
//!
//! 1. The writes: `ma` adds to a count or takes from it, `ms` stores a value or appends to it. They are quiet and carry a
//!    tag, so an expected success has no reply. Every reply names its tag.
//! 2. `version`, if there are any. Its reply separates errors of the writes from errors of the reads. (`mn` would do, but
//!    Memcached sends its reply at once.)
//! 3. The reads: `gets` with all names. One command reads any number of items, while Memcached serves only 20 commands of a
//!    connection at a time (`-R`), and sends what it has so far after each such turn and after each `gets`. Items come in
//!    the order of their names, without the missing ones.
//!
//! If each write had a reply, an exchange about 64 or 128 keys would cost Memcached 17 to 27 % more, because it would send
//! the replies in several pieces.
//!
//! An error has no tag. So after an error it is often unknown which write failed and what became of the other quiet writes:
//! they are treated like writes without an answer.
//!
//! Source: <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>.

use std::mem;

use memchr::memchr;

use super::super::protocol::{Commands, Condition, Echo, Initial, Lifetime, Name, Reader, Written};
use super::replies::TextReader;

/// The longest line of names in bytes, up to one more name: Memcached reads into 16 KiB, and must grow that for longer lines.
const LONGEST_READ: usize = 14 << 10;

/// The protocol takes longer lifetimes than this as moments, in seconds since 1970.
const LONGEST_RELATIVE: u64 = 30 * 86_400;
/// The latest moment that Memcached can read: 32 bits with a sign.
const LATEST: u64 = (1 << 31) - 1;

#[derive(Debug, Default)]
pub(super) struct TextCommands {
    /// The writes, and what is known of each so far.
    writes: Vec<u8>,
    written: Vec<Written>,
    /// The number of commands that never have a reply.
    silent: usize,
    /// The names to be read, each followed by a space.
    names: Vec<u8>,
    reads: usize,
}

impl Commands for TextCommands {
    fn read(&mut self, name: Name<'_>) {
        name(&mut self.names);
        self.names.push(b' ');
        self.reads += 1;
    }

    fn add(&mut self, name: Name<'_>, amount: i64, initial: Option<Initial>, echo: Echo) {
        self.begin(b"ma ", name);
        if let Some(Initial { count, lifetime }) = initial {
            self.number(b" N", wire(lifetime));
            self.number(b" J", count);
        }
        if amount < 0 {
            self.writes.extend_from_slice(b" MD");
        }
        self.number(b" D", amount.unsigned_abs());
        match echo {
            Echo::Quiet => self.end(b" q", Written::Unknown),
            Echo::Count => self.end(b" v", Written::Failed),
        }
    }

    fn store_count(&mut self, name: Name<'_>, count: u64, lifetime: Lifetime, number: u32) {
        self.store(name, itoa::Buffer::new().format(count).as_bytes(), Condition::Always, lifetime, number);
    }

    fn store(&mut self, name: Name<'_>, value: &[u8], condition: Condition, lifetime: Lifetime, number: u32) {
        self.begin(b"ms ", name);
        self.number(b" ", value.len() as u64);
        self.number(b" T", wire(lifetime));
        match condition {
            Condition::Missing => self.writes.extend_from_slice(b" ME"),
            Condition::Version(version) => self.number(b" C", version),
            Condition::Always => {}
        }
        if number > 0 {
            self.number(b" F", number.into());
        }
        self.end(b" q", Written::Unknown);
        self.block(value);
    }

    fn append(&mut self, name: Name<'_>, more: &[u8], lifetime: Lifetime) {
        self.begin(b"ms ", name);
        self.number(b" ", more.len() as u64);
        self.writes.extend_from_slice(b" MA");
        self.end(b" q", Written::Unknown);
        self.block(more);
        // Appending does not extend the lifetime.
        self.begin(b"touch ", name);
        self.number(b" ", wire(lifetime));
        self.writes.extend_from_slice(b" noreply\r\n");
        self.silent += 1;
    }

    fn delete(&mut self, name: Name<'_>) {
        self.begin(b"md ", name);
        self.end(b" q", Written::Unknown);
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Box<dyn Reader> {
        if !self.writes.is_empty() {
            out.append(&mut self.writes);
            out.extend_from_slice(b"version\r\n");
        }
        let lines = write_reads(&self.names, out);
        let (written, silent) = (mem::take(&mut self.written), mem::take(&mut self.silent));
        let (names, reads) = (mem::take(&mut self.names), mem::take(&mut self.reads));
        Box::new(TextReader::new(written, silent, names, reads, lines))
    }
}

impl TextCommands {
    fn begin(&mut self, verb: &[u8], name: Name<'_>) {
        self.writes.extend_from_slice(verb);
        name(&mut self.writes);
    }

    fn number(&mut self, before: &[u8], number: u64) {
        self.writes.extend_from_slice(before);
        self.writes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Ends a write; `expected` is its result if no reply comes.
    fn end(&mut self, flag: &[u8], expected: Written) {
        self.writes.extend_from_slice(flag);
        self.number(b" O", self.written.len() as u64);
        self.writes.extend_from_slice(b"\r\n");
        self.written.push(expected);
    }

    fn block(&mut self, block: &[u8]) {
        self.writes.extend_from_slice(block);
        self.writes.extend_from_slice(b"\r\n");
    }
}

fn wire(Lifetime { seconds, from }: Lifetime) -> u64 {
    let wire = if seconds > LONGEST_RELATIVE { from.saturating_add(seconds) } else { seconds };
    wire.min(LATEST)
}

/// Writes the commands that read these names; returns their number.
fn write_reads(names: &[u8], out: &mut Vec<u8>) -> usize {
    let (mut rest, mut lines) = (names, 0);
    while !rest.is_empty() {
        let cut = rest.len().min(LONGEST_READ);
        // The line ends after the name that contains `cut`; the last name, too, is followed by a space.
        let length = cut + memchr(b' ', &rest[cut - 1..]).unwrap_or(0);
        out.extend_from_slice(b"gets ");
        out.extend_from_slice(rest[..length].trim_ascii_end());
        out.extend_from_slice(b"\r\n");
        rest = &rest[length..];
        lines += 1;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Lifetime = Lifetime { seconds: 60, from: 1_700_000_000 };

    fn named(name: &str) -> impl Fn(&mut Vec<u8>) {
        move |out| out.extend_from_slice(name.as_bytes())
    }

    fn written(collect: impl FnOnce(&mut TextCommands)) -> String {
        let (mut commands, mut out) = (TextCommands::default(), Vec::new());
        collect(&mut commands);
        commands.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_are_those_of_the_protocol() {
        let name = || named("gw:l:k#s.7");
        let write = |write: &dyn Fn(&mut TextCommands)| written(write).strip_suffix("version\r\n").unwrap().to_owned();
        let initial = Some(Initial { count: 12, lifetime: MINUTE });
        let added = |initial, echo| write(&|commands| commands.add(&name(), 3, initial, echo));
        assert_eq!(added(initial, Echo::Quiet), "ma gw:l:k#s.7 N60 J12 D3 q O0\r\n");
        assert_eq!(added(initial, Echo::Count), "ma gw:l:k#s.7 N60 J12 D3 v O0\r\n");
        assert_eq!(added(None, Echo::Quiet), "ma gw:l:k#s.7 D3 q O0\r\n");
        assert_eq!(write(&|commands| commands.add(&name(), -3, None, Echo::Quiet)), "ma gw:l:k#s.7 MD D3 q O0\r\n");
        let stored = |condition| write(&|commands| commands.store(&name(), b"\x01\r\n", condition, MINUTE, 0));
        assert_eq!(stored(Condition::Version(9)), "ms gw:l:k#s.7 3 T60 C9 q O0\r\n\x01\r\n\r\n");
        assert_eq!(stored(Condition::Missing), "ms gw:l:k#s.7 3 T60 ME q O0\r\n\x01\r\n\r\n");
        assert_eq!(
            write(&|commands| commands.store_count(&name(), 0, MINUTE, 77)),
            "ms gw:l:k#s.7 1 T60 F77 q O0\r\n0\r\n"
        );
        assert_eq!(write(&|commands| commands.delete(&name())), "md gw:l:k#s.7 q O0\r\n");
        assert_eq!(
            write(&|commands| commands.append(&name(), b"xy", MINUTE)),
            "ms gw:l:k#s.7 2 MA q O0\r\nxy\r\ntouch gw:l:k#s.7 60 noreply\r\n"
        );
    }

    #[test]
    fn writes_come_before_reads_whatever_was_collected_first() {
        let (mut commands, mut out) = (TextCommands::default(), Vec::new());
        for _ in 0..2 {
            commands.read(&named("b"));
            commands.append(&named("a"), b"x", MINUTE);
            commands.read(&named("c"));
            commands.add(&named("b"), -2, None, Echo::Count);
            out.clear();
            commands.finish(&mut out);
            let text = "ms a 1 MA q O0\r\nx\r\ntouch a 60 noreply\r\nma b MD D2 v O1\r\nversion\r\ngets b c\r\n";
            assert_eq!(String::from_utf8_lossy(&out), text, "what is collected next begins anew");
        }
    }

    #[test]
    fn all_names_are_read_by_lines_that_are_not_too_long() {
        for count in [1, 2, 325, 326, 2_000] {
            let names: Vec<String> = (0..count).map(|name| format!("gw:l:{name:032}#s.7{}", name % 10)).collect();
            let text = written(|commands| names.iter().for_each(|name| commands.read(&named(name))));
            assert!(text.lines().all(|line| line.len() <= LONGEST_READ + 250));
            let sent: Vec<&str> =
                text.lines().flat_map(|line| line.strip_prefix("gets ").unwrap().split(' ')).collect();
            assert_eq!(sent, names);
            assert!(text.lines().count() <= count / 300 + 1);
        }
    }

    #[test]
    fn long_lifetimes_are_moments() {
        let lived = |seconds| wire(Lifetime { seconds, from: 1_700_000_000 });
        let days = 86_400;
        assert_eq!([lived(125), lived(30 * days), lived(62 * days)], [125, 30 * days, 1_700_000_000 + 62 * days]);
        assert_eq!(lived(u64::MAX), (1 << 31) - 1);
    }
}
