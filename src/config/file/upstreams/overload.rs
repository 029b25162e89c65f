//! `max_in_flight`, `adaptive`, `max_waiting` and `max_wait`: how many requests a server gets at the same time.

use std::time::Duration;

use crate::config::read::{Field, Section, set};
use crate::config::{Overload, values};
use crate::limit::overload::gradient::Bounds;

const MOST: u64 = 1 << 20;

/// Reads the keys.
pub(super) fn read(name: &str, section: &Section<'_>) -> Overload {
    let number = |key| {
        let read = section.field(key).and_then(|field| field.integer(0..=MOST));
        read.and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    };
    let max_in_flight = Some(number("max_in_flight")).filter(|most| *most > 0);
    let adaptive = section.field("adaptive").and_then(|field| adaptive_bounds(name, &field));
    let max_waiting = number("max_waiting");
    let mut max_wait = Duration::from_secs(1);
    set(&mut max_wait, values::wait(section, "max_wait", values::WAIT));
    if adaptive.is_some() && max_in_flight.is_some() {
        let help = format!("keep one of them; [upstreams.{name}.adaptive] has a `max`");
        section.refuse(&["max_in_flight"], "has no effect with `adaptive`", &help);
    }
    if max_in_flight.is_none() && adaptive.is_none() {
        let help = "add `max_in_flight` or `adaptive`";
        section.refuse(&["max_waiting", "max_wait"], "has no effect without `max_in_flight` or `adaptive`", help);
    } else if max_waiting == 0 {
        section.refuse(&["max_wait"], "has no effect without `max_waiting`", "add `max_waiting`");
    }
    Overload { max_in_flight, adaptive, max_waiting, max_wait }
}

/// Reads `adaptive = true` or the section `adaptive`.
fn adaptive_bounds(name: &str, field: &Field<'_>) -> Option<Bounds> {
    let mut bounds = Bounds { min: 4, max: 1000 };
    if field.is_boolean() {
        return field.boolean()?.then_some(bounds);
    }
    let title = format!("[upstreams.{name}.adaptive]");
    if !field.is_table() {
        field.mistyped(
            "true, false or a table",
            format!("write adaptive = true, or {title} with `min` and `max` below"),
        );
        return None;
    }
    let section = field.section(title)?;
    let number = |key| {
        let read = section.field(key).and_then(|field| field.integer(1..=MOST));
        read.and_then(|number| usize::try_from(number).ok())
    };
    let (min, max) = (number("min"), number("max"));
    // A bound of its own replaces the default of the other one.
    bounds.min = min.unwrap_or(bounds.min.min(max.unwrap_or(bounds.min)));
    bounds.max = max.unwrap_or(bounds.max.max(bounds.min));
    if bounds.max < bounds.min {
        section.refuse(&["max"], "is smaller than `min`", "make it at least as large");
    }
    section.close();
    Some(bounds)
}
