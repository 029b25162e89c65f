//! A Memcached in memory: it executes the commands that the ledger writes, and loses what it is told to lose.

use std::collections::BTreeMap;

use crate::clock::Time;

/// Longer lifetimes are moments.
const LONGEST_RELATIVE: u64 = 30 * 86_400;

/// The items, by name.
#[derive(Debug, Default)]
pub(super) struct Model {
    items: BTreeMap<String, Item>,
    versions: u64,
    /// Which of the next commands fail: the lowest bit stands for the first.
    failing: u64,
}

#[derive(Debug)]
struct Item {
    value: Vec<u8>,
    version: u64,
    /// In microseconds since 1970.
    end: u64,
}

impl Model {
    /// Loses everything, and begins its version numbers anew.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Loses one of its items.
    pub(super) fn evict(&mut self, number: usize) {
        let name = self.items.keys().cycle().nth(number % self.items.len().max(1)).cloned();
        name.into_iter().for_each(|name| drop(self.items.remove(&name)));
    }

    /// The bytes of its largest value.
    pub(super) fn largest(&self) -> usize {
        self.items.values().map(|item| item.value.len()).max().unwrap_or(0)
    }

    /// Lets some of the next commands fail.
    pub(super) fn fail(&mut self, failing: u64) {
        self.failing = failing;
    }

    /// Executes every command and returns the answers.
    pub(super) fn execute(&mut self, mut commands: &[u8], now: Time) -> Vec<u8> {
        self.items.retain(|_, item| item.end > now.micros());
        let mut answers = Vec::new();
        while !commands.is_empty() {
            let line = cut_line(&mut commands);
            let words: Vec<&str> = std::str::from_utf8(line).unwrap().split(' ').collect();
            let (name, flags) = (words[1], &words[2..]);
            let failing = self.failing & 1 == 1;
            self.failing >>= 1;
            match words[0] {
                "mg" if !failing => self.get(name, flags, now, &mut answers),
                "ma" if !failing => self.add(name, flags, now, &mut answers),
                "ms" => {
                    let value = cut_line_of(flags[0].parse().unwrap(), &mut commands);
                    if failing {
                        // Where there is no room for the new value, the old one goes.
                        self.items.remove(name);
                    } else {
                        self.set(name, value, &flags[1..], now, &mut answers);
                    }
                }
                "mg" | "ma" => {}
                other => panic!("{other} is no command"),
            }
            if failing {
                answers.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n");
            }
        }
        answers
    }

    fn get(&mut self, name: &str, flags: &[&str], now: Time, answers: &mut Vec<u8>) {
        match self.items.get_mut(name) {
            Some(item) => {
                let lifetime = flags.iter().find_map(|word| word.strip_prefix('T')?.parse().ok());
                lifetime.into_iter().for_each(|lifetime| item.end = end(lifetime, now));
                item.tell(flags, answers);
            }
            None => answers.extend_from_slice(b"EN\r\n"),
        }
    }

    fn add(&mut self, name: &str, flags: &[&str], now: Time, answers: &mut Vec<u8>) {
        let number = |flag: &str| flags.iter().find_map(|word| word.strip_prefix(flag)?.parse::<u64>().ok());
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
                item.tell(flags, answers);
            }
            (None, None) => answers.extend_from_slice(b"NF\r\n"),
            (None, Some(lifetime)) => {
                let value = number("J").unwrap().to_string().into_bytes();
                let item = Item { value, version, end: end(lifetime, now) };
                item.tell(flags, answers);
                self.items.insert(name.to_owned(), item);
            }
        }
    }

    fn set(&mut self, name: &str, value: &[u8], flags: &[&str], now: Time, answers: &mut Vec<u8>) {
        let number = |flag: &str| flags.iter().find_map(|word| word.strip_prefix(flag)?.parse::<u64>().ok());
        if flags.contains(&"MA") {
            self.versions += 1;
            let appended = self.items.get_mut(name).map(|item| {
                item.value.extend_from_slice(value);
                item.version = self.versions;
            });
            return answers.extend_from_slice(if appended.is_some() { b"HD\r\n" } else { b"NS\r\n" });
        }
        let there = self.items.get(name).map(|item| item.version);
        let answer = match (number("C"), there) {
            (Some(_), None) => "NF\r\n",
            (Some(wanted), Some(there)) if wanted != there => "EX\r\n",
            (None, Some(_)) if flags.contains(&"ME") => "NS\r\n",
            _ => {
                self.versions += 1;
                let end = end(number("T").unwrap(), now);
                self.items.insert(name.to_owned(), Item { value: value.to_vec(), version: self.versions, end });
                "HD\r\n"
            }
        };
        answers.extend_from_slice(answer.as_bytes());
    }
}

impl Item {
    fn tell(&self, flags: &[&str], answers: &mut Vec<u8>) {
        if !flags.contains(&"v") {
            return answers.extend_from_slice(b"HD\r\n");
        }
        let version = if flags.contains(&"c") { format!(" c{}", self.version) } else { String::new() };
        answers.extend_from_slice(format!("VA {}{version}\r\n", self.value.len()).as_bytes());
        answers.extend_from_slice(&self.value);
        answers.extend_from_slice(b"\r\n");
    }
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
