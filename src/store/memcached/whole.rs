//! The state of the rates that are kept as one value: it is replaced if it still is the one that was read. If another
//! gateway was faster, what is owed is charged again to the state that it left, and appended to that: others could be
//! faster again and again, but nobody can be too late to append. Whoever replaces the state next charges what was
//! appended to it.

use memchr::memmem;

use super::keys::Names;
use super::known::Op;
use super::ready::Digits;
use super::wire::{self, Answer};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit, Rate};

/// The most that is appended to a state before it has to be replaced: else it would grow with every charge.
const MOST_APPENDED: usize = 32;

/// How a cell's state stands to the one in Memcached.
#[derive(Debug, Default)]
pub(super) struct Whole {
    version: Version,
    /// Stands for the value of that version, or for what was written last.
    value: u64,
    /// When something was given back last.
    given_back: Option<Time>,
    /// What was charged since; `None` if Memcached knows all.
    owed: Option<i64>,
    /// What was sent without an answer: what was charged to it, and the bytes.
    doubt: Option<(i64, Vec<u8>)>,
    /// Whether another gateway was faster to replace the state.
    outrun: bool,
    /// How often something has been appended to the state since it was replaced.
    appended: usize,
}

/// What was read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    /// Nothing.
    #[default]
    Unread,
    /// That there is none.
    Missing,
    /// Nothing since a state was written.
    Written,
    /// A state, and this stands for it.
    Of(u64),
}

/// What was learned from an exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// How many states that should be there Memcached has lost: one at most.
    pub(super) lost: u64,
    /// Whether another gateway has replaced the state.
    pub(super) is_foreign: bool,
}

/// Stands for a value: whoever has written it, the same value says the same.
fn stand_in(value: &[u8]) -> u64 {
    Fingerprint::of(value).high()
}

impl Whole {
    pub(super) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Owes `cost` more, less to take something back; with 0 only that it be written.
    pub(super) fn owe(&mut self, cost: i64) {
        self.owed = Some(self.owed.unwrap_or(0).saturating_add(cost));
    }

    /// Owes it to take `cost` back.
    pub(super) fn owe_back(&mut self, cost: i64, now: Time) {
        self.owe(-cost);
        self.given_back = Some(now);
    }

    /// Owes again what was sent without an answer.
    pub(super) fn doubt(&mut self, cost: i64, value: Vec<u8>) {
        self.owe(cost);
        self.doubt = Some((cost, value));
    }

    /// Writes the state if that is owed, and reads it.
    pub(super) fn compose(
        &mut self,
        cell: &mut Cell,
        names: &Names,
        (key, now): (&Digits, Time),
        ops: &mut Vec<Op>,
        out: &mut Vec<u8>,
    ) {
        let version = match self.version {
            // What is in doubt has to be asked for first, and what may be there as well.
            _ if self.doubt.is_some() => None,
            Version::Unread | Version::Written => None,
            Version::Missing => Some(None),
            Version::Of(version) => Some(Some(version)),
        };
        if let Some(version) = version
            && let Some(cost) = self.owed.take()
        {
            let lifetime = names.state_lifetime(now);
            if self.outrun && version.is_some() && cost > 0 && self.appended < MOST_APPENDED {
                let more = Cell::appendix(now, cost.unsigned_abs());
                wire::append(|out| names.state(key, out), &more, out);
                // To append does not let it live for longer.
                wire::value_kept(|out| names.state(key, out), lifetime, out);
                ops.extend([Op::Append(cost, more), Op::Value]);
                return;
            }
            let value = cell.save(names.limit.rates());
            wire::swap(|out| names.state(key, out), &value, version, lifetime, out);
            ops.push(Op::Swap(cost, value));
        }
        wire::value(|out| names.state(key, out), out);
        ops.push(Op::Value);
    }

    /// Takes over what Memcached answered.
    pub(super) fn fill(
        &mut self,
        cell: &mut Cell,
        (limit, now): (&Limit, Time),
        ops: &[Op],
        answers: &[Answer<'_>],
    ) -> Learned {
        let mut sent: Option<&[u8]> = None;
        let mut learned = Learned::default();
        let mut was_read = false;
        for (op, answer) in ops.iter().zip(answers) {
            match (op, answer) {
                (Op::Swap(_, value), Answer::Done) => {
                    self.outrun = false;
                    sent = Some(value);
                }
                (Op::Append(..), Answer::Done) => {
                    self.outrun = false;
                    // To what, is not known.
                    sent = Some(&[]);
                }
                (Op::Swap(cost, _) | Op::Append(cost, _), _) => {
                    self.outrun |= !matches!(answer, Answer::Failed(_));
                    self.owe(*cost);
                }
                (Op::Value, Answer::Missing) => {
                    was_read = true;
                    // A state that nobody needs any more leaves Memcached by itself.
                    if !cell.is_whole_spent(limit.rates(), now) && self.version != Version::Unread {
                        learned.lost = u64::from(self.version != Version::Missing);
                        self.owe(0);
                    }
                    (self.version, self.doubt) = (Version::Missing, None);
                }
                (Op::Value, Answer::Value(value, Some(version))) => {
                    was_read = true;
                    learned.is_foreign = self.learn(cell, (limit, now), value, *version, sent);
                }
                _ => {}
            }
        }
        if let Some(value) = sent.filter(|_| !was_read) {
            // It has been written, and which version that is has yet to be read.
            (self.version, self.value) = (Version::Written, stand_in(value));
        }
        learned
    }

    /// Learns the state that is there now; returns whether another gateway has left it.
    fn learn(
        &mut self,
        cell: &mut Cell,
        (limit, now): (&Limit, Time),
        value: &[u8],
        version: u64,
        sent: Option<&[u8]>,
    ) -> bool {
        let before = std::mem::replace(&mut self.value, stand_in(value));
        self.version = Version::Of(version);
        let doubt = self.doubt.take();
        if sent.map_or(before, stand_in) == self.value {
            return false;
        }
        if let Some((cost, sent)) = doubt {
            // It has arrived, and others may have appended to it; or it gave something back, which is not to be done twice.
            // What was charged since is still owed.
            if memmem::find(value, &sent).is_some() || cost < 0 {
                self.owed = self.owed.map(|owed| owed.saturating_sub(cost)).filter(|owed| *owed != 0);
            }
            if sent == value {
                return false;
            }
        }
        let rates = limit.rates();
        let Some((mut theirs, appended)) = Cell::restore(rates, now, value) else {
            // A value that is not ours is overwritten.
            (self.outrun, self.appended) = (false, 0);
            self.owe(0);
            return false;
        };
        self.appended = appended;
        theirs.fill(rates, |place, bucket| cell.count(rates, place, bucket).unwrap_or(0));
        match self.owed {
            // It was so long ago that it matters no more. What is taken back leaves nothing, and matters.
            Some(1..) if cell.is_whole_spent(rates, now) => self.owed = None,
            Some(cost @ 1..) => limit.charge_whole(&mut theirs, now, cost.unsigned_abs()),
            // Nor is anything taken from a window that has begun since.
            Some(..=-1) if self.is_long_ago(limit, now) => self.owed = None,
            Some(cost @ ..=-1) => limit.take_back_whole(&mut theirs, cost.unsigned_abs()),
            // It was only to be told what is not true any more.
            Some(0) | None => self.owed = None,
        }
        *cell = theirs;
        true
    }

    /// Whether what was given back last was charged so long ago that it may have left by itself.
    fn is_long_ago(&self, limit: &Limit, now: Time) -> bool {
        let memory = limit.rates().iter().filter(|rate| !rate.is_counted()).map(Rate::memory).min().unwrap_or(0);
        self.given_back.is_none_or(|given| now.micros().saturating_sub(given.micros()) >= memory)
    }
}
