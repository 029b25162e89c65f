//! What was sent of a state that is one value, and how it is found in what is read afterwards.

use super::VersionedState;
use super::change::StateChange;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::shared::{OperationGroup, Writing};
use crate::limit::{Cell, Limit};
use crate::store::shared::names::Digits;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    #[default]
    Unread,
    /// There is none.
    Missing,
    /// Its version, and the hash of its value. Values are taken for equal if their hashes are.
    Of(u64, u64),
}

pub(super) fn stand_in(value: &[u8]) -> u64 {
    Fingerprint::of(value).high()
}

pub(in crate::store::shared) struct StateWriting<'a> {
    pub(in crate::store::shared) key: &'a Digits,
    pub(in crate::store::shared) now: Time,
    /// The number of the last reset of the key.
    pub(in crate::store::shared) number: u32,
    pub(in crate::store::shared) is_shared: bool,
}

#[derive(Debug)]
pub(super) struct SentState {
    pub(super) change: StateChange,
    pub(super) writing: Writing,
    /// The whole value as it is written, or what is appended to the present value.
    pub(super) bytes: Vec<u8>,
    pub(super) is_appended: bool,
}

impl SentState {
    /// Whether `value` results from this write to the value before, so that nobody else has written.
    pub(super) fn explains(&self, value: &[u8], before: Version) -> bool {
        match before {
            _ if !self.is_appended => value == self.bytes,
            Version::Of(_, before) => value.strip_suffix(&*self.bytes).is_some_and(|rest| stand_in(rest) == before),
            Version::Unread | Version::Missing => false,
        }
    }

    /// How many requests of each attempt were admitted according to these groups; empty if the groups are part of the state
    /// by now. `None` if the write has not arrived.
    pub(super) fn found<'a>(&self, groups: &'a [OperationGroup]) -> Option<&'a [u64]> {
        let Writing { writer, sequence } = self.writing;
        let mut own = groups.iter().filter(|group| group.writing.writer == writer);
        let is_later = |group: &OperationGroup| group.writing.sequence.wrapping_sub(sequence) < 1 << 31;
        match own.clone().find(|group| group.writing.sequence == sequence) {
            Some(group) => Some(&group.admitted),
            None => own.any(is_later).then_some(&[]),
        }
    }
}

/// Resets of the key.
impl VersionedState {
    pub(in crate::store::shared) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The value of a reset is being sent; it includes all pending changes.
    pub(in crate::store::shared) fn send_reset(&mut self, writing: Writing, bytes: Vec<u8>) {
        self.sent = self.pending.take().map(|change| SentState { change, writing, bytes, is_appended: false });
    }

    pub(in crate::store::shared) fn acknowledge(&mut self) {
        self.sent = None;
    }

    /// The key was reset: forgets the state, but charges to `cell` what the server has yet to be told. What was to be given
    /// back was charged before the reset.
    pub(in crate::store::shared) fn forget_confirmed(&mut self, cell: &mut Cell, limit: &Limit, now: Time) {
        (self.version, self.least) = (Version::Unread, None);
        let sent = self.sent.iter_mut().chain(&mut self.unacknowledged).map(|sent| &mut sent.change);
        for pending in self.pending.iter_mut().chain(sent) {
            pending.forget_given();
            pending.charge_to(limit, cell, now);
        }
        self.pending.take_if(|pending| pending.is_nothing());
    }
}
