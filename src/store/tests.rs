//! The memory store under many keys, many threads and little room.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::memory::Memory;
use super::*;
use crate::limit::Rate;

fn limit(name: &str, rates: &[&str]) -> Arc<Limit> {
    let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    Arc::new(Limit::new(name, &rates))
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::of(&number.to_be_bytes())
}

fn ask(limit: &Arc<Limit>, key: Fingerprint) -> Ask<'_> {
    Ask { limit, key, need: 1, cost: 1, advisory: false, place: 0 }
}

fn admitted(memory: &Memory, asks: &[Ask<'_>], now: Time) -> bool {
    memory.decide(asks, now).iter().all(|(_, verdict)| verdict.admitted)
}

const NOW: Time = Time::from_micros(1_800_000_000_000_000);

#[test]
fn a_burst_from_many_threads_gets_exactly_its_limit() {
    let memory = Memory::new(1000);
    let limits = [limit("a", &["100/s", "150/m"]), limit("b", &["120/s"])];
    let asks: Vec<_> = limits.iter().map(|limit| ask(limit, key(1))).collect();
    let count = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine = (0..1000).filter(|_| admitted(&memory, &asks, NOW)).count();
                count.fetch_add(mine as u64, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    assert_eq!(count.into_inner(), 100);
}

#[test]
fn all_limits_are_charged_or_none() {
    let memory = Memory::new(1000);
    let (wide, narrow) = (limit("wide", &["10/s"]), limit("narrow", &["3/s"]));
    let both = [ask(&wide, key(1)), ask(&narrow, key(2))];
    assert_eq!((0..50).filter(|_| admitted(&memory, &both, NOW)).count(), 3);
    assert_eq!((0..50).filter(|_| admitted(&memory, &both[..1], NOW)).count(), 7, "refusals were not charged");
}

#[test]
fn a_raised_quota_holds_at_once_and_keeps_the_count() {
    let memory = Memory::new(1000);
    let low = limit("a", &["3/m"]);
    assert_eq!((0..10).filter(|_| admitted(&memory, &[ask(&low, key(1))], NOW)).count(), 3);
    let high = limit("a", &["5/m"]);
    assert_eq!((0..10).filter(|_| admitted(&memory, &[ask(&high, key(1))], NOW)).count(), 2);
}

#[test]
fn spent_keys_leave_by_themselves() {
    let memory = Memory::new(100_000);
    let (short, long) = (limit("short", &["5/s"]), limit("long", &["5/h"]));
    for number in 0..5_000 {
        admitted(&memory, &[ask(&short, key(number))], NOW);
        admitted(&memory, &[ask(&long, key(number + 5_000))], NOW);
    }
    memory.sweep(1, NOW.after(Duration::from_secs(1)));
    assert_eq!(memory.keys(), 10_000, "the last second still counts");
    memory.sweep(1, NOW.after(Duration::from_secs(2)));
    assert_eq!(memory.keys(), 5_000);
    memory.sweep(1, NOW.after(Duration::from_secs(3 * 3600)));
    assert_eq!(memory.keys(), 0);
    assert_eq!(memory.evicted(), 0);
}

#[test]
fn refused_newcomers_push_nobody_out() {
    let memory = Memory::new(1);
    let (everybody, each) = (limit("everybody", &["1/h"]), limit("each", &["1/h"]));
    assert!(admitted(&memory, &[ask(&everybody, key(0))], NOW));
    for number in 1..1000 {
        assert!(!admitted(&memory, &[ask(&everybody, key(0)), ask(&each, key(number))], NOW));
    }
    assert_eq!((memory.keys(), memory.evicted()), (1, 0));
}

/// The bytes that this process holds, from the system.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Ten million clients against room for a tenth of them: the bound holds, and what is hot stays.
#[test]
fn key_costs_are_bounded_under_ten_million_keys() {
    // A tenth of both without optimisation, which takes ten times as long.
    let (keys, room) = if cfg!(debug_assertions) { (1_000_000, 100_000) } else { (10_000_000, 1_000_000) };
    let memory = Memory::new(usize::try_from(room).unwrap());
    let limit = limit("a", &["10/s", "3000/10m"]);
    let before = resident();
    for number in 0..keys {
        admitted(&memory, &[ask(&limit, key(number))], NOW);
        // Ten clients come back all the time.
        if number % 1000 == 0 {
            admitted(&memory, &[ask(&limit, key(number / 1000 % 10))], NOW);
        }
    }
    let (held, bytes) = (memory.keys() as u64, resident().saturating_sub(before));
    assert!(held <= room, "{held} keys");
    assert!(held > room * 9 / 10, "{held} keys: the room is not used");
    assert!(memory.evicted() >= keys - room, "{} made room", memory.evicted());
    println!("{held} keys of two rates take {} MiB: {} bytes each", bytes >> 20, bytes / held);
    assert!(bytes / held < 512, "{} bytes a key", bytes / held);
    assert!(!admitted(&memory, &[ask(&limit, key(0))], NOW), "a client that kept coming was forgotten");
}

proptest! {
    #[test]
    fn a_look_says_what_a_refusal_would_and_charges_nothing(
        steps in prop::collection::vec((0..3_u64, 1..4_u64, 0..700_000_u64, 1..3_usize), 1..200),
    ) {
        let (memory, unseen) = (Memory::new(1000), Memory::new(1000));
        let limits = [limit("a", &["9/s", "12/2s"]), limit("b", &["10/s"])];
        let mut now = NOW;
        for (client, need, passed, count) in steps {
            now = now.after(Duration::from_micros(passed));
            let of = |cost| limits.iter().map(move |limit| Ask { need, cost, ..ask(limit, key(client)) }).take(count);
            let (asks, looks): (Asks<'_>, Asks<'_>) = (of(need).collect(), of(0).collect());
            let looked = memory.refuses(&looks, now);
            let decided = memory.decide(&asks, now);
            prop_assert_eq!(&decided, &unseen.decide(&asks, now));
            let is_refused = decided.iter().any(|(_, verdict)| !verdict.admitted);
            prop_assert_eq!(looked, is_refused.then_some(decided));
        }
    }
}
