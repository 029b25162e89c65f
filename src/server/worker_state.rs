//! What all connections of one worker share: the time, the `Date` of responses, and whether one of them has to make room for
//! another.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;
use tokio::time::Instant;

use super::connection_limits::ConnectionLimits;
use crate::base::clock::Time;

/// Milliseconds since the worker began, usually as of the last check of its connections.
pub(super) type Coarse = u64;

#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) begun: Instant,
    now: Cell<Coarse>,
    /// Whether a connection may have become idle since the last call of [`WorkerState::take_has_idle`].
    has_idle: Cell<bool>,
    pub(super) date: DateHeader,
    pub(super) limits: Arc<ConnectionLimits>,
}

impl WorkerState {
    pub(super) fn new(limits: Arc<ConnectionLimits>) -> Self {
        let (now, has_idle, date) = Default::default();
        Self { begun: Instant::now(), now, has_idle, date, limits }
    }

    /// As of the last check.
    pub(super) fn now(&self) -> Coarse {
        self.now.get()
    }

    /// Reads the clock.
    pub(super) fn exact_now(&self) -> Coarse {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn begin_check(&self) -> Coarse {
        self.now.set(self.exact_now());
        self.now()
    }

    pub(super) fn add_idle(&self) {
        self.has_idle.set(true);
    }

    /// Whether there may be idle connections that were not there at the last call.
    pub(super) fn take_has_idle(&self) -> bool {
        self.has_idle.replace(false)
    }
}

#[derive(Debug, Default)]
pub(super) struct DateHeader {
    last: RefCell<Option<(u64, HeaderValue)>>,
}

impl DateHeader {
    pub(super) fn at(&self, now: Time) -> HeaderValue {
        let mut last = self.last.borrow_mut();
        match &*last {
            Some((second, date)) if *second == now.seconds() => date.clone(),
            _ => {
                let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now.seconds()));
                // A date is a valid value.
                let date = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
                last.insert((now.seconds(), date)).1.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_its_second() {
        let date = DateHeader::default();
        for (micros, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_000_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777_999_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
        ] {
            assert_eq!(date.at(Time::from_micros(micros)), expected);
        }
    }
}
