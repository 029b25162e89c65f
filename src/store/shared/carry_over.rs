//! Carry-over: after a reload that changes how a limit counts, its cells continue from the counts before the reload.
//!
//! A limit that counts in another way has counters with other names. So the first exchange of a cell after the reload
//! also reads the counters of the replaced limits, as of the moment at which they were replaced. From these the cell is
//! migrated ([`Limit::migrate`]) and raised to what they count ([`Limit::raise`]). The decisions that wait for that
//! exchange already use the raised cell.
//!
//! Several gateways may do the same for a key, at different moments. Therefore the server is never told to add what was
//! carried over: it would count twice. A counter that is missing is created with its count, and one that is too low is
//! replaced if it still is what was read. If another gateway was faster, it is read again.
//!
//! What a gateway that has not reloaded yet admits in the meantime is counted in the old counters. It is carried over
//! when that gateway reloads, but only as far as it exceeds what the others have admitted since. So what gateways with
//! the old and with the new configuration admit at the same time counts only once: nobody can tell it from what was
//! carried over.
//!
//! A cell without an open migration only compares two numbers.

use std::rc::Rc;

use super::counters::CounterId;
use super::names::{Digits, Names};
use super::protocol::{Commands, Item};
use super::targets::Targets;
use crate::base::clock::Time;
use crate::limit::shared::Restored;
use crate::limit::{Cell, Limit, Rate, Reservation};

/// A limit that a reload has replaced.
#[derive(Debug)]
pub(super) struct Source {
    /// The names of its counters.
    pub(super) names: Rc<Names>,
    /// When it was replaced.
    pub(super) at: Time,
    /// Its cell of the same key, if there is one here.
    pub(super) cached: Option<Cell>,
}

/// What a cell has yet to carry over.
#[derive(Debug)]
pub(super) struct CarryOver {
    /// The replaced limits whose counters have not been read yet.
    sources: Vec<Source>,
    /// When the last of them was replaced.
    at: Time,
    /// Whether the exchange that is under way reads them.
    pub(super) is_asked: bool,
    /// What the cell counts at least.
    pub(super) least: Option<Cell>,
    /// Whether the server is to be told the state that is kept as a whole.
    pub(super) is_state_due: bool,
    /// The number of the cell if what was reserved before the reload cannot be given back to it.
    pub(super) unused: u32,
}

impl Source {
    /// The counters that are read: those of rates that a rate of the new limit continues, unless it uses the same
    /// counters.
    fn counters(&self, limit: &Limit) -> Vec<CounterId> {
        let old = self.names.limit.rates();
        let is_read = |index: usize| {
            let continues = |rate: &&Rate| rate.predecessor(old) == Some(index);
            limit.rates().iter().find(continues).is_some_and(|rate| !rate.is_kept_like(&old[index]))
        };
        let mut cell = Cell::new(old, self.at);
        let counters = cell.counts_mut(old).filter(|(rate, ..)| is_read(*rate));
        counters.map(|(rate, bucket, _)| CounterId { rate, bucket }).collect()
    }

    /// Whether the state is read that is kept as a whole.
    fn has_state(&self, limit: &Limit) -> bool {
        let old = self.names.limit.rates();
        limit.rates().iter().filter_map(|rate| rate.predecessor(old)).any(|index| !old[index].uses_counters())
    }
}

impl CarryOver {
    /// Begins with what is known here, as of `now`. The `unused` number is for the cell if what was reserved before
    /// cannot be given back to it.
    pub(super) fn new(sources: Vec<Source>, limit: &Limit, unused: u32, now: Time) -> Self {
        let at = sources.iter().map(|source| source.at).max().unwrap_or(now);
        let mut carry_over =
            Self { sources: Vec::new(), at, is_asked: false, least: None, is_state_due: false, unused };
        for source in &sources {
            if let Some(cell) = &source.cached {
                carry_over.continue_from((&source.names.limit, cell.clone(), source.at), limit, now);
            }
        }
        Self { sources, ..carry_over }
    }

    /// Adds what is left of one that began with an earlier reload.
    pub(super) fn add(&mut self, earlier: Self, limit: &Limit, now: Time) {
        let is_later =
            |source: &Source| self.sources.iter().any(|later| later.names.limit.id() == source.names.limit.id());
        let sources: Vec<Source> = earlier.sources.into_iter().filter(|source| !is_later(source)).collect();
        self.sources.extend(sources);
        if let Some(mut least) = earlier.least {
            least.advance(limit.rates(), now);
            self.raise(least, limit, now);
        }
    }

    /// Gives back `cost` of a reservation: what was reserved before the reload is part of what the cell counts at
    /// least.
    pub(super) fn give_back(&mut self, limit: &Limit, now: Time, reservation: &Reservation, cost: u64) {
        if let Some(least) = &mut self.least {
            least.advance(limit.rates(), now);
            limit.give_back(least, now, reservation, cost);
        }
    }

    /// When the last of the limits was replaced, in seconds since 1970.
    pub(super) fn began(&self) -> u32 {
        u32::try_from(self.at.seconds()).unwrap_or(u32::MAX)
    }

    /// Whether nothing is left to be read.
    pub(super) fn is_read(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether the counters of this rate have other names in all limits that are yet to be read.
    pub(super) fn renames(&self, rate: usize, limit: &Limit) -> bool {
        self.sources.iter().all(|source| {
            let (rate, old) = (&limit.rates()[rate], source.names.limit.rates());
            rate.predecessor(old).is_none_or(|index| !rate.is_kept_like(&old[index]))
        })
    }

    /// Adds the commands that read what has not been read yet.
    pub(super) fn compose(&self, limit: &Limit, key: &Digits, targets: &mut Targets, commands: &mut dyn Commands) {
        for source in &self.sources {
            for id in source.counters(limit) {
                commands.read(&|out| source.names.counter(key, id, out));
                targets.read_replaced();
            }
            if source.has_state(limit) {
                commands.read(&|out| source.names.state(key, out));
                targets.read_replaced();
            }
        }
    }

    /// Takes over the items that were read, as of `now`.
    pub(super) fn learn<'a>(&mut self, mut items: impl Iterator<Item = Option<Item<'a>>>, limit: &Limit, now: Time) {
        for source in std::mem::take(&mut self.sources) {
            let (old, rates) = (&source.names.limit, source.names.limit.rates());
            let mut cell = Cell::new(rates, source.at);
            for CounterId { rate, bucket } in source.counters(limit) {
                let count = items.next().flatten().map_or(0, |item| item.count());
                cell.correct(rates, rate, bucket, |_| count);
            }
            self.continue_from((old, cell, source.at), limit, now);
            let state = if source.has_state(limit) { items.next().flatten() } else { None };
            // Gateways that reload later may have changed it since.
            if let Some(Restored { mut cell, .. }) = state.and_then(|item| Cell::restore(rates, now, item.value)) {
                cell.advance(rates, now);
                self.continue_from((old, cell, source.at), limit, now);
            }
        }
    }

    /// Raises what the cell counts at least to what it counts if it continues from this cell of a replaced limit.
    fn continue_from(&mut self, (old, cell, at): (&Limit, Cell, Time), limit: &Limit, now: Time) {
        let mut migrated = limit.migrate(old, cell, at);
        migrated.advance(limit.rates(), now);
        self.raise(migrated, limit, now);
    }

    /// Raises what the cell counts at least to what this one counts.
    fn raise(&mut self, cell: Cell, limit: &Limit, now: Time) {
        match &mut self.least {
            Some(least) => {
                least.advance(limit.rates(), now);
                limit.raise(least, &cell, now);
            }
            None => self.least = Some(cell),
        }
    }
}
