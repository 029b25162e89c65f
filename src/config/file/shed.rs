//! `[server.shed]`, and the priorities of routes and tiers.

use http::StatusCode;

use crate::config::read::{Field, Section, set};
use crate::config::{Shed, values};
use crate::limit::overload::level;

/// Reads the section; `None` if it has an error.
pub(super) fn read(field: &Field<'_>) -> Option<Shed> {
    let section = field.section("[server.shed]")?;
    let cpu = section.field("cpu");
    let latency = section.field("latency").is_some();
    if cpu.is_none() && !latency {
        let help = "add the wanted share of the processors, like cpu = 0.9, or the wanted time until a response, like \
                    latency = \"500ms\"";
        section.source.report(section.span.clone(), "[server.shed] has neither `cpu` nor `latency`", help);
    }
    let cpu = cpu.and_then(|field| {
        let share = field.share()?;
        if share == 0 {
            field.report("`cpu = 0` would shed everything", "write a share above 0, like 0.9 for nine tenths");
        }
        Some(share)
    });
    let latency = values::wait(&section, "latency", values::WAIT);
    let mut status = StatusCode::SERVICE_UNAVAILABLE;
    set(&mut status, section.field("status").and_then(|field| values::status(&field, 400..=599)));
    section.close();
    Some(Shed { cpu, latency, status })
}

/// Reads the `priority` of a route or a tier, if it has one.
pub(super) fn priority(section: &Section<'_>) -> Option<u8> {
    let read = section.field("priority").and_then(|field| field.integer(0..=u64::from(level::HIGHEST)));
    read.and_then(|priority| u8::try_from(priority).ok())
}
