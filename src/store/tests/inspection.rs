//! Keys that an operator looks at and resets, in memory. What holds for every store is in tests/it/stores.rs.

use super::reloads::{all, counted, later, reload};
use super::*;

fn used(memory: &Memory, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> u64 {
    memory.peek(limit, key, now).rates[0].used
}

fn reserve(memory: &Memory, ask: &Ask<'_>) -> Reserved {
    memory.decide(&[Ask { settles: true, ..*ask }], NOW).reserved.pop().unwrap()
}

#[test]
fn who_looks_at_a_key_changes_nothing() {
    for limit in all() {
        let memory = Memory::new(2, usize::MAX);
        assert_eq!(used(&memory, &limit, key(1), NOW), 0);
        assert_eq!(memory.keys(), 0, "no cell is made for it");
        assert!((0..7).all(|_| admitted(&memory, &[ask(&limit, key(1))], NOW)));
        assert!(admitted(&memory, &[ask(&limit, key(2))], NOW));
        let (bytes, before) = (memory.bytes(), memory.peek(&limit, key(1), NOW));
        assert_eq!((before.rates[0].used, before.rates[0].remaining), (7, 2));
        // A look at a later moment changes nothing, either.
        assert_eq!(used(&memory, &limit, key(1), later(30 * 86_400)), 0);
        assert_eq!(memory.peek(&limit, key(1), NOW), before);
        assert_eq!((memory.bytes(), memory.keys()), (bytes, 2));
        assert!(admitted(&memory, &[ask(&limit, key(3))], NOW));
        assert_eq!(used(&memory, &limit, key(1), NOW), 0, "it is still the one that was used least recently");
        assert_eq!(used(&memory, &limit, key(2), NOW), 1);
    }
}

#[test]
fn a_key_whose_limit_was_replaced_shows_what_the_new_one_continues_from() {
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        let between = || format!("{:?} to {:?}", old.rates(), new.rates());
        let memory = Memory::new(1000, usize::MAX);
        assert!((0..7).all(|_| admitted(&memory, &[ask(&old, key(1))], NOW)));
        reload(&memory, &old, &new, later(1));
        // At once, and in half an hour, when the strategies differ.
        let seen = [2, 1800].map(|seconds| memory.peek(&new, key(1), later(seconds)));
        assert_eq!(seen[0].rates[0].remaining, 2, "{}", between());
        assert_eq!(memory.peek(&old, key(1), later(2)).limit, old, "nobody has migrated it");
        // This migrates it, without a cost.
        let verdict = memory.decide(&[Ask { need: 1, cost: 0, ..ask(&new, key(1)) }], later(2)).verdicts[0].1;
        assert_eq!(verdict.remaining, 2, "{}", between());
        assert_eq!([2, 1800].map(|seconds| memory.peek(&new, key(1), later(seconds))), seen, "{}", between());
        // A look at the old limit shows the one that counts now.
        assert_eq!(memory.peek(&old, key(1), later(2)), seen[0], "{}", between());
    }
}

#[test]
fn a_key_that_is_reset_begins_anew() {
    for limit in all() {
        let memory = Memory::new(1000, usize::MAX);
        let empty = memory.bytes();
        memory.reset(&limit, key(1));
        for _ in 0..2 {
            assert_eq!((0..20).filter(|_| admitted(&memory, &[ask(&limit, key(1))], NOW)).count(), 9);
            assert!(admitted(&memory, &[ask(&limit, key(2))], NOW), "of its own");
            let full = memory.bytes();
            memory.reset(&limit, key(1));
            assert_eq!(used(&memory, &limit, key(1), NOW), 0);
            if limit.grows() {
                assert!(memory.bytes() < full, "what the cell allocated is counted no more");
            }
        }
        assert_eq!((used(&memory, &limit, key(2), NOW), memory.keys()), (2, 1), "another key");
        memory.reset(&limit, key(2));
        memory.sweep(1, NOW);
        assert_eq!((memory.keys(), memory.bytes()), (0, empty));
    }
}

#[test]
fn what_was_reserved_before_a_reset_is_taken_from_nobody() {
    for limit in all() {
        let memory = Memory::new(1000, usize::MAX);
        let ask = Ask { need: 4, cost: 4, ..ask(&limit, key(1)) };
        let [given, costly] = [(); 2].map(|()| reserve(&memory, &ask));
        memory.reset(&limit, key(1));
        assert!(admitted(&memory, &[ask], NOW));
        assert_eq!(memory.settle(&given, 0, NOW).remaining, 5);
        assert_eq!(used(&memory, &limit, key(1), NOW), 4, "all of it is from after the reset");
        assert_eq!(memory.settle(&costly, 6, NOW).remaining, 3, "what it costs beyond is charged");
    }
}

#[test]
fn a_reset_leaves_nothing_to_migrate() {
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        for (by_old, is_migrated) in [(false, false), (false, true), (true, false), (true, true)] {
            let memory = Memory::new(1000, usize::MAX);
            let reserving = Ask { need: 3, cost: 3, ..ask(&old, key(1)) };
            let open = reserve(&memory, &reserving);
            reload(&memory, &old, &new, later(1));
            if is_migrated {
                assert!(admitted(&memory, &[ask(&new, key(1))], later(1)));
            }
            memory.reset(if by_old { &old } else { &new }, key(1));
            assert_eq!((used(&memory, &new, key(1), later(1)), memory.keys()), (0, 0));
            assert_eq!((0..20).filter(|_| admitted(&memory, &[ask(&new, key(1))], later(1))).count(), 9);
            memory.settle(&open, 0, later(1));
            assert_eq!(used(&memory, &new, key(1), later(1)), 9, "{:?} to {:?}", old.rates(), new.rates());
        }
    }
    // The key was not seen between two reloads, of which the second undoes the first.
    let [a, b] = [None, Some(Strategy::SlidingLog)].map(|way| counted("a", &["9/h"], way.as_ref()));
    let memory = Memory::new(1000, usize::MAX);
    assert!((0..7).all(|_| admitted(&memory, &[ask(&a, key(1))], NOW)));
    reload(&memory, &a, &b, later(1));
    memory.reset(&b, key(1));
    reload(&memory, &b, &a, later(2));
    assert_eq!(used(&memory, &a, key(1), later(2)), 0);
}

/// Others migrate the key during the reset: earlier counts are gone, whoever came first.
#[test]
fn a_reset_during_a_reload_misses_nothing() {
    let [a, b] = [None, Some(Strategy::SlidingLog)].map(|way| counted("a", &["9/h"], way.as_ref()));
    for _ in 0..2_000 {
        let memory = Memory::new(100_000, usize::MAX);
        assert!((0..5).all(|_| admitted(&memory, &[ask(&a, key(1))], NOW)));
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                reload(&memory, &a, &b, NOW);
                admitted(&memory, &[ask(&b, key(1))], NOW);
            });
            begin.wait();
            memory.reset(&a, key(1));
        });
        let left = used(&memory, &b, key(1), NOW);
        assert!(left <= 1, "{left} are left");
    }
}
