//! Reloads of the configuration and changes of overrides, as the coordinator applies them.
//!
//! A limit that counts in another way after a reload continues from the counters before it. What is leased in these and
//! given back later would stay counted in the new ones. So a reload first gives back the leases of the keys that are counted
//! differently after it, and takes effect when the server knows that. What is asked meanwhile about such keys waits for it, as
//! long as for any answer: what a server that does not answer in that time still has of a lease may stay counted. Nobody waits
//! who asks about other keys.

use std::iter;

use tokio::time::Instant;

use super::Coordinator;
use crate::store::LimitChanges;
use crate::store::shared::OwnedAsk;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::{CachedCell, Stage};
use crate::store::shared::cells::Place;
use crate::store::shared::message::{Message, Reload};
use crate::store::shared::sweep::Sweep;

/// A reload that has not taken effect yet.
pub(super) struct PendingReload {
    reload: Reload,
    /// When it takes effect at the latest.
    until: Instant,
    /// The cells whose leases are being given back.
    leased: Vec<Place>,
    /// What came after it and has to wait for it, in that order, and by when it is decided.
    later: Vec<(Message, Instant)>,
}

impl PendingReload {
    /// Whether a message has to wait for it, or for another reload that does. Reloads wait for each other.
    fn delays(&self, message: &Message) -> bool {
        let asks: &[OwnedAsk] = match message {
            Message::Reload(_) => return true,
            Message::Decide(decision) => &decision.asks,
            Message::Settle(settlement) => std::slice::from_ref(&settlement.ask),
            Message::Inspect(inspection) => std::slice::from_ref(&inspection.ask),
        };
        let further = self.later.iter().filter_map(|(message, _)| match message {
            Message::Reload(reload) => Some(&reload.changes),
            _ => None,
        });
        let mut all = iter::once(&self.reload.changes).chain(further);
        all.any(|changes| asks.iter().any(|ask| changes.replace(ask.limit.name(), ask.key)))
    }
}

impl Coordinator {
    /// Begins a reload, which takes effect by `deadline`.
    pub(super) fn reload(&mut self, reload: Reload, deadline: Instant) {
        let leased = self.leased(&reload.changes);
        for cell in &leased {
            if let Some(rest) = self.cells.at(*cell).lease.take() {
                self.cells.at(*cell).give_back(&rest.charge);
                self.queue(*cell, true);
            }
        }
        self.pending_reload = Some(Box::new(PendingReload { reload, until: deadline, leased, later: Vec::new() }));
        self.end_reload(None);
    }

    /// Lets the reload that is pending take effect if all leases are given back, or if it has waited until `now` for long
    /// enough.
    pub(super) fn end_reload(&mut self, now: Option<Instant>) {
        let Some(pending) = &self.pending_reload else { return };
        let is_late = now.is_some_and(|now| pending.until <= now);
        if !is_late && !pending.leased.iter().all(|cell| self.is_lease_over(*cell)) {
            return;
        }
        let Some(pending) = self.pending_reload.take() else { return };
        let PendingReload { reload, later, .. } = *pending;
        if self.cells.reload(&reload.changes, reload.now) {
            self.sweep = Some(Sweep::new(reload.asked));
            self.on_timer(reload.asked, reload.now);
        }
        for (message, deadline) in later {
            self.submit(message, deadline);
        }
    }

    /// Keeps a message until the reload before it has taken effect. Returns it if it need not wait for one.
    pub(super) fn postpone(&mut self, message: Message, deadline: Instant) -> Option<Message> {
        match &mut self.pending_reload {
            Some(pending) if pending.delays(&message) => {
                pending.later.push((message, deadline));
                None
            }
            _ => Some(message),
        }
    }

    /// Whether a reload waits until this cell has no lease.
    pub(super) fn must_not_lease(&self, cell: Place) -> bool {
        self.pending_reload.as_ref().is_some_and(|pending| self.is_changed(cell, &pending.reload.changes))
    }

    /// When a reload takes effect at the latest.
    pub(super) fn end_of_reload(&self) -> Option<Instant> {
        self.pending_reload.as_ref().map(|pending| pending.until)
    }

    /// Whether the key of this cell is counted differently afterwards.
    pub(super) fn is_changed(&self, cell: Place, changes: &LimitChanges) -> bool {
        let CachedCell { names, key, .. } = self.cells.peek(cell);
        changes.replace(names.limit.name(), *key)
    }

    /// Whether the server knows that this cell has no lease, or cannot be told.
    fn is_lease_over(&self, cell: Place) -> bool {
        let cached = self.cells.peek(cell);
        let is_told = cached.stage == Stage::Idle && !cached.has_pending()
            || self.servers[cached.server].state == ServerState::Away;
        is_told && !cached.has_lease()
    }
}
