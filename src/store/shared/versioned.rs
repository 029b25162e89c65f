//! How the one value with the state of all rates that are kept as a whole differs from the one on the server.
//!
//! If no other gateway charges the key, the value is replaced, on condition that it has not changed. Otherwise the change is
//! appended, which always succeeds. A request fits or not by its place in the value (`limit/shared/operations.rs`): appended
//! changes are read in the same exchange, and all gateways understand them alike. A value to which much was appended is
//! shortened before the next append, if it has not changed. If nobody succeeds with that, all gateways replace the value, and
//! the first one succeeds.
//!
//! ```text
//!   Unread --- read: none ----> Missing ---- sent: created, or appended to what others have begun --+--> Of(version)
//!      +------ read: a value -> Of(version) -+-- sent: appended -----------------------------------+
//!                                            +-- sent: replaced -----------------------------------+
//!                                                       +--> another gateway was faster: appended by the next exchange
//! ```
//! If an exchange is not answered, the next one only reads. Each writing has a number, which stays in the value for a while
//! and so tells whether the writing has arrived.

mod change;

use smallvec::SmallVec;

use super::names::{self, Names};
use super::protocol::{Commands, Condition, Item, Written};
use super::targets::{CellAnswer, Target, Targets};
use crate::base::clock::Time;
use crate::limit::shared::{Attempt, OperationGroup, Restored, Writing};
use crate::limit::{Cell, Limit, Rate, Reservation};

pub(super) use change::{AttemptOutcomes, Number, StateWriting};
use change::{SentState, StateChange, Version, stand_in};

/// A state is shortened after so many appends.
const LONG: usize = 8;
/// A state is replaced after so many appends, but a gateway that was too slow for that may append for a while.
const TOO_LONG: usize = 2 * LONG;
const LONGEST: usize = 4 * TOO_LONG;
/// When the state is replaced, the last writings of so many other gateways stay in it.
const WRITERS: usize = 8;

#[derive(Debug, Default)]
pub(super) struct VersionedState {
    version: Version,
    /// What has changed here; `None` if the server knows all.
    pending: Option<StateChange>,
    /// Part of the exchange in flight.
    sent: Option<SentState>,
    /// Sent, but without an answer that tells whether it has arrived.
    unacknowledged: Option<SentState>,
    /// Whether another gateway has replaced the state first.
    overtaken: bool,
    /// The number of appends since the state was replaced.
    appended: usize,
    /// A short value for it, if the state is long and still has the version that was read.
    short: Option<Vec<u8>>,
    writings: SmallVec<[Writing; 2]>,
    /// By how many microseconds the state is ahead of the clock here.
    ahead: u64,
    /// The lifetime of the last write, in microseconds.
    kept: u64,
    next: Number,
    /// The results of attempts since they were taken last.
    outcomes: AttemptOutcomes,
    /// What continues from a replaced limit, until another gateway's state counts as much.
    least: Option<Box<Cell>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LearnedState {
    /// How many states the server has lost that should be there: at most one.
    pub(super) lost: u64,
    pub(super) is_foreign: bool,
    /// Whether somebody else has made the item, and it is no value: a new value is refused, and there is none.
    pub(super) is_blocked: bool,
}

impl VersionedState {
    pub(super) fn has_pending(&self) -> bool {
        self.pending.is_some() || self.unacknowledged.is_some()
    }

    /// Whether it is unknown if something has arrived. Nothing is written before that is known.
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.unacknowledged.is_some()
    }

    /// Notices whether the clock was set back. The state on the server stays in its own time, so that other gateways do not
    /// take its counts for old. Here it moves back with the clock, so that nobody waits for the old time to come again.
    pub(super) fn follow_clock(&mut self, cell: &mut Cell, now: Time) {
        let by = cell.lead(now);
        if by > 0 {
            cell.set_back(by);
            self.ahead = self.ahead.saturating_add(by);
            let sent = self.sent.iter_mut().chain(&mut self.unacknowledged).map(|sent| &mut sent.change);
            self.pending.iter_mut().chain(sent).for_each(|change| change.set_back(by));
        }
    }

    /// With a `cost` of 0, the state is only written.
    pub(super) fn charge(&mut self, cost: u64, now: Time) {
        self.pending.get_or_insert_default().charge(cost, now);
    }

    /// Charges a request if it fits. Returns the number of the attempt.
    pub(super) fn attempt(&mut self, attempt: Attempt) -> Number {
        let number = self.next;
        self.next += 1;
        self.pending.get_or_insert_default().attempt(number, attempt);
        number
    }

    /// Whether the exchange in flight contains this attempt.
    pub(super) fn is_sent(&self, number: Number) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.change.attempts(number))
    }

    /// This request was admitted without waiting any longer: it is charged whether it fits or not.
    pub(super) fn admit(&mut self, number: Number) {
        let sent = self.sent.as_mut().map(|sent| &mut sent.change).filter(|change| change.attempts(number));
        sent.or(self.pending.as_mut()).into_iter().for_each(|change| change.admit(number));
    }

    /// All unsent requests were admitted without waiting any longer.
    pub(super) fn admit_pending(&mut self) {
        self.pending.iter_mut().for_each(StateChange::admit_all);
    }

    /// From now on the state counts no less than `least`, which continues from a replaced limit and must be advanced to
    /// `now`. That is written to the server, unless its state counts as much.
    pub(super) fn hold(&mut self, mut least: Cell, limit: &Limit, now: Time) {
        if let Some(mut before) = self.least.take() {
            before.advance(limit.rates(), now);
            limit.raise(&mut least, &before, now);
        }
        // Counters are handled separately.
        least.fill(|_, _| 0);
        self.least = Some(Box::new(least));
        self.charge(0, now);
    }

    /// Raises another gateway's state to what continues from a replaced limit. If that changes it, the result must be
    /// written.
    fn raise(&mut self, theirs: &mut Cell, limit: &Limit, now: Time) {
        let Some(mut least) = self.least.take() else { return };
        theirs.advance(limit.rates(), now);
        least.advance(limit.rates(), now);
        let before = theirs.clone();
        limit.raise(theirs, &least, now);
        if *theirs != before {
            self.least = Some(least);
        }
    }

    pub(super) fn take_outcomes(&mut self) -> AttemptOutcomes {
        std::mem::take(&mut self.outcomes)
    }

    /// Gives back the excess of a reservation, in the cell and later on the server.
    pub(super) fn give_back(
        &mut self,
        cell: &mut Cell,
        limit: &Limit,
        now: Time,
        reservation: &Reservation,
        given: u64,
    ) {
        limit.give_back_whole(cell, now, reservation, given);
        if given > 0 {
            self.pending.get_or_insert_default().give_back(reservation, given, limit);
        }
    }

    /// Makes pending again what failed, or what another gateway was faster than.
    fn add_again(&mut self, mut sent: StateChange) {
        sent.append(self.pending.take().unwrap_or_default());
        self.pending = Some(sent);
    }

    /// What was sent may or may not have arrived. Nobody waits for it any longer.
    pub(super) fn lose_replies(&mut self) {
        if let Some(mut sent) = self.sent.take() {
            sent.change.admit_all_attempts();
            self.unacknowledged = Some(sent);
        }
    }

    /// Writes a pending change, and reads the state. If the change is appended, other differences here are lost.
    pub(super) fn compose(
        &mut self,
        cell: &mut Cell,
        names: &Names,
        writing: &StateWriting<'_>,
        targets: &mut Targets,
        commands: &mut dyn Commands,
    ) {
        let StateWriting { key, now, number, is_shared } = *writing;
        let name = |out: &mut Vec<u8>| names.state(key, out);
        // What continues from a replaced limit is only written with the whole state.
        let may_append = self.least.is_none();
        let is_any = |pending: &mut StateChange| match self.version {
            // Unacknowledged changes have to be read first, and so has an unknown state.
            _ if self.unacknowledged.is_some() => false,
            Version::Unread => may_append && !pending.is_nothing(),
            Version::Missing | Version::Of(..) => true,
        };
        if let Some(change) = self.pending.take_if(is_any) {
            let rates = names.limit.rates();
            let memory = cell.memory(rates);
            let lifetime = names::lifetime(memory, now);
            let writing = names.writer.next();
            let condition = if let Version::Of(version, _) = self.version { Some(version) } else { None };
            let may_append = may_append && !change.is_nothing();
            let is_appended = may_append
                && match condition {
                    None => true,
                    Some(_) if self.overtaken => self.appended < LONGEST,
                    Some(_) => is_shared && self.appended < TOO_LONG,
                };
            let mut bytes = Vec::new();
            if let (true, Some(short), Some(version)) = (is_appended, self.short.take(), condition) {
                commands.store(&name, &short, Condition::Version(version), lifetime, number);
                targets.writes.push(Target::Other);
            }
            if is_appended {
                change.encode(writing, self.ahead, &mut bytes);
                commands.append(&name, &bytes, lifetime);
                targets.writes.push(Target::State);
            }
            if !is_appended || condition.is_none() {
                bytes = self.whole(cell);
                Cell::append(writing, [].into_iter(), 0, &mut bytes);
                let condition = condition.map_or(Condition::Missing, Condition::Version);
                // Tells gateways that have not read the state since the key was reset.
                commands.store(&name, &bytes, condition, lifetime, number);
                targets.writes.push(Target::State);
            }
            self.kept = memory;
            let is_appended = is_appended && condition.is_some();
            self.sent = Some(SentState { change, writing, bytes, is_appended });
        }
        commands.read(&name);
        targets.reads.push(Target::State);
    }

    fn whole(&self, cell: &Cell) -> Vec<u8> {
        let mut bytes = cell.save(self.ahead);
        self.writings.iter().for_each(|writing| Cell::append(*writing, [].into_iter(), 0, &mut bytes));
        bytes
    }

    pub(super) fn fill(&mut self, cell: &mut Cell, limit: &Limit, now: Time, answer: &CellAnswer<'_>) -> LearnedState {
        let mut learned = LearnedState::default();
        match answer.state_written() {
            None => {}
            Some(Written::Done | Written::Count(_)) => self.overtaken = false,
            Some(written @ (Written::Missing | Written::Refused | Written::Failed)) => {
                self.overtaken |= written != Written::Failed;
                let is_new = !matches!(self.version, Version::Of(..));
                learned.is_blocked =
                    is_new && written == Written::Refused && answer.is_read() && answer.state().is_none();
                self.sent.take().into_iter().for_each(|sent| self.add_again(sent.change));
            }
            Some(Written::Unknown) => self.lose_replies(),
        }
        match answer.state() {
            // The state on the server is unknown.
            _ if !answer.is_read() => self.lose_replies(),
            None => learned.lost = self.miss(cell, limit.rates(), now),
            Some(item) => learned.is_foreign = self.learn(cell, limit, now, item),
        }
        learned
    }

    /// There is no state. Returns how many states the server has lost that should be there.
    fn miss(&mut self, cell: &Cell, rates: &[Rate], now: Time) -> u64 {
        let before = std::mem::replace(&mut self.version, Version::Missing);
        self.writings.clear();
        self.short = None;
        if let Some(sent) = self.sent.take() {
            self.conclude(&sent, &[]);
        }
        if let Some(sent) = self.unacknowledged.take() {
            self.tell_again(sent);
        }
        // Nothing can be given back to a lost state, nor to one that other gateways begin in its place.
        self.pending.iter_mut().for_each(StateChange::forget_given);
        // A state that nobody needs any more has expired on the server.
        if cell.is_whole_spent(rates, now) {
            // The next one begins by the clock here.
            self.ahead = 0;
            self.least = None;
            self.pending.take_if(|pending| pending.is_nothing());
        } else if before != Version::Unread {
            self.charge(0, now);
            return u64::from(before != Version::Missing);
        }
        0
    }

    /// Notes the result of what was sent. `admitted`: how many requests of each attempt were admitted; without an entry, all.
    fn conclude(&mut self, sent: &SentState, admitted: &[u64]) {
        let pending = &mut self.pending;
        let later = |charge| pending.get_or_insert_default().add_charge(charge);
        self.outcomes.append(sent.change.outcomes(admitted, later));
    }

    /// Makes pending again what has not arrived. Nobody waits for it any longer.
    fn tell_again(&mut self, sent: SentState) {
        let mut change = sent.change;
        change.admit_all();
        self.add_again(change);
    }

    /// Learns the state that is on the server; returns whether another gateway has written it.
    fn learn(&mut self, cell: &mut Cell, limit: &Limit, now: Time, Item { value, version, .. }: Item<'_>) -> bool {
        let rates = limit.rates();
        let before = std::mem::replace(&mut self.version, Version::Of(version, stand_in(value)));
        let (sent, unacknowledged) = (self.sent.take(), self.unacknowledged.take());
        let was_there = matches!(before, Version::Of(_, before) if before == stand_in(value));
        let last = sent.as_ref().or(unacknowledged.as_ref());
        let has_arrived = last.is_some_and(|last| last.explains(value, before));
        let is_unchanged = has_arrived || was_there && sent.is_none();
        // The server's state counts appended changes as of other moments.
        if is_unchanged && !(has_arrived && last.is_some_and(|last| last.is_appended)) {
            match sent.or(unacknowledged) {
                Some(last) if has_arrived => {
                    (self.appended, self.short) = (0, None);
                    self.conclude(&last, &[]);
                }
                Some(last) => self.tell_again(last),
                None => {}
            }
            return false;
        }
        let Some(Restored { cell: mut theirs, groups, ahead }) = Cell::restore(rates, now, value) else {
            // A value that is not ours is overwritten: what was appended to it, too.
            (self.overtaken, self.appended) = (false, TOO_LONG);
            sent.into_iter().for_each(|sent| self.add_again(sent.change));
            unacknowledged.into_iter().for_each(|sent| self.tell_again(sent));
            self.charge(0, now);
            return false;
        };
        (self.appended, self.ahead) = (groups.len(), ahead);
        let is_sent = sent.is_some();
        let own = sent.as_ref().or(unacknowledged.as_ref()).map(|sent| sent.writing.writer);
        self.note_writings(&groups, own);
        // The charges that were to be given back were lost before other gateways began this state.
        if before == Version::Missing && own.is_none() {
            self.pending.iter_mut().for_each(StateChange::forget_given);
        }
        if let Some(sent) = sent {
            // The write succeeded, so if it is not there, it has been lost since.
            self.conclude(&sent, sent.found(&groups).unwrap_or_default());
        }
        if let Some(sent) = unacknowledged {
            match sent.found(&groups) {
                Some(admitted) => self.conclude(&sent, admitted),
                None => self.tell_again(sent),
            }
        }
        self.short = (self.appended >= LONG).then(|| self.whole(&theirs));
        self.raise(&mut theirs, limit, now);
        // Charges from so long ago matter no more.
        let is_over = cell.is_whole_spent(rates, now);
        self.pending.take_if(|pending| is_over && pending.only_charges());
        if let Some(pending) = &mut self.pending {
            self.outcomes.append(pending.apply(limit, &mut theirs, now));
        }
        // The write had no other purpose than to correct what is no longer there.
        self.pending.take_if(|pending| pending.is_nothing());
        theirs.advance(rates, now);
        theirs.fill(|place, bucket| cell.count(place, bucket).unwrap_or(0));
        *cell = theirs;
        // What others have appended at the same time may have to be kept for longer than was known here.
        if self.least.is_some() || is_sent && cell.memory(rates) > self.kept {
            self.charge(0, now);
        }
        !is_unchanged
    }

    /// Notes the last writing of each other gateway, the latest first.
    fn note_writings(&mut self, groups: &[OperationGroup], own: Option<u32>) {
        self.writings.clear();
        let writings = groups.iter().rev().map(|group| group.writing);
        for writing in writings.filter(|writing| Some(writing.writer) != own) {
            if self.writings.len() < WRITERS && !self.writings.iter().any(|other| other.writer == writing.writer) {
                self.writings.push(writing);
            }
        }
    }
}

#[cfg(test)]
impl VersionedState {
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

    /// A state with a charge of 1 at each moment.
    fn charged(limit: &Limit, moments: &[u64]) -> Cell {
        let mut cell = Cell::new(limit.rates(), at(moments[0]));
        for moment in moments {
            cell.advance(limit.rates(), at(*moment));
            limit.charge(&mut cell, at(*moment), 1);
        }
        cell
    }

    /// Learns what another gateway has left of the same key at this moment.
    fn learn(state: &mut VersionedState, cell: &mut Cell, limit: &Limit, now: u64, theirs: &Cell) {
        cell.advance(limit.rates(), at(now));
        let value = theirs.save(0);
        state.learn(cell, limit, at(now), Item { value: &value, number: 0, version: 7 });
    }

    /// Gives back a charge of this moment that was not admitted.
    fn give_back(state: &mut VersionedState, cell: &mut Cell, limit: &Limit, (charged, now): (u64, u64)) {
        let reservation = limit.place_of(cell, at(charged), 1).not_admitted(limit.rates(), at(now));
        state.give_back(cell, limit, at(now), &reservation, 1);
    }

    #[test]
    fn what_was_given_back_in_a_window_is_not_taken_from_the_next() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[0, 950]);
        let mut state = VersionedState { version: Version::Of(3, 0), ..VersionedState::default() };
        // The server has the first charge. It is given back, and another request is charged before that is sent.
        give_back(&mut state, &mut cell, &limit, (0, 950));
        state.charge(1, at(950));
        learn(&mut state, &mut cell, &limit, 1005, &charged(&limit, &[1001, 1002, 1003]));
        assert!(!limit.admits(&cell, at(1005), 1), "the other gateway has used up the new window");
    }

    #[test]
    fn what_the_server_has_lost_is_not_taken_from_what_others_begin() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[0, 10]);
        let mut state = VersionedState { version: Version::Of(3, 0), ..VersionedState::default() };
        give_back(&mut state, &mut cell, &limit, (0, 10));
        state.miss(&cell, limit.rates(), at(20));
        give_back(&mut state, &mut cell, &limit, (10, 25));
        learn(&mut state, &mut cell, &limit, 30, &charged(&limit, &[21, 22, 23]));
        assert!(!limit.admits(&cell, at(30), 1));
    }

    #[test]
    fn what_is_being_told_goes_back_with_the_clock() {
        let limit = three_a_second();
        let mut cell = charged(&limit, &[5000, 5010]);
        let mut state = VersionedState { version: Version::Of(3, 0), ..VersionedState::default() };
        give_back(&mut state, &mut cell, &limit, (5000, 5010));
        state.follow_clock(&mut cell, at(1010));
        learn(&mut state, &mut cell, &limit, 2500, &charged(&limit, &[2400, 2410, 2420]));
        assert!(!limit.admits(&cell, at(2500), 1), "it was given back in a window that is over");
    }
}
