//! How full limits are before a request is charged, and what is reserved of requests that may be held.

use super::*;
use crate::base::share::WHOLE;

const HALF: u32 = WHOLE / 2;

fn slowed(limit: &Arc<Limit>, key: Fingerprint) -> Vec<Vec<OwnedAsk>> {
    vec![vec![OwnedAsk { held_above: Some(HALF), ..ask(limit, key) }]]
}

fn levels(world: &World) -> Vec<u32> {
    world.decided.iter().map(|decided| decided.reply.as_ref().unwrap().verdicts[0].1.level).collect()
}

fn every_way() -> impl Iterator<Item = ((OnError, bool), usize)> {
    [LOCAL, STRICT].into_iter().flat_map(|how| (0..KINDS).map(move |kind| (how, kind)))
}

#[test]
fn requests_side_by_side_see_each_other_and_only_those_above_are_reserved() {
    for ((how, kind), side_by_side) in every_way().flat_map(|way| [(way, false), (way, true)]) {
        let limit = limit(kind, 10);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(1, 1, how, slowed(&limit, key));
        world.connect(0, 0);
        for _ in 0..11 {
            world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
            if !side_by_side {
                world.settle();
            }
        }
        world.settle();
        // One is refused, and may be answered before others.
        let (mut found, levels) = (levels(&world), levels(&world));
        found.sort_unstable();
        let expected: Vec<u32> = [0].into_iter().chain((0..10).map(|used| used * WHOLE / 10)).collect();
        assert_eq!(found, expected, "way to count {kind}, {how:?}, {side_by_side}");
        for (decided, level) in world.decided.iter().zip(levels) {
            assert_eq!(!decided.reserved.is_empty(), level > HALF, "way to count {kind}, {how:?}");
        }
        // The clients of all held requests go away.
        (0..4).for_each(|_| world.settle_one(0, 0));
        world.settle();
        assert_eq!(counted(&mut world, kind, key), 6, "way to count {kind}, {how:?}");
    }
}

#[test]
fn what_other_gateways_have_used_counts() {
    for (how, kind) in every_way() {
        let limit = limit(kind, 10);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(2, 1, how, slowed(&limit, key));
        // Each knows the count before the other's last charge.
        for gateway in [0, 1, 0, 1] {
            world.run(&Step::Moment);
            world.run(&Step::Ask { gateway, what: 0, cost: 2 });
            world.settle();
        }
        assert_eq!(levels(&world), [0, 200_000, 400_000, 600_000], "way to count {kind}, {how:?}");
    }
}

#[test]
fn all_that_a_held_request_is_charged_is_reserved() {
    let (full, other) = (limit(0, 10), Arc::new(Limit::new("other", limit(0, 20).rates())));
    // Cells are found by keys, which include the name of their limit, and by the way to count.
    let [first, second] = ["full", "other"].map(|name| Fingerprint::of(name.as_bytes()));
    for how in [LOCAL, STRICT] {
        let both = vec![
            OwnedAsk { held_above: Some(HALF), ..ask(&full, first) },
            OwnedAsk { place: 1, ..ask(&other, second) },
        ];
        let mut world = World::new(1, 1, how, vec![both]);
        for _ in 0..3 {
            world.run(&Step::Ask { gateway: 0, what: 0, cost: 3 });
            world.settle();
        }
        let reserved: Vec<_> = world.decided.iter().map(|decided| decided.reserved.len()).collect();
        assert_eq!(reserved, [0, 0, 2], "{how:?}");
    }
}
