//! The coordinator with models of servers, under random schedules of requests, exchanges and failures.

mod model;
mod servers;
mod steps;
mod world;
mod schedules;
mod bans;
mod turns;
mod strict;
mod reservations;
mod clocks;
mod migration;
mod inspection;
mod leases;
mod overflow;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tokio::sync::oneshot::error::TryRecvError;

use super::cached_cell::most_leased;
use super::names::AllNames;
use super::{Ask, OwnedAsk};
use crate::base::fingerprint::Fingerprint;
use crate::config::{OnError, Role, Software};
use crate::limit::{Edge, Limit, Rate, Strategy as Counting};
use servers::with_each_server;
use steps::{Decided, Step, broken, compare, inspected, lasting, lossy, passing, reliable, reloading, settling};
use world::World;

const LOCAL: (OnError, bool) = (OnError::Local, false);
const STRICT: (OnError, bool) = (OnError::Reject, true);
const PLENTY: u64 = 10_000;
const KINDS: usize = 9;
const FIXED: usize = 3;
const LOG: usize = 4;
const BUCKET: usize = 5;

fn limit(kind: usize, quota: u64) -> Arc<Limit> {
    limit_with_burst(kind, quota, quota)
}

fn limit_with_burst(kind: usize, quota: u64, burst: u64) -> Arc<Limit> {
    let minute = |counting| Rate::new(quota, Duration::from_secs(60)).unwrap().with_strategy(counting).unwrap();
    let sliding = |precision, edge| minute(Counting::SlidingWindow { precision, edge });
    let day: Rate = format!("{quota}/day").parse().unwrap();
    let rates = match kind {
        0 => vec![sliding(1, Edge::Weighted)],
        1 => vec![sliding(7, Edge::Weighted)],
        2 => vec![sliding(60, Edge::Whole)],
        3 => vec![minute(Counting::FixedWindow)],
        LOG => vec![minute(Counting::SlidingLog)],
        BUCKET => vec![minute(Counting::TokenBucket { burst })],
        6 => vec![day],
        7 => vec![sliding(2, Edge::Whole), day],
        _ => vec![minute(Counting::SlidingLog), day, minute(Counting::FixedWindow)],
    };
    Arc::new(Limit::new("l", &rates))
}

/// Whether tests that take long run with this way to count: all do with Memcached, and with Valkey, for which the same code
/// decides, one by sums and one by a state that is kept as a whole.
fn is_run(kind: usize) -> bool {
    servers::software() == Software::Memcached || [1, BUCKET].contains(&kind)
}

/// Whether the state of the limit, or a part of it, is one value.
fn is_whole(kind: usize) -> bool {
    limit(kind, 1).is_whole()
}

fn is_only_whole(kind: usize) -> bool {
    limit(kind, 1).rates().iter().all(|rate| !rate.uses_counters())
}

/// How much of charges without admission may stay counted: less than one, which counts as one. Charges of others to a bucket
/// may have let a little of it drain meanwhile.
fn slack(kind: usize) -> u64 {
    u64::from(kind == BUCKET)
}

/// With time passing: of each charge that is given back, what may have drained meanwhile stays counted.
fn slack_in_time(kind: usize, decided: &[Decided]) -> u64 {
    let given_back = |decided: &Decided| if decided.admitted() { decided.given } else { decided.cost() };
    if kind == BUCKET { decided.iter().map(given_back).sum::<u64>().max(slack(kind)) } else { 0 }
}

pub(super) fn ask(limit: &Arc<Limit>, key: Fingerprint) -> OwnedAsk {
    OwnedAsk::from(&Ask::new(limit, key, 1))
}

pub(super) fn key_on(server: usize, servers: usize, limit: &Arc<Limit>) -> Fingerprint {
    key_on_from(0, server, servers, limit)
}

/// The first such key from this number on.
fn key_on_from(first: u32, server: usize, servers: usize, limit: &Arc<Limit>) -> Fingerprint {
    let mut names = AllNames::new("gw", servers::software() == Software::Valkey);
    let all = world::servers(servers);
    let keys = (first..first + 1000).map(|number| Fingerprint::of(&number.to_be_bytes()));
    keys.into_iter().find(|key| names.of(limit).server(*key, &all) == server).unwrap()
}

fn keys(servers: usize, limit: &Arc<Limit>) -> Vec<Fingerprint> {
    (0..servers).map(|server| key_on(server, servers, limit)).collect()
}

fn admitted(decided: &[Decided], key: Fingerprint) -> u64 {
    let admitted = decided.iter().filter(|decided| decided.admitted());
    let costs = admitted.flat_map(|decided| decided.asks.iter().map(|ask| (ask.key, ask.cost - decided.given)));
    costs.filter(|(of, _)| *of == key).map(|(_, cost)| cost).sum()
}

fn most_at_one_gateway((gateways, servers, kind, quota): (usize, usize, usize, u64), steps: &[Step]) -> u64 {
    let limit = limit(kind, quota);
    let keys = keys(servers, &limit);
    let mut world = World::new(gateways, servers, LOCAL, each_and_all(&limit, &keys));
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    let most = |gateway| {
        let decided: Vec<_> = world.decided.extract_if(.., |decided| decided.gateway == gateway).collect();
        keys.iter().map(|key| admitted(&decided, *key)).max()
    };
    (0..gateways).filter_map(most).max().unwrap_or(0)
}

/// The count of a key that a new gateway learns from the server.
fn counted(world: &mut World, kind: usize, key: Fingerprint) -> u64 {
    world.join(LOCAL);
    world.settle();
    let taken = taken(world, world.gateways.len() - 1, kind, key);
    world.gateways.pop();
    taken
}

/// The count of a key that a gateway knows.
fn taken(world: &mut World, gateway: usize, kind: usize, key: Fingerprint) -> u64 {
    // How fast a bucket drains decides how much is left of a reservation, so the quota is kept.
    let quota = world.quota();
    let limit = if kind == BUCKET { limit_with_burst(kind, quota, PLENTY) } else { limit(kind, PLENTY) };
    let look = OwnedAsk { need: 1, cost: 0, ..ask(&limit, key) };
    world.ask(gateway, vec![look]);
    world.settle();
    PLENTY - world.decided.pop().unwrap().reply.unwrap().verdicts[0].1.remaining
}

/// Checks that strict gateways do not admit too much together, and that only unacknowledged charges are counted in vain.
fn strictly((gateways, servers, kind, quota): (usize, usize, usize, u64), steps: &[Step]) -> TestCaseResult {
    strictly_leased((gateways, servers, kind, quota), steps, 0)
}

/// The same where each gateway may have a lease of this cost.
fn strictly_leased(
    (gateways, servers, kind, quota): (usize, usize, usize, u64),
    steps: &[Step],
    lease: u64,
) -> TestCaseResult {
    let limit = limit(kind, quota);
    let keys = keys(servers, &limit);
    let mut world = World::new(gateways, servers, STRICT, each_and_all(&limit, &keys));
    let begun = world.now.micros();
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    let drained = if kind == BUCKET { (world.now.micros() - begun).div_ceil(60_000_000 / quota) } else { 0 };
    for key in keys {
        let admitted = admitted(&world.decided, key);
        let dropped: u64 = world.decided.iter().filter(|decided| decided.reply.is_none()).map(Decided::cost).sum();
        let counted = counted(&mut world, kind, key);
        prop_assert!(admitted <= quota + drained, "{admitted} of {quota} admitted");
        if kind != BUCKET {
            prop_assert!(counted >= admitted, "{counted} counted of {admitted}");
        }
        if world.unanswered == 0 {
            let slack = slack_in_time(kind, &world.decided);
            prop_assert!(counted <= admitted + slack, "{counted} counted of {admitted}, {dropped} dropped");
        } else if !is_whole(kind) {
            let most = admitted + dropped + world.unanswered * lease;
            prop_assert!(counted <= most, "{counted} counted of {admitted}, {dropped} dropped");
        }
    }
    Ok(())
}

fn schedule(step: BoxedStrategy<Step>, most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step, 1..most)
}

fn failing() -> impl Strategy<Value = OnError> {
    prop_oneof![2 => Just(OnError::Local), 1 => Just(OnError::Reject), 1 => Just(OnError::Allow)]
}

fn charge() -> impl Strategy<Value = Step> {
    (0..3_usize, 0..3_usize, 0..9_u64).prop_map(|(gateway, what, cost)| Step::Charge { gateway, what, cost })
}

fn each_and_all(limit: &Arc<Limit>, keys: &[Fingerprint]) -> Vec<Vec<OwnedAsk>> {
    let each = keys.iter().map(|key| vec![ask(limit, *key)]);
    each.chain([keys.iter().map(|key| ask(limit, *key)).collect()]).collect()
}

proptest! {
    fn nobody_waits_for_ever(
        steps in schedule(prop_oneof![9 => passing(lossy()), 1 => charge()].boxed(), 150),
        (gateways, servers, kind, quota) in (1..4_usize, 1..3_usize, 0..KINDS, 1..30_u64),
        (on_error, strict) in (failing(), any::<bool>()),
    ) {
        let limit = limit(kind, quota);
        let whats = each_and_all(&limit, &keys(servers, &limit));
        let mut world = World::new(gateways, servers, (on_error, strict), whats);
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let asked = steps.iter().filter(|step| matches!(step, Step::Ask { .. })).count();
        prop_assert_eq!(world.decided.len(), asked);
    }

    /// Whatever fails, a gateway on its own decides as if it counted in memory.
    fn one_gateway_is_exact(
        steps in schedule(passing(lossy()), 150),
        (servers, kind, quota, on_error) in (1..3_usize, 0..KINDS, 1..30_u64, failing()),
    ) {
        let limit = limit(kind, quota);
        let each = keys(servers, &limit).into_iter().map(|key| vec![ask(&limit, key)]).collect();
        let mut world = World::new(1, servers, (on_error, false), each);
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        if is_whole(kind) {
            // An admitted request is charged when it comes, and decided when that is confirmed: requests that are refused
            // because of it may be decided before.
            world.decided.sort_by_key(|decided| decided.asked);
        }
        compare(&world.decided, is_whole(kind))?;
    }

    fn one_gateway_is_counted_exactly(
        steps in schedule(lossy(), 150),
        (servers, kind, quota) in (1..3_usize, 0..KINDS, 1..30_u64),
    ) {
        let limit = limit(kind, quota);
        let keys = keys(servers, &limit);
        let mut world = World::new(1, servers, LOCAL, each_and_all(&limit, &keys));
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        for key in keys {
            // A loss while nobody asks is noticed by the next request, a moment later.
            world.run(&Step::Moment);
            world.ask(0, vec![OwnedAsk { need: 1, cost: 0, ..ask(&limit, key) }]);
            world.settle();
            let admitted = admitted(&world.decided, key);
            prop_assert!(admitted <= quota);
            prop_assert_eq!(counted(&mut world, kind, key), admitted);
        }
    }

    /// While the server keeps what it knows, only unacknowledged charges are counted wrong: sums may lack a charge that never
    /// arrived if others added as much meanwhile, and values may have twice a charge that arrived before others replaced
    /// them. The value of a fixed window is a sum as well.
    fn gateways_together_are_counted(
        steps in schedule(broken(), 150),
        (gateways, servers, kind) in (2..4_usize, 1..3_usize, 0..KINDS),
    ) {
        let limit = limit(kind, PLENTY / 10);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, LOCAL, each_and_all(&limit, &keys));
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        for key in keys {
            let admitted = admitted(&world.decided, key);
            let counted = counted(&mut world, kind, key);
            if is_only_whole(kind) {
                prop_assert_eq!(counted, admitted);
            } else if is_whole(kind) {
                prop_assert!(counted >= admitted || kind == FIXED && world.unanswered > 0);
                prop_assert!(counted <= admitted || world.doubtful > 0, "{counted} counted of {admitted}");
            } else {
                // A lease is in doubt if its exchange is not answered.
                let most = admitted + world.unanswered * most_leased(&limit);
                prop_assert!(counted <= most, "{counted} counted of {admitted}");
                prop_assert!(counted + world.vanished >= admitted, "{counted} counted of {admitted}");
            }
        }
    }

    /// Strict gateways admit together no more than one would, and only unacknowledged charges are counted in vain.
    fn strict_gateways_never_admit_too_much(
        steps in schedule(lasting(broken()), 200),
        (gateways, servers, kind, quota) in (2..4_usize, 1..3_usize, 0..KINDS, 1..30_u64),
    ) {
        strictly((gateways, servers, kind, quota), &steps)?;
    }

    /// However often counters are lost and created anew by others, a gateway forgets nothing that it has admitted itself.
    fn no_gateway_admits_too_much_itself(
        steps in schedule(lossy(), 150),
        (gateways, servers, quota) in (2..4_usize, 1..3_usize, 1..10_u64),
        kind in prop::sample::select(vec![0, 1, 2, 6, 7]),
    ) {
        prop_assert!(most_at_one_gateway((gateways, servers, kind, quota), &steps) <= quota);
    }

    /// Strict gateways that keep asking for one at a time get together what one would get, and rejected provisional charges
    /// are given back. If a limit has both sums and a state, two gateways may take the last place from each other, one in
    /// each, and both go without.
    fn strict_gateways_admit_all_there_is(
        steps in schedule(reliable(), 200),
        (gateways, kind, quota) in (2..4_usize, 0..KINDS - 1, 1..30_u64),
    ) {
        let limit = limit(kind, quota);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(gateways, 1, STRICT, vec![vec![ask(&limit, key)]]);
        for step in &steps {
            match step {
                Step::Ask { gateway, what, .. } => world.run(&Step::Ask { gateway: *gateway, what: *what, cost: 1 }),
                step => world.run(step),
            }
        }
        world.settle();
        let (asked, passed) = (world.decided.len() as u64, admitted(&world.decided, key));
        prop_assert_eq!(passed, asked.min(quota));
        prop_assert_eq!(counted(&mut world, kind, key), passed);
        for gateway in 0..gateways {
            world.ask(gateway, vec![ask(&limit, key)]);
        }
        world.settle();
        prop_assert_eq!(admitted(&world.decided, key), (asked + gateways as u64).min(quota));
    }

    /// Gateways that are not strict give rejected provisional charges back, too. Another gateway may have read such a charge
    /// and go on counting it: the cost of one request for each gateway.
    fn gateways_together_waste_little(
        steps in schedule(reliable(), 200),
        (gateways, quota) in (2..4_usize, 8..60_u64),
        kind in prop::sample::select(vec![0, 1, 2, 6, 7]),
    ) {
        let limit = limit(kind, quota);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(gateways, 1, LOCAL, vec![vec![ask(&limit, key)]]);
        for step in &steps {
            let times = if matches!(step, Step::Ask { .. }) { 4 } else { 1 };
            (0..times).for_each(|_| world.run(step));
        }
        world.settle();
        let passed = admitted(&world.decided, key);
        prop_assert_eq!(counted(&mut world, kind, key), passed);
        for gateway in 0..gateways {
            world.run(&Step::Moment);
            let taken = taken(&mut world, gateway, kind, key);
            prop_assert!(taken - passed <= 3 * (gateways as u64 - 1), "{passed} admitted, {taken} taken for that");
        }
    }

    /// What two limits on two servers admit is charged on both, what one refuses on neither.
    fn two_servers_are_charged_together(
        steps in schedule(reliable(), 200),
        (gateways, kind, quotas) in (1..4_usize, 0..KINDS, (1..30_u64, 1..30_u64)),
        strict: bool,
    ) {
        let limits = [limit(kind, quotas.0), limit(kind, quotas.1)];
        let keys = keys(2, &limits[0]);
        let both = limits.iter().zip(&keys).map(|(limit, key)| ask(limit, *key)).collect();
        let mut world = World::new(gateways, 2, (OnError::Reject, strict), vec![both]);
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        let admitted = admitted(&world.decided, keys[0]);
        if strict {
            prop_assert!(admitted <= quotas.0.min(quotas.1));
        }
        for key in keys {
            let counted = counted(&mut world, kind, key);
            prop_assert!((admitted..=admitted + slack(kind)).contains(&counted), "{counted} counted of {admitted}");
        }
    }
}

with_each_server! {
    nobody_waits_for_ever
    one_gateway_is_exact
    one_gateway_is_counted_exactly
    gateways_together_are_counted
    strict_gateways_never_admit_too_much
    no_gateway_admits_too_much_itself
    strict_gateways_admit_all_there_is
    gateways_together_waste_little
    two_servers_are_charged_together
}
