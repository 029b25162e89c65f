//! A ticket: what one limit charged to one key, so that the charge can be taken back or settled.
//!
//! A request whose cost only the response tells has one, and so has a charge that a shared store has yet to confirm, and a
//! lease. A ticket borrows nothing, so it may outlive the request, its configuration and the cell.

use std::sync::Arc;

use super::{Ask, IfAbandoned, Watch};
use crate::base::fingerprint::Fingerprint;
use crate::config::Role;
use crate::limit::{Limit, Rate, Reservation, Verdict};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Fingerprint,
    /// The number of the cell that was charged. If the cell is dropped, a new one of the same key has another number.
    pub(super) cell: u32,
    pub(super) reservation: Reservation,
}

/// A charge that is settled later.
#[derive(Debug)]
pub struct Reserved {
    /// That of the ask.
    pub place: usize,
    pub(super) ticket: Ticket,
    /// The limit that was asked. If a reload has replaced it, another one has counted.
    pub(super) requested: Arc<Limit>,
    /// The verdict if everything is given back, for stores that cannot look it up then.
    pub(super) refunded: Option<Verdict>,
    /// Who is told what the key has used when the charge is settled.
    pub watch: Watch,
}

impl Ticket {
    pub fn cost(&self) -> u64 {
        self.reservation.cost()
    }

    /// Whether it is about the cell with this number. One that stands for any charge is about whatever cell the key has.
    pub(super) fn is_of(&self, cell: u32) -> bool {
        self.cell == cell || self.reservation.is_of_any()
    }

    pub(super) fn set_cost(&mut self, cost: u64) {
        self.reservation.set_cost(cost);
    }
}

impl Reserved {
    /// A reservation of nothing: settling it charges the whole cost, whether there is room or not.
    pub fn nothing(Ask { limit, key, place, .. }: &Ask<'_>) -> Self {
        let ticket = Ticket { limit: (*limit).clone(), key: *key, cell: 0, reservation: Reservation::default() };
        Self { place: *place, ticket, requested: (*limit).clone(), refunded: None, watch: Watch::default() }
    }

    /// So many hits of a key, whoever was charged for them: settling it at 0 gives back as many as are counted.
    pub fn of_any(ask: &Ask<'_>, hits: u64) -> Self {
        let mut any = Self::nothing(ask);
        any.ticket.reservation = Reservation::of_any(hits);
        any
    }

    pub fn key(&self) -> Fingerprint {
        self.ticket.key
    }

    pub fn cost(&self) -> u64 {
        self.ticket.cost()
    }

    /// The most that the limit that was asked ever allows at once.
    pub fn capacity(&self) -> u64 {
        self.requested.capacity()
    }

    /// Asks for `more` for the same key. The charge lapses if nobody waits for it any more.
    pub fn ask_for(&self, more: u64, role: Role) -> Ask<'_> {
        let Self { place, ticket, requested, .. } = self;
        Ask {
            settles: true,
            if_abandoned: IfAbandoned::Lapses,
            role,
            place: *place,
            ..Ask::new(requested, ticket.key, more)
        }
    }

    /// The verdict on the request if it costs `cost`; `verdict` is the one at its admission.
    pub(super) fn settled_verdict(&self, cost: u64, verdict: Verdict) -> Verdict {
        let most = self.requested.deciding_rate(&verdict).map_or(u64::MAX, Rate::capacity);
        let remaining = verdict.remaining.saturating_add(self.cost()).saturating_sub(cost).min(most);
        match self.refunded {
            _ if cost == self.cost() => verdict,
            Some(refunded) if cost == 0 && refunded.remaining <= remaining => refunded,
            _ => Verdict { remaining, wait: None, ..verdict },
        }
    }
}
