//! `max_in_flight`, `adaptive`, `max_waiting` and `max_wait`: how many requests a server gets at the same time.

use crate::config::read::Section;
use crate::config::settings::{adaptive, upstream};
use crate::config::{AdaptiveBounds, Overload};

/// Reads the keys.
pub(super) fn read(name: &str, section: &Section<'_>) -> Overload {
    let max_in_flight = Some(section.read(&upstream::max_in_flight)).filter(|most| *most > 0);
    let title = format!("[upstreams.{name}.adaptive]");
    let help = format!("write adaptive = true, or {title} with `min` and `max` below");
    let adaptive = section.read_as(&upstream::adaptive, |field| {
        Some(field.section_unless_false(&title, &adaptive::TABLE, &help)?.map(adaptive_bounds))
    });
    let (max_waiting, max_wait) = (section.read(&upstream::max_waiting), section.read(&upstream::max_wait));
    if adaptive.is_some() && max_in_flight.is_some() {
        let help = format!("keep one of them; {title} has a `max`");
        section.refuse(&[upstream::max_in_flight.name], "has no effect with `adaptive`", &help);
    }
    if max_in_flight.is_none() && adaptive.is_none() {
        let help = "add `max_in_flight` or `adaptive`";
        let waiting = [upstream::max_waiting.name, upstream::max_wait.name];
        section.refuse(&waiting, "has no effect without `max_in_flight` or `adaptive`", help);
    } else if max_waiting == 0 {
        section.refuse(&[upstream::max_wait.name], "has no effect without `max_waiting`", "add `max_waiting`");
    }
    Overload { max_in_flight, adaptive, max_waiting, max_wait }
}

/// Reads the section `adaptive`.
fn adaptive_bounds(section: Section<'_>) -> AdaptiveBounds {
    let (min, max) = (section.given(&adaptive::min), section.given(&adaptive::max));
    // A bound of its own replaces the default of the other one.
    let bounds = AdaptiveBounds {
        min: min.unwrap_or_else(|| section.read(&adaptive::min).min(max.unwrap_or(usize::MAX))),
        max: max.unwrap_or_else(|| section.read(&adaptive::max).max(min.unwrap_or(0))),
    };
    if bounds.max < bounds.min {
        section.refuse(&[adaptive::max.name], "is smaller than `min`", "make it at least as large");
    }
    section.close();
    bounds
}
