//! The clocks: the only place that reads them. Limits go by the wall clock, on which gateways agree; what is measured goes by the
//! monotonic clock, which nobody sets.
//!
//! Everything that decides takes a [`Time`] or a [`Monotonic`] as an argument, so tests choose their own.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// A moment: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
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

    /// The moment `span` later, at most the largest `Time`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
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

/// A duration in whole microseconds, at most `u64::MAX`.
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The time now. A clock set before 1970 reads as 1970.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the wall clock")]
pub fn now() -> Time {
    Time(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// The moment now, whatever becomes of the wall clock.
pub fn monotonic() -> Monotonic {
    /// The first reading is a day after the beginning, so that what has never happened was long ago.
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    Monotonic(micros(BEGINNING.elapsed() + Duration::from_secs(86_400)))
}
