//! How provisional charges of a cell are confirmed or given back. With `strict` all charges are provisional, otherwise some,
//! where there is plenty of room.
//!
//! A provisional charge is added to the counters first; the answer is the count of all gateways. If others took the room
//! first, the charge is given back and the request is refused. So if all charges are provisional, any number of gateways
//! together admit no more than the limit allows: of those that add to a counter at the same time, only those admit that find
//! their own charge within the limit. This takes one exchange; reading first and adding later takes two.
//!
//! With `strict` a charge is confirmed by an exchange that also reads the newest bucket after the charge. When a new bucket
//! begins, a charge to the old one is late: a gateway that counts in the new one may have read the old one before. So the
//! charge is checked again after the new bucket was read; then at least one of the two gateways knows of the other.
//!
//! Where there is plenty of room, the decision needs that exchange anyway, and no second one has to write the increment. Near
//! the limit the counters are read first, because a flood of refused requests would otherwise inflate them. If a decision has
//! several limits, all of its charges are confirmed or all are given back. The latest charge is given back first.
//!
//! Without `strict` a key has at most one provisional charge at a time, and only after it was read. Gateways then assume that
//! counts only grow, unless the key may be leased. So a charge that is given back stays in the counts that others know, and
//! must be small.

use smallvec::SmallVec;

use super::{CachedCell, ExchangeStage};
use crate::base::clock::Time;
use crate::limit::{Cell, Limit};
use crate::store::Ticket;
use crate::store::shared::OwnedAsk;
use crate::store::shared::versioned::Number;

/// In place of a decision's number: the charge of a lease.
pub(in super::super) const NO_DECISION: u64 = u64::MAX;
/// In place of a decision's number: the charge of a lease that is given back as soon as it is granted.
pub(in super::super) const WITHDRAWN: u64 = NO_DECISION - 1;

impl CachedCell {
    pub(in super::super) fn provisional(
        &self,
        number: u64,
        index: usize,
        ask: &OwnedAsk,
        attempt: Option<Number>,
    ) -> Provisional {
        let ticket = self.ticket(ask, self.now);
        Provisional { number, index, ticket, need: ask.need, at: self.now, sent: false, attempt }
    }

    /// Whether a charge may be provisional without `strict`. A gateway that sees the charge in a sum before it is given back
    /// takes it for an admission for as long as it counts. So only the cost of one request at a time may be provisional
    /// there, and only in a cell that was read.
    pub(in super::super) fn may_reserve(&self) -> bool {
        self.has_no_sums()
            || self.was_read
                && self.stage != ExchangeStage::InFlight
                && self.waiting.is_empty()
                && self.provisional.is_empty()
    }

    /// Whether there is so much room that the charges of others in the last moment hardly matter, and that a provisional
    /// charge need not read first: a flood of refused requests must not inflate the counters. A state that is kept as a whole
    /// is only charged what fits, so any room suffices there. False while something is unacknowledged: then nothing is added,
    /// and so nothing would be confirmed.
    pub(in super::super) fn has_plenty(&self, limit: &Limit, need: u64) -> bool {
        let margin = if self.has_no_sums() { 0 } else { limit.capacity() / 8 };
        !self.counters.is_unacknowledged()
            && !self.versioned.as_ref().is_some_and(|state| state.is_unacknowledged())
            && limit.admits(&self.cell, self.now, need.saturating_add(margin))
    }

    /// Whether all of it is kept as a whole.
    fn has_no_sums(&self) -> bool {
        self.cell.newest().next().is_none()
    }

    /// The results of the charges in the answered exchange. If it confirms none, those that are not rejected go on waiting.
    pub(in super::super) fn confirm(&mut self, is_confirmed: bool) -> SmallVec<[Confirmation; 2]> {
        let mut rejected = self.reject_what_did_not_fit(true);
        let sent = self.provisional.iter().position(|charge| !charge.sent).unwrap_or(self.provisional.len());
        let has_room = |charge: &Provisional| charge.ticket.limit.admits_by_counters(&self.cell, charge.at, 1);
        if is_confirmed && self.provisional[..sent].iter().all(|charge| has_room(charge)) {
            // There is room even with all of them.
            rejected.extend(self.provisional.drain(..sent).map(|charge| Confirmation { charge, is_confirmed: true }));
            return rejected;
        }
        let mut charges = std::mem::take(&mut self.provisional);
        let later: Provisionals = charges.drain(sent..).collect();
        // Later charges are not on the server yet.
        later.iter().for_each(|charge| charge.correct(&mut self.cell, u64::saturating_sub));
        // Leases are for future requests, so they go first.
        charges.sort_by_key(|charge| charge.is_leased());
        // They need less than they cost. They are charged, and take no room from earlier charges.
        let mut exceeding = Provisionals::new();
        while let Some(charge) = charges.pop() {
            charge.correct(&mut self.cell, u64::saturating_sub);
            let fits = |cost| charge.ticket.limit.admits_by_counters(&self.cell, charge.at, cost);
            if fits(charge.ticket.cost()) {
                charge.correct(&mut self.cell, u64::saturating_add);
                charges.push(charge);
                break;
            }
            if fits(charge.need) {
                exceeding.push(charge);
                continue;
            }
            charge.correct(&mut self.cell, u64::saturating_add);
            self.undo(&charge);
            rejected.push(Confirmation { charge, is_confirmed: false });
        }
        exceeding.iter().chain(&later).for_each(|charge| charge.correct(&mut self.cell, u64::saturating_add));
        charges.extend(exceeding.into_iter().rev());
        if is_confirmed {
            rejected.extend(charges.into_iter().map(|charge| Confirmation { charge, is_confirmed: true }));
            self.provisional = later;
        } else {
            charges.iter_mut().for_each(|charge| charge.sent = false);
            self.provisional = charges.into_iter().chain(later).collect();
        }
        rejected
    }

    /// Rejects the charges that did not fit into the state that is kept as a whole, and notes which others still wait for
    /// that. If it is uncertain whether a sent charge has arrived, it stays in the sums.
    pub(in super::super) fn reject_what_did_not_fit(&mut self, is_certain: bool) -> SmallVec<[Confirmation; 2]> {
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

    /// Stops waiting for a decision's provisional charge for this ask. It stays charged.
    pub(in super::super) fn withdraw(&mut self, number: u64, index: usize) {
        let Self { provisional, versioned, .. } = self;
        provisional.retain(|charge| {
            let stays = (charge.number, charge.index) != (number, index);
            if let (false, Some(attempt), Some(state)) = (stays, charge.attempt, versioned.as_mut()) {
                state.admit(attempt);
            }
            stays
        });
    }

    /// Stops waiting for any provisional charge. All that are not known to be rejected stay charged.
    pub(in super::super) fn withdraw_all(&mut self) -> Provisionals {
        self.versioned.iter_mut().for_each(|state| state.admit_pending());
        std::mem::take(&mut self.provisional)
    }

    /// Gives back a charge that was not rejected, unless the key was reset since.
    pub(in super::super) fn give_back(&mut self, charge: &Provisional) {
        if charge.ticket.cell == self.number {
            self.undo(charge);
        }
    }

    fn undo(&mut self, charge: &Provisional) {
        let Ticket { limit, reservation, .. } = &charge.ticket;
        self.take_back(limit, &reservation.not_admitted(limit.rates(), self.now), reservation.cost());
    }
}

/// A charge that the server has yet to confirm.
#[derive(Debug)]
pub(in super::super) struct Provisional {
    /// The number of the decision, and the index of the charged ask.
    pub(in super::super) number: u64,
    pub(in super::super) index: usize,
    /// With the admitting limit: limits of one shape share a cell, not a quota. A key that is reset gets another cell.
    pub(in super::super) ticket: Ticket,
    /// How much room there must be; see [`Ask::need`](crate::store::Ask::need).
    pub(super) need: u64,
    /// The moment of the charge. It must fit as of then: later, other counts may have left the window.
    at: Time,
    /// Whether it is part of the exchange in flight.
    pub(in super::super) sent: bool,
    /// Its number as an attempt to charge the state that is kept as a whole, until the result is known.
    pub(in super::super) attempt: Option<Number>,
}

impl Provisional {
    /// Whether it is the charge of a lease, for which no decision waits.
    pub(in super::super) fn is_leased(&self) -> bool {
        matches!(self.number, NO_DECISION | WITHDRAWN)
    }

    /// Corrects what it has counted in a cell by its cost.
    pub(in super::super) fn correct(&self, cell: &mut Cell, correct: impl Fn(u64, u64) -> u64) {
        let cost = self.ticket.cost();
        self.buckets().for_each(|(rate, bucket)| cell.correct(rate, bucket, |count| correct(count, cost)));
    }

    pub(in super::super) fn buckets(&self) -> impl Iterator<Item = (usize, u64)> {
        self.ticket.reservation.buckets(self.ticket.limit.rates())
    }
}

/// In the order in which they were made.
pub(in super::super) type Provisionals = SmallVec<[Box<Provisional>; 1]>;

#[derive(Debug)]
pub(in super::super) struct Confirmation {
    pub(in super::super) charge: Box<Provisional>,
    /// If not, it was rejected and has been given back.
    pub(in super::super) is_confirmed: bool,
}

pub(in super::super) type Standings = SmallVec<[Standing; 2]>;

#[derive(Debug)]
pub(in super::super) enum Standing {
    /// Nothing has to be confirmed; says whether the limit admits the request.
    Final(bool),
    Open,
    /// Confirmed, or in no need of it.
    Confirmed(Box<Provisional>),
    /// Given back, because other gateways were faster.
    Rejected,
}
