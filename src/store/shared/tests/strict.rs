//! What strict gateways tell refused clients, while each sees charges that others are about to give back.

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

#[test]
fn nobody_is_told_to_wait_for_what_others_give_back() {
    for kind in [0, 1, 2] {
        for (gateways, each) in [(2, 20), (4, 20), (8, 5), (4, 100)] {
            let mut world = at_once(kind, gateways, each);
            world.settle();
            let key = world.whats[0][0].key;
            let (asked, admitted) = (gateways * each, admitted(&world.decided, key));
            assert_eq!((world.decided.len(), admitted <= QUOTA), (asked, true), "{admitted} admitted");
            // If all of the quota is counted in this moment, one fits again when the moment has left the window.
            let longest = world.decided.iter().filter_map(Decided::wait).max().unwrap();
            let edge = if kind == 0 { 0 } else { MINUTE / 7 };
            assert!(longest <= MINUTE + edge, "{longest} us, way to count {kind}, {gateways} gateways");
        }
    }
}

#[test]
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
