//! Gateways that charge the same key at the same moment, or in another order than the moments of their requests.

use super::schedules::{exchange, request};
use super::world::World;
use super::*;

#[test]
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

#[test]
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
