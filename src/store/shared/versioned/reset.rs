//! What a reset of the key means for the state that is one value.

use super::VersionedState;
use super::sent::{Sent, Version};
use crate::base::clock::Time;
use crate::limit::{Cell, Limit};

impl VersionedState {
    /// By how many microseconds the state is ahead of the clock here.
    pub(in crate::store::shared) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The value of a reset is being written, which stands for what is pending, too.
    pub(in crate::store::shared) fn send_reset(&mut self, writing: (u32, u32), bytes: Vec<u8>) {
        self.sent = self.pending.take().map(|change| Sent { change, writing, bytes, is_appended: false });
    }

    /// What was sent is done.
    pub(in crate::store::shared) fn acknowledge(&mut self) {
        self.sent = None;
    }

    /// Forgets the state, because the key was reset, but not what the server has yet to be told, which is charged to
    /// `cell`. What is to be given back was charged before the reset.
    pub(in crate::store::shared) fn forget_confirmed(&mut self, cell: &mut Cell, (limit, now): (&Limit, Time)) {
        (self.version, self.least) = (Version::Unread, None);
        let sent = self.sent.iter_mut().chain(&mut self.unacknowledged).map(|sent| &mut sent.change);
        for pending in self.pending.iter_mut().chain(sent) {
            pending.forget_given();
            pending.charge_to(limit, cell, now);
        }
        self.pending.take_if(|pending| pending.is_nothing());
    }
}
