//! Waits for a condition, or for a moment of the Unix clock.

use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Panics if the condition does not become true within `bound`.
#[track_caller]
pub(crate) fn until(what: &str, bound: Duration, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// The time since 1970. The buckets of the gateway are aligned to it.
#[allow(clippy::disallowed_methods)] // The tests are outside: they have no clock to be given.
pub(crate) fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Waits until the current bucket of `window` has at least `left` to go.
pub(crate) fn align(window: Duration, left: Duration) {
    let elapsed = Duration::from_millis((unix().as_millis() % window.as_millis()).try_into().unwrap());
    let rest = window.checked_sub(elapsed).unwrap();
    if rest < left {
        sleep(rest + Duration::from_millis(5));
    }
}

/// Waits, once in a test, until the current hour has a minute to go, so that rates by the hour and by the day do not begin a new
/// bucket in the middle of the test.
pub(crate) fn align_hour() {
    static ALIGNED: Once = Once::new();
    ALIGNED.call_once(|| align(Duration::from_hours(1), Duration::from_mins(1)));
}
