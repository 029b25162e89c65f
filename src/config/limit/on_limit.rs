//! What happens to requests over a limit, and to those near it: `on_limit`, `ban` and `slow`. Only this file distinguishes the
//! values of `on_limit`.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::StatusCode;

use super::keys as limit;
use crate::base::share::WHOLE;
use crate::base::units;
use crate::config::kinds::{level, number, wait, words};
use crate::config::read::{Field, Section, tables};
use crate::config::values;
use crate::limit::{MAX_LOG, MAX_WINDOW, MIN_WINDOW};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    Reject,
    /// Passes; a header and a metric show that the limit would have refused the request.
    Shadow,
    /// Answered without any hint of the limit, and not forwarded.
    Silent,
    /// Held until the request fits.
    Delay {
        max_delay: Duration,
        /// The maximum number of held requests per key in this process, at least 1.
        max_delayed: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests over the limit are refused, and then charged to no limit.
    Refuses,
    /// Requests over the limit are only reported. Requests within it are charged as usual.
    Reports,
}

impl OnLimit {
    /// The delay has keys of its own, so it is zero here.
    pub(super) const WORDS: [(&str, Self); 4] = [
        ("reject", Self::Reject),
        ("shadow", Self::Shadow),
        ("silent", Self::Silent),
        ("delay", Self::Delay { max_delay: Duration::ZERO, max_delayed: 0 }),
    ];

    /// As the file spells it.
    pub fn word(self) -> &'static str {
        let kind = std::mem::discriminant(&self);
        Self::WORDS.iter().find(|(_, one)| std::mem::discriminant(one) == kind).map_or("", |(word, _)| word)
    }

    pub fn role(self) -> Role {
        match self {
            Self::Reject | Self::Silent | Self::Delay { .. } => Role::Refuses,
            Self::Shadow => Role::Reports,
        }
    }

    /// Whether clients learn of the limit: by headers, and by a refusal. Not if the limit only reports, or answers as if
    /// nothing were wrong.
    pub fn is_told(self) -> bool {
        match self {
            Self::Reject | Self::Delay { .. } => true,
            Self::Shadow | Self::Silent => false,
        }
    }

    /// The longest delay, and the maximum number of held requests per key; `None` if no requests are held.
    pub fn delay(self) -> Option<(Duration, usize)> {
        match self {
            Self::Delay { max_delay, max_delayed } => Some((max_delay, max_delayed)),
            Self::Reject | Self::Shadow | Self::Silent => None,
        }
    }

    /// The default status for requests over the limit, if it differs from that of other limits, and the statuses that the
    /// file may set.
    pub(super) fn statuses(self) -> (Option<StatusCode>, RangeInclusive<u64>) {
        match self {
            // Looks like an answer of an upstream.
            Self::Silent => (Some(StatusCode::OK), 200..=599),
            Self::Reject | Self::Shadow | Self::Delay { .. } => (None, 400..=599),
        }
    }

    /// What happens to a request over the limit, whose answers have this `status`.
    pub fn in_words(self, status: StatusCode) -> String {
        let answered = format!("answered {}", status.as_u16());
        match self {
            Self::Reject => answered,
            Self::Shadow => REPORTED.to_owned(),
            Self::Silent => format!("{answered} with no hint of the limit"),
            Self::Delay { max_delay, max_delayed } => {
                format!("held for up to {max_delay:?}, at most {max_delayed} per key at the same time, or {answered}")
            }
        }
    }

    pub fn blocked_in_words(self) -> &'static str {
        match self.role() {
            Role::Refuses => "answered 403",
            Role::Reports => REPORTED,
        }
    }
}

const REPORTED: &str = "forwarded and only reported";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    pub after: u64,
    pub within: Duration,
    pub first: Duration,
    pub longest: Duration,
    pub respond: BanResponse,
}

/// The end of a sentence: which keys are banned, and how their requests are answered.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [within, first, longest] = [self.within, self.first, self.longest].map(units::spelled_duration);
        let (after, answered) = (self.after, self.respond.in_words());
        write!(f, "keys with more than {after} refusals within {within} for {first}, then up to {longest}: {answered}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanResponse {
    /// 429, with the time at which the ban ends.
    Reject,
    /// 403.
    Forbid,
    /// Closes the connection without a response; resets the stream in HTTP/2. Through a trusted proxy: 403 without a body.
    Close,
}

impl BanResponse {
    /// The status of the response. [`BanResponse::Close`] has it too, although it may send none.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Reject => StatusCode::TOO_MANY_REQUESTS,
            Self::Forbid | Self::Close => StatusCode::FORBIDDEN,
        }
    }

    pub fn in_words(self) -> String {
        match self {
            Self::Reject | Self::Forbid => format!("answered {}", self.status().as_u16()),
            Self::Close => {
                "their connections are closed without a response, their HTTP/2 streams are reset, and through \
                            trusted proxies they are answered 403 without a body"
                    .to_owned()
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// The share of a rate from which requests are held, in millionths, below [`WHOLE`].
    pub from: u32,
    pub up_to: Duration,
    pub max_delayed: usize,
}

impl Slow {
    /// The hold of a request that finds this share of a rate used, in millionths: proportional to the excess over `from`.
    pub fn hold(&self, level: u32) -> Duration {
        let over = level.min(WHOLE).saturating_sub(self.from);
        self.up_to * over / WHOLE.saturating_sub(self.from).max(1)
    }

    pub fn in_words(&self) -> String {
        let Self { up_to, max_delayed, .. } = self;
        let percent = f64::from(self.from) / f64::from(WHOLE / 100);
        format!(
            "held from {percent} % of a rate on, for up to {up_to:?} at 100 %, at most {max_delayed} per key at the same time"
        )
    }
}

tables! {
    /// Bans a key for a while if the limit has refused it too often, whatever its rates have room for.
    ban "`ban`" {
        /// The limit bans a key that it refuses more often than this.
        after: u64 = number(1, MAX_LOG), 20;
        /// The time within which refusals of a key count together; each gateway counts its own.
        within: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1m";
        /// How long the first ban lasts. A ban that begins within `max_for` of the end of the last one lasts twice as long.
        r#for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "10m";
        /// The longest time of a ban. By default 1d, or `for` if that is longer.
        max_for: Duration = wait(MIN_WINDOW..=MAX_WINDOW), "1d";
        /// How the gateway answers requests of a banned key: `"reject"` with 429 and Retry-After,
        /// `"forbid"` with 403, `"close"` not at all: it closes the connection (HTTP/2: resets the stream; a peer in
        /// `trusted_proxies`, which speaks for other clients too, gets 403 without a body).
        respond: BanResponse = words(&[
            ("reject", BanResponse::Reject), ("forbid", BanResponse::Forbid), ("close", BanResponse::Close),
        ]), "reject";
    }

    /// How long the gateway holds requests that the limit admits: not at all at `from`, and longer in proportion up to 100
    /// %.
    slow "`slow`" {
        /// Holds requests from this share of a rate on: 0 to below 1. For a token bucket, the share of the burst.
        from: u32 = level().required() => 0.8;
        /// How long requests are held at 100 % of a rate.
        up_to: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(300)).required() => "2s";
    }
}

/// Reads `on_limit` and `status`.
pub(super) fn reaction(section: &Section<'_>) -> (OnLimit, StatusCode) {
    let on_limit =
        match section.field(&limit::on_limit).map_or(Some(OnLimit::Reject), |_| section.given(&limit::on_limit)) {
            Some(on_limit) if on_limit.delay().is_none() => {
                section.misplaced(&[limit::max_delay.name], "`on_limit = \"delay\"`", "remove it, or use that");
                if section.field(&limit::slow).is_none() {
                    let owner = "`on_limit = \"delay\"` and `slow`";
                    section.misplaced(&[limit::max_delayed.name], owner, "remove it, or use one of them");
                }
                on_limit
            }
            // If the value is invalid, nobody knows which other keys belong to it.
            Some(_) | None => OnLimit::Delay {
                max_delay: section.read(&limit::max_delay),
                max_delayed: section.read(&limit::max_delayed),
            },
        };
    let (own, allowed) = on_limit.statuses();
    let status = |field: &Field<'_>| values::status(field, allowed.clone());
    let status = match own {
        Some(own) => section.field(&limit::status).and_then(|field| status(&field)).unwrap_or(own),
        None => section.read_as(&limit::status, status),
    };
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(
            &[
                limit::status.name,
                limit::body.name,
                limit::content_type.name,
                limit::overflow.name,
                limit::retry_jitter.name,
            ],
            "has no effect while the limit only reports",
            help,
        );
    } else if !on_limit.is_told() {
        let help = "remove it: a silent limit sends no headers, so that clients do not notice it";
        section.warn(
            &[limit::headers.name, limit::retry_jitter.name],
            "has no effect with `on_limit = \"silent\"`",
            help,
        );
    }
    (on_limit, status)
}

pub(super) fn ban(limit: &Section<'_>, on_limit: OnLimit) -> Option<Ban> {
    let section = limit.table(&limit::ban)?;
    let (after, within, first) = (section.read(&ban::after), section.read(&ban::within), section.read(&ban::r#for));
    let longest = section.given(&ban::max_for).unwrap_or_else(|| section.read(&ban::max_for).max(first));
    if longest < first {
        let help = "make it at least as long: the first ban lasts `for`";
        section.refuse(&[ban::max_for.name], "is shorter than `for`", help);
    }
    let respond = section.read(&ban::respond);
    if on_limit.role() == Role::Reports {
        let help =
            "a key is banned for refusals, and this limit refuses nothing; remove it, or use on_limit = \"reject\"";
        limit.warn(&[limit::ban.name], "has no effect while the limit only reports", help);
        return None;
    }
    Some(Ban { after, within, first, longest, respond })
}

pub(super) fn slow(section: &Section<'_>, on_limit: OnLimit, has_rates: bool) -> Option<Slow> {
    let table = section.table(&limit::slow)?;
    if on_limit.role() == Role::Reports {
        let help = "it takes effect only if the limit refuses requests, with on_limit = \"reject\"";
        section.warn(&[limit::slow.name], "has no effect while the limit only reports", help);
    } else if !has_rates {
        section.warn(&[limit::slow.name], "has no effect without `rates`", "add rates, or remove it");
    }
    let (from, up_to) = (table.needed_value(&slow::from), table.needed_value(&slow::up_to));
    Some(Slow { from: from?, up_to: up_to?, max_delayed: section.read(&limit::max_delayed) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_action_has_its_answers() {
        let (refuses, reports) = (Role::Refuses, Role::Reports);
        let forwarded = "forwarded and only reported";
        let ok = Some(StatusCode::OK);
        let held = "held for up to 0ns, at most 0 per key at the same time, or answered 200";
        let expected = [
            ("reject", refuses, true, None, None, "answered 200", "answered 403"),
            ("shadow", reports, false, None, None, forwarded, forwarded),
            ("silent", refuses, false, None, ok, "answered 200 with no hint of the limit", "answered 403"),
            ("delay", refuses, true, Some((Duration::ZERO, 0)), None, held, "answered 403"),
        ];
        for ((_, on_limit), (word, role, is_told, delay, status, over, blocked)) in
            OnLimit::WORDS.into_iter().zip(expected)
        {
            assert_eq!((on_limit.word(), on_limit.role(), on_limit.is_told()), (word, role, is_told));
            assert_eq!((on_limit.delay(), on_limit.statuses().0), (delay, status), "{word}");
            let words = on_limit.in_words(StatusCode::OK);
            assert_eq!((&*words, on_limit.blocked_in_words()), (over, blocked), "{word}");
        }
    }

    fn slow(from: u32, up_to: Duration) -> Slow {
        Slow { from, up_to, max_delayed: 100 }
    }

    #[test]
    fn a_request_is_held_in_proportion() {
        let slow = slow(800_000, Duration::from_secs(2));
        for (level, millis) in [(0, 0), (800_000, 0), (850_000, 500), (900_000, 1000), (990_000, 1900), (WHOLE, 2000)] {
            assert_eq!(slow.hold(level), Duration::from_millis(millis), "{level}");
        }
        assert_eq!(
            slow.in_words(),
            "held from 80 % of a rate on, for up to 2s at 100 %, at most 100 per key at the same time"
        );
    }

    proptest! {
        #[test]
        fn nobody_is_held_longer_than_that(from in 0..WHOLE, levels in prop::array::uniform2(0..=2 * WHOLE), seconds in 0..=300_u64) {
            let slow = slow(from, Duration::from_secs(seconds));
            let [low, high] = [levels[0].min(levels[1]), levels[0].max(levels[1])];
            prop_assert!(slow.hold(low) <= slow.hold(high) && slow.hold(high) <= slow.up_to);
            prop_assert_eq!(slow.hold(from), Duration::ZERO);
            prop_assert_eq!(slow.hold(WHOLE), slow.up_to);
        }
    }
}
