//! Requests whose cost is known later, at one gateway and at several, while exchanges fail; how full limits are before a
//! request is charged, and what is reserved of requests that may be held.

use super::*;
use crate::base::share::WHOLE;
use crate::store::IfAbandoned;

/// Runs the steps, and checks after each that `holds`; then settles all that is open, and lets it arrive.
fn run(world: &mut World, steps: &[Step], mut holds: impl FnMut(&World) -> TestCaseResult) -> TestCaseResult {
    for step in steps {
        world.run(step);
        holds(world)?;
    }
    world.settle();
    holds(world)?;
    while world.decided.iter().any(|decided| !decided.reserved.is_empty()) {
        world.settle_one(0, 0);
    }
    world.settle();
    Ok(())
}

/// Asks for each key alone, and for all of them at once, by a limit whose costs are known later.
fn settling_each_and_all(limit: &Arc<Limit>, keys: &[Fingerprint]) -> Vec<Vec<OwnedAsk>> {
    let mut whats = each_and_all(limit, keys);
    whats.iter_mut().flatten().for_each(|ask| ask.settles = true);
    whats
}

/// Whether no count of this kind leaves by itself during these tests.
fn lasts(kind: usize) -> bool {
    kind != BUCKET
}

/// Makes the only gateway send a charge that it reserves. Sums are read first.
fn write_one(world: &mut World, kind: usize) {
    let mut steps = vec![Step::Connect(0, 0), Step::Reserve { gateway: 0, what: 0, cost: 1 }, Step::Send(0, 0)];
    if in_doubt(kind) > 0 {
        steps.extend([Step::Execute(0, 0), Step::Answer(0, 0), Step::Send(0, 0)]);
    }
    steps.iter().for_each(|step| world.run(step));
}

/// How much of a charge in doubt that was given back stays counted: for a state that is kept as a whole it becomes known
/// whether it has arrived.
fn in_doubt(kind: usize) -> u64 {
    u64::from(!is_only_whole(kind))
}

fn a_count_that_others_have_begun_anew_is_not_believed_where_counters_shrink() {
    let limit = limit(0, 5);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, LOCAL, settling_each_and_all(&limit, &[key]));
    let reserve = |gateway| Step::Reserve { gateway, what: 0, cost: 1 };
    (0..5).for_each(|_| world.run(&reserve(0)));
    world.settle();
    // One is given back, the others cost what was reserved.
    world.settle_one(0, 0);
    (0..4).for_each(|_| world.settle_one(0, 4));
    world.settle();
    world.run(&Step::Evict(0, 0));
    world.run(&reserve(1));
    world.settle();
    world.run(&Step::Moment);
    (0..3).for_each(|_| world.run(&reserve(0)));
    world.settle();
    assert_eq!(admitted(&world.decided, key), 6, "5 of one that knew of 4 of them, and 1 of one that could not");
}

fn what_is_in_doubt_is_not_given_back() {
    for kind in 0..KINDS {
        let limit = limit(kind, 5);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(1, 1, LOCAL, settling_each_and_all(&limit, &[key]));
        write_one(&mut world, kind);
        // It has been written, but the answer is lost.
        world.run(&Step::Break(0, 0, 1));
        world.settle_one(0, 0);
        world.settle();
        assert_eq!(counted(&mut world, kind, key), in_doubt(kind), "{kind}");
    }
}

fn one_exchange_in_doubt_does_not_stop_what_comes_later_from_being_given_back() {
    for (kind, executed) in (0..KINDS).flat_map(|kind| [(kind, 0), (kind, 1)]) {
        let limit = limit(kind, 5);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(1, 1, LOCAL, settling_each_and_all(&limit, &[key]));
        let reserve = Step::Reserve { gateway: 0, what: 0, cost: 1 };
        write_one(&mut world, kind);
        world.run(&Step::Break(0, 0, executed));
        // While the server is away, many requests turn out to cost nothing.
        for _ in 0..20 {
            world.settle_one(0, 0);
            world.run(&reserve);
        }
        assert!(world.decided.iter().all(Decided::admitted), "way to count {kind}");
        world.settle_one(0, 0);
        world.settle();
        assert_eq!(counted(&mut world, kind, key), in_doubt(kind), "way to count {kind}, executed: {executed}");
    }
}

fn what_was_forgotten_before_it_was_counted_is_not_taken_from_others() {
    for kind in [0, 4] {
        let limit = limit(kind, 20);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(2, 1, LOCAL, settling_each_and_all(&limit, &[key]));
        // The first gateway is alone, and its admission has not arrived when it has to forget it.
        world.run(&Step::Break(0, 0, 0));
        world.run(&Step::Reserve { gateway: 0, what: 0, cost: 3 });
        world.connect(1, 0);
        world.run(&Step::Ask { gateway: 1, what: 0, cost: 5 });
        (0..3).for_each(|_| {
            [Step::Send(1, 0), Step::Execute(1, 0), Step::Answer(1, 0)].iter().for_each(|step| world.run(step));
        });
        world.crowd_out(0);
        world.settle_one(0, 0);
        world.settle();
        assert_eq!(counted(&mut world, kind, key), 5, "way to count {kind}");
    }
}

fn what_was_counted_before_it_was_forgotten_is_given_back() {
    let limit = limit(0, 20);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(1, 1, LOCAL, settling_each_and_all(&limit, &[key]));
    world.run(&Step::Reserve { gateway: 0, what: 0, cost: 3 });
    world.settle();
    world.run(&Step::Break(0, 0, 0));
    world.crowd_out(0);
    world.settle_one(0, 0);
    world.settle();
    assert_eq!(counted(&mut world, 0, key), 0);
}

fn what_a_stream_has_asked_for_is_given_back_if_it_is_gone_before_the_answer() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| (0..KINDS).map(move |kind| (how, kind))) {
        for (if_abandoned, expected) in [(IfAbandoned::Lapses, 0..=slack(kind)), (IfAbandoned::Ends, 7..=7)] {
            let limit = limit(kind, 20);
            let key = key_on(0, 1, &limit);
            let step = OwnedAsk { settles: true, if_abandoned, need: 7, cost: 7, ..ask(&limit, key) };
            let mut world = World::new(1, 1, how, vec![vec![step]]);
            world.connect(0, 0);
            world.run(&Step::Reserve { gateway: 0, what: 0, cost: 7 });
            world.leave(0);
            world.settle();
            let counted = counted(&mut world, kind, key);
            assert!(expected.contains(&counted), "{counted}, way to count {kind}, {how:?}");
        }
    }
}

fn a_charge_whose_answer_is_lost_while_another_gateway_gives_back_is_counted_once_more_at_most() {
    for kind in (0..KINDS).filter(|kind| lasts(*kind)) {
        let limit = limit(kind, 1000);
        let key = key_on(0, 1, &limit);
        let mut world = World::new(2, 1, LOCAL, settling_each_and_all(&limit, &[key]));
        let reserve = |gateway, cost| Step::Reserve { gateway, what: 0, cost };
        world.run(&reserve(0, 500));
        world.settle();
        world.run(&reserve(1, 50));
        world.settle();
        world.run(&reserve(0, 100));
        [Step::Send(0, 0), Step::Execute(0, 0), Step::Answer(0, 0), Step::Send(0, 0)]
            .iter()
            .for_each(|step| world.run(step));
        world.run(&Step::Break(0, 0, 1));
        world.settle_one(1, 0);
        (0..3)
            .flat_map(|_| [Step::Send(1, 0), Step::Execute(1, 0), Step::Answer(1, 0)])
            .for_each(|step| world.run(&step));
        world.settle();
        let counted = counted(&mut world, kind, key);
        assert!((600..=700).contains(&counted), "{counted}, way to count {kind}");
        assert!(!is_only_whole(kind) || counted == 600, "{counted}, way to count {kind}");
    }
}

fn what_was_admitted_too_late_is_not_taken_from_others() {
    let limit = limit(4, 2);
    let key = key_on(0, 1, &limit);
    let mut world = World::new(2, 1, STRICT, settling_each_and_all(&limit, &[key]));
    world.connect(1, 0);
    world.run(&Step::Ask { gateway: 1, what: 0, cost: 1 });
    // The charge is written, but the answer comes when nobody waits for it any more.
    [Step::Send(1, 0), Step::Execute(1, 0)].iter().for_each(|step| world.run(step));
    (0..4).for_each(|_| world.run(&Step::Tick(400_000)));
    world.run(&Step::Reserve { gateway: 0, what: 0, cost: 1 });
    world.settle();
    world.settle_one(0, 0);
    world.settle();
    assert!(world.decided.iter().any(Decided::admitted));
    assert_eq!(counted(&mut world, 4, key), 0);
}

proptest! {
    fn nobody_waits_for_ever_where_costs_are_known_later(
        steps in schedule(passing(settling(lossy())), 150),
        (gateways, servers, kind, quota) in (1..4_usize, 1..3_usize, 0..KINDS, 1..30_u64),
        (on_error, strict) in (failing(), any::<bool>()),
    ) {
        let limit = limit(kind, quota);
        let whats = settling_each_and_all(&limit, &keys(servers, &limit));
        let mut world = World::new(gateways, servers, (on_error, strict), whats);
        run(&mut world, &steps, |_| Ok(()))?;
    }

    /// A gateway on its own never exceeds the room, counting what is open; in the end every counter has just the real costs.
    fn one_gateway_settles_exactly(
        steps in schedule(settling(lossy()), 150),
        (servers, kind, quota, strict) in (1..3_usize, 0..KINDS, 1..30_u64, any::<bool>()),
    ) {
        let limit = limit(kind, quota);
        let keys = keys(servers, &limit);
        let mut world = World::new(1, servers, (OnError::Local, strict), settling_each_and_all(&limit, &keys));
        run(&mut world, &steps, |world| {
            for key in &keys {
                prop_assert!(admitted(&world.decided, *key) <= quota);
            }
            Ok(())
        })?;
        for key in keys {
            world.run(&Step::Moment);
            world.ask(0, vec![OwnedAsk { need: 1, cost: 0, ..ask(&limit, key) }]);
            world.settle();
            let (kept, counted) = (admitted(&world.decided, key), counted(&mut world, kind, key));
            prop_assert!(counted >= kept, "{counted} counted of {kept}");
            if world.unanswered == 0 {
                prop_assert!(counted <= kept + slack(kind), "{counted} counted of {kept}");
            }
        }
    }

    fn strict_gateways_settle_and_never_admit_too_much(
        steps in schedule(lasting(settling(broken())), 200),
        (gateways, servers, kind, quota) in (2..4_usize, 1..3_usize, 0..KINDS, 1..30_u64),
    ) {
        let limit = limit(kind, quota);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, STRICT, settling_each_and_all(&limit, &keys));
        let begun = world.now.micros();
        run(&mut world, &steps, |world| {
            let drained = if lasts(kind) { 0 } else { (world.now.micros() - begun).div_ceil(60_000_000 / quota) };
            for key in &keys {
                let admitted = admitted(&world.decided, *key);
                prop_assert!(admitted <= quota + drained, "{admitted} of {quota} admitted");
            }
            Ok(())
        })?;
        for key in keys {
            let (kept, counted) = (admitted(&world.decided, key), counted(&mut world, kind, key));
            if lasts(kind) {
                prop_assert!(counted >= kept, "{counted} counted of {kept}");
            }
            if world.unanswered == 0 {
                let slack = slack_in_time(kind, &world.decided);
                prop_assert!(counted <= kept + slack, "{counted} counted of {kept}");
            }
        }
    }

    /// If answers are lost while others give back, a charge is counted at most once more for each lost answer, and what may
    /// never have arrived is not given back.
    fn what_is_counted_twice_where_costs_are_known_later_is_bounded(
        steps in schedule(settling(broken()), 150),
        (gateways, servers) in (2..4_usize, 1..3_usize),
        kind in prop::sample::select(vec![0, 1, 2, 6, 7]),
    ) {
        let limit = limit(kind, PLENTY / 10);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, LOCAL, settling_each_and_all(&limit, &keys));
        run(&mut world, &steps, |_| Ok(()))?;
        let (unheard, vanished) = (world.unheard, world.vanished);
        let leased = world.unanswered * most_leased(&limit);
        for key in keys {
            let (kept, counted) = (admitted(&world.decided, key), counted(&mut world, kind, key));
            let most = kept + 2 * unheard + vanished + leased;
            prop_assert!(counted <= most, "{counted} counted of {kept}, {unheard} unheard, {vanished} vanished");
        }
    }

    /// While nothing fails, no gateway counts any more what others give back, however their exchanges interleave.
    fn what_gateways_give_back_is_counted_by_none(
        steps in schedule(settling(reliable()), 200),
        (gateways, servers, kind) in (2..4_usize, 1..3_usize, 0..KINDS),
        strict: bool,
    ) {
        let limit = limit(kind, PLENTY / 10);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, (OnError::Local, strict), settling_each_and_all(&limit, &keys));
        run(&mut world, &steps, |_| Ok(()))?;
        for key in keys {
            let kept = admitted(&world.decided, key);
            let most = kept + slack(kind);
            let counted = counted(&mut world, kind, key);
            prop_assert!((kept..=most).contains(&counted), "{counted} counted of {kept}");
            for gateway in 0..gateways {
                world.run(&Step::Moment);
                let taken = taken(&mut world, gateway, kind, key);
                prop_assert!((kept..=most).contains(&taken), "{taken} taken for {kept}");
            }
        }
    }
}

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

with_each_server! {
    a_count_that_others_have_begun_anew_is_not_believed_where_counters_shrink
    what_is_in_doubt_is_not_given_back
    one_exchange_in_doubt_does_not_stop_what_comes_later_from_being_given_back
    what_was_forgotten_before_it_was_counted_is_not_taken_from_others
    what_was_counted_before_it_was_forgotten_is_given_back
    what_a_stream_has_asked_for_is_given_back_if_it_is_gone_before_the_answer
    a_charge_whose_answer_is_lost_while_another_gateway_gives_back_is_counted_once_more_at_most
    what_was_admitted_too_late_is_not_taken_from_others
    nobody_waits_for_ever_where_costs_are_known_later
    one_gateway_settles_exactly
    strict_gateways_settle_and_never_admit_too_much
    what_is_counted_twice_where_costs_are_known_later_is_bounded
    what_gateways_give_back_is_counted_by_none
    requests_side_by_side_see_each_other_and_only_those_above_are_reserved
    what_other_gateways_have_used_counts
    all_that_a_held_request_is_charged_is_reserved
}
