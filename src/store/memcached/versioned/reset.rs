//! What a reset of the key means for the state that is one value.

use super::{Sent, Version, VersionedState};
use crate::clock::Time;
use crate::limit::{Cell, Limit};

impl VersionedState {
    /// By how many microseconds the state is ahead of the clock here.
    pub(in crate::store::memcached) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// What is pending is part of this value, which is being written.
    pub(in crate::store::memcached) fn send_with(&mut self, bytes: Vec<u8>) {
        self.sent = self.pending.take().map(|pending| Sent { change: pending, bytes, is_appended: false });
    }

    /// What was sent is done.
    pub(in crate::store::memcached) fn acknowledge(&mut self) {
        self.sent = None;
    }

    /// Forgets the state, because the key was reset, but not what Memcached has yet to be told, which is charged to
    /// `cell`. What is to be given back was charged before the reset.
    pub(in crate::store::memcached) fn forget_confirmed(&mut self, cell: &mut Cell, (limit, now): (&Limit, Time)) {
        (self.version, self.value) = (Version::Unread, 0);
        self.unacknowledged.iter_mut().for_each(|sent| sent.taken = 0);
        for pending in self.pending.iter_mut().chain(self.sent.iter_mut().map(|sent| &mut sent.change)) {
            pending.given.clear();
            pending.forget_taken();
            limit.charge_whole(cell, now.max(pending.until), pending.charged, pending.since);
        }
        self.pending.take_if(|pending| pending.is_nothing());
    }
}
