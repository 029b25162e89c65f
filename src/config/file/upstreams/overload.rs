//! `max_in_flight`, `max_waiting` and `max_wait`: how many requests a server gets at the same time.

use std::time::Duration;

use crate::config::read::{Section, set};
use crate::config::{Overload, values};

const MOST: u64 = 1 << 20;

/// Reads the keys.
pub(super) fn read(section: &Section<'_>) -> Overload {
    let number = |key| {
        let read = section.field(key).and_then(|field| field.integer(0..=MOST));
        read.and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    };
    let max_in_flight = Some(number("max_in_flight")).filter(|most| *most > 0);
    let max_waiting = number("max_waiting");
    let mut max_wait = Duration::from_secs(1);
    set(&mut max_wait, values::wait(section, "max_wait", values::WAIT));
    if max_in_flight.is_none() {
        section.refuse(&["max_waiting", "max_wait"], "has no effect without `max_in_flight`", "add `max_in_flight`");
    } else if max_waiting == 0 {
        section.refuse(&["max_wait"], "has no effect without `max_waiting`", "add `max_waiting`");
    }
    Overload { max_in_flight, max_waiting, max_wait }
}
