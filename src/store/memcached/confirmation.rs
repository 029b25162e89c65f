//! How provisional charges of a cell are confirmed or given back: with `strict` all charges are provisional, otherwise
//! some where there is plenty of room.
//!
//! A provisional charge is added to the counters first; the answer is the count of all gateways. If others were faster
//! to take the room, it is given back and the request is refused. So if all charges are provisional, any number of
//! gateways admit no more together than the limit allows: of those that add to a counter at the same time, only those
//! admit that find their own charge within the limit. It takes one exchange, where to read first and to add later takes
//! two.
//!
//! With `strict` a charge is confirmed by an exchange that also read the newest bucket after the charge was made. When
//! a new bucket begins, a charge to the old one is late: a gateway that counts in the new one may have read the old one
//! before. So the charge is checked again after the new bucket was read; then at least one of the two gateways knows of
//! the other.

use smallvec::SmallVec;

use super::OwnedAsk;
use super::cached_cell::{CachedCell, Stage};
use super::counters::{CounterId, signed};
use super::lease::NO_DECISION;
use super::provisional::{Outcome, Provisional, Provisionals};
use crate::limit::Limit;

impl CachedCell {
    /// The provisional charge that was made just now.
    pub(super) fn provisional(&self, number: u64, index: usize, ask: &OwnedAsk) -> Provisional {
        let (limit, cost) = (ask.limit.clone(), ask.cost);
        let buckets = self.cell.newest(limit.rates()).collect();
        // A window may have begun a little later, with a request to another gateway.
        let at = limit.place_of(&self.cell, self.now, cost).moment(limit.rates()).unwrap_or(self.now);
        Provisional { number, index, cost, cell: self.number, limit, at, buckets, sent: false }
    }

    /// Whether a charge may be provisional without `strict`. A gateway that sees it before it is given back takes it
    /// for an admission for as long as it counts. So it is the cost of one request at a time, and only of a cell that
    /// was read.
    pub(super) fn may_reserve(&self) -> bool {
        self.was_read && self.stage != Stage::InFlight && self.waiting.is_empty() && self.provisional.is_empty()
    }

    /// Whether there is so much room that what others have charged in the last moment hardly matters, and that a
    /// provisional charge need not read first: a flood of refused requests must not inflate the counters. While a
    /// counter is unacknowledged, nothing is added to it, so nothing would be confirmed.
    pub(super) fn has_plenty(&self, limit: &Limit, need: u64) -> bool {
        let margin = limit.capacity() / 8;
        self.versioned.is_none()
            && !self.is_behind()
            && !self.counters.is_unacknowledged()
            && limit.admits(&self.cell, self.now, need.saturating_add(margin))
    }

    /// What became of the provisional charges that were part of the exchange that was just answered. If it confirms
    /// none, those that are not rejected go on waiting.
    pub(super) fn confirm(&mut self, is_confirmed: bool) -> SmallVec<[Outcome; 2]> {
        let sent = self.provisional.iter().position(|charge| !charge.sent).unwrap_or(self.provisional.len());
        let has_room = |charge: &Provisional| charge.limit.admits(&self.cell, charge.at, 1);
        if is_confirmed && self.provisional[..sent].iter().all(|charge| has_room(charge)) {
            // With all of them there is room for more.
            return self.provisional.drain(..sent).map(|charge| Outcome { charge, is_confirmed: true }).collect();
        }
        let mut charges = std::mem::take(&mut self.provisional);
        let later: Provisionals = charges.drain(sent..).collect();
        // What was charged later is not in Memcached yet.
        later.iter().for_each(|charge| self.take_back(charge));
        // What is leased is for requests that may come, so that it goes first.
        charges.sort_by_key(|charge| charge.number == NO_DECISION);
        let mut rejected = SmallVec::new();
        while let Some(charge) = charges.pop() {
            self.take_back(&charge);
            if charge.limit.admits(&self.cell, charge.at, charge.cost) {
                self.put_again(&charge);
                charges.push(charge);
                break;
            }
            self.add_give_back(&charge);
            rejected.push(Outcome { charge, is_confirmed: false });
        }
        later.iter().for_each(|charge| self.put_again(charge));
        if is_confirmed {
            rejected.extend(charges.into_iter().map(|charge| Outcome { charge, is_confirmed: true }));
            self.provisional = later;
        } else {
            charges.iter_mut().for_each(|charge| charge.sent = false);
            self.provisional = charges.into_iter().chain(later).collect();
        }
        rejected
    }

    /// No longer waits for the provisional charge of a decision for this ask. It stays charged.
    pub(super) fn withdraw(&mut self, number: u64, index: usize) {
        self.provisional.retain(|charge| (charge.number, charge.index) != (number, index));
    }

    /// Gives back a charge that was not rejected, unless the key was reset since.
    pub(super) fn give_back(&mut self, charge: &Provisional) {
        if charge.cell == self.number {
            self.take_back(charge);
            self.add_give_back(charge);
        }
    }

    fn take_back(&mut self, charge: &Provisional) {
        let Self { cell, names, .. } = self;
        let rates = names.limit.rates();
        for (place, bucket) in &charge.buckets {
            cell.correct(rates, *place, *bucket, |count| count.saturating_sub(charge.cost));
        }
        names.limit.take_back_whole_since(cell, charge.cost, charge.at);
    }

    fn put_again(&mut self, charge: &Provisional) {
        let Self { cell, names, now, .. } = self;
        let rates = names.limit.rates();
        for (place, bucket) in &charge.buckets {
            cell.correct(rates, *place, *bucket, |count| count.saturating_add(charge.cost));
        }
        names.limit.charge_whole(cell, *now, charge.cost, charge.at);
    }

    fn add_give_back(&mut self, charge: &Provisional) {
        let amount = signed(charge.cost);
        for (rate, bucket) in &charge.buckets {
            self.counters.add(CounterId { rate: *rate, bucket: *bucket }, -amount);
        }
        if let Some(state) = &mut self.versioned {
            self.names.limit.took_back(&mut self.cell, charge.cost);
            let certain = self.cell.certain_until(self.names.limit.rates(), self.now, charge.cost, charge.at);
            state.take_back(charge.cost, (charge.at, self.now), certain);
        }
    }
}
