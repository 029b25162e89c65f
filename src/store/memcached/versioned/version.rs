//! Which value of a state was read last.

use crate::fingerprint::Fingerprint;

/// What was read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    /// Nothing.
    #[default]
    Unread,
    /// That there is none.
    Missing,
    /// Nothing since a state was written.
    Written,
    /// A state, and this stands for it.
    Of(u64),
}

/// Stands for a value: two values are the same if and only if these are.
pub(super) fn stand_in(value: &[u8]) -> u64 {
    Fingerprint::of(value).high()
}
