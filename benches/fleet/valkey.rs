//! A Valkey in memory: it replies to the commands of gateways byte by byte like Valkey 9 and Redis 7. It knows what the scripts
//! mean, and not their language. A test sends the same random commands to both and compares the replies.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Valkey {
    items: BTreeMap<Vec<u8>, Item>,
    /// By what it knows the scripts that add to a count, replace a value, and append to one.
    digests: [&'static str; 3],
    /// Which of the next commands fail; the lowest bit is the first.
    failing: u64,
}

#[derive(Debug)]
struct Item {
    value: Vec<u8>,
    /// In microseconds since 1970.
    end: u64,
}

impl Valkey {
    pub(crate) fn new(digests: [&'static str; 3]) -> Self {
        Self { items: BTreeMap::new(), digests, failing: 0 }
    }

    /// The lowest bit is the next command.
    pub(crate) fn fail(&mut self, failing: u64) {
        self.failing = failing;
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.items.keys().map(Vec::as_slice)
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.items.remove(name);
    }

    /// The length of the longest value.
    pub(crate) fn largest(&self) -> usize {
        self.items.values().map(|item| item.value.len()).max().unwrap_or(0)
    }

    pub(crate) fn expire(&mut self, now: u64) {
        self.items.retain(|_, item| item.end > now);
    }

    /// By how much these commands would change counts.
    pub(crate) fn changes(&self, mut commands: &[u8]) -> u64 {
        let mut sum = 0;
        while !commands.is_empty() {
            if let [b"EVALSHA", digest, _, _, amount, ..] = cut_command(&mut commands)[..]
                && *digest == *self.digests[0].as_bytes()
            {
                let digits = str::from_utf8(amount).unwrap().trim_start_matches('-');
                sum += digits.parse::<u64>().unwrap();
            }
        }
        sum
    }

    /// Executes all commands of an exchange at `now`, in microseconds since 1970, and appends the replies. Returns how many
    /// commands wrote, and how many items were read.
    ///
    /// # Panics
    /// If a command is not one that gateways write.
    pub(crate) fn execute(&mut self, mut commands: &[u8], now: u64, replies: &mut Vec<u8>) -> [u64; 2] {
        let (mut writes, mut reads) = (0, 0);
        while !commands.is_empty() {
            let words = cut_command(&mut commands);
            let is_failing = self.failing & 1 == 1;
            self.failing >>= 1;
            let is_read = words[0] == b"MGET";
            reads += if is_read { words.len() as u64 - 1 } else { 0 };
            writes += u64::from(!is_read);
            if is_failing {
                replies.extend_from_slice(b"-ERR it fails\r\n");
                continue;
            }
            match &words[..] {
                [b"MGET", names @ ..] => {
                    replies.extend_from_slice(format!("*{}\r\n", names.len()).as_bytes());
                    names.iter().for_each(|name| self.get(name, now, replies));
                }
                [b"SET", name, _, b"EX", _, b"NX"] if self.item(name, now).is_some() => {
                    replies.extend_from_slice(b"_\r\n");
                }
                [b"SET", name, value, b"EX", seconds, ..] => {
                    self.set(name, value, seconds, now);
                    replies.extend_from_slice(b"+OK\r\n");
                }
                [b"EVALSHA", digest, b"1", name, arguments @ ..] => {
                    let script = self.digests.iter().position(|known| known.as_bytes() == *digest);
                    let result = match script.unwrap() {
                        0 => self.add(name, arguments, now),
                        1 => self.replace(name, arguments, now),
                        _ => self.append(name, arguments, now),
                    };
                    let reply = result.map_or("_\r\n".to_owned(), |number| format!(":{number}\r\n"));
                    replies.extend_from_slice(reply.as_bytes());
                }
                other => panic!("{} is no command that gateways write", String::from_utf8_lossy(&other.concat())),
            }
        }
        [writes, reads]
    }

    /// `None` if the item has expired.
    fn item(&mut self, name: &[u8], now: u64) -> Option<&mut Item> {
        self.items.get_mut(name).filter(|item| item.end > now)
    }

    fn get(&mut self, name: &[u8], now: u64, replies: &mut Vec<u8>) {
        match self.item(name, now) {
            Some(Item { value, .. }) => {
                replies.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                replies.extend_from_slice(value);
                replies.extend_from_slice(b"\r\n");
            }
            None => replies.extend_from_slice(b"_\r\n"),
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8], seconds: &[u8], now: u64) {
        self.items.insert(name.to_vec(), Item { value: value.to_vec(), end: end(seconds, now) });
    }

    fn add(&mut self, name: &[u8], arguments: &[&[u8]], now: u64) -> Option<f64> {
        let Some(Item { value, .. }) = self.item(name, now) else {
            let [_, initial, seconds] = arguments else { return None };
            self.set(name, initial, seconds, now);
            return Some(number(initial));
        };
        let space = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
        // Lua counts in floating point.
        let sum = (number(&value[..space]) + number(arguments[0])).max(0.0);
        *value = [sum.to_string().as_bytes(), &value[space..]].concat();
        Some(sum)
    }

    fn replace(&mut self, name: &[u8], arguments: &[&[u8]], now: u64) -> Option<f64> {
        let [version, value, seconds] = arguments else { panic!("{} arguments", arguments.len()) };
        let there = &self.item(name, now).filter(|item| !item.value.is_empty())?.value;
        if there[0] == b'=' && !there.starts_with(version) {
            return Some(0.0);
        }
        self.set(name, value, seconds, now);
        Some(1.0)
    }

    fn append(&mut self, name: &[u8], arguments: &[&[u8]], now: u64) -> Option<f64> {
        let [version, more, seconds] = arguments else { panic!("{} arguments", arguments.len()) };
        let item = self.item(name, now).filter(|item| item.value.first() == Some(&b'='))?;
        item.value[..version.len()].copy_from_slice(version);
        item.value.extend_from_slice(more);
        item.end = end(seconds, now);
        Some(1.0)
    }
}

fn end(seconds: &[u8], now: u64) -> u64 {
    let seconds: u64 = str::from_utf8(seconds).unwrap().parse().unwrap();
    now + seconds * 1_000_000
}

fn number(digits: &[u8]) -> f64 {
    str::from_utf8(digits).unwrap().parse().unwrap()
}

fn cut_command<'a>(commands: &mut &'a [u8]) -> Vec<&'a [u8]> {
    let count = |kind: &str, commands: &mut &'a [u8]| {
        let line = cut(commands.iter().position(|byte| *byte == b'\r').unwrap(), commands);
        str::from_utf8(line).unwrap().strip_prefix(kind).unwrap().parse::<usize>().unwrap()
    };
    let words = count("*", commands);
    (0..words).map(|_| cut(count("$", commands), commands)).collect()
}

fn cut<'a>(length: usize, commands: &mut &'a [u8]) -> &'a [u8] {
    let (word, rest) = commands.split_at(length);
    *commands = rest.strip_prefix(b"\r\n").unwrap();
    word
}
