//! How a cell carries over what the limits counted that its limit has replaced.

use smallvec::SmallVec;

use super::cached_cell::CachedCell;
use super::carry_over::CarryOver;
use super::counters::CounterId;
use super::protocol::{Commands, Written};
use super::provisional::Provisional;
use super::targets::{Answer, Targets};
use crate::limit::{Cell, Limit};

impl CachedCell {
    /// What a `limit` that replaces this one continues from. If both use the same counters, what the server has yet to
    /// be told of those is not part of the cell: it is returned too, and the new cell tells it from now on. Neither is a lease
    /// that will be given back when it is granted.
    pub(super) fn hand_over(&mut self, limit: &Limit) -> (Cell, Vec<(CounterId, i64)>) {
        let leased: SmallVec<[_; 2]> = self.withdrawn().flat_map(Provisional::counted).collect();
        let Self { names, cell, counters, .. } = self;
        let (rates, mut pending) = (names.limit.rates(), Vec::new());
        for (rate, new) in limit.rates().iter().enumerate() {
            let same = new.predecessor(rates).filter(|old| new.uses_counters() && new.is_kept_like(&rates[*old]));
            for (id, amount) in same.map(|old| counters.take_pending(old)).into_iter().flatten() {
                cell.correct(rates, id.rate, id.bucket, |count| count.saturating_add_signed(-amount));
                pending.push((CounterId { rate, ..id }, amount));
            }
        }
        let mut handed_over = cell.clone();
        for (rate, bucket, cost) in leased {
            handed_over.correct(rates, rate, bucket, |count| count.saturating_sub(cost));
        }
        (handed_over, pending)
    }

    /// Continues from what replaced limits have counted. Until that has been read, nothing that was read before is
    /// enough for a decision. What is `pending` is added to its counters.
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
    pub(super) fn compose_carry_over(&mut self, targets: &mut Targets, commands: &mut dyn Commands) {
        if let Some(carry_over) = &mut self.carry_over {
            carry_over.is_asked = true;
            carry_over.compose(&self.names.limit, &self.key.digits(), targets, commands);
        }
    }

    /// Carries over what was read with this answer, from which all else has been learned. Notes what the server has yet
    /// to be told, and ends when it knows all. If `is_foreign`, another gateway has written the state that is kept as a
    /// whole.
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
                // They were there before, so they may lack what was reserved before the reload: it is not given back to
                // them.
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

    /// Raises the cell to what it counts at least. What the server has yet to be told comes on top if it `is_later`: if
    /// it was charged after the reload. Returns whether anything has changed.
    fn raise(&mut self, is_later: bool) -> bool {
        let Self { carry_over, names, cell, counters, versioned, now, .. } = self;
        let Some(least) = carry_over.as_mut().and_then(|carry_over| carry_over.least.as_mut()) else { return false };
        let (limit, rates) = (&names.limit, names.limit.rates());
        least.advance(rates, *now);
        let pending = |rate, bucket| if is_later { counters.pending(CounterId { rate, bucket }) } else { 0 };
        let mut raised = cell.clone();
        for (rate, bucket, count) in raised.counts_mut(rates) {
            *count = count.saturating_add_signed(-pending(rate, bucket));
        }
        let charged = versioned.as_ref().filter(|_| is_later).and_then(|state| state.charged());
        if let Some((cost, _)) = charged {
            limit.take_back_whole(&mut raised, cost);
        }
        let before = raised.clone();
        limit.raise(&mut raised, least, *now);
        if raised == before {
            return false;
        }
        for (rate, bucket, count) in raised.counts_mut(rates) {
            *count = count.saturating_add_signed(pending(rate, bucket));
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
            let due = count.saturating_add_signed(-counters.pending(id));
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
        let Self { carry_over: Some(carry_over), cell, versioned: Some(state), names, now, .. } = self else {
            return true;
        };
        let is_written = matches!(answer.state_written(), Some(Written::Done));
        if is_raised || answer.state().is_none() {
            carry_over.is_state_due = !cell.is_whole_spent(names.limit.rates(), *now);
        } else if is_written || is_foreign {
            carry_over.is_state_due = false;
        }
        if carry_over.is_state_due {
            state.charge(0, *now);
        }
        !carry_over.is_state_due
    }
}
