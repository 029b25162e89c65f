//! Leases: of the quota of a busy key, a gateway charges a share in advance, spends it for some milliseconds without
//! the server, and gives back the rest.
//!
//! All counters of a key are on one server. Without leases every gateway has an exchange with that server each
//! millisecond, and with `strict` one after the other, so that a key which many gateways charge very often takes a large
//! part of what the server can do.
//!
//! A lease is a provisional charge like any other (`cached_cell/confirmation.rs`): it is added to the counters first, and the answer
//! has to show that it fits. What is spent of it was counted before, so `strict` holds as without leases. Other gateways
//! take a lease for admissions until its rest is given back; therefore it is no more than what the gateway has admitted in
//! as long a time before, and a small part of what is left. If the exchange of a lease is not answered, nobody knows
//! whether it was charged: like any such charge it stays so, and nobody spends it.
//!
//! A gateway that leases a key, or sees that others charge one that can be leased, believes lower counts, as with
//! reservations. It remembers a refusal only briefly if others have just charged the key.

use std::time::Duration;

use tokio::time::Instant;

use super::provisional::Provisional;
use crate::limit::Limit;

/// How long a lease may be spent. For so long at most others see what may never be admitted.
pub(super) const LEASE: Duration = Duration::from_millis(10);
/// A server whose exchanges take as long as this confirms a lease too late for it to be worth its commands.
pub(super) const FAR: Duration = Duration::from_millis(5);
/// The least cost that a key was charged in the time of a lease, so that it is busy enough for a lease.
pub(super) const BUSY: u64 = 4;
/// There is a lease only if it is at most one part in so many of what is left.
pub(super) const SHARE: u64 = 64;

/// What this gateway may admit without an exchange.
#[derive(Debug)]
pub(super) struct Lease {
    /// What was charged; the cost of its ticket is what is not spent yet.
    pub(super) charge: Box<Provisional>,
    /// It may be spent by requests that came before.
    pub(super) until: Instant,
}

/// How much a key is charged here in the time of a lease.
#[derive(Debug, Default)]
pub(super) struct LeaseDemand {
    /// When the current time began, and what was charged in it.
    begun: Option<Instant>,
    charged: u64,
    /// What was charged in the time before.
    before: u64,
}

impl LeaseDemand {
    pub(super) fn note(&mut self, cost: u64, asked: Instant) {
        let elapsed = asked.saturating_duration_since(*self.begun.get_or_insert(asked));
        if elapsed >= LEASE {
            self.before = if elapsed < 2 * LEASE { self.charged } else { 0 };
            (self.begun, self.charged) = (Some(asked), 0);
        }
        self.charged = self.charged.saturating_add(cost);
    }

    pub(super) fn most(&self) -> u64 {
        self.charged.max(self.before)
    }
}

/// The most that a lease of this limit can be.
pub(super) fn most_leased(limit: &Limit) -> u64 {
    limit.capacity() / SHARE
}

/// Whether gateways may lease keys of this limit, and give back what they do not spend.
pub(super) fn is_leasable(limit: &Limit) -> bool {
    most_leased(limit) >= BUSY && !limit.is_whole()
}
