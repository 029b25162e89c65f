//! What holds for the counts of all strategies.

/// The largest count. It exceeds everything that admitted requests can lead to, and sums of it do not overflow; what a
/// store reads beyond it is cut to it.
pub(super) const MAX_COUNT: u64 = 1 << 40;

/// Adds `cost` to a count.
pub(super) fn add(count: &mut u64, cost: u64) {
    *count = count.saturating_add(cost).min(MAX_COUNT);
}
