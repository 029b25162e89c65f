//! Limits with pools, under schedules of exchanges and failures.

use super::schedules::{exchange, request};
use super::world::World;
use super::*;
use crate::limit::Limit;
use crate::store::shared::Demand;

/// `pool` is the index of the pool's ask.
fn into(ask: OwnedAsk, pool: usize) -> OwnedAsk {
    OwnedAsk { overflow: Some(pool), ..ask }
}

/// The ask of a pool that only stands in for others.
fn idle(limit: &Arc<Limit>, key: Fingerprint) -> OwnedAsk {
    OwnedAsk { need: 0, cost: 0, role: Role::Reports, ..ask(limit, key) }
}

/// Two limits on one server, and their pool on the last of all.
struct Setup {
    limits: [Arc<Limit>; 2],
    keys: [Fingerprint; 2],
    pool: Arc<Limit>,
    of_pool: Fingerprint,
}

impl Setup {
    fn new((kind, quota): (usize, u64), (kind_of_pool, room): (usize, u64), servers: usize) -> Self {
        let (one, pool) = (limit(kind, quota), limit(kind_of_pool, room));
        let other = Fingerprint::of(b"the second limit");
        let of_pool = key_on_from(1000, servers - 1, servers, &pool);
        Self { keys: [key_on(0, servers, &one), other], limits: [one.clone(), one], pool, of_pool }
    }

    fn one(&self) -> Vec<OwnedAsk> {
        vec![into(ask(&self.limits[0], self.keys[0]), 1), idle(&self.pool, self.of_pool)]
    }

    /// Both limits, with their pool before them.
    fn both(&self) -> Vec<OwnedAsk> {
        let limits = self.limits.iter().zip(&self.keys).map(|(limit, key)| into(ask(limit, *key), 0));
        [idle(&self.pool, self.of_pool)].into_iter().chain(limits).collect()
    }

    /// One limit, and its pool as a limit of the request itself.
    fn with_pool(&self) -> Vec<OwnedAsk> {
        vec![into(ask(&self.limits[0], self.keys[0]), 1), ask(&self.pool, self.of_pool)]
    }

    fn whats(&self) -> Vec<Vec<OwnedAsk>> {
        vec![self.one(), self.both(), self.with_pool()]
    }
}

/// All that was charged to a key, according to the answers.
fn charged(decided: &[Decided], key: Fingerprint) -> u64 {
    let charged = |decided: &Decided| {
        let index = decided.asks.iter().position(|ask| ask.key == key)?;
        let (ask, reply) = (&decided.asks[index], decided.reply.as_ref()?);
        let of_pool = reply.pooled(index).filter(|pooled| pooled.verdict.admitted).map(|pooled| pooled.demand.cost);
        let own = reply.verdict(index).filter(|verdict| verdict.admitted).map(|_| ask.cost);
        of_pool.max(own)
    };
    decided.iter().filter(|decided| decided.admitted()).filter_map(charged).sum()
}

/// The count of a key that a new gateway learns.
fn counted_by(world: &mut World, (kind, quota): (usize, u64), key: Fingerprint) -> u64 {
    world.join(LOCAL);
    world.settle();
    let gateway = world.gateways.len() - 1;
    let limit = if kind == BUCKET { limit_with_burst(kind, quota, PLENTY) } else { limit(kind, PLENTY) };
    world.ask(gateway, vec![OwnedAsk { need: 1, cost: 0, ..ask(&limit, key) }]);
    world.settle();
    let reply = world.decided.pop().unwrap().reply.unwrap();
    world.gateways.pop();
    PLENTY - reply.verdicts[0].1.remaining
}

fn a_burst_gets_the_limit_and_its_pool_by_every_way_to_count() {
    for (mode, gateways) in [(LOCAL, 1), (STRICT, 1), (STRICT, 3)] {
        for (kind, kind_of_pool) in (0..KINDS - 1).flat_map(|kind| [(kind, kind), (kind, 7 - kind)]) {
            for at_once in [1, 7] {
                let setup = Setup::new((kind, 5), (kind_of_pool, 9), 2);
                let mut world = World::new(gateways, 2, mode, setup.whats());
                for number in 0..30 {
                    world.run(&request(number % gateways, 0, 1));
                    if number % at_once == 0 {
                        world.settle();
                    }
                }
                world.settle();
                let [own, pooled] = [setup.keys[0], setup.of_pool].map(|key| charged(&world.decided, key));
                let how = format!("{mode:?}, {gateways} gateways, ways to count {kind} and {kind_of_pool}, {at_once}");
                assert_eq!((own, pooled), (5, 9), "{how}");
                assert_eq!(counted_by(&mut world, (kind, 5), setup.keys[0]), 5, "{how}");
                assert_eq!(counted_by(&mut world, (kind_of_pool, 9), setup.of_pool), 9, "{how}");
            }
        }
    }
}

fn a_pool_is_charged_once_the_larger_cost_of_two_limits_or_the_sum_for_two_keys_of_one() {
    for (mode, is_one) in [(LOCAL, false), (STRICT, false), (LOCAL, true), (STRICT, true)] {
        for kind in 0..KINDS {
            let setup = Setup::new((kind, 2), (kind, 20), 2);
            let mut both = setup.both();
            (both[1].need, both[1].cost, both[2].need, both[2].cost) = (2, 2, 3, 3);
            let name = if is_one { both[1].limit.name() } else { "another" };
            both[2].limit = Arc::new(Limit::new(name, both[2].limit.rates()));
            let mut world = World::new(1, 2, mode, vec![both.clone()]);
            for _ in 0..4 {
                world.ask(0, both.clone());
                world.settle();
            }
            // The second never has room for its cost. The first has room for one request.
            assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 4, "{kind}");
            let of_pool = if is_one { 3 + 3 * (2 + 3) } else { 4 * 3 };
            assert_eq!(charged(&world.decided, setup.of_pool), of_pool, "{kind}");
            let [first, second] = setup.keys.map(|key| counted_by(&mut world, (kind, 2), key));
            assert_eq!((first, second, counted_by(&mut world, (kind, 20), setup.of_pool)), (2, 0, of_pool), "{kind}");
        }
    }
}

fn a_pool_that_is_a_limit_of_the_request_is_charged_once() {
    for mode in [LOCAL, STRICT] {
        for kind in 0..KINDS {
            let setup = Setup::new((kind, 3), (kind, 8), 1);
            let mut world = World::new(1, 1, mode, vec![setup.with_pool()]);
            for _ in 0..12 {
                world.run(&request(0, 0, 1));
                world.settle();
            }
            assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 8, "{kind}");
            assert_eq!(counted_by(&mut world, (kind, 3), setup.keys[0]), 3, "{kind}");
            assert_eq!(counted_by(&mut world, (kind, 8), setup.of_pool), 8, "{kind}");
        }
    }
}

fn who_comes_too_late_for_the_limit_gets_the_pool() {
    for kind in 0..KINDS {
        let setup = Setup::new((kind, 1), (kind, 5), 1);
        let mut world = World::new(2, 1, STRICT, vec![setup.one()]);
        let mut steps = vec![Step::Connect(0, 0), Step::Connect(1, 0), request(0, 0, 1), request(1, 0, 1)];
        // Both charge the limit, and one learns that the other was faster.
        steps.extend([Step::Send(0, 0), Step::Send(1, 0)]);
        steps.extend([Step::Execute(0, 0), Step::Execute(1, 0), Step::Answer(0, 0), Step::Answer(1, 0)]);
        steps.extend(exchange(1, 0, 3));
        steps.iter().for_each(|step| world.run(step));
        assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 2, "{kind}");
        world.settle();
        assert_eq!(counted_by(&mut world, (kind, 1), setup.keys[0]), 1, "{kind}");
        assert_eq!(counted_by(&mut world, (kind, 5), setup.of_pool), 1, "{kind}");
    }
}

fn one_exchange_reads_both_and_a_limit_that_is_known_to_be_full_is_not_read() {
    for kind in 0..KINDS {
        let setup = Setup::new((kind, 1), (kind, 100), 1);
        let mut world = World::new(1, 1, LOCAL, vec![setup.one()]);
        world.gateways.clear();
        world.remembered = u64::MAX;
        world.join(LOCAL);
        world.run(&Step::Connect(0, 0));
        world.run(&request(0, 0, 1));
        exchange(0, 0, 2).iter().for_each(|step| world.run(step));
        assert_eq!(world.decided.len(), 1);
        // A read shows that the limit is full, and reads the pool. A state that is kept as a whole takes another exchange.
        world.run(&Step::Moment);
        world.run(&request(0, 0, 1));
        exchange(0, 0, if is_whole(kind) { 2 } else { 1 }).iter().for_each(|step| world.run(step));
        assert_eq!(world.decided.len(), 2, "{kind}");
        for number in 3..9 {
            world.run(&Step::Moment);
            world.run(&request(0, 0, 1));
            exchange(0, 0, 1).iter().for_each(|step| world.run(step));
            assert_eq!(world.decided.len(), number, "one exchange for each, by way to count {kind}");
        }
        world.settle();
        assert_eq!(counted_by(&mut world, (kind, 100), setup.of_pool), 7, "{kind}");
    }
}

fn a_flood_that_limit_and_pool_refuse_asks_nothing() {
    for mode in [LOCAL, STRICT] {
        for kind in 0..KINDS {
            let setup = Setup::new((kind, 3), (kind, 4), 2);
            let mut world = World::new(1, 2, mode, setup.whats());
            world.gateways.clear();
            world.remembered = u64::MAX;
            world.join(mode);
            for _ in 0..12 {
                world.run(&request(0, 0, 1));
                world.settle();
            }
            assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 7);
            for what in [0, 2, 0] {
                let before = world.decided.len();
                (0..50).for_each(|_| world.run(&request(0, what, 1)));
                assert_eq!(world.decided.len(), before + 50, "nobody waits, by way to count {kind}");
                assert!(world.decided[before..].iter().all(|decided| !decided.admitted() && decided.wait().is_some()));
            }
        }
    }
}

fn a_pool_that_is_away_is_missed_only_where_it_is_needed() {
    for strict in [false, true] {
        let setup = Setup::new((0, 4), (0, 4), 2);
        let mut world = World::new(1, 2, (OnError::Reject, strict), vec![setup.one()]);
        world.run(&Step::Connect(0, 0));
        world.run(&Step::Break(0, 1, 0));
        for _ in 0..6 {
            world.run(&request(0, 0, 1));
            exchange(0, 0, 3).iter().for_each(|step| world.run(step));
        }
        let decided: Vec<_> =
            world.decided.iter().map(|decided| decided.reply.as_ref().map(|_| decided.admitted())).collect();
        assert_eq!(decided, [[Some(true); 4].as_slice(), &[None; 2]].concat(), "strict: {strict}");
    }
}

fn a_lease_is_spent_for_others_too() {
    let setup = Setup::new((0, 4), (0, PLENTY / 2), 1);
    let mut world = World::new(1, 1, STRICT, vec![setup.one()]);
    world.run(&Step::Connect(0, 0));
    for _ in 0..40 {
        world.run(&request(0, 0, 1));
        exchange(0, 0, 2).iter().for_each(|step| world.run(step));
    }
    assert!(world.gateways[0].coordinator.has_leases(), "the pool is busy");
    world.settle();
    assert_eq!(charged(&world.decided, setup.of_pool), 36);
    assert_eq!(counted_by(&mut world, (0, PLENTY / 2), setup.of_pool), 36);
}

fn kinds() -> impl Strategy<Value = ((usize, u64), (usize, u64))> {
    ((0..KINDS, 1..12_u64), (0..KINDS, 1..12_u64))
}

proptest! {
    fn one_gateway_with_a_pool_is_exact(
        steps in schedule(passing(broken()), 120),
        (own, pool) in kinds(),
        servers in 1..3_usize,
        on_error in failing(),
    ) {
        let setup = Setup::new(own, pool, servers);
        let mut world = World::new(1, servers, (on_error, false), vec![setup.one()]);
        let is_any_whole = is_whole(own.0) || is_whole(pool.0);
        for step in &steps {
            match step {
                // All cost the same: otherwise one that costs less may get the last place in the limit before one that came
                // earlier, which then gets a place in the pool.
                Step::Ask { gateway, what, .. } => world.run(&request(*gateway, *what, 1)),
                step => world.run(step),
            }
        }
        world.settle();
        // States that are kept as a whole are charged when a request comes, and sums when it is decided. A broken exchange may
        // have charged, until the next one shows that it has not. A request that comes while others wait for the pool may get
        // the place in the limit before them, so they are refused by all that came before their decision.
        if is_any_whole || steps.iter().any(|step| matches!(step, Step::Break(..))) {
            let when = |one: &Decided| if one.admitted() { (one.asked, 0) } else { (one.decided, 1) };
            world.decided.sort_by_key(when);
        }
        if is_any_whole == (is_only_whole(own.0) && is_only_whole(pool.0)) {
            compare(&world.decided, is_any_whole)?;
        }
    }

    fn one_gateway_is_counted_exactly_on_limit_and_pool(
        steps in schedule(lossy(), 120),
        ((kind, quota), (kind_of_pool, room)) in kinds(),
        servers in 1..3_usize,
    ) {
        let setup = Setup::new((kind, quota), (kind_of_pool, room), servers);
        let mut world = World::new(1, servers, LOCAL, setup.whats());
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let all = [(kind, quota, setup.keys[0]), (kind, quota, setup.keys[1]), (kind_of_pool, room, setup.of_pool)];
        for (kind, quota, key) in all {
            world.run(&Step::Moment);
            let own = limit(kind, quota);
            world.ask(0, vec![OwnedAsk { need: 1, cost: 0, ..ask(&own, key) }]);
            world.settle();
            world.decided.pop();
            let charged = charged(&world.decided, key);
            prop_assert!(charged <= quota);
            prop_assert_eq!(counted_by(&mut world, (kind, quota), key), charged);
        }
    }

    fn strict_gateways_never_admit_more_than_limit_and_pool(
        steps in schedule(lasting(broken()), 200),
        ((kind, quota), (kind_of_pool, room)) in kinds(),
        (gateways, servers) in (2..4_usize, 1..3_usize),
    ) {
        let setup = Setup::new((kind, quota), (kind_of_pool, room), servers);
        let mut world = World::new(gateways, servers, STRICT, setup.whats());
        let begun = world.now.micros();
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let all = [(kind, quota, setup.keys[0]), (kind, quota, setup.keys[1]), (kind_of_pool, room, setup.of_pool)];
        for (kind, quota, key) in all {
            let drained = if kind == BUCKET { (world.now.micros() - begun).div_ceil(60_000_000 / quota) } else { 0 };
            let charged = charged(&world.decided, key);
            prop_assert!(charged <= quota + drained, "{charged} of {quota} charged");
            let counted = counted_by(&mut world, (kind, quota), key);
            if kind != BUCKET {
                prop_assert!(counted >= charged, "{counted} counted of {charged}");
            }
            if world.unanswered == 0 && kind != BUCKET {
                prop_assert_eq!(counted, charged);
            }
        }
    }

    fn strict_gateways_admit_all_there_is_of_limit_and_pool(
        steps in schedule(reliable(), 200),
        (gateways, kind, quota) in (2..4_usize, 0..KINDS - 1, 1..12_u64),
        (kind_of_pool, room) in (0..KINDS - 1, 1..12_u64),
    ) {
        let setup = Setup::new((kind, quota), (kind_of_pool, room), 1);
        let mut world = World::new(gateways, 1, STRICT, vec![setup.one()]);
        for step in &steps {
            match step {
                Step::Ask { gateway, what, .. } => world.run(&request(*gateway, *what, 1)),
                step => world.run(step),
            }
        }
        world.settle();
        let asked = world.decided.len() as u64;
        let [own, pooled] = [setup.keys[0], setup.of_pool].map(|key| charged(&world.decided, key));
        prop_assert_eq!((own, own + pooled), (asked.min(quota), asked.min(quota + room)));
        prop_assert_eq!(counted_by(&mut world, (kind, quota), setup.keys[0]), own);
        prop_assert_eq!(counted_by(&mut world, (kind_of_pool, room), setup.of_pool), pooled);
    }

    fn nobody_waits_for_ever_for_a_pool(
        steps in schedule(settling(passing(lossy())), 150),
        ((kind, quota), (kind_of_pool, room)) in kinds(),
        (gateways, servers) in (1..4_usize, 1..3_usize),
        (on_error, strict) in (failing(), any::<bool>()),
    ) {
        let setup = Setup::new((kind, quota), (kind_of_pool, room), servers);
        let mut world = World::new(gateways, servers, (on_error, strict), setup.whats());
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let is_asked = |step: &&Step| matches!(step, Step::Ask { .. } | Step::Reserve { .. });
        prop_assert_eq!(world.decided.len(), steps.iter().filter(is_asked).count());
    }

    fn what_is_reserved_is_given_back_where_it_was_charged(
        steps in schedule(settling(reliable()), 150),
        kinds in prop::sample::select(vec![(0, 0), (3, 4), (6, 0), (4, 3)]),
        (quota, room) in (1..12_u64, 1..12_u64),
        strict: bool,
    ) {
        let setup = Setup::new((kinds.0, quota), (kinds.1, room), 2);
        let mut world = World::new(1, 2, (OnError::Local, strict), vec![setup.one()]);
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let all = [(kinds.0, quota, setup.keys[0]), (kinds.1, room, setup.of_pool)];
        for (kind, quota, key) in all {
            let given = world.decided.iter().filter(|decided| {
                charged(std::slice::from_ref(*decided), key) > 0
            });
            let given: u64 = given.map(|decided| decided.given).sum();
            let kept = charged(&world.decided, key) - given;
            prop_assert_eq!(counted_by(&mut world, (kind, quota), key), kept);
        }
    }
}

fn a_demand_of_nothing_is_no_ask() {
    let setup = Setup::new((0, 1), (0, 1), 1);
    assert!(setup.one()[1].borrowed().is_idle() && setup.one()[1].demand() == Demand::default());
    assert!(!setup.with_pool()[1].borrowed().is_idle());
}

with_each_server! {
    a_burst_gets_the_limit_and_its_pool_by_every_way_to_count
    a_pool_is_charged_once_the_larger_cost_of_two_limits_or_the_sum_for_two_keys_of_one
    a_pool_that_is_a_limit_of_the_request_is_charged_once
    who_comes_too_late_for_the_limit_gets_the_pool
    one_exchange_reads_both_and_a_limit_that_is_known_to_be_full_is_not_read
    a_flood_that_limit_and_pool_refuse_asks_nothing
    a_pool_that_is_away_is_missed_only_where_it_is_needed
    a_lease_is_spent_for_others_too
    one_gateway_with_a_pool_is_exact
    one_gateway_is_counted_exactly_on_limit_and_pool
    strict_gateways_never_admit_more_than_limit_and_pool
    strict_gateways_admit_all_there_is_of_limit_and_pool
    nobody_waits_for_ever_for_a_pool
    what_is_reserved_is_given_back_where_it_was_charged
    a_demand_of_nothing_is_no_ask
}
