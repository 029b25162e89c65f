//! Counts an event that may happen often at the same time, and logs at most one line a second.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::clock::Time;

#[derive(Debug, Default)]
pub struct RepeatedEvent {
    count: AtomicU64,
    last: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// `None` if there was no line.
    second: Option<u64>,
    count: u64,
}

impl RepeatedEvent {
    /// Counts one event. If a line must be logged now, returns the number of events since the last line.
    pub fn add(&self, now: Time) -> Option<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.due(now)
    }

    /// The number of events for a line now; `None` if there are none, or if this second has a line already.
    pub fn due(&self, now: Time) -> Option<u64> {
        let mut last = self.last.lock();
        let count = self.count();
        let more = count - last.count;
        if more == 0 || last.second == Some(now.seconds()) {
            return None;
        }
        *last = Line { second: Some(now.seconds()), count };
        Some(more)
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_all_events() {
        let event = RepeatedEvent::default();
        let at = |millis: u64| Time::from_micros(millis * 1000);
        assert_eq!(event.due(at(0)), None, "nothing happened");
        assert_eq!([0, 100, 999].map(|millis| event.add(at(millis))), [Some(1), None, None], "the first one at once");
        assert_eq!([999, 1000, 5000].map(|millis| event.due(at(millis))), [None, Some(2), None]);
        assert_eq!(event.add(at(500)), Some(1), "also when the clock was set back");
        assert_eq!(event.count(), 4);
    }
}
