//! Charges that are appended to a saved state, beside the same charges made at once; and one saved state that gateways with
//! different clocks pass to each other.

use integer_encoding::VarInt;
use proptest::prelude::*;

use super::*;
use crate::limit::Strategy as Counting;

fn limit_of(kind: usize) -> Limit {
    let minute = |quota, counting| Rate::new(quota, Duration::from_secs(60)).unwrap().with_strategy(counting).unwrap();
    let moving = minute(100, crate::limit::Strategy::SlidingLog);
    let fixed = minute(90, crate::limit::Strategy::FixedWindow);
    let bucket = minute(80, crate::limit::Strategy::TokenBucket { burst: 20 });
    let rates = match kind {
        0 => vec![moving],
        1 => vec![fixed],
        2 => vec![bucket],
        _ => vec![moving, "70/m".parse().unwrap(), fixed, bucket],
    };
    Limit::new("test", &rates)
}

#[test]
fn bytes_of_an_older_version_say_nothing() {
    // In an older version an appended charge had a word less. Then the next moment would be read as a cost.
    let limit = limit_of(0);
    let now = 1_800_000_000 * SECOND;
    let mut bytes = vec![1];
    for word in [now - 3, 1, 0, 0, now - 2, 1, 0, 0, now - 1, 1, 0] {
        bytes.extend(word.encode_var_vec());
    }
    assert!(Cell::restore(limit.rates(), at(now), &bytes).is_none());
}

#[test]
fn what_any_number_of_appended_words_give_back_is_bounded() {
    let rate = Rate::new(10_000, Duration::from_secs(60)).unwrap();
    let limit = Limit::new("test", &[rate.with_strategy(crate::limit::Strategy::SlidingLog).unwrap()]);
    let now = 1_800_000_000 * SECOND;
    let mut cell = Cell::new(limit.rates(), at(now - 20_000));
    (0..10_000).for_each(|before| limit.charge(&mut cell, at(now - 20_000 + before), 1));
    let mut bytes = cell.save(0);
    let reservation = limit.place_of(&cell, at(now - 20_000), 1);
    let give_back = Operation::give_back(limit.rates(), &reservation, 1);
    for sequence in 0..10_000 {
        bytes.extend(appended(give_back.clone(), sequence));
    }
    let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
    let left = limit.judge(&restored.cell, at(now), 1, true).remaining;
    assert_eq!(left, MOST_GIVEN_BACK as u64);
}

/// The bytes that append this operation to a saved state.
fn appended(operation: Operation, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Cell::append(Writing { writer: 300, sequence }, [operation].into_iter(), 0, &mut bytes);
    bytes
}

#[test]
fn what_is_appended_twice_counts_once() {
    let limit = limit_of(0);
    let now = 1_800_000_000 * SECOND;
    let mut bytes = Cell::new(limit.rates(), at(now)).save(0);
    let charge = || Operation::Charge { at: at(now), since: at(now), cost: 3 };
    let append = |sequence, bytes: &mut Vec<u8>| bytes.extend(appended(charge(), sequence));
    let left = |bytes: &[u8]| {
        let restored = Cell::restore(limit.rates(), at(now), bytes).unwrap();
        limit.judge(&restored.cell, at(now), 1, true).remaining
    };
    let all = left(&bytes);
    append(5, &mut bytes);
    append(6, &mut bytes);
    append(5, &mut bytes);
    assert_eq!(left(&bytes), all - 6);
    // The state has it, and only its mark.
    let mut bytes = Cell::new(limit.rates(), at(now)).save(0);
    Cell::append(Writing { writer: 300, sequence: 5 }, [].into_iter(), 0, &mut bytes);
    append(5, &mut bytes);
    assert_eq!(left(&bytes), all);
}

#[test]
fn a_bucket_owes_no_more_for_a_long_time_apart_than_each_gateway_has_room_for() {
    let limit = Limit::new("l", &["20/s burst 40".parse().unwrap()]);
    let (begun, now) = (1_800_000_000 * SECOND, 1_800_000_005 * SECOND);
    let wait = |charges: &[(u64, u64)]| {
        let mut cell = Cell::new(limit.rates(), at(begun));
        limit.charge(&mut cell, at(begun), 40);
        let mut bytes = cell.save(0);
        for (sequence, (since, cost)) in (0..).zip(charges) {
            bytes.extend(appended(Operation::Charge { at: at(now), since: at(*since), cost: *cost }, sequence));
        }
        let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
        limit.judge(&restored.cell, at(now), 40, false).wait.unwrap_or(0)
    };
    // Each gateway has admitted what has drained, and its bucket is full at the end.
    assert_eq!([wait(&[(begun, 100)]), wait(&[(begun, 100), (begun, 100)])], [2 * SECOND, 4 * SECOND]);
    assert_eq!(wait(&[(begun, 30)]), 3 * SECOND / 2, "it may have come at the end");
    assert_eq!(wait(&[(now, 100)]), 5 * SECOND, "it cost more than there was room for");
    assert_eq!(wait(&[(now - SECOND, 100)]), 4 * SECOND);
}

#[test]
fn of_version_2_the_state_is_read() {
    let limit = limit_of(0);
    let now = 1_800_000_000 * SECOND;
    let mut bytes = vec![2];
    for word in [now - 3, 4, 0, 0, now - 2, 1, 0, 0, 0, 0, 7] {
        bytes.extend(word.encode_var_vec());
    }
    let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
    assert_eq!(limit.judge(&restored.cell, at(now), 1, true).remaining, 96);
}

#[test]
fn quotas_that_differ_do_not_make_readers_differ() {
    let now = 1_800_000_000 * SECOND;
    let rates = |quota: u64| {
        [crate::limit::Strategy::FixedWindow, crate::limit::Strategy::SlidingLog]
            .map(|strategy| Rate::new(quota, Duration::from_secs(60)).unwrap().with_strategy(strategy).unwrap())
    };
    let [low, high] = [3, 5].map(|quota| Limit::new("test", &rates(quota)));
    let mut bytes = Cell::new(low.rates(), at(now)).save(0);
    for (sequence, limit) in [(1, &high), (2, &low), (3, &high)] {
        let attempts = [Attempt { times: 4, ..limit.attempt(at(now), 1, 1) }].map(Operation::Attempt);
        Cell::append(Writing { writer: 9, sequence }, attempts.into_iter(), 0, &mut bytes);
    }
    for limit in [low, high] {
        let groups = Cell::restore(limit.rates(), at(now), &bytes).unwrap().groups;
        assert_eq!(groups.iter().map(|group| group.admitted[0]).collect::<Vec<_>>(), [4, 0, 1]);
    }
}

proptest! {
    #[test]
    fn what_is_appended_is_as_if_it_had_been_charged(
        kind in 0..4_usize,
        steps in prop::collection::vec((prop_oneof![0..2_000_u64, 0..40 * SECOND], 1..5_u64, any::<bool>()), 1..60),
    ) {
        let limit = limit_of(kind);
        let mut now = 1_800_000_000 * SECOND;
        let mut cell = Cell::new(limit.rates(), at(now));
        let mut bytes = cell.save(0);
        let mut times = 0;
        for (sequence, (gap, cost, is_appended)) in (0..).zip(steps) {
            now += gap;
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), cost);
            if is_appended {
                bytes.extend(appended(Operation::Charge { at: at(now), since: at(now), cost }, sequence));
                times += 1;
            } else {
                bytes = cell.save(0);
                times = 0;
            }
            let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
            prop_assert_eq!(restored.cell.save(0), cell.save(0));
            prop_assert_eq!((restored.groups.len(), restored.ahead), (times, 0));
        }
        // Nor does it matter who reads it when.
        cell.advance(limit.rates(), at(now + 30 * SECOND));
        let mut restored = Cell::restore(limit.rates(), at(now + 30 * SECOND), &bytes).unwrap();
        restored.cell.advance(limit.rates(), at(now + 30 * SECOND));
        prop_assert_eq!(restored.cell.save(0), cell.save(0));
    }

    /// Every reader of attempts admits the same requests, and as many as a gateway that is asked one by one.
    #[test]
    fn an_attempt_admits_what_fits(
        kind in 0..4_usize,
        steps in prop::collection::vec((0..20 * SECOND, 1..4_u64, 0..3_u64, 1..30_u64), 1..20),
    ) {
        let limit = limit_of(kind);
        let whole_rates: Vec<Rate> = limit.rates().iter().filter(|rate| !rate.uses_counters()).cloned().collect();
        let only_whole = Limit::new("test", &whole_rates);
        let mut now = 1_800_000_000 * SECOND;
        let mut cell = Cell::new(only_whole.rates(), at(now));
        let mut bytes = cell.save(0);
        let mut expected = Vec::new();
        for (sequence, (gap, cost, more, times)) in (0..).zip(steps) {
            now += gap;
            cell.advance(only_whole.rates(), at(now));
            let one = |cell: &mut Cell| {
                let admits = only_whole.admits(cell, at(now), cost + more);
                if admits { only_whole.charge(cell, at(now), cost) }
                admits
            };
            expected.push((0..times).take_while(|_| one(&mut cell)).count() as u64);
            let attempt = Attempt { times, ..only_whole.attempt(at(now), cost + more, cost) };
            bytes.extend(appended(Operation::Attempt(attempt), sequence));
        }
        let restored = Cell::restore(only_whole.rates(), at(now), &bytes).unwrap();
        let admitted: Vec<u64> = restored.groups.iter().map(|group| group.admitted[0]).collect();
        prop_assert_eq!(admitted, expected);
        prop_assert_eq!(restored.cell.save(0), cell.save(0));
    }

    /// Whatever others have written, nothing overflows, giving back creates nothing, and except for the debts of a bucket
    /// nobody waits for longer than a window.
    #[test]
    fn words_of_any_size_count_like_others(
        kind in 0..4_usize,
        words in prop::collection::vec(prop_oneof![
            4 => Just(0),
            2 => 0..5_u64,
            2 => 1_800_000_000_000_000..1_800_000_100_000_000_u64,
            1 => any::<u64>(),
            1 => Just(u64::MAX),
        ], 0..40),
        cost in prop_oneof![1..5_u64, Just(MAX_QUOTA)],
    ) {
        let limit = limit_of(kind);
        let mut bytes = vec![VERSION];
        words.iter().for_each(|word| bytes.extend(word.encode_var_vec()));
        let mut now = 1_800_000_000 * SECOND;
        let Some(Restored { mut cell, ahead, .. }) = Cell::restore(limit.rates(), at(now), &bytes) else { return Ok(()) };
        let verdict = limit.judge(&cell, at(now), 1, false);
        let rate = limit.deciding_rate(&verdict).unwrap();
        if !matches!(rate.strategy(), crate::limit::Strategy::TokenBucket { .. }) {
            prop_assert!(verdict.wait <= Some(60 * SECOND), "{verdict:?} by {rate}");
        }
        for _ in 0..3 {
            let reservations = [cost, cost].map(|cost| limit.reserve(&mut cell, at(now), cost));
            now += 7 * SECOND;
            cell.advance(limit.rates(), at(now));
            reservations.iter().rev().for_each(|reservation| limit.give_back(&mut cell, at(now), reservation, cost));
            prop_assert!(limit.judge(&cell, at(now), 1, true).remaining <= limit.capacity());
            prop_assert!(Cell::restore(limit.rates(), at(now), &cell.save(ahead)).is_some());
        }
    }
}

#[test]
fn the_layout_of_version_3_stays() {
    let limit = limit_of(3);
    let now = 1_800_000_000 * SECOND;
    let mut cell = Cell::new(limit.rates(), at(now));
    limit.charge(&mut cell, at(now), 3);
    cell.advance(limit.rates(), at(now + SECOND));
    limit.charge(&mut cell, at(now + SECOND), 2);
    let mut bytes = cell.save(7);
    let reservation = limit.place_of(&cell, at(now + SECOND), 2);
    let operations = [
        Operation::Charge { at: at(now + 2 * SECOND), since: at(now + SECOND), cost: 1 },
        Operation::give_back(limit.rates(), &reservation, 1),
        Operation::Attempt(Attempt { times: 6, ..limit.attempt(at(now + 2 * SECOND), 5, 4) }),
    ];
    Cell::append(Writing { writer: 300, sequence: 2 }, operations.into_iter(), 7, &mut bytes);
    #[rustfmt::skip]
    let expected = [
        3, // the version
        135, 128, 226, 196, 242, 162, 153, 3, 5, // the fixed window: its start and its count
        199, 132, 159, 197, 242, 162, 153, 3, 0, 128, 222, 243, 104, // the bucket: its moment and two halves of its use
        135, 128, 226, 196, 242, 162, 153, 3, 3, 192, 132, 61, 2, // the log: two entries
        0, 0, 172, 2, 2, 3, // a group of operations: its writer, its number, and how many there are
        0, 135, 137, 220, 197, 242, 162, 153, 3, 192, 132, 61, 1, // a charge
        1, 199, 132, 159, 197, 242, 162, 153, 3, 199, 132, 159, 197, 242, 162, 153, 3, 1, // what is given back
        2, 135, 137, 220, 197, 242, 162, 153, 3, 0, 5, 4, 6, 100, 90, 20, // an attempt
    ];
    assert_eq!(bytes, expected);
}

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
