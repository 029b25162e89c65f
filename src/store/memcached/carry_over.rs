//! Carry-over: after a reload that changes how a limit counts, its cells continue from the counts before the reload.
//!
//! A limit that counts in another way has counters with other names. So the first exchange of a cell after the reload also
//! reads the counters of the replaced limits, as of the moment at which they were replaced. From these the cell is migrated
//! ([`Limit::migrate`]) and raised to what they count ([`Limit::raise`]). The decisions that wait for that exchange already
//! use the raised cell.
//!
//! Several gateways may do the same for a key, at different moments. Therefore Memcached is never told to add what was
//! carried over: it would count twice. A counter that is missing is created with its count, and one that is too low is
//! replaced if it still is what was read. If another gateway was faster, it is read again.
//!
//! What a gateway that has not reloaded yet admits in the meantime is counted in the old counters. It is carried over when
//! that gateway reloads, but only as far as it exceeds what the others have admitted since.

use std::rc::Rc;

use super::commands::Commands;
use super::counters::CounterId;
use super::keys::{Digits, Names};
use super::known::Known;
use super::replies::{Item, Written};
use super::targets::{Answer, Targets};
use crate::clock::Time;
use crate::limit::{Cell, Limit, Rate, Reservation};

/// A limit that a reload has replaced.
#[derive(Debug)]
pub(super) struct Source {
    /// The names of its counters.
    pub(super) names: Rc<Names>,
    /// When it was replaced.
    pub(super) at: Time,
    /// Its cell of the same key, if there is one here.
    pub(super) known: Option<Cell>,
}

/// What a cell has yet to carry over.
#[derive(Debug)]
pub(super) struct CarryOver {
    /// The replaced limits whose counters have not been read yet.
    sources: Vec<Source>,
    /// Whether the exchange that is under way reads them.
    is_asked: bool,
    /// What the cell counts at least.
    least: Option<Cell>,
    /// Whether Memcached is to be told the state that is kept as a whole.
    is_state_due: bool,
    /// The number of the cell if what was reserved before the reload cannot be given back to it.
    unused: u32,
}

impl Source {
    /// The counters that are read: those of rates that a rate of the new limit continues, unless it uses the same counters.
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
    /// Begins with what is known here, as of `now`. The `unused` number is for the cell if what was reserved before cannot be
    /// given back to it.
    pub(super) fn new(sources: Vec<Source>, limit: &Limit, unused: u32, now: Time) -> Self {
        let mut carry_over = Self { sources: Vec::new(), is_asked: false, least: None, is_state_due: false, unused };
        for source in &sources {
            if let Some(cell) = &source.known {
                carry_over.continue_from((&source.names.limit, cell.clone(), source.at), limit, now);
            }
        }
        Self { sources, ..carry_over }
    }

    /// Adds what is left of one that began with an earlier reload.
    fn add(&mut self, earlier: Self, limit: &Limit, now: Time) {
        let is_later =
            |source: &Source| self.sources.iter().any(|later| later.names.limit.id() == source.names.limit.id());
        let sources: Vec<Source> = earlier.sources.into_iter().filter(|source| !is_later(source)).collect();
        self.sources.extend(sources);
        if let Some(mut least) = earlier.least {
            least.advance(limit.rates(), now);
            self.raise(least, limit, now);
        }
    }

    /// Gives back `cost` of a reservation: what was reserved before the reload is part of what the cell counts at least.
    pub(super) fn give_back(&mut self, limit: &Limit, now: Time, reservation: &Reservation, cost: u64) {
        if let Some(least) = &mut self.least {
            least.advance(limit.rates(), now);
            limit.give_back(least, now, reservation, cost);
        }
    }

    /// Whether nothing is left to be read.
    pub(super) fn is_read(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether the counters of this rate have other names in all limits that are yet to be read.
    fn renames(&self, rate: usize, limit: &Limit) -> bool {
        self.sources.iter().all(|source| {
            let (rate, old) = (&limit.rates()[rate], source.names.limit.rates());
            rate.predecessor(old).is_none_or(|index| !rate.is_kept_like(&old[index]))
        })
    }

    /// Adds the commands that read what has not been read yet.
    fn compose(&self, limit: &Limit, key: &Digits, targets: &mut Targets, commands: &mut Commands) {
        for source in &self.sources {
            for id in source.counters(limit) {
                commands.read(|out| source.names.counter(key, id, out));
                targets.read_replaced();
            }
            if source.has_state(limit) {
                commands.read(|out| source.names.state(key, out));
                targets.read_replaced();
            }
        }
    }

    /// Takes over the items that were read, as of `now`.
    fn learn<'a>(&mut self, mut items: impl Iterator<Item = Option<Item<'a>>>, limit: &Limit, now: Time) {
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
            if let Some(restored) = state.and_then(|item| Cell::restore(rates, now, item.value)) {
                self.continue_from((old, restored.cell, source.at), limit, now);
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

impl Known {
    /// What a `limit` that replaces this one continues from. If both use the same counters, what Memcached has yet to be told
    /// of those is not part of the cell: it is returned too, and the new cell tells it from now on.
    pub(super) fn hand_over(&mut self, limit: &Limit) -> (Cell, Vec<(CounterId, i64)>) {
        let Self { names, cell, counters, .. } = self;
        let (rates, mut pending) = (names.limit.rates(), Vec::new());
        for (rate, new) in limit.rates().iter().enumerate() {
            let same = new.predecessor(rates).filter(|old| new.uses_counters() && new.is_kept_like(&rates[*old]));
            for (id, amount) in same.map(|old| counters.take_pending(old)).into_iter().flatten() {
                cell.correct(rates, id.rate, id.bucket, |count| count.saturating_add_signed(-amount));
                pending.push((CounterId { rate, ..id }, amount));
            }
        }
        (cell.clone(), pending)
    }

    /// Continues from what replaced limits have counted. Until that has been read, nothing that was read before is enough for
    /// a decision. What is `pending` is added to its counters.
    pub(super) fn begin_carry_over(&mut self, mut carry_over: CarryOver, pending: Vec<(CounterId, i64)>) {
        if let Some(earlier) = self.carry_over.take() {
            carry_over.add(*earlier, &self.names.limit, self.now);
        }
        self.carry_over = Some(Box::new(carry_over));
        // What was charged so far has been charged before the reload.
        self.raise(false);
        for (id, amount) in pending {
            let add = |count: u64| count.saturating_add_signed(amount);
            self.cell.correct(self.names.limit.rates(), id.rate, id.bucket, add);
            self.counters.add(id, amount);
        }
        self.must_be_read();
    }

    /// Whether replaced limits have to be read before it is known what counts.
    pub(super) fn is_behind(&self) -> bool {
        self.carry_over.as_ref().is_some_and(|carry_over| !carry_over.is_read())
    }

    /// Adds the commands that read what replaced limits have counted.
    pub(super) fn compose_carry_over(&mut self, targets: &mut Targets, commands: &mut Commands) {
        if let Some(carry_over) = &mut self.carry_over {
            carry_over.is_asked = true;
            carry_over.compose(&self.names.limit, &self.key.digits(), targets, commands);
        }
    }

    /// Carries over what was read with this answer, from which all else has been learned. Notes what Memcached has yet to be
    /// told, and ends when it knows all. If `is_foreign`, another gateway has written the state that is kept as a whole.
    pub(super) fn carry_over(&mut self, answer: &Answer<'_>, is_foreign: bool) {
        let Self { carry_over: Some(carry_over), names, number, now, .. } = self else { return };
        if !answer.is_read() {
            return;
        }
        if !carry_over.is_asked {
            // It began after the exchange, and what was learned may be less than what is known from replaced limits.
            self.raise(true);
            return;
        }
        if !carry_over.is_read() {
            let mut others =
                answer.items().filter(|(id, item)| item.is_some() && carry_over.renames(id.rate, &names.limit));
            if others.next().is_some() || answer.state().is_some() {
                // They were there before, so they may lack what was reserved before the reload: it is not given back to them.
                *number = carry_over.unused;
            }
            carry_over.learn(answer.replaced(), &names.limit, *now);
        }
        let is_raised = self.raise(true);
        let are_counters_told = self.tell_counters(answer);
        let is_state_told = self.tell_state(answer, is_raised, is_foreign);
        if are_counters_told && is_state_told {
            self.carry_over = None;
        }
    }

    /// Raises the cell to what it counts at least. What Memcached has yet to be told comes on top if it `is_later`: if it was
    /// charged after the reload. Returns whether anything has changed.
    fn raise(&mut self, is_later: bool) -> bool {
        let Self { carry_over, names, cell, counters, whole, now, .. } = self;
        let Some(least) = carry_over.as_mut().and_then(|carry_over| carry_over.least.as_mut()) else { return false };
        let (limit, rates) = (&names.limit, names.limit.rates());
        least.advance(rates, *now);
        let owed = |rate, bucket| if is_later { counters.owed(CounterId { rate, bucket }) } else { 0 };
        let mut raised = cell.clone();
        for (rate, bucket, count) in raised.counts_mut(rates) {
            *count = count.saturating_add_signed(-owed(rate, bucket));
        }
        let charged = whole.as_ref().filter(|_| is_later).and_then(|whole| whole.charged());
        if let Some((cost, _)) = charged {
            limit.take_back_whole(&mut raised, cost);
        }
        let before = raised.clone();
        limit.raise(&mut raised, least, *now);
        if raised == before {
            return false;
        }
        for (rate, bucket, count) in raised.counts_mut(rates) {
            *count = count.saturating_add_signed(owed(rate, bucket));
        }
        if let Some((cost, since)) = charged {
            limit.charge_whole(&mut raised, *now, cost, since);
        }
        *cell = raised;
        true
    }

    /// Notes which counters are to be created or raised. Returns whether there are none.
    fn tell_counters(&mut self, answer: &Answer<'_>) -> bool {
        let Self { cell, counters, names, .. } = self;
        let mut are_told = true;
        for (id, item) in answer.items() {
            let count = cell.count(names.limit.rates(), id.rate, id.bucket).unwrap_or(0);
            let due = count.saturating_add_signed(-counters.owed(id));
            match item {
                _ if due == 0 => continue,
                Some(item) if item.count() >= due => continue,
                Some(item) => counters.replace(id, item.version),
                None => counters.create(id),
            }
            are_told = false;
        }
        are_told
    }

    /// Notes whether the state that is kept as a whole is to be written. Returns whether it is not.
    fn tell_state(&mut self, answer: &Answer<'_>, is_raised: bool, is_foreign: bool) -> bool {
        let Self { carry_over: Some(carry_over), cell, whole: Some(whole), names, now, .. } = self else { return true };
        let is_written = matches!(answer.state_written(), Some(Written::Done));
        if is_raised || answer.state().is_none() {
            carry_over.is_state_due = !cell.is_whole_spent(names.limit.rates(), *now);
        } else if is_written || is_foreign {
            carry_over.is_state_due = false;
        }
        if carry_over.is_state_due {
            whole.owe(0, *now);
        }
        !carry_over.is_state_due
    }
}
