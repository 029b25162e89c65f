//! What Memcached is to be told of a state that is one value.
//!
//! What was charged and what was taken back of earlier charges are kept apart, though they may be as much: in a log they
//! stand at different moments, and what is taken back may leave the window by itself before Memcached is told.

use std::time::Duration;

use crate::clock::Time;
use crate::limit::{Cell, Limit, Rate, Reservation};

/// What was charged, taken back and given back since Memcached was told.
#[derive(Debug)]
pub(super) struct StateChange {
    /// How much was charged, without what was taken back or given back of it since.
    pub(super) charged: u64,
    /// When the first and the last of it were charged.
    pub(super) since: Time,
    pub(super) until: Time,
    /// What was taken back of what Memcached knows of.
    taken: Option<Taken>,
    /// Until when it is certain that nothing of what was taken back has left the state by itself.
    certain: Option<Time>,
    /// What was given back of reservations that it knows of.
    pub(super) given: Vec<Back>,
}

/// What was taken back, because it was not to be charged.
#[derive(Clone, Copy, Debug)]
struct Taken {
    cost: u64,
    /// When the first of it was charged.
    since: Time,
}

/// What was given back of a reservation.
#[derive(Clone, Debug)]
pub(in crate::store::memcached) struct Back {
    pub(in crate::store::memcached) reservation: Reservation,
    /// How much of it; with 0 the reservation only ends.
    pub(in crate::store::memcached) given: u64,
}

impl StateChange {
    pub(super) fn nothing(now: Time) -> Self {
        Self { charged: 0, since: now, until: now, taken: None, certain: None, given: Vec::new() }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.charged == 0 && self.taken.is_none() && self.given.is_empty()
    }

    pub(super) fn charge(&mut self, cost: u64, now: Time) {
        if self.charged == 0 {
            (self.since, self.until) = (now, now);
        }
        // Decisions may overtake each other by a little.
        (self.since, self.until) = (self.since.min(now), self.until.max(now));
        self.charged = self.charged.saturating_add(cost);
    }

    /// Takes back `cost` that was charged at `since`, and is certain not to leave by itself before `certain`. What Memcached
    /// has not been told of, nobody has to know of.
    pub(super) fn take_back(&mut self, cost: u64, since: Time, certain: Time) {
        self.certain = Some(self.certain.map_or(certain, |before| before.min(certain)));
        let untold = if since >= self.since { cost.min(self.charged) } else { 0 };
        self.charged -= untold;
        self.add_taken(cost - untold, since);
    }

    fn add_taken(&mut self, cost: u64, since: Time) {
        if cost > 0 {
            let before = self.taken.unwrap_or(Taken { cost: 0, since });
            self.taken = Some(Taken { cost: before.cost.saturating_add(cost), since: before.since.min(since) });
        }
    }

    /// How much is to be taken back.
    pub(super) fn taken(&self) -> u64 {
        self.taken.map_or(0, |taken| taken.cost)
    }

    /// Takes nothing back.
    pub(super) fn forget_taken(&mut self) {
        (self.taken, self.certain) = (None, None);
    }

    /// Forgets what need not be told any more at `now`.
    pub(super) fn reduce(&mut self, limit: &Limit, now: Time) {
        // It may have left by itself, and nothing is taken from a window that has begun since.
        if self.certain.is_none_or(|certain| now >= certain) {
            self.forget_taken();
        }
        // Where the moment is of no account, what was charged takes the place of what was taken back.
        if !limit.grows() {
            let both = self.charged.min(self.taken());
            self.charged -= both;
            self.leave_out_taken(both);
        }
    }

    /// What is left of it once all else has been told: what is to be taken back.
    pub(super) fn split_taken(&mut self) -> Option<Self> {
        let (taken, certain) = (Some(self.taken.take()?), self.certain.take());
        Some(Self { taken, certain, ..Self::nothing(self.until) })
    }

    /// Adds what came later.
    pub(super) fn append(&mut self, later: Self) {
        // What was taken back is part of this change, or was charged before it.
        if let Some(certain) = later.certain {
            let Taken { cost, since } = later.taken.unwrap_or(Taken { cost: 0, since: later.since });
            self.take_back(cost, since, certain);
        }
        if later.charged > 0 {
            let is_first = self.charged == 0;
            self.charge(later.charged, later.until);
            self.since = if is_first { later.since } else { self.since.min(later.since) };
        }
        self.given.extend(later.given);
    }

    /// Gives back what a reservation was too much. What Memcached has not been told of, nobody has to know of.
    pub(super) fn give_back(&mut self, back: Back, limit: &Limit) {
        let is_untold = self.charged >= back.given && back.reservation.moment(limit.rates()) >= Some(self.since);
        if is_untold {
            self.charged -= back.given;
        } else {
            self.given.push(back);
        }
    }

    /// Leaves out what Memcached was told, which was charged between these moments.
    pub(super) fn leave_out_charged(&mut self, charged: u64, (since, until): (Time, Time)) {
        // What is missing was taken back since.
        self.add_taken(charged.saturating_sub(self.charged), since);
        self.charged = self.charged.saturating_sub(charged);
        // The rest came later.
        self.since = self.since.max(until.after(Duration::from_micros(1))).min(self.until);
    }

    /// Leaves out so much of what was taken back.
    pub(super) fn leave_out_taken(&mut self, cost: u64) {
        if let Some(taken) = &mut self.taken {
            taken.cost = taken.cost.saturating_sub(cost);
        }
        self.taken.take_if(|taken| taken.cost == 0);
    }

    /// Moves it back in time with a clock that was set back by so many microseconds.
    pub(super) fn set_back(&mut self, by: u64) {
        let taken = self.taken.iter_mut().map(|taken| &mut taken.since).chain(&mut self.certain);
        for time in taken.chain([&mut self.since, &mut self.until]) {
            *time = Time::from_micros(time.micros().saturating_sub(by));
        }
    }

    /// Whether there is something of it that can be told to who replaces the state next. What was taken back cannot.
    pub(super) fn is_appendable(&self) -> bool {
        self.charged > 0 || !self.given.is_empty()
    }

    /// What is appended to the state then, which is `ahead` microseconds ahead of the clock here.
    pub(super) fn appendix(&self, rates: &[Rate], now: Time, ahead: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.charged > 0 {
            let [now, since] = [now.max(self.until), self.since].map(|time| time.after(Duration::from_micros(ahead)));
            Cell::append_charge(now, self.charged, since, &mut bytes);
        }
        for Back { reservation, given } in &self.given {
            Cell::append_give_back(rates, reservation, *given, ahead, &mut bytes);
        }
        bytes
    }

    /// Changes a state that was read anew and does not contain it.
    pub(super) fn apply(&self, limit: &Limit, cell: &mut Cell, now: Time) {
        if let Some(Taken { cost, since }) = self.taken {
            limit.take_back_whole_since(cell, cost, since);
        }
        if self.charged > 0 {
            limit.charge_whole(cell, now.max(self.until), self.charged, self.since);
        }
        for Back { reservation, given } in &self.given {
            limit.give_back_whole(cell, now, reservation, *given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Strategy;

    fn at(seconds: u64) -> Time {
        Time::from_micros(1_800_000_000_000_000 + seconds * 1_000_000)
    }

    fn ten_a_minute(strategy: Strategy) -> Limit {
        Limit::new("l", &[Rate::new(10, Duration::from_secs(60)).unwrap().with_strategy(strategy).unwrap()])
    }

    /// A state to which 1 was charged at each moment.
    fn charged(limit: &Limit, moments: &[u64]) -> Cell {
        let mut cell = Cell::new(limit.rates(), at(0));
        for moment in moments {
            cell.advance(limit.rates(), at(*moment));
            limit.charge(&mut cell, at(*moment), 1);
        }
        cell
    }

    /// Whether a minute after `begun` so much of ten is left.
    fn is_left(limit: &Limit, cell: &Cell, begun: u64, left: u64) -> bool {
        let (mut cell, now) = (cell.clone(), at(begun + 60));
        cell.advance(limit.rates(), now);
        limit.admits(&cell, now, left) && !limit.admits(&cell, now, left + 1)
    }

    #[test]
    fn a_log_has_what_was_charged_at_its_moment_and_not_at_that_of_what_was_taken_back() {
        let limit = ten_a_minute(Strategy::SlidingLog);
        let mut change = StateChange::nothing(at(10));
        change.take_back(1, at(10), at(70));
        change.charge(1, at(30));
        change.reduce(&limit, at(30));
        let mut theirs = charged(&limit, &[10, 20]);
        change.apply(&limit, &mut theirs, at(30));
        assert!(is_left(&limit, &theirs, 15, 8) && is_left(&limit, &theirs, 25, 9));
        let reservation = limit.place_of(&charged(&limit, &[30]), at(30), 1);
        limit.give_back_whole(&mut theirs, at(40), &reservation, 1);
        assert!(is_left(&limit, &theirs, 15, 9), "it is found where it was charged");
    }

    #[test]
    fn who_replaces_a_log_is_told_what_was_charged_and_not_what_was_taken_back() {
        let limit = ten_a_minute(Strategy::SlidingLog);
        let mut change = StateChange::nothing(at(10));
        change.take_back(1, at(10), at(70));
        assert!(!change.is_appendable());
        change.charge(2, at(30));
        change.reduce(&limit, at(30));
        assert!(change.is_appendable());
        let rest = change.split_taken().expect("something is to be taken back");
        assert_eq!((change.charged, change.taken(), rest.charged, rest.taken()), (2, 0, 0, 1));
        change.append(rest);
        assert_eq!((change.charged, change.taken()), (2, 1), "if it could not be told");
    }

    #[test]
    fn nobody_has_to_know_of_what_was_taken_back_before_it_was_told() {
        let limit = ten_a_minute(Strategy::FixedWindow);
        let mut change = StateChange::nothing(at(10));
        change.charge(2, at(10));
        change.take_back(2, at(10), at(70));
        assert!(change.is_nothing());
        change.charge(1, at(12));
        change.take_back(1, at(10), at(70));
        assert_eq!((change.charged, change.taken()), (1, 1), "it was charged before that");
        change.reduce(&limit, at(12));
        assert!(change.is_nothing(), "one stands for the other in a window");
    }

    #[test]
    fn what_may_have_left_by_itself_is_not_taken_from_others() {
        let limit = ten_a_minute(Strategy::FixedWindow);
        let mut change = StateChange::nothing(at(10));
        change.take_back(1, at(10), at(70));
        change.charge(1, at(65));
        change.take_back(1, at(60), at(120));
        change.reduce(&limit, at(70));
        assert_eq!((change.charged, change.taken()), (1, 0));
    }

    #[test]
    fn what_was_told_and_then_taken_back_is_still_to_be_taken_back() {
        let limit = ten_a_minute(Strategy::SlidingLog);
        let mut change = StateChange::nothing(at(10));
        change.charge(3, at(10));
        change.take_back(1, at(10), at(70));
        change.leave_out_charged(3, (at(10), at(10)));
        change.charge(1, at(20));
        change.reduce(&limit, at(20));
        let mut theirs = charged(&limit, &[10, 10, 10]);
        change.apply(&limit, &mut theirs, at(20));
        assert!(is_left(&limit, &theirs, 5, 7) && is_left(&limit, &theirs, 15, 9), "two, and one later");
    }

    #[test]
    fn what_is_left_after_something_was_told_came_later() {
        let limit = ten_a_minute(Strategy::SlidingLog);
        let mut change = StateChange::nothing(at(10));
        change.charge(1, at(10));
        change.charge(1, at(40));
        change.leave_out_charged(1, (at(10), at(10)));
        let first = limit.place_of(&charged(&limit, &[10]), at(10), 1);
        change.charge(1, at(41));
        change.take_back(1, at(9), at(69));
        change.give_back(Back { reservation: first, given: 1 }, &limit);
        assert_eq!((change.charged, change.taken(), change.given.len()), (2, 1, 1), "the first was told");
    }
}
