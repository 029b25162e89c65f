//! Suggests rates that would have touched only a certain share of the keys.
//!
//! The peak of a key for a rate is the smallest quota that would not have refused the key. A rate touches the keys whose
//! peak is larger than its quota.

use smallvec::SmallVec;

use crate::limit::{Rate, Strategy};

/// One for each rate of the limit.
pub(super) type Peaks = SmallVec<[u64; 2]>;

/// In parts of 10 000: 1 %, 0.1 % and 0.01 %.
pub(super) const SHARES: [u64; 3] = [100, 10, 1];

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
    Rate::new(quota, rate.window()).and_then(|rate| rate.with_strategy(strategy)).ok()
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
