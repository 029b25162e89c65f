//! What an upstream does about failures and overload: retries, maxima of requests in flight, health checks and ejection.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::{MOST_IN_FLIGHT, keys as upstream};
use crate::config::kinds::{LONGEST, WAIT, number, share, size, statuses, text, wait};
use crate::config::read::{Section, Wrong, tables};

/// Which requests are sent again to another server.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// At most, per request, 0 to 10.
    pub retries: u32,
    /// The largest share of requests that are sent again, in thousandths.
    pub budget: u32,
    pub statuses: Vec<RangeInclusive<u16>>,
    pub max_body: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// For each server; `None` means no limit.
    pub max_in_flight: Option<usize>,
    /// Bounds for a limit of each server that follows its latency, used instead of `max_in_flight`.
    pub adaptive: Option<AdaptiveBounds>,
    pub max_waiting: usize,
    pub max_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveBounds {
    pub min: usize,
    pub max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub path: String,
    pub interval: Duration,
    pub timeout: Duration,
    pub statuses: Vec<RangeInclusive<u16>>,
    pub healthy_after: u32,
    pub unhealthy_after: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    pub failures: u32,
    pub statuses: Vec<RangeInclusive<u16>>,
    pub first: Duration,
    pub longest: Duration,
}

tables! {
    /// Which requests the gateway sends again.
    retry {
        /// The largest share of requests that the gateway sends again.
        budget: u32 = share(), 0.2;
        /// The gateway sends a request again after these responses.
        status: Vec<RangeInclusive<u16>> = statuses(0), [] => ["502", "503"];
        /// Larger bodies are not kept, so not sent again.
        max_body: usize = size(0..=16 << 20), "64KiB";
    }

    /// The bounds of the adaptive maximum of requests in flight.
    adaptive {
        /// The lower bound; at most `max`.
        min: usize = number(1, MOST_IN_FLIGHT), 4;
        /// The upper bound; at least `min`.
        max: usize = number(1, MOST_IN_FLIGHT), 1000;
    }

    /// Checks of the servers.
    health {
        /// The path that each check requests.
        path: () = text().required() => "/healthz";
        /// The time between two checks.
        interval: Duration = wait(Duration::from_millis(100)..=LONGEST), "5s";
        /// The longest time of a check.
        timeout: Duration = wait(WAIT), "1s";
        /// The statuses of a healthy server's answer.
        status: Vec<RangeInclusive<u16>> = statuses(1), ["2xx"];
        /// After this many good checks in a row, a server gets requests again.
        healthy_after: u32 = number(1, 100), 2;
        /// After this many failed checks in a row, a server gets no requests.
        unhealthy_after: u32 = number(1, 100), 3;
    }

    /// When a failing server gets no requests for a time.
    eject {
        /// This many failures in a row eject a server: connections that fail or break, time-outs, and answers with one of
        /// `status`.
        failures: u32 = number(1, 1000), 5;
        /// Answers that count as failures of the server. Others are the application's own.
        status: Vec<RangeInclusive<u16>> = statuses(0), [] => ["502", "503", "504"];
        /// How long the first ejection lasts; this doubles each time.
        r#for: Duration = wait(WAIT), "10s";
        /// The longest time of an ejection; at least `for`.
        max_for: Duration = wait(WAIT), "5m";
    }
}

/// Reads `retries` and `[upstreams.NAME.retry]`.
pub(super) fn retry(section: &Section<'_>) -> Retry {
    let own = section.table_or_empty(&upstream::retry);
    Retry {
        retries: section.read(&upstream::retries),
        budget: own.read(&retry::budget),
        statuses: own.read(&retry::status),
        max_body: own.read(&retry::max_body),
    }
}

/// Reads `max_in_flight`, `adaptive`, `max_waiting` and `max_wait`.
pub(super) fn overload(name: &str, section: &Section<'_>) -> Overload {
    let max_in_flight = Some(section.read(&upstream::max_in_flight)).filter(|most| *most > 0);
    let adaptive = section.table_unless_false(&upstream::adaptive, "`min` and `max`").as_ref().map(adaptive_bounds);
    let (max_waiting, max_wait) = (section.read(&upstream::max_waiting), section.read(&upstream::max_wait));
    if adaptive.is_some() && max_in_flight.is_some() {
        let help = format!("keep one of them; [upstreams.{name}.adaptive] has a `max`");
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

fn adaptive_bounds(section: &Section<'_>) -> AdaptiveBounds {
    let (min, max) = (section.given(&adaptive::min), section.given(&adaptive::max));
    // If only one bound is written, it overrides the default of the other.
    let bounds = AdaptiveBounds {
        min: min.unwrap_or_else(|| section.read(&adaptive::min).min(max.unwrap_or(usize::MAX))),
        max: max.unwrap_or_else(|| section.read(&adaptive::max).max(min.unwrap_or(0))),
    };
    if bounds.max < bounds.min {
        section.refuse(&[adaptive::max.name], "is smaller than `min`", "make it at least as large");
    }
    bounds
}

pub(super) fn health_check(section: &Section<'_>) -> HealthCheck {
    let path = section.needed(&health::path);
    HealthCheck {
        path: path.and_then(|field| field.parse(check_path)).unwrap_or_default(),
        interval: section.read(&health::interval),
        timeout: section.read(&health::timeout),
        statuses: section.read(&health::status),
        healthy_after: section.read(&health::healthy_after),
        unhealthy_after: section.read(&health::unhealthy_after),
    }
}

/// The path of a health check, perhaps with a query.
fn check_path(text: &str) -> Result<String, Wrong> {
    let is_target = text.starts_with('/') && !text.contains('#') && PathAndQuery::try_from(text).is_ok();
    let wrong = || Wrong::not(text, "a path", "it begins with `/` and has no spaces, like \"/healthz\"");
    is_target.then(|| text.to_owned()).ok_or_else(wrong)
}

/// `None` if servers are never ejected.
pub(super) fn ejection(upstream: &Section<'_>) -> Option<Ejection> {
    let section = upstream.table_unless_false(&upstream::eject, "`failures` and the like")?;
    let first = section.read(&eject::r#for);
    let longest = section.given(&eject::max_for).unwrap_or_else(|| section.read(&eject::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: an ejection lasts `for` at first";
        section.refuse(&[eject::max_for.name], "is shorter than `for`", help);
    }
    Some(Ejection { failures: section.read(&eject::failures), statuses: section.read(&eject::status), first, longest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths() {
        for text in ["/", "/healthz", "/a?b=c", "/a%20b"] {
            assert_eq!(check_path(text).as_deref(), Ok(text));
        }
        for text in ["", "healthz", "http://a/b", "/a b", "/a#b", "/a\r\nb: c", "?a"] {
            assert!(check_path(text).is_err(), "{text}");
        }
    }
}
