//! A ticket: what one key was charged by one limit, for whoever may have it taken back or settled.
//!
//! Everything that is charged before it is known what it costs in the end has one: a request until its response tells the
//! cost, a charge that a shared store has yet to confirm, and what a gateway leases for requests that may come. It borrows
//! nothing, so it may outlive the request, its configuration and the cell that was charged.

use std::sync::Arc;

use super::Ask;
use crate::base::fingerprint::Fingerprint;
use crate::config::Role;
use crate::limit::{Limit, Reservation, Verdict};

/// What one key was charged by one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The limit that has counted it.
    pub(super) limit: Arc<Limit>,
    /// The client's key, in the domain of the limit.
    pub(super) key: Fingerprint,
    /// The number of the cell that was charged. If the cell is dropped, a new one of the same key has another number.
    pub(super) cell: u32,
    /// Where it was counted.
    pub(super) reservation: Reservation,
}

/// What an ask is charged until it is settled.
#[derive(Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The place of the ask.
    pub(super) place: usize,
    pub(super) ticket: Ticket,
    /// The limit that was asked. If a reload has replaced it, another one has counted.
    pub(super) requested: Arc<Limit>,
    /// The verdict if everything is given back, for stores that cannot look it up when that happens.
    pub(super) refunded: Option<Verdict>,
}

impl Ticket {
    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.reservation.cost()
    }

    /// Says that another cost is charged by now.
    pub(super) fn set_cost(&mut self, cost: u64) {
        self.reservation.set_cost(cost);
    }
}

impl Reserved {
    /// Nothing, of what this asks about: it is settled at what is charged whether there is room for that or not.
    pub fn nothing(Ask { limit, key, place, .. }: &Ask<'_>) -> Self {
        let ticket = Ticket { limit: (*limit).clone(), key: *key, cell: 0, reservation: Reservation::default() };
        Self { place: *place, ticket, requested: (*limit).clone(), refunded: None }
    }

    /// The place of the ask.
    pub fn place(&self) -> usize {
        self.place
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.ticket.cost()
    }

    /// Asks for `more` of what was charged to the same key, for as long as somebody waits for it.
    pub fn ask_for(&self, more: u64, role: Role) -> Ask<'_> {
        let Self { place, ticket, requested, .. } = self;
        Ask { settles: true, lapses: true, role, place: *place, ..Ask::new(requested, ticket.key, more) }
    }

    /// The verdict on the request if it costs `cost`, from the verdict when it was admitted.
    pub(super) fn settled_verdict(&self, cost: u64, verdict: Verdict) -> Verdict {
        let remaining = verdict.remaining.saturating_add(self.cost()).saturating_sub(cost);
        match self.refunded {
            _ if cost == self.cost() => verdict,
            Some(refunded) if cost == 0 && refunded.remaining <= remaining => refunded,
            _ => Verdict { remaining, wait: None, ..verdict },
        }
    }
}
