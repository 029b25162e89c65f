//! The highest share of something that was used in the last seconds.
//!
//! A decision says how much of a quota is left, so it costs one division and some comparisons to see how full keys are.
//! To ask the store for its fullest key would mean to visit all cells, and Memcached cannot be asked at all. Which key
//! it was is not kept, because metrics name no keys.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::clock::Time;
use crate::base::share::{WHOLE, share};

/// The length of a window, as a power of two of microseconds: 16.8 s. So whoever asks every 15 seconds misses nothing.
const WINDOW_BITS: u32 = 24;
/// The bits of a slot that hold the share, in millionths. The bits above have the number of the window.
const SHARE_BITS: u32 = 20;

/// The highest share of the current window and of the one before, so of the last 17 to 34 seconds. Only one thread adds to
/// it, as to a [`super::Counter`]; any thread may read it.
#[derive(Debug, Default)]
pub struct Peak {
    /// The windows with even and with odd numbers.
    slots: [AtomicU64; 2],
}

impl Peak {
    /// Notes that of `capacity` so much was `remaining` at `now`. The rest was used.
    pub fn observe(&self, remaining: u64, capacity: u64, now: Time) {
        let share = u64::from(share(capacity.saturating_sub(remaining), capacity));
        let window = window(now);
        let slot = self.slot(window);
        let noted = slot.load(Ordering::Relaxed);
        // A window of the future is from before the clock was set back.
        if noted >> SHARE_BITS != window || share > noted & MASK {
            slot.store(window << SHARE_BITS | share, Ordering::Relaxed);
        }
    }

    /// The highest share, from 0 to 1; 0 if nothing was used.
    #[expect(clippy::cast_precision_loss, reason = "a share has seven digits")]
    pub fn highest(&self, now: Time) -> f64 {
        let current = window(now);
        let share = |window: u64| {
            let noted = self.slot(window).load(Ordering::Relaxed);
            if noted >> SHARE_BITS == window { noted & MASK } else { 0 }
        };
        share(current).max(share(current.wrapping_sub(1))) as f64 / f64::from(WHOLE)
    }

    fn slot(&self, window: u64) -> &AtomicU64 {
        &self.slots[usize::from(window & 1 == 1)]
    }
}

const MASK: u64 = (1 << SHARE_BITS) - 1;

fn window(now: Time) -> u64 {
    now.micros() >> WINDOW_BITS
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The beginning of a window.
    const BEGIN: Time = Time::from_micros(107_374_182 << WINDOW_BITS);

    fn at(seconds: u64) -> Time {
        BEGIN.after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_highest_share_is_known_for_some_seconds() {
        let peak = Peak::default();
        let highest = |seconds| peak.highest(at(seconds)).to_string();
        assert_eq!(highest(0), "0");
        peak.observe(1, 4, at(1));
        peak.observe(3, 4, at(2));
        assert_eq!([2, 17, 33].map(highest), ["0.75"; 3]);
        peak.observe(1, 2, at(18));
        assert_eq!([18, 33, 34, 50].map(highest), ["0.75", "0.75", "0.5", "0.5"]);
        assert_eq!([51, 1000].map(highest), ["0"; 2]);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_freeze_it() {
        let peak = Peak::default();
        peak.observe(0, 4, at(3600));
        assert_eq!(peak.highest(at(0)).to_string(), "0");
        peak.observe(3, 4, at(0));
        peak.observe(3, 4, at(17));
        assert_eq!(peak.highest(at(17)).to_string(), "0.25");
    }
}
