//! Counters that are saved and restored: limits continue as if nothing had happened.

use std::slice::from_ref;

use proptest::prelude::*;

use super::reloads::{all, counted, later, reload};
use super::*;
use crate::limit::Strategy;
use crate::store::memory::{NotRestored, RestoredCounters};

fn save(memory: &Memory, now: Time) -> Vec<u8> {
    let mut bytes = Vec::new();
    memory.save(now, &mut bytes).unwrap();
    bytes
}

/// A new store with what this one has saved.
fn restarted(memory: &Memory, limits: &[Arc<Limit>], (saved, now): (Time, Time)) -> (Memory, RestoredCounters) {
    let new = Memory::new(100_000, usize::MAX);
    let restored = new.restore(limits, &save(memory, saved), now).unwrap();
    (new, restored)
}

fn verdict(memory: &Memory, limit: &Arc<Limit>, now: Time) -> Verdict {
    memory.decide(&[Ask { cost: 0, ..ask(limit, key(1)) }], now).verdicts[0].1
}

/// The limits of each strategy, and two that have several rates.
fn limits() -> Vec<Arc<Limit>> {
    let several = counted("a", &["9/h", "5/m", "12/day"], None);
    let logs = counted("a", &["9/h", "5/m"], Some(&Strategy::SlidingLog));
    all().into_iter().chain([several, logs]).collect()
}

proptest! {
    #[test]
    fn what_is_restored_decides_like_what_was_saved(
        charges in prop::collection::vec((0..4_000u64, 1..3u64), 1..20),
        (saved, now) in (0..100u64, 0..100u64),
        asked in prop::collection::vec(0..4_000u64, 1..10),
    ) {
        for limit in limits() {
            let memory = Memory::new(1000, usize::MAX);
            let (mut time, mut asked) = (0, asked.clone());
            for (seconds, cost) in &charges {
                time += seconds / 10;
                memory.decide(&[Ask { need: *cost, cost: *cost, ..ask(&limit, key(1)) }], later(time));
            }
            let (saved, now) = (time + saved, time + saved + now);
            let (restored, _) = restarted(&memory, from_ref(&limit), (later(saved), later(now)));
            asked.sort_unstable();
            for second in asked {
                let at = later(now + second);
                prop_assert_eq!(verdict(&restored, &limit, at), verdict(&memory, &limit, at), "{:?}", limit.rates());
            }
        }
    }

    #[test]
    fn bytes_with_a_checksum_that_is_right_are_harmless(
        rest in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(2), any::<u8>()], 0..200),
        cut in 0..300usize,
    ) {
        let limit = limit("a", &["9/h", "5/m"]);
        let memory = Memory::new(1000, usize::MAX);
        memory.decide(&[ask(&limit, key(1))], NOW);
        // Either anything at all, or a part of what was written with something else behind it.
        let saved = save(&memory, NOW);
        let begin = &saved[..cut.min(saved.len() - 32)];
        let header = saved.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for begin in [begin, &saved[..header]] {
            let mut bytes = [begin, &rest].concat();
            bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
            let restored = memory.restore(from_ref(&limit), &bytes, NOW);
            if let Ok(restored) = restored {
                prop_assert!(restored.keys <= bytes.len());
            }
            verdict(&memory, &limit, NOW);
        }
    }
}

#[test]
fn every_broken_copy_is_refused_and_changes_nothing() {
    let limit = limit("a", &["9/h"]);
    let memory = Memory::new(1000, usize::MAX);
    memory.decide(&[ask(&limit, key(1))], NOW);
    let saved = save(&memory, NOW);
    let new = Memory::new(1000, usize::MAX);
    let restore = |bytes: &[u8]| new.restore(from_ref(&limit), bytes, NOW);
    for length in 0..saved.len() {
        assert!(restore(&saved[..length]).is_err(), "{length} bytes of {}", saved.len());
    }
    for place in 0..saved.len() {
        let mut broken = saved.clone();
        broken[place] ^= 1;
        assert!(restore(&broken).is_err(), "byte {place}");
    }
    assert_eq!(restore(&[&saved[..], b"more"].concat()), Err(NotRestored::Broken));
    assert_eq!(restore(b""), Err(NotRestored::Foreign));
    assert_eq!(restore(b"gateway counters, version 2\n"), Err(NotRestored::Version));
    assert_eq!(new.keys(), 0);
    assert_eq!(restore(&saved).unwrap().keys, 1);
}

#[test]
fn what_does_not_matter_any_more_is_left_out() {
    let (hour, second) = (limit("hour", &["9/h"]), limit("second", &["9/s"]));
    let memory = Memory::new(1000, usize::MAX);
    for number in 0..10 {
        memory.decide(&[ask(&hour, key(number)), ask(&second, key(number + 100))], NOW);
    }
    let both = [hour.clone(), second.clone()];
    let restored = |limits: &[Arc<Limit>], times| restarted(&memory, limits, times).1;
    let all = RestoredCounters { saved: NOW, keys: 20, spent: 0, unknown: 0 };
    assert_eq!(restored(&both, (NOW, NOW)), all);
    assert_eq!(restored(&both, (NOW, later(60))), RestoredCounters { keys: 10, spent: 10, ..all });
    assert_eq!(restored(&both, (later(60), later(60))), RestoredCounters { saved: later(60), keys: 10, ..all });
    assert_eq!(restored(&both, (NOW, later(3 * 3600))), RestoredCounters { keys: 0, spent: 20, ..all });
    assert_eq!(restored(&[hour], (NOW, NOW)), RestoredCounters { keys: 10, unknown: 10, ..all });
}

#[test]
fn limits_that_differ_only_in_their_quotas_keep_their_cells_apart() {
    // They have the same id, like a limit and one of its tiers.
    let (slow, fast) = (limit("a", &["10/d burst 10"]), limit("a", &["10000000/d burst 10"]));
    assert_eq!(slow.id(), fast.id());
    for limits in [[slow.clone(), fast.clone()], [fast, slow.clone()]] {
        let memory = Memory::new(1000, usize::MAX);
        assert!((0..10).all(|_| admitted(&memory, &[ask(&slow, key(1))], NOW)));
        let (restored, summary) = restarted(&memory, &limits, (NOW, later(600)));
        assert_eq!(summary.keys, 1, "its bucket is full after a day");
        restored.sweep(1, later(1200));
        let (restored, _) = restarted(&restored, &limits, (later(1800), later(1800)));
        assert!(!admitted(&restored, &[ask(&slow, key(1))], later(1800)));
        // If no limit has these quotas, the one that forgets last takes its place.
        let other = [limit("a", &["20000000/d burst 10"]), limit("a", &["9/d burst 10"])];
        let (restored, _) = restarted(&memory, &other, (NOW, later(600)));
        restored.sweep(1, later(1200));
        assert_eq!(restored.keys(), 1);
    }
}

#[test]
fn keys_that_were_not_used_since_a_reload_are_saved_as_the_new_limit_counts_them() {
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        let memory = Memory::new(1000, usize::MAX);
        assert!((0..7).all(|_| admitted(&memory, &[ask(&old, key(1))], NOW)));
        reload(&memory, &old, &new, later(1));
        let (restored, _) = restarted(&memory, from_ref(&new), (later(2), later(2)));
        assert_eq!(verdict(&restored, &new, later(2)).remaining, 2, "{:?} to {:?}", old.rates(), new.rates());
    }
}

#[test]
fn a_clock_that_was_set_back_makes_nobody_admitted_twice() {
    for limit in all() {
        let memory = Memory::new(1000, usize::MAX);
        assert!((0..9).all(|_| admitted(&memory, &[ask(&limit, key(1))], later(7200))));
        let (restored, _) = restarted(&memory, from_ref(&limit), (later(7200), NOW));
        assert!(!admitted(&restored, &[ask(&limit, key(1))], NOW), "{:?}", limit.rates());
    }
}

#[test]
fn a_smaller_store_takes_what_it_has_room_for() {
    let limit = limit("a", &["9/h"]);
    let memory = Memory::new(100_000, usize::MAX);
    for number in 0..10_000 {
        memory.decide(&[ask(&limit, key(number))], NOW);
    }
    let small = Memory::new(1000, usize::MAX);
    small.restore(from_ref(&limit), &save(&memory, NOW), NOW).unwrap();
    assert!(small.keys() <= 1000);
}
