//! What the server is to be told of a state that is one value.

use smallvec::SmallVec;

use crate::base::clock::Time;
use crate::limit::shared::{Attempt, Operation, Writing, set_back};
use crate::limit::{Cell, Limit, Reservation};

/// The numbers of requests that wait until it is known whether they are admitted, among all of a cell.
pub(in crate::store::shared) type Number = u64;

/// What has changed since the server was told. Nothing in it means that only the state is to be written.
#[derive(Debug, Default)]
pub(super) struct StateChange {
    /// What is charged in any case.
    charge: Option<TotalCharge>,
    /// What was given back of what the server knows of.
    given: Vec<Operation>,
    /// What is charged if it fits, and the number of the first request of each.
    attempts: SmallVec<[(Number, Attempt); 1]>,
    /// The requests of these that were admitted without waiting any longer.
    admitted: SmallVec<[Number; 2]>,
}

/// Several charges together.
#[derive(Clone, Copy, Debug)]
pub(super) struct TotalCharge {
    /// When the first and the last of them came.
    since: Time,
    until: Time,
    cost: u64,
}

/// What became of an attempt: the number of its first request, how many there are, and how many are admitted.
#[derive(Clone, Copy, Debug)]
struct AttemptOutcome {
    first: Number,
    times: u64,
    admitted: u64,
}

/// Whether this is the number of one of so many requests.
fn is_among(number: Number, first: Number, times: u64) -> bool {
    (first..first + times).contains(&number)
}

impl AttemptOutcome {
    fn is_about(&self, number: Number) -> bool {
        is_among(number, self.first, self.times)
    }
}

/// What became of requests.
#[derive(Debug, Default)]
pub(in crate::store::shared) struct AttemptOutcomes(SmallVec<[AttemptOutcome; 1]>);

impl AttemptOutcomes {
    /// Whether this request is admitted; `None` if it is not known.
    pub(in crate::store::shared) fn of(&self, number: Number) -> Option<bool> {
        let outcome = self.0.iter().find(|outcome| outcome.is_about(number))?;
        Some(number - outcome.first < outcome.admitted)
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl StateChange {
    pub(super) fn is_nothing(&self) -> bool {
        self.charge.is_none() && self.only_charges()
    }

    /// What is charged by it, and when the first of that came.
    pub(super) fn charged(&self) -> Option<(u64, Time)> {
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

    /// Charges a request if it fits.
    pub(super) fn attempt(&mut self, number: Number, attempt: Attempt) {
        let last = self.attempts.last_mut().filter(|(first, last)| first + last.times == number);
        if !last.is_some_and(|(_, last)| last.join(&attempt)) {
            self.attempts.push((number, attempt));
        }
    }

    /// Whether it charges this request if it fits.
    pub(super) fn attempts(&self, number: Number) -> bool {
        self.attempts.iter().any(|(first, attempt)| is_among(number, *first, attempt.times))
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

    /// The same, but what is sent already stays as it is.
    pub(super) fn admit_all_attempts(&mut self) {
        self.admitted = self.attempts.iter().flat_map(|(first, attempt)| *first..first + attempt.times).collect();
    }

    /// What became of its attempts, of which so many requests each were `admitted`: all where that is not known. What did not fit
    /// and was admitted in any case is charged to what is told next, `later`.
    pub(super) fn outcomes(&self, admitted: &[u64], mut later: impl FnMut(TotalCharge)) -> AttemptOutcomes {
        let outcome = |(index, (first, attempt)): (usize, &(Number, Attempt))| {
            let admitted = admitted.get(index).copied().unwrap_or(attempt.times);
            AttemptOutcome { first: *first, times: attempt.times, admitted }
        };
        let outcomes = AttemptOutcomes(self.attempts.iter().enumerate().map(outcome).collect());
        for number in self.admitted.iter().filter(|number| outcomes.of(**number) == Some(false)) {
            let attempts = self.attempts.iter().filter(|(first, attempt)| is_among(*number, *first, attempt.times));
            attempts.for_each(|(_, attempt)| {
                later(TotalCharge { since: attempt.since, until: attempt.at, cost: attempt.cost });
            });
        }
        outcomes
    }

    /// Gives back what a reservation was too much. What the server has not been told of, nobody has to know of.
    pub(super) fn give_back(&mut self, reservation: &Reservation, given: u64, limit: &Limit) {
        match &mut self.charge {
            Some(charge) if charge.cost >= given && reservation.moment(limit.rates()) >= Some(charge.since) => {
                charge.cost -= given;
                self.charge.take_if(|charge| charge.cost == 0);
            }
            _ => self.given.push(Operation::give_back(limit.rates(), reservation, given)),
        }
    }

    /// Gives nothing back: what was charged is not there any more.
    pub(super) fn forget_given(&mut self) {
        self.given.clear();
    }

    /// Whether nothing is given back by it, and nobody waits for it.
    pub(super) fn only_charges(&self) -> bool {
        self.given.is_empty() && self.attempts.is_empty()
    }

    /// Adds what came later.
    pub(super) fn append(&mut self, later: Self) {
        later.charge.into_iter().for_each(|charge| self.add_charge(charge));
        self.given.extend(later.given);
        self.attempts.extend(later.attempts);
        self.admitted.extend(later.admitted);
    }

    /// Moves it back in time with a clock that was set back by so many microseconds.
    pub(super) fn set_back(&mut self, by: u64) {
        let charge = self.charge.iter_mut().flat_map(|charge| [&mut charge.since, &mut charge.until]);
        charge.for_each(|time| set_back(time, by));
        self.given.iter_mut().for_each(|given| given.set_back(by));
        self.attempts.iter_mut().for_each(|(_, attempt)| attempt.set_back(by));
    }

    /// The operations that it consists of.
    fn operations(&self) -> impl Iterator<Item = Operation> {
        let charge = self.charge.map(|TotalCharge { since, until, cost }| Operation::Charge { at: until, since, cost });
        let attempts = self.attempts.iter().map(|(_, attempt)| Operation::Attempt(attempt.clone()));
        charge.into_iter().chain(self.given.iter().cloned()).chain(attempts)
    }

    /// Changes a state that was read anew and does not contain it, as of its last moment. Returns what became of requests that do
    /// not fit, which it attempts to charge no longer.
    pub(super) fn apply(&mut self, limit: &Limit, cell: &mut Cell, now: Time) -> AttemptOutcomes {
        let admitted: SmallVec<[u64; 2]> =
            self.operations().filter_map(|operation| limit.operate(cell, now, &operation)).collect();
        let (mut outcomes, mut later) = (AttemptOutcomes::default(), SmallVec::<[_; 1]>::new());
        for ((first, attempt), admitted) in self.attempts.iter_mut().zip(admitted) {
            let dropped = AttemptOutcome { first: *first + admitted, times: attempt.times - admitted, admitted: 0 };
            attempt.times = admitted;
            outcomes.0.push(dropped);
            let all = self.admitted.len();
            self.admitted.retain(|number| !dropped.is_about(*number));
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

    /// Charges what it charges to a state in which nothing is counted.
    pub(super) fn charge_to(&self, limit: &Limit, cell: &mut Cell, now: Time) {
        if let Some((cost, since)) = self.charged() {
            limit.charge_whole(cell, now, cost, since);
        }
    }

    /// Appends it to a state, which is `ahead` microseconds ahead of the clock here.
    pub(super) fn encode(&self, writing: Writing, ahead: u64, bytes: &mut Vec<u8>) {
        let operations: SmallVec<[Operation; 2]> = self.operations().collect();
        Cell::append(writing, operations.into_iter(), ahead, bytes);
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
