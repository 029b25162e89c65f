//! What a shared store needs of its servers: how it asks them and reads their answers, for whatever software they run.
//!
//! A server keeps items: counts that can be added to, and values that are replaced on a condition or appended to. Every
//! item has a number that whoever stored it has attached, and which it keeps when it is added to or appended to; and it
//! lives for a limited time. An exchange is any number of writes and reads, which are asked and answered together.
//!
//! Nothing else of the shared store knows which servers they are.

use std::ops::Range;

/// The protocol of a kind of server.
pub trait Protocol: Sync {
    /// What its servers are called in messages.
    fn name(&self) -> &'static str;
    /// What a new connection asks, and what a server answers to that if it is one of this kind.
    fn greeting(&self) -> Greeting;
    /// The commands of the next exchange, of which there are none yet.
    fn commands(&self) -> Box<dyn Commands>;
    /// Asks a server about itself, on a connection of its own; `None` if it does not say. It blocks for some seconds at most.
    fn statistics(&self, address: &str) -> Option<Statistics>;
}

/// What a new connection asks, and what a server answers to that.
#[derive(Clone, Copy, Debug)]
pub struct Greeting {
    /// What is asked.
    pub question: &'static [u8],
    pub answer: &'static [u8],
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// The time by its clock, in whole seconds since 1970.
    pub time: Option<u64>,
    /// How many items it had to evict.
    pub evictions: u64,
}

/// Writes the name of an item.
pub type Name<'a> = &'a dyn Fn(&mut Vec<u8>);

/// The commands of one exchange while they are collected. All writes are done before all reads. Writes are numbered in the
/// order in which they are collected, and so are reads.
pub trait Commands {
    /// Reads an item, after all writes. An exchange reads each item only once.
    fn read(&mut self, name: Name<'_>);
    /// Adds `amount` to a count. If there is no such count, it becomes the `initial` one, or stays missing.
    fn add(&mut self, name: Name<'_>, amount: u64, initial: Option<Initial>, echo: Echo);
    /// Takes `amount` from a count, or all of it if it is less. A count that is missing stays so.
    fn subtract(&mut self, name: Name<'_>, amount: u64, echo: Echo);
    /// Stores a value with this `number`.
    fn store(&mut self, name: Name<'_>, value: &[u8], condition: Condition, lifetime: Lifetime, number: u32);
    /// Appends to a value, if there is one, and lets it live for so long from now on.
    fn append(&mut self, name: Name<'_>, more: &[u8], lifetime: Lifetime);
    /// Appends the bytes of the exchange to `out`; returns what reads the replies. Then the next exchange can be collected.
    fn finish(&mut self, out: &mut Vec<u8>) -> Box<dyn Reader>;
}

/// Reads the replies to one exchange as they come.
pub trait Reader {
    /// Goes on to read `input`, which begins with the first reply to this exchange and has at least what it had before.
    /// Returns the length of all replies once they have come in full.
    ///
    /// # Errors
    /// When the bytes are not what a server replies to this exchange.
    fn read(&mut self, input: &[u8]) -> Result<Option<usize>, Garbage>;
    /// The replies, once they have come in full in `input`.
    fn replies<'a>(&'a self, input: &'a [u8]) -> Replies<'a>;
}

/// What is no reply of a server's to what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

/// Whether a write of a count tells that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// It need not. Some servers tell all the same when the count was created.
    Quiet,
    /// The reply is the count after this write, before anybody else has changed it.
    Count,
}

/// On which condition a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no item of that name.
    Missing,
    /// The item of that name has this version.
    Version(u64),
    /// None: whatever is there is replaced.
    Always,
}

/// How long an item lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// For how many seconds.
    pub seconds: u64,
    /// From which moment on, in seconds since 1970.
    pub from: u64,
}

/// A count that is created if there is none.
#[derive(Clone, Copy, Debug)]
pub struct Initial {
    /// What it is then, with what is added.
    pub count: u64,
    /// How long it lives.
    pub lifetime: Lifetime,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// It is done, and this is the count after it.
    Count(u64),
    /// It is not done, because there is no item of that name.
    Missing,
    /// It is not done, because another gateway was faster.
    Refused,
    /// It is not done, because the server could not do it.
    Failed,
    /// It may be done or not.
    Unknown,
}

/// An item that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its value: the digits of a count.
    pub value: &'a [u8],
    /// The number that whoever stored it has attached.
    pub number: u32,
    /// Stands for this state of the item.
    pub version: u64,
}

/// Where an item stands among the replies.
#[derive(Clone, Debug)]
pub struct Place {
    pub value: Range<usize>,
    /// The number that whoever stored it has attached.
    pub number: u32,
    /// Stands for this state of the item.
    pub version: u64,
}

/// All replies to one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// What came of each write.
    pub written: &'a [Written],
    /// Where each item that was to be read stands in `input`; `None` if there is none.
    pub items: &'a [Option<Place>],
    /// The bytes that have come.
    pub input: &'a [u8],
    /// Whether everything has been read that was to be read. If not, `items` say nothing.
    pub is_read: bool,
    /// Whether nothing at all was done.
    pub is_failure: bool,
    /// What was said of the first command that failed.
    pub failure: Option<&'a str>,
}

impl<'a> Replies<'a> {
    /// What came of the write with this number.
    pub fn written(&self, number: usize) -> Written {
        self.written.get(number).copied().unwrap_or(Written::Unknown)
    }

    /// What came of the read with this number; `None` if there was no such item.
    pub fn item(&self, number: usize) -> Option<Item<'a>> {
        let Place { value, number, version } = self.items.get(number)?.as_ref()?;
        Some(Item { value: self.input.get(value.clone())?, number: *number, version: *version })
    }
}

impl Item<'_> {
    /// The count that it is. What is no number counts for nothing.
    pub fn count(&self) -> u64 {
        count(self.value)
    }
}

/// The count that these digits are. What is no number counts for nothing.
pub fn count(text: &[u8]) -> u64 {
    // A server may fill up with spaces what was longer before.
    digits(text.trim_ascii()).unwrap_or(0)
}

/// The number that these digits are.
pub fn digits(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}
