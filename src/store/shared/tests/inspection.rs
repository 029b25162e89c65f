//! Operators look at keys and reset them, while gateways ask, exchanges fail and time passes.

use tokio::sync::oneshot;

use super::world::config;
use super::*;
use crate::store::KeyUsage;
use crate::store::shared::mailbox::{Inspection, Message, Task};
use crate::store::shared::protocol::Lifetime;
use crate::store::shared::protocol_of;

#[derive(Debug)]
pub(super) enum Inspected {
    Shown(oneshot::Receiver<KeyUsage>),
    Reset(oneshot::Receiver<()>),
}

impl Inspected {
    pub(super) fn assert_over(self) {
        let error = match self {
            Self::Shown(mut shown) => shown.try_recv().err(),
            Self::Reset(mut reset) => reset.try_recv().err(),
        };
        assert_ne!(error, Some(TryRecvError::Empty), "an operator waits for ever");
    }
}

impl World {
    pub(super) fn inspect(&mut self, step: &Step) {
        let (Step::Peek(gateway, what) | Step::Reset(gateway, what)) = *step else { panic!("{step:?}") };
        let gateway = gateway % self.gateways.len();
        let ask = self.whats[what % self.whats.len()][0].clone();
        let inspected = match step {
            Step::Peek(..) => Inspected::Shown(self.peek(gateway, ask)),
            _ => Inspected::Reset(self.reset(gateway, ask)),
        };
        self.inspected.push(inspected);
    }

    pub(super) fn peek(&mut self, gateway: usize, ask: OwnedAsk) -> oneshot::Receiver<KeyUsage> {
        let (reply, shown) = oneshot::channel();
        self.submit(gateway, ask, Task::Peek(reply));
        shown
    }

    pub(super) fn reset(&mut self, gateway: usize, ask: OwnedAsk) -> oneshot::Receiver<()> {
        let (reply, reset) = oneshot::channel();
        self.submit(gateway, ask, Task::Reset(reply));
        reset
    }

    fn submit(&mut self, gateway: usize, OwnedAsk { limit, key, .. }: OwnedAsk, task: Task) {
        let (now, asked) = (self.clock(gateway), self.instant());
        let inspection = Inspection { limit, key, now, asked, task };
        self.gateways[gateway].coordinator.submit(Message::Inspect(Box::new(inspection)), asked);
    }
}

fn reset(world: &mut World, gateway: usize, ask: &OwnedAsk) {
    let mut reset = world.reset(gateway, ask.clone());
    world.settle();
    assert_eq!(reset.try_recv(), Ok(()));
}

/// The use of a key's first rate.
pub(super) fn shown(world: &mut World, gateway: usize, ask: &OwnedAsk) -> u64 {
    let mut shown = world.peek(gateway, ask.clone());
    world.settle();
    shown.try_recv().unwrap().rates[0].used
}

/// Makes every gateway write what a failed exchange has left; otherwise that counts after the next reset.
fn write_all(world: &mut World, ask: &OwnedAsk) {
    for gateway in 0..world.gateways.len() {
        shown(world, gateway, ask);
    }
}

/// A world with one key, of which each gateway has admitted `cost`, and all know the total.
fn charged(gateways: usize, kind: usize, cost: u64) -> (World, OwnedAsk) {
    let limit = limit(kind, 30);
    let ask = ask(&limit, key_on(0, 1, &limit));
    let mut world = World::new(gateways, 1, LOCAL, vec![vec![ask.clone()]]);
    for gateway in 0..gateways {
        world.run(&Step::Ask { gateway, what: 0, cost });
        world.settle();
    }
    for gateway in 0..gateways {
        assert_eq!(shown(&mut world, gateway, &ask), cost * gateways as u64, "{kind}");
    }
    (world, ask)
}

fn exchange(world: &mut World, gateway: usize) {
    [Step::Send(gateway, 0), Step::Execute(gateway, 0), Step::Answer(gateway, 0)]
        .iter()
        .for_each(|step| world.run(step));
}

fn to_look_at_a_key_writes_nothing() {
    for kind in 0..KINDS {
        let (mut world, ask) = charged(2, kind, 3);
        let before = format!("{:?}", world.models);
        for gateway in [0, 1, 0] {
            assert_eq!(shown(&mut world, gateway, &ask), 6, "{kind}");
        }
        let other = OwnedAsk { key: Fingerprint::of(b"nobody"), ..ask };
        assert_eq!(shown(&mut world, 0, &other), 0);
        assert_eq!(format!("{:?}", world.models), before, "{kind}");
    }
}

fn what_is_admitted_during_a_reset_is_counted_after_it() {
    for kind in 0..KINDS {
        let (mut world, ask) = charged(1, kind, 5);
        let mut reset = world.reset(0, ask.clone());
        // The key is read, and then reset.
        exchange(&mut world, 0);
        world.run(&Step::Send(0, 0));
        world.run(&Step::Ask { gateway: 0, what: 0, cost: 2 });
        world.settle();
        assert_eq!(reset.try_recv(), Ok(()));
        assert_eq!((shown(&mut world, 0, &ask), counted(&mut world, kind, ask.key)), (2, 2), "{kind}");
    }
}

fn who_resets_a_key_is_told_that_the_connection_broke() {
    for (kind, executed) in (0..KINDS).flat_map(|kind| [(kind, 0), (kind, 1)]) {
        let (mut world, ask) = charged(2, kind, 3);
        let mut reset = world.reset(0, ask.clone());
        exchange(&mut world, 0);
        world.run(&Step::Send(0, 0));
        world.run(&Step::Break(0, 0, executed));
        assert!(reset.try_recv().is_err_and(|error| error == TryRecvError::Closed));
        world.settle();
        let left = if executed == 1 { 0 } else { 6 };
        for gateway in [0, 1, 0] {
            assert_eq!(shown(&mut world, gateway, &ask), left, "{kind}, executed: {executed}");
        }
    }
}

fn a_key_whose_server_is_away_is_neither_shown_nor_reset() {
    for kind in 0..KINDS {
        let (mut world, ask) = charged(2, kind, 3);
        // The first waits for an exchange that is never answered; the second comes when that is known.
        let mut before = (world.peek(0, ask.clone()), world.reset(0, ask.clone()));
        world.run(&Step::Break(0, 0, 0));
        let mut later = (world.peek(0, ask.clone()), world.reset(0, ask.clone()));
        for (shown, reset) in [&mut before, &mut later] {
            assert_eq!(
                (shown.try_recv().err(), reset.try_recv().err()),
                (Some(TryRecvError::Closed), Some(TryRecvError::Closed))
            );
        }
        world.settle();
        assert_eq!(shown(&mut world, 1, &ask), 6, "{kind}: nothing was reset");
    }
}

fn who_looks_at_a_key_of_which_something_is_only_pending_is_told_when_its_server_goes_away() {
    for kind in 0..KINDS {
        let (mut world, ask) = charged(1, kind, 5);
        world.run(&Step::Charge { gateway: 0, what: 0, cost: 1 });
        let mut shown = world.peek(0, ask);
        world.run(&Step::Break(0, 0, 0));
        assert!(shown.try_recv().is_err_and(|error| error == TryRecvError::Closed), "{kind}");
    }
}

fn a_reset_that_fails_is_told_and_can_be_repeated() {
    for kind in 0..KINDS {
        let (mut world, ask) = charged(1, kind, 3);
        let mut failed = world.reset(0, ask.clone());
        exchange(&mut world, 0);
        // It cannot be stored, and whatever cannot be stored is lost.
        world.run(&Step::Fail(0, 1));
        exchange(&mut world, 0);
        assert_eq!(failed.try_recv(), Err(TryRecvError::Closed), "{kind}");
        world.settle();
        reset(&mut world, 0, &ask);
        assert_eq!(shown(&mut world, 0, &ask), 0, "{kind}");
    }
}

fn a_gateway_whose_clock_is_behind_resets_a_key_as_well() {
    for kind in [0, 6, 7] {
        let (mut world, ask) = charged(2, kind, 3);
        // Both count in the same bucket.
        world.run(&Step::Tick(40_000_000));
        world.gateways[1].behind = 2_000_000;
        reset(&mut world, 0, &ask);
        world.run(&Step::Ask { gateway: 0, what: 0, cost: 4 });
        world.settle();
        reset(&mut world, 1, &ask);
        assert_eq!((shown(&mut world, 0, &ask), shown(&mut world, 1, &ask)), (0, 0), "{kind}");
        world.run(&Step::Ask { gateway: 1, what: 0, cost: 4 });
        world.settle();
        reset(&mut world, 0, &ask);
        assert_eq!((shown(&mut world, 1, &ask), shown(&mut world, 0, &ask)), (0, 0), "{kind}");
    }
}

fn who_sees_one_counter_reset_before_the_others_sees_those_later() {
    for kind in [0, 1, 2] {
        let (mut world, ask) = charged(2, kind, 3);
        // The count is in an earlier bucket now.
        world.run(&Step::Tick(60_000_000 / [1, 7, 60][kind]));
        world.run(&Step::Ask { gateway: 1, what: 0, cost: 2 });
        world.settle();
        assert!(shown(&mut world, 1, &ask) >= 7, "{kind}");
        let mut counters = world.models[0].names();
        assert_eq!(counters.len(), 2);
        // The newest first, as a gateway writes them.
        counters.reverse();
        for (counter, most) in counters.iter().zip([6, 0]) {
            let now = world.now;
            let (mut commands, mut out) = (protocol_of(&config(1, OnError::Local, false)).commands(), Vec::new());
            let name = |out: &mut Vec<u8>| out.extend_from_slice(counter.as_bytes());
            commands.store_count(&name, 0, Lifetime { seconds: 300, from: now.seconds_up() }, 1_900_000_000);
            commands.finish(&mut out);
            world.models[0].execute(&out, now);
            // A gateway that reads it now must not rely on what is reset a moment later.
            for _ in 0..2 {
                assert!(shown(&mut world, 1, &ask) <= most, "{kind}");
            }
        }
    }
}

fn a_provisional_charge_from_before_the_reset_is_rejected_if_another_was_first() {
    for kind in 0..KINDS {
        let limit = limit(kind, 1);
        let ask = ask(&limit, key_on(0, 1, &limit));
        let mut world = World::new(2, 1, STRICT, vec![vec![ask.clone()]]);
        write_all(&mut world, &ask);
        reset(&mut world, 0, &ask);
        for gateway in [0, 1] {
            world.ask(gateway, vec![ask.clone()]);
            world.settle();
        }
        assert_eq!(admitted(&world.decided, ask.key), 1, "{kind}");
    }
}

fn a_reset_leaves_nothing_to_carry_over() {
    for (kind, next) in (0..KINDS).flat_map(|kind| (0..KINDS).map(move |next| (kind, next))).filter(|(a, b)| a != b) {
        let (mut world, _) = charged(3, kind, 3);
        world.ways = (0..KINDS).map(|kind| limit(kind, 30)).collect();
        world.gateways.iter_mut().for_each(|gateway| gateway.way = kind);
        (0..3).for_each(|gateway| world.run(&Step::Reload(gateway, next)));
        let limit = world.ways[next].clone();
        let ask = ask(&limit, key_on(0, 1, &limit));
        world.run(&Step::Tick(1_000_000));
        // One gateway has carried the counts over, and one has not.
        shown(&mut world, 1, &ask);
        reset(&mut world, 0, &ask);
        for gateway in [2, 1, 0] {
            assert_eq!(shown(&mut world, gateway, &ask), 0, "{kind} to {next}, gateway {gateway}");
        }
        assert_eq!(counted(&mut world, next, ask.key), 0, "{kind} to {next}");
    }
}

fn a_key_is_reset_again_after_a_restart_of_a_server() {
    let limit = limit(6, 3);
    let keys = keys(1, &limit);
    let mut world = World::new(2, 1, (OnError::Local, false), each_and_all(&limit, &keys));
    let ask = ask(&limit, keys[0]);
    world.run(&Step::Connect(0, 0));
    reset(&mut world, 0, &ask);
    world.run(&Step::Restart(0));
    world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
    world.settle();
    write_all(&mut world, &ask);
    // The number of the second reset must be higher than that of the first one, which the server has forgotten.
    world.run(&Step::Tick(1_000_000));
    reset(&mut world, 1, &ask);
    assert_eq!([0, 1].map(|gateway| shown(&mut world, gateway, &ask)), [0; 2]);
}

/// Two gateways reset a key at the same time, and the one with the lower number writes last.
fn a_reset_with_a_lower_number_that_comes_last_is_seen_as_well() {
    // With `strict`, a limit with one counter learns only the count, not the number, until somebody has to be refused.
    let is_told = |(kind, strict): &(usize, bool)| !(*strict && *kind == 6);
    for (kind, strict) in (0..KINDS).flat_map(|kind| [(kind, false), (kind, true)]).filter(is_told) {
        let limit = limit(kind, 9);
        let ask = ask(&limit, key_on(0, 1, &limit));
        let mut world = World::new(2, 1, (OnError::Local, strict), vec![vec![ask.clone()]]);
        let steps =
            [Step::Connect(0, 0), Step::Reset(0, 0), Step::Connect(1, 0), Step::Reset(1, 0), Step::Tick(1_000_000)];
        steps.iter().for_each(|step| world.run(step));
        // The first gateway is used once more, so its number is of another second. And it goes on counting.
        for _ in 0..2 {
            world.run(&Step::Reserve { gateway: 0, what: 0, cost: 1 });
            world.settle();
        }
        reset(&mut world, 1, &ask);
        assert_eq!([0, 1].map(|gateway| shown(&mut world, gateway, &ask)), [0; 2], "{kind}, strict: {strict}");
        assert_eq!(counted(&mut world, 0, ask.key), 0, "{kind}, strict: {strict}");
    }
}

proptest! {
    /// Whatever went on before, nothing is left of a reset key, and all gateways together admit its quota.
    fn a_key_that_is_reset_begins_anew_at_every_gateway(
        steps in schedule(inspected(passing(settling(lossy()))), 150),
        (gateways, servers, kind, quota) in (1..4_usize, 1..3_usize, 0..KINDS, 1..30_u64),
        (on_error, strict, by) in (failing(), any::<bool>(), 0..3_usize),
    ) {
        let limit = limit(kind, quota);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, (on_error, strict), each_and_all(&limit, &keys));
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        for key in keys {
            let ask = ask(&limit, key);
            write_all(&mut world, &ask);
            reset(&mut world, by % gateways, &ask);
            // The others have not heard of it, unless they had to read the key.
            let asked = world.decided.len();
            for number in 0..quota + gateways as u64 {
                world.run(&Step::Moment);
                world.ask(usize::try_from(number).unwrap() % gateways, vec![ask.clone()]);
                world.settle();
            }
            prop_assert_eq!(admitted(&world.decided[asked..], key), quota);
            for gateway in 0..gateways {
                prop_assert_eq!(shown(&mut world, gateway, &ask), quota);
            }
        }
    }

    fn what_was_reserved_before_a_reset_is_given_back_to_nobody(
        steps in schedule(inspected(settling(lossy())), 150),
        (gateways, servers, kind, quota) in (1..4_usize, 1..3_usize, 0..KINDS, 3..30_u64),
        (strict, by) in (any::<bool>(), 0..3_usize),
    ) {
        let limit = limit(kind, quota);
        let keys = keys(servers, &limit);
        let mut world = World::new(gateways, servers, (OnError::Local, strict), each_and_all(&limit, &keys));
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        // After a restart of a server, a reset in the same second would have a number that some gateway knows.
        world.run(&Step::Tick(1_000_000));
        let asks: Vec<_> = keys.iter().map(|key| ask(&limit, *key)).collect();
        for ask in &asks {
            write_all(&mut world, ask);
            reset(&mut world, by % gateways, ask);
            (0..gateways).for_each(|gateway| assert_eq!(shown(&mut world, gateway, ask), 0));
            world.ask(by % gateways, vec![OwnedAsk { need: 2, cost: 2, ..ask.clone() }]);
            world.settle();
        }
        while world.decided.iter().any(|decided| !decided.reserved.is_empty()) {
            world.settle_one(0, 0);
        }
        world.settle();
        for ask in &asks {
            prop_assert_eq!(shown(&mut world, 0, ask), 2);
            prop_assert_eq!(counted(&mut world, kind, ask.key), 2);
        }
    }

    /// Each reset admits the quota once more, besides what is given back before the reset is known.
    fn no_gateway_admits_more_than_a_quota_for_each_reset(
        steps in schedule(inspected(lossy()), 150),
        (gateways, servers, quota) in (1..4_usize, 1..3_usize, 1..10_u64),
        kind in prop::sample::select(vec![0, 1, 2, 6, 7]),
    ) {
        let resets = steps.iter().filter(|step| matches!(step, Step::Reset(..))).count() as u64;
        let most = quota * (resets + 1) + 3 * resets * (gateways as u64 - 1);
        prop_assert!(most_at_one_gateway((gateways, servers, kind, quota), &steps) <= most);
    }
}

with_each_server! {
    to_look_at_a_key_writes_nothing
    what_is_admitted_during_a_reset_is_counted_after_it
    who_resets_a_key_is_told_that_the_connection_broke
    a_key_whose_server_is_away_is_neither_shown_nor_reset
    who_looks_at_a_key_of_which_something_is_only_pending_is_told_when_its_server_goes_away
    a_reset_that_fails_is_told_and_can_be_repeated
    a_gateway_whose_clock_is_behind_resets_a_key_as_well
    who_sees_one_counter_reset_before_the_others_sees_those_later
    a_provisional_charge_from_before_the_reset_is_rejected_if_another_was_first
    a_reset_leaves_nothing_to_carry_over
    a_key_is_reset_again_after_a_restart_of_a_server
    a_reset_with_a_lower_number_that_comes_last_is_seen_as_well
    a_key_that_is_reset_begins_anew_at_every_gateway
    what_was_reserved_before_a_reset_is_given_back_to_nobody
    no_gateway_admits_more_than_a_quota_for_each_reset
}
