//! Limits that a reload has changed continue from the earlier counts, however the old and the new limit count.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::super::Strategy as Counting;
use super::*;

const DAY: u64 = 86_400 * SECOND;
const BEGIN: u64 = 1_000 * DAY - 90 * SECOND;

/// `period` is in microseconds; `None` is the day of the calendar.
fn rate_of(period: Option<u64>, quota: u64, counting: Counting) -> Rate {
    match period {
        Some(micros) => Rate::new(quota, Duration::from_micros(micros)).unwrap().with_strategy(counting).unwrap(),
        None => format!("{quota}/day").parse().unwrap(),
    }
}

fn countings() -> impl Strategy<Value = Counting> {
    let edge = prop_oneof![Just(Edge::Weighted), Just(Edge::Whole)];
    prop_oneof![
        (prop_oneof![Just(1), 1..=MAX_PRECISION], edge)
            .prop_map(|(precision, edge)| Counting::SlidingWindow { precision, edge }),
        Just(Counting::FixedWindow),
        Just(Counting::SlidingLog),
        (1..=12u64).prop_map(|burst| Counting::TokenBucket { burst }),
    ]
}

const PERIODS: [Option<u64>; 4] = [Some(SECOND), Some(3 * SECOND), Some(60 * SECOND), None];

/// One to four rates of different periods, in any order, each counted in any way.
pub(super) fn rates() -> impl Strategy<Value = Vec<Rate>> {
    let one = (1..=9u64, countings());
    let all = (prop::sample::subsequence(PERIODS.to_vec(), 1..=4).prop_shuffle(), prop::collection::vec(one, 4));
    all.prop_map(|(periods, counted)| {
        let rates = periods.into_iter().zip(counted);
        rates.map(|(period, (quota, counting))| rate_of(period, quota, counting)).collect()
    })
}

fn pairs() -> impl Strategy<Value = (Rate, Rate)> {
    let one = || (1..=9u64, countings());
    (prop::sample::select(PERIODS.to_vec()), one(), one())
        .prop_map(|(period, old, new)| (rate_of(period, old.0, old.1), rate_of(period, new.0, new.1)))
}

pub(super) type Schedule = Vec<(u64, u64)>;

/// Gaps before requests, and their costs.
pub(super) fn schedules() -> impl Strategy<Value = Schedule> {
    let gap = prop_oneof![3 => Just(0), 4 => 0..900_000u64, 2 => 0..4 * SECOND, 1 => 0..90 * SECOND];
    prop::collection::vec((gap, prop_oneof![3 => Just(1u64), 1 => 1..=5u64]), 0..40)
}

pub(super) fn run(limit: &Limit, schedule: &Schedule) -> (Cell, u64) {
    let mut now = BEGIN;
    let mut cell = Cell::new(limit.rates(), at(now));
    for (gap, cost) in schedule {
        now += gap;
        ask(limit, &mut cell, at(now), *cost);
    }
    (cell, now)
}

fn used(limit: &Limit, cell: &Cell, now: u64) -> Vec<u64> {
    let mut cell = cell.clone();
    cell.advance(limit.rates(), at(now));
    cell.usages(limit.rates(), at(now)).map(|usage| usage.used).collect()
}

fn most(rate: &Rate) -> u64 {
    if matches!(rate.strategy(), Counting::TokenBucket { .. }) { rate.quota().max(rate.capacity()) } else { u64::MAX }
}

/// Whether the state is the same, but read differently: an edge also changes without a migration.
fn is_seen_otherwise(old: &Rate, new: &Rate) -> bool {
    new.is_kept_like(old) && new.strategy() != old.strategy() && !matches!(new.strategy(), Counting::TokenBucket { .. })
}

fn is_moving(rate: &Rate) -> bool {
    *rate.strategy() == Counting::SlidingLog
}

proptest! {
    #[test]
    fn sums_of_the_same_period_are_carried_over(old in rates(), new in rates(), schedule in schedules(), later in 0..2 * SECOND) {
        let (old, new) = (Limit::new("l", &old), Limit::new("l", &new));
        let (cell, now) = run(&old, &schedule);
        let then = now + later;
        let before = used(&old, &cell, then);
        let migrated = new.migrate(&old, cell, at(then));
        let after = used(&new, &migrated, then);
        // What a shorter moving window has seen is in the log that the longer ones share.
        let moved = old.rates().iter().zip(&before).filter(|(rate, _)| is_moving(rate) || new.grows());
        let most_moved = moved.map(|(_, used)| *used).sum::<u64>();
        for (rate, after) in new.rates().iter().zip(after) {
            let source = rate.predecessor(old.rates());
            if source.is_some_and(|place| is_seen_otherwise(&old.rates()[place], rate)) {
                continue;
            }
            let before = source.map_or(0, |place| before[place]);
            let least = before.min(most(rate));
            let most = if is_moving(rate) { before.max(most_moved) } else { before };
            prop_assert!((least..=most).contains(&after), "{rate} counted {before} and goes on with {after}");
        }
    }

    #[test]
    fn a_sum_counts_as_if_it_had_come_at_the_reload((old, new) in pairs(), schedule in schedules(), later in 0..2 * SECOND,
        steps in prop::collection::vec((0..70 * SECOND, 0..3u64), 0..6)) {
        let (old, new) = (Limit::new("l", &[old]), Limit::new("l", &[new]));
        let (mut cell, now) = run(&old, &schedule);
        let mut now = now + later;
        cell.advance(old.rates(), at(now));
        let sum = used(&old, &cell, now)[0];
        let mut migrated = new.migrate(&old, cell.clone(), at(now));
        let mut twin = if new.rates()[0].is_kept_like(&old.rates()[0]) {
            cell
        } else {
            let mut twin = Cell::new(new.rates(), at(now));
            new.charge(&mut twin, at(now), sum.min(most(&new.rates()[0])));
            twin
        };
        // It never refuses for longer than its own state can matter.
        let verdict = new.judge(&migrated, at(now), 1, false);
        prop_assert!(verdict.wait.unwrap() <= new.migration_memory(&old));
        let end = now + new.migration_memory(&old);
        for (gap, cost) in steps {
            now += gap;
            prop_assert_eq!(used(&new, &migrated, now), used(&new, &twin, now));
            prop_assert_eq!(ask(&new, &mut migrated, at(now), cost), ask(&new, &mut twin, at(now), cost));
        }
        if now < end {
            prop_assert_eq!(used(&new, &migrated, end), used(&new, &twin, end));
        }
    }

    #[test]
    fn there_and_back_nothing_is_lost((old, new) in pairs(), schedule in schedules()) {
        let (old, new) = (Limit::new("l", &[old]), Limit::new("l", &[new]));
        let (cell, now) = run(&old, &schedule);
        prop_assume!(!is_seen_otherwise(&old.rates()[0], &new.rates()[0]));
        let before = used(&old, &cell, now)[0];
        let there = new.migrate(&old, cell, at(now));
        let after = used(&old, &old.migrate(&new, there, at(now)), now)[0];
        let cut = before.min(most(&new.rates()[0])).min(most(&old.rates()[0]));
        prop_assert!((cut..=before).contains(&after), "{after} of {before}");
    }

    /// Giving back an earlier reservation after the migration never leaves less than giving it back before, and just as much
    /// where the reservation can be told from the rest.
    #[test]
    fn what_is_given_back_afterwards_creates_nothing((old, new) in pairs(), schedule in schedules(), later in 0..2 * SECOND,
        chosen in prop::collection::vec(any::<bool>(), 40), wait in prop_oneof![Just(0), 0..3 * SECOND]) {
        let (old, new) = (Limit::new("l", &[old]), Limit::new("l", &[new]));
        let mut now = BEGIN;
        let mut cell = Cell::new(old.rates(), at(now));
        let mut open = Vec::new();
        for ((gap, cost), is_open) in schedule.iter().zip(chosen) {
            now += gap;
            cell.advance(old.rates(), at(now));
            if old.admits(&cell, at(now), *cost) {
                if is_open {
                    open.push(old.reserve(&mut cell, at(now), *cost));
                } else {
                    old.charge(&mut cell, at(now), *cost);
                }
            }
        }
        now += later;
        cell.advance(old.rates(), at(now));
        let mut before = cell.clone();
        open.iter().for_each(|reservation| old.give_back(&mut before, at(now), reservation, reservation.cost()));
        let twin = new.migrate(&old, before, at(now));
        let (end, reload) = (now + wait, now);
        let mut migrated = new.migrate(&old, cell, at(reload));
        migrated.advance(new.rates(), at(end));
        for reservation in &open {
            let moved = new.migrate_reservation(&old, reservation, at(reload));
            new.give_back(&mut migrated, at(end), &moved, reservation.cost());
        }
        let (after, wanted) = (used(&new, &migrated, end)[0], used(&new, &twin, end)[0]);
        let old_rate = &old.rates()[0];
        let is_cut = most(&new.rates()[0]) != u64::MAX && !new.rates()[0].is_kept_like(old_rate);
        prop_assert!(after >= wanted || is_cut, "{after} where {wanted} was counted");
        let is_exact = match old_rate.strategy() {
            Counting::SlidingLog | Counting::Calendar(_) => true,
            Counting::SlidingWindow { edge, .. } => *edge == Edge::Whole,
            Counting::TokenBucket { .. } | Counting::FixedWindow | Counting::Ban { .. } => new.rates()[0].is_kept_like(old_rate),
        };
        prop_assert!(after == wanted || !is_exact || is_cut, "{after} where {wanted} was counted");
    }
}

#[test]
fn what_a_limit_keeps_stays_as_it_is_beside_what_changes() {
    let (old, new) = (limit(&["5/m", "9/h"]), limit(&["5/m", "9/2h", "7/day"]));
    let (cell, now) = run(&old, &vec![(0, 2), (70 * SECOND, 1)]);
    let migrated = new.migrate(&old, cell.clone(), at(now));
    assert_eq!(used(&new, &migrated, now), [used(&old, &cell, now)[0], 0, 0]);
    for later in [20, 40, 60, 80, 100] {
        let then = now + later * SECOND;
        assert_eq!(used(&new, &migrated, then)[0], used(&old, &cell, then)[0], "after {later} s");
    }
}

#[test]
fn long_moving_windows_do_not_fill_short_ones() {
    let moving = |texts: &[&str]| {
        let rates: Vec<Rate> = texts
            .iter()
            .map(|text| text.parse::<Rate>().unwrap().with_strategy(Counting::SlidingLog).unwrap())
            .collect();
        Limit::new("l", &rates)
    };
    let (old, new) = (limit(&["5/s", "20/m"]), moving(&["20/m", "5/s"]));
    let (cell, now) = run(&old, &vec![(0, 4), (30 * SECOND, 3)]);
    let migrated = new.migrate(&old, cell, at(now));
    assert_eq!(used(&new, &migrated, now), [7, 3]);
    assert_eq!(used(&new, &migrated, now + 2 * SECOND), [7, 0]);
    assert_eq!(used(&new, &migrated, now + 60 * SECOND), [0, 0]);
}

#[test]
fn a_quota_that_is_lowered_as_well_refuses_for_one_period_only() {
    let (old, new) = (limit(&["1000/m"]), limit(&["10/m burst 10"]));
    let (cell, now) = run(&old, &vec![(0, 1000)]);
    let migrated = new.migrate(&old, cell, at(now));
    let verdict = new.judge(&migrated, at(now), 1, false);
    assert!(verdict.wait.is_some_and(|wait| (1..=60 * SECOND).contains(&wait)), "{verdict:?}");
}

proptest! {
    /// Every rate counts as much as in the fuller cell, even if that is a moment ahead. Raising twice changes nothing, and
    /// nothing leaves earlier because of it.
    #[test]
    fn a_raised_cell_counts_what_the_fuller_one_counts(rates in rates(), one in schedules(), other in schedules(),
        (later, ahead) in (0..2 * SECOND, ahead()), gaps in prop::collection::vec(0..70 * SECOND, 0..6)) {
        let limit = Limit::new("l", &rates);
        let ((mut cell, one), (mut least, other)) = (run(&limit, &one), run(&limit, &other));
        let mut now = one.max(other) + later;
        cell.advance(limit.rates(), at(now));
        least.advance(limit.rates(), at(now + ahead));
        let mut raised = cell.clone();
        limit.raise(&mut raised, &least, at(now));
        let counted = [&cell, &least, &raised].map(|cell| used(&limit, cell, now));
        let later = used(&limit, &cell, now + ahead);
        for (place, rate) in limit.rates().iter().enumerate() {
            let [cell, least, raised] = [0, 1, 2].map(|of| counted[of][place]);
            // What a shorter moving window lacks is in the log that the longer ones share.
            let most = if is_moving(rate) { cell + least } else { cell.max(least) };
            // A day that has begun at the other cell's moment replaces the previous one.
            let is_calendar = matches!(rate.strategy(), Counting::Calendar(_));
            let cell = if is_calendar { cell.min(later[place]) } else { cell };
            prop_assert!((cell.max(least)..=most).contains(&raised), "{rate}: {cell} and {least} become {raised}");
        }
        let mut again = raised.clone();
        limit.raise(&mut again, &least, at(now));
        prop_assert_eq!(&again, &raised);
        now += ahead;
        for gap in gaps {
            now += gap;
            let (without, with) = (used(&limit, &cell, now), used(&limit, &raised, now));
            prop_assert!(without.iter().zip(&with).all(|(without, with)| without <= with), "{without:?}, {with:?}");
        }
    }

    #[test]
    fn an_empty_cell_becomes_the_other_one(rates in rates(), schedule in schedules(),
        (later, ahead) in (0..2 * SECOND, ahead()), gaps in prop::collection::vec(0..70 * SECOND, 0..6)) {
        let limit = Limit::new("l", &rates);
        let (mut least, mut now) = run(&limit, &schedule);
        now += later;
        least.advance(limit.rates(), at(now + ahead));
        let mut raised = Cell::new(limit.rates(), at(now));
        limit.raise(&mut raised, &least, at(now));
        for gap in gaps {
            prop_assert_eq!(used(&limit, &raised, now), used(&limit, &least, now));
            now += gap;
        }
    }
}

/// By how much another thread may have read the clock later.
fn ahead() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..SECOND]
}

#[test]
fn a_calendar_window_that_is_a_moment_ahead_is_raised_to() {
    let limit = limit(&["9/day"]);
    let midnight = 2 * 86_400 * SECOND;
    let [mut cell, mut least] = [midnight - 1, midnight].map(|now| Cell::new(limit.rates(), at(now)));
    limit.charge(&mut cell, at(midnight - 1), 1);
    limit.charge(&mut least, at(midnight), 5);
    limit.raise(&mut cell, &least, at(midnight - 1));
    assert_eq!(used(&limit, &cell, midnight), [5]);
}

#[test]
fn a_sum_of_another_calendar_window_raises_nothing() {
    let limit = limit(&["9/day"]);
    let day = 86_400 * SECOND;
    let [mut cell, mut least] = [2 * day, day].map(|now| Cell::new(limit.rates(), at(now)));
    limit.charge(&mut least, at(day), 5);
    limit.charge(&mut cell, at(2 * day), 1);
    limit.raise(&mut cell, &least, at(2 * day));
    assert_eq!(used(&limit, &cell, 2 * day), [1]);
}
