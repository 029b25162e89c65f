//! What the limits of a decision say, before anything is charged.

use smallvec::SmallVec;

use crate::base::clock::Time;

/// What one limit of a decision says.
pub(super) struct Admit {
    /// The moment as of which it is decided.
    pub(super) now: Time,
    pub(super) admitted: bool,
    /// Whether the charge is provisional: the server has yet to confirm it.
    pub(super) is_provisional: bool,
    /// Whether it is taken from the lease of the key, so that it is charged already.
    pub(super) is_leased: bool,
}

/// What each limit of a decision says.
pub(super) type Admits = SmallVec<[Admit; 2]>;
