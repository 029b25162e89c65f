//! What each function of this module is for, by an example.

use std::time::Duration;

use super::super::shared::{Operation, Writing};
use super::super::{Calendar, Cell, Edge, Limit, Rate, RateError, RateUsage, Strategy, Unit};
use crate::base::clock::Time;

const NOW: Time = Time::from_micros(1_800_000_000_000_000);

fn rate(quota: u64, seconds: u64) -> Rate {
    Rate::new(quota, Duration::from_secs(seconds)).unwrap()
}

fn bucket(quota: u64, seconds: u64, burst: u64) -> Rate {
    rate(quota, seconds).with_strategy(Strategy::TokenBucket { burst }).unwrap()
}

fn limit(quota: u64, seconds: u64) -> Limit {
    Limit::new("a", &[rate(quota, seconds)])
}

#[test]
fn bans_refuse_everything_for_a_while() {
    let bans = Limit::bans("per-client", Duration::from_secs(600), Duration::from_secs(86_400)).unwrap();
    let mut cell = Cell::new(bans.rates(), NOW);
    assert!(bans.admits(&cell, NOW, bans.capacity()));

    bans.charge(&mut cell, NOW, 1);
    let banned = bans.judge(&cell, NOW, bans.capacity(), false);
    assert_eq!((banned.wait, bans.times(&banned)), (Some(600_000_000), 1));
}

#[test]
fn a_calendar_has_a_zone() {
    let days = Calendar::utc(Unit::Day);
    assert_eq!(days.zone(), "UTC");
    let days = days.in_zone("Europe/Berlin");
    assert!(days.is_some_and(|days| days.zone() == "Europe/Berlin"));
    assert!(Calendar::utc(Unit::Day).in_zone("Mars/Olympus").is_none());
}

#[test]
fn a_cell_outlives_a_changed_quota() {
    let five = limit(5, 60);
    let mut cell = Cell::new(five.rates(), NOW);
    five.charge(&mut cell, NOW, 5);
    assert!(!five.admits(&cell, NOW, 1));
    assert!(limit(6, 60).admits(&cell, NOW, 1));

    let later = Time::from_micros(NOW.micros() + 120_000_000);
    assert!(cell.is_spent(five.rates(), later), "a store may drop it");
}

#[test]
fn another_strategy_continues_the_count() {
    let old = limit(5, 60);
    let new = Limit::new("a", &[rate(5, 60).with_strategy(Strategy::SlidingLog).unwrap()]);
    let mut cell = Cell::new(old.rates(), NOW);
    old.charge(&mut cell, NOW, 3);

    let cell = new.migrate(&old, cell, NOW);
    assert_eq!(new.judge(&cell, NOW, 1, true).remaining, 2);
}

#[test]
fn raising_adds_what_is_missing() {
    let limit = limit(9, 60);
    let [mut cell, mut least] = [(); 2].map(|()| Cell::new(limit.rates(), NOW));
    limit.charge(&mut cell, NOW, 2);
    limit.charge(&mut least, NOW, 5);

    limit.raise(&mut cell, &least, NOW);
    assert_eq!(limit.judge(&cell, NOW, 1, true).remaining, 4);
}

#[test]
fn a_rate_has_a_quota_a_window_and_a_strategy() {
    let rate = rate(3000, 600);
    assert_eq!(rate.quota(), 3000);
    assert_eq!(rate.window().as_secs(), 600);
    assert_eq!(*rate.strategy(), Strategy::SlidingWindow { precision: 1, edge: Edge::Weighted });

    let rate = bucket(10, 1, 50);
    assert_eq!(*rate.strategy(), Strategy::TokenBucket { burst: 50 });
    assert_eq!(rate.capacity(), 50);
}

#[test]
fn a_log_has_a_smaller_quota_than_a_window() {
    assert!(rate(100, 60).with_strategy(Strategy::FixedWindow).is_ok());
    assert_eq!(rate(10_001, 60).with_strategy(Strategy::SlidingLog), Err(RateError::Log));
}

#[test]
fn gateways_that_count_separately_have_a_part_each() {
    let rate = rate(10, 1);
    assert_eq!(rate.part(3).quota(), 3);
    assert_eq!(rate.part(11).quota(), 1);
}

#[test]
fn a_request_is_forgotten_after_one_window() {
    assert_eq!(rate(10, 1).forgotten(Time::from_micros(5_000_000)), Some(4_000_000));
}

#[test]
fn counters_are_filled_by_bucket() {
    let limit = limit(5, 60);
    let mut cell = Cell::new(limit.rates(), NOW);
    let minute = NOW.seconds() / 60;
    cell.fill(|_, bucket| if bucket == minute { 4 } else { 0 });
    assert_eq!(limit.judge(&cell, NOW, 1, true).remaining, 1);
}

#[test]
fn appended_operations_count_when_the_state_is_restored() {
    let limit = Limit::new("a", &[bucket(5, 1, 5)]);
    let mut cell = Cell::new(limit.rates(), NOW);
    limit.charge(&mut cell, NOW, 3);

    let mut bytes = cell.save(0);
    let mut three = limit.attempt(NOW, 1, 1);
    three.times = 3;
    Cell::append(Writing { writer: 7, sequence: 1 }, [Operation::Attempt(three)].into_iter(), 0, &mut bytes);
    let restored = Cell::restore(limit.rates(), NOW, &bytes).unwrap();
    assert_eq!(restored.groups[0].admitted[..], [2], "two of three fit");
    assert!(!limit.admits(&restored.cell, NOW, 1));
}

#[test]
fn the_shape_is_that_of_the_cells() {
    assert_eq!(limit(10, 1).shape(), limit(20, 1).shape());
    assert_ne!(limit(10, 1).shape(), limit(10, 60).shape());
}

#[test]
fn usages_say_what_each_rate_has_counted() {
    let limit = Limit::new("a", &[bucket(2, 1, 4), rate(100, 60)]);
    let mut cell = Cell::new(limit.rates(), NOW);
    limit.charge(&mut cell, NOW, 3);

    let usages: Vec<_> = limit.usages(&cell, NOW).collect();
    assert_eq!(usages[0], RateUsage { capacity: 4, used: 3, remaining: 1, wait: Some(500_000) });
    assert_eq!((usages[1].used, usages[1].remaining), (3, 97));
}

#[test]
fn a_reservation_gives_back_what_the_request_did_not_cost() {
    let limit = limit(1000, 60);
    let mut cell = Cell::new(limit.rates(), NOW);

    // The request may cost up to 400, and then it turns out that it cost 150.
    let reservation = limit.reserve(&mut cell, NOW, 400);
    assert!(!limit.admits(&cell, NOW, 601));
    limit.give_back(&mut cell, NOW, &reservation, 250);
    assert!(limit.admits(&cell, NOW, 850));
}
