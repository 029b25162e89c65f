//! Decisions that check whether their key is banned.

use super::schedules::exchange;
use super::*;
use crate::store::shared::BRIEFLY;
use crate::store::shared::cached_cell::BAN_READ;
use crate::store::shared::cached_cell::BUSY;
use crate::store::shared::refusals::RECHECK;

const SECOND: u64 = 1_000_000;

fn bans() -> Arc<Limit> {
    Arc::new(Limit::bans("l", Duration::from_secs(600), Duration::from_secs(86_400)).unwrap())
}

struct Banning {
    limit: Arc<Limit>,
    bans: Arc<Limit>,
    key: Fingerprint,
}

impl Banning {
    fn new(kind: usize, quota: u64) -> Self {
        let limit = limit(kind, quota);
        let key = key_on(0, 1, &limit);
        Self { limit, bans: bans(), key }
    }

    fn request(&self, cost: u64) -> Vec<OwnedAsk> {
        let look = OwnedAsk { need: self.bans.capacity(), cost: 0, place: 1, ..ask(&self.bans, self.key) };
        vec![OwnedAsk { need: cost, cost, ..ask(&self.limit, self.key) }, look]
    }

    /// What the refusal asks that crosses the threshold.
    fn begin(&self) -> Vec<OwnedAsk> {
        vec![OwnedAsk { need: self.bans.capacity(), cost: 1, ..ask(&self.bans, self.key) }]
    }

    fn world(&self, gateways: usize, how: (OnError, bool)) -> World {
        let mut world = World::new(0, 1, how, vec![self.request(1)]);
        world.remembered = u64::MAX;
        (0..gateways).for_each(|_| world.join(how));
        (0..gateways).for_each(|gateway| world.connect(gateway, 0));
        world
    }
}

/// Asks a gateway, and runs exchanges until it has decided. Returns whether it admits, and the number of exchanges.
fn decide(world: &mut World, gateway: usize, asks: Vec<OwnedAsk>) -> (bool, usize) {
    let before = world.decided.len();
    world.ask(gateway, asks);
    let mut exchanges = 0;
    while world.decided.len() == before {
        exchange(gateway, 0, 1).iter().for_each(|step| world.run(step));
        exchanges += 1;
        assert!(exchanges < 10, "it is not decided");
    }
    (world.decided[before].admitted(), exchanges)
}

fn pass(world: &mut World, micros: u64) {
    world.run(&Step::Tick(micros));
}

fn a_key_that_is_not_banned_costs_no_exchange_and_nothing_is_stored() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| (0..KINDS).map(move |kind| (how, kind))) {
        let banning = Banning::new(kind, 100);
        let (mut with, mut without) = (banning.world(1, how), banning.world(1, how));
        for pause in [0, 10, 10_000, 3 * SECOND, 100_000, 50_000] {
            for world in [&mut with, &mut without] {
                exchange(0, 0, 2).iter().for_each(|step| world.run(step));
                pass(world, pause);
            }
            let plain = vec![banning.request(1).swap_remove(0)];
            let (decided, expected) = (decide(&mut with, 0, banning.request(1)), decide(&mut without, 0, plain));
            // If nothing else has to be read, it is read now and then.
            let is_read = (true, expected.1.max(usize::from(pause >= SECOND || pause == 0)));
            assert_eq!(decided, if is_read.1 > expected.1 { is_read } else { expected }, "{how:?} {kind} {pause}");
        }
        with.settle();
        without.settle();
        let names = |world: &World| world.models[0].names();
        assert_eq!(names(&with), names(&without), "{how:?} {kind}");
    }
}

fn all_gateways_know_of_a_ban_within_a_second() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| (0..KINDS).map(move |kind| (how, kind))) {
        let banning = Banning::new(kind, 100);
        let mut world = banning.world(2, how);
        assert!(decide(&mut world, 1, banning.request(1)).0);
        exchange(1, 0, 2).iter().for_each(|step| world.run(step));
        assert!(decide(&mut world, 0, banning.begin()).0);
        pass(&mut world, u64::try_from(BAN_READ.as_micros()).unwrap());
        let (admitted, exchanges) = decide(&mut world, 1, banning.request(1));
        assert_eq!((admitted, exchanges), (false, 1), "{how:?} {kind}");
        world.settle();
        // A bucket drains meanwhile.
        let left = 1 - slack(kind);
        assert_eq!(
            counted(&mut world, kind, banning.key),
            left,
            "what was charged meanwhile is given back: {how:?} {kind}"
        );
    }
}

fn of_two_gateways_one_begins_a_ban() {
    let banning = Banning::new(0, 5);
    let mut world = banning.world(2, LOCAL);
    (0..2).for_each(|gateway| world.ask(gateway, banning.begin()));
    world.settle();
    assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 1);
    let waits: Vec<_> = world.decided.iter().filter_map(Decided::wait).collect();
    assert!(waits.iter().all(|wait| (599 * SECOND..=600 * SECOND).contains(wait)), "{waits:?}");
}

fn a_flood_of_a_banned_key_is_refused_without_an_exchange() {
    let banning = Banning::new(0, 5);
    let mut world = banning.world(2, LOCAL);
    decide(&mut world, 0, banning.begin());
    assert!(!decide(&mut world, 1, banning.request(1)).0);
    for _ in 0..9 {
        pass(&mut world, RECHECK / 10);
        assert_eq!(decide(&mut world, 1, banning.request(1)), (false, 0));
    }
    pass(&mut world, RECHECK / 10);
    assert_eq!(decide(&mut world, 1, banning.request(1)), (false, 1), "it may have been lifted");
    assert_eq!(decide(&mut world, 1, banning.request(1)), (false, 0));
}

fn a_refusal_by_the_rates_does_not_hide_a_ban_for_long() {
    let banning = Banning::new(0, 5);
    let mut world = banning.world(2, LOCAL);
    assert!(decide(&mut world, 1, banning.request(5)).0);
    exchange(1, 0, 2).iter().for_each(|step| world.run(step));
    let refusing = |world: &mut World| {
        let (admitted, exchanges) = decide(world, 1, banning.request(1));
        assert!(!admitted);
        let verdicts = world.decided.last().unwrap().reply.as_ref().unwrap().verdicts.clone();
        let is_banned = verdicts.iter().any(|(place, verdict)| *place == 1 && !verdict.admitted);
        (is_banned, exchanges)
    };
    assert_eq!(refusing(&mut world), (false, 1));
    assert_eq!(refusing(&mut world), (false, 0));
    decide(&mut world, 0, banning.begin());
    pass(&mut world, u64::try_from(BAN_READ.as_micros()).unwrap());
    assert_eq!(refusing(&mut world), (true, 1));
    assert_eq!(refusing(&mut world), (true, 0));
}

fn a_busy_key_stays_leased() {
    for how in [LOCAL, STRICT] {
        let banning = Banning::new(0, PLENTY / 2);
        let mut world = banning.world(1, how);
        for _ in 0..2 {
            decide(&mut world, 0, banning.request(BUSY));
            exchange(0, 0, 2).iter().for_each(|step| world.run(step));
        }
        for _ in 0..4 {
            assert_eq!(decide(&mut world, 0, banning.request(1)), (true, 0), "{how:?}");
        }
    }
}

fn a_burst_is_exact_while_bans_are_read() {
    for (how, kind) in [LOCAL, STRICT].into_iter().flat_map(|how| (0..KINDS).map(move |kind| (how, kind))) {
        let banning = Banning::new(kind, 20);
        let mut world = banning.world(1, how);
        assert!(decide(&mut world, 0, banning.request(1)).0);
        exchange(0, 0, 2).iter().for_each(|step| world.run(step));
        pass(&mut world, 2 * SECOND);
        (0..40).for_each(|_| world.ask(0, banning.request(1)));
        world.settle();
        assert_eq!(world.decided.iter().filter(|decided| decided.admitted()).count(), 20, "{how:?} {kind}");
    }
}

fn bans_go_on_while_the_server_is_away_and_are_told_afterwards() {
    let banning = Banning::new(0, 5);
    let mut world = banning.world(2, LOCAL);
    assert!(decide(&mut world, 0, banning.request(1)).0);
    world.run(&Step::Break(0, 0, 0));
    assert_eq!(decide(&mut world, 0, banning.begin()), (true, 0));
    assert_eq!(decide(&mut world, 0, banning.request(1)), (false, 0));
    pass(&mut world, 5 * SECOND);
    assert_eq!(decide(&mut world, 0, banning.request(1)), (false, 0));
    assert!(decide(&mut world, 1, banning.request(1)).0, "the other one cannot know");
    world.settle();
    pass(&mut world, SECOND);
    assert!(!decide(&mut world, 1, banning.request(1)).0);
    let wait = world.decided.last().unwrap().wait().unwrap();
    assert!((590 * SECOND..=595 * SECOND).contains(&wait), "it lasts since it began: {wait}");
}

fn a_server_that_has_lost_a_ban_is_told_again() {
    let banning = Banning::new(0, 5);
    let mut world = banning.world(2, LOCAL);
    decide(&mut world, 0, banning.begin());
    world.run(&Step::Restart(0));
    world.settle();
    pass(&mut world, RECHECK + BRIEFLY);
    assert!(!decide(&mut world, 0, banning.request(1)).0);
    world.settle();
    assert!(!decide(&mut world, 1, banning.request(1)).0);
}

proptest! {
    fn a_key_is_refused_while_it_is_banned_and_only_then(
        steps in prop::collection::vec((0..2usize, 0..5u8, prop_oneof![0..20_000u64, 0..1_500_000u64]), 1..40),
        strict in any::<bool>(),
        kind in 0..KINDS,
    ) {
        let (first, longest) = (3 * SECOND, 10 * SECOND);
        let bans = Limit::bans("l", Duration::from_micros(first), Duration::from_micros(longest)).unwrap();
        let banning = Banning { bans: Arc::new(bans), ..Banning::new(kind, PLENTY) };
        let mut world = banning.world(2, if strict { STRICT } else { LOCAL });
        // The gateway that has begun the last ban, when, until when, and for how long.
        let mut last: Option<(usize, u64, u64, u64)> = None;
        for (gateway, what, micros) in steps {
            pass(&mut world, micros);
            let now = world.now.micros() + 1;
            if what == 4 {
                let is_running = last.is_some_and(|(.., until, _)| now < until);
                prop_assert_eq!(decide(&mut world, gateway, banning.begin()).0, !is_running);
                if !is_running {
                    let follows = last.filter(|(.., until, _)| now <= until + longest);
                    let length = follows.map_or(first, |(.., length)| (2 * length).min(longest));
                    last = Some((gateway, now, now + length, length));
                }
                continue;
            }
            let (admitted, exchanges) = decide(&mut world, gateway, banning.request(1));
            prop_assert!(exchanges <= 2, "{} exchanges", exchanges);
            match last {
                Some((by, since, until, _)) if now < until => {
                    let is_known = by == gateway || now >= since + SECOND;
                    prop_assert!(!is_known || !admitted, "it is banned for {} more", until - now);
                }
                _ => prop_assert!(admitted, "nothing refuses it"),
            }
        }
        world.settle();
    }
}

with_each_server! {
    a_key_that_is_not_banned_costs_no_exchange_and_nothing_is_stored
    all_gateways_know_of_a_ban_within_a_second
    of_two_gateways_one_begins_a_ban
    a_flood_of_a_banned_key_is_refused_without_an_exchange
    a_refusal_by_the_rates_does_not_hide_a_ban_for_long
    a_busy_key_stays_leased
    a_burst_is_exact_while_bans_are_read
    bans_go_on_while_the_server_is_away_and_are_told_afterwards
    a_server_that_has_lost_a_ban_is_told_again
    a_key_is_refused_while_it_is_banned_and_only_then
}
