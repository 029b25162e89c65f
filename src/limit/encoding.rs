//! The state of a cell as bytes, for stores that keep it as one value.
//!
//! A version, then numbers of variable length: the words of every rate whose state is no plain sum, in order, then
//! the log of the moving windows, each entry as the time since the one before and the cost. Who cannot replace the
//! bytes, because others do that all the time, appends what is to be changed of them: two zeros, which no entry of the
//! log is, and then for a charge the moment, the cost and for how long a part of it has been charged already; or to give
//! something back a third zero, which no moment is, when it was charged, and how much.
//!
//! A state has a time of its own: that of the fastest clock among those who have written it. A reader whose clock is
//! behind that reads the state as of its latest moment and remembers the difference; what it writes is as much ahead of its
//! own clock. So a state never goes back in time. If it did, a reader whose clock is faster would take what was counted a
//! moment ago for old, and would admit as much again.

use integer_encoding::VarInt;

use super::cell::Cell;
use super::extension::Extension;
use super::fixed_window::FixedWindow;
use super::rate::Rate;
use super::reservation::Reservation;
use super::sliding_log::Log;
use super::state::{JITTER, State};
use super::token_bucket::TokenBucket;
use crate::clock::Time;

/// Changes with the layout; bytes of another version are nobody's.
pub(super) const VERSION: u8 = 2;
/// The most of what was appended that gives something back; what exceeds it stays charged. Each takes as long as the log
/// has entries, and whoever else can write to the store could append any number of them.
pub(super) const MOST_GIVEN_BACK: usize = 4096;

/// What [`Cell::restore`] reads.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The cell, by the clock of the reader. Sums are 0.
    pub cell: Cell,
    /// How often something was appended to the state.
    pub appended: usize,
    /// By how many microseconds the state is ahead of the clock of the reader.
    pub ahead: u64,
}

impl Cell {
    /// What [`Cell::restore`] reads, with nothing appended: a state that is `ahead` microseconds ahead of the clock by
    /// which the cell was charged.
    pub fn save(&self, rates: &[Rate], ahead: u64) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        self.rated(rates).for_each(|(_, state)| state.encode(ahead, &mut bytes));
        let mut last = 0;
        for (time, cost) in self.log().into_iter().flat_map(Log::iter).filter(|(_, cost)| *cost > 0) {
            let time = time.saturating_add(ahead);
            push(time - last, &mut bytes);
            push(cost, &mut bytes);
            last = time;
        }
        bytes
    }

    /// What charges `cost` at `now`, of which the first came at `since`, when it is appended to a saved state. Both are in
    /// the time of the state.
    pub fn append_charge(now: Time, cost: u64, since: Time, bytes: &mut Vec<u8>) {
        let lead = now.micros().saturating_sub(since.micros());
        [0, 0, now.micros(), cost, lead].into_iter().for_each(|word| push(word, bytes));
    }

    /// What gives back `cost` of a reservation when it is appended to a saved state, which is `ahead` microseconds ahead of
    /// the clock of the reservation.
    pub fn append_give_back(rates: &[Rate], reservation: &Reservation, cost: u64, ahead: u64, bytes: &mut Vec<u8>) {
        let moment = reservation.moment(rates).map_or(0, |moment| moment.micros().saturating_add(ahead));
        [0, 0, 0, moment, cost].into_iter().for_each(|word| push(word, bytes));
    }

    /// The cell of these rates with the state that was saved and what was appended to it, read at `now`. `None` if the bytes
    /// say nothing.
    pub fn restore(rates: &[Rate], now: Time, bytes: &[u8]) -> Option<Restored> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let mut cell = Self::new(rates, now);
        for (rate, state) in cell.rated_mut(rates) {
            state.decode(rate, &mut rest)?;
        }
        let mut log = Log::default();
        let mut time = 0u64;
        let mut appended = Vec::new();
        while !rest.is_empty() {
            match (pull(&mut rest)?, pull(&mut rest)?) {
                (0, 0) => appended.push([pull(&mut rest)?, pull(&mut rest)?, pull(&mut rest)?]),
                (since, cost) => {
                    time = time.checked_add(since)?;
                    log.add(time, cost);
                }
            }
        }
        if log.newest().is_some() {
            cell.set_log(log);
        }
        // The first word of what gives back is no moment but 0.
        let latest = appended.iter().map(|[moment, ..]| *moment).chain([cell.latest()]).max().unwrap_or(0);
        let ahead = latest.saturating_sub(now.micros());
        let read = Time::from_micros(latest.max(now.micros()));
        let mut given_back = 0;
        for words in &appended {
            match *words {
                [0, ..] if given_back == MOST_GIVEN_BACK => {}
                [0, moment, cost] => {
                    given_back += 1;
                    let reservation = Reservation::new(cost, rates.iter().map(|_| moment));
                    cell.give_back(rates, read, &reservation, cost, true);
                }
                [moment, cost, lead] => {
                    // What comes late is charged now. To go back to its moment would look like a clock that was set back,
                    // and what others have charged since would leave a second time.
                    let at = Time::from_micros(moment.max(cell.latest()));
                    cell.advance(rates, at);
                    cell.charge(rates, at, cost, Some(Time::from_micros(moment.saturating_sub(lead))));
                }
            }
        }
        cell.advance(rates, read);
        if ahead > 0 {
            cell.set_back(ahead);
            cell.begin_sums(rates, now);
        }
        Some(Restored { cell, appended: appended.len(), ahead })
    }

    /// For how many microseconds each of the rates whose state is kept as a whole remembers `cost` more, if nothing else comes.
    /// A bucket may have been charged more than it holds.
    fn memories<'a>(&'a self, rates: &'a [Rate], cost: u64) -> impl Iterator<Item = u64> {
        let whole = self.rated(rates).filter(|(rate, _)| !rate.uses_counters());
        whole.map(move |(rate, state)| match state {
            State::TokenBucket(bucket) => bucket.time_to_drain(rate, cost),
            _ => rate.memory(),
        })
    }

    /// Microseconds after which a saved state says nothing any more, if nothing is appended to it. A bucket that is not full
    /// counts as full, since others may charge it.
    pub fn memory(&self, rates: &[Rate]) -> u64 {
        let full = rates.iter().filter(|rate| !rate.uses_counters()).map(Rate::memory);
        self.memories(rates, 0).chain(full).max().unwrap_or(0)
    }

    /// Microseconds for which `cost`, which has just been taken back, would have stayed in the state in any case.
    pub fn certain_memory(&self, rates: &[Rate], cost: u64) -> u64 {
        self.memories(rates, cost).min().unwrap_or(0)
    }

    /// By how many microseconds the state that is kept as a whole is ahead of a clock that was set back; 0 if that is no
    /// more than reading the clock at different times explains.
    pub fn lead(&self, now: Time) -> u64 {
        let lead = self.latest().saturating_sub(now.micros());
        if lead > JITTER { lead } else { 0 }
    }

    /// Moves the state that is kept as a whole back in time by so many microseconds: all of it, so that nothing of it is
    /// older or newer than before beside the rest.
    pub fn set_back(&mut self, by: u64) {
        self.states.iter_mut().for_each(|state| state.set_back(by));
        if let Some(Extension { log, low_water }) = self.extension.as_deref_mut() {
            log.shift(by);
            // It is not known any more how long the reservations have been open.
            low_water.clear();
        }
    }

    /// Begins the plain sums at `now`, all of which are 0.
    fn begin_sums(&mut self, rates: &[Rate], now: Time) {
        for (rate, state) in self.rated_mut(rates).filter(|(rate, _)| rate.uses_counters()) {
            *state = State::new(rate, now);
        }
    }
}

impl State {
    /// Appends the numbers of a state that is stored as one value, with its moment moved by `ahead` microseconds.
    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>) {
        match self {
            Self::FixedWindow(window) => {
                push(window.start().saturating_add(ahead), bytes);
                push(window.count(), bytes);
            }
            Self::TokenBucket(bucket) => {
                push(bucket.moment().saturating_add(ahead), bytes);
                bucket.used_halves().into_iter().for_each(|half| push(half, bytes));
            }
            Self::SlidingWindow(_) | Self::SlidingLog | Self::Calendar(_) => {}
        }
    }

    /// Replaces a state that is stored as one value by the numbers at the beginning of `rest`, and removes them from it.
    fn decode(&mut self, rate: &Rate, rest: &mut &[u8]) -> Option<()> {
        match self {
            Self::FixedWindow(window) => *window = FixedWindow::begun(pull(rest)?, pull(rest)?),
            Self::TokenBucket(bucket) => {
                let (moment, high, low) = (pull(rest)?, pull(rest)?, pull(rest)?);
                *bucket = TokenBucket::with_used(rate, moment, u128::from(high) << 64 | u128::from(low));
            }
            Self::SlidingWindow(_) | Self::SlidingLog | Self::Calendar(_) => {}
        }
        Some(())
    }
}

fn push(word: u64, bytes: &mut Vec<u8>) {
    let mut digits = [0; 10];
    let length = word.encode_var(&mut digits);
    bytes.extend_from_slice(&digits[..length]);
}

fn pull(rest: &mut &[u8]) -> Option<u64> {
    let (word, length) = u64::decode_var(rest)?;
    *rest = rest.get(length..)?;
    Some(word)
}
