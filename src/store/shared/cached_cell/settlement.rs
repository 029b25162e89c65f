//! Charges of a cell that are corrected later: reservations and leases.
//!
//! What is given back is a negative increment where the charge was counted. While it is unknown whether increments have
//! arrived, no more is given back than was added since: otherwise it might be taken from others.
//!
//! With a lease a gateway charges a share of a busy key's quota in advance, spends it for some milliseconds without the
//! server, and gives back the rest. All counters of a key are on one server. Without leases every gateway has an exchange
//! with that server each millisecond, and with `strict` one after the other, so a key that many gateways charge very often
//! takes a large part of the server's capacity.
//!
//! A lease is a provisional charge (`cached_cell/confirmation.rs`): it is added to the counters first, and the answer must
//! show that it fits. What is spent of it was counted before, so `strict` holds as without leases. Other gateways take a
//! lease for admissions until its rest is given back; so it is no more than what the gateway has admitted in the same time
//! before, and a small part of what is left. A lease without an answer stays charged, like any such charge, and nobody
//! spends it.
//!
//! A gateway that leases a key, or sees others charge a key that can be leased, believes lower counts, as with reservations.
//! It remembers a refusal only briefly if others have just charged the key.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::CachedCell;
use super::confirmation::{NO_DECISION, Provisional, WITHDRAWN};
use crate::base::clock::Time;
use crate::limit::{Limit, Reservation, Verdict};
use crate::store::plan::AskPlan;
use crate::store::shared::counters::{CounterId, signed};
use crate::store::shared::{BRIEFLY, OwnedAsk};
use crate::store::{Demand, Pooled, ReachedRates, Reply, Reserved, Ticket, Watch};

/// How long a lease may be spent, and at most how long others count what may never be admitted.
pub(in super::super) const LEASE: Duration = Duration::from_millis(10);
/// If the exchanges of a server take as long as this, a lease is confirmed too late to be worth its commands.
pub(in super::super) const FAR: Duration = Duration::from_millis(5);
/// A key is busy enough for a lease if it was charged at least this cost in the time of a lease.
pub(in super::super) const BUSY: u64 = 4;
/// A lease is at most one part in so many of what is left.
const SHARE: u64 = 64;

#[derive(Debug)]
pub(in super::super) struct Lease {
    /// The charge; the cost of its ticket is what is not spent yet.
    pub(in super::super) charge: Box<Provisional>,
    /// Requests that came before this moment may spend it.
    until: Instant,
}

/// How much this gateway charges a key in the time of a lease.
#[derive(Debug, Default)]
pub(in super::super) struct LeaseDemand {
    /// When the current span began, and what was charged in it.
    begun: Option<Instant>,
    charged: u64,
    /// What was charged in the previous span.
    before: u64,
}

impl LeaseDemand {
    fn note(&mut self, cost: u64, asked: Instant) {
        let elapsed = asked.saturating_duration_since(*self.begun.get_or_insert(asked));
        if elapsed >= LEASE {
            self.before = if elapsed < 2 * LEASE { self.charged } else { 0 };
            (self.begun, self.charged) = (Some(asked), 0);
        }
        self.charged = self.charged.saturating_add(cost);
    }

    fn most(&self) -> u64 {
        self.charged.max(self.before)
    }
}

pub(in super::super) fn most_leased(limit: &Limit) -> u64 {
    limit.capacity() / SHARE
}

/// Whether gateways may lease keys of this limit, and give back what they do not spend.
pub(in super::super) fn is_leasable(limit: &Limit) -> bool {
    most_leased(limit) >= BUSY && !limit.is_whole()
}

impl CachedCell {
    /// Whether the lease covers the ask. A new bucket needs a new lease.
    pub(in super::super) fn is_leased(&self, ask: &OwnedAsk, Demand { need, cost }: Demand, asked: Instant) -> bool {
        let is_plain = cost > 0 && need == cost && !ask.settles;
        is_plain && self.unspent(&ask.limit) >= cost && self.may_spend_lease(asked)
    }

    /// Whether another gateway was just seen to charge the key: it may have leased some of the count, and may soon give it
    /// back.
    pub(in super::super) fn may_be_leased(&self, now: Time) -> bool {
        is_leasable(&self.names.limit) && self.shared.is_some_and(|shared| now.micros_since(shared) < BRIEFLY)
    }

    fn unspent(&self, limit: &Arc<Limit>) -> u64 {
        let lease = self.lease.as_ref().map(|lease| &lease.charge.ticket);
        let lease = lease.filter(|ticket| Arc::ptr_eq(&ticket.limit, limit) && ticket.cell == self.number);
        lease.map_or(0, Ticket::cost)
    }

    /// The charge of a lease that is not confirmed yet.
    pub(in super::super) fn asked_for(&self) -> Option<&Provisional> {
        self.provisional.iter().find(|charge| charge.number == NO_DECISION).map(|charge| &**charge)
    }

    fn may_spend_lease(&self, asked: Instant) -> bool {
        let has_begun_no_bucket = |lease: &Lease| self.cell.newest().eq(lease.charge.buckets());
        self.lease.as_ref().is_some_and(|lease| asked < lease.until && has_begun_no_bucket(lease))
    }

    /// The lease must have enough.
    pub(in super::super) fn spend(&mut self, cost: u64) {
        if let Some(lease) = &mut self.lease {
            let ticket = &mut lease.charge.ticket;
            ticket.set_cost(ticket.cost().saturating_sub(cost));
        }
    }

    /// Notes an admission. If the key is busy and its lease will not last, charges the next lease, which the next exchange
    /// confirms, and returns true. The cell must be advanced to the present.
    pub(in super::super) fn lease_if_busy(&mut self, ask: &OwnedAsk, asked: Instant) -> bool {
        self.demand.note(ask.cost, asked);
        let wanted = self.demand.most();
        let is_leasable = self.versioned.is_none() && !ask.settles;
        if wanted < BUSY || !is_leasable || self.counters.is_unacknowledged() {
            return false;
        }
        if self.asked_for().is_some() || self.may_spend_lease(asked) && self.unspent(&ask.limit) > wanted / 2 {
            return false;
        }
        let left = ask.limit.judge(&self.cell, self.now, 1, true).remaining;
        if wanted > left / SHARE {
            return false;
        }
        // Others lease the key as well, and give back.
        self.counters.may_shrink();
        let since_read = self.since_read;
        self.charge(&ask.limit, self.now, wanted);
        // Nothing of it is admitted yet.
        self.since_read = since_read;
        let mut charge = self.provisional(NO_DECISION, 0, ask, None);
        charge.ticket.set_cost(wanted);
        charge.need = wanted;
        self.provisional.push(Box::new(charge));
        true
    }

    /// A lease was confirmed. Returns until when it may be spent, and the previous lease if that must be given back.
    pub(in super::super) fn grant(
        &mut self,
        mut charge: Box<Provisional>,
        begun: Instant,
    ) -> (Instant, Option<Box<Provisional>>) {
        let until = begun + LEASE;
        let mut before = self.lease.take().map(|lease| lease.charge);
        let is_same = |before: &mut Box<Provisional>| {
            before.buckets().eq(charge.buckets())
                && before.ticket.cell == charge.ticket.cell
                && Arc::ptr_eq(&before.ticket.limit, &charge.ticket.limit)
        };
        if let Some(same) = before.take_if(is_same) {
            charge.ticket.set_cost(charge.ticket.cost().saturating_add(same.ticket.cost()));
        }
        self.lease = Some(Box::new(Lease { charge, until }));
        (until, before)
    }

    /// Gives back the lease. One that an exchange already asks for is given back when it is granted.
    pub(in super::super) fn withdraw_lease(&mut self) {
        let asked_for = self.provisional.iter().position(|charge| charge.number == NO_DECISION);
        let unsent = match asked_for {
            Some(at) if self.provisional[at].sent => {
                self.provisional[at].number = WITHDRAWN;
                None
            }
            asked_for => asked_for.map(|at| self.provisional.remove(at)),
        };
        let lease = self.lease.take().map(|lease| lease.charge);
        lease.into_iter().chain(unsent).for_each(|charge| self.give_back(&charge));
    }

    /// Leases that an exchange has charged, but that are not wanted any more.
    pub(in super::super) fn withdrawn(&self) -> impl Iterator<Item = &Provisional> {
        self.provisional.iter().filter(|charge| charge.number == WITHDRAWN).map(|charge| &**charge)
    }

    pub(in super::super) fn end_lease(&mut self, now: Instant) -> Option<Box<Provisional>> {
        self.lease.take_if(|lease| lease.until <= now).map(|lease| lease.charge)
    }

    /// Adds the verdict on the request itself, and the verdict on what overflows into the limit.
    pub(in super::super) fn judge(&self, ask: &OwnedAsk, at: Time, plan: &AskPlan, result: &mut Reply) {
        let (own, place, has_room) = (ask.borrowed(), ask.place, plan.has_room);
        if !own.is_idle() {
            let verdict = self.verdict(&ask.limit, own.need, at, has_room);
            let level = if has_room { ask.level } else { 0 };
            result.verdicts.push((place, Verdict { level, ..verdict }));
        }
        if ask.own_demand.is_some() {
            let verdict = self.verdict(&ask.limit, ask.need, at, plan.fits());
            result.pooled.push(Pooled { place, demand: ask.demand(), verdict });
        }
        if ask.limit.watched.is_some() && (!ask.settles || result.refuses(place)) {
            self.note_reached(&ask.limit, place, at, &mut result.reached);
        }
    }

    fn note_reached(&self, limit: &Arc<Limit>, place: usize, at: Time, reached: &mut ReachedRates) {
        reached.note(place, limit, &self.lasting(limit, at), at, self.set_apart(limit));
    }

    /// Tells the watcher of a settled charge what the key has used. The cell must be advanced to the present.
    pub(in super::super) fn tell(&self, watch: &Watch, limit: &Arc<Limit>) {
        watch.settled(|| {
            let mut reached = ReachedRates::default();
            self.note_reached(limit, 0, self.now, &mut reached);
            reached
        });
    }

    /// What is set apart for further requests counts as remaining.
    fn verdict(&self, limit: &Arc<Limit>, need: u64, at: Time, admitted: bool) -> Verdict {
        let mut verdict = limit.judge(&self.lasting(limit, at), at, need, admitted);
        if admitted {
            verdict.remaining = verdict.remaining.saturating_add(self.set_apart(limit));
        }
        verdict
    }

    /// How full the limit is before the charge; 0 if the request is never held. What is set apart is not used.
    pub(in super::super) fn level(&self, ask: &OwnedAsk, at: Time) -> u32 {
        ask.held_above.map_or(0, |_| ask.limit.level(&self.cell, at, self.set_apart(&ask.limit)))
    }

    fn set_apart(&self, limit: &Arc<Limit>) -> u64 {
        let asked_for = self.asked_for().map_or(0, |charge| charge.ticket.cost());
        self.unspent(limit).saturating_add(asked_for)
    }

    /// The reservation of a charge made just now; `refunded` was the verdict before it. A final charge is tracked from now
    /// on.
    pub(in super::super) fn reserve(
        &mut self,
        ask: &OwnedAsk,
        now: Time,
        refunded: Verdict,
        is_final: bool,
    ) -> Reserved {
        let OwnedAsk { limit, place, requested, .. } = ask;
        let mut ticket = self.ticket(ask, now);
        if is_final {
            limit.follow(&mut self.cell, &mut ticket.reservation);
        }
        let requested = requested.as_ref().unwrap_or(limit).clone();
        Reserved { place: *place, ticket, requested, refunded: Some(refunded), watch: Watch::default() }
    }

    pub(in super::super) fn ticket(&self, ask: &OwnedAsk, now: Time) -> Ticket {
        let limit = ask.limit.clone();
        let reservation = limit.place_of(&self.cell, now, ask.cost);
        Ticket { limit, key: self.key, cell: self.number, reservation }
    }

    /// `cost` is the real cost. The cell must be advanced to the present.
    pub(in super::super) fn settle(&mut self, ticket: &Ticket, cost: u64) {
        let Ticket { limit, reservation, .. } = ticket;
        let (given, more) = (ticket.cost().saturating_sub(cost), cost.saturating_sub(ticket.cost()));
        if reservation.is_of_any() {
            self.counters.may_shrink_at_will();
            let charges = limit.newest_charges(&self.cell, self.now, given);
            for (at, charge) in charges.iter().enumerate() {
                if at == 0 { self.take_back(limit, charge, given) } else { self.take_back_sums(limit, charge, given) }
            }
        } else {
            if given > 0 {
                self.counters.may_shrink();
            }
            self.take_back(limit, reservation, given);
        }
        if more > 0 {
            self.charge(limit, self.now, more);
        }
    }

    /// Takes back `cost` of a charge where it was counted; with 0 a reservation only ends. Every charge is undone here: of a
    /// request that is refused in the end, of a reservation, and of a lease.
    pub(in super::super) fn take_back(&mut self, limit: &Limit, reservation: &Reservation, cost: u64) {
        self.take_back_sums(limit, reservation, cost);
        if let Some(state) = &mut self.versioned {
            state.give_back(&mut self.cell, limit, self.now, reservation, cost);
        }
    }

    /// [`Self::take_back`], but only from sums: the state that is kept as a whole was never charged.
    pub(in super::super) fn take_back_sums(&mut self, limit: &Limit, reservation: &Reservation, cost: u64) {
        let Self { cell, counters, .. } = self;
        for (rate, bucket) in reservation.buckets(limit.rates()).filter(|_| cost > 0) {
            let (id, cost) = (CounterId { rate, bucket }, reservation.returnable(rate, cost));
            if cost > 0 && counters.can_give_back(id, cost) && cell.count(rate, bucket).is_some() {
                cell.correct(rate, bucket, |count| count.saturating_sub(cost));
                counters.add(id, -signed(cost));
            }
        }
    }
}
