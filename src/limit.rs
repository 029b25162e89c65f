//! Limits, pure: what is counted and what the counts allow. No I/O, no clock, no configuration.
//!
//! A [`Limit`] is several rates that must all hold for one key. A store keeps a [`Cell`] for each key,
//! asks [`Limit::admits`] for every limit of a request, and charges all of them or none.

mod calendar;
mod rate;
mod sliding_window;
mod fixed_window;
mod sliding_log;
mod token_bucket;
mod calendar_window;
mod state;
mod low_water;
mod extension;
mod cell;
mod reservation;
mod migration;
mod encoding;

pub use calendar::{Calendar, Unit, zones};
pub use cell::Cell;
pub use encoding::Restored;
pub use rate::{Edge, MAX_LOG, MAX_PRECISION, MAX_QUOTA, MAX_WINDOW, MIN_WINDOW, Rate, RateError, Strategy};
pub use reservation::Reservation;

use crate::clock::Time;
use crate::fingerprint::Fingerprint;

/// One named limit: rates that all must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: String,
    rates: Box<[Rate]>,
    shape: Fingerprint,
    id: Fingerprint,
}

/// What one limit says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this limit lets the request through; another may still refuse it.
    pub admitted: bool,
    /// The rate that binds, as an index: refused, the one that takes longest; admitted, the one with least left.
    pub rate: usize,
    /// How many more requests that rate lets through now.
    pub remaining: u64,
    /// Microseconds until it lets more through: refused, this very request; admitted, one more than `remaining`.
    /// `None` if it never will.
    pub wait: Option<u64>,
}

impl Limit {
    /// A limit of `rates`, of which there is at least one.
    pub fn new(name: &str, rates: &[Rate]) -> Self {
        let shape = rates.iter().map(shape).collect::<Vec<_>>();
        let shape = Fingerprint::of(shape.join(",").as_bytes());
        let id = Fingerprint::of(name.as_bytes()).with(shape);
        Self { name: name.to_owned(), rates: rates.into(), shape, id }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rates, in the order of the configuration.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Stands for the layout of the limit's cells: equal for limits that differ in quotas only.
    pub fn shape(&self) -> Fingerprint {
        self.shape
    }

    /// Stands for its name and the layout of its cells: equal for limits that count the same keys in the same cells.
    pub fn id(&self) -> Fingerprint {
        self.id
    }

    /// The most that one request may cost; what costs more can never pass.
    pub fn capacity(&self) -> u64 {
        self.rates.iter().map(Rate::capacity).min().unwrap_or(u64::MAX)
    }

    /// Whether every rate has room for `need` more. The cell has been advanced to `now`.
    pub fn admits(&self, cell: &Cell, now: Time, need: u64) -> bool {
        cell.usages(&self.rates, now).all(|usage| usage.remaining() >= need)
    }

    /// Counts `cost` against every rate. The cell has been advanced to `now`.
    pub fn charge(&self, cell: &mut Cell, now: Time, cost: u64) {
        cell.charge(&self.rates, now, cost, None);
    }

    /// Where `cost`, which has just been charged at `now`, was counted.
    pub fn place_of(&self, cell: &Cell, now: Time, cost: u64) -> Reservation {
        cell.place_of(&self.rates, now, cost)
    }

    /// Counts `cost` against every rate until it is known what the request costs. The cell has been advanced to `now`.
    /// What is not given back then is given back as 0, so that the cell need not follow it any more.
    pub fn reserve(&self, cell: &mut Cell, now: Time, cost: u64) -> Reservation {
        self.charge(cell, now, cost);
        let mut reservation = self.place_of(cell, now, cost);
        self.follow(cell, &mut reservation);
        reservation
    }

    /// Follows a reservation from now on: then what has drained of it is known when it is given back.
    pub fn follow(&self, cell: &mut Cell, reservation: &mut Reservation) {
        cell.follow(&self.rates, reservation);
    }

    /// Gives back `cost` of a reservation, at most what was reserved, where it was counted, as far as that still matters.
    /// Nothing is created: the cell, which has been advanced to `now`, then allows no more than one that has never seen
    /// that part of the request, and mostly as much.
    pub fn give_back(&self, cell: &mut Cell, now: Time, reservation: &Reservation, cost: u64) {
        cell.give_back(&self.rates, now, reservation, cost, false);
    }

    /// The same for the rates alone whose state is kept as a whole.
    pub fn give_back_whole(&self, cell: &mut Cell, now: Time, reservation: &Reservation, cost: u64) {
        cell.give_back(&self.rates, now, reservation, cost, true);
    }

    /// What was taken back with [`Self::take_back_whole`] stays taken back.
    pub fn took_back(&self, cell: &mut Cell, cost: u64) {
        cell.took_back(&self.rates, cost);
    }

    /// Whether cells of this limit follow what is reserved.
    pub fn follows(&self) -> bool {
        self.rates.iter().any(reservation::is_followed)
    }

    /// Counts `cost`, of which the first came at `since`, again against the rates whose state is kept as a whole, after that
    /// was read anew.
    pub fn charge_whole(&self, cell: &mut Cell, now: Time, cost: u64, since: Time) {
        cell.charge(&self.rates, now, cost, Some(since));
    }

    /// Takes `cost` back from the rates whose state is kept as a whole, the newest first.
    pub fn take_back_whole(&self, cell: &mut Cell, cost: u64) {
        cell.take_back_whole(&self.rates, cost);
    }

    /// Whether its cells grow with what is charged: moving windows remember every request.
    pub fn grows(&self) -> bool {
        self.rates.iter().any(|rate| *rate.strategy() == Strategy::SlidingLog)
    }

    /// Whether it has a rate whose state is kept as a whole.
    pub fn is_whole(&self) -> bool {
        !self.rates.iter().all(Rate::uses_counters)
    }

    /// The refusal of a request that needs room for `need`, if some rate lacks it: what [`Self::judge`] says of a
    /// request that [`Self::admits`] does not, in one look. The cell has been advanced to `now`.
    pub fn refuses(&self, cell: &Cell, now: Time, need: u64) -> Option<Verdict> {
        self.longest(cell, now, need, |remaining| remaining < need)
    }

    /// The verdict on a request that needs room for `need` and was `admitted` or not, after it was charged or not.
    pub fn judge(&self, cell: &Cell, now: Time, need: u64, admitted: bool) -> Verdict {
        if admitted { self.passed(cell, now) } else { self.refused(cell, now, need) }
    }

    fn passed(&self, cell: &Cell, now: Time) -> Verdict {
        let (rate, remaining, wait) = cell
            .usages(&self.rates, now)
            .enumerate()
            .map(|(rate, usage)| (rate, usage.remaining(), usage))
            .min_by_key(|(_, remaining, _)| *remaining)
            .map_or((0, 0, None), |(rate, remaining, usage)| (rate, remaining, usage.wait(remaining + 1)));
        Verdict { admitted: true, rate, remaining, wait }
    }

    fn refused(&self, cell: &Cell, now: Time, need: u64) -> Verdict {
        let nothing = Verdict { admitted: false, rate: 0, remaining: 0, wait: None };
        self.longest(cell, now, need, |_| true).unwrap_or(nothing)
    }

    /// The refusal by the rate that takes longest, of those for which `refuses(what remains)`.
    fn longest(&self, cell: &Cell, now: Time, need: u64, refuses: impl Fn(u64) -> bool) -> Option<Verdict> {
        let refusals = cell.usages(&self.rates, now).enumerate().filter_map(|(rate, usage)| {
            let remaining = usage.remaining();
            refuses(remaining).then(|| Verdict { admitted: false, rate, remaining, wait: usage.wait(need) })
        });
        refusals.max_by_key(|verdict| verdict.wait.unwrap_or(u64::MAX))
    }
}

/// What the state of a rate looks like, whatever its quota.
fn shape(rate: &Rate) -> String {
    let span = rate.span();
    match rate.strategy() {
        Strategy::SlidingWindow { precision, .. } => format!("{}x{precision}", rate.width()),
        Strategy::FixedWindow => format!("{span}f"),
        Strategy::SlidingLog => format!("{span}m"),
        Strategy::TokenBucket { .. } => format!("{span}b"),
        Strategy::Calendar(calendar) => format!("{}@{}", calendar.unit().name(), calendar.zone()),
    }
}

#[cfg(test)]
mod tests;
