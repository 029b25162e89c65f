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
//!
//! Where there is plenty of room, that exchange is the one which a decision needs anyway, and no second one has to
//! write the increment. Near the limit the counters are read first, because a flood of refused requests would otherwise
//! inflate them. If a decision is about several limits, either all of its charges are confirmed or all are given back.
//! The latest charge is given back first.
//!
//! Without `strict` a key has at most one provisional charge at a time, and only after it was read. Gateways then
//! assume that counts only grow, unless the key may be leased. So a charge that is given back remains in the known
//! counts of others, and must be small.

use smallvec::SmallVec;

use super::{CachedCell, ExchangeStage};
use crate::limit::Limit;
use crate::store::Ticket;
use crate::store::shared::OwnedAsk;
use crate::store::shared::provisional::{Confirmation, Provisional, Provisionals};
use crate::store::shared::versioned::Number;

impl CachedCell {
    /// The provisional charge that was made just now.
    pub(in crate::store::shared) fn provisional(
        &self,
        number: u64,
        index: usize,
        ask: &OwnedAsk,
        attempt: Option<Number>,
    ) -> Provisional {
        let ticket = self.ticket(ask, self.now);
        Provisional { number, index, ticket, at: self.now, sent: false, attempt }
    }

    /// Whether a charge may be provisional without `strict`. A gateway that sees it in a sum before it is given back takes it
    /// for an admission for as long as it counts. So there it is the cost of one request at a time, and only of a cell that
    /// was read.
    pub(in crate::store::shared) fn may_reserve(&self) -> bool {
        self.has_no_sums()
            || self.was_read
                && self.stage != ExchangeStage::InFlight
                && self.waiting.is_empty()
                && self.provisional.is_empty()
    }

    /// Whether there is so much room that what others have charged in the last moment hardly matters, and that a
    /// provisional charge need not read first: a flood of refused requests must not inflate the counters. What does not fit
    /// into a state that is kept as a whole is not charged, so there any room will do. While something is unacknowledged,
    /// nothing is added to it, so nothing would be confirmed.
    pub(in crate::store::shared) fn has_plenty(&self, limit: &Limit, need: u64) -> bool {
        let margin = if self.has_no_sums() { 0 } else { limit.capacity() / 8 };
        !self.counters.is_unacknowledged()
            && !self.versioned.as_ref().is_some_and(|state| state.is_unacknowledged())
            && limit.admits(&self.cell, self.now, need.saturating_add(margin))
    }

    /// Whether all of it is kept as a whole.
    fn has_no_sums(&self) -> bool {
        self.cell.newest().next().is_none()
    }

    /// What became of the provisional charges that were part of the exchange that was just answered. If it confirms
    /// none, those that are not rejected go on waiting.
    pub(in crate::store::shared) fn confirm(&mut self, is_confirmed: bool) -> SmallVec<[Confirmation; 2]> {
        let mut rejected = self.reject_what_did_not_fit(true);
        let sent = self.provisional.iter().position(|charge| !charge.sent).unwrap_or(self.provisional.len());
        let has_room = |charge: &Provisional| charge.ticket.limit.admits_by_counters(&self.cell, charge.at, 1);
        if is_confirmed && self.provisional[..sent].iter().all(|charge| has_room(charge)) {
            // With all of them there is room for more.
            rejected.extend(self.provisional.drain(..sent).map(|charge| Confirmation { charge, is_confirmed: true }));
            return rejected;
        }
        let mut charges = std::mem::take(&mut self.provisional);
        let later: Provisionals = charges.drain(sent..).collect();
        // What was charged later is not on the server yet.
        later.iter().for_each(|charge| self.take_from_counters(charge));
        // What is leased is for requests that may come, so that it goes first.
        charges.sort_by_key(|charge| charge.is_leased());
        while let Some(charge) = charges.pop() {
            self.take_from_counters(&charge);
            if charge.ticket.limit.admits_by_counters(&self.cell, charge.at, charge.ticket.cost()) {
                self.add_to_counters(&charge);
                charges.push(charge);
                break;
            }
            self.add_to_counters(&charge);
            self.undo(&charge);
            rejected.push(Confirmation { charge, is_confirmed: false });
        }
        later.iter().for_each(|charge| self.add_to_counters(charge));
        if is_confirmed {
            rejected.extend(charges.into_iter().map(|charge| Confirmation { charge, is_confirmed: true }));
            self.provisional = later;
        } else {
            charges.iter_mut().for_each(|charge| charge.sent = false);
            self.provisional = charges.into_iter().chain(later).collect();
        }
        rejected
    }

    /// Rejects those that did not fit into the state that is kept as a whole, and notes which others wait for that. If it is not
    /// certain that what was sent has arrived, it stays in the sums.
    pub(in crate::store::shared) fn reject_what_did_not_fit(
        &mut self,
        is_certain: bool,
    ) -> SmallVec<[Confirmation; 2]> {
        let mut rejected = SmallVec::new();
        let Some(state) = &mut self.versioned else { return rejected };
        let outcomes = state.take_outcomes();
        for mut charge in std::mem::take(&mut self.provisional) {
            match charge.attempt.map(|number| outcomes.of(number)) {
                Some(Some(false)) => {
                    if is_certain || !charge.sent {
                        let Ticket { limit, reservation, .. } = &charge.ticket;
                        self.take_back_sums(limit, reservation, reservation.cost());
                    }
                    rejected.push(Confirmation { charge, is_confirmed: false });
                    continue;
                }
                Some(Some(true)) => charge.attempt = None,
                Some(None) => charge.sent = false,
                None => {}
            }
            self.provisional.push(charge);
        }
        rejected
    }

    /// No longer waits for the provisional charge of a decision for this ask. It stays charged.
    pub(in crate::store::shared) fn withdraw(&mut self, number: u64, index: usize) {
        let Self { provisional, versioned, .. } = self;
        provisional.retain(|charge| {
            let stays = (charge.number, charge.index) != (number, index);
            if let (false, Some(attempt), Some(state)) = (stays, charge.attempt, versioned.as_mut()) {
                state.admit(attempt);
            }
            stays
        });
    }

    /// No longer waits for any provisional charge. All that is not known to be rejected stays charged.
    pub(in crate::store::shared) fn withdraw_all(&mut self) -> Provisionals {
        self.versioned.iter_mut().for_each(|state| state.admit_pending());
        std::mem::take(&mut self.provisional)
    }

    /// Gives back a charge that was not rejected, unless the key was reset since.
    pub(in crate::store::shared) fn give_back(&mut self, charge: &Provisional) {
        if charge.ticket.cell == self.number {
            self.undo(charge);
        }
    }

    fn undo(&mut self, charge: &Provisional) {
        let Ticket { limit, reservation, .. } = &charge.ticket;
        self.take_back(limit, &reservation.not_admitted(limit.rates(), self.now), reservation.cost());
    }

    fn take_from_counters(&mut self, charge: &Provisional) {
        self.correct_counters(charge, |count| count.saturating_sub(charge.ticket.cost()));
    }

    fn add_to_counters(&mut self, charge: &Provisional) {
        self.correct_counters(charge, |count| count.saturating_add(charge.ticket.cost()));
    }

    fn correct_counters(&mut self, charge: &Provisional, correct: impl Fn(u64) -> u64) {
        for (place, bucket) in charge.buckets() {
            self.cell.correct(place, bucket, &correct);
        }
    }
}
