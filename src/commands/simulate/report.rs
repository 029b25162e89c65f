//! The findings of a simulation, for all output formats, with rates that would have touched only a certain share of the keys: a
//! rate touches the keys whose peak is larger than its quota.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use super::input::Skipped;
use super::needs::Unknown;
use super::replay::Totals;
use super::statistics::{Counts, KeyStatistics, LimitStatistics, Peaks};
use crate::base::clock::Time;
use crate::config::Limit;
use crate::limit::{Rate, Strategy};
use crate::request::decide::DecisionCounters;

/// The number of listed keys with the most rejections.
const WORST: usize = 10;

pub struct Report {
    pub(super) totals: Totals,
    pub(super) skipped: Skipped,
    pub(super) limits: Vec<LimitReport>,
    /// What the numbers do not say.
    pub(super) notes: Vec<String>,
    /// Why logs could not be read to their ends.
    pub broken: Vec<String>,
    /// Whether lines are JSON, so that the user can name fields.
    pub(super) is_json: bool,
}

pub(super) struct LimitReport {
    pub(super) name: String,
    /// The limit's own rates, as the configuration spells them.
    pub(super) rates: Vec<String>,
    /// As the configuration spells it.
    pub(super) key: String,
    /// What the limit uses but the log does not have.
    pub(super) unknown: Unknown,
    pub(super) counts: Counts,
    /// How many requests the limit would have held, and the longest delay; `None` if it holds none.
    pub(super) held: Option<(u64, Duration)>,
    pub(super) exempt: u64,
    pub(super) blocked: u64,
    /// `None` if the limit bans no keys.
    pub(super) bans: Option<BanReport>,
    /// Requests without a key, which pass or get 400.
    pub(super) keyless: u64,
    pub(super) keys: u64,
    pub(super) keys_rejected: u64,
    pub(super) worst: Vec<KeyReport>,
    pub(super) suggested: Vec<Suggestion>,
}

#[derive(Serialize)]
pub(super) struct BanReport {
    pub(super) begun: u64,
    pub(super) keys: u64,
    /// Requests that bans would have refused, except those that would have begun a ban.
    pub(super) refused: u64,
}

#[derive(Serialize)]
pub(super) struct KeyReport {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) rejected: u64,
}

/// Rates that would have touched a share of the keys.
pub(super) struct Suggestion {
    /// In parts of 10 000.
    pub(super) share: u64,
    pub(super) rates: Vec<String>,
}

impl LimitReport {
    /// The counters of decisions are `Some` if a route uses the limit.
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
        let texts = |rates: &[Rate]| rates.iter().map(ToString::to_string).collect();
        let suggested = |share| {
            let rates = suggestion(&peaks, &limit.rates, share)?;
            Some(Suggestion { share, rates: texts(&rates) })
        };
        let counts = &statistics.counts;
        let count = |count: fn(&DecisionCounters) -> u64| counters.map_or(0, count);
        Self {
            name: limit.name.clone(),
            rates: texts(&limit.rates),
            key: limit.key.to_string(),
            unknown,
            counts: counts.clone(),
            held: limit.slows().map(|slow| (counts.held, slow.hold(counts.fullest_held))),
            exempt: count(|counters| counters.exempt.get()),
            blocked: count(|counters| counters.blocked.get()) + counts.reported_blocks,
            bans: limit.ban.as_ref().map(|_| BanReport {
                begun: counts.bans,
                keys: statistics.keys().filter(|key| key.was_banned).count() as u64,
                refused: counts.banned,
            }),
            keyless: count(|counters| counters.skipped.get() + counters.keyless.get()),
            keys: statistics.keys().count() as u64,
            keys_rejected,
            worst: rejected.into_iter().map(worst).collect(),
            suggested: SHARES.into_iter().filter_map(suggested).collect(),
        }
    }

    pub(super) fn rates_in_words(&self) -> String {
        if self.rates.is_empty() { "no rates".to_owned() } else { self.rates.join(" and ") }
    }
}

/// In RFC 3339.
pub(super) fn moment(time: Time) -> String {
    time.timestamp().map_or_else(|| format!("{} s after 1970", time.seconds()), |timestamp| timestamp.to_string())
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        small if small < 0.01 => "under 0.01 %".to_owned(),
        _ => format!("{percent:.2} %"),
    }
}

/// `41 (0.03 %)`.
pub(super) fn part(count: u64, whole: u64) -> String {
    format!("{count} ({})", percent(count, whole))
}

/// `1 %`, `0.1 %`, `0.01 %` for parts of 10 000.
pub(super) fn share(parts: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 10 000")]
    let percent = parts as f64 / 100.0;
    format!("{percent} %")
}

/// In parts of 10 000: 1 %, 0.1 % and 0.01 %.
const SHARES: [u64; 3] = [100, 10, 1];

/// The one to begin with.
pub(super) const USUAL_SHARE: u64 = 10;

/// Rates with the periods and strategies of `rates` that together would have touched at most `share` of the keys, in
/// parts of 10 000. `None` if there are no keys, or the strategy cannot count so much.
pub(super) fn suggestion(peaks: &[Peaks], rates: &[Rate], share: u64) -> Option<Vec<Rate>> {
    if peaks.is_empty() || rates.is_empty() {
        return None;
    }
    let allowed = u64::try_from(peaks.len()).ok()?.saturating_mul(share) / 10_000;
    let allowed = usize::try_from(allowed).ok()?;
    let descending = |place: usize| {
        let mut values: Vec<u64> = peaks.iter().filter_map(|peaks| peaks.get(place)).copied().collect();
        values.sort_unstable_by(|one, other| other.cmp(one));
        values
    };
    let sorted: Vec<_> = (0..rates.len()).map(descending).collect();
    // Each rate alone would touch `each` keys; all rates together touch more.
    let quotas = |each: usize| sorted.iter().map(|values| values.get(each).copied()).collect::<Option<Peaks>>();
    let touched = |quotas: &Peaks| {
        let is_touched = |peaks: &&Peaks| peaks.iter().zip(quotas).any(|(peak, quota)| peak > quota);
        peaks.iter().filter(is_touched).count()
    };
    let (mut fits, mut exceeds) = (0, allowed.saturating_add(1).min(peaks.len()));
    while exceeds - fits > 1 {
        let middle = fits.midpoint(exceeds);
        if touched(&quotas(middle)?) <= allowed { fits = middle } else { exceeds = middle }
    }
    quotas(fits)?.iter().zip(rates).map(|(quota, rate)| with_quota(rate, *quota)).collect()
}

fn with_quota(rate: &Rate, quota: u64) -> Option<Rate> {
    let quota = quota.max(1);
    let strategy = match rate.strategy() {
        // A bucket as large as the quota never refuses a key that stays within the quota in every window.
        Strategy::TokenBucket { burst } if *burst == rate.quota() => Strategy::TokenBucket { burst: quota },
        Strategy::TokenBucket { burst } => Strategy::TokenBucket { burst: quota.max(*burst) },
        other => other.clone(),
    };
    Rate::in_unit(quota, rate.window(), rate.is_in_bytes()).and_then(|rate| rate.with_strategy(strategy)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates(texts: &[&str]) -> Vec<Rate> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn suggested(peaks: &[Peaks], texts: &[&str], share: u64) -> Option<Vec<String>> {
        suggestion(peaks, &rates(texts), share).map(|rates| rates.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_share_is_that_of_the_keys() {
        let peaks: Vec<Peaks> = (1..=1_000).map(|peak| Peaks::from_slice(&[peak])).collect();
        assert_eq!(suggested(&peaks, &["5/s"], 100).unwrap(), ["990/s"]);
        assert_eq!(suggested(&peaks, &["5/day"], 10).unwrap(), ["999/day"]);
        assert_eq!(suggested(&peaks, &["5/m burst 5"], 1).unwrap(), ["1000/m"]);
        assert_eq!(suggested(&peaks, &["5/m burst 7000"], 1).unwrap(), ["1000/m burst 7000"]);
        assert_eq!(suggested(&[], &["5/s"], 1), None);
        assert_eq!(suggested(&[Peaks::from_slice(&[0])], &["5/s"], 1).unwrap(), ["1/s"]);
        let log = rates(&["5/s"])[0].clone().with_strategy(super::Strategy::SlidingLog).unwrap();
        assert_eq!(suggestion(&[Peaks::from_slice(&[10_001])], &[log], 1), None);
    }

    proptest! {
        #[test]
        fn all_rates_together_touch_no_more_than_the_share(
            peaks in prop::collection::vec((1_u64..1_000, 1_u64..1_000), 1..300),
            share in 0_u64..10_000,
        ) {
            let peaks: Vec<Peaks> = peaks.iter().map(|(one, other)| Peaks::from_slice(&[*one, *other])).collect();
            let found = suggestion(&peaks, &rates(&["1/s", "1/m"]), share).unwrap();
            let touched = |quotas: [u64; 2]| peaks.iter().filter(|peaks| peaks[0] > quotas[0] || peaks[1] > quotas[1]).count() as u64;
            let allowed = peaks.len() as u64 * share / 10_000;
            let quotas = [found[0].quota(), found[1].quota()];
            prop_assert!(touched(quotas) <= allowed);
            // With lower quotas, the next step would touch more keys, or the rates touch different keys.
            let single: Vec<Peaks> = peaks.iter().map(|peaks| Peaks::from_slice(&peaks[..1])).collect();
            let quota = suggestion(&single, &rates(&["1/s"]), share).unwrap()[0].quota();
            prop_assert!(quota == 1 || single.iter().filter(|peaks| peaks[0] > quota - 1).count() as u64 > allowed);
        }
    }
}
