//! What gateways append to a state in a shared store, instead of replacing it.
//!
//! A gateway appends a group of operations at once. Every reader folds the groups into the state in their order, by the same
//! rule, so all agree which requests were admitted: one that does not fit is skipped by all, and charged nowhere. A group has
//! the number of its writer and a sequence number, by which the writer finds it again if it got no answer. If gateways
//! replaced the state instead, one that is far from the server would come too late every time.

use smallvec::SmallVec;

use super::super::Limit;
use super::super::cell::Cell;
use super::super::counting::{pull, push};
use super::super::rate::Rate;
use super::super::reservation::Reservation;
use crate::base::clock::Time;

/// How many of the appended operations that give back are executed at most; the rest stays charged. Each takes time in
/// proportion to the length of the log, and any program that can write to the store could append any number of them.
pub(in super::super) const MOST_GIVEN_BACK: usize = 4096;

/// A change of the state that is kept as a whole. Moments are by the clock of the gateway that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Counts a cost even if there is no room for it, because it is admitted already.
    Charge {
        /// When the last part of it came.
        at: Time,
        /// When the first part of it came.
        since: Time,
        /// Its sum.
        cost: u64,
    },
    /// Admits requests while there is room for them.
    Attempt(Attempt),
    /// Gives back a part of what was counted.
    GiveBack {
        /// When it was counted.
        mark: Time,
        /// Since when it may have drained from a token bucket.
        from: Time,
        /// How much is given back.
        cost: u64,
    },
}

/// Requests that are admitted one after the other while there is room for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When the last of them came.
    pub at: Time,
    /// When the first of them came.
    pub since: Time,
    /// How much room each needs to be admitted.
    pub need: u64,
    /// What each is charged if it is admitted: more than 0.
    pub cost: u64,
    /// How many there are.
    pub times: u64,
    /// The capacity of each rate whose state is kept as a whole, in the order of the rates. While a configuration changes,
    /// gateways may know different quotas of a limit, and still have to agree on what was admitted.
    pub capacities: SmallVec<[u64; 2]>,
}

/// Names a group of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// The number of the gateway that appends it.
    pub writer: u32,
    /// The number of the group. It grows with each group of the writer, and may wrap.
    pub sequence: u32,
}

/// A group of operations that was read with a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationGroup {
    /// Names the group.
    pub writing: Writing,
    /// How many requests of each [`Attempt`] were admitted.
    pub admitted: SmallVec<[u64; 2]>,
}

impl Limit {
    /// Attempts to count a request of this `cost`, which needs so much room.
    pub fn attempt(&self, at: Time, need: u64, cost: u64) -> Attempt {
        let whole = self.rates().iter().filter(|rate| !rate.uses_counters());
        Attempt { at, since: at, need, cost, times: 1, capacities: whole.map(Rate::capacity).collect() }
    }

    /// Applies an operation to `cell`, and advances it to the operation's moment. Gives back as of `now`. Returns how many
    /// requests of an [`Attempt`] were admitted.
    pub fn operate(&self, cell: &mut Cell, now: Time, operation: &Operation) -> Option<u64> {
        cell.operate(self.rates(), now, operation)
    }
}

impl Attempt {
    /// Adds another request if it differs only in its moment. Returns whether it does.
    pub fn join(&mut self, other: &Self) -> bool {
        let is_alike = (self.need, self.cost, &self.capacities) == (other.need, other.cost, &other.capacities);
        if is_alike {
            (self.since, self.at) = (self.since.min(other.since), self.at.max(other.at));
            self.times += other.times;
        }
        is_alike
    }

    /// Moves it back in time by so many microseconds.
    pub fn set_back(&mut self, by: u64) {
        [&mut self.at, &mut self.since].into_iter().for_each(|time| set_back(time, by));
    }
}

/// Moves a moment back by so many microseconds.
pub fn set_back(time: &mut Time, by: u64) {
    *time = Time::from_micros(time.micros().saturating_sub(by));
}

impl Operation {
    /// Gives back `cost` of a reservation.
    pub fn give_back(rates: &[Rate], reservation: &Reservation, cost: u64) -> Self {
        let (mark, from) = reservation.moments(rates);
        Self::GiveBack { mark, from, cost }
    }

    /// Moves it back in time by so many microseconds.
    pub fn set_back(&mut self, by: u64) {
        self.moments().into_iter().for_each(|time| set_back(time, by));
    }

    /// By so many microseconds.
    fn set_ahead(&mut self, by: u64) {
        self.moments().into_iter().for_each(|time| *time = Time::from_micros(time.micros().saturating_add(by)));
    }

    fn moments(&mut self) -> [&mut Time; 2] {
        match self {
            Self::Charge { at, since, .. } | Self::Attempt(Attempt { at, since, .. }) => [at, since],
            Self::GiveBack { mark, from, .. } => [mark, from],
        }
    }

    /// The moment to which it moves the state on: when it was made, or earlier.
    fn at(&self) -> u64 {
        match self {
            Self::Charge { at, .. } | Self::Attempt(Attempt { at, .. }) => at.micros(),
            // If nothing can have drained yet, `from` is the next microsecond.
            Self::GiveBack { from, .. } => from.micros().saturating_sub(1),
        }
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|number| push(*number, bytes));
        match self {
            Self::Charge { at, since, cost } => numbers(&[0, at.micros(), at.micros_since(*since), *cost]),
            Self::GiveBack { mark, from, cost } => numbers(&[1, mark.micros(), from.micros(), *cost]),
            Self::Attempt(Attempt { at, since, need, cost, times, capacities }) => {
                numbers(&[2, at.micros(), at.micros_since(*since), *need, *cost, *times]);
                numbers(capacities);
            }
        }
    }

    /// Removes an operation from the beginning of `rest`, for a state of so many rates. `None` if there is none.
    fn decode(whole: usize, rest: &mut &[u8]) -> Option<Self> {
        let mut number = || pull(rest);
        Some(match number()? {
            0 => {
                let (at, since) = span(number()?, number()?);
                Self::Charge { at, since, cost: number()? }
            }
            1 => {
                let (mark, from) = (Time::from_micros(number()?), Time::from_micros(number()?));
                Self::GiveBack { mark, from, cost: number()? }
            }
            2 => {
                let (at, since) = span(number()?, number()?);
                let (need, cost, times) = (number()?, number()?, number()?);
                let capacities = (0..whole).map(|_| number()).collect::<Option<_>>()?;
                Self::Attempt(Attempt { at, since, need, cost, times, capacities })
            }
            _ => return None,
        })
    }
}

/// `lead` is in microseconds.
fn span(at: u64, lead: u64) -> (Time, Time) {
    (Time::from_micros(at), Time::from_micros(at.saturating_sub(lead)))
}

pub(super) struct Appended {
    pub(super) writing: Writing,
    operations: SmallVec<[Operation; 1]>,
}

impl Appended {
    /// Removes a group from the beginning of `rest`. `None` if there is none.
    pub(super) fn decode(rates: &[Rate], rest: &mut &[u8]) -> Option<Self> {
        let whole = rates.iter().filter(|rate| !rate.uses_counters()).count();
        let (writer, sequence, count) = (pull(rest)?, pull(rest)?, pull(rest)?);
        let operations = (0..count).map(|_| Operation::decode(whole, rest)).collect::<Option<_>>()?;
        let writing = Writing { writer: u32::try_from(writer).ok()?, sequence: u32::try_from(sequence).ok()? };
        Some(Self { writing, operations })
    }

    pub(super) fn latest(&self) -> u64 {
        self.operations.iter().map(Operation::at).max().unwrap_or(0)
    }

    /// Folds the group into a state that is read at the moment `read`. `given_back` counts the operations that gave back.
    pub(super) fn fold(self, rates: &[Rate], cell: &mut Cell, read: Time, given_back: &mut usize) -> OperationGroup {
        let mut admitted = SmallVec::new();
        for operation in &self.operations {
            if let Operation::GiveBack { .. } = operation {
                *given_back += 1;
                if *given_back > MOST_GIVEN_BACK {
                    continue;
                }
            }
            admitted.extend(cell.operate(rates, read, operation));
        }
        OperationGroup { writing: self.writing, admitted }
    }
}

impl Cell {
    /// Appends the bytes of these operations for a state that is `ahead` microseconds ahead of the clock by which they were
    /// made. An empty group only tells that its writer has come so far.
    pub fn append(
        Writing { writer, sequence }: Writing,
        operations: impl ExactSizeIterator<Item = Operation>,
        ahead: u64,
        bytes: &mut Vec<u8>,
    ) {
        let head = [0, 0, writer.into(), sequence.into(), operations.len() as u64];
        head.into_iter().for_each(|number| push(number, bytes));
        for mut operation in operations {
            operation.set_ahead(ahead);
            operation.encode(bytes);
        }
    }

    fn operate(&mut self, rates: &[Rate], read: Time, operation: &Operation) -> Option<u64> {
        // An operation older than the state counts at the moment of the state. Going back to its own moment would look as if
        // the clock had been set back, and would move back what others have charged since.
        let at = Time::from_micros(operation.at().max(self.latest()));
        self.advance(rates, at);
        match *operation {
            Operation::Charge { since, cost, .. } => self.charge(rates, at, cost, Some(since)),
            Operation::Attempt(ref attempt) => {
                let admitted = self.fit(rates, at, attempt);
                if admitted > 0 {
                    self.charge(rates, at, attempt.cost.saturating_mul(admitted), Some(attempt.since));
                }
                return Some(admitted);
            }
            Operation::GiveBack { mark, from, cost } => {
                let reservation = Reservation::of_whole(rates, cost, mark, from);
                self.give_back(rates, read, &reservation, cost, true);
            }
        }
        None
    }

    fn fit(&self, rates: &[Rate], at: Time, attempt: &Attempt) -> u64 {
        let Attempt { need, cost, times, ref capacities, .. } = *attempt;
        let whole = self.usages(rates, at).zip(rates).filter(|(_, rate)| !rate.uses_counters());
        // The charge of one request reduces the room of the next.
        let fit = whole.zip(capacities).map(|((usage, _), capacity)| {
            let spare = capacity.saturating_sub(usage.used).checked_sub(need);
            spare.map_or(0, |spare| spare.checked_div(cost).map_or(u64::MAX, |more| more.saturating_add(1)))
        });
        fit.min().unwrap_or(times).min(times)
    }
}
