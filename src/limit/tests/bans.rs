//! Bans beside their definition.

use super::super::shared::Restored;
use super::*;

#[derive(Clone, Copy, Debug)]
struct Last {
    until: u64,
    times: u32,
}

#[derive(Debug)]
struct Oracle {
    first: u64,
    longest: u64,
    last: Option<Last>,
}

impl Oracle {
    fn until(&self, now: u64) -> Option<Last> {
        self.last.filter(|last| now < last.until)
    }

    fn begin(&mut self, now: u64) -> bool {
        if self.until(now).is_some() {
            return false;
        }
        let follows = self.last.filter(|last| now <= last.until + self.longest);
        let times = follows.map_or(1, |last| last.times + 1);
        let length = (0..times - 1).fold(self.first, |length, _| (2 * length).min(self.longest));
        self.last = Some(Last { until: now + length, times });
        true
    }
}

fn bans(first: u64, longest: u64) -> Limit {
    Limit::bans("l", Duration::from_micros(first), Duration::from_micros(longest)).unwrap()
}

/// Begins a ban as gateways do. Returns whether there was none.
fn begin(bans: &Limit, cell: &mut Cell, now: Time) -> bool {
    cell.advance(bans.rates(), now);
    let admitted = bans.admits(cell, now, bans.capacity());
    if admitted {
        bans.charge(cell, now, 1);
    }
    admitted
}

proptest! {
    #[test]
    fn last_as_they_are_defined(
        (first, more) in (1..20u64, 0..500u64),
        steps in prop::collection::vec((prop_oneof![Just(0), 0..3 * SECOND, 0..100 * SECOND, 0..2000 * SECOND], 0..3u8), 1..60),
    ) {
        let (first, longest) = (first * SECOND, (first + more) * SECOND);
        let (bans, mut now) = (bans(first, longest), 1_800_000_000 * SECOND);
        let (mut cell, mut oracle) = (Cell::new(bans.rates(), at(now)), Oracle { first, longest, last: None });
        for (gap, what) in steps {
            now += gap;
            if what == 0 {
                prop_assert_eq!(begin(&bans, &mut cell, at(now)), oracle.begin(now));
            }
            cell.advance(bans.rates(), at(now));
            let verdict = bans.judge(&cell, at(now), bans.capacity(), bans.admits(&cell, at(now), bans.capacity()));
            let expected = oracle.until(now);
            prop_assert_eq!(verdict.admitted, expected.is_none());
            prop_assert_eq!(bans.times(&verdict), expected.map_or(0, |last| u64::from(last.times)));
            prop_assert_eq!(verdict.wait.filter(|_| !verdict.admitted), expected.map(|last| last.until - now));
            let is_forgiven = oracle.last.is_none_or(|last| now > last.until + longest);
            prop_assert_eq!(cell.is_spent(bans.rates(), at(now)), is_forgiven);
            let Restored { cell: again, .. } = Cell::restore(bans.rates(), at(now), &cell.save(0)).unwrap();
            prop_assert_eq!(&again, &cell, "it outlives the process");
        }
    }
}

#[test]
fn they_double_up_to_the_longest_and_are_forgiven() {
    let (bans, mut now) = (bans(10 * SECOND, 60 * SECOND), 1_800_000_000 * SECOND);
    let mut cell = Cell::new(bans.rates(), at(now));
    for (times, length) in [(1, 10), (2, 20), (3, 40), (4, 60), (5, 60)] {
        assert!(begin(&bans, &mut cell, at(now)));
        assert!(!begin(&bans, &mut cell, at(now + SECOND)), "one that is running becomes no longer");
        // Nor longer by a ban of a gateway that could not know of it.
        bans.charge(&mut cell, at(now + SECOND), 1);
        let verdict = bans.judge(&cell, at(now), bans.capacity(), false);
        assert_eq!((verdict.wait, bans.times(&verdict)), (Some(length * SECOND), times));
        // The last moment at which a ban still follows this one.
        now += (length + 60) * SECOND;
        cell.advance(bans.rates(), at(now));
    }
    assert!(cell.is_spent(bans.rates(), at(now + 1)));
    assert!(begin(&bans, &mut cell, at(now + 1)));
    assert_eq!(bans.judge(&cell, at(now + 1), bans.capacity(), false).wait, Some(10 * SECOND));
}

#[test]
fn of_gateways_that_begin_one_at_the_same_time_one_does() {
    let (bans, now) = (bans(10 * SECOND, 60 * SECOND), at(1_800_000_000 * SECOND));
    let attempt = || [Operation::Attempt(bans.attempt(now, bans.capacity(), 1))].into_iter();
    let mut bytes = Cell::new(bans.rates(), now).save(0);
    Cell::append(Writing { writer: 7, sequence: 1 }, attempt(), 0, &mut bytes);
    Cell::append(Writing { writer: 8, sequence: 1 }, attempt(), 0, &mut bytes);
    let Restored { cell, groups, .. } = Cell::restore(bans.rates(), now, &bytes).unwrap();
    assert_eq!(groups.iter().map(|group| group.admitted[0]).collect::<Vec<_>>(), [1, 0]);
    let verdict = bans.judge(&cell, now, bans.capacity(), false);
    assert_eq!((verdict.wait, bans.times(&verdict)), (Some(10 * SECOND), 1));
}

#[test]
fn a_clock_that_is_set_back_makes_none_longer() {
    let (bans, now) = (bans(10 * SECOND, 60 * SECOND), 1_800_000_000 * SECOND);
    let mut cell = Cell::new(bans.rates(), at(now));
    begin(&bans, &mut cell, at(now));
    cell.advance(bans.rates(), at(now - 3_600 * SECOND));
    let verdict = bans.judge(&cell, at(now - 3_600 * SECOND), bans.capacity(), false);
    assert_eq!((verdict.admitted, verdict.wait), (false, Some(10 * SECOND)));
}

#[test]
fn other_lengths_hold_for_the_ban_that_is_running() {
    let now = at(1_800_000_000 * SECOND);
    let (short, long) = (bans(10 * SECOND, 60 * SECOND), bans(30 * SECOND, 120 * SECOND));
    assert_eq!(short.id(), long.id(), "the same cells");
    let mut cell = Cell::new(short.rates(), now);
    begin(&short, &mut cell, now);
    assert_eq!(long.judge(&cell, now, long.capacity(), false).wait, Some(30 * SECOND));
    assert!(Limit::bans("l", Duration::from_secs(2), Duration::from_secs(1)).is_err());
}
