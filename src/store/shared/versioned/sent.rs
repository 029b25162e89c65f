//! What the server was told of a state that is one value, and how it is found in what is read afterwards.

use super::VersionedState;
use super::change::StateChange;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::shared::{OperationGroup, Writing};
use crate::limit::{Cell, Limit};
use crate::store::shared::names::Digits;

/// What is known of the value on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    /// Nothing.
    #[default]
    Unread,
    /// That there is none.
    Missing,
    /// Its version, and what stands for it: two values are the same if and only if that is.
    Of(u64, u64),
}

pub(super) fn stand_in(value: &[u8]) -> u64 {
    Fingerprint::of(value).high()
}

/// How a state is written.
pub(in crate::store::shared) struct StateWriting<'a> {
    pub(in crate::store::shared) key: &'a Digits,
    pub(in crate::store::shared) now: Time,
    /// The number of the last reset of the key.
    pub(in crate::store::shared) number: u32,
    /// Whether other gateways write the key as well.
    pub(in crate::store::shared) is_shared: bool,
}

/// What the server is being told.
#[derive(Debug)]
pub(super) struct SentState {
    pub(super) change: StateChange,
    pub(super) writing: Writing,
    /// The whole value as it is written, or what is appended to a value that is there.
    pub(super) bytes: Vec<u8>,
    pub(super) is_appended: bool,
}

impl SentState {
    /// Whether the value is what was expected after this was written to what was there before: nobody else has written.
    pub(super) fn explains(&self, value: &[u8], before: Version) -> bool {
        match before {
            _ if !self.is_appended => value == self.bytes,
            Version::Of(_, before) => value.strip_suffix(&*self.bytes).is_some_and(|rest| stand_in(rest) == before),
            Version::Unread | Version::Missing => false,
        }
    }

    /// How many requests of each of its attempts were admitted, as these groups say: nothing is said if they are part of the
    /// state by now. `None` if it has not arrived.
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

/// A reset of the key.
impl VersionedState {
    /// By how many microseconds the state is ahead of the clock here.
    pub(in crate::store::shared) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The value of a reset is being written, which stands for what is pending, too.
    pub(in crate::store::shared) fn send_reset(&mut self, writing: Writing, bytes: Vec<u8>) {
        self.sent = self.pending.take().map(|change| SentState { change, writing, bytes, is_appended: false });
    }

    /// What was sent is done.
    pub(in crate::store::shared) fn acknowledge(&mut self) {
        self.sent = None;
    }

    /// Forgets the state, because the key was reset, but not what the server has yet to be told, which is charged to
    /// `cell`. What is to be given back was charged before the reset.
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
