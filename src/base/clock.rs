//! The only place that reads the clocks. Limits use the wall clock, on which gateways agree. Measurements use the monotonic
//! clock, which nobody sets.
//!
//! Everything that decides takes a [`Time`] or a [`Monotonic`] as an argument, so tests choose their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// In microseconds. Threads that read the wall clock at about the same time may use their readings in another order. A moment
/// that is earlier than the previous one by more than this shows that the clock was set back.
pub const JITTER: u64 = 1_000_000;

/// In microseconds: how far a moment may be from the latest one of a [`Timeline`] without another look at the clock. Less than
/// [`JITTER`], so no moment of a timeline looks as if the clock had been set back.
pub(crate) const UNCHECKED: u64 = 10_000;

/// In microseconds: how much the latest moment of a timeline may be out of date, so that threads seldom write it.
const RESOLUTION: u64 = 1_000;

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    pub const MAX: Self = Self(u64::MAX);

    /// Since the Unix epoch, rounded up.
    pub const fn seconds_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// `None` beyond the year 9999.
    pub fn timestamp(self) -> Option<Timestamp> {
        i64::try_from(self.0).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok())
    }

    /// Whether the clock was set back after `earlier` and before this moment.
    pub const fn is_set_back_from(self, earlier: Self) -> bool {
        earlier.0 > self.0.saturating_add(JITTER)
    }

    /// By RFC 3339, in whole seconds, rounded up.
    pub fn rfc3339(self) -> String {
        let moment = i64::try_from(self.seconds_up()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        moment.unwrap_or(Timestamp::MAX).to_string()
    }

    /// At most [`Self::MAX`].
    #[must_use]
    pub const fn after_micros(self, span: u64) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// The monotonic clock: microseconds since a day before the clock's own beginning, which usually is the start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(u64);

macro_rules! moments {
    ($($clock:ident),+) => { $(
        impl $clock {
            pub const fn from_micros(micros: u64) -> Self {
                Self(micros)
            }

            pub const fn micros(self) -> u64 {
                self.0
            }

            /// Rounded down.
            pub const fn seconds(self) -> u64 {
                self.0 / 1_000_000
            }

            /// 0 if `earlier` is not earlier.
            pub const fn micros_since(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }

            /// Saturates.
            #[must_use]
            pub fn after(self, span: Duration) -> Self {
                Self(self.0.saturating_add(micros(span)))
            }
        }
    )+ };
}

moments!(Time, Monotonic);

/// The moments of successive decisions.
///
/// The caller of a decision passes a moment, but may have read the clock long before: while it waited for a body or another
/// server, other decisions were made. Such an old moment must not look as if the clock had been set back. So if a moment is far
/// from the latest one, the timeline reads the clock again. The clock was set back if even this later reading lies before the
/// latest moment.
pub struct Timeline {
    /// In microseconds since 1970.
    latest: AtomicU64,
    clock: fn() -> Time,
}

impl Timeline {
    pub const fn new(clock: fn() -> Time) -> Self {
        Self { latest: AtomicU64::new(0), clock }
    }

    /// The moment of a decision for a caller that has read the clock at `read`. The moment is earlier than a previous one by more
    /// than [`JITTER`] only if the clock was set back.
    pub fn moment(&self, read: Time) -> Time {
        let latest = self.latest.load(Ordering::Relaxed);
        if read.0.abs_diff(latest) > UNCHECKED {
            return self.read_again(latest);
        }
        if read.0 > latest + RESOLUTION {
            self.latest.fetch_max(read.0, Ordering::Relaxed);
        }
        read
    }

    #[cold]
    fn read_again(&self, latest: u64) -> Time {
        let now = (self.clock)();
        if now.0.saturating_add(UNCHECKED) < latest {
            // If several threads see this, only one sets it.
            _ = self.latest.compare_exchange(latest, now.0, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.latest.fetch_max(now.0, Ordering::Relaxed);
        }
        now
    }
}

/// At most `u64::MAX`.
pub fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000).saturating_add(span.subsec_micros().into())
}

/// A clock set before 1970 reads as 1970.
pub fn now() -> Time {
    Time(read(ClockId::Realtime))
}

pub fn monotonic() -> Monotonic {
    /// Even the first moment of the clock is a day after 0, so that what never happened counts as long ago.
    const DAY: u64 = 86_400_000_000;
    Monotonic(DAY + read(ClockId::Monotonic))
}

/// In microseconds. The standard library's readings cost twice as many instructions, because it checks and normalizes them.
fn read(clock: ClockId) -> u64 {
    let read = clock_gettime(clock);
    u64::try_from(read.tv_sec).map_or(0, |seconds| seconds * 1_000_000 + read.tv_nsec.unsigned_abs() / 1_000)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(0) };
    }

    /// The timeline's moment for a reading when the clock says `now`.
    fn moment(timeline: &Timeline, read: u64, now: u64) -> u64 {
        CLOCK.set(now);
        timeline.moment(Time::from_micros(read)).micros()
    }

    #[test]
    fn an_old_moment_is_replaced_unless_the_clock_was_set_back() {
        let timeline = Timeline::new(|| Time::from_micros(CLOCK.get()));
        let begin = 1_800_000_000 * JITTER;
        assert_eq!(moment(&timeline, begin, begin), begin);
        assert_eq!(moment(&timeline, begin + 10, 0), begin + 10, "the clock need not be read");
        assert_eq!(moment(&timeline, begin + 3, 0), begin + 3, "another thread has read it a moment later");
        let later = begin + 20 * JITTER;
        assert_eq!(moment(&timeline, later, later + 5), later + 5);
        assert_eq!(moment(&timeline, begin, later + 9), later + 9, "a request was held for 20 seconds");
        assert_eq!(moment(&timeline, later, 0), later);
        let back = begin + 7 * JITTER;
        assert_eq!(moment(&timeline, back - 1, back), back, "the clock was set back");
        assert_eq!(moment(&timeline, back + 1, 0), back + 1);
        assert_eq!(moment(&timeline, later, back + 2), back + 2, "a request from before that");
        assert_eq!(moment(&timeline, back, 0), back);
    }
}
