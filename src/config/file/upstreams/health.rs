//! `[upstreams.NAME.health]` and `[upstreams.NAME.eject]`: which servers get requests.

use std::time::Duration;

use http::uri::PathAndQuery;

use crate::config::file::statuses;
use crate::config::read::{Section, Wrong, set};
use crate::config::report::quoted;
use crate::config::{Ejection, HealthCheck, values};

const STATUSES: &str = "[\"2xx\"]";

/// Reads the section `health`, if there is one.
pub(super) fn check(name: &str, section: &Section<'_>) -> Option<HealthCheck> {
    let own = section.field("health")?.section(format!("[upstreams.{name}.health]"))?;
    let path = own.required("path", "add the path of a request that shows the health of a server: path = \"/healthz\"");
    let mut check = HealthCheck {
        path: path.and_then(|field| field.parse(self::path)).unwrap_or_default(),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        statuses: vec![200..=299],
        healthy_after: 2,
        unhealthy_after: 3,
    };
    set(&mut check.interval, values::wait(&own, "interval", Duration::from_millis(100)..=*values::WAIT.end()));
    set(&mut check.timeout, values::wait(&own, "timeout", values::WAIT));
    set(&mut check.statuses, own.field("status").and_then(|field| statuses::read(&field, STATUSES)));
    let count = |key| {
        let read = own.field(key).and_then(|field| field.integer(1..=100));
        read.and_then(|count| u32::try_from(count).ok())
    };
    set(&mut check.healthy_after, count("healthy_after"));
    set(&mut check.unhealthy_after, count("unhealthy_after"));
    own.close();
    Some(check)
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

/// Reads the section `eject`, or uses its defaults.
pub(super) fn ejection(name: &str, section: &Section<'_>) -> Ejection {
    let mut ejection = Ejection { failures: 5, first: Duration::from_secs(10), longest: Duration::from_secs(300) };
    let Some(own) = section.field("eject").and_then(|field| field.section(format!("[upstreams.{name}.eject]"))) else {
        return ejection;
    };
    let failures = own.field("failures").and_then(|field| field.integer(1..=1000));
    set(&mut ejection.failures, failures.and_then(|failures| u32::try_from(failures).ok()));
    set(&mut ejection.first, values::wait(&own, "for", values::WAIT));
    let longest = values::wait(&own, "max_for", values::WAIT);
    let default = ejection.longest.max(ejection.first);
    ejection.longest = longest.unwrap_or(default);
    if ejection.longest < ejection.first {
        own.refuse(&["max_for"], "is shorter than `for`", "make it at least as long: an ejection lasts `for` at first");
    }
    own.close();
    ejection
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
