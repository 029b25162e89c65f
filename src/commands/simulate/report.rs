//! What a simulation has found, as all outputs show it.

use std::cmp::Reverse;
use std::time::Duration;

use super::input::SkippedLine;
use super::needs::Unknown;
use super::statistics::{KeyStatistics, LimitStatistics};
use super::suggestion::{SHARES, suggestion};
use super::timeline::Timeline;
use crate::base::clock::Time;
use crate::config::Limit;
use crate::limit::Rate;
use crate::request::decide::DecisionCounters;

/// How many of the keys with the most rejections are listed.
const WORST: usize = 10;

/// What a simulation has found.
pub struct Report {
    pub(super) requests: u64,
    pub(super) unreadable: u64,
    pub(super) late: u64,
    pub(super) skipped_lines: Vec<SkippedLine>,
    pub(super) from: Option<Time>,
    pub(super) to: Option<Time>,
    /// Requests that no route takes.
    pub(super) unrouted: u64,
    /// Requests that are refused before limits are asked.
    pub(super) refused: u64,
    /// Requests that at least one limit would have refused or blocked.
    pub(super) limited: u64,
    pub(super) limits: Vec<LimitReport>,
    /// What the numbers do not say.
    pub(super) notes: Vec<String>,
    /// Why logs could not be read to their ends.
    pub(super) broken: Vec<String>,
    /// Whether lines are JSON, so that fields can be named.
    pub(super) is_json: bool,
}

/// What one limit would have done.
pub(super) struct LimitReport {
    pub(super) name: String,
    /// Its own rates, as the configuration spells them.
    pub(super) rates: Vec<String>,
    /// Its key, as the configuration spells it.
    pub(super) key: String,
    /// What the log does not have of what the limit uses.
    pub(super) unknown: Unknown,
    pub(super) requests: u64,
    pub(super) rejected: u64,
    /// How many requests it would have held, and the longest; `None` if it holds none.
    pub(super) held: Option<(u64, Duration)>,
    /// Requests that its pool was charged for.
    pub(super) overflowed: u64,
    /// Requests of exempt keys.
    pub(super) exempt: u64,
    /// Requests of blocked keys.
    pub(super) blocked: u64,
    /// What bans have done, if the limit bans keys.
    pub(super) bans: Option<BanReport>,
    /// Requests without a key, which pass or are answered 400.
    pub(super) keyless: u64,
    pub(super) keys: u64,
    pub(super) keys_rejected: u64,
    /// Requests of keys that were not followed one by one.
    pub(super) unfollowed: u64,
    pub(super) worst: Vec<KeyReport>,
    pub(super) wrongly_admitted: u64,
    pub(super) wrongly_rejected: u64,
    pub(super) compared_until: Option<Time>,
    pub(super) suggested: Vec<Suggestion>,
    pub(super) timeline: Timeline,
}

/// What the bans of a limit would have done.
pub(super) struct BanReport {
    /// How many would have begun.
    pub(super) begun: u64,
    /// How many keys would have been banned.
    pub(super) keys: u64,
    /// How many requests they would have refused, besides those whose refusals began them.
    pub(super) refused: u64,
}

/// What a limit would have done to one key.
pub(super) struct KeyReport {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) rejected: u64,
}

/// Rates that would have touched a share of the keys.
pub(super) struct Suggestion {
    /// In parts of 10 000.
    pub(super) share: u64,
    pub(super) rates: Vec<Rate>,
}

impl Report {
    /// Lines that could not be used.
    pub(super) fn skipped(&self) -> u64 {
        self.unreadable + self.late
    }

    /// Why logs could not be read to their ends; then the report is about what was read before.
    pub fn broken(&self) -> &[String] {
        &self.broken
    }
}

impl LimitReport {
    /// What was found about `limit`. The counters of its decisions are there if a route uses it.
    pub(super) fn new(
        limit: &Limit,
        unknown: Unknown,
        statistics: &LimitStatistics,
        counters: Option<&DecisionCounters>,
    ) -> Self {
        let mut rejected: Vec<_> = statistics.keys().filter(|key| key.rejected > 0).collect();
        let keys_rejected = rejected.len() as u64;
        let order = |key: &&KeyStatistics| (Reverse(key.rejected), Reverse(key.requests), key.text.clone());
        if rejected.len() > WORST {
            rejected.select_nth_unstable_by_key(WORST, order);
            rejected.truncate(WORST);
        }
        rejected.sort_by_cached_key(order);
        let worst = |key: &KeyStatistics| KeyReport {
            key: key.text.to_string(),
            requests: key.requests,
            rejected: key.rejected,
        };
        let peaks = statistics.peaks();
        let suggested = SHARES
            .into_iter()
            .filter_map(|share| Some(Suggestion { share, rates: suggestion(&peaks, &limit.rates, share)? }));
        let count = |count: fn(&DecisionCounters) -> u64| counters.map_or(0, count);
        Self {
            name: limit.name.clone(),
            rates: limit.rates.iter().map(ToString::to_string).collect(),
            key: limit.key.to_string(),
            unknown,
            requests: statistics.requests,
            rejected: statistics.rejected,
            held: limit.slows().map(|slow| (statistics.held, slow.hold(statistics.fullest_held))),
            overflowed: statistics.overflowed,
            exempt: count(|counters| counters.exempt.get()),
            blocked: count(|counters| counters.blocked.get()) + statistics.reported_blocks,
            bans: limit.ban.as_ref().map(|_| BanReport {
                begun: statistics.bans,
                keys: statistics.keys().filter(|key| key.was_banned).count() as u64,
                refused: statistics.banned,
            }),
            keyless: count(|counters| counters.skipped.get() + counters.keyless.get()),
            keys: statistics.keys().count() as u64,
            keys_rejected,
            unfollowed: statistics.unfollowed,
            worst: rejected.into_iter().map(worst).collect(),
            wrongly_admitted: statistics.wrongly_admitted,
            wrongly_rejected: statistics.wrongly_rejected,
            compared_until: statistics.compared_until,
            suggested: suggested.collect(),
            timeline: statistics.timeline.clone(),
        }
    }
}

/// A moment in the form of RFC 3339.
pub(super) fn moment(time: Time) -> String {
    time.timestamp().map_or_else(|| format!("{} s after 1970", time.seconds()), |timestamp| timestamp.to_string())
}

/// A share of a whole in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        small if small < 0.01 => "under 0.01 %".to_owned(),
        _ => format!("{percent:.2} %"),
    }
}

/// A share in parts of 10 000 as people write it: `1 %`, `0.1 %`, `0.01 %`.
pub(super) fn share(parts: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 10 000")]
    let percent = parts as f64 / 100.0;
    format!("{percent} %")
}
