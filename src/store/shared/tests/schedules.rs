//! Schedules that chance seldom finds, step by step.

use super::world::World;
use super::*;

pub(super) fn request(gateway: usize, what: usize, cost: u64) -> Step {
    Step::Ask { gateway, what, cost }
}

pub(super) fn exchange(gateway: usize, server: usize, times: usize) -> Vec<Step> {
    let once = [Step::Send(gateway, server), Step::Execute(gateway, server), Step::Answer(gateway, server)];
    once.iter().cycle().take(3 * times).cloned().collect()
}

/// Two gateways that are not strict, on one server; every key's limit is 5.
fn two_gateways(kind: usize, steps: &[Step]) -> (World, Fingerprint) {
    let limit = limit(kind, 5);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, LOCAL, vec![vec![ask(&limit, key)]]);
    [Step::Connect(0, 0), Step::Connect(1, 0)].iter().chain(steps).for_each(|step| world.run(step));
    world.settle();
    (world, key)
}

fn a_request_that_stops_waiting_before_it_is_taken_in_is_not_charged() {
    for kind in 0..KINDS {
        let limit = limit(kind, 5);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(1, 1, LOCAL, vec![vec![ask(&limit, key)]]);
        world.run(&request(0, 0, 1));
        world.settle();
        world.give_up(0);
        world.settle();
        assert_eq!(counted(&mut world, kind, key), 1, "{kind}");
    }
}

fn a_state_is_given_back_to_once() {
    let mut steps = vec![Step::Connect(0, 0), Step::Connect(1, 0), request(0, 0, 1)];
    steps.extend(exchange(0, 0, 1));
    // It is charged provisionally, but nobody waits any more when that is confirmed.
    steps.extend([Step::Send(0, 0), Step::Tick(100_000), Step::Execute(0, 0), Step::Answer(0, 0), Step::Send(0, 0)]);
    steps.extend([Step::Break(0, 0, 1), request(1, 0, 1)]);
    steps.extend(exchange(1, 0, 3));
    for kind in (0..KINDS).filter(|kind| is_whole(*kind)) {
        strictly((2, 1, kind, 1), &steps).unwrap();
    }
}

fn an_unacknowledged_counter_gets_no_provisional_charge() {
    let mut steps = vec![Step::Connect(0, 0), request(0, 0, 1), Step::Send(0, 0), Step::Break(0, 0, 0)];
    steps.extend([Step::Connect(0, 0), request(0, 0, 6)]);
    steps.extend(exchange(0, 0, 1));
    steps.extend([Step::Connect(1, 0), request(1, 0, 7)]);
    steps.extend(exchange(1, 0, 1));
    strictly((2, 1, 0, 7), &steps).unwrap();
}

fn a_provisional_charge_is_checked_again_in_a_new_bucket() {
    let mut steps =
        vec![Step::Connect(0, 0), Step::Connect(1, 0), Step::Tick(980_000), request(0, 0, 1), Step::Send(0, 0)];
    steps.extend([Step::Tick(40_000), request(1, 0, 1)]);
    steps.extend(exchange(1, 0, 1));
    steps.extend([Step::Execute(0, 0), Step::Answer(0, 0)]);
    strictly((2, 1, 2, 1), &steps).unwrap();
}

fn what_a_server_that_went_away_cannot_confirm_is_not_admitted() {
    let mut steps = vec![Step::Connect(0, 0), Step::Connect(0, 1), request(0, 2, 1)];
    steps.extend(exchange(0, 0, 1));
    steps.push(Step::Break(0, 0, 0));
    steps.extend(exchange(0, 1, 2));
    steps.extend([Step::Connect(1, 0), request(1, 0, 1)]);
    steps.extend(exchange(1, 0, 2));
    strictly((2, 2, 3, 1), &steps).unwrap();
}

fn a_count_that_others_have_begun_anew_is_not_believed() {
    let mut steps = vec![request(0, 0, 5)];
    steps.extend(exchange(0, 0, 2));
    steps.extend([Step::Evict(0, 0), request(1, 0, 1)]);
    steps.extend(exchange(1, 0, 2));
    steps.extend([Step::Moment, request(0, 0, 1)]);
    let (world, key) = two_gateways(0, &steps);
    assert_eq!(admitted(&world.decided, key), 6, "5 of one that knew of them, and 1 of one that could not");
}

fn a_state_that_is_lost_before_it_is_appended_to_is_begun_anew() {
    let once = |gateway| [vec![request(gateway, 0, 1)], exchange(gateway, 0, 2)].concat();
    let steps = [once(0), once(1), vec![Step::Evict(0, 0)], once(1)].concat();
    for kind in (0..KINDS).filter(|kind| is_whole(*kind)) {
        let (mut world, key) = two_gateways(kind, &steps);
        assert_eq!((admitted(&world.decided, key), counted(&mut world, kind, key)), (3, 3), "{kind}");
    }
}

fn what_a_server_could_not_do_is_done_later() {
    let mut steps = vec![request(0, 0, 1)];
    steps.extend(exchange(0, 0, 2));
    steps.extend([Step::Moment, request(0, 0, 1)]);
    steps.extend(exchange(0, 0, 1));
    steps.push(Step::Fail(0, 1));
    steps.extend(exchange(0, 0, 1));
    steps.extend([Step::Connect(0, 0), request(0, 0, 1)]);
    for kind in 0..KINDS {
        let (mut world, key) = two_gateways(kind, &steps);
        assert_eq!(counted(&mut world, kind, key), 3, "{kind}");
    }
}

fn what_a_server_did_not_do_is_written_when_it_is_back() {
    for begin in [vec![], [vec![request(0, 0, 1)], exchange(0, 0, 2), vec![Step::Moment]].concat()] {
        let earlier = u64::from(!begin.is_empty());
        let mut steps = [begin, vec![request(0, 0, 1), Step::Send(0, 0), Step::Fail(0, u64::MAX)]].concat();
        steps.extend([Step::Execute(0, 0), Step::Answer(0, 0)]);
        for kind in 0..KINDS {
            let (mut world, key) = two_gateways(kind, &steps);
            assert_eq!(admitted(&world.decided, key), 1 + earlier, "{kind}");
            assert_eq!(counted(&mut world, kind, key), 1 + earlier, "{kind}");
        }
    }
}

fn answered(world: &World) -> usize {
    world.decided.iter().filter(|decided| decided.reply.is_some()).count()
}

fn what_was_read_answers_for_a_moment() {
    let limit = limit(0, 1280);
    let (key, other) = (key_on(0, 1, &limit), Fingerprint::of(b"other"));
    let whats = || vec![vec![ask(&limit, key)], vec![ask(&limit, key), ask(&limit, other)]];
    let begin = |mode, whats| {
        let mut world = World::new(1, 1, mode, whats);
        let steps = [Step::Connect(0, 0), Step::Tick(59_999_900), request(0, 0, 1)];
        steps.iter().chain(&exchange(0, 0, 1)).for_each(|step| world.run(step));
        assert_eq!(answered(&world), 1);
        world
    };

    let mut world = begin(LOCAL, whats());
    (0..20).for_each(|_| world.run(&request(0, 0, 1)));
    assert_eq!(answered(&world), 10, "it is good for a 128th");
    exchange(0, 0, 2).iter().for_each(|step| world.run(step));
    assert_eq!((answered(&world), admitted(&world.decided, key)), (21, 21));

    let mut world = begin(LOCAL, whats());
    world.run(&request(0, 1, 1));
    assert_eq!(answered(&world), 1, "of the other key nothing is known");
    world.run(&Step::Tick(200));
    world.run(&request(0, 0, 1));
    assert_eq!(answered(&world), 1, "a bucket has begun");
    exchange(0, 0, 2).iter().for_each(|step| world.run(step));
    assert_eq!(answered(&world), 3);
    world.run(&request(0, 0, 1));
    assert_eq!(answered(&world), 4);
    [Step::Moment, request(0, 0, 1)].iter().for_each(|step| world.run(step));
    assert_eq!(answered(&world), 4, "it was read too long ago");

    let mut world = begin(LOCAL, whats());
    [Step::Charge { gateway: 0, what: 0, cost: 1279 }, request(0, 0, 1)].iter().for_each(|step| world.run(step));
    exchange(0, 0, 2).iter().for_each(|step| world.run(step));
    assert_eq!((answered(&world), admitted(&world.decided, key)), (2, 1), "what was charged before comes first");

    let mut world = begin(STRICT, whats());
    world.run(&request(0, 0, 1));
    assert_eq!(answered(&world), 1, "strictly, every admission is confirmed");
}

fn who_was_on_the_way_while_another_was_refused_asks_nobody() {
    for (remembered, decided) in [(1_000, 1), (0, 0)] {
        let limit = limit(0, 1);
        let mut world = World::new(0, 1, LOCAL, vec![vec![ask(&limit, key_on(0, 1, &limit))]]);
        world.remembered = remembered;
        world.join(LOCAL);
        for is_admitted in [true, false] {
            world.run(&request(0, 0, 1));
            world.settle();
            assert_eq!(world.decided.last().unwrap().admitted(), is_admitted);
        }
        // The worker found no remembered refusal when this request came, but the coordinator takes it in after the answer.
        world.run(&Step::Moment);
        world.run(&request(0, 0, 1));
        assert_eq!(world.decided.len() - 2, decided);
        world.run(&Step::Tick(remembered));
        world.run(&request(0, 0, 1));
        assert_eq!(world.decided.len() - 2, decided, "what is remembered is not remembered anew");
        world.settle();
        assert!(world.decided[1..].iter().all(|decided| !decided.admitted()));
    }
}

fn where_there_is_room_one_exchange_reads_and_counts() {
    let limit = limit(0, 10);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, LOCAL, vec![vec![ask(&limit, key)]]);
    let begin = [Step::Connect(0, 0), Step::Connect(1, 0), request(0, 0, 1)];
    begin.iter().chain(&exchange(0, 0, 2)).for_each(|step| world.run(step));
    [Step::Moment, request(0, 0, 1)].iter().chain(&exchange(0, 0, 1)).for_each(|step| world.run(step));
    assert_eq!(answered(&world), 2);
    assert_eq!(counted(&mut world, 0, key), 2, "it is counted already");

    // Another gateway takes the rest, which this one does not know.
    (0..9).for_each(|_| world.run(&request(1, 0, 1)));
    exchange(1, 0, 2).iter().for_each(|step| world.run(step));
    assert_eq!(admitted(&world.decided, key), 10);
    [Step::Moment, request(0, 0, 1)].iter().chain(&exchange(0, 0, 1)).for_each(|step| world.run(step));
    assert_eq!((answered(&world), admitted(&world.decided, key)), (12, 10), "it is too late");
    world.settle();
    assert_eq!(counted(&mut world, 0, key), 10, "and its provisional charge is given back");
}

fn a_provisional_charge_is_judged_by_the_quota_that_it_was_made_by() {
    let (gold, free) = (limit(0, 100), limit(0, 10));
    let key = key_on(0, 1, &gold);
    for mode in [LOCAL, STRICT] {
        let mut world = World::new(1, 1, mode, vec![vec![ask(&gold, key)], vec![ask(&free, key)]]);
        let begin = [Step::Connect(0, 0), request(0, 0, 50)];
        begin.iter().chain(&exchange(0, 0, 2)).for_each(|step| world.run(step));
        let both = [Step::Moment, request(0, 0, 1), Step::Send(0, 0), request(0, 1, 1)];
        both.iter().for_each(|step| world.run(step));
        [Step::Execute(0, 0), Step::Answer(0, 0)].iter().for_each(|step| world.run(step));
        world.settle();
        let admitted: Vec<_> = world.decided.iter().map(Decided::admitted).collect();
        assert_eq!(admitted, [true, true, false], "{mode:?}");
        assert_eq!(counted(&mut world, 0, key), 51);
    }
}

fn a_counter_that_cannot_be_written_keeps_no_server_away() {
    let (mut world, key) = two_gateways(6, &[request(0, 0, 1)]);
    [Step::Moment, request(0, 0, 1), Step::Send(0, 0)].iter().for_each(|step| world.run(step));
    // This exchange does nothing; the next one only reads.
    [Step::Fail(0, 0b11), Step::Execute(0, 0), Step::Answer(0, 0)].iter().for_each(|step| world.run(step));
    assert!(!world.is_up(0, 0));
    [Step::Connect(0, 0), Step::Send(0, 0), Step::Fail(0, 0b01)].iter().for_each(|step| world.run(step));
    [Step::Execute(0, 0), Step::Answer(0, 0)].iter().for_each(|step| world.run(step));
    assert!(world.is_up(0, 0));
    assert_eq!(counted(&mut world, 6, key), 1, "it could not be written");
    world.run(&request(0, 0, 1));
    world.settle();
    assert_eq!(counted(&mut world, 6, key), 3, "and is when somebody asks");
}

fn a_state_that_was_written_and_could_not_be_read_is_known_again() {
    let limit = limit(BUCKET, 8);
    let mut world = World::new(1, 1, LOCAL, vec![vec![ask(&limit, key_on(0, 1, &limit))]]);
    let mut steps = vec![Step::Connect(0, 0), request(0, 0, 2)];
    steps.extend(exchange(0, 0, 1));
    // The first of the next two commands succeeds, the second fails; meanwhile more is admitted, and drains.
    steps.extend([Step::Send(0, 0), Step::Fail(0, 2), request(0, 0, 2), Step::Tick(22_500_000)]);
    steps.extend([Step::Execute(0, 0), Step::Answer(0, 0), request(0, 0, 7)]);
    steps.extend(exchange(0, 0, 1));
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    assert!(world.decided.iter().all(Decided::admitted), "{:?}", world.decided);
}

fn what_others_have_counted_stays_when_a_gateway_comes_back() {
    for kind in (0..KINDS).filter(|kind| is_whole(*kind)) {
        for away in [0, 900_000, 5_000_000, 30_000_000, 100_000_000] {
            let limit = limit(kind, 20);
            let key = key_on(0, 1, &limit);
            let mut world = World::new(2, 1, LOCAL, vec![vec![ask(&limit, key)]]);
            let ask = |gateway| Step::Ask { gateway, what: 0, cost: 1 };
            for gateway in 0..2 {
                world.run(&ask(gateway));
                world.settle();
            }
            // The second gateway loses its connection and admits one on its own.
            world.run(&Step::Break(1, 0, 0));
            world.run(&ask(1));
            world.run(&Step::Tick(away));
            let flood = |world: &mut World| {
                for _ in 0..40 {
                    world.run(&ask(0));
                    for _ in 0..3 {
                        world.run(&Step::Send(0, 0));
                        world.run(&Step::Execute(0, 0));
                        world.run(&Step::Answer(0, 0));
                    }
                }
                admitted(&world.decided, key)
            };
            let before = flood(&mut world);
            world.settle();
            assert_eq!(flood(&mut world), before, "way to count {kind}, {away} us away");
        }
    }
}

/// Charges what requests turn out to have cost.
fn charge(gateway: usize, cost: u64) -> Step {
    Step::Charge { gateway, what: 0, cost }
}

fn a_bucket_that_was_charged_more_than_it_holds_is_remembered_until_that_has_drained() {
    let limit = limit(BUCKET, 20);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, LOCAL, vec![vec![ask(&limit, key)]]);
    world.run(&charge(0, 200));
    world.settle();
    let flood = |world: &mut World| {
        for _ in 0..20 {
            world.run(&request(1, 0, 1));
            world.settle();
        }
        admitted(&world.decided, key)
    };
    for _ in 0..8 {
        world.run(&Step::Tick(67_000_000));
        assert_eq!(flood(&mut world), 0, "200 of 20 a minute take 9 minutes until there is one again");
    }
    world.run(&Step::Tick(8_000_000));
    assert_eq!(flood(&mut world), 1);
}

fn a_bucket_to_which_several_gateways_append_is_remembered_until_all_of_that_has_drained() {
    let limit = limit(BUCKET, 20);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(3, 1, LOCAL, vec![vec![ask(&limit, key)]]);
    for gateway in 0..3 {
        world.run(&request(gateway, 0, 1));
        world.settle();
    }
    let all = |world: &mut World, step: fn(usize, usize) -> Step, gateways| {
        for gateway in gateways {
            world.run(&step(gateway, 0));
        }
    };
    // All replace the same state: the first succeeds, and the others append at the same time.
    (0..3).for_each(|gateway| world.run(&charge(gateway, 100)));
    for gateways in [0..3, 1..3] {
        all(&mut world, Step::Send, gateways.clone());
        all(&mut world, Step::Execute, gateways.clone());
        all(&mut world, Step::Answer, gateways);
    }
    world.settle();
    world.run(&Step::Tick(630_000_000));
    assert_eq!(counted(&mut world, BUCKET, key), 303 - 210);
}

fn what_has_drained_meanwhile_is_not_taken_back() {
    let limit = limit(BUCKET, 20);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, STRICT, vec![vec![ask(&limit, key)]]);
    let mut steps = vec![Step::Connect(0, 0), Step::Connect(1, 0), request(0, 0, 1)];
    // It is charged provisionally, but nobody waits for the confirmation. It cannot be taken back before it has drained.
    steps.extend([Step::Send(0, 0), Step::Tick(100_000), Step::Execute(0, 0), Step::Answer(0, 0)]);
    steps.extend([Step::Break(0, 0, 0), Step::Tick(30_000_000)]);
    steps.iter().for_each(|step| world.run(step));
    let flood = |world: &mut World| {
        for _ in 0..25 {
            world.run(&request(1, 0, 1));
            exchange(1, 0, 4).iter().for_each(|step| world.run(step));
        }
        admitted(&world.decided, key)
    };
    assert_eq!(flood(&mut world), 20);
    world.settle();
    assert_eq!(flood(&mut world), 20, "what others have taken meanwhile is not given away");
}

fn who_is_alone_knows_when_it_was_charged_though_an_exchange_breaks() {
    let limit = limit(LOG, 4);
    let mut world = World::new(1, 1, LOCAL, vec![vec![ask(&limit, key_on(0, 1, &limit))]]);
    // The first is written, and its exchange breaks. The next ones get no answer.
    let mut steps = vec![request(0, 0, 1), Step::Connect(0, 0), Step::Send(0, 0), Step::Break(0, 0, 1)];
    steps.extend([Step::Connect(0, 0), Step::Send(0, 0), request(0, 0, 1), Step::Tick(18_000_000), request(0, 0, 2)]);
    steps.extend([Step::Tick(42_000_000 - 10), request(0, 0, 1), Step::Tick(20), request(0, 0, 1)]);
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    world.decided.sort_by_key(|decided| decided.asked);
    compare(&world.decided, true).unwrap();
    assert_eq!(world.decided.iter().map(Decided::admitted).collect::<Vec<_>>(), [true, true, true, true, true]);
}

with_each_server! {
    a_request_that_stops_waiting_before_it_is_taken_in_is_not_charged
    a_state_is_given_back_to_once
    an_unacknowledged_counter_gets_no_provisional_charge
    a_provisional_charge_is_checked_again_in_a_new_bucket
    what_a_server_that_went_away_cannot_confirm_is_not_admitted
    a_count_that_others_have_begun_anew_is_not_believed
    a_state_that_is_lost_before_it_is_appended_to_is_begun_anew
    what_a_server_could_not_do_is_done_later
    what_a_server_did_not_do_is_written_when_it_is_back
    what_was_read_answers_for_a_moment
    who_was_on_the_way_while_another_was_refused_asks_nobody
    where_there_is_room_one_exchange_reads_and_counts
    a_provisional_charge_is_judged_by_the_quota_that_it_was_made_by
    a_counter_that_cannot_be_written_keeps_no_server_away
    a_state_that_was_written_and_could_not_be_read_is_known_again
    what_others_have_counted_stays_when_a_gateway_comes_back
    a_bucket_that_was_charged_more_than_it_holds_is_remembered_until_that_has_drained
    a_bucket_to_which_several_gateways_append_is_remembered_until_all_of_that_has_drained
    what_has_drained_meanwhile_is_not_taken_back
    who_is_alone_knows_when_it_was_charged_though_an_exchange_breaks
}
