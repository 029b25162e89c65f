//! Reloads that change limits: counts continue, removed limits are forgotten, and nothing stays for ever.

use super::*;

/// `strategy` replaces the strategies of the rates.
pub(super) fn counted(name: &str, rates: &[&str], strategy: Option<&Strategy>) -> Arc<Limit> {
    let rate = |text: &&str| {
        let rate: Rate = text.parse().unwrap();
        match strategy {
            Some(strategy) => rate.with_strategy(strategy.clone()).unwrap(),
            None => rate,
        }
    };
    Arc::new(Limit::new(name, &rates.iter().map(rate).collect::<Vec<_>>()))
}

pub(super) fn reload(memory: &Memory, old: &Arc<Limit>, new: &Arc<Limit>, now: Time) {
    let replaced = if old.id() == new.id() {
        Vec::new()
    } else {
        vec![Replaced { key: None, from: old.clone(), to: new.clone() }]
    };
    memory.reload(&LimitChanges { in_use: vec![new.clone()], replaced, ..LimitChanges::default() }, now);
}

fn remaining(memory: &Memory, limit: &Arc<Limit>, now: Time) -> u64 {
    remaining_of(memory, limit, key(1), now)
}

fn remaining_of(memory: &Memory, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> u64 {
    let verdict = memory.decide(&[Ask { need: 0, cost: 0, ..ask(limit, key) }], now).verdicts[0].1;
    verdict.remaining
}

pub(super) fn later(seconds: u64) -> Time {
    NOW.after(Duration::from_secs(seconds))
}

pub(super) fn all() -> Vec<Arc<Limit>> {
    let sliding = |precision| Some(Strategy::SlidingWindow { precision, edge: Edge::Weighted });
    let ways = [
        sliding(1),
        sliding(10),
        Some(Strategy::FixedWindow),
        Some(Strategy::SlidingLog),
        Some(Strategy::TokenBucket { burst: 9 }),
    ];
    ways.into_iter().map(|way| counted("a", &["9/h"], way.as_ref())).collect()
}

#[test]
fn what_was_counted_goes_on_whatever_counts() {
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        let memory = Memory::new(1000, usize::MAX);
        assert!((0..7).all(|_| admitted(&memory, &[ask(&old, key(1))], NOW)));
        reload(&memory, &old, &new, later(1));
        assert_eq!(remaining(&memory, &new, later(2)), 2, "{:?} to {:?}", old.rates(), new.rates());
        assert_eq!((0..9).filter(|_| admitted(&memory, &[ask(&new, key(1))], later(2))).count(), 2);
        assert_eq!(memory.keys(), 1, "it is the same cell");
    }
}

/// One ask for each limit; each has its own key for a client.
fn asks(limits: &[Arc<Limit>; 2]) -> [Ask<'_>; 2] {
    [ask(&limits[0], key(1)), ask(&limits[1], key(2))]
}

#[test]
fn a_decision_on_several_limits_finds_them_all() {
    let memory = Memory::new(1000, usize::MAX);
    let of = |way: Option<Strategy>| ["a", "b"].map(|name| counted(name, &["5/h"], way.as_ref()));
    let (old, new) = (of(None), of(Some(Strategy::SlidingLog)));
    let both = |limits: &[Arc<Limit>; 2], now| (0..4).filter(|_| admitted(&memory, &asks(limits), now)).count();
    assert_eq!(both(&old, NOW), 4);
    let replaced = old.iter().cloned().zip(new.iter().cloned());
    let replaced = replaced.map(|(from, to)| Replaced { key: None, from, to }).collect();
    memory.reload(&LimitChanges { in_use: new.to_vec(), replaced, ..LimitChanges::default() }, later(1));
    assert_eq!(both(&new, later(1)), 1);
}

#[test]
fn reloads_one_after_the_other_keep_what_can_be_kept() {
    let [a, b, c] = [&["9/h", "99/d"][..], &["9/h"], &["99/d", "9/h"]].map(|rates| counted("a", rates, None));
    // The key is not seen in between.
    let memory = Memory::new(1000, usize::MAX);
    assert!((0..7).all(|_| admitted(&memory, &[ask(&a, key(1))], NOW)));
    reload(&memory, &a, &b, later(1));
    reload(&memory, &b, &b, later(2));
    reload(&memory, &b, &c, later(3));
    let verdict = memory.decide(&[ask(&c, key(1))], later(3)).verdicts[0].1;
    assert_eq!((verdict.rate, verdict.remaining), (1, 1));
    let day = Arc::new(Limit::new("a", &["99/d".parse().unwrap()]));
    reload(&memory, &c, &day, later(4));
    assert_eq!(remaining(&memory, &day, later(4)), 91, "the day was never forgotten");
    // It is seen, and comes back.
    let memory = Memory::new(1000, usize::MAX);
    assert!((0..7).all(|_| admitted(&memory, &[ask(&a, key(1))], NOW)));
    reload(&memory, &a, &b, later(1));
    assert!(admitted(&memory, &[ask(&b, key(1))], later(1)));
    reload(&memory, &b, &a, later(2));
    assert_eq!(remaining(&memory, &a, later(2)), 1);
    // And again, without being seen by the second.
    reload(&memory, &a, &b, later(3));
    reload(&memory, &b, &a, later(4));
    assert_eq!(remaining(&memory, &a, later(4)), 1);
}

#[test]
fn who_comes_late_after_several_reloads_is_counted_with_all_others() {
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        let memory = Memory::new(1000, usize::MAX);
        let between = counted("a", &["9/h", "99/d"], None);
        assert!((0..7).all(|_| admitted(&memory, &[ask(&old, key(1))], NOW)));
        reload(&memory, &old, &between, later(1));
        reload(&memory, &between, &new, later(2));
        let asked = [&between, &old, &new, &between, &new];
        let passed = asked.map(|limit| admitted(&memory, &[ask(limit, key(1))], later(2)));
        assert_eq!(passed, [true, true, false, false, false], "{:?} to {:?}", old.rates(), new.rates());
    }
}

#[test]
fn what_a_migration_needs_is_forgotten_when_it_matters_no_more() {
    let memory = Memory::new(1000, usize::MAX);
    let (old, new) = (counted("a", &["5/s", "9/d"], None), counted("a", &["5/s"], Some(&Strategy::SlidingLog)));
    for number in 0..100 {
        assert!(admitted(&memory, &[ask(&old, key(number))], NOW));
    }
    reload(&memory, &old, &new, NOW);
    memory.sweep(1, NOW);
    assert_eq!(memory.keys(), 100, "they may be migrated");
    assert!(memory.is_migrating(NOW));
    let then = later(3);
    assert!(!memory.is_migrating(then));
    memory.sweep(1, then);
    assert_eq!(memory.keys(), 0, "what they know of the day is of no use");
}

#[test]
fn cells_of_limits_that_are_gone_leave() {
    let memory = Memory::new(100_000, usize::MAX);
    let stays = counted("stays", &["9/d"], None);
    assert!(admitted(&memory, &[ask(&stays, key(1))], NOW));
    let mut before = stays.clone();
    for number in 0..1000 {
        let limit = counted(&format!("limit-{number}"), &["9/d"], None);
        memory.reload(
            &LimitChanges {
                in_use: vec![stays.clone(), limit.clone()],
                replaced: Vec::new(),
                ..LimitChanges::default()
            },
            NOW,
        );
        for client in 0..10 {
            assert!(admitted(&memory, &[ask(&limit, key(1000 + number * 10 + client))], NOW));
        }
        // A request in flight uses the previous limit once more.
        assert!(admitted(&memory, &[ask(&before, key(100_000 + number))], NOW));
        before = limit;
        memory.sweep(1, NOW);
        assert!(memory.keys() <= 13, "{} after {number} reloads", memory.keys());
    }
    assert_eq!(memory.evicted(), 0);
    assert_eq!(remaining(&memory, &stays, NOW), 8);
}

#[test]
fn what_was_reserved_is_given_back_to_what_its_cell_has_become() {
    let counts_anew = |old: &Limit, new: &Limit| {
        // It is unknown when a fixed window began, and a bucket has drained.
        let is = |limit: &Limit, way: &Strategy| limit.rates()[0].strategy() == way;
        let (fixed, bucket) = (Strategy::FixedWindow, Strategy::TokenBucket { burst: 9 });
        old.id() != new.id() && (is(old, &fixed) || is(old, &bucket))
    };
    for (old, new) in all().iter().flat_map(|old| all().into_iter().map(move |new| (old.clone(), new))) {
        for is_seen in [false, true] {
            let memory = Memory::new(1000, usize::MAX);
            let reserving = Ask { need: 3, cost: 3, settles: true, ..ask(&old, key(1)) };
            let reserved = memory.decide(&[reserving], NOW).reserved.pop().unwrap();
            assert!(admitted(&memory, &[ask(&old, key(1))], NOW));
            reload(&memory, &old, &new, later(1));
            if is_seen {
                assert_eq!(remaining(&memory, &new, later(1)), 5);
            }
            let verdict = memory.settle(&reserved, 0, later(2));
            let left = remaining(&memory, &new, later(2));
            let most = if is_seen && counts_anew(&old, &new) { 5..=8 } else { 8..=8 };
            assert!(most.contains(&left), "{left} after {:?} to {:?}, seen: {is_seen}", old.rates(), new.rates());
            assert_eq!(verdict.remaining, left);
            // An additional cost is charged to it as well.
            let reserved = memory.decide(&[Ask { limit: &new, ..reserving }], later(2)).reserved.pop().unwrap();
            memory.settle(&reserved, 5, later(2));
            assert_eq!(remaining(&memory, &new, later(2)), left - 5);
        }
    }
}

#[test]
fn what_costs_more_than_was_reserved_is_charged_to_what_its_cell_has_become() {
    let memory = Memory::new(1000, usize::MAX);
    let (old, new) = (counted("a", &["9/h"], None), counted("a", &["9/h"], Some(&Strategy::SlidingLog)));
    let reserving = Ask { settles: true, ..ask(&old, key(1)) };
    let reserved = memory.decide(&[reserving], NOW).reserved.pop().unwrap();
    reload(&memory, &old, &new, later(1));
    assert_eq!(remaining(&memory, &new, later(1)), 8);
    assert_eq!(memory.settle(&reserved, 6, later(1)).remaining, 3);
    assert_eq!(remaining(&memory, &new, later(1)), 3);
    assert_eq!(memory.keys(), 1);
}

#[test]
fn who_was_held_while_the_limit_was_replaced_passes_by_the_new_one() {
    let memory = Memory::new(1000, usize::MAX);
    let (old, new) =
        (counted("a", &["9/h", "5/s"], None), counted("a", &["5/s", "9/m", "7/h"], Some(&Strategy::SlidingLog)));
    assert!((0..5).all(|_| admitted(&memory, &[ask(&old, key(1))], NOW)));
    reload(&memory, &old, &new, NOW);
    assert!(!admitted(&memory, &[ask(&new, key(1))], NOW));
    let reserving = Ask { settles: true, ..ask(&old, key(1)) };
    let verdict = memory.decide(&[reserving], NOW).verdicts[0].1;
    assert_eq!((verdict.admitted, verdict.rate), (false, 1), "5/s is the second of the rates that it knows");
    let reply = memory.decide(&[reserving], later(2));
    assert_eq!((reply.verdicts[0].1.admitted, reply.verdicts[0].1.remaining), (true, 1), "of 7/h");
    assert_eq!(reply.verdicts[0].1.rate, 0);
    assert_eq!(remaining(&memory, &new, later(2)), 1);
    assert_eq!(memory.settle(&reply.reserved[0], 0, later(2)).remaining, 2);
    assert_eq!((remaining(&memory, &new, later(2)), memory.keys()), (2, 1));
}

#[test]
fn what_costs_what_was_reserved_is_followed_no_longer_by_the_bucket_that_has_replaced_its_limit() {
    let (old, new) = (counted("a", &["9/h"], None), counted("a", &["9/h burst 9"], None));
    let memory = Memory::new(1000, usize::MAX);
    assert!(admitted(&memory, &[ask(&old, key(1))], NOW));
    reload(&memory, &old, &new, NOW);
    assert!(admitted(&memory, &[ask(&new, key(1))], later(1)));
    let store = Store::from(memory).simulated();
    let Counters::Memory(memory) = &store.counters else { unreachable!() };
    // A request in flight asks the previous limit.
    let (asked, before) = (Ask { settles: true, ..ask(&old, key(1)) }, memory.bytes());
    let reserved = memory.decide(&[asked], later(1)).reserved.pop().unwrap();
    assert!(memory.bytes() > before, "the bucket follows it");
    store.settle(reserved, 1, None, later(1), 0);
    memory.sweep(1, later(1));
    assert_eq!(memory.bytes(), before);
}

fn override_key(memory: &Memory, key: Fingerprint, [from, to]: [&Arc<Limit>; 2], now: Time) {
    let replaced = vec![Replaced { key: Some(key), from: from.clone(), to: to.clone() }];
    let in_use = vec![from.clone(), to.clone()];
    memory.reload(&LimitChanges { in_use, replaced, ..LimitChanges::default() }, now);
}

#[test]
fn an_override_takes_along_what_its_key_has_counted_and_nothing_of_others() {
    let pairs = all().into_iter().flat_map(|own| all().into_iter().map(move |other| (own.clone(), other)));
    for (own, other) in pairs.filter(|(own, other)| own.id() != other.id()) {
        let memory = Memory::new(1000, usize::MAX);
        let count = |limit, key, now| (0..9).filter(|_| admitted(&memory, &[ask(limit, key)], now)).count();
        for number in [1, 1, 1, 1, 1, 2, 2, 3] {
            assert!(admitted(&memory, &[ask(&own, key(number))], NOW));
        }
        override_key(&memory, key(1), [&own, &other], later(1));
        memory.sweep(1, later(2));
        assert_eq!(remaining(&memory, &other, later(2)), 4, "{:?} to {:?}", own.rates(), other.rates());
        assert_eq!(memory.keys(), 3, "it is the same cell");
        // A request in flight asks the previous limit for it.
        assert_eq!(count(&own, key(1), later(2)), 4, "{:?} to {:?}", own.rates(), other.rates());
        // Other keys count as ever, and have counted nothing by the other limit.
        assert_eq!((count(&own, key(2), later(2)), memory.keys()), (7, 3));
        assert_eq!(count(&other, key(2), later(2)), 9);
        // At the end it takes its counts back, and its limit counts it again.
        override_key(&memory, key(1), [&other, &own], later(3));
        memory.sweep(1, later(4));
        assert_eq!((remaining(&memory, &own, later(4)), memory.keys()), (0, 4));
        override_key(&memory, key(3), [&own, &other], later(5));
        assert_eq!(count(&other, key(3), later(6)), 8);
        // A reload takes along what was not used since.
        let memory = Memory::new(1000, usize::MAX);
        assert!(admitted(&memory, &[ask(&own, key(1))], NOW));
        override_key(&memory, key(1), [&own, &other], later(1));
        reload(&memory, &other, &own, later(2));
        assert_eq!(remaining(&memory, &own, later(3)), 8, "{:?} and {:?}", own.rates(), other.rates());
    }
}

/// A key with a tier gets an override, and loses it again.
#[test]
fn an_override_takes_along_what_the_tier_of_its_key_has_counted() {
    let of = |rates: &[&str]| counted("a", rates, None);
    let hours = |more: &str| of(&["9/d", &format!("90/{more}")]);
    // All differ in their layouts, or two of them are alike.
    let layouts = [(0, 1, 2), (0, 1, 0), (0, 1, 1), (0, 0, 1)];
    for (own, tier, granted) in layouts {
        let limits = [hours("2h"), hours("3h"), hours("4h")];
        let [own, tier, granted] = [own, tier, granted].map(|which: usize| limits[which].clone());
        for (asked, other) in [(&own, &tier), (&tier, &own)] {
            let memory = Memory::new(1000, usize::MAX);
            let in_use = || [&own, &tier, &granted].map(Clone::clone).to_vec();
            let change = |pairs: Vec<[&Arc<Limit>; 2]>, now| {
                let pair = |[from, to]: [&Arc<Limit>; 2]| {
                    let key = Some(key(1));
                    Replaced { key, from: from.clone(), to: to.clone() }
                };
                let replaced = pairs.into_iter().map(pair).collect();
                memory.reload(&LimitChanges { in_use: in_use(), replaced, ..LimitChanges::default() }, now);
            };
            (0..4).for_each(|_| assert!(admitted(&memory, &[ask(asked, key(1))], NOW)));
            assert!(admitted(&memory, &[ask(asked, key(2))], NOW));
            change(vec![[&own, &granted], [&tier, &granted]], later(1));
            assert_eq!(remaining(&memory, &granted, later(2)), 5);
            assert!(admitted(&memory, &[ask(&granted, key(1))], later(2)));
            // A request in flight asks the previous limit.
            assert!(admitted(&memory, &[ask(asked, key(1))], later(2)));
            assert_eq!(remaining(&memory, &granted, later(2)), 3);
            change(vec![[&granted, &own], [&granted, &tier]], later(3));
            assert_eq!(remaining(&memory, asked, later(4)), 3, "{:?}", asked.rates());
            assert!(admitted(&memory, &[ask(asked, key(1))], later(4)));
            assert_eq!(remaining(&memory, asked, later(4)), 2);
            // Once more, without a request meanwhile.
            change(vec![[&own, &granted], [&tier, &granted]], later(5));
            change(vec![[&granted, &own], [&granted, &tier]], later(6));
            assert_eq!(remaining(&memory, asked, later(7)), 2);
            // With the tier it has other counts than without, as before.
            if own.id() != tier.id() && ![own.id(), tier.id()].contains(&granted.id()) {
                assert_eq!(remaining(&memory, other, later(8)), 9);
            }
            assert_eq!(remaining_of(&memory, asked, key(2), later(8)), 8);
        }
    }
}

#[test]
fn overrides_that_follow_each_other_are_not_remembered_without_end() {
    let (own, other) = (counted("a", &["9/d"], None), counted("a", &["9/d"], Some(&Strategy::SlidingLog)));
    let memory = Memory::new(100, usize::MAX);
    reload(&memory, &other, &own, NOW);
    let override_all = |keys: std::ops::Range<u64>, at| {
        let replaced = keys.map(|number| Replaced { key: Some(key(number)), from: own.clone(), to: other.clone() });
        let in_use = vec![own.clone(), other.clone()];
        memory.reload(&LimitChanges { in_use, replaced: replaced.collect(), ..LimitChanges::default() }, at);
    };
    assert!(admitted(&memory, &[ask(&own, key(0))], NOW) && admitted(&memory, &[ask(&own, key(40_000))], NOW));
    assert!(admitted(&memory, &[ask(&other, key(50_000))], NOW), "it asks what was replaced before");
    (0..40).for_each(|round| override_all(1000 * round..1000 * (round + 1), later(round + 1)));
    override_all(40_000..40_001, later(60));
    assert_eq!(remaining_of(&memory, &other, key(40_000), later(61)), 8);
    assert_eq!(remaining_of(&memory, &other, key(0), later(61)), 9, "that is so long ago that it is forgotten");
    assert_eq!(remaining_of(&memory, &own, key(50_000), later(61)), 8, "the reload is not");
}

#[test]
fn threads_that_reload_at_different_moments_admit_no_more_together() {
    let (old, new) = (counted("a", &["500/h"], None), counted("a", &["500/h"], Some(&Strategy::FixedWindow)));
    let memory = Memory::new(100_000, usize::MAX);
    let count = std::sync::atomic::AtomicUsize::new(0);
    let [begin, reloaded] = [(); 2].map(|()| std::sync::Barrier::new(2));
    let ask_all = |limit, times| {
        let passed = (0..times).filter(|_| admitted(&memory, &[ask(limit, key(1))], NOW)).count();
        count.fetch_add(passed, std::sync::atomic::Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        // Two threads hold requests and know only the old limit. The others learn of the new one by the reload.
        (0..2).for_each(|_| drop(scope.spawn(|| ask_all(&old, 400))));
        scope.spawn(|| {
            ask_all(&old, 50);
            begin.wait();
            reload(&memory, &old, &new, NOW);
            reloaded.wait();
            ask_all(&new, 400);
        });
        scope.spawn(|| {
            ask_all(&old, 50);
            begin.wait();
            reloaded.wait();
            ask_all(&new, 400);
        });
    });
    assert_eq!(count.into_inner(), 500);
    assert_eq!(remaining(&memory, &new, NOW), 0);
}

#[test]
fn cells_of_any_rates_stay_where_a_source_may_name_them() {
    let (plan, own) = (counted("l", &["5/m", "9/h"], None), counted("l", &["1/m"], None));
    for (with_quotas, kept) in [("l", 1), ("other", 0)] {
        let memory = Memory::new(100, usize::MAX);
        assert!(admitted(&memory, &[ask(&plan, key(1))], NOW));
        let with_quotas = vec![with_quotas.to_owned()];
        memory.reload(&LimitChanges { in_use: vec![own.clone()], with_quotas, replaced: Vec::new() }, NOW);
        memory.sweep(1, NOW);
        assert_eq!(memory.keys(), kept);
    }
}
