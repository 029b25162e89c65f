//! The published examples, and properties of the sliding window beside a naive model; oracles for the other strategies.

mod appended;
mod bans;
mod oracle;
mod strategies;
mod reservations;
mod migration;

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::shared::{Attempt, MOST_GIVEN_BACK, Operation, Restored, VERSION, Writing};
use super::*;

const SECOND: u64 = 1_000_000;

fn limit(rates: &[&str]) -> Limit {
    Limit::new("test", &rates.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
}

fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// `counts` has the newest first.
fn cell(limit: &Limit, now: Time, counts: &[u64]) -> Cell {
    let mut cell = Cell::new(limit.rates(), now);
    let newest = now.micros() / limit.rates()[0].width();
    cell.fill(|_, bucket| counts[usize::try_from(newest - bucket).unwrap()]);
    cell
}

fn sliding(rate: Rate, precision: u32, edge: Edge) -> Rate {
    rate.with_strategy(super::Strategy::SlidingWindow { precision, edge }).unwrap()
}

fn edge(rate: &Rate) -> Edge {
    match rate.strategy() {
        super::Strategy::SlidingWindow { edge, .. } => *edge,
        other => panic!("{other:?} has no edge"),
    }
}

fn slots(rate: &Rate) -> usize {
    usize::try_from(rate.memory() / rate.width()).unwrap()
}

fn estimate(limit: &Limit, cell: &Cell, now: Time) -> u64 {
    cell.usages(limit.rates(), now).next().unwrap().used
}

/// In the order of the rates, newest first.
fn counts(cell: &mut Cell) -> Vec<u64> {
    cell.counts_mut().map(|(_, _, count)| *count).collect()
}

fn ask(limit: &Limit, cell: &mut Cell, now: Time, cost: u64) -> bool {
    limit.decide(cell, now, cost).admitted
}

#[test]
fn five_hundred_a_minute() {
    let limit = limit(&["500/m"]);
    let now = at((23 * 60 + 45) * SECOND);
    let mut cell = cell(&limit, now, &[250, 400]);
    assert_eq!(estimate(&limit, &cell, now), 350);
    assert!(ask(&limit, &mut cell, now, 1));
    assert_eq!(counts(&mut cell), [251, 400]);
}

#[test]
fn a_hundred_a_minute() {
    let limit = limit(&["100/m"]);
    let cell = cell(&limit, at(600 * SECOND), &[80, 40]);
    let estimate = |seconds: u64| estimate(&limit, &cell, at((600 + seconds) * SECOND));
    assert_eq!(estimate(30), 100);
    assert!(!limit.admits(&cell, at(630 * SECOND), 1));
    assert_eq!(estimate(40), 93);
    assert!(limit.admits(&cell, at(640 * SECOND), 1));
}

#[test]
fn refused_requests_are_not_charged() {
    let limit = limit(&["2/s", "3/10s"]);
    let mut cell = Cell::new(limit.rates(), at(0));
    let admitted = (0..100).filter(|_| ask(&limit, &mut cell, at(0), 1)).count();
    assert_eq!(admitted, 2);
    let admitted = (0..100).filter(|_| ask(&limit, &mut cell, at(3 * SECOND), 1)).count();
    assert_eq!(admitted, 1, "the second rate has one left");
}

#[test]
fn the_verdict_names_the_rate_that_binds() {
    let limit = limit(&["2/s", "3/10s"]);
    let mut cell = Cell::new(limit.rates(), at(0));
    assert!(ask(&limit, &mut cell, at(0), 1));
    let passed = limit.judge(&cell, at(0), 0, true);
    assert_eq!((passed.rate, passed.remaining), (0, 1));
    assert!(ask(&limit, &mut cell, at(0), 1));
    assert_eq!(limit.judge(&cell, at(0), 1, false).rate, 0);
    assert_eq!(limit.judge(&cell, at(0), 2, false).rate, 1, "two more wait for the ten seconds");
    assert_eq!(limit.judge(&cell, at(0), 4, false).wait, None, "four never fit three");
}

#[test]
fn a_clock_that_is_set_back_gives_no_second_helping_and_stops_nobody() {
    let limit = limit(&["5/s"]);
    let mut cell = Cell::new(limit.rates(), at(0));
    let now = 3_600 * SECOND;
    assert!(ask(&limit, &mut cell, at(now), 5));
    let back = now - 60 * SECOND;
    assert!(!ask(&limit, &mut cell, at(back), 1));
    assert!(!ask(&limit, &mut cell, at(back + SECOND), 1));
    assert!(ask(&limit, &mut cell, at(back + 2 * SECOND), 5));
}

#[test]
fn readers_of_the_clock_that_come_late_lose_nothing() {
    let limit = limit(&["5/s"]);
    let mut cell = Cell::new(limit.rates(), at(0));
    assert!(ask(&limit, &mut cell, at(SECOND - 1), 4));
    assert!(ask(&limit, &mut cell, at(SECOND), 1));
    assert!(!ask(&limit, &mut cell, at(SECOND - 1), 1));
    assert!(!ask(&limit, &mut cell, at(SECOND), 1));
}

fn rates() -> impl Strategy<Value = Rate> {
    let quota = prop_oneof![1..=20u64, 1..=MAX_QUOTA];
    let window = prop_oneof![1_000_000..=3_000_000u64, 1_000_000..=31 * 86_400 * SECOND];
    (quota, window, 1..=MAX_PRECISION, any::<bool>()).prop_map(|(quota, window, precision, whole)| {
        let edge = if whole { Edge::Whole } else { Edge::Weighted };
        sliding(Rate::new(quota, Duration::from_micros(window)).unwrap(), precision, edge)
    })
}

/// A rate, counts for it that admissions could have led to or worse, and a moment.
fn states() -> impl Strategy<Value = (Rate, Vec<u64>, u64)> {
    (rates(), any::<u16>()).prop_flat_map(|(rate, base)| {
        let count = prop_oneof![0..=rate.quota().min(30), 0..=rate.quota(), Just(0)];
        let counts = prop::collection::vec(count, slots(&rate));
        let elapsed = prop_oneof![0..rate.width(), Just(0), Just(rate.width() - 1)];
        let start = (u64::from(base) + 100) * rate.width();
        (Just(rate), counts, elapsed.prop_map(move |elapsed| start + elapsed))
    })
}

/// The formula as documented, in integers that cannot overflow.
fn naive_estimate(rate: &Rate, counts: &[u64], now: u64) -> u128 {
    let width = u128::from(rate.width());
    let elapsed = u128::from(now) % width;
    let (oldest, inside) = counts.split_last().unwrap();
    let share = match edge(rate) {
        Edge::Whole => u128::from(*oldest),
        Edge::Weighted => u128::from(*oldest) * (width - elapsed) / width,
    };
    inside.iter().map(|count| u128::from(*count)).sum::<u128>() + share
}

/// `oldest` is the count of the oldest bucket at that moment.
struct Admitted {
    time: u64,
    cost: u64,
    oldest: u64,
}

/// `schedule` has gaps in microseconds, and costs.
fn admitted(rate: &Rate, schedule: &[(u64, u64)]) -> Vec<Admitted> {
    let limit = Limit::new("test", std::slice::from_ref(rate));
    let mut cell = Cell::new(limit.rates(), at(0));
    let mut time = 1_000 * rate.width();
    let mut all = Vec::new();
    for (gap, cost) in schedule {
        time += gap;
        if ask(&limit, &mut cell, at(time), *cost) {
            let oldest = *counts(&mut cell).last().unwrap();
            all.push(Admitted { time, cost: *cost, oldest });
        }
    }
    all
}

/// No window of the rate exceeds the quota, or with a weighted edge the quota and the count of the oldest bucket.
fn check_windows(rate: &Rate, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    let window = u64::try_from(rate.window().as_micros()).unwrap();
    let (mut first, mut seen) = (0, 0);
    for last in admitted {
        seen += last.cost;
        while admitted[first].time + window < last.time {
            seen -= admitted[first].cost;
            first += 1;
        }
        let bound = match edge(rate) {
            Edge::Whole => rate.quota(),
            Edge::Weighted => rate.quota() + last.oldest,
        };
        prop_assert!(seen <= bound, "{seen} in a window of {rate}, at most {bound}");
    }
    Ok(())
}

fn small_rate() -> impl Strategy<Value = Rate> {
    (1..=8u64, 1..=3u64, 1..=MAX_PRECISION, any::<bool>()).prop_map(|(quota, seconds, precision, whole)| {
        let edge = if whole { Edge::Whole } else { Edge::Weighted };
        sliding(Rate::new(quota, Duration::from_secs(seconds)).unwrap(), precision, edge)
    })
}

proptest! {
    #[test]
    fn decides_as_the_naive_model((rate, counts, now) in states(), cost in prop_oneof![1..=3u64, 1..=2 * MAX_QUOTA]) {
        let limit = Limit::new("test", std::slice::from_ref(&rate));
        let cell = cell(&limit, at(now), &counts);
        let model = naive_estimate(&rate, &counts, now);
        prop_assert_eq!(u128::from(estimate(&limit, &cell, at(now))), model);
        let admitted = limit.admits(&cell, at(now), cost);
        prop_assert_eq!(admitted, model + u128::from(cost) <= u128::from(rate.quota()));
        let refusal = (!admitted).then(|| limit.judge(&cell, at(now), cost, false));
        prop_assert_eq!(limit.refuses(&cell, at(now), cost), refusal);
    }

    #[test]
    fn the_estimate_never_wraps(rate in rates(), counts in prop::collection::vec(any::<u64>(), 61), elapsed in any::<u64>()) {
        let limit = Limit::new("test", std::slice::from_ref(&rate));
        let mut cell = Cell::new(limit.rates(), at(0));
        cell.counts_mut().zip(&counts).for_each(|((.., count), any)| *count = *any);
        let window = cell.usages(limit.rates(), at(elapsed)).next().unwrap();
        let most = counts[..slots(&rate)].iter().map(|count| u128::from(*count)).sum::<u128>();
        prop_assert!(u128::from(window.used) <= most);
        prop_assert!(window.remaining() <= rate.quota());
        prop_assert!(window.wait(1).unwrap() <= rate.width() * slots(&rate) as u64);
    }

    #[test]
    fn the_wait_is_the_first_moment_that_fits((rate, counts, now) in states(), cost in 1..=4u64) {
        let limit = Limit::new("test", std::slice::from_ref(&rate));
        let mut cell = cell(&limit, at(now), &counts);
        let fits = |cell: &mut Cell, now| { cell.advance(limit.rates(), at(now)); limit.admits(cell, at(now), cost) };
        match limit.judge(&cell, at(now), cost, false).wait {
            None => prop_assert!(cost > rate.quota()),
            Some(wait) => {
                prop_assert_eq!(wait == 0, fits(&mut cell.clone(), now));
                prop_assert!(fits(&mut cell.clone(), now + wait));
                prop_assert!(wait == 0 || !fits(&mut cell.clone(), now + wait - 1));
                // The `Retry-After` in seconds: refused one second earlier, admitted at that second.
                let seconds = wait.div_ceil(SECOND);
                prop_assert!(fits(&mut cell.clone(), now + seconds * SECOND));
                prop_assert!(seconds == 0 || !fits(&mut cell, now + (seconds - 1) * SECOND));
            }
        }
    }

    #[test]
    fn what_remains_is_let_through_and_no_more((rate, counts, now) in states()) {
        let limit = Limit::new("test", std::slice::from_ref(&rate));
        let mut cell = cell(&limit, at(now), &counts);
        let remaining = limit.judge(&cell, at(now), 0, true).remaining;
        if remaining > 0 {
            prop_assert!(ask(&limit, &mut cell, at(now), remaining));
        }
        prop_assert!(!ask(&limit, &mut cell, at(now), 1));
    }

    #[test]
    fn random_traffic_stays_within_the_bound(rate in small_rate(), schedule in prop::collection::vec(
        (prop_oneof![Just(0), 0..50_000u64, 0..1_500_000u64], prop_oneof![3 => Just(1u64), 1 => 1..=9u64]), 1..400)) {
        check_windows(&rate, &admitted(&rate, &schedule))?;
    }

    // The worst clients know the clock: they wait for the edge of a bucket, or just before or after, and send all they have.
    #[test]
    fn bursts_at_the_edges_of_buckets_stay_within_the_bound(rate in small_rate(), bursts in prop::collection::vec(
        (0..3u64, 0..5u64, 0..20usize, 1..=3u64), 1..60)) {
        let width = rate.width();
        let mut schedule = Vec::new();
        let mut elapsed = 0;
        for (buckets, offset, burst, cost) in bursts {
            let target = [0, 1, width / 2, width - 2, width - 1][usize::try_from(offset).unwrap()];
            let gap = buckets * width + (target + width - elapsed) % width;
            elapsed = target;
            schedule.push((gap, cost));
            schedule.extend(std::iter::repeat_n((0, cost), burst));
        }
        check_windows(&rate, &admitted(&rate, &schedule))?;
    }

    #[test]
    fn moving_on_in_steps_or_at_once_is_the_same((rate, counts, now) in states(), steps in prop::collection::vec(0..200u64, 0..8)) {
        let limit = Limit::new("test", std::slice::from_ref(&rate));
        let mut stepwise = cell(&limit, at(now), &counts);
        let mut once = stepwise.clone();
        let mut end = now;
        for step in steps {
            end += step * rate.width() / 50;
            stepwise.advance(limit.rates(), at(end));
        }
        once.advance(limit.rates(), at(end));
        prop_assert_eq!(&stepwise, &once);
        let spent = once.is_spent(limit.rates(), at(end));
        prop_assert!(!spent, "a cell that was just advanced is not spent");
    }
}
