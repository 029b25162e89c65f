//! When exchanges begin, and when a server that is away is connected to again. It is pure, so that the driver and
//! gateways in virtual time keep to the same rules.

use std::time::Duration;

use tokio::time::Instant;

use super::batch::Due;
use super::cached_cell::MOMENT;

/// The pause after the second failure in a row to connect; it doubles with every further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that lasted for this long was no failure.
const LASTING: Duration = Duration::from_secs(1);

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

/// How long a server is left alone after a connection has ended.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    pause: Duration,
}

impl BackOff {
    /// The pause after a connection that has lasted for so long, if there was one (`lasted`), and had good answers or not
    /// (`was_good`).
    pub(super) fn pause(&mut self, lasted: Option<Duration>, was_good: bool) -> Duration {
        if was_good || lasted.is_some_and(|lasted| lasted >= LASTING) {
            // Most likely the server has been restarted.
            self.pause = Duration::ZERO;
        }
        let pause = self.pause;
        self.pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        pause
    }
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
        let mut back_off = BackOff::default();
        let pauses: Vec<u128> = (0..8).map(|_| back_off.pause(None, false).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(back_off.pause(Some(Duration::ZERO), false), LONGEST_PAUSE);
        assert_eq!(back_off.pause(Some(Duration::ZERO), true), Duration::ZERO);
        assert_eq!(back_off.pause(None, false), FIRST_PAUSE);
        assert_eq!(back_off.pause(Some(LASTING), false), Duration::ZERO);
    }
}
