//! Keys that are so busy that gateways lease a part of their quota.

use super::inspection::shown;
use super::*;
use crate::base::share::WHOLE;
use crate::store::shared::BRIEFLY;
use crate::store::shared::cached_cell::{BUSY, FAR, LEASE};

const LEASED: [usize; 5] = [0, 1, 2, 6, 7];

/// Raises costs so that one request makes a key busy.
fn costly(steps: &[Step]) -> Vec<Step> {
    let costly = |step: &Step| match *step {
        Step::Ask { gateway, what, cost } => Step::Ask { gateway, what, cost: cost * 16 },
        ref other => other.clone(),
    };
    steps.iter().map(costly).collect()
}

fn exchange(gateway: usize) -> [Step; 3] {
    [Step::Send(gateway, 0), Step::Execute(gateway, 0), Step::Answer(gateway, 0)]
}

fn world(gateways: usize, how: (OnError, bool), limit: &Arc<Limit>) -> (World, Fingerprint) {
    let key = key_on(0, 1, limit);
    let mut world = World::new(gateways, 1, how, vec![vec![ask(limit, key)]]);
    (0..gateways).for_each(|gateway| world.connect(gateway, 0));
    (world, key)
}

/// One request of the cost [`BUSY`], and two exchanges.
fn busy(world: &mut World, gateway: usize) {
    world.run(&Step::Ask { gateway, what: 0, cost: BUSY });
    (0..2).flat_map(|_| exchange(gateway)).for_each(|step| world.run(&step));
}

fn a_busy_key_is_decided_without_an_exchange_and_the_rest_is_given_back() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| LEASED.map(|kind| (how, kind))) {
        let (mut world, key) = world(1, how, &limit(kind, PLENTY / 2));
        (0..2).for_each(|_| busy(&mut world, 0));
        let before = world.decided.len();
        for _ in 0..4 {
            world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
        }
        assert_eq!(world.decided.len(), before + 4, "nobody waits");
        let remaining: Vec<_> = world.decided[before..].iter().map(Decided::remaining).collect();
        let left = PLENTY / 2 - 2 * BUSY;
        assert_eq!(remaining, [left - 1, left - 2, left - 3, left - 4], "what is leased is left");
        world.settle();
        assert_eq!(counted(&mut world, kind, key), 2 * BUSY + 4);
    }
}

fn what_is_leased_and_not_spent_makes_a_limit_no_fuller() {
    for how in [LOCAL, STRICT] {
        let (mut world, _) = world(1, how, &limit(0, PLENTY / 2));
        world.whats.iter_mut().flatten().for_each(|ask| ask.held_above = Some(WHOLE));
        (0..2).for_each(|_| busy(&mut world, 0));
        world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
        // Held requests use the lease as well.
        world.whats.iter_mut().flatten().for_each(|ask| ask.held_above = Some(0));
        (0..2).for_each(|_| world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 }));
        let level = |decided: &Decided| decided.reply.as_ref().unwrap().verdicts[0].1.level;
        let used = [0, BUSY, 2 * BUSY, 2 * BUSY + 1, 2 * BUSY + 2];
        let levels = used.map(|used| u32::try_from(used * 1_000_000 / (PLENTY / 2)).unwrap());
        assert_eq!(world.decided.iter().map(level).collect::<Vec<_>>(), levels, "nobody waits");
        (0..2).for_each(|_| world.settle_one(0, 0));
        world.settle();
        let key = world.whats[0][0].key;
        assert_eq!(counted(&mut world, 0, key), 2 * BUSY + 1, "{how:?}");
    }
}

fn a_lease_ends_in_time_and_with_its_bucket() {
    for how in [LOCAL, STRICT] {
        for pause in [LEASE, Duration::from_secs(61)] {
            let (mut world, key) = world(2, how, &limit(0, PLENTY / 2));
            (0..2).for_each(|_| busy(&mut world, 0));
            world.run(&Step::Tick(u64::try_from(pause.as_micros()).unwrap()));
            let before = world.decided.len();
            world.run(&Step::Moment);
            world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
            assert_eq!(world.decided.len(), before, "it waits for an exchange");
            world.settle();
            assert_eq!(admitted(&world.decided, key), 2 * BUSY + 1);
        }
    }
}

fn the_rest_is_given_back_at_the_time_of_the_last_request() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| LEASED.map(|kind| (how, kind))) {
        let (mut world, key) = world(1, how, &limit(kind, PLENTY / 2));
        (0..2).for_each(|_| busy(&mut world, 0));
        // The clock is set back when the lease ends, and right again when the next request comes.
        world.gateways[0].behind = 7_200_000_000;
        world.run(&Step::Tick(u64::try_from(LEASE.as_micros()).unwrap()));
        world.gateways[0].behind = 0;
        world.settle();
        assert_eq!(counted(&mut world, kind, key), 2 * BUSY, "{kind}");
    }
}

fn a_server_that_is_far_away_gives_no_leases() {
    for (round_trip, decided) in [(FAR / 2, 1), (FAR, 0)] {
        let (mut world, _) = world(1, STRICT, &limit(0, PLENTY / 2));
        let round_trip = Step::Tick(u64::try_from(round_trip.as_micros()).unwrap());
        for _ in 0..2 {
            let [send, execute, answer] = exchange(0);
            world.run(&Step::Ask { gateway: 0, what: 0, cost: BUSY });
            [&send, &execute, &round_trip, &answer].into_iter().for_each(|step| world.run(step));
        }
        exchange(0).iter().for_each(|step| world.run(step));
        let before = world.decided.len();
        world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
        assert_eq!(world.decided.len() - before, decided);
        world.settle();
    }
}

fn a_key_that_is_reset_has_no_lease() {
    for how in [LOCAL, STRICT] {
        let (mut world, key) = world(2, how, &limit(0, PLENTY / 2));
        (0..2).for_each(|_| busy(&mut world, 0));
        world.run(&Step::Reset(1, 0));
        (0..3).flat_map(|_| exchange(1)).for_each(|step| world.run(&step));
        world.settle();
        assert_eq!(counted(&mut world, 0, key), 0);
        world.run(&Step::Ask { gateway: 0, what: 0, cost: 7 });
        world.settle();
        assert_eq!(counted(&mut world, 0, key), 7);
    }
}

fn a_refusal_that_rests_on_the_lease_of_another_gateway_is_remembered_briefly() {
    let limit = limit(0, PLENTY / 2);
    let (mut world, key) = world(1, LOCAL, &limit);
    world.remembered = u64::MAX;
    world.join(LOCAL);
    world.connect(1, 0);
    (0..2).for_each(|_| busy(&mut world, 0));
    let mut ask_for = |cost| {
        world.ask(1, vec![OwnedAsk { need: cost, cost, ..ask(&limit, key) }]);
        (0..3).flat_map(|_| exchange(1)).for_each(|step| world.run(&step));
        world.decided.last().unwrap().remaining()
    };
    let rest = ask_for(0);
    assert!(rest < PLENTY / 2 - 2 * BUSY, "the other one has leased some");
    [rest, 1].into_iter().for_each(|cost| _ = ask_for(cost));
    let is_admitted: Vec<_> = world.decided.iter().rev().take(2).map(Decided::admitted).collect();
    assert_eq!(is_admitted, [false, true]);
    world.run(&Step::Tick(BRIEFLY));
    world.settle();
    world.run(&Step::Ask { gateway: 1, what: 0, cost: 1 });
    world.settle();
    assert_eq!(admitted(&world.decided, key), 2 * BUSY + rest + 1, "it was given back");
    // A key that nobody has charged meanwhile is not leased.
    world.run(&Step::Ask { gateway: 1, what: 0, cost: 99 });
    world.settle();
    world.run(&Step::Tick(BRIEFLY));
    let before = world.decided.len();
    world.run(&Step::Ask { gateway: 1, what: 0, cost: 99 });
    assert_eq!(world.decided.len() - before, 1, "nobody is asked");
    world.settle();
}

fn an_override_concerns_the_lease_and_the_requests_of_its_key_alone() {
    for how in [LOCAL, STRICT] {
        let ways = [0, 1].map(|kind| limit(kind, PLENTY / 2));
        let (mut world, key) = world(1, how, &ways[0]);
        let other = Fingerprint::of(b"other");
        world.whats.push(vec![ask(&ways[0], other)]);
        world.ways = ways.to_vec();
        world.overridden = Some(other);
        for what in [0, 0, 1, 1] {
            world.run(&Step::Ask { gateway: 0, what, cost: BUSY });
            (0..2).flat_map(|_| exchange(0)).for_each(|step| world.run(&step));
        }
        world.run(&Step::Reload(0, 1));
        let before = world.decided.len();
        let mut ask_all = |asks: &[(&Arc<Limit>, Fingerprint)]| {
            asks.iter().for_each(|(limit, key)| world.ask(0, vec![ask(limit, *key)]));
            world.decided.len() - before
        };
        assert_eq!(ask_all(&[(&ways[0], key), (&ways[1], other), (&ways[0], key)]), 2, "it still has its lease");
        world.settle();
        let of = |world: &mut World, way: usize, key| shown(world, 0, &ask(&ways[way], key));
        assert_eq!((of(&mut world, 0, key), of(&mut world, 1, other)), (2 * BUSY + 2, 2 * BUSY + 1), "{how:?}");
        // The other limit never counted it.
        assert_eq!(of(&mut world, 1, key), 0);
    }
}

fn nobody_waits_for_a_reload_because_a_key_is_leased() {
    for how in [LOCAL, STRICT] {
        for is_answered in [true, false] {
            let ways = [0, 1].map(|kind| limit(kind, PLENTY / 2));
            let (mut world, key) = world(1, how, &ways[0]);
            world.ways = ways.to_vec();
            (0..2).for_each(|_| busy(&mut world, 0));
            world.run(&Step::Reload(0, 1));
            let before = world.decided.len();
            world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
            if is_answered {
                // The exchange that creates the counters with the count before the reload.
                exchange(0).iter().for_each(|step| world.run(step));
            } else {
                world.run(&Step::Tick(world.patience));
            }
            assert_eq!(world.decided.len(), before + 1);
            world.settle();
            // `STRICT` rejects a request that has waited too long.
            let admitted = admitted(&world.decided, key);
            assert_eq!(admitted, 2 * BUSY + u64::from(is_answered || how == LOCAL));
            assert_eq!(shown(&mut world, 0, &ask(&ways[1], key)), admitted, "{how:?}, answered: {is_answered}");
        }
    }
}

proptest! {
    /// Reloads forget no admission, and give back leases that are not being asked for then. All limits have a rate per
    /// minute.
    fn what_is_leased_does_not_stay_charged_after_reloads(
        steps in schedule(reloading(reliable()), 200),
        (quota, strict, late) in (2000..9000_u64, any::<bool>(), 0..3_usize),
        (is_override, is_at_rest) in any::<(bool, bool)>(),
        kinds in prop::collection::vec(prop::sample::select(vec![0, 1, 2, 7]), 2..4),
    ) {
        let how = if strict { STRICT } else { LOCAL };
        let ways: Vec<_> = kinds.iter().map(|kind| limit(*kind, quota)).collect();
        let (mut world, key) = world(1, how, &ways[0]);
        world.ways = ways;
        world.overridden = is_override.then_some(key);
        let mut most = 0;
        for step in costly(&steps) {
            if !matches!(step, Step::Reload(..)) {
                world.run(&step);
                continue;
            }
            if is_at_rest {
                (0..3).flat_map(|_| exchange(0)).for_each(|step| world.run(&step));
            } else {
                most += most_leased(&world.ways[0]);
            }
            let before = world.ways[world.gateways[0].way].clone();
            world.run(&step);
            for _ in 0..late {
                // A request in flight asks the previous limit.
                world.ask(0, vec![OwnedAsk { need: BUSY, cost: BUSY, ..ask(&before, key) }]);
                (0..3).flat_map(|_| exchange(0)).for_each(|step| world.run(&step));
            }
        }
        world.settle();
        let last = world.ways[world.gateways[0].way].clone();
        let (shown, admitted) = (shown(&mut world, 0, &ask(&last, key)), admitted(&world.decided, key));
        prop_assert!((admitted..=admitted + most).contains(&shown), "{shown} of {admitted}");
    }

    fn strict_gateways_never_admit_too_much(
        steps in schedule(lasting(broken()), 300),
        (gateways, servers, quota) in (2..4_usize, 1..3_usize, 500..4000_u64),
        kind in prop::sample::select(LEASED.to_vec()),
    ) {
        strictly_leased((gateways, servers, kind, quota), &costly(&steps), most_leased(&limit(kind, quota)))?;
    }

    fn nothing_is_charged_for_ever_that_was_not_admitted(
        steps in schedule(prop_oneof![19 => reliable(), 1 => (0..9_000_u64).prop_map(Step::Tick)].boxed(), 300),
        (gateways, quota, strict) in (1..4_usize, 500..4000_u64, any::<bool>()),
        kind in prop::sample::select(LEASED.to_vec()),
    ) {
        let how = if strict { STRICT } else { LOCAL };
        let (mut world, key) = world(gateways, how, &limit(kind, quota));
        costly(&steps).iter().for_each(|step| world.run(step));
        world.settle();
        prop_assert_eq!(counted(&mut world, kind, key), admitted(&world.decided, key));
    }

    fn one_gateway_never_admits_too_much(
        steps in schedule(lossy(), 200),
        (quota, on_error, kind) in (500..4000_u64, failing(), prop::sample::select(LEASED.to_vec())),
    ) {
        let (mut world, key) = world(1, (on_error, false), &limit(kind, quota));
        costly(&steps).iter().for_each(|step| world.run(step));
        world.settle();
        prop_assert!(admitted(&world.decided, key) <= quota);
    }
}

with_each_server! {
    a_busy_key_is_decided_without_an_exchange_and_the_rest_is_given_back
    what_is_leased_and_not_spent_makes_a_limit_no_fuller
    a_lease_ends_in_time_and_with_its_bucket
    the_rest_is_given_back_at_the_time_of_the_last_request
    a_server_that_is_far_away_gives_no_leases
    a_key_that_is_reset_has_no_lease
    a_refusal_that_rests_on_the_lease_of_another_gateway_is_remembered_briefly
    an_override_concerns_the_lease_and_the_requests_of_its_key_alone
    nobody_waits_for_a_reload_because_a_key_is_leased
    what_is_leased_does_not_stay_charged_after_reloads
    strict_gateways_never_admit_too_much
    nothing_is_charged_for_ever_that_was_not_admitted
    one_gateway_never_admits_too_much
}
