//! Gateways whose clocks differ, or are set back.

use super::world::World;
use super::*;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Two gateways on one server, one of which may have a clock that is behind.
struct Two {
    world: World,
    key: Fingerprint,
}

impl Two {
    fn new((kind, quota): (usize, u64), mode: (OnError, bool)) -> Self {
        let limit = limit(kind, quota);
        let key = key_on(0, 1, &limit);
        Self { world: World::new(2, 1, mode, vec![vec![ask(&limit, key)]]), key }
    }

    /// Asks this gateway for one, and lets everything arrive; returns whether it is admitted.
    fn ask(&mut self, gateway: usize) -> bool {
        self.world.run(&Step::Ask { gateway, what: 0, cost: 1 });
        self.world.settle();
        self.world.decided.last().is_some_and(Decided::admitted)
    }

    fn pass(&mut self, micros: u64) {
        self.world.run(&Step::Tick(micros));
        self.world.run(&Step::Moment);
    }

    fn admitted(&self) -> u64 {
        admitted(&self.world.decided, self.key)
    }
}

/// The most that two gateways in turns let through in `time` microseconds. With plain sums they may count in different
/// buckets, so each of them may let through as much.
fn most((kind, quota): (usize, u64), time: u64) -> u64 {
    let windows = time / MINUTE + 1;
    let of_one = match kind {
        BUCKET => quota + time * quota / MINUTE + 1,
        FIXED | 4 => quota * windows,
        6..KINDS => quota,
        _ => 2 * quota * (windows + 1),
    };
    of_one + 1
}

fn two_gateways_in_turns_keep_a_limit_whatever_their_clocks_say() {
    for mode in [LOCAL, STRICT] {
        for kind in (0..KINDS).filter(|kind| is_run(*kind)) {
            for behind in [0, SECOND / 2, 2 * SECOND, 5 * SECOND, 90 * SECOND, HOUR] {
                let mut two = Two::new((kind, 100), mode);
                two.world.gateways[1].behind = behind;
                for turn in 0..300 {
                    two.ask(turn % 2);
                    two.pass(30_000);
                }
                let admitted = two.admitted();
                let most = if is_whole(kind) { most((kind, 100), 10 * SECOND) } else { 200 };
                assert!(
                    (100..=most).contains(&admitted),
                    "{admitted} admitted, way to count {kind}, {behind} us apart"
                );
            }
        }
    }
}

fn a_clock_that_is_set_back_stops_nobody_for_longer_than_a_window_and_lets_nobody_through_twice() {
    for mode in [LOCAL, STRICT] {
        for kind in (0..6).filter(|kind| is_run(*kind)) {
            for is_other_asked in [false, true] {
                let mut two = Two::new((kind, 20), mode);
                for turn in 0..30 {
                    two.ask(turn % 2);
                }
                assert_eq!(two.admitted(), 20, "way to count {kind}");
                two.world.gateways[1].behind = HOUR;
                assert!(!two.ask(1) && !two.ask(0) && !two.ask(1), "way to count {kind}");
                let begun = two.world.now.micros();
                let mut waited = None;
                for second in 1..=200 {
                    two.pass(SECOND);
                    if two.ask(1) {
                        waited.get_or_insert(second);
                    }
                    if is_other_asked {
                        two.ask(0);
                    }
                    let time = two.world.now.micros() - begun;
                    let most = most((kind, 20), time) + if kind == BUCKET { 0 } else { 20 };
                    assert!(two.admitted() <= most, "{} admitted, way to count {kind}", two.admitted());
                }
                // A sliding window takes two windows to forget.
                let longest = if is_whole(kind) { 66 } else { 125 };
                let waited = waited.unwrap_or(u64::MAX);
                assert!(waited <= longest, "waited {waited} s, way to count {kind}, other asked: {is_other_asked}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Gateways that take turns admit together what one would in a time that is longer by the difference of their clocks. A
    /// state that nobody has changed for a window and five seconds is gone, and the next begins by another clock.
    fn clocks_that_differ_cost_no_more_than_the_difference(
        kind in 0..KINDS,
        behind in prop_oneof![0..2 * SECOND, 0..20 * SECOND],
        strict: bool,
        turns in prop::collection::vec((0..2_usize, 1..8_usize, prop_oneof![3 => 0..SECOND, 1 => 0..40 * SECOND]), 1..60),
    ) {
        let mut two = Two::new((kind, 20), if strict { STRICT } else { LOCAL });
        two.world.gateways[1].behind = behind;
        let begun = two.world.now.micros();
        for (gateway, times, gap) in turns {
            for _ in 0..times {
                two.ask(gateway);
            }
            let time = two.world.now.micros() - begun;
            let most = most((kind, 20), time + behind * (1 + time / (MINUTE + 5 * SECOND)));
            prop_assert!(two.admitted() <= most, "{} admitted, at most {most}", two.admitted());
            two.pass(gap);
        }
    }
}

fn a_decision_that_waits_for_seconds_is_no_clock_that_is_set_back() {
    for mode in [LOCAL, STRICT] {
        for kind in [FIXED, 4, BUCKET] {
            let mut two = Two::new((kind, 20), mode);
            two.world.patience = 5 * SECOND;
            assert!(two.ask(0) && two.ask(1));
            let begun = two.world.now.micros();
            for _ in 0..60 {
                // Meanwhile the other gateway changes the state.
                two.world.run(&Step::Ask { gateway: 0, what: 0, cost: 1 });
                two.world.run(&Step::Send(0, 0));
                two.pass(2 * SECOND);
                for _ in 0..4 {
                    two.world.run(&Step::Ask { gateway: 1, what: 0, cost: 1 });
                    for _ in 0..3 {
                        [Step::Send(1, 0), Step::Execute(1, 0), Step::Answer(1, 0)]
                            .iter()
                            .for_each(|step| two.world.run(step));
                    }
                }
                two.world.run(&Step::Execute(0, 0));
                two.world.run(&Step::Answer(0, 0));
                two.world.settle();
                let (admitted, most) = (two.admitted(), most((kind, 20), two.world.now.micros() - begun));
                assert!(admitted <= most, "{admitted} admitted, at most {most}, way to count {kind}");
            }
        }
    }
}

with_each_server! {
    two_gateways_in_turns_keep_a_limit_whatever_their_clocks_say
    a_clock_that_is_set_back_stops_nobody_for_longer_than_a_window_and_lets_nobody_through_twice
    clocks_that_differ_cost_no_more_than_the_difference
    a_decision_that_waits_for_seconds_is_no_clock_that_is_set_back
}
