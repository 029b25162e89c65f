//! Charges that are appended to a saved state, beside the same charges made at once.

use integer_encoding::VarInt;
use proptest::prelude::*;

use super::*;

fn limit_of(kind: usize) -> Limit {
    let minute = |quota, counting| Rate::new(quota, Duration::from_secs(60)).unwrap().with_strategy(counting).unwrap();
    let moving = minute(100, super::super::Strategy::SlidingLog);
    let fixed = minute(90, super::super::Strategy::FixedWindow);
    let bucket = minute(80, super::super::Strategy::TokenBucket { burst: 20 });
    let rates = match kind {
        0 => vec![moving],
        1 => vec![fixed],
        2 => vec![bucket],
        _ => vec![moving, "70/m".parse().unwrap(), fixed, bucket],
    };
    Limit::new("test", &rates)
}

/// What is kept as a whole, as bytes.
fn whole(cell: &Cell, limit: &Limit) -> Vec<u8> {
    cell.save(limit.rates(), 0)
}

#[test]
fn bytes_of_an_older_version_say_nothing() {
    // Charges had a word less when they were appended. Of what follows one, the moment would be read as a cost.
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
    let limit = Limit::new("test", &[rate.with_strategy(super::super::Strategy::SlidingLog).unwrap()]);
    let now = 1_800_000_000 * SECOND;
    let mut cell = Cell::new(limit.rates(), at(now - 20_000));
    (0..10_000).for_each(|before| limit.charge(&mut cell, at(now - 20_000 + before), 1));
    let mut bytes = cell.save(limit.rates(), 0);
    let reservation = limit.place_of(&cell, at(now - 20_000), 1);
    (0..10_000).for_each(|_| Cell::append_give_back(limit.rates(), &reservation, 1, 0, &mut bytes));
    let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
    let left = limit.judge(&restored.cell, at(now), 1, true).remaining;
    assert_eq!(left, encoding::MOST_GIVEN_BACK as u64);
}

#[test]
fn what_is_taken_back_is_certain_to_have_been_there_as_long_as_it_cannot_have_left() {
    let begin = 1_800_000_000 * SECOND;
    // Twice charged, at 0 and 50 seconds, and the second charge is taken back at once.
    for (kind, millis) in [(0, 110_000), (1, 60_000), (2, 50_750), (3, 50_750)] {
        let limit = limit_of(kind);
        let mut cell = Cell::new(limit.rates(), at(begin));
        for now in [begin, begin + 50 * SECOND] {
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), 1);
        }
        let now = at(begin + 50 * SECOND);
        limit.take_back_whole_since(&mut cell, 1, now);
        let certain = cell.certain_until(limit.rates(), now, 1, now).micros() - begin;
        assert_eq!(certain, millis * 1000, "{kind}");
    }
    // It came to an earlier window.
    let (limit, now) = (limit_of(1), at(begin));
    let mut cell = Cell::new(limit.rates(), now);
    limit.charge(&mut cell, now, 1);
    assert_eq!(cell.certain_until(limit.rates(), now, 1, at(begin - SECOND)), now);
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
        let mut bytes = whole(&cell, &limit);
        let mut times = 0;
        for (gap, cost, is_appended) in steps {
            now += gap;
            cell.advance(limit.rates(), at(now));
            limit.charge(&mut cell, at(now), cost);
            if is_appended {
                Cell::append_charge(at(now), cost, at(now), &mut bytes);
                Cell::append_writer(5, &mut bytes);
                times += 1;
            } else {
                bytes = whole(&cell, &limit);
                times = 0;
            }
            let restored = Cell::restore(limit.rates(), at(now), &bytes).unwrap();
            prop_assert_eq!(whole(&restored.cell, &limit), whole(&cell, &limit));
            prop_assert_eq!((restored.appended, restored.ahead), (times, 0));
        }
        // Nor does it matter who reads it when.
        cell.advance(limit.rates(), at(now + 30 * SECOND));
        let restored = Cell::restore(limit.rates(), at(now + 30 * SECOND), &bytes).unwrap();
        prop_assert_eq!(whole(&restored.cell, &limit), whole(&cell, &limit));
    }

    /// Whatever others have written: it is counted without an overflow, what it gives back creates nothing, and but for the
    /// debts of a bucket nobody waits for longer than a window.
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
        let mut bytes = vec![encoding::VERSION];
        words.iter().for_each(|word| bytes.extend(word.encode_var_vec()));
        let mut now = 1_800_000_000 * SECOND;
        let Some(Restored { mut cell, ahead, .. }) = Cell::restore(limit.rates(), at(now), &bytes) else { return Ok(()) };
        let verdict = limit.judge(&cell, at(now), 1, false);
        let rate = &limit.rates()[verdict.rate];
        if !matches!(rate.strategy(), super::super::Strategy::TokenBucket { .. }) {
            prop_assert!(verdict.wait <= Some(60 * SECOND), "{verdict:?} by {rate}");
        }
        for _ in 0..3 {
            let reservations = [cost, cost].map(|cost| limit.reserve(&mut cell, at(now), cost));
            now += 7 * SECOND;
            cell.advance(limit.rates(), at(now));
            limit.take_back_whole(&mut cell, 2);
            reservations.iter().rev().for_each(|reservation| limit.give_back(&mut cell, at(now), reservation, cost));
            prop_assert!(limit.judge(&cell, at(now), 1, true).remaining <= limit.capacity());
            prop_assert!(Cell::restore(limit.rates(), at(now), &cell.save(limit.rates(), ahead)).is_some());
        }
    }
}

#[test]
fn the_layout_of_version_2_stays() {
    let limit = limit_of(3);
    let now = 1_800_000_000 * SECOND;
    let mut cell = Cell::new(limit.rates(), at(now));
    limit.charge(&mut cell, at(now), 3);
    cell.advance(limit.rates(), at(now + SECOND));
    limit.charge(&mut cell, at(now + SECOND), 2);
    let mut bytes = cell.save(limit.rates(), 7);
    Cell::append_charge(at(now + 2 * SECOND), 1, at(now + SECOND), &mut bytes);
    let reservation = limit.place_of(&cell, at(now + SECOND), 2);
    Cell::append_give_back(limit.rates(), &reservation, 1, 7, &mut bytes);
    Cell::append_writer(300, &mut bytes);
    #[rustfmt::skip]
    let expected = [
        2, // the version
        135, 128, 226, 196, 242, 162, 153, 3, 5, // the fixed window: its start and its count
        199, 132, 159, 197, 242, 162, 153, 3, 0, 128, 222, 243, 104, // the bucket: its moment and two halves of its use
        135, 128, 226, 196, 242, 162, 153, 3, 3, 192, 132, 61, 2, // the log: two entries
        0, 0, 128, 137, 220, 197, 242, 162, 153, 3, 1, 192, 132, 61, // a charge that was appended
        0, 0, 0, 199, 132, 159, 197, 242, 162, 153, 3, 1, // a part of a reservation that was given back
        0, 0, 0, 0, 172, 2, // the number of the writer
    ];
    assert_eq!(bytes, expected);
}
