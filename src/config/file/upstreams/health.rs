//! `[upstreams.NAME.health]` and `[upstreams.NAME.eject]`: which servers get requests.

use http::uri::PathAndQuery;

use crate::config::file::statuses;
use crate::config::read::{Section, Wrong};
use crate::config::report::quoted;
use crate::config::settings::{eject, health, upstream};
use crate::config::{Ejection, HealthCheck};

/// Reads the section `health`.
pub(super) fn check(section: Section<'_>) -> HealthCheck {
    let help = "add the path of a request that shows the health of a server: path = \"/healthz\"";
    let path = section.required(&health::path, help);
    let check = HealthCheck {
        path: path.and_then(|field| field.parse(self::path)).unwrap_or_default(),
        interval: section.read(&health::interval),
        timeout: section.read(&health::timeout),
        statuses: section.read_as(&health::status, |field| statuses::read(field, &health::status)),
        healthy_after: section.read(&health::healthy_after),
        unhealthy_after: section.read(&health::unhealthy_after),
    };
    section.close();
    check
}

/// The path and query of a check.
fn path(text: &str) -> Result<String, Wrong> {
    let is_target = text.starts_with('/') && !text.contains('#') && PathAndQuery::try_from(text).is_ok();
    if is_target {
        return Ok(text.to_owned());
    }
    let help = "it begins with `/` and has no spaces, like \"/healthz\"";
    Err(Wrong::new(format!("{} is not a path", quoted(text)), help))
}

/// Reads `eject` of the upstream with this name; `None` if its servers are never ejected.
pub(super) fn ejection(name: &str, section: &Section<'_>) -> Option<Ejection> {
    let title = format!("[upstreams.{name}.eject]");
    let help = format!("write eject = false, or {title} with `failures` and the like below");
    section.read_as(&upstream::eject, |field| {
        Some(field.section_unless_false(&title, &eject::TABLE, &help)?.map(ejection_rules))
    })
}

/// Reads the section `eject`.
fn ejection_rules(section: Section<'_>) -> Ejection {
    let (failures, first) = (section.read(&eject::failures), section.read(&eject::r#for));
    let longest = section.given(&eject::max_for).unwrap_or_else(|| section.read(&eject::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: an ejection lasts `for` at first";
        section.refuse(&[eject::max_for.name], "is shorter than `for`", help);
    }
    let statuses = section.read_as(&eject::status, |field| statuses::read(field, &eject::status));
    section.close();
    Ejection { failures, statuses, first, longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths() {
        for text in ["/", "/healthz", "/a?b=c", "/a%20b"] {
            assert_eq!(path(text).as_deref(), Ok(text));
        }
        for text in ["", "healthz", "http://a/b", "/a b", "/a#b", "/a\r\nb: c", "?a"] {
            assert!(path(text).is_err(), "{text}");
        }
    }
}
