//! What holds for the states of all strategies: the largest count, and which steps back of the clock they follow.

use crate::base::clock::Time;

/// The largest count. It exceeds everything that admitted requests can lead to, and sums of it do not overflow; what a
/// store reads beyond it is cut to it.
pub(super) const MAX_COUNT: u64 = 1 << 40;

/// Microseconds. If the clock steps back by less than this, another thread has probably read it a moment later, so the
/// state waits until the clock has caught up. If it steps back by more, the clock was set, and the state moves back too.
pub(super) const JITTER: u64 = 1_000_000;

/// Adds `cost` to a count.
pub(super) fn add(count: &mut u64, cost: u64) {
    *count = count.saturating_add(cost).min(MAX_COUNT);
}

/// Whether a moment is so far ahead of the clock that the clock must have been set back.
pub(super) fn is_ahead(moment: u64, now: Time) -> bool {
    moment > now.micros().saturating_add(JITTER)
}
