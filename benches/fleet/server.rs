//! A Memcached in memory: it executes the commands of gateways byte by byte like Memcached 1.6.18. A test sends the
//! same random commands to both and compares the replies.

use std::collections::HashMap;

/// Longer lifetimes are moments, in seconds since 1970.
const LONGEST_RELATIVE: u64 = 30 * 86_400;
/// Executions between two searches for expired items.
const SWEEP: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    pub(crate) exchanges: u64,
    /// Commands that change something.
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

#[derive(Default)]
pub(crate) struct Server {
    items: HashMap<Vec<u8>, Item>,
    versions: u64,
    executions: u64,
}

struct Item {
    value: Vec<u8>,
    flags: u64,
    version: u64,
    /// In seconds since 1970.
    end: u64,
}

impl Work {
    pub(crate) fn add(&mut self, other: Self) {
        self.exchanges += other.exchanges;
        self.writes += other.writes;
        self.reads += other.reads;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

impl Server {
    /// Executes all commands of an exchange at `now`, in seconds since 1970. Returns the replies.
    ///
    /// # Panics
    /// If a command is not one that gateways write.
    pub(crate) fn execute(&mut self, mut commands: &[u8], now: u64) -> (Vec<u8>, Work) {
        let mut replies = Vec::new();
        let mut work = Work { exchanges: 1, bytes_in: commands.len() as u64, ..Work::default() };
        self.executions += 1;
        if self.executions.is_multiple_of(SWEEP) {
            self.items.retain(|_, item| item.end > now);
        }
        while !commands.is_empty() {
            let line = cut_line(&mut commands);
            let mut words = line.split(|byte| *byte == b' ');
            let verb = words.next().unwrap_or_default();
            match verb {
                b"version" => replies.extend_from_slice(b"VERSION 1.6.18\r\n"),
                b"mn" => replies.extend_from_slice(b"MN\r\n"),
                b"gets" => work.reads += self.gets(words, now, &mut replies),
                b"ma" => self.arithmetic(words.next().unwrap(), &Flags::of(words), now, &mut replies),
                b"ms" => {
                    let (name, length) = (words.next().unwrap(), words.next().unwrap());
                    let value = cut(usize::try_from(number(length)).unwrap(), &mut commands);
                    self.set(name, value, &Flags::of(words), now, &mut replies);
                }
                b"touch" => {
                    let (name, lifetime) = (words.next().unwrap(), number(words.next().unwrap()));
                    assert_eq!(words.next(), Some(&b"noreply"[..]));
                    if let Some(item) = self.item(name, now) {
                        item.end = end(lifetime, now);
                    }
                }
                other => panic!("{} is no command that gateways write", String::from_utf8_lossy(other)),
            }
            work.writes += u64::from(matches!(verb, b"ma" | b"ms" | b"touch"));
        }
        work.bytes_out = replies.len() as u64;
        (replies, work)
    }

    /// `None` if the item has expired.
    fn item(&mut self, name: &[u8], now: u64) -> Option<&mut Item> {
        self.items.get_mut(name).filter(|item| item.end > now)
    }

    fn gets<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>, now: u64, replies: &mut Vec<u8>) -> u64 {
        let mut reads = 0;
        for name in names {
            reads += 1;
            if let Some(Item { value, flags, version, .. }) = self.item(name, now) {
                replies.extend_from_slice(b"VALUE ");
                replies.extend_from_slice(name);
                replies.extend_from_slice(format!(" {flags} {} {version}\r\n", value.len()).as_bytes());
                replies.extend_from_slice(value);
                replies.extend_from_slice(b"\r\n");
            }
        }
        replies.extend_from_slice(b"END\r\n");
        reads
    }

    fn arithmetic(&mut self, name: &[u8], flags: &Flags<'_>, now: u64, replies: &mut Vec<u8>) {
        let next = self.versions + 1;
        let told = if let Some(item) = self.item(name, now) {
            let (before, amount) = (number(item.value.trim_ascii_end()), flags.number(b'D').unwrap());
            let is_less = flags.find(b'M').is_some_and(|mode| mode == b"D");
            let after = if is_less { before.saturating_sub(amount) } else { before.wrapping_add(amount) };
            let digits = after.to_string().into_bytes();
            // Spaces fill up a longer previous value.
            let length = item.value.len().max(digits.len());
            item.value.clone_from(&digits);
            item.value.resize(length, b' ');
            item.version = next;
            self.versions = next;
            if flags.is_quiet() {
                return;
            }
            digits
        } else if let Some(lifetime) = flags.number(b'N') {
            let value = flags.find(b'J').unwrap().to_vec();
            let item = Item { value: value.clone(), flags: 0, version: next, end: end(lifetime, now) };
            self.items.insert(name.to_vec(), item);
            self.versions = next;
            // Memcached reports created items even in quiet mode.
            value
        } else {
            return flags.tell("NF", replies);
        };
        if !flags.has(b'v') {
            return flags.tell("HD", replies);
        }
        flags.tell(&format!("VA {}", told.len()), replies);
        replies.extend_from_slice(&told);
        replies.extend_from_slice(b"\r\n");
    }

    fn set(&mut self, name: &[u8], value: &[u8], flags: &Flags<'_>, now: u64, replies: &mut Vec<u8>) {
        let next = self.versions + 1;
        let there = self.item(name, now);
        if flags.find(b'M').is_some_and(|mode| mode == b"A") {
            let Some(item) = there else { return flags.tell("NS", replies) };
            item.value.extend_from_slice(value);
            item.version = next;
            self.versions = next;
            return flags.tell_success(replies);
        }
        let is_refused = match (flags.number(b'C'), there) {
            (Some(_), None) => Some("NF"),
            (Some(wanted), Some(item)) if wanted != item.version => Some("EX"),
            (None, Some(_)) if flags.find(b'M').is_some_and(|mode| mode == b"E") => Some("NS"),
            _ => None,
        };
        if let Some(refused) = is_refused {
            return flags.tell(refused, replies);
        }
        let (lifetime, stored) = (flags.number(b'T').unwrap(), flags.number(b'F').unwrap_or(0));
        let item = Item { value: value.to_vec(), flags: stored, version: next, end: end(lifetime, now) };
        self.items.insert(name.to_vec(), item);
        self.versions = next;
        flags.tell_success(replies);
    }
}

/// The flags of a meta command: a letter each, some with a value.
struct Flags<'a>(Vec<&'a [u8]>);

impl<'a> Flags<'a> {
    fn of(words: impl Iterator<Item = &'a [u8]>) -> Self {
        Self(words.collect())
    }

    fn find(&self, letter: u8) -> Option<&'a [u8]> {
        self.0.iter().find(|flag| flag.first() == Some(&letter)).map(|flag| &flag[1..])
    }

    fn has(&self, letter: u8) -> bool {
        self.find(letter).is_some()
    }

    fn number(&self, letter: u8) -> Option<u64> {
        self.find(letter).map(number)
    }

    fn is_quiet(&self) -> bool {
        self.has(b'q')
    }

    fn tell_success(&self, replies: &mut Vec<u8>) {
        if !self.is_quiet() {
            self.tell("HD", replies);
        }
    }

    /// Adds the tag of the command.
    fn tell(&self, what: &str, replies: &mut Vec<u8>) {
        replies.extend_from_slice(what.as_bytes());
        if let Some(tag) = self.find(b'O') {
            replies.extend_from_slice(b" O");
            replies.extend_from_slice(tag);
        }
        replies.extend_from_slice(b"\r\n");
    }
}

fn end(lifetime: u64, now: u64) -> u64 {
    if lifetime > LONGEST_RELATIVE { lifetime } else { now + lifetime }
}

fn number(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

fn cut_line<'a>(commands: &mut &'a [u8]) -> &'a [u8] {
    let length = commands.iter().position(|byte| *byte == b'\r').unwrap();
    cut(length, commands)
}

fn cut<'a>(length: usize, commands: &mut &'a [u8]) -> &'a [u8] {
    let (line, rest) = commands.split_at(length);
    *commands = rest.strip_prefix(b"\r\n").unwrap();
    line
}
