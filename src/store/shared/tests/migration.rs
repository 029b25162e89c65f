//! Reloads that change how a limit counts: a gateway continues from what it knows, whoever reloads when.

use super::*;
use crate::base::clock::Time;
use crate::limit::{Calendar, Unit};
use crate::store::shared::mailbox::{Message, Reload};
use crate::store::{LimitChanges, Replaced};

impl World {
    pub(super) fn reload(&mut self, gateway: usize, way: usize) {
        let before = std::mem::replace(&mut self.gateways[gateway].way, way);
        let [from, to] = [before, way].map(|way| self.ways[way].clone());
        let is_same = from.id() == to.id();
        let replaced = if is_same { Vec::new() } else { vec![Replaced { key: self.overridden, from, to: to.clone() }] };
        let (now, asked) = (self.clock(gateway), self.instant());
        // If this is an override, other keys may have any of them.
        let in_use = if self.overridden.is_some() { self.ways.clone() } else { vec![to] };
        let changes = LimitChanges { in_use, replaced, ..LimitChanges::default() };
        let reload = Message::Reload(Box::new(Reload { changes, now, asked }));
        self.gateways[gateway].coordinator.submit(reload, asked + Duration::from_micros(self.patience));
    }
}

/// Every way to count that has a rate per minute.
fn ways(quota: u64) -> Vec<Arc<Limit>> {
    (0..KINDS).filter(|kind| *kind != 6).map(|kind| limit(kind, quota)).collect()
}

/// Some of them, so few that all changes between them are remembered.
fn some_ways() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::subsequence((0..KINDS).filter(|kind| *kind != 6).collect::<Vec<_>>(), 2..=4).prop_shuffle()
}

fn limits(kinds: &[usize], quota: u64) -> Vec<Arc<Limit>> {
    kinds.iter().map(|kind| limit(*kind, quota)).collect()
}

fn pairs(quota: u64) -> impl Iterator<Item = [Arc<Limit>; 2]> {
    let all = ways(quota);
    all.clone().into_iter().flat_map(move |old| all.clone().into_iter().map(move |new| [old.clone(), new]))
}

fn share_counters([old, new]: &[Arc<Limit>; 2]) -> bool {
    let is_shared = |rate: &Rate| rate.uses_counters() && old.rates().iter().any(|old| rate.is_kept_like(old));
    old.id() == new.id() || new.rates().iter().any(is_shared)
}

/// Limits per day of two time zones whose days begin at the same moment.
fn of_the_same_days(quota: u64) -> [Arc<Limit>; 2] {
    ["Europe/Berlin", "Europe/Paris"].map(|zone| {
        let calendar = Calendar::utc(Unit::Day).in_zone(zone).unwrap();
        let day = Rate::new(quota, Duration::from_secs(86_400)).unwrap();
        Arc::new(Limit::new("l", &[day.with_strategy(Counting::Calendar(calendar)).unwrap()]))
    })
}

fn key() -> Fingerprint {
    Fingerprint::of(b"key")
}

fn world(gateways: usize, how: (OnError, bool), ways: &[Arc<Limit>]) -> World {
    let mut world = World::new(gateways, 1, how, vec![vec![ask(&ways[0], key())]]);
    world.ways = ways.to_vec();
    (0..gateways).for_each(|gateway| world.connect(gateway, 0));
    world
}

/// The same, once with reloads and once with overrides.
fn worlds(gateways: usize, how: (OnError, bool), ways: &[Arc<Limit>]) -> [World; 2] {
    [None, Some(key())].map(|overridden| {
        let mut world = world(gateways, how, ways);
        world.overridden = overridden;
        world
    })
}

const ONE: Step = Step::Ask { gateway: 0, what: 0, cost: 1 };

/// How many of `times` requests to a gateway pass, one after the other.
fn pass(world: &mut World, gateway: usize, times: usize) -> usize {
    let passes = |_: &usize| {
        world.run(&Step::Moment);
        world.run(&Step::Ask { gateway, what: 0, cost: 1 });
        world.settle();
        world.decided.last().unwrap().admitted()
    };
    (0..times).filter(passes).count()
}

/// Whether one request passes at a second gateway, which starts now with the second way and knows what the server has.
fn pass_at_another(world: &mut World, how: (OnError, bool)) -> usize {
    world.join(how);
    world.gateways[1].way = 1;
    pass(world, 1, 1)
}

fn named(ways: &[Arc<Limit>; 2]) -> String {
    format!("{:?} to {:?}", ways[0].rates(), ways[1].rates())
}

fn what_was_counted_goes_on_whatever_counts() {
    for (ways, how) in pairs(9).flat_map(|ways| [(ways.clone(), LOCAL), (ways, STRICT)]) {
        let what = named(&ways);
        for mut world in worlds(1, how, &ways) {
            assert_eq!(pass(&mut world, 0, 7), 7);
            world.run(&Step::Tick(1_000));
            world.run(&Step::Reload(0, 1));
            assert_eq!(pass(&mut world, 0, 3), 2, "{what}");
            // The server knows it as well.
            assert_eq!(pass_at_another(&mut world, how), 0, "{what}");
        }
    }
}

fn what_goes_on_takes_no_exchange_of_its_own() {
    for ways in pairs(9) {
        let mut world = world(1, STRICT, &ways);
        assert_eq!(pass(&mut world, 0, 9), 9);
        world.run(&Step::Reload(0, 1));
        let before = world.decided.len();
        [ONE, Step::Send(0, 0), Step::Execute(0, 0), Step::Answer(0, 0)].iter().for_each(|step| world.run(step));
        assert_eq!(world.decided.len(), before + 1, "{}", named(&ways));
        assert!(!world.decided[before].admitted());
        // Nothing was admitted since, but others learn of it from the server.
        world.settle();
        assert_eq!(pass_at_another(&mut world, STRICT), 0, "{}", named(&ways));
    }
}

fn what_the_server_has_yet_to_be_told_is_told_once() {
    // Both count the day in the same counter.
    let ways = [limit(6, 9), limit(7, 9)];
    let mut world = world(1, LOCAL, &ways);
    assert_eq!(pass(&mut world, 0, 3), 3);
    world.run(&Step::Charge { gateway: 0, what: 0, cost: 2 });
    world.run(&Step::Reload(0, 1));
    assert_eq!(pass(&mut world, 0, 1), 1);
    for way in [0, 1] {
        world.join(LOCAL);
        world.gateways[1 + way].way = way;
    }
    assert_eq!(pass(&mut world, 1, 1), 1);
    assert_eq!((pass(&mut world, 0, 1), pass(&mut world, 2, 2)), (1, 1));
    assert_eq!([0, 1, 2].map(|gateway| pass(&mut world, gateway, 1)), [0; 3]);
}

fn what_both_gateways_know_counts_once() {
    for (ways, how, first) in
        pairs(9).flat_map(|ways| [(ways.clone(), LOCAL, 0), (ways.clone(), STRICT, 0), (ways, STRICT, 1)])
    {
        let what = format!("{}, {first} first", named(&ways));
        for mut world in worlds(2, how, &ways) {
            assert_eq!((pass(&mut world, 0, 3), pass(&mut world, 1, 3), pass(&mut world, 0, 1)), (3, 3, 1));
            world.run(&Step::Tick(1_000));
            world.run(&Step::Reload(first, 1));
            assert_eq!(pass(&mut world, first, 1), 1, "{what}");
            world.run(&Step::Reload(1 - first, 1));
            // One knows of 7, and the other one of 6 or 7.
            let left = pass(&mut world, 1 - first, 9) + pass(&mut world, first, 9);
            let most = if first == 0 { 1 } else { 2 };
            assert!((1..=most).contains(&left), "{left}: {what}");
        }
    }
}

fn at_its_gateway_nobody_gets_more_by_a_reload_although_another_one_was_faster() {
    for (ways, how) in pairs(9).flat_map(|ways| [(ways.clone(), LOCAL), (ways, STRICT)]) {
        let what = named(&ways);
        let mut world = world(1, how, &ways);
        assert_eq!(pass(&mut world, 0, 6), 6);
        world.run(&Step::Reload(0, 1));
        // It knows nothing of the old counters, and begins the new ones.
        assert_eq!(pass_at_another(&mut world, how), 1);
        let is_known = share_counters(&ways);
        let left = pass(&mut world, 0, 9);
        assert_eq!(left, if is_known { 2 } else { 3 }, "{what}");
        // A state that is one value is raised on the server.
        let is_told = is_known || ways[1].rates().iter().any(|rate| !rate.uses_counters());
        assert_eq!(pass(&mut world, 1, 9), if is_told { 0 } else { 5 }, "{what}");
        assert_eq!(pass(&mut world, 0, 1), 0, "{what}");
    }
}

fn a_burst_that_waits_at_a_reload_is_counted_on_top() {
    for (ways, how) in pairs(9).flat_map(|ways| [(ways.clone(), LOCAL), (ways, STRICT)]) {
        let what = format!("{}, {how:?}", named(&ways));
        let mut world = world(1, how, &ways);
        assert_eq!(pass(&mut world, 0, 6), 6);
        world.join(how);
        // Another gateway is faster to create the new counters.
        world.gateways[1].way = 1;
        if !share_counters(&ways) {
            assert_eq!(pass(&mut world, 1, 1), 1);
        }
        world.run(&Step::Moment);
        // Some have come before the reload and some come after it.
        let before = world.decided.len();
        (0..2).for_each(|_| world.run(&ONE));
        world.run(&Step::Send(0, 0));
        world.run(&Step::Reload(0, 1));
        (0..7).for_each(|_| world.run(&ONE));
        world.settle();
        let decided = &world.decided[before..];
        assert_eq!(decided.len(), 9, "{what}");
        assert_eq!(decided.iter().filter(|decided| decided.admitted()).count(), 3, "{what}");
    }
}

fn there_and_back_nothing_is_forgotten() {
    for ways in pairs(9) {
        let what = format!("{} and back", named(&ways));
        for mut world in worlds(1, LOCAL, &ways) {
            assert_eq!(pass(&mut world, 0, 3), 3);
            world.run(&Step::Reload(0, 1));
            assert_eq!(pass(&mut world, 0, 2), 2);
            world.run(&Step::Reload(0, 0));
            assert_eq!(pass(&mut world, 0, 9), 4, "{what}");
        }
    }
}

fn a_key_that_is_used_after_several_reloads_has_its_count() {
    for quick in [false, true] {
        let ways = ways(9);
        let mut world = world(1, LOCAL, &ways);
        assert_eq!(pass(&mut world, 0, 4), 4);
        for way in 1..ways.len() {
            world.run(&Step::Reload(0, way));
            assert_eq!(pass(&mut world, 0, usize::from(!quick && way < 4)), usize::from(!quick && way < 4));
        }
        assert_eq!(pass(&mut world, 0, 9), if quick { 5 } else { 2 });
    }
}

fn a_reload_while_the_server_is_away_gives_no_second_helping() {
    for ways in pairs(9) {
        let what = named(&ways);
        let mut world = world(1, LOCAL, &ways);
        assert_eq!(pass(&mut world, 0, 5), 5);
        world.run(&Step::Break(0, 0, 0));
        world.run(&ONE);
        world.run(&Step::Reload(0, 1));
        let before = world.decided.len();
        (0..9).for_each(|_| world.run(&ONE));
        let count = world.decided[before..].iter().filter(|decided| decided.admitted()).count();
        assert_eq!(count, 3, "{what}");
        // The server is back, and learns of all that.
        assert_eq!(pass(&mut world, 0, 1), 0, "{what}");
        assert_eq!(pass_at_another(&mut world, LOCAL), 0, "{what}");
    }
}

fn what_was_reserved_before_stays_charged_once_the_key_is_used() {
    for ways in pairs(9).chain([of_the_same_days(9)]) {
        for (is_seen, mut world) in
            [false, true].into_iter().flat_map(|is_seen| worlds(1, LOCAL, &ways).map(|world| (is_seen, world)))
        {
            let what = format!("{}, seen: {is_seen}", named(&ways));
            world.run(&Step::Reserve { gateway: 0, what: 0, cost: 3 });
            world.settle();
            assert_eq!(pass(&mut world, 0, 2), 2);
            world.run(&Step::Reload(0, 1));
            if is_seen {
                assert_eq!(pass(&mut world, 0, 1), 1);
            }
            world.settle_one(0, 0);
            world.settle();
            // Before that, it is given back where it was counted.
            let is_given_back = !is_seen || ways[0].id() == ways[1].id();
            let left = if is_given_back { 9 - 2 } else { 9 - 3 - 2 } - usize::from(is_seen);
            let passed = pass(&mut world, 0, 9);
            // Some of a token bucket has drained meanwhile.
            assert!(passed == left || passed + 1 == left && ways[0].follows(), "{passed} of {left}: {what}");
        }
    }
}

fn what_a_request_costs_in_addition_is_charged_after_a_reload() {
    for ways in pairs(9) {
        let mut world = world(1, LOCAL, &ways);
        world.run(&Step::Reserve { gateway: 0, what: 0, cost: 3 });
        world.settle();
        world.run(&Step::Reload(0, 1));
        assert_eq!(pass(&mut world, 0, 1), 1);
        // It costs twice as much.
        world.settle_one(0, 8);
        world.settle();
        assert_eq!(pass(&mut world, 0, 9), 2, "{}", named(&ways));
    }
}

/// Returns how much was admitted of the key.
fn run(world: &mut World, steps: &[Step]) -> u64 {
    let before = world.decided.len();
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    world.decided[before..].iter().filter(|decided| decided.admitted()).map(Decided::cost).sum()
}

/// How much of a quota a token bucket has regained since `begun`.
fn drained(world: &World, begun: Time, quota: u64) -> u64 {
    (world.now.micros() - begun.micros()).div_ceil(60_000_000 / quota)
}

proptest! {
    fn a_gateway_that_reloads_admits_no_more(
        steps in schedule(reloading(lasting(lossy())), 150),
        (quota, on_error, strict, settles) in (1..30_u64, failing(), any::<bool>(), any::<bool>()),
        (kinds, is_override) in (some_ways(), any::<bool>()),
    ) {
        let mut world = world(1, (on_error, strict), &limits(&kinds, quota));
        world.whats[0][0].settles = settles;
        world.overridden = is_override.then(key);
        let begun = world.now;
        let admitted = run(&mut world, &steps);
        prop_assert!(admitted <= quota + drained(&world, begun, quota), "{admitted} of {quota}");
    }

    /// If a gateway reloads while nothing is in flight, as many pass as without the reload.
    fn a_gateway_that_reloads_admits_all_there_is(
        steps in schedule(reloading(reliable()), 150),
        (quota, strict) in (1..30_u64, any::<bool>()),
        (kinds, is_override) in (some_ways(), any::<bool>()),
    ) {
        let mut world = world(1, (OnError::Local, strict), &limits(&kinds, quota));
        world.overridden = is_override.then(key);
        for step in steps {
            match step {
                Step::Ask { gateway, what, .. } => world.run(&Step::Ask { gateway, what, cost: 1 }),
                Step::Reload(..) => {
                    world.settle();
                    world.run(&step);
                }
                _ => world.run(&step),
            }
        }
        world.settle();
        let admitted = world.decided.iter().filter(|decided| decided.admitted()).count();
        prop_assert_eq!(admitted as u64, (world.decided.len() as u64).min(quota));
    }

    /// Whoever reloads when, no gateway admits more than the quota, because it knows its own admissions.
    fn no_gateway_that_reloads_admits_more_than_the_quota(
        steps in schedule(reloading(lasting(broken())), 200),
        (gateways, quota, on_error, strict, settles) in
            (2..4_usize, 1..30_u64, failing(), any::<bool>(), any::<bool>()),
        (kinds, is_override) in (some_ways(), any::<bool>()),
    ) {
        let mut world = world(gateways, (on_error, strict), &limits(&kinds, quota));
        world.whats[0][0].settles = settles;
        world.overridden = is_override.then(key);
        let begun = world.now;
        run(&mut world, &steps);
        for gateway in 0..gateways {
            let own = world.decided.iter().filter(|decided| decided.gateway == gateway && decided.admitted());
            let admitted: u64 = own.map(Decided::cost).sum();
            prop_assert!(admitted <= quota + drained(&world, begun, quota), "{admitted} of {quota} at {gateway}");
        }
    }
}

/// A request waits for the server while overrides of its key come and go.
fn who_waits_is_counted_by_the_last_of_overrides_that_follow_each_other_at_once() {
    let mut world = world(1, (OnError::Local, false), &limits(&[4, BUCKET], 3));
    world.overridden = Some(key());
    let ask = |cost| Step::Ask { gateway: 0, what: 0, cost };
    let to = |way| Step::Reload(0, way);
    let admitted = run(&mut world, &[to(1), ask(3), to(0), to(1), to(0), ask(1), ask(2)]);
    assert_eq!(admitted, 3);
}

/// The first request after a reload came one second earlier: the new limit counts in seconds.
fn who_comes_late_from_the_bucket_before_a_reload_forgets_nothing() {
    let mut world = world(1, (OnError::Local, false), &limits(&[8, 2], 2));
    let ask = |cost| Step::Ask { gateway: 0, what: 0, cost };
    let steps = [ask(2), Step::Tick(980_000), ask(3), Step::Tick(20_000), ask(2), Step::Reload(0, 1)];
    assert_eq!(run(&mut world, &steps), 2);
}

with_each_server! {
    what_was_counted_goes_on_whatever_counts
    what_goes_on_takes_no_exchange_of_its_own
    what_the_server_has_yet_to_be_told_is_told_once
    what_both_gateways_know_counts_once
    at_its_gateway_nobody_gets_more_by_a_reload_although_another_one_was_faster
    a_burst_that_waits_at_a_reload_is_counted_on_top
    there_and_back_nothing_is_forgotten
    a_key_that_is_used_after_several_reloads_has_its_count
    a_reload_while_the_server_is_away_gives_no_second_helping
    what_was_reserved_before_stays_charged_once_the_key_is_used
    what_a_request_costs_in_addition_is_charged_after_a_reload
    a_gateway_that_reloads_admits_no_more
    a_gateway_that_reloads_admits_all_there_is
    no_gateway_that_reloads_admits_more_than_the_quota
    who_waits_is_counted_by_the_last_of_overrides_that_follow_each_other_at_once
    who_comes_late_from_the_bucket_before_a_reload_forgets_nothing
}
