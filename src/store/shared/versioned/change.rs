//! The changes of a state that is one value: those that are pending, and those that were sent, which are looked for in what
//! is read afterwards.

use std::ops::Range;

use smallvec::SmallVec;

use super::VersionedState;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::shared::{Attempt, Operation, OperationGroup, Writing, set_back};
use crate::limit::{Cell, Limit, Reservation};
use crate::store::shared::names::Digits;

/// Numbers the attempts of a cell: requests that wait until it is known whether they are admitted.
pub(in super::super) type Number = u64;

/// What has changed since the last write. If it is empty, only the state is to be written.
#[derive(Debug, Default)]
pub(super) struct StateChange {
    /// Charged in any case.
    charge: Option<TotalCharge>,
    /// What was given back of charges that the server knows.
    given: Vec<Operation>,
    /// Charged only if they fit; each with the number of its first request.
    attempts: SmallVec<[(Number, Attempt); 1]>,
    /// Requests of `attempts` that were admitted without waiting any longer.
    admitted: SmallVec<[Number; 2]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TotalCharge {
    /// The moments of the first and the last of them.
    since: Time,
    until: Time,
    cost: u64,
}

/// The result of an attempt: the numbers of its requests, and how many of these, the first ones, are admitted.
#[derive(Clone, Debug)]
struct AttemptOutcome {
    requests: Range<Number>,
    admitted: u64,
}

#[derive(Debug, Default)]
pub(in super::super) struct AttemptOutcomes(SmallVec<[AttemptOutcome; 1]>);

impl AttemptOutcomes {
    /// `None` if it is unknown.
    pub(in super::super) fn of(&self, number: Number) -> Option<bool> {
        let outcome = self.0.iter().find(|outcome| outcome.requests.contains(&number))?;
        Some(number - outcome.requests.start < outcome.admitted)
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl StateChange {
    pub(super) fn is_nothing(&self) -> bool {
        self.charge.is_none() && self.only_charges()
    }

    /// The sum of all charges, and the moment of the first of them.
    fn charged(&self) -> Option<(u64, Time)> {
        let attempts =
            self.attempts.iter().map(|(_, attempt)| (attempt.cost.saturating_mul(attempt.times), attempt.since));
        let all = self.charge.iter().map(|charge| (charge.cost, charge.since)).chain(attempts);
        all.reduce(|(sum, first), (cost, at)| (sum.saturating_add(cost), first.min(at)))
    }

    pub(super) fn charge(&mut self, cost: u64, at: Time) {
        self.add_charge(TotalCharge { since: at, until: at, cost });
    }

    pub(super) fn add_charge(&mut self, more: TotalCharge) {
        if more.cost > 0 {
            // Decisions may overtake each other by a little.
            let before = self.charge.unwrap_or(TotalCharge { cost: 0, ..more });
            let (since, until) = (before.since.min(more.since), before.until.max(more.until));
            self.charge = Some(TotalCharge { since, until, cost: before.cost.saturating_add(more.cost) });
        }
    }

    pub(super) fn attempt(&mut self, number: Number, attempt: Attempt) {
        let last = self.attempts.last_mut().filter(|(first, last)| first + last.times == number);
        if !last.is_some_and(|(_, last)| last.join(&attempt)) {
            self.attempts.push((number, attempt));
        }
    }

    /// Whether this request is charged only if it fits.
    pub(super) fn attempts(&self, number: Number) -> bool {
        self.attempts.iter().any(|(first, attempt)| (*first..first + attempt.times).contains(&number))
    }

    /// This request was admitted in any case.
    pub(super) fn admit(&mut self, number: Number) {
        self.admitted.push(number);
    }

    /// All requests were admitted in any case.
    pub(super) fn admit_all(&mut self) {
        for (_, Attempt { at, since, cost, times, .. }) in std::mem::take(&mut self.attempts) {
            self.add_charge(TotalCharge { since, until: at, cost: cost.saturating_mul(times) });
        }
        self.admitted.clear();
    }

    /// All requests were admitted in any case, but what was sent already stays as it is.
    pub(super) fn admit_all_attempts(&mut self) {
        self.admitted = self.attempts.iter().flat_map(|(first, attempt)| *first..first + attempt.times).collect();
    }

    /// The results of its attempts. `admitted` has the number of requests that each admitted; all if that is unknown.
    /// Requests that did not fit but were admitted in any case are charged `later`, with the next write.
    pub(super) fn outcomes(&self, admitted: &[u64], mut later: impl FnMut(TotalCharge)) -> AttemptOutcomes {
        let outcome = |(index, (first, attempt)): (usize, &(Number, Attempt))| {
            let admitted = admitted.get(index).copied().unwrap_or(attempt.times);
            AttemptOutcome { requests: *first..first + attempt.times, admitted }
        };
        let outcomes = AttemptOutcomes(self.attempts.iter().enumerate().map(outcome).collect());
        for number in self.admitted.iter().filter(|number| outcomes.of(**number) == Some(false)) {
            let is_of = |(first, attempt): &&(Number, Attempt)| (*first..first + attempt.times).contains(number);
            self.attempts.iter().filter(is_of).for_each(|(_, attempt)| {
                later(TotalCharge { since: attempt.since, until: attempt.at, cost: attempt.cost });
            });
        }
        outcomes
    }

    /// Gives back the excess of a reservation. If the server does not know the charge yet, just reduces it.
    pub(super) fn give_back(&mut self, reservation: &Reservation, given: u64, limit: &Limit) {
        match &mut self.charge {
            Some(charge) if charge.cost >= given && reservation.moment(limit.rates()) >= Some(charge.since) => {
                charge.cost -= given;
                self.charge.take_if(|charge| charge.cost == 0);
            }
            _ => self.given.push(Operation::give_back(limit.rates(), reservation, given)),
        }
    }

    /// Gives nothing back: the charges are gone.
    pub(super) fn forget_given(&mut self) {
        self.given.clear();
    }

    /// Whether it gives nothing back, and nobody waits for it.
    pub(super) fn only_charges(&self) -> bool {
        self.given.is_empty() && self.attempts.is_empty()
    }

    pub(super) fn append(&mut self, later: Self) {
        later.charge.into_iter().for_each(|charge| self.add_charge(charge));
        self.given.extend(later.given);
        self.attempts.extend(later.attempts);
        self.admitted.extend(later.admitted);
    }

    /// Moves all moments back by `by` microseconds, because the clock was set back.
    pub(super) fn set_back(&mut self, by: u64) {
        let charge = self.charge.iter_mut().flat_map(|charge| [&mut charge.since, &mut charge.until]);
        charge.for_each(|time| set_back(time, by));
        self.given.iter_mut().for_each(|given| given.set_back(by));
        self.attempts.iter_mut().for_each(|(_, attempt)| attempt.set_back(by));
    }

    fn operations(&self) -> impl Iterator<Item = Operation> {
        let charge = self.charge.map(|TotalCharge { since, until, cost }| Operation::Charge { at: until, since, cost });
        let attempts = self.attempts.iter().map(|(_, attempt)| Operation::Attempt(attempt.clone()));
        charge.into_iter().chain(self.given.iter().cloned()).chain(attempts)
    }

    /// Applies the changes to a state that was read anew and does not contain them, as of its last moment. Returns the
    /// results of requests that do not fit, and drops their attempts.
    pub(super) fn apply(&mut self, limit: &Limit, cell: &mut Cell, now: Time) -> AttemptOutcomes {
        let admitted: SmallVec<[u64; 2]> =
            self.operations().filter_map(|operation| limit.operate(cell, now, &operation)).collect();
        let (mut outcomes, mut later) = (AttemptOutcomes::default(), SmallVec::<[_; 1]>::new());
        for ((first, attempt), admitted) in self.attempts.iter_mut().zip(admitted) {
            let dropped = *first + admitted..*first + attempt.times;
            attempt.times = admitted;
            let all = self.admitted.len();
            self.admitted.retain(|number| !dropped.contains(number));
            outcomes.0.push(AttemptOutcome { requests: dropped, admitted: 0 });
            let cost = attempt.cost.saturating_mul((all - self.admitted.len()) as u64);
            if cost > 0 {
                let (at, since) = (attempt.at, attempt.since);
                limit.operate(cell, now, &Operation::Charge { at, since, cost });
                later.push(TotalCharge { since, until: at, cost });
            }
        }
        self.attempts.retain(|(_, attempt)| attempt.times > 0);
        later.into_iter().for_each(|charge| self.add_charge(charge));
        outcomes
    }

    /// Charges the same to a state in which nothing is counted.
    fn charge_to(&self, limit: &Limit, cell: &mut Cell, now: Time) {
        if let Some((cost, since)) = self.charged() {
            limit.charge_whole(cell, now, cost, since);
        }
    }

    /// Appends the changes to a state, which is `ahead` microseconds ahead of the clock here.
    pub(super) fn encode(&self, writing: Writing, ahead: u64, bytes: &mut Vec<u8>) {
        let operations: SmallVec<[Operation; 2]> = self.operations().collect();
        Cell::append(writing, operations.into_iter(), ahead, bytes);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    #[default]
    Unread,
    /// There is none.
    Missing,
    /// Its version, and the hash of its value. Values are taken for equal if their hashes are.
    Of(u64, u64),
}

pub(super) fn stand_in(value: &[u8]) -> u64 {
    Fingerprint::of(value).high()
}

pub(in super::super) struct StateWriting<'a> {
    pub(in super::super) key: &'a Digits,
    pub(in super::super) now: Time,
    /// The number of the last reset of the key.
    pub(in super::super) number: u32,
    pub(in super::super) is_shared: bool,
}

#[derive(Debug)]
pub(super) struct SentState {
    pub(super) change: StateChange,
    pub(super) writing: Writing,
    /// The whole value as it is written, or what is appended to the present value.
    pub(super) bytes: Vec<u8>,
    pub(super) is_appended: bool,
}

impl SentState {
    /// Whether `value` results from this write to the value before, so that nobody else has written.
    pub(super) fn explains(&self, value: &[u8], before: Version) -> bool {
        match before {
            _ if !self.is_appended => value == self.bytes,
            Version::Of(_, before) => value.strip_suffix(&*self.bytes).is_some_and(|rest| stand_in(rest) == before),
            Version::Unread | Version::Missing => false,
        }
    }

    /// How many requests of each attempt were admitted according to these groups; empty if the groups are part of the state
    /// by now. `None` if the write has not arrived.
    pub(super) fn found<'a>(&self, groups: &'a [OperationGroup]) -> Option<&'a [u64]> {
        let Writing { writer, sequence } = self.writing;
        let mut own = groups.iter().filter(|group| group.writing.writer == writer);
        let is_later = |group: &OperationGroup| group.writing.sequence.wrapping_sub(sequence) < 1 << 31;
        match own.clone().find(|group| group.writing.sequence == sequence) {
            Some(group) => Some(&group.admitted),
            None => own.any(is_later).then_some(&[]),
        }
    }
}

/// Resets of the key.
impl VersionedState {
    pub(in super::super) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The value of a reset is being sent; it includes all pending changes.
    pub(in super::super) fn send_reset(&mut self, writing: Writing, bytes: Vec<u8>) {
        self.sent = self.pending.take().map(|change| SentState { change, writing, bytes, is_appended: false });
    }

    pub(in super::super) fn acknowledge(&mut self) {
        self.sent = None;
    }

    /// The key was reset: forgets the state, but charges to `cell` what the server has yet to be told. What was to be given
    /// back was charged before the reset.
    pub(in super::super) fn forget_confirmed(&mut self, cell: &mut Cell, limit: &Limit, now: Time) {
        (self.version, self.least) = (Version::Unread, None);
        let sent = self.sent.iter_mut().chain(&mut self.unacknowledged).map(|sent| &mut sent.change);
        for pending in self.pending.iter_mut().chain(sent) {
            pending.forget_given();
            pending.charge_to(limit, cell, now);
        }
        self.pending.take_if(|pending| pending.is_nothing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_moments_go_back_with_the_clock() {
        let limit = Limit::new("l", &["9/m burst 9".parse().unwrap()]);
        let (now, earlier) = (Time::from_micros(5_000_000), Time::from_micros(2_000_000));
        let reservation = limit.place_of(&Cell::new(limit.rates(), now), now, 1);
        let change = |at| {
            let mut change = StateChange::default();
            change.charge(2, at);
            change.attempt(0, limit.attempt(at, 1, 1));
            change
        };
        let mut moved = change(now);
        moved.given.push(Operation::give_back(limit.rates(), &reservation, 1));
        moved.set_back(3_000_000);
        let given = moved.given.pop().unwrap();
        assert!(matches!(given, Operation::GiveBack { from, .. } if from == earlier));
        assert!(moved.operations().eq(change(earlier).operations()));
    }
}
