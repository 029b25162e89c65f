//! A limit whose overrides have several layouts, and many changes of it, of which a key may have missed any number; and a limit
//! that is removed for a time.

use super::reloads::{all, counted, later};
use super::*;

const PLANS: usize = 5;

/// The limit's own rates and those of its overrides after so many changes.
fn after(changes: u32) -> [Arc<Limit>; PLANS] {
    let way = Strategy::SlidingWindow { precision: changes + 1, edge: Edge::Weighted };
    let counted = |more: &[&str]| counted("l", &[&["9/d"], more].concat(), Some(&way));
    [&[][..], &["900/m"], &["900/10m"], &["900/30m"], &["900/2h"]].map(counted)
}

/// The change of this number, counted from 1. Overrides come and go, so a key may change between any two of the limits.
fn change(memory: &Memory, number: u32) {
    let (old, new) = (after(number - 1), after(number));
    let pairs = old.iter().flat_map(|from| new.iter().map(move |to| (from.clone(), to.clone())));
    let replaced = pairs.map(|(from, to)| Replaced { key: None, from, to }).collect();
    let changes = LimitChanges { in_use: new.to_vec(), replaced, ..LimitChanges::default() };
    memory.reload(&changes, later(u64::from(number)));
}

fn key_of(changes: u32, from: usize, to: usize) -> Fingerprint {
    key(u64::from(changes) * 100 + (from * 10 + to) as u64)
}

#[test]
fn a_key_keeps_its_counts_over_sixteen_changes_of_a_limit_with_any_override_before_and_after() {
    const CHANGES: u32 = 17;
    let memory = Memory::new(100_000, usize::MAX);
    let pairs = || (0..PLANS).flat_map(|from| (0..PLANS).map(move |to| (from, to)));
    for changes in 0..CHANGES {
        for (from, to) in pairs() {
            let key = key_of(changes, from, to);
            (0..5).for_each(|_| assert!(admitted(&memory, &[ask(&after(changes)[from], key)], later(changes.into()))));
        }
        change(&memory, changes + 1);
    }
    for changes in 0..CHANGES {
        for (from, to) in pairs() {
            let (limit, now) = (&after(CHANGES)[to], later(u64::from(CHANGES) + 1));
            let ask = ask(limit, key_of(changes, from, to));
            let passed = (0..10).filter(|_| admitted(&memory, &[ask], now)).count();
            // What 17 changes ago was counted is forgotten.
            assert_eq!(passed, if changes == 0 { 9 } else { 4 }, "used before change {}: {from} to {to}", changes + 1);
        }
    }
}

#[test]
fn what_was_reserved_is_given_back_to_a_cell_that_has_yet_to_follow_the_last_change() {
    let memory = Memory::new(1000, usize::MAX);
    let [before, between, now] = [0, 1, 2].map(after);
    let reserving = Ask { need: 3, cost: 3, settles: true, ..ask(&before[0], key(1)) };
    let reserved = memory.decide(&[reserving], NOW).reserved.pop().unwrap();
    change(&memory, 1);
    assert!(admitted(&memory, &[ask(&between[0], key(1))], later(1)));
    change(&memory, 2);
    assert_eq!(memory.settle(&reserved, 1, later(3)).remaining, 7);
    assert_eq!(memory.decide(&[ask(&now[0], key(1))], later(3)).verdicts[0].1.remaining, 6);
}

#[test]
fn a_limit_that_is_added_again_begins_at_zero() {
    let (other, without_rates) = (counted("b", &["9/h"], None), counted("a", &[], None));
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        for meanwhile in [&[&other][..], &[&other, &without_rates]] {
            let memory = Memory::new(1000, usize::MAX);
            let reload = |in_use: &[&Arc<Limit>], replaced| {
                let in_use = in_use.iter().map(|limit| Arc::clone(limit)).collect();
                memory.reload(&LimitChanges { in_use, replaced, ..LimitChanges::default() }, later(1));
            };
            let admitted = |limit, number| admitted(&memory, &[ask(limit, key(number))], later(2));
            reload(&[&old, &other], vec![]);
            assert!((0..7).all(|_| admitted(&old, 1) && admitted(&other, 2)));
            reload(meanwhile, vec![]);
            reload(&[&new, &other], vec![]);
            assert_eq!((0..10).filter(|_| admitted(&new, 1)).count(), 9);
            reload(&[&old, &other], vec![Replaced { key: None, from: new.clone(), to: old.clone() }]);
            assert!(!admitted(&old, 1), "{:?} to {:?}", new.rates(), old.rates());
            assert_eq!((0..10).filter(|_| admitted(&other, 2)).count(), 2, "counts of other limits stay");
        }
    }
}
