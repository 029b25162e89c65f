//! What the limits of a decision say, before anything is charged.

use smallvec::SmallVec;

use super::Coordinator;
use crate::base::clock::Time;
use crate::store::shared::message::Decision;

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

impl Coordinator {
    /// Notes how full the limits are before the request is charged. If it may be held, all that it is charged is reserved.
    pub(super) fn note_levels(&mut self, decision: &mut Decision, admits: &Admits) {
        let Decision { asks, places, .. } = decision;
        if asks.iter().all(|ask| ask.held_above.is_none()) {
            return;
        }
        let mut may_be_held = false;
        for ((ask, place), admit) in asks.iter_mut().zip(&*places).zip(admits).filter(|(_, admit)| admit.admitted) {
            ask.level = self.cells.at(*place).level(ask, admit.now);
            may_be_held |= ask.borrowed().may_be_held(ask.level);
        }
        if may_be_held {
            for (ask, place) in asks.iter_mut().zip(&*places).filter(|(ask, _)| ask.cost > 0) {
                ask.settles = true;
                self.cells.at(*place).counters.may_shrink();
            }
        }
    }
}
