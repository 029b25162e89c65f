//! What came of an exchange, as far as it concerns one cell.

use crate::store::shared::protocol::Written;
use crate::store::shared::reset::ResetOutcome;

/// What came of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::shared) struct Filled {
    pub(in crate::store::shared) writes: Writes,
    /// How many counts that were known the server has lost.
    pub(in crate::store::shared) lost: u64,
    /// Whether something has to be written again before anything is admitted: another gateway has replaced the state
    /// first, or there was no count to add to.
    pub(in crate::store::shared) must_retry: bool,
    /// Whether what is known now is what a decision needs.
    pub(in crate::store::shared) is_current: bool,
    /// What is known of resets of the key.
    pub(in crate::store::shared) reset: ResetOutcome,
}

/// What came of the writes of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store::shared) enum Writes {
    /// All are done, or another gateway was faster.
    #[default]
    Done,
    /// Some could not be done.
    Failed,
    /// It is unknown whether some are done.
    Unacknowledged,
}

impl Filled {
    pub(super) fn note(&mut self, written: Written) {
        let writes = match written {
            Written::Failed => Writes::Failed,
            Written::Unknown => Writes::Unacknowledged,
            Written::Done | Written::Count(_) | Written::Missing | Written::Refused => Writes::Done,
        };
        self.writes = self.writes.max(writes);
        self.must_retry |= matches!(written, Written::Missing | Written::Refused);
    }
}
