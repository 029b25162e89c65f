//! Gateways that charge the same key at the same moment, or in another order than the moments of their requests; and what
//! strict gateways tell refused clients, while each sees charges that others are about to give back.

use super::schedules::{exchange, request};
use super::world::World;
use super::*;

const QUOTA: u64 = 20;
const MINUTE: u64 = 60_000_000;

/// Each gateway gets `each` requests at once, and all act side by side.
fn at_once(kind: usize, gateways: usize, each: usize) -> World {
    let limit = limit(kind, QUOTA);
    let mut world = World::new(gateways, 1, STRICT, vec![vec![ask(&limit, key_on(0, 1, &limit))]]);
    for gateway in 0..gateways {
        world.connect(gateway, 0);
        (0..each).for_each(|_| world.run(&Step::Ask { gateway, what: 0, cost: 1 }));
    }
    for _ in 0..20 {
        for step in [Step::Send, Step::Execute, Step::Answer] {
            (0..gateways).for_each(|gateway| world.run(&step(gateway, 0)));
        }
    }
    world
}

fn nobody_is_told_to_wait_for_what_others_give_back() {
    for kind in [0, 1, 2] {
        for (gateways, each) in [(2, 20), (4, 20), (8, 5), (4, 100)] {
            let mut world = at_once(kind, gateways, each);
            world.settle();
            let key = world.whats[0][0].key;
            let (asked, admitted) = (gateways * each, admitted(&world.decided, key));
            assert_eq!((world.decided.len(), admitted <= QUOTA), (asked, true), "{admitted} admitted");
            // If all of the quota is counted in this moment, one fits again when the moment has left the window.
            let longest = world.decided.iter().filter_map(|decided| decided.wait().max(decided.told())).max().unwrap();
            let edge = if kind == 0 { 0 } else { MINUTE / 7 };
            assert!(longest <= MINUTE + edge, "{longest} us, way to count {kind}, {gateways} gateways");
        }
    }
}

fn what_stays_beyond_the_quota_is_told_in_the_end() {
    let mut world = at_once(0, 2, 1);
    world.settle();
    // It has cost more than was reserved.
    world.run(&Step::Charge { gateway: 0, what: 0, cost: 78 });
    world.settle();
    world.run(&Step::Tick(2_000_000));
    for _ in 0..2 {
        world.run(&Step::Ask { gateway: 1, what: 0, cost: 1 });
        world.settle();
        world.run(&Step::Tick(1_000_000));
    }
    // Of the 80 in the previous bucket at most 19 count after three quarters of the next one.
    let wait = world.decided.last().unwrap().wait().unwrap();
    assert!(wait > 100_000_000 - 5_000_000 && wait < 110_000_000, "{wait} us");
}

fn what_another_gateway_writes_in_the_same_microsecond_is_told_from_what_was_sent_here() {
    for kind in (0..KINDS).filter(|kind| is_whole(*kind)) {
        let limit = limit(kind, 20);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(3, 1, LOCAL, vec![vec![ask(&limit, key)]]);
        world.run(&request(2, 0, 1));
        world.settle();
        // Both read the same state, charge it with the same cost, and replace it by a value with the same meaning.
        [request(0, 0, 1), request(1, 0, 1)].iter().for_each(|step| world.run(step));
        for step in [Step::Send, Step::Execute, Step::Answer, Step::Send] {
            (0..2).for_each(|gateway| world.run(&step(gateway, 0)));
        }
        // One of the two arrives, and neither gateway gets an answer.
        [Step::Break(1, 0, 1), Step::Break(0, 0, 0)].iter().for_each(|step| world.run(step));
        world.settle();
        assert_eq!(admitted(&world.decided, key), 3);
        assert_eq!(counted(&mut world, kind, key), 3, "way to count {kind}");
    }
}

fn what_was_charged_to_a_window_that_began_a_moment_later_is_taken_back() {
    const KIND: usize = KINDS - 1;
    let limit = limit(KIND, 5);
    let keys = keys(2, &limit);
    let both = keys.iter().map(|key| ask(&limit, *key)).collect();
    let mut world = World::new(3, 2, STRICT, vec![both]);
    // The request that came first finds a window that a later one has begun, and both are refused in the end.
    let mut steps = vec![Step::Connect(1, 1), request(2, 0, 3), request(1, 0, 2), request(0, 0, 1)];
    steps.extend(exchange(1, 1, 1));
    steps.push(request(0, 0, 2));
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    let admitted = admitted(&world.decided, keys[0]);
    for key in keys {
        assert_eq!(counted(&mut world, KIND, key), admitted);
    }
}

with_each_server! {
    nobody_is_told_to_wait_for_what_others_give_back
    what_stays_beyond_the_quota_is_told_in_the_end
    what_another_gateway_writes_in_the_same_microsecond_is_told_from_what_was_sent_here
    what_was_charged_to_a_window_that_began_a_moment_later_is_taken_back
}
