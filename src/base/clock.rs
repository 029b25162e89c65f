//! The clocks: the only place that reads them. Limits go by the wall clock, on which gateways agree; what is measured goes by the
//! monotonic clock, which nobody sets.
//!
//! Everything that decides takes a [`Time`] or a [`Monotonic`] as an argument, so tests choose their own.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Microseconds. Threads that read the wall clock at about the same time may use their readings in another order. If a
/// moment is earlier than the one before it by more than this, the clock was set back in between.
pub const JITTER: u64 = 1_000_000;

/// Microseconds by which a moment may differ from the latest one of a [`Timeline`] without another look at the clock. It is
/// less than [`JITTER`], so no moment of a timeline looks as if the clock had been set back.
pub(crate) const UNCHECKED: u64 = 10_000;

/// Microseconds by which the latest moment of a timeline may be out of date, so that threads seldom write it.
const RESOLUTION: u64 = 1_000;

/// A moment: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The largest one.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Whole seconds since the Unix epoch, rounded up.
    pub const fn seconds_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The moment as a date and a time of day; `None` beyond the year 9999.
    pub fn timestamp(self) -> Option<Timestamp> {
        i64::try_from(self.0).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok())
    }

    /// Microseconds from `earlier` until this moment, 0 if it is not earlier.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whether the clock was set back after it had said `earlier` and before it said this.
    pub const fn is_set_back_from(self, earlier: Self) -> bool {
        earlier.0 > self.0.saturating_add(JITTER)
    }

    /// The moment `span` later, at most the largest `Time`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        self.after_micros(micros(span))
    }

    /// The moment so many microseconds later, at most the largest `Time`.
    #[must_use]
    pub const fn after_micros(self, span: u64) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// A moment of the monotonic clock: microseconds since a day before the process has first read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(u64);

impl Monotonic {
    /// The moment `micros` microseconds after the beginning.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the beginning.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the beginning.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Microseconds from `earlier` until this moment, 0 if it is not earlier.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `span` later, at most the largest one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

/// The moments as of which things are decided one after the other.
///
/// Whoever asks for a decision says when, but may have read the clock long before: while a body or another server was waited
/// for, others were decided about. Such an old moment must not look as if the clock had been set back. So a moment that
/// is far from the latest one is not believed, and the clock is read again. The clock was set back if even that
/// reading, which is made afterwards, lies before the latest moment.
#[derive(Debug)]
pub struct Timeline {
    /// The latest moment, in microseconds since 1970.
    latest: AtomicU64,
    clock: fn() -> Time,
}

impl Timeline {
    /// A timeline by this clock on which nothing was decided yet.
    pub const fn new(clock: fn() -> Time) -> Self {
        Self { latest: AtomicU64::new(0), clock }
    }

    /// The moment as of which something is decided if somebody who asks for that has read the clock at `read`. It is earlier
    /// than one before it by more than [`JITTER`] only where the clock was set back.
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
            // It is set only once, if several threads see that.
            _ = self.latest.compare_exchange(latest, now.0, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.latest.fetch_max(now.0, Ordering::Relaxed);
        }
        now
    }
}

/// A duration in whole microseconds, at most `u64::MAX`.
pub fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000).saturating_add(span.subsec_micros().into())
}

/// The time now. A clock set before 1970 reads as 1970.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the wall clock")]
pub fn now() -> Time {
    Time(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// The moment now, whatever becomes of the wall clock.
pub fn monotonic() -> Monotonic {
    /// The first reading is a day after the beginning, so that what has never happened was long ago.
    const DAY: u64 = 86_400_000_000;
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    Monotonic(DAY + micros(BEGINNING.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(0) };
    }

    /// What the timeline makes of a reading when the clock says `now`.
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
