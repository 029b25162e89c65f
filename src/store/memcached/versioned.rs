//! How the state of all rates that are kept as one value stands to that in Memcached.
//!
//! The value is replaced if it still is the version that was read. If another gateway was faster, what is pending is
//! charged again to the state that it left, and appended to that: others could be faster again and again, but it is
//! never too late to append. The gateway that replaces the state next charges what was appended to it.
//!
//! ```text
//!   Unread --- read: none ----> Missing --------+           +--> Written ------- read --> Of(version)
//!      +------ read: a value -> Of(version) ----+-- sent ---+--> overtaken: pending again, and appended to what is read next
//!                                                           +--> unacknowledged: read, then Of(version) or pending again
//! ```
//! A cell that is overtaken admits nobody: its decisions wait until its next exchange is answered.

mod change;
mod reset;
mod version;

use memchr::memmem;

use super::commands::{Commands, Condition};
use super::names::{self, Digits, Names};
use super::replies::{Item, Written};
use super::reset::Resets;
use super::targets::{Answer, Targets};
use crate::clock::Time;
use crate::limit::{Cell, Limit, Rate, Reservation, Restored};

pub(super) use change::Back;
use change::StateChange;
use version::{Version, stand_in};

/// The most that is appended to a state before it has to be replaced: else it would grow with every charge.
const MOST_APPENDED: usize = 32;

/// How a cell's state stands to the one in Memcached.
#[derive(Debug, Default)]
pub(super) struct VersionedState {
    version: Version,
    /// Stands for the value of that version, or for what was written last.
    value: u64,
    /// What was changed since; `None` if Memcached knows all.
    pending: Option<StateChange>,
    /// What is part of the exchange that is under way.
    sent: Option<Sent>,
    /// What was sent without an answer.
    unacknowledged: Option<Unacknowledged>,
    /// Whether another gateway has replaced the state first.
    overtaken: bool,
    /// How often something has been appended to the state since it was replaced.
    appended: usize,
    /// By how many microseconds the state is ahead of the clock here.
    ahead: u64,
    /// For how many microseconds it was kept when something was appended to it last.
    kept: u64,
}

/// What Memcached is being told.
#[derive(Debug)]
struct Sent {
    change: StateChange,
    /// The state, or what is appended to it.
    bytes: Vec<u8>,
    is_appended: bool,
}

/// What may or may not have arrived.
#[derive(Debug)]
struct Unacknowledged {
    charged: u64,
    /// When the first and the last of it were charged.
    since: Time,
    until: Time,
    /// How much was taken back.
    taken: u64,
    bytes: Vec<u8>,
}

/// What was learned from an exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// How many states that should be there Memcached has lost: one at most.
    pub(super) lost: u64,
    /// Whether another gateway has replaced the state.
    pub(super) is_foreign: bool,
}

impl Unacknowledged {
    /// Whether this reservation may be part of it. What was reserved before is there, and what was reserved later is
    /// not.
    fn is_about(&self, reservation: &Reservation, limit: &Limit) -> bool {
        let moment = reservation.moment(limit.rates());
        self.charged > 0 && moment.is_some_and(|moment| (self.since..=self.until).contains(&moment))
    }
}

impl VersionedState {
    pub(super) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// What was charged, less what was taken back, and Memcached has yet to be told; and when the first of it was charged.
    pub(super) fn charged(&self) -> Option<(u64, Time)> {
        let pending = self.pending.as_ref()?;
        Some((pending.charged.saturating_sub(pending.taken()), pending.since)).filter(|(cost, _)| *cost > 0)
    }

    /// Sees whether the clock was set back. The state in Memcached stays in its own time, so that other gateways do not
    /// take what was counted for old; here it goes back with the clock, so that nobody waits for the old time to come
    /// again.
    pub(super) fn follow_clock(&mut self, cell: &mut Cell, now: Time) {
        let by = cell.lead(now);
        if by > 0 {
            cell.set_back(by);
            self.ahead = self.ahead.saturating_add(by);
            let sent = self.sent.iter_mut().map(|sent| &mut sent.change);
            self.pending.iter_mut().chain(sent).for_each(|change| change.set_back(by));
        }
    }

    /// Has `cost` charged. With 0 the state is only written.
    pub(super) fn charge(&mut self, cost: u64, now: Time) {
        self.pending.get_or_insert_with(|| StateChange::nothing(now)).charge(cost, now);
    }

    /// Has `cost` taken back that was charged at `since`, and is certain not to leave by itself before `certain`.
    pub(super) fn take_back(&mut self, cost: u64, (since, now): (Time, Time), certain: Time) {
        self.pending.get_or_insert_with(|| StateChange::nothing(now)).take_back(cost, since, certain);
    }

    /// Takes back what a reservation was too much, in the cell and later in Memcached, unless it is unknown whether it
    /// is there.
    pub(super) fn give_back(&mut self, cell: &mut Cell, (limit, now): (&Limit, Time), mut back: Back) {
        if self.unacknowledged.as_ref().is_some_and(|unacknowledged| unacknowledged.is_about(&back.reservation, limit))
        {
            back.given = 0;
        }
        limit.give_back_whole(cell, now, &back.reservation, back.given);
        if back.given > 0 {
            self.pending.get_or_insert_with(|| StateChange::nothing(now)).give_back(back, limit);
        }
    }

    /// Makes pending again what could not be done, or what another gateway was faster than.
    fn add_again(&mut self, mut sent: StateChange) {
        if let Some(pending) = self.pending.take() {
            sent.append(pending);
        }
        self.pending = Some(sent);
    }

    /// What was sent may or may not have arrived, so it is pending again. What was given back of reservations stays
    /// charged if it has not arrived: to give it back twice would take it from others.
    pub(super) fn lose_replies(&mut self) {
        let Some(Sent { change: mut pending, bytes, .. }) = self.sent.take() else { return };
        let StateChange { charged, since, until, .. } = pending;
        self.unacknowledged = Some(Unacknowledged { charged, since, until, taken: pending.taken(), bytes });
        pending.given.clear();
        self.add_again(pending);
    }

    /// Writes the state if a change is pending, and reads it. If the change is appended, whatever else differs is lost.
    pub(super) fn compose(
        &mut self,
        cell: &mut Cell,
        names: &Names,
        (key, now, resets): (&Digits, Time, Resets),
        may_append: bool,
        (targets, commands): (&mut Targets, &mut Commands),
    ) {
        let name = |out: &mut Vec<u8>| names.state(key, out);
        let condition = match self.version {
            // What is unacknowledged has to be read first, and so has what may be there.
            _ if self.unacknowledged.is_some() => None,
            Version::Unread | Version::Written => None,
            Version::Missing => Some(Condition::Missing),
            Version::Of(version) => Some(Condition::Version(version)),
        };
        if let Some(condition) = condition
            && let Some(mut pending) = self.pending.take()
        {
            let rates = names.limit.rates();
            pending.reduce(&names.limit, now);
            let memory = cell.memory(rates);
            let lifetime = names::lifetime(memory, now);
            let is_there = condition != Condition::Missing;
            let is_appended =
                may_append && self.overtaken && is_there && pending.is_appendable() && self.appended < MOST_APPENDED;
            let bytes = if is_appended {
                self.pending = pending.split_taken();
                let mut more = pending.appendix(rates, now, self.ahead);
                Cell::append_writer(names.writer, &mut more);
                commands.append(name, &more, lifetime);
                self.kept = memory;
                more
            } else {
                let mut value = cell.save(rates, self.ahead);
                Cell::append_writer(names.writer, &mut value);
                // Who has not read it since the key was reset is to learn of that.
                commands.store(name, &value, condition, (lifetime, resets.seen));
                value
            };
            targets.write_state();
            self.sent = Some(Sent { change: pending, bytes, is_appended });
        }
        commands.read(name);
        targets.read_state();
    }

    /// Takes over what Memcached answered.
    pub(super) fn fill(&mut self, cell: &mut Cell, (limit, now): (&Limit, Time), answer: &Answer<'_>) -> Learned {
        let mut learned = Learned::default();
        let sent = self.settle(answer.state_written());
        match answer.state() {
            // What is there is not known.
            _ if !answer.is_read() => {
                if let Some(value) = sent {
                    // It has been written, and which version that is has yet to be read.
                    (self.version, self.value) = (Version::Written, stand_in(&value));
                }
            }
            None => learned.lost = self.miss(cell, limit.rates(), now),
            Some(item) => {
                learned.is_foreign = self.learn(cell, (limit, now), item, sent.as_deref());
                // What others have appended at the same time may have to be kept for longer than was known here.
                if sent.is_some_and(|sent| sent.is_empty()) && cell.memory(limit.rates()) > self.kept {
                    self.charge(0, now);
                }
            }
        }
        learned
    }

    /// What came of the write. Returns the value that is there if it is done; nothing if something was appended, since
    /// to what is not known.
    fn settle(&mut self, written: Option<Written>) -> Option<Vec<u8>> {
        match written? {
            Written::Done | Written::Count(_) => {
                self.overtaken = false;
                self.sent.take().map(|sent| if sent.is_appended { Vec::new() } else { sent.bytes })
            }
            written @ (Written::Missing | Written::Refused | Written::Failed) => {
                self.overtaken |= written != Written::Failed;
                let sent = self.sent.take()?;
                self.add_again(sent.change);
                None
            }
            Written::Silent | Written::Unknown => {
                self.lose_replies();
                None
            }
        }
    }

    /// There is no state; returns how many states that should be there Memcached has lost.
    fn miss(&mut self, cell: &Cell, rates: &[Rate], now: Time) -> u64 {
        // Nothing can be taken from what is gone, nor from what others begin in its place.
        if let Some(pending) = &mut self.pending {
            pending.forget_taken();
            pending.given.clear();
        }
        let before = std::mem::replace(&mut self.version, Version::Missing);
        self.unacknowledged = None;
        // A state that nobody needs any more leaves Memcached by itself.
        if cell.is_whole_spent(rates, now) {
            // The next one begins by the clock here.
            self.ahead = 0;
            self.pending.take_if(|pending| pending.charged == 0);
        } else if before != Version::Unread {
            self.charge(0, now);
            return u64::from(before != Version::Missing);
        }
        0
    }

    /// Learns the state that is there now; returns whether another gateway has left it.
    fn learn(&mut self, cell: &mut Cell, (limit, now): (&Limit, Time), item: Item<'_>, sent: Option<&[u8]>) -> bool {
        let Item { value, version, .. } = item;
        let before = std::mem::replace(&mut self.value, stand_in(value));
        let was_missing = std::mem::replace(&mut self.version, Version::Of(version)) == Version::Missing;
        let unacknowledged = self.unacknowledged.take();
        if sent.map_or(before, stand_in) == self.value {
            return false;
        }
        if let Some(Unacknowledged { charged, since, until, taken, bytes }) = unacknowledged {
            if let Some(pending) = &mut self.pending {
                if memmem::find(value, &bytes).is_some() {
                    // It has arrived, and others may have appended to it. What was charged since is still pending.
                    pending.leave_out_taken(taken);
                    pending.leave_out_charged(charged, (since, until));
                } else {
                    // It may have arrived before others have written. All in all, nothing is to be taken back twice.
                    pending.leave_out_taken(taken.saturating_sub(charged));
                }
            }
            self.pending.take_if(|pending| pending.is_nothing());
            if bytes == value {
                return false;
            }
        }
        let rates = limit.rates();
        let Some(Restored { cell: mut theirs, appended, ahead }) = Cell::restore(rates, now, value) else {
            // A value that is not ours is overwritten.
            (self.overtaken, self.appended) = (false, 0);
            self.charge(0, now);
            return false;
        };
        (self.appended, self.ahead) = (appended, ahead);
        theirs.fill(rates, |place, bucket| cell.count(rates, place, bucket).unwrap_or(0));
        if let Some(pending) = &mut self.pending {
            // What was to be taken back was lost before others began this state.
            if was_missing && sent.is_none() {
                pending.forget_taken();
            }
            // It was so long ago that it matters no more, and so was what was charged before it and taken back.
            if pending.charged > 0 && pending.given.is_empty() && cell.is_whole_spent(rates, now) {
                pending.charged = 0;
                pending.forget_taken();
            }
            pending.reduce(limit, now);
        }
        // It was only to be told what is not true any more.
        self.pending.take_if(|pending| pending.is_nothing());
        if let Some(pending) = &self.pending {
            pending.apply(limit, &mut theirs, now);
        }
        *cell = theirs;
        true
    }
}

#[cfg(test)]
impl VersionedState {
    /// Whether something is part of the exchange that is under way.
    pub(super) fn has_sent(&self) -> bool {
        self.sent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Strategy;

    fn at(millis: u64) -> Time {
        Time::from_micros(1_800_000_000_000_000 + millis * 1000)
    }

    fn three_a_second() -> Limit {
        let rate = Rate::new(3, Duration::from_secs(1)).unwrap().with_strategy(Strategy::FixedWindow).unwrap();
        Limit::new("l", &[rate])
    }

    /// A state to which 1 was charged at each moment.
    fn charged(limit: &Limit, moments: &[u64]) -> Cell {
        let mut cell = Cell::new(limit.rates(), at(moments[0]));
        for moment in moments {
            cell.advance(limit.rates(), at(*moment));
            limit.charge(&mut cell, at(*moment), 1);
        }
        cell
    }

    /// What a gateway learns from what another one has left of the same key, at this moment.
    fn learn(state: &mut VersionedState, cell: &mut Cell, limit: &Limit, now: u64, theirs: &Cell) {
        cell.advance(limit.rates(), at(now));
        let value = theirs.save(limit.rates(), 0);
        state.learn(cell, (limit, at(now)), Item { value: &value, flags: 0, version: 7 }, None);
    }

    #[test]
    fn what_was_taken_back_in_a_window_is_not_taken_from_the_next() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[0, 950]);
        let mut state = VersionedState::default();
        // The first charge is known, is taken back, and another request is charged before that is told.
        limit.take_back_whole(&mut cell, 1);
        state.take_back(1, (at(0), at(950)), cell.certain_until(limit.rates(), at(950), 1, at(0)));
        state.charge(1, at(950));
        learn(&mut state, &mut cell, &limit, 1005, &charged(&limit, &[1001, 1002, 1003]));
        assert!(!limit.admits(&cell, at(1005), 1), "the other gateway has used up the new window");
        assert!(!state.has_pending());
    }

    #[test]
    fn what_memcached_has_lost_is_not_taken_from_what_others_begin() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[0, 10]);
        let mut state = VersionedState { version: Version::Of(3), ..VersionedState::default() };
        limit.take_back_whole(&mut cell, 1);
        state.take_back(1, (at(0), at(10)), at(1000));
        state.miss(&cell, limit.rates(), at(20));
        limit.take_back_whole(&mut cell, 1);
        state.take_back(1, (at(10), at(25)), at(1000));
        learn(&mut state, &mut cell, &limit, 30, &charged(&limit, &[21, 22, 23]));
        assert!(!limit.admits(&cell, at(30), 1));
    }

    #[test]
    fn what_is_being_told_goes_back_with_the_clock() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[5000, 5010]);
        let mut state = VersionedState { version: Version::Of(3), ..VersionedState::default() };
        limit.take_back_whole(&mut cell, 1);
        state.take_back(1, (at(5000), at(5010)), at(6000));
        state.send_with(Vec::new());
        state.follow_clock(&mut cell, at(1010));
        state.settle(Some(Written::Refused));
        learn(&mut state, &mut cell, &limit, 2500, &charged(&limit, &[2400, 2410, 2420]));
        assert!(!limit.admits(&cell, at(2500), 1), "it was taken back in a window that is over");
    }
}
