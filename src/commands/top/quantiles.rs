//! Quantiles of the durations that a histogram has counted between two readings.

use super::format::float;
use crate::admin::dashboard::Durations;

/// The duration in seconds within which this share of the durations are that came between two readings, as if those of each
/// bucket were spread evenly; `None` if there were none.
pub(super) fn quantile(before: &Durations, now: &Durations, share: f64) -> Option<f64> {
    let earlier = before.counts.iter().chain(std::iter::repeat(&0));
    let counts: Vec<_> = now.counts.iter().zip(earlier).map(|(now, before)| now.saturating_sub(*before)).collect();
    let all: f64 = counts.iter().map(|count| float(*count)).sum();
    let wanted = share * all;
    let (mut below, mut from) = (0.0, 0.0);
    for (index, count) in counts.iter().enumerate() {
        // Those above all bounds are taken for the last one.
        let to = now.bounds.get(index).or(now.bounds.last()).copied()?;
        let here = float(*count);
        if here > 0.0 && below + here >= wanted {
            return Some(from + (to - from) * ((wanted - below) / here).clamp(0.0, 1.0));
        }
        (below, from) = (below + here, to);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations(counts: [u64; 4]) -> Durations {
        Durations { bounds: vec![0.001, 0.01, 0.1], counts: counts.to_vec() }
    }

    #[test]
    fn quantiles_are_those_of_the_durations_in_between() {
        let before = durations([1_000, 0, 0, 0]);
        let now = durations([1_000, 100, 0, 1]);
        let of = |share| quantile(&before, &now, share).unwrap();
        assert!((of(0.5) - 0.005_5).abs() < 1e-4, "{}", of(0.5));
        assert!((of(1.0) - 0.1).abs() < 1e-9, "{}", of(1.0));
        assert_eq!(quantile(&now, &now, 0.5), None);
        assert_eq!(quantile(&now, &before, 0.5), None, "another process counts anew");
    }

    #[test]
    fn a_histogram_that_makes_no_sense_has_none() {
        let odd = Durations { bounds: Vec::new(), counts: vec![1, 2] };
        assert_eq!(quantile(&Durations::default(), &odd, 0.5), None);
        assert_eq!(quantile(&odd, &Durations::default(), 0.5), None);
    }
}
