//! What a shared store needs of its servers, whatever software they run. Nothing else of the store knows which it is.
//!
//! A server keeps items: counts that can be added to, and values that are replaced on a condition or appended to. Every item
//! lives for a limited time, and has a number from the gateway that stored it, which additions and appends do not change. An
//! exchange is any number of writes and reads, which are sent and answered together.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

pub use super::connection::Opening;
pub use super::failure::{Garbage, LinkFailure};
use super::slots::SlotMap;

pub trait Protocol: Send + Sync {
    fn open(&self, server: &str) -> Opening;
    fn commands(&self) -> Box<dyn Commands>;
    /// Asks a server for statistics, on a connection of its own. `None` if it tells none.
    fn statistics(&self, server: &str) -> Asking;
    /// What is known of the slots of a cluster; `None` if the servers are none, and each item stays where it is.
    fn slot_map(&self) -> Option<Arc<SlotMap>> {
        None
    }
}

pub type Asking = Pin<Box<dyn Future<Output = Option<Statistics>> + Send>>;

#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// The server's clock, in whole seconds since 1970.
    pub time: u64,
    pub evictions: u64,
}

/// Writes the name of an item.
pub type Name<'a> = &'a dyn Fn(&mut Vec<u8>);

/// The commands of one exchange while they are collected. The server does all writes before all reads. Writes are numbered in
/// the order in which they are collected, and so are reads.
pub trait Commands {
    /// Reads an item, after all writes. An exchange reads each item only once.
    fn read(&mut self, name: Name<'_>);
    /// Adds to a count. A negative amount is taken from it, but no more than all of it. A missing count becomes `initial`, or stays
    /// missing.
    fn add(&mut self, name: Name<'_>, amount: i64, initial: Option<Initial>, echo: Echo);
    /// Stores a count, whatever is there.
    fn store_count(&mut self, name: Name<'_>, count: u64, lifetime: Lifetime, number: u32);
    fn store(&mut self, name: Name<'_>, value: &[u8], condition: Condition, lifetime: Lifetime, number: u32);
    /// Appends to a value, if there is one, and gives it a new lifetime.
    fn append(&mut self, name: Name<'_>, more: &[u8], lifetime: Lifetime);
    fn delete(&mut self, name: Name<'_>);
    /// Appends the bytes of the exchange to `out`, and begins the next exchange. Returns the reader of the replies.
    fn finish(&mut self, out: &mut Vec<u8>) -> Box<dyn Reader>;
}

pub trait Reader: Send {
    /// Reads on. `input` begins with the first reply to this exchange, and grows from call to call. A reply in it may also
    /// become another one, if servers redirect. Returns what was replied once all of it has come, and then only once. Fails
    /// when the bytes are not what a server replies to this exchange.
    fn read(&mut self, input: &[u8]) -> Result<Option<Outcome>, Garbage>;
}

/// Whether a write of a count returns the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// It need not. Some servers reply all the same if the count was created.
    Quiet,
    /// The reply is the count right after this write.
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No item of that name exists.
    Missing,
    Version(u64),
    /// Replaces whatever is there.
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    pub seconds: u64,
    /// In seconds since 1970.
    pub from: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Initial {
    /// The new count, including what is added.
    pub count: u64,
    pub lifetime: Lifetime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Done, and this is the count after it.
    Count(u64),
    /// Not done: no item of that name exists.
    Missing,
    /// Not done: another gateway was faster.
    Refused,
    /// Not done: the server was unable to.
    Failed,
    /// Done or not.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// For a count, its digits.
    pub value: &'a [u8],
    /// From the gateway that stored the item.
    pub number: u32,
    /// Changes whenever a value does. It says nothing about a count.
    pub version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub value: Range<usize>,
    pub number: u32,
    pub version: u64,
}

/// What a server has replied to an exchange.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of all replies.
    pub length: usize,
    pub written: Vec<Written>,
    /// The places in the input of the items that were read; `None` for a missing item.
    pub items: Vec<Option<Place>>,
    /// Whether all reads succeeded. If not, `items` says nothing.
    pub is_read: bool,
    /// Whether nothing at all was done, or nothing can be expected of this connection any more.
    pub is_failure: bool,
    /// The server's message on the first command that failed.
    pub failure: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    pub outcome: &'a Outcome,
    pub input: &'a [u8],
}

impl<'a> Replies<'a> {
    pub fn written(&self, number: usize) -> Written {
        self.outcome.written.get(number).copied().unwrap_or(Written::Unknown)
    }

    /// `None` if there was no such item.
    pub fn item(&self, number: usize) -> Option<Item<'a>> {
        let Place { value, number, version } = self.outcome.items.get(number)?.as_ref()?;
        Some(Item { value: self.input.get(value.clone())?, number: *number, version: *version })
    }
}

impl Item<'_> {
    /// The count in this item; `None` if its value is no number.
    pub fn count(&self) -> Option<u64> {
        count(self.value)
    }
}

/// The count in these digits; `None` if they are no number.
pub fn count(text: &[u8]) -> Option<u64> {
    // A server may pad with spaces a count that had more digits before.
    digits(text.trim_ascii())
}

/// `None` if these are no digits, or too many.
pub fn digits(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}
