//! What Memcached is to be told of a state that is one value.
//!
//! What was charged and what was taken back of earlier charges are kept apart, though they may be as much: in a log they
//! stand at different moments, and what is taken back may leave the window by itself before Memcached is told.

use std::time::Duration;

use crate::clock::Time;
use crate::limit::{Cell, Limit, Reservation};

/// What was charged, taken back and given back since Memcached was told.
#[derive(Debug)]
pub(super) struct StateChange {
    pub(super) charged: u64,
    /// When the first and the last of it were charged.
    pub(super) since: Time,
    pub(super) until: Time,
    /// What was taken back of what Memcached knows of.
    pub(super) taken: Option<Taken>,
    /// What was given back of reservations that it knows of.
    pub(super) given: Vec<Back>,
}

/// What was taken back, because it was not to be charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) cost: u64,
    /// When the first of it was charged.
    pub(super) since: Time,
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
        Self { charged: 0, since: now, until: now, taken: None, given: Vec::new() }
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

    /// Takes back `cost` that was charged at `since`. What Memcached has not been told of, nobody has to know of.
    pub(super) fn take_back(&mut self, cost: u64, since: Time) {
        let untold = if since >= self.since { cost.min(self.charged) } else { 0 };
        self.charged -= untold;
        if cost > untold {
            let before = self.taken.unwrap_or(Taken { cost: 0, since });
            let cost = before.cost.saturating_add(cost - untold);
            self.taken = Some(Taken { cost, since: before.since.min(since) });
        }
    }

    /// Adds what came later.
    pub(super) fn append(&mut self, later: Self) {
        // It is part of this change, or was charged before it.
        if let Some(Taken { cost, since }) = later.taken {
            self.take_back(cost, since);
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

    /// Leaves out what Memcached was told: so much was charged since then.
    pub(super) fn leave_out_charged(&mut self, charged: u64, since: Time) {
        // What is missing was taken back since.
        let missing = charged.saturating_sub(self.charged);
        self.charged = self.charged.saturating_sub(charged);
        if missing > 0 {
            self.taken = Some(match self.taken {
                Some(taken) => Taken { cost: taken.cost.saturating_add(missing), since: taken.since.min(since) },
                None => Taken { cost: missing, since },
            });
        }
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
        let taken = self.taken.iter_mut().map(|taken| &mut taken.since);
        for time in taken.chain([&mut self.since, &mut self.until]) {
            *time = Time::from_micros(time.micros().saturating_sub(by));
        }
    }

    /// How much was charged more than taken back.
    pub(super) fn more(&self) -> u64 {
        self.charged.saturating_sub(self.taken.map_or(0, |taken| taken.cost))
    }

    /// Whether it can be told to who replaces the state next. What was taken back of charges cannot, unless it is of no
    /// account at which moment it was charged and as much was charged since.
    pub(super) fn is_appendable(&self, limit: &Limit) -> bool {
        let is_told = self.taken.is_none_or(|taken| !limit.grows() && taken.cost <= self.charged);
        is_told && (self.more() > 0 || !self.given.is_empty())
    }

    /// What is appended to the state then, which is `ahead` microseconds ahead of the clock here.
    pub(super) fn appendix(&self, limit: &Limit, now: Time, ahead: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.more() > 0 {
            let [now, since] = [now.max(self.until), self.since].map(|time| time.after(Duration::from_micros(ahead)));
            Cell::append_charge(now, self.more(), since, &mut bytes);
        }
        for Back { reservation, given } in &self.given {
            Cell::append_give_back(limit.rates(), reservation, *given, ahead, &mut bytes);
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
    use crate::limit::{Rate, Strategy};

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
        change.take_back(1, at(10));
        change.charge(1, at(30));
        assert!(!change.is_appendable(&limit), "who replaces the state cannot be told what to take back");
        let mut theirs = charged(&limit, &[10, 20]);
        change.apply(&limit, &mut theirs, at(30));
        assert!(is_left(&limit, &theirs, 15, 8) && is_left(&limit, &theirs, 25, 9));
        let own = charged(&limit, &[30]);
        let reservation = limit.place_of(&own, at(30), 1);
        limit.give_back_whole(&mut theirs, at(40), &reservation, 1);
        assert!(is_left(&limit, &theirs, 15, 9), "it is found where it was charged");
    }

    #[test]
    fn nobody_has_to_know_of_what_was_taken_back_before_it_was_told() {
        let limit = ten_a_minute(Strategy::FixedWindow);
        let mut change = StateChange::nothing(at(10));
        change.charge(2, at(10));
        change.take_back(2, at(10));
        assert!(change.is_nothing());
        change.charge(1, at(12));
        change.take_back(1, at(10));
        assert!(!change.is_nothing() && change.more() == 0, "it was charged before that");
        assert!(!change.is_appendable(&limit));
        change.charge(1, at(13));
        assert!(change.is_appendable(&limit) && change.more() == 1);
    }

    #[test]
    fn what_was_told_and_then_taken_back_is_still_to_be_taken_back() {
        let limit = ten_a_minute(Strategy::SlidingLog);
        let mut change = StateChange::nothing(at(10));
        change.charge(3, at(10));
        change.take_back(1, at(10));
        change.charge(1, at(20));
        change.leave_out_charged(3, at(10));
        let mut theirs = charged(&limit, &[10, 10, 10]);
        change.apply(&limit, &mut theirs, at(20));
        assert!(is_left(&limit, &theirs, 5, 7), "three and one, and one less");
    }
}
