//! A Memcached in memory: it executes the coordinator's commands, and loses what it is told to lose.

use std::collections::BTreeMap;

use crate::base::clock::Time;
use crate::store::shared::protocol::{Replies, Written};

/// In seconds; longer lifetimes are moments.
const LONGEST_RELATIVE: u64 = 30 * 86_400;

#[derive(Debug, Default)]
pub(super) struct Memcached {
    items: BTreeMap<String, Item>,
    versions: u64,
    /// Which of the next commands fail; the lowest bit is the first.
    failing: u64,
}

#[derive(Debug)]
struct Item {
    value: Vec<u8>,
    flags: u32,
    version: u64,
    /// In microseconds since 1970.
    end: u64,
}

impl Memcached {
    pub(super) fn remove(&mut self, name: &str) {
        self.items.remove(name);
    }

    pub(super) fn largest(&self) -> usize {
        self.items.values().map(|item| item.value.len()).max().unwrap_or(0)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.items.keys().cloned().collect()
    }

    /// The lowest bit is the next command.
    pub(super) fn fail(&mut self, failing: u64) {
        self.failing = failing;
    }

    pub(super) fn execute(&mut self, mut commands: &[u8], now: Time) -> Vec<u8> {
        self.items.retain(|_, item| item.end > now.micros());
        let mut replies = Vec::new();
        while !commands.is_empty() {
            let line = cut_line(&mut commands);
            let words: Vec<&str> = std::str::from_utf8(line).unwrap().split(' ').collect();
            if words == ["version"] {
                replies.extend_from_slice(b"VERSION 1.6.18\r\n");
                continue;
            }
            let (name, flags) = (words[1], &words[2..]);
            let failing = self.failing & 1 == 1;
            self.failing >>= 1;
            match words[0] {
                "gets" if !failing => self.get(&words[1..], &mut replies),
                "ma" if !failing => self.add(name, flags, now, &mut replies),
                "ms" => {
                    let value = cut_line_of(flags[0].parse().unwrap(), &mut commands);
                    if failing {
                        // If there is no room for the new value, the old one goes, too.
                        self.items.remove(name);
                    } else {
                        self.set(name, value, &flags[1..], now, &mut replies);
                    }
                }
                "touch" if !failing => {
                    assert_eq!(flags[1..], ["noreply"]);
                    self.items
                        .get_mut(name)
                        .into_iter()
                        .for_each(|item| item.end = end(flags[0].parse().unwrap(), now));
                }
                "gets" | "ma" | "touch" => {}
                other => panic!("{other} is no command"),
            }
            if failing {
                replies.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n");
            }
        }
        replies
    }

    fn get(&self, names: &[&str], replies: &mut Vec<u8>) {
        for name in names {
            if let Some(Item { value, flags, version, .. }) = self.items.get(*name) {
                replies.extend_from_slice(format!("VALUE {name} {flags} {} {version}\r\n", value.len()).as_bytes());
                replies.extend_from_slice(value);
                replies.extend_from_slice(b"\r\n");
            }
        }
        replies.extend_from_slice(b"END\r\n");
    }

    fn add(&mut self, name: &str, flags: &[&str], now: Time, replies: &mut Vec<u8>) {
        let number = |flag| number(flags, flag);
        self.versions += 1;
        let version = self.versions;
        let amount = number("D").unwrap();
        match (self.items.get_mut(name), number("N")) {
            (Some(item), _) => {
                let before: u64 = std::str::from_utf8(&item.value).unwrap().trim_end().parse().unwrap();
                let is_less = flags.contains(&"MD");
                let after = if is_less { before.saturating_sub(amount) } else { before.wrapping_add(amount) };
                let length = if is_less { item.value.len() } else { 0 };
                item.value = format!("{after:<length$}").into_bytes();
                item.version = version;
                if !flags.contains(&"q") {
                    item.tell(flags, replies);
                }
            }
            (None, None) => tell("NF", flags, replies),
            (None, Some(lifetime)) => {
                let value = number("J").unwrap().to_string().into_bytes();
                let item = Item { value, flags: 0, version, end: end(lifetime, now) };
                // Even if it is quiet, as Memcached did before 1.6.40.
                item.tell(flags, replies);
                self.items.insert(name.to_owned(), item);
            }
        }
    }

    fn set(&mut self, name: &str, value: &[u8], flags: &[&str], now: Time, replies: &mut Vec<u8>) {
        assert!(flags.contains(&"q"));
        if flags.contains(&"MA") {
            self.versions += 1;
            let Some(item) = self.items.get_mut(name) else { return tell("NS", flags, replies) };
            item.value.extend_from_slice(value);
            item.version = self.versions;
            return;
        }
        let there = self.items.get(name).map(|item| item.version);
        match (number(flags, "C"), there) {
            (Some(_), None) => tell("NF", flags, replies),
            (Some(wanted), Some(there)) if wanted != there => tell("EX", flags, replies),
            (None, Some(_)) if flags.contains(&"ME") => tell("NS", flags, replies),
            _ => {
                self.versions += 1;
                let end = end(number(flags, "T").unwrap(), now);
                let stored = u32::try_from(number(flags, "F").unwrap_or(0)).unwrap();
                let item = Item { value: value.to_vec(), flags: stored, version: self.versions, end };
                self.items.insert(name.to_owned(), item);
            }
        }
    }
}

impl Item {
    fn tell(&self, flags: &[&str], replies: &mut Vec<u8>) {
        if !flags.contains(&"v") {
            return tell("HD", flags, replies);
        }
        tell(&format!("VA {}", self.value.len()), flags, replies);
        replies.extend_from_slice(&self.value);
        replies.extend_from_slice(b"\r\n");
    }
}

fn tell(what: &str, flags: &[&str], replies: &mut Vec<u8>) {
    let tag = flags.iter().find(|word| word.starts_with('O')).unwrap();
    replies.extend_from_slice(format!("{what} {tag}\r\n").as_bytes());
}

/// By how much these commands would have changed sums.
pub(super) fn changes(commands: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(commands);
    let words = text.lines().filter(|line| line.starts_with("ma ")).flat_map(|line| line.split(' '));
    words.filter_map(|word| word.strip_prefix('D')?.parse::<u64>().ok()).sum()
}

/// Whether the result of some write is unknown.
pub(super) fn is_in_doubt(commands: &[u8], replies: Replies<'_>) -> bool {
    let is_write = |line: &&[u8]| line.starts_with(b"ma ") || line.starts_with(b"ms ");
    let writes = commands.split(|byte| *byte == b'\n').filter(is_write).count();
    (0..writes).any(|tag| replies.written(tag) == Written::Unknown)
}

fn number(flags: &[&str], flag: &str) -> Option<u64> {
    flags.iter().find_map(|word| word.strip_prefix(flag)?.parse().ok())
}

fn end(lifetime: u64, now: Time) -> u64 {
    let seconds = if lifetime > LONGEST_RELATIVE { lifetime } else { now.micros() / 1_000_000 + lifetime };
    seconds * 1_000_000
}

fn cut_line<'a>(commands: &mut &'a [u8]) -> &'a [u8] {
    let length = commands.windows(2).position(|two| two == b"\r\n").unwrap();
    cut_line_of(length, commands)
}

fn cut_line_of<'a>(length: usize, commands: &mut &'a [u8]) -> &'a [u8] {
    let (line, rest) = commands.split_at(length);
    *commands = rest.strip_prefix(b"\r\n").unwrap();
    line
}
