//! Requests whose cost is known only later: after they give something back, a cell is as if that had never been counted.

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::oracle::{Kind, Oracle};
use super::strategies::{limits, rate_of};
use super::*;

const DAY: u64 = 86_400 * SECOND;
const BEGIN: u64 = 1_000 * DAY - 5 * SECOND;

#[derive(Clone, Debug)]
enum Event {
    Charge(u64),
    /// A request that reserves this much until its cost is known.
    Reserve(u64),
    /// Settles this open reservation: so many quarters are kept.
    Settle(usize, u64),
}

fn schedule() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0..900_000u64, 2 => 0..4 * SECOND, 1 => 0..90 * SECOND];
    let cost = || prop_oneof![3 => Just(1u64), 1 => 1..=5u64];
    let kept = prop_oneof![3 => Just(0u64), 2 => Just(4), 1 => 1..=3u64];
    let event = prop_oneof![
        2 => cost().prop_map(Event::Charge),
        4 => cost().prop_map(Event::Reserve),
        4 => (0..6usize, kept).prop_map(|(which, kept)| Event::Settle(which, kept)),
    ];
    prop::collection::vec((gap, event), 1..80)
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    time: u64,
    cost: u64,
    /// The count of the oldest bucket of the first rate at that moment.
    oldest: u64,
}

struct Run {
    limit: Limit,
    cell: Cell,
    now: u64,
    /// Each with its index in `counted`.
    open: Vec<(Reservation, usize)>,
    counted: Vec<Counted>,
}

impl Run {
    fn new(rates: &[Rate]) -> Self {
        let limit = Limit::new("l", rates);
        let cell = Cell::new(limit.rates(), at(BEGIN));
        Self { limit, cell, now: BEGIN, open: Vec::new(), counted: Vec::new() }
    }

    fn pass(&mut self, gap: u64) {
        self.now += gap;
        self.cell.advance(self.limit.rates(), at(self.now));
    }

    fn give_back_any(&mut self, cost: u64) {
        for charge in self.limit.newest_charges(&self.cell, at(self.now), cost) {
            self.limit.give_back(&mut self.cell, at(self.now), &charge, cost);
        }
    }

    fn ask(&mut self, cost: u64, is_open: bool) -> bool {
        let now = at(self.now);
        if !self.limit.admits(&self.cell, now, cost) {
            return false;
        }
        if is_open {
            let reservation = self.limit.reserve(&mut self.cell, now, cost);
            self.open.push((reservation, self.counted.len()));
        } else {
            self.limit.charge(&mut self.cell, now, cost);
        }
        let oldest = self.cell.counts_mut().take_while(|(place, ..)| *place == 0).last();
        let oldest = oldest.map_or(0, |(_, _, count)| *count);
        self.counted.push(Counted { time: self.now, cost, oldest });
        true
    }

    /// Settles an open reservation, if there is one. Returns its index in `counted`, and how much is given back.
    fn settle(&mut self, which: usize, kept: u64) -> Option<(usize, u64)> {
        let (reservation, index) = self.open.swap_remove(which.checked_rem(self.open.len())?);
        let given = reservation.cost() - reservation.cost() * kept / 4;
        self.limit.give_back(&mut self.cell, at(self.now), &reservation, given);
        self.counted[index].cost -= given;
        Some((index, given))
    }

    /// A cell that has seen only what stayed counted, or is open.
    fn twin(&self) -> Cell {
        let mut twin = Cell::new(self.limit.rates(), at(BEGIN));
        for counted in self.counted.iter().filter(|counted| counted.cost > 0) {
            twin.advance(self.limit.rates(), at(counted.time));
            self.limit.charge(&mut twin, at(counted.time), counted.cost);
        }
        twin.advance(self.limit.rates(), at(self.now));
        twin
    }
}

fn built(rates: &[(Kind, u64, u64)]) -> Vec<Rate> {
    rates.iter().map(|(kind, quota, window)| rate_of(*kind, *quota, *window)).collect()
}

struct Compared {
    run: Run,
    oracles: Vec<Oracle>,
    times: Vec<Vec<u64>>,
}

impl Compared {
    fn new(rates: &[(Kind, u64, u64)]) -> Self {
        let oracles = rates.iter().map(|(kind, quota, window)| Oracle::new(*kind, *quota, *window)).collect();
        Self { run: Run::new(&built(rates)), oracles, times: Vec::new() }
    }

    fn pass(&mut self, gap: u64) {
        self.run.pass(gap);
        self.oracles.iter_mut().for_each(|oracle| oracle.tick(self.run.now));
    }

    fn ask(&mut self, cost: u64, is_open: bool) -> bool {
        let is_admitted = self.run.ask(cost, is_open);
        if is_admitted {
            let now = self.run.now;
            self.times.push(self.oracles.iter_mut().map(|oracle| oracle.charge(now, cost)).collect());
        }
        is_admitted
    }

    fn settle(&mut self, which: usize, kept: u64) {
        if let Some((index, given)) = self.run.settle(which, kept) {
            let then = self.oracles.iter_mut().zip(&self.times[index]);
            then.for_each(|(oracle, then)| oracle.give_back(*then, given));
        }
    }

    fn remaining(&self) -> u64 {
        self.oracles.iter().map(|oracle| oracle.remaining(self.run.now)).min().unwrap()
    }
}

proptest! {
    /// Every decision is as defined for what is open and what stayed counted: nothing is created, nothing is lost, and never
    /// more is counted than the strategy allows.
    #[test]
    fn decide_as_if_what_was_given_back_had_never_been(rates in limits(), schedule in schedule()) {
        let mut compared = Compared::new(&rates);
        for (gap, event) in schedule {
            compared.pass(gap);
            match event {
                Event::Charge(cost) | Event::Reserve(cost) => {
                    let left = compared.remaining();
                    let is_admitted = compared.ask(cost, matches!(event, Event::Reserve(_)));
                    prop_assert_eq!(is_admitted, left >= cost, "at {} with {} left", compared.run.now, left);
                }
                Event::Settle(which, kept) => compared.settle(which, kept),
            }
            let (run, left) = (&compared.run, compared.remaining());
            let verdict = run.limit.judge(&run.cell, at(run.now), 1, true);
            prop_assert_eq!(verdict.remaining, left);
            let refused = run.limit.judge(&run.cell, at(run.now), 1, false);
            if let Some(wait) = refused.wait.filter(|_| left == 0) {
                // What a client is told after some were given back: not a microsecond before, and then for certain.
                for (wait, fits) in [(wait, true), (wait - 1, false)] {
                    let mut later = run.cell.clone();
                    later.advance(run.limit.rates(), at(run.now + wait));
                    prop_assert_eq!(run.limit.admits(&later, at(run.now + wait), 1), fits);
                }
            }
        }
    }

    #[test]
    fn sliding_windows_are_as_if_they_had_never_seen_it(rate in small_rate(), schedule in schedule()) {
        let mut run = Run::new(std::slice::from_ref(&rate));
        for (gap, event) in schedule {
            run.pass(gap);
            match event {
                Event::Charge(cost) | Event::Reserve(cost) => {
                    run.ask(cost, matches!(event, Event::Reserve(_)));
                }
                Event::Settle(which, kept) => {
                    run.settle(which, kept);
                }
            }
            prop_assert_eq!(&run.cell, &run.twin());
        }
        let kept: Vec<_> = run.counted.iter().filter(|counted| counted.cost > 0).collect();
        let kept: Vec<_> = kept.iter().map(|kept| Admitted { time: kept.time, cost: kept.cost, oldest: kept.oldest }).collect();
        check_windows(&rate, &kept)?;
    }

    #[test]
    fn what_is_given_back_at_once_leaves_no_trace(rates in limits(), schedule in schedule(), cost in 1..=9u64) {
        let mut run = Run::new(&built(&rates));
        for (gap, event) in schedule {
            run.pass(gap);
            if let Event::Charge(cost) | Event::Reserve(cost) = event {
                run.ask(cost, false);
            }
        }
        let mut before = run.cell.clone();
        let reservation = run.limit.reserve(&mut run.cell, at(run.now), cost);
        run.limit.give_back(&mut run.cell, at(run.now), &reservation, cost);
        for later in [0, 1, SECOND, 61 * SECOND] {
            let now = at(run.now + later);
            for cell in [&mut run.cell, &mut before] {
                cell.advance(run.limit.rates(), now);
            }
            for need in 1..=9 {
                let of = |cell| run.limit.judge(cell, now, need, run.limit.admits(cell, now, need));
                prop_assert_eq!(of(&run.cell), of(&before));
            }
        }
    }

    /// No rate counts less than nothing, or so many less than were given back, and what is left is given back, too.
    #[test]
    fn hits_of_any_requests_are_given_back_as_far_as_they_count(
        rates in limits(), schedule in schedule(), given in 1..=9u64, all in 100..=u64::MAX,
    ) {
        let mut run = Run::new(&built(&rates));
        for (gap, event) in schedule {
            run.pass(gap);
            match event {
                Event::Charge(cost) | Event::Reserve(cost) => _ = run.ask(cost, false),
                Event::Settle(..) => {
                    let before: Vec<_> = run.limit.usages(&run.cell, at(run.now)).collect();
                    run.give_back_any(given);
                    for (before, after) in before.iter().zip(run.limit.usages(&run.cell, at(run.now))) {
                        prop_assert!(after.used <= before.used && before.used - after.used <= given, "{before:?} {after:?}");
                        prop_assert!(after.remaining <= before.remaining + given && after.remaining <= after.capacity);
                    }
                }
            }
        }
        run.give_back_any(all);
        prop_assert!(run.limit.usages(&run.cell, at(run.now)).all(|usage| usage.used == 0));
    }

    /// A gateway that has read another's state tracks no reservations: it gives back less rather than more.
    #[test]
    fn what_is_not_followed_creates_nothing(rates in limits(), schedule in schedule()) {
        let mut compared = Compared::new(&rates);
        for (gap, event) in schedule {
            compared.pass(gap);
            match event {
                Event::Charge(cost) | Event::Reserve(cost) => {
                    compared.ask(cost, matches!(event, Event::Reserve(_)));
                    let run = &mut compared.run;
                    let bytes = run.cell.save(0);
                    let mut restored = Cell::restore(run.limit.rates(), at(run.now), &bytes).unwrap().cell;
                    restored.fill(|place, bucket| run.cell.count(place, bucket).unwrap_or(0));
                    run.cell = restored;
                }
                Event::Settle(which, kept) => compared.settle(which, kept),
            }
            let (run, left) = (&compared.run, compared.remaining());
            prop_assert!(run.limit.judge(&run.cell, at(run.now), 1, true).remaining <= left);
        }
    }

    #[test]
    fn what_is_appended_gives_back_the_same(rates in limits(), schedule in schedule(), later in 0..2 * SECOND) {
        let mut run = Run::new(&built(&rates));
        for (gap, event) in schedule {
            run.pass(gap);
            if let Event::Charge(cost) | Event::Reserve(cost) = event {
                run.ask(cost, matches!(event, Event::Reserve(_)));
            }
        }
        let rates = run.limit.rates();
        let saved = run.cell.save(0);
        let mut appended = saved.clone();
        let now = at(run.now + later);
        let restored = |bytes: &[u8]| Cell::restore(rates, now, bytes).unwrap().cell;
        let mut direct = restored(&saved);
        for (sequence, (reservation, _)) in (0..).zip(&run.open) {
            run.limit.give_back_whole(&mut direct, now, reservation, 1);
            let give_back = Operation::give_back(rates, reservation, 1);
            Cell::append(Writing { writer: 1, sequence }, [give_back].into_iter(), 0, &mut appended);
        }
        // A bucket gives back less: it has drained until the time of the saved state.
        let left = |cell: &Cell| run.limit.judge(cell, now, 1, true).remaining;
        prop_assert!(left(&restored(&appended)) >= left(&direct));
        if !run.limit.follows() {
            prop_assert_eq!(restored(&appended).save(0), direct.save(0));
        }
    }
}

#[test]
fn a_reservation_that_has_drained_is_not_given_back_as_a_token() {
    let limit = Limit::new("l", &["5/5s burst 5".parse().unwrap()]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    let reservation = limit.reserve(&mut cell, at(DAY), 1);
    let later = DAY + SECOND;
    cell.advance(limit.rates(), at(later));
    assert!(ask(&limit, &mut cell, at(later), 1));
    limit.give_back(&mut cell, at(later), &reservation, 1);
    assert_eq!(limit.judge(&cell, at(later), 1, true).remaining, 4, "the bucket holds five at most, and one is gone");
}

#[test]
fn what_is_kept_of_reservations_that_nobody_settles_is_bounded() {
    let limit = Limit::new("l", &["1000/s burst 1000".parse().unwrap()]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    limit.charge(&mut cell, at(DAY), 500);
    let mut first = None;
    // As much comes as drains, so the bucket is never empty.
    for now in (1..=20_000).map(|milli| at(DAY + milli * 1_000)) {
        cell.advance(limit.rates(), now);
        let reservation = limit.reserve(&mut cell, now, 1);
        first.get_or_insert(reservation);
    }
    assert!(cell.allocations().sum::<usize>() < 200_000, "{:?}", cell.allocations().collect::<Vec<_>>());
    let end = at(DAY + 20_000_000);
    let before = limit.judge(&cell, end, 1, true).remaining;
    limit.give_back(&mut cell, end, &first.unwrap(), 1);
    assert_eq!(
        limit.judge(&cell, end, 1, true).remaining,
        before + 1,
        "it was never empty, so nothing of it has drained"
    );
}

/// Reserves 100 each time, and settles all with a cost of 0, in the order of these indexes. Returns what stays charged.
fn all_given_back(count: usize, gap: u64, order: impl Iterator<Item = usize>) -> u64 {
    let limit = Limit::new("l", &["1/d burst 10000000".parse().unwrap()]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    let moment = |number: usize| at(DAY + number as u64 * gap);
    let reserve = |number| {
        cell.advance(limit.rates(), moment(number));
        limit.reserve(&mut cell, moment(number), 100)
    };
    let open: Vec<_> = (0..count).map(reserve).collect();
    let end = moment(count);
    cell.advance(limit.rates(), end);
    order.for_each(|index| limit.give_back(&mut cell, end, &open[index], 100));
    10_000_000 - limit.judge(&cell, end, 1, true).remaining
}

#[test]
fn however_many_reservations_are_open_what_did_not_drain_is_given_back() {
    for (gap, count) in [0, 1, 1_000].into_iter().flat_map(|gap| [1_000, 2_000, 4_096].map(|count| (gap, count))) {
        assert_eq!(all_given_back(count, gap, 0..count), 0, "{count}, {gap}");
        assert_eq!(all_given_back(count, gap, (0..count).rev()), 0, "{count}, {gap}");
    }
    // Reservations that are tracked together share the least use since the first of them.
    for count in [5_000, 20_000] {
        let mut random: Vec<_> = (0..count).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut random);
        for order in [(0..count).collect(), (0..count).rev().collect(), random] {
            let kept = all_given_back(count, 1, order.into_iter());
            assert!(kept <= count as u64 * 100 / 1_000, "{kept} of {count} times 100 stay");
        }
    }
}

#[test]
fn nothing_is_kept_of_reservations_that_are_settled() {
    let limit = Limit::new("l", &["5/s burst 5".parse().unwrap()]);
    let mut cell = Cell::new(limit.rates(), at(DAY));
    let fresh = cell.clone();
    for _ in 0..3 {
        let reservations = [0; 5].map(|_| limit.reserve(&mut cell, at(DAY), 1));
        assert_ne!(cell, fresh);
        reservations.iter().for_each(|reservation| limit.give_back(&mut cell, at(DAY), reservation, 1));
        assert_eq!(cell, fresh);
    }
    let reservation = limit.reserve(&mut cell, at(DAY), 1);
    limit.give_back(&mut cell, at(DAY), &reservation, 0);
    let mut charged = fresh.clone();
    limit.charge(&mut charged, at(DAY), 1);
    assert_eq!(cell, charged, "what is kept in full is not followed any more");
}
