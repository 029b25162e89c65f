//! The state of a cell as bytes, for stores that keep it as one value.
//!
//! A version, then numbers of variable length: the words of every rate whose state is no plain sum, in order, then
//! the log of the moving windows, each entry as the time since the one before and the cost. Who cannot replace the
//! bytes, because others do that all the time, appends what is to be changed of them: two zeros, which no entry of the
//! log is, and then for a charge the moment, the cost and for how long a part of it has been charged already; or to give
//! something back a third zero, which no moment is, when it was charged, and how much.

use integer_encoding::VarInt;

use super::cell::Cell;
use super::moving::Log;
use super::rate::Rate;
use super::reservation::Reservation;
use crate::clock::Time;

/// Changes with the layout; bytes of another version are nobody's.
const VERSION: u8 = 1;

impl Cell {
    /// What [`Cell::restore`] reads, with nothing appended.
    pub fn save(&mut self, rates: &[Rate]) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for (_, block) in self.blocks_mut(rates).filter(|(rate, _)| !rate.is_counted()) {
            block.iter().for_each(|word| push(*word, &mut bytes));
        }
        let mut last = 0;
        for (time, cost) in self.log().into_iter().flat_map(Log::iter).filter(|(_, cost)| *cost > 0) {
            push(time - last, &mut bytes);
            push(cost, &mut bytes);
            last = time;
        }
        bytes
    }

    /// What charges `cost` at `now`, of which the first came at `since`, when it is appended to a saved state.
    pub fn append_charge(now: Time, cost: u64, since: Time, bytes: &mut Vec<u8>) {
        let lead = now.micros().saturating_sub(since.micros());
        [0, 0, now.micros(), cost, lead].into_iter().for_each(|word| push(word, bytes));
    }

    /// What gives back `cost` of a reservation when it is appended to a saved state.
    pub fn append_give_back(rates: &[Rate], reservation: &Reservation, cost: u64, bytes: &mut Vec<u8>) {
        let moment = reservation.moment(rates).map_or(0, Time::micros);
        [0, 0, 0, moment, cost].into_iter().for_each(|word| push(word, bytes));
    }

    /// The cell of these rates with the state that was saved and what was appended to it, and how often that was; sums
    /// are 0. `None` if the bytes say nothing.
    pub fn restore(rates: &[Rate], now: Time, bytes: &[u8]) -> Option<(Self, usize)> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let mut cell = Self::new(rates, now);
        for (_, block) in cell.blocks_mut(rates).filter(|(rate, _)| !rate.is_counted()) {
            for word in block {
                *word = pull(&mut rest)?;
            }
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
        for words in &appended {
            match *words {
                [0, moment, cost] => {
                    let reservation = Reservation::new(cost, rates.iter().map(|_| moment));
                    cell.give_back(rates, now, &reservation, cost, true);
                }
                [time, cost, lead] => {
                    let moment = time.min(now.micros());
                    // What comes late is charged now. To go back to its moment would look like a clock that was set back,
                    // and what others have charged since would leave a second time.
                    let at = Time::from_micros(moment.max(cell.latest(rates)));
                    cell.advance(rates, at);
                    cell.charge(rates, at, cost, Some(Time::from_micros(moment.saturating_sub(lead))));
                }
            }
        }
        cell.advance(rates, now);
        Some((cell, appended.len()))
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
