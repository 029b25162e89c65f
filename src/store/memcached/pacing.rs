//! When exchanges begin, and when a server that is away is connected to again. It is pure, so that the driver and
//! gateways in virtual time keep to the same rules.

use std::time::Duration;

use tokio::time::Instant;

use super::batch::Due;
use super::cached_cell::MOMENT;
use crate::back_off::BackOff;

/// The pauses from the second failure in a row to connect on: after the first there is none. A connection that lasted as long as
/// the longest of them was no failure.
const PAUSES: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// When pending charges are sent, whether a request waits for an exchange or not.
#[derive(Debug, Default)]
pub(super) struct Departure {
    at: Option<Instant>,
}

impl Departure {
    /// Whether an exchange begins now, if it is `due` so.
    pub(super) fn is_now(&mut self, due: Due, now: impl FnOnce() -> Instant) -> bool {
        let is_now = match (due, self.at) {
            (Due::Now, _) => true,
            (Due::Soon, Some(at)) => at <= now(),
            (Due::Soon, None) => {
                self.at = Some(now() + MOMENT);
                return false;
            }
            (Due::Never, _) => false,
        };
        if is_now || due == Due::Never {
            self.at = None;
        }
        is_now
    }

    /// When the next exchange begins at the latest, if that is known.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }
}

/// How long a server is left alone after a connection that has lasted for so long, if there was one (`lasted`), and had good
/// answers or not (`was_good`). So many have failed in a row (`failures`).
pub(super) fn pause(failures: &mut u32, lasted: Option<Duration>, was_good: bool) -> Duration {
    if was_good || lasted.is_some_and(|lasted| lasted >= PAUSES.longest) {
        // Most likely the server has been restarted.
        *failures = 0;
    }
    let pause = PAUSES.pause(*failures);
    *failures = failures.saturating_add(1);
    pause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_leaves_after_a_moment_and_what_is_wanted_at_once() {
        let begun = Instant::now();
        let mut departure = Departure::default();
        assert!(departure.is_now(Due::Now, || begun));
        assert!(!departure.is_now(Due::Soon, || begun));
        assert!(!departure.is_now(Due::Soon, || begun + MOMENT / 2));
        assert_eq!(departure.at(), Some(begun + MOMENT));
        assert!(departure.is_now(Due::Soon, || begun + MOMENT));
        assert_eq!(departure.at(), None);
        assert!(!departure.is_now(Due::Soon, || begun) && !departure.is_now(Due::Never, || begun));
        assert_eq!(departure.at(), None, "there is nothing to do any more");
    }

    #[test]
    fn pauses_double_until_a_connection_works() {
        let mut failures = 0;
        let pauses: Vec<u128> = (0..8).map(|_| pause(&mut failures, None, false).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pause(&mut failures, Some(Duration::ZERO), false), PAUSES.longest);
        assert_eq!(pause(&mut failures, Some(Duration::ZERO), true), Duration::ZERO);
        assert_eq!(pause(&mut failures, None, false), PAUSES.first);
        assert_eq!(pause(&mut failures, Some(PAUSES.longest), false), Duration::ZERO);
    }
}
