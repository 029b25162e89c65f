//! The state of a cell as bytes, for stores that keep it as one value.
//!
//! The first byte is the version. Numbers of variable length (LEB128) follow:
//!
//! - for each fixed window, in the order of the rates, its start and its count;
//! - for each token bucket, in the same order, its moment and the higher and lower half of the units that are used;
//! - for each entry of the log, the microseconds since the entry before, and its cost;
//! - for each charge that was appended: 0, 0, the moment, the cost, and how many microseconds before the moment the first
//!   part of it came;
//! - for each part of a reservation that was given back by appending: 0, 0, 0, the moment of the reservation, and the cost;
//! - at the end of each of these writings: 0, 0, 0, 0, and a number of its writer.
//!
//! Counters are not part of it. Something is appended if the bytes cannot be replaced because other gateways replace them
//! all the time. No entry of the log begins with two zeros, since its cost is never 0, and no charge has the moment 0.
//!
//! A state has a time of its own: that of the fastest clock among the gateways that have written it. A reader whose clock
//! is behind that reads the state as of its latest moment and remembers the difference, and what it writes is as much ahead
//! of its own clock. So a state never goes back in time. If it did, a reader whose clock is faster would believe that what
//! was counted a moment ago is old, and would admit as much again.

use super::bounds::JITTER;
use super::cell::Cell;
use super::extension::Extension;
use super::rate::Rate;
use super::reservation::Reservation;
use super::sliding_log::Log;
use super::state::State;
use super::varint::{pull, push};
use crate::clock::Time;

/// The version of the layout. Bytes of another version are not read.
pub(super) const VERSION: u8 = 2;
/// How many of the appended parts of reservations are given back at most; the others stay charged. Each takes time in
/// proportion to the length of the log, and any program that can write to the store could append any number of them.
pub(super) const MOST_GIVEN_BACK: usize = 4096;

/// What [`Cell::restore`] reads.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The cell, in the time of the reader's clock. All counters are 0.
    pub cell: Cell,
    /// How often something was appended to the state.
    pub appended: usize,
    /// By how many microseconds the state is ahead of the clock of the reader.
    pub ahead: u64,
}

impl Cell {
    /// Encodes what is kept as a whole, for [`Cell::restore`]. The encoded state is `ahead` microseconds ahead of the clock by
    /// which the cell was charged.
    ///
    /// ```
    /// use gateway::clock::Time;
    /// use gateway::limit::{Cell, Limit};
    ///
    /// let limit = Limit::new("a", &["5/s burst 5".parse()?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(limit.rates(), now);
    /// limit.charge(&mut cell, now, 3);
    ///
    /// let mut bytes = cell.save(limit.rates(), 0);
    /// Cell::append_charge(now, 1, now, &mut bytes);
    /// let restored = Cell::restore(limit.rates(), now, &bytes).ok_or("the bytes are of another version")?;
    /// assert_eq!(restored.appended, 1);
    /// assert_eq!(limit.judge(&restored.cell, now, 1, true).remaining, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Adds the bytes that charge `cost` at `now`, of which the first part came at `since`, when they are appended to a state.
    /// Both moments are in the time of the state.
    pub fn append_charge(now: Time, cost: u64, since: Time, bytes: &mut Vec<u8>) {
        let lead = now.micros_since(since);
        [0, 0, now.micros(), cost, lead].into_iter().for_each(|number| push(number, bytes));
    }

    /// Adds the bytes that give back `cost` of a reservation when they are appended to a state, which is `ahead` microseconds
    /// ahead of the clock of the reservation.
    pub fn append_give_back(rates: &[Rate], reservation: &Reservation, cost: u64, ahead: u64, bytes: &mut Vec<u8>) {
        let moment = reservation.moment(rates).map_or(0, |moment| moment.micros().saturating_add(ahead));
        let cost = reservation.certain(rates, cost);
        [0, 0, 0, moment, cost].into_iter().for_each(|number| push(number, bytes));
    }

    /// Adds the number of the writer, by which it knows what it has written. Another writer may charge the same cost to the
    /// same state in the same microsecond.
    pub fn append_writer(writer: u32, bytes: &mut Vec<u8>) {
        [0, 0, 0, 0, u64::from(writer)].into_iter().for_each(|number| push(number, bytes));
    }

    /// Decodes a state and what was appended to it, as of `now`. `None` if the bytes are of another version or are not a state
    /// of these rates.
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
                (0, 0) => match [pull(&mut rest)?, pull(&mut rest)?, pull(&mut rest)?] {
                    [0, 0, _writer] => {}
                    change => appended.push(change),
                },
                (since, cost) => {
                    time = time.checked_add(since)?;
                    log.add(time, cost);
                }
            }
        }
        if log.newest().is_some() {
            cell.set_log(log);
        }
        // What gives something back has 0 in place of the moment, which is never the latest.
        let latest = appended.iter().map(|[moment, ..]| *moment).chain([cell.latest()]).max().unwrap_or(0);
        let ahead = latest.saturating_sub(now.micros());
        let read = Time::from_micros(latest.max(now.micros()));
        let mut given_back = 0;
        for change in &appended {
            match *change {
                [0, ..] if given_back == MOST_GIVEN_BACK => {}
                [0, moment, cost] => {
                    given_back += 1;
                    let reservation = Reservation::new(cost, rates.iter().map(|_| moment));
                    cell.give_back(rates, read, &reservation, cost, true);
                }
                [moment, cost, lead] => {
                    // What is older than the state is charged at the moment of the state. To go back to its own moment
                    // would look as if the clock had been set back, and move back what others have charged since.
                    let at = Time::from_micros(moment.max(cell.latest()));
                    cell.advance(rates, at);
                    cell.charge(rates, at, cost, Some(Time::from_micros(moment.saturating_sub(lead))));
                }
            }
        }
        cell.advance(rates, read);
        if ahead > 0 {
            cell.set_back(ahead);
            cell.reset_counters(rates, now);
        }
        Some(Restored { cell, appended: appended.len(), ahead })
    }

    /// Microseconds after which an encoded state does not matter any more, if nothing is appended to it. Token buckets count as
    /// if they had been used up, since others may charge them.
    pub fn memory(&self, rates: &[Rate]) -> u64 {
        let full = rates.iter().filter(|rate| !rate.uses_counters()).map(Rate::memory);
        // They may have been charged more than they hold.
        full.chain(self.rated(rates).map(|(rate, state)| state.excess_memory(rate))).max().unwrap_or(0)
    }

    /// Until when it is certain that `cost`, which was charged at `since` and has just been taken back, would not have left
    /// any state that is kept as a whole.
    pub fn certain_until(&self, rates: &[Rate], now: Time, cost: u64, since: Time) -> Time {
        // It may be later if the clock was set back.
        let (now, since) = (now.micros(), since.min(now).micros());
        let whole = self.rated(rates).map(|(rate, state)| state.certain_until(rate, now, cost, since));
        Time::from_micros(whole.min().unwrap_or(now))
    }

    /// By how many microseconds the state that is kept as a whole is ahead of a clock that was set back. It is 0 for less
    /// than a second, which is explained by threads that read the clock at different moments.
    pub fn lead(&self, now: Time) -> u64 {
        let lead = self.latest().saturating_sub(now.micros());
        if lead > JITTER { lead } else { 0 }
    }

    /// Moves all of the state that is kept as a whole back in time by so many microseconds.
    pub fn set_back(&mut self, by: u64) {
        self.states.iter_mut().for_each(|state| state.set_back(by));
        if let Some(Extension { log, low_water }) = self.extension.as_deref_mut() {
            log.shift(by);
            // It is not known any more how long the reservations have been open.
            low_water.clear();
        }
    }

    /// Replaces the counters by new ones of `now`, all of which are 0.
    fn reset_counters(&mut self, rates: &[Rate], now: Time) {
        for (rate, state) in self.rated_mut(rates).filter(|(rate, _)| rate.uses_counters()) {
            *state = State::new(rate, now);
        }
    }
}
