//! Every strategy beside its definition, under random and adversarial schedules; and the usages of rates are what the limit
//! decides by.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::migration::{rates, run, schedules};
use super::oracle::{Kind, Oracle};
use super::*;
use crate::base::share::{WHOLE, share};

const DAY: u64 = 86_400 * SECOND;

pub(super) fn rate_of(kind: Kind, quota: u64, window: u64) -> Rate {
    let rate = Rate::new(quota, Duration::from_micros(window)).unwrap();
    let counting = match kind {
        Kind::SlidingLog => crate::limit::Strategy::SlidingLog,
        Kind::FixedWindow => crate::limit::Strategy::FixedWindow,
        Kind::TokenBucket { burst } => crate::limit::Strategy::TokenBucket { burst },
        Kind::Day => crate::limit::Strategy::Calendar(Calendar::utc(Unit::Day)),
    };
    rate.with_strategy(counting).unwrap()
}

#[derive(Clone, Debug)]
struct Step {
    gap: Gap,
    client: usize,
    cost: u64,
    /// How often, at the same moment.
    times: usize,
}

#[derive(Clone, Debug)]
enum Gap {
    /// In microseconds.
    After(u64),
    /// At this offset from the next multiple of the window of this rate.
    Edge(usize, i64),
    /// At this offset from when the last refused request could first have been admitted.
    Wait(i64),
    Back(u64),
}

fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        4 => prop_oneof![Just(0), 0..100_000u64, 0..3 * SECOND, 0..120 * SECOND].prop_map(Gap::After),
        3 => (0..3usize, -2..=2i64).prop_map(|(rate, offset)| Gap::Edge(rate, offset)),
        3 => (-1..=1i64).prop_map(Gap::Wait),
        1 => prop_oneof![1..SECOND, SECOND..61 * SECOND, Just(SECOND), Just(SECOND + 1)].prop_map(Gap::Back),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (gaps(), 0..2usize, prop_oneof![4 => Just(1u64), 1 => 1..=10u64], 1..6usize);
    prop::collection::vec(step.prop_map(|(gap, client, cost, times)| Step { gap, client, cost, times }), 1..60)
}

/// One to three rates of one kind, or of any kind with days beside them.
pub(super) fn limits() -> impl Strategy<Value = Vec<(Kind, u64, u64)>> {
    let kind = prop_oneof![
        Just(Kind::SlidingLog),
        Just(Kind::FixedWindow),
        (1..=12u64).prop_map(|burst| Kind::TokenBucket { burst }),
        Just(Kind::Day),
    ];
    let rate =
        (kind, 1..=9u64, prop_oneof![Just(SECOND), Just(3 * SECOND), Just(60 * SECOND), 1_000_000..9_999_999u64]);
    let rate = rate.prop_map(|(kind, quota, window)| (kind, quota, if kind == Kind::Day { DAY } else { window }));
    prop::collection::vec(rate, 1..=3)
}

struct Client {
    cell: Cell,
    oracles: Vec<Oracle>,
}

proptest! {
    #[test]
    fn decide_as_they_are_defined(rates in limits(), steps in steps()) {
        let limit = Limit::new("l", &rates.iter().map(|(kind, quota, window)| rate_of(*kind, *quota, *window)).collect::<Vec<_>>());
        let mut oracles: Vec<_> = rates.iter().map(|(kind, quota, window)| Oracle::new(*kind, *quota, *window)).collect();
        let longest = rates.iter().filter(|(kind, ..)| *kind == Kind::SlidingLog).map(|(.., window)| *window).max();
        let moving = oracles.iter_mut().filter(|oracle| oracle.kind == Kind::SlidingLog);
        moving.for_each(|oracle| oracle.remember(longest.unwrap_or(0)));
        let mut now = 1_000 * DAY - 5 * SECOND;
        oracles.iter_mut().for_each(|oracle| oracle.tick(now));
        let client = || Client { cell: Cell::new(limit.rates(), at(1_000 * DAY - 5 * SECOND)), oracles: oracles.clone() };
        let mut clients = [client(), client()];
        let mut retry = now;
        for step in steps {
            now = match step.gap {
                Gap::After(micros) => now + micros,
                Gap::Edge(rate, offset) => {
                    let window = rates[rate % rates.len()].2;
                    ((now / window + 1) * window).saturating_add_signed(offset).max(now)
                }
                Gap::Wait(offset) => retry.saturating_add_signed(offset).max(now),
                Gap::Back(micros) => now - micros,
            };
            let Client { cell, oracles } = &mut clients[step.client];
            for _ in 0..step.times {
                cell.advance(limit.rates(), at(now));
                oracles.iter_mut().for_each(|oracle| oracle.tick(now));
                let left = oracles.iter().map(|oracle| oracle.remaining(now)).min().unwrap();
                let used = |oracle: &Oracle| (oracle.capacity() - oracle.remaining(now)) * u64::from(WHOLE) / oracle.capacity();
                prop_assert_eq!(u64::from(limit.level(cell, at(now), 0)), oracles.iter().map(used).max().unwrap());
                let admitted = limit.admits(cell, at(now), step.cost);
                prop_assert_eq!(admitted, left >= step.cost, "at {} with {} left", now, left);
                let fullest = limit.fullest(cell, at(now), step.cost);
                let refusal = (!admitted).then(|| limit.judge(cell, at(now), step.cost, false));
                prop_assert_eq!(fullest.err(), refusal);
                let before = cell.clone();
                if admitted {
                    limit.charge(cell, at(now), step.cost);
                    for oracle in &mut *oracles {
                        oracle.charge(now, step.cost);
                    }
                }
                let verdict = limit.judge(cell, at(now), step.cost, admitted);
                prop_assert_eq!(verdict.admitted, admitted);
                if admitted {
                    prop_assert_eq!(verdict.remaining, left - step.cost);
                    let passed = fullest.map(|fullest| limit.passed(cell, at(now), fullest));
                    prop_assert_eq!(passed, Ok(verdict), "the charge does not change which rate is the fullest");
                } else {
                    prop_assert_eq!(&*cell, &before, "a refusal changes nothing");
                    retry = now + verdict.wait.unwrap_or(0);
                }
                let bytes = cell.save(0);
                let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
                // A clock that was just read a moment later is waited for.
                if restored.ahead == 0 {
                    prop_assert_eq!(restored.cell.save(0), bytes);
                }
            }
        }
    }

    /// From any state that traffic leads to, also past the quota.
    #[test]
    fn the_wait_is_exact_and_what_remains_is_let_through(
        rates in limits(),
        charges in prop::collection::vec((0..20 * SECOND, 0..30u64), 0..20),
        elapsed in prop_oneof![Just(0), 0..20 * SECOND],
        need in 1..=10u64,
    ) {
        let limit = Limit::new("l", &rates.iter().map(|(kind, quota, window)| rate_of(*kind, *quota, *window)).collect::<Vec<_>>());
        let mut now = 1_000 * DAY - 30 * SECOND;
        let mut cell = Cell::new(limit.rates(), at(now));
        for (gap, cost) in charges {
            now += gap;
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), cost);
        }
        now += elapsed;
        cell.advance(limit.rates(), at(now));
        let fits = |when: u64| {
            let mut cell = cell.clone();
            cell.advance(limit.rates(), at(when));
            limit.admits(&cell, at(when), need)
        };
        let admitted = fits(now);
        let verdict = limit.judge(&cell, at(now), need, admitted);
        if !admitted {
            match verdict.wait {
                None => prop_assert!(need > limit.capacity()),
                Some(wait) => {
                    prop_assert!(fits(now + wait));
                    prop_assert!(!fits(now + wait - 1));
                    let seconds = wait.div_ceil(SECOND);
                    prop_assert!(fits(now + seconds * SECOND) && !fits(now + (seconds - 1) * SECOND));
                }
            }
        }
        let passed = limit.judge(&cell, at(now), 1, true);
        // One more than remains fits when the headers say so, and not before.
        if let (Some(wait), [_]) = (passed.wait, &rates[..]) {
            let left = |when: u64| {
                let mut cell = cell.clone();
                cell.advance(limit.rates(), at(when));
                limit.judge(&cell, at(when), 1, true).remaining
            };
            prop_assert!(left(now + wait) > passed.remaining);
            prop_assert_eq!(left(now + wait - 1), passed.remaining);
        }
        let mut spent = cell.clone();
        if passed.remaining > 0 {
            prop_assert!(limit.admits(&spent, at(now), passed.remaining));
            limit.charge(&mut spent, at(now), passed.remaining);
        }
        prop_assert!(!limit.admits(&spent, at(now), 1));
        // A spent cell decides like a new one.
        let later = now + 1_000 * SECOND;
        if cell.is_spent(limit.rates(), at(later)) {
            let (mut old, mut new) = (cell.clone(), Cell::new(limit.rates(), at(later)));
            old.advance(limit.rates(), at(later));
            for _ in 0..12 {
                let (a, b) = (limit.admits(&old, at(later), 1), limit.admits(&new, at(later), 1));
                prop_assert_eq!(a, b);
                limit.charge(&mut old, at(later), 1);
                limit.charge(&mut new, at(later), 1);
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_wrap(
        kind in prop_oneof![Just(Kind::FixedWindow), Just(Kind::Day), (1..=MAX_QUOTA).prop_map(|burst| Kind::TokenBucket { burst })],
        quota in prop_oneof![Just(1), Just(MAX_QUOTA), 1..=MAX_QUOTA],
        costs in prop::collection::vec(prop_oneof![Just(u64::MAX), Just(MAX_QUOTA), any::<u64>()], 1..20),
        gap in prop_oneof![Just(0), Just(31 * DAY), any::<u32>().prop_map(u64::from)],
    ) {
        let limit = Limit::new("l", &[rate_of(kind, quota, 31 * DAY)]);
        let mut now = 20_000 * DAY;
        let mut cell = Cell::new(limit.rates(), at(now));
        for cost in costs {
            now += gap;
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), cost);
            let verdict = limit.judge(&cell, at(now), 1, limit.admits(&cell, at(now), 1));
            prop_assert!(verdict.remaining <= limit.capacity());
        }
    }

    #[test]
    fn arbitrary_bytes_restore_to_nothing_or_to_something_that_counts(
        rates in limits(),
        bytes in prop::collection::vec(prop_oneof![Just(1), Just(0), any::<u8>()], 0..60),
    ) {
        let limit = Limit::new("l", &rates.iter().map(|(kind, quota, window)| rate_of(*kind, *quota, *window)).collect::<Vec<_>>());
        let now = at(20_000 * DAY);
        let version = [VERSION].into_iter().chain(bytes.iter().copied()).collect::<Vec<u8>>();
        for bytes in [bytes, version] {
            let Some(Restored { mut cell, .. }) = Cell::restore(limit.rates(), now, &bytes) else { continue };
            cell.advance(limit.rates(), now);
            let verdict = limit.judge(&cell, now, 1, limit.admits(&cell, now, 1));
            prop_assert!(verdict.remaining <= limit.capacity());
            limit.charge(&mut cell, now, 1);
            cell.advance(limit.rates(), at(20_001 * DAY));
            cell.save(0);
        }
    }
}

/// Seconds count from the hour.
fn at_second(limit: &Limit, cell: &mut Cell, second: u64) -> bool {
    ask(limit, cell, at(DAY + second * SECOND), 1)
}

#[test]
fn ten_a_minute_in_a_moving_window() {
    let limit = Limit::new("l", &[rate_of(Kind::SlidingLog, 10, 60 * SECOND)]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    for (second, count) in [(10, 1), (20, 2), (30, 4), (50, 3)] {
        assert!((0..count).all(|_| at_second(&limit, &mut cell, second)), "at {second}");
    }
    assert!(at_second(&limit, &mut cell, 71));
    assert!(!at_second(&limit, &mut cell, 72));
}

#[test]
fn a_fixed_window_begins_with_the_first_request() {
    let limit = Limit::new("l", &[rate_of(Kind::FixedWindow, 10, 60 * SECOND)]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    let admitted = |cell: &mut Cell, second| (0..20).filter(|_| at_second(&limit, cell, second)).count();
    assert!(at_second(&limit, &mut cell, 45));
    assert_eq!(admitted(&mut cell, 61), 9, "everything until 1:45 counts together");
    assert_eq!(admitted(&mut cell, 104), 0);
    assert_eq!(admitted(&mut cell, 105), 10, "a new window starts at 1:45");
    assert_eq!(admitted(&mut cell, 164), 0);
}

#[test]
fn a_log_stays_small_whatever_is_charged_to_it() {
    let limit = Limit::new("l", &[rate_of(Kind::SlidingLog, 10_000, 31 * DAY)]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    for micros in 0..50_000 {
        limit.charge(&mut cell, at(DAY + micros), 1);
    }
    assert!(cell.save(0).len() < 100_000);
    let verdict = limit.judge(&cell, at(DAY + 50_000), 1, false);
    assert!(verdict.wait.unwrap() > 30 * DAY, "nothing of it is forgotten");
}

#[test]
fn a_rate_that_fits_exactly_is_not_waited_for() {
    let limit = Limit::new("l", &[rate_of(Kind::FixedWindow, 3, 60 * SECOND), rate_of(Kind::FixedWindow, 2, SECOND)]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    assert!(ask(&limit, &mut cell, at(DAY), 2));
    let verdict = limit.judge(&cell, at(DAY), 1, false);
    assert_eq!((verdict.rate, verdict.wait), (1, Some(SECOND)), "the minute has room for one");
}

#[test]
fn the_largest_bucket_is_exact() {
    let limit = Limit::new("l", &[rate_of(Kind::TokenBucket { burst: MAX_QUOTA }, MAX_QUOTA, 31 * DAY)]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    assert!(ask(&limit, &mut cell, at(DAY), MAX_QUOTA));
    let used = limit.judge(&cell, at(DAY), MAX_QUOTA, false);
    assert_eq!((used.remaining, used.wait), (0, Some(31 * DAY)));
    cell.advance(limit.rates(), at(DAY + 31 * DAY / 2));
    assert_eq!(limit.judge(&cell, at(DAY + 31 * DAY / 2), 1, true).remaining, MAX_QUOTA / 2);
}

#[test]
fn a_usage_tells_more_than_the_capacity_if_more_was_charged() {
    let every = ["10/m", "10/m burst 10", "10/day"].map(|text| text.parse::<Rate>().unwrap());
    let others = [crate::limit::Strategy::FixedWindow, crate::limit::Strategy::SlidingLog];
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
