//! Rate limits: what is counted for a key, and what the counts allow. The module does no I/O and reads no clock: every
//! function takes the moment as an argument, so a test can repeat each decision.
//!
//! The same code decides with counts in memory and with counts from servers. Each strategy has one file and implements one
//! trait (`counting.rs`), so a cell treats all states alike. Tests compare each strategy with an oracle that stores every
//! request (`tests/oracle.rs`).
//!
//! A [`Rate`] is a quota per window and the [`Strategy`] that counts requests. A [`Limit`] is one or more rates that must all
//! hold. For each key a store keeps a [`Cell`], the state of all rates of one limit. [`Limit::decide`] decides about a
//! request and charges it if it is admitted. A refused request changes nothing.
//!
//! ```
//! use std::time::Duration;
//!
//! use gateway::base::clock::Time;
//! use gateway::limit::{Cell, Limit, Rate, Strategy};
//!
//! let bucket = Rate::new(2, Duration::from_secs(1))?.with_strategy(Strategy::TokenBucket { burst: 2 })?;
//! let limit = Limit::new("per-client", &[bucket, Rate::new(100, Duration::from_secs(60))?]);
//! let now = Time::from_micros(1_800_000_000_000_000);
//! let mut cell = Cell::new(limit.rates(), now);
//!
//! assert_eq!(limit.decide(&mut cell, now, 1).remaining, 1);
//! assert_eq!(limit.decide(&mut cell, now, 1).remaining, 0);
//!
//! let verdict = limit.decide(&mut cell, now, 1);
//! assert!(!verdict.admitted);
//! assert_eq!(verdict.rate, 0, "the index of the rate that refuses");
//! assert_eq!(verdict.wait, Some(500_000), "two tokens a second");
//!
//! let later = Time::from_micros(now.micros() + 500_000);
//! assert!(limit.decide(&mut cell, later, 1).admitted);
//! # Ok::<(), gateway::limit::RateError>(())
//! ```
//!
//! # Requests that several limits decide
//!
//! Such a request is charged only if all of its limits admit it. So a store does the steps of [`Limit::decide`] one by one:
//! it advances each cell ([`Cell::advance`]), asks each limit ([`Limit::admits`]), charges all or none ([`Limit::charge`]),
//! and takes the verdicts ([`Limit::judge`]).
//!
//! # Costs that are known later
//!
//! [`Limit::reserve`] charges a request whose cost is not known yet, and [`Limit::give_back`] corrects the charge later.
//!
//! # Limits that change
//!
//! A new quota or burst also applies to what has been counted already. If a rate is counted in another way than before, or a
//! limit gets other rates, [`Limit::migrate`] makes the new cell from the old one.
//!
//! # Bans
//!
//! A key that was refused too often may be banned for a while. [`Limit::bans`] is a limit that counts the bans of a key, so
//! stores keep, share and reset bans like counts of requests.
//!
//! # Stores that are shared
//!
//! One gateway that counts alone needs no more than that. For several gateways that count together, see [`shared`].

#![warn(missing_docs)]

mod calendar;
mod rate;
mod log;
mod extension;
mod counting;
mod sliding_window;
mod fixed_window;
mod sliding_log;
mod token_bucket;
mod calendar_window;
mod ban;
mod state;
mod cell;
mod reservation;
mod migration;
mod watch;
pub mod shared;

pub use calendar::{Calendar, Unit, zones};
pub use cell::Cell;
pub(crate) use counting::{pull, push};
pub use rate::{
    Edge, MAX_BYTES, MAX_LOG, MAX_PRECISION, MAX_QUOTA, MAX_WINDOW, MIN_WINDOW, Rate, RateError, RateTextError,
    Strategy,
};
pub use reservation::Reservation;
pub use watch::Reached;

use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::share::share;
use extension::Extension;

/// [`Limit::small_copy`] copies logs of at most so many bytes.
const SMALL: usize = 1024;

/// One named limit: rates that must all hold for a request to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: String,
    unit: CountedUnit,
    rates: Box<[Rate]>,
    shape: Fingerprint,
    id: Fingerprint,
    terms: Fingerprint,
    /// From which share on it is watched, in millionths; `None` if nobody watches it.
    pub watched: Option<u32>,
}

/// What the rates of a limit count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedUnit {
    /// Requests, or whatever else one costs.
    Requests,
    /// Tokens of language models.
    Tokens,
    /// Bytes of bodies.
    Bytes,
}

impl CountedUnit {
    /// Tells layouts and names of counters apart. Those of requests have no mark.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Requests => "",
            Self::Tokens => "tokens:",
            Self::Bytes => "bytes:",
        }
    }
}

/// What one limit decides about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this limit admits the request. Another limit of the same request may still refuse it.
    pub admitted: bool,
    /// The index of the rate that decides: if refused, the one that takes longest; if admitted, the one with least remaining.
    pub rate: u16,
    /// How many more requests of cost 1 that rate admits now.
    pub remaining: u64,
    /// Microseconds until that rate admits more, if nothing else comes: for a refused request, this request; for an admitted
    /// one, one more than `remaining`. `None` if it never will.
    pub wait: Option<u64>,
    /// How full the limit was before this request ([`Limit::level`]); 0 if refused, or if the caller does not need it.
    pub level: u32,
}

/// What one rate has counted for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateUsage {
    /// The most that the rate admits at once: the burst of a token bucket, else the quota.
    pub capacity: u64,
    /// How much of it is used: of a sliding window the estimate that decides, of a token bucket the tokens that are missing
    /// in full or in part. It exceeds the capacity if a request has cost more than was reserved, or the quota was lowered.
    pub used: u64,
    /// How many more requests of cost 1 the rate admits now.
    pub remaining: u64,
    /// Microseconds until the rate admits one more than `remaining`, if nothing else comes. `None` if nothing is used.
    pub wait: Option<u64>,
}

impl Limit {
    /// It counts requests. There should be at least one rate: a limit without rates admits everything.
    pub fn new(name: &str, rates: &[Rate]) -> Self {
        Self::counting(CountedUnit::Requests, name, rates)
    }

    /// Like [`Self::new`], in another unit.
    pub fn counting(unit: CountedUnit, name: &str, rates: &[Rate]) -> Self {
        let layouts = rates.iter().map(Rate::layout).collect::<Vec<_>>();
        let shape = Fingerprint::of((unit.mark().to_owned() + &layouts.join(",")).as_bytes());
        let id = Fingerprint::of(name.as_bytes()).with(shape);
        let terms = rates.iter().map(ToString::to_string).collect::<Vec<_>>();
        let terms = id.with(Fingerprint::of(terms.join(", ").as_bytes()));
        Self { name: name.to_owned(), unit, rates: rates.into(), shape, id, terms, watched: None }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its rates count.
    pub fn unit(&self) -> CountedUnit {
        self.unit
    }

    /// Its rates, in the order of the configuration.
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Identifies the unit and the layout of the cells. Limits that differ only in quotas, bursts or edges have interchangeable cells.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::limit::{Limit, Rate};
    ///
    /// let limit = |quota, seconds| Ok(Limit::new("a", &[Rate::new(quota, Duration::from_secs(seconds))?]));
    /// assert_eq!(limit(10, 1)?.shape(), limit(20, 1)?.shape());
    /// assert_ne!(limit(10, 1)?.shape(), limit(10, 60)?.shape());
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn shape(&self) -> Fingerprint {
        self.shape
    }

    /// Identifies name and [`Self::shape`]: limits with the same id count the same keys in the same cells.
    pub fn id(&self) -> Fingerprint {
        self.id
    }

    /// Identifies name and rates: limits with the same terms admit the same requests.
    pub fn terms(&self) -> Fingerprint {
        self.terms
    }

    /// The rate that decides in a verdict of this limit.
    pub fn deciding_rate(&self, verdict: &Verdict) -> Option<&Rate> {
        self.rates.get(usize::from(verdict.rate))
    }

    /// The most that one request may cost. A request that costs more is refused for ever.
    pub fn capacity(&self) -> u64 {
        self.rates.iter().map(Rate::capacity).min().unwrap_or(u64::MAX)
    }

    /// What each rate has counted in the cell, in the order of the rates. The cell must be advanced to `now`.
    ///
    /// A request of cost 1 is admitted if every rate has some remaining, and otherwise after the longest wait of those that
    /// have none.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate, RateUsage, Strategy};
    ///
    /// let bucket = Rate::new(2, Duration::from_secs(1))?.with_strategy(Strategy::TokenBucket { burst: 4 })?;
    /// let limit = Limit::new("a", &[bucket, Rate::new(100, Duration::from_secs(60))?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(limit.rates(), now);
    /// limit.charge(&mut cell, now, 3);
    ///
    /// let usages: Vec<_> = limit.usages(&cell, now).collect();
    /// assert_eq!(usages[0], RateUsage { capacity: 4, used: 3, remaining: 1, wait: Some(500_000) });
    /// assert_eq!((usages[1].used, usages[1].remaining), (3, 97));
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn usages<'a>(&'a self, cell: &'a Cell, now: Time) -> impl Iterator<Item = RateUsage> + 'a {
        cell.usages(&self.rates, now).zip(&self.rates).map(|(usage, rate)| {
            let (used, remaining) = (usage.used, usage.remaining());
            RateUsage { capacity: rate.capacity(), used, remaining, wait: usage.wait(remaining.saturating_add(1)) }
        })
    }

    /// Decides about a request, and charges it if it is admitted.
    pub fn decide(&self, cell: &mut Cell, now: Time, cost: u64) -> Verdict {
        cell.advance(&self.rates, now);
        match self.fullest(cell, now, cost) {
            Err(refusal) => refusal,
            Ok(fullest) => {
                self.charge(cell, now, cost);
                self.passed(cell, now, fullest)
            }
        }
    }

    /// How full the limit is: how much of its capacity (of a token bucket, of the burst) the fullest rate has used, in
    /// millionths, from 0 to [`WHOLE`](crate::base::share::WHOLE). `apart` is counted but set apart for others, and does not
    /// count as used. The cell must be advanced to `now`.
    pub fn level(&self, cell: &Cell, now: Time, apart: u64) -> u32 {
        let usages = cell.usages(&self.rates, now).zip(&self.rates);
        usages.map(|(usage, rate)| share(usage.used.saturating_sub(apart), rate.capacity())).max().unwrap_or(0)
    }

    /// Whether every rate admits a request of cost `need` now. The cell must be advanced to `now`.
    pub fn admits(&self, cell: &Cell, now: Time, need: u64) -> bool {
        cell.usages(&self.rates, now).all(|usage| usage.remaining() >= need)
    }

    /// Counts `cost` against every rate, even if that exceeds the quota. The cell must be advanced to `now`.
    pub fn charge(&self, cell: &mut Cell, now: Time, cost: u64) {
        cell.charge(&self.rates, now, cost, None);
    }

    /// Counts `cost` against every rate until the real cost of the request is known. The cell must be advanced to `now`.
    ///
    /// Every reservation should end with [`Self::give_back`], if only of 0, because the cell tracks it until then.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate};
    ///
    /// let limit = Limit::new("tokens", &[Rate::new(1000, Duration::from_secs(60))?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(limit.rates(), now);
    ///
    /// // The request may cost up to 400, and then it turns out that it cost 150.
    /// let reservation = limit.reserve(&mut cell, now, 400);
    /// assert!(!limit.admits(&cell, now, 601));
    /// limit.give_back(&mut cell, now, &reservation, 250);
    /// assert!(limit.admits(&cell, now, 850));
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn reserve(&self, cell: &mut Cell, now: Time, cost: u64) -> Reservation {
        self.charge(cell, now, cost);
        let mut reservation = self.place_of(cell, now, cost);
        self.follow(cell, &mut reservation);
        reservation
    }

    /// Gives back `cost` of a reservation (at most what was reserved) where it was counted, as far as that still matters. The
    /// cell must be advanced to `now`. Afterwards it never admits more than if that part had never been charged, and mostly
    /// it admits as much.
    pub fn give_back(&self, cell: &mut Cell, now: Time, reservation: &Reservation, cost: u64) {
        cell.give_back(&self.rates, now, reservation, cost, false);
    }

    /// Whether cells of this limit track open reservations, as those of token buckets must.
    pub fn follows(&self) -> bool {
        self.rates.iter().any(Rate::drains)
    }

    /// Whether cells of this limit grow with every charged request, as sliding logs do.
    pub fn grows(&self) -> bool {
        self.rates.iter().any(Rate::is_logged)
    }

    /// A copy of a cell that can refuse requests but take nothing back. `None` if it would be large, or counts bans.
    pub fn small_copy(&self, cell: &Cell) -> Option<Cell> {
        let log = cell.log().filter(|_| self.grows());
        let is_small = log.is_none_or(|log| log.allocation() <= SMALL) && !self.counts_bans();
        let extension = || log.map(|log| Box::new(Extension { log: log.clone(), ..Extension::default() }));
        is_small.then(|| Cell { states: cell.states.clone(), extension: extension() })
    }

    /// [`Self::admits`] and [`Self::judge`] at the price of one: the refusal, or `None`. The cell must be advanced to `now`.
    pub fn refuses(&self, cell: &Cell, now: Time, need: u64) -> Option<Verdict> {
        self.fullest(cell, now, need).err()
    }

    /// The index of the rate with the least remaining, which stays the same when all are charged. Or the refusal of a request
    /// of cost `need`, by the rate that takes longest to admit it. The cell must be advanced to `now`.
    pub fn fullest(&self, cell: &Cell, now: Time, need: u64) -> Result<usize, Verdict> {
        let (mut fullest, mut least, mut refusal) = (0, u64::MAX, None::<Verdict>);
        for (rate, usage) in cell.usages(&self.rates, now).enumerate() {
            let remaining = usage.remaining();
            if remaining < need {
                let wait = usage.wait(need);
                let is_longest = |other: Verdict| other.wait.unwrap_or(u64::MAX) <= wait.unwrap_or(u64::MAX);
                if refusal.is_none_or(is_longest) {
                    refusal = Some(Verdict { admitted: false, rate: index(rate), remaining, wait, level: 0 });
                }
            } else if remaining < least {
                (fullest, least) = (rate, remaining);
            }
        }
        refusal.map_or(Ok(fullest), Err)
    }

    /// The verdict on a request that has been charged. `fullest` is the index of the rate with the least remaining. The cell
    /// must be advanced to `now`.
    pub fn passed(&self, cell: &Cell, now: Time, fullest: usize) -> Verdict {
        let usage = cell.usage(&self.rates, fullest, now);
        let remaining = usage.map_or(0, |usage| usage.remaining());
        let wait = usage.and_then(|usage| usage.wait(remaining + 1));
        Verdict { admitted: true, rate: index(fullest), remaining, wait, level: 0 }
    }

    /// The verdict on a request of cost `need`. An `admitted` request must be charged before, so that the verdict says what
    /// remains for others. The cell must be advanced to `now`.
    pub fn judge(&self, cell: &Cell, now: Time, need: u64, admitted: bool) -> Verdict {
        match self.fullest(cell, now, if admitted { 0 } else { need }) {
            Ok(fullest) if admitted => self.passed(cell, now, fullest),
            Ok(fullest) => Verdict { admitted: false, wait: Some(0), ..self.passed(cell, now, fullest) },
            Err(refusal) => refusal,
        }
    }
}

/// A limit has far fewer rates.
fn index(rate: usize) -> u16 {
    u16::try_from(rate).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
