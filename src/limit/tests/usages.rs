//! The usages of rates are what the limit decides by.

use proptest::prelude::*;

use super::migration::{rates, run, schedules};
use super::*;
use crate::base::share::share;

#[test]
fn a_usage_tells_more_than_the_capacity_if_more_was_charged() {
    let every = ["10/m", "10/m burst 10", "10/day"].map(|text| text.parse::<Rate>().unwrap());
    let others = [super::super::Strategy::FixedWindow, super::super::Strategy::SlidingLog];
    let others = others.map(|strategy| "10/m".parse::<Rate>().unwrap().with_strategy(strategy).unwrap());
    for rate in every.into_iter().chain(others) {
        let limit = Limit::new("l", std::slice::from_ref(&rate));
        let now = at(1_000_000 * SECOND);
        let mut cell = Cell::new(limit.rates(), now);
        let usage = |cell: &Cell| limit.usages(cell, now).next().unwrap();
        assert_eq!(usage(&cell), RateUsage { capacity: 10, used: 0, remaining: 10, wait: None }, "{rate:?}");
        limit.charge(&mut cell, now, 25);
        let RateUsage { used, remaining, wait, .. } = usage(&cell);
        assert_eq!((used, remaining), (25, 0), "{rate:?}");
        assert_eq!(wait, limit.judge(&cell, now, 1, false).wait, "{rate:?}: as a refused request is told");
    }
}

proptest! {
    #[test]
    fn a_usage_tells_what_is_admitted_and_when_more_is(rates in rates(), schedule in schedules(), beyond in 0..9u64) {
        let limit = Limit::new("l", &rates);
        let (mut cell, now) = run(&limit, &schedule);
        // Later charges need not fit.
        limit.charge(&mut cell, at(now), beyond);
        let usages: Vec<_> = limit.usages(&cell, at(now)).collect();
        prop_assert_eq!(usages.len(), rates.len());
        for apart in [0, 3] {
            let used = usages.iter().map(|usage| share(usage.used.saturating_sub(apart), usage.capacity));
            prop_assert_eq!(limit.level(&cell, at(now), apart), used.max().unwrap());
        }
        let least = usages.iter().map(|usage| usage.remaining).min().unwrap();
        prop_assert!(limit.admits(&cell, at(now), least));
        prop_assert!(!limit.admits(&cell, at(now), least + 1));
        for (place, (usage, rate)) in usages.iter().zip(&rates).enumerate() {
            prop_assert_eq!(usage.capacity, rate.capacity());
            prop_assert_eq!(usage.used.min(usage.capacity) + usage.remaining, usage.capacity);
            prop_assert_eq!(usage.wait.is_none(), usage.used == 0, "{:?}", usage);
            let Some(wait) = usage.wait else { continue };
            let remaining_after = |micros: u64| {
                let mut cell = cell.clone();
                cell.advance(&rates, at(now + micros));
                limit.usages(&cell, at(now + micros)).nth(place).unwrap().remaining
            };
            prop_assert!(wait > 0);
            prop_assert_eq!(remaining_after(wait - 1), usage.remaining, "a microsecond early");
            prop_assert!(remaining_after(wait) > usage.remaining, "in time");
        }
    }
}
