//! One saved state that gateways with different clocks pass to each other.

use proptest::prelude::*;

use super::super::Strategy as Counting;
use super::*;

const WINDOW: u64 = 60 * SECOND;
const QUOTA: u64 = 100;
const BURST: u64 = 20;

fn limits() -> [Limit; 3] {
    [Counting::SlidingLog, Counting::FixedWindow, Counting::TokenBucket { burst: BURST }].map(|counting| {
        let rate = Rate::new(QUOTA, Duration::from_secs(60)).unwrap().with_strategy(counting).unwrap();
        Limit::new("test", &[rate])
    })
}

/// `time` is in microseconds.
fn most(limit: &Limit, time: u64) -> u64 {
    match limit.rates()[0].strategy() {
        Counting::TokenBucket { burst } => burst + time * QUOTA / WINDOW + 1,
        _ => QUOTA * (time / WINDOW + 1),
    }
}

/// Reads the state by this clock, and replaces it if one more is admitted.
fn admits_one(limit: &Limit, state: &mut Vec<u8>, now: u64) -> bool {
    let Restored { mut cell, ahead, .. } = Cell::restore(limit.rates(), at(now), state).unwrap();
    let admitted = limit.admits(&cell, at(now), 1);
    if admitted {
        limit.charge(&mut cell, at(now), 1);
        *state = cell.save(ahead);
    }
    admitted
}

#[test]
fn gateways_in_turns_keep_a_limit_whatever_their_clocks_say() {
    for limit in limits() {
        for behind in [0, SECOND / 2, SECOND, 2 * SECOND, 5 * SECOND, 90 * SECOND, 3_600 * SECOND] {
            let begin = 1_800_000_000 * SECOND;
            let mut state = Cell::new(limit.rates(), at(begin)).save(0);
            let turns = (0..2_000).map(|turn| begin + turn * 5_000 - if turn % 2 == 1 { behind } else { 0 });
            let admitted = turns.filter(|now| admits_one(&limit, &mut state, *now)).count() as u64;
            assert!(admitted <= most(&limit, 10 * SECOND), "{admitted} admitted by {limit:?}, {behind} us apart");
        }
    }
}

proptest! {
    /// Gateways that take turns admit together what one would in a time that is longer by the difference of their clocks.
    #[test]
    fn clocks_that_differ_cost_no_more_than_the_difference(
        kind in 0..3_usize,
        behind in prop_oneof![0..2 * SECOND, 0..WINDOW, 0..7_200 * SECOND],
        turns in prop::collection::vec((any::<bool>(), prop_oneof![3 => 0..SECOND, 1 => 0..40 * SECOND], 1..60_u64), 1..60),
    ) {
        let limit = &limits()[kind];
        let begin = 1_800_000_000 * SECOND;
        let (mut now, mut admitted) = (begin, 0);
        let mut state = Cell::new(limit.rates(), at(now - behind)).save(0);
        for (is_behind, gap, times) in turns {
            now += gap;
            let clock = if is_behind { now - behind } else { now };
            admitted += (0..times).filter(|_| admits_one(limit, &mut state, clock)).count() as u64;
            let most = most(limit, now - begin + behind);
            prop_assert!(admitted <= most, "{admitted} admitted, at most {most}");
        }
    }

    /// Whatever time a state claims, it is read as of no later than now, and nobody waits for longer than a window.
    #[test]
    fn a_state_from_the_future_lasts_no_longer_than_one_from_now(
        kind in 0..3_usize,
        ahead in prop_oneof![0..2 * SECOND, 0..7_200 * SECOND, any::<u64>()],
        used in 0..=BURST,
    ) {
        let limit = &limits()[kind];
        let now = at(1_800_000_000 * SECOND);
        let mut cell = Cell::new(limit.rates(), now);
        limit.charge(&mut cell, now, used);
        let bytes = cell.save(ahead);
        let restored = Cell::restore(limit.rates(), now, &bytes).unwrap();
        let judged = |cell: &Cell| limit.judge(cell, now, QUOTA.min(limit.capacity()), false);
        prop_assert_eq!(judged(&restored.cell), judged(&cell));
        prop_assert_eq!(restored.cell.save(restored.ahead), bytes);
    }
}
