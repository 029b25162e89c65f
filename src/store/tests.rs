//! The memory store under many keys, many threads and little room, and decisions long after the clock was read for them.

mod inspection;
mod many_reloads;
mod reloads;
mod saved;

use std::cell::Cell as Local;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::{Just, any, prop, prop_assert, prop_oneof, proptest};
use proptest::strategy::Strategy as Generate;

use super::memory::Memory;
use super::*;
use crate::base::clock::{self, Timeline};
use crate::limit::{Edge, Rate, Strategy};

fn limit(name: &str, rates: &[&str]) -> Arc<Limit> {
    let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    Arc::new(Limit::new(name, &rates))
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::of(&number.to_be_bytes())
}

fn ask(limit: &Arc<Limit>, key: Fingerprint) -> Ask<'_> {
    Ask::new(limit, key, 1)
}

fn admitted(memory: &Memory, asks: &[Ask<'_>], now: Time) -> bool {
    memory.decide(asks, now).verdicts.iter().all(|(_, verdict)| verdict.admitted)
}

const NOW: Time = Time::from_micros(1_800_000_000_000_000);

#[test]
fn a_burst_from_many_threads_gets_exactly_its_limit() {
    let memory = Memory::new(1000, usize::MAX);
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
    let memory = Memory::new(1000, usize::MAX);
    let (wide, narrow) = (limit("wide", &["10/s"]), limit("narrow", &["3/s"]));
    let both = [ask(&wide, key(1)), ask(&narrow, key(2))];
    assert_eq!((0..50).filter(|_| admitted(&memory, &both, NOW)).count(), 3);
    assert_eq!((0..50).filter(|_| admitted(&memory, &both[..1], NOW)).count(), 7, "refusals were not charged");
}

#[test]
fn a_raised_quota_holds_at_once_and_keeps_the_count() {
    let memory = Memory::new(1000, usize::MAX);
    let low = limit("a", &["3/m"]);
    assert_eq!((0..10).filter(|_| admitted(&memory, &[ask(&low, key(1))], NOW)).count(), 3);
    let high = limit("a", &["5/m"]);
    assert_eq!((0..10).filter(|_| admitted(&memory, &[ask(&high, key(1))], NOW)).count(), 2);
}

#[test]
fn spent_keys_leave_by_themselves() {
    let memory = Memory::new(100_000, usize::MAX);
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
fn nobody_is_pushed_out_by_keys_that_are_chosen_for_it() {
    let memory = Memory::new(100_000, usize::MAX);
    let (logins, other) = (limit("logins", &["3/h"]), limit("other", &["5/h"]));
    let victim = key(0);
    assert_eq!((0..9).filter(|_| admitted(&memory, &[ask(&logins, victim)], NOW)).count(), 3);
    // Whatever bits of a key's hash an attacker relies on.
    let like_it = [|key: Fingerprint| key.high() & 63, |key: Fingerprint| key.high() >> 58];
    for bits in like_it {
        let chosen = (1..400_000).map(key).filter(|key| bits(*key) == bits(victim));
        for key in chosen.take(4_000) {
            admitted(&memory, &[ask(&other, key)], NOW);
        }
    }
    assert!(!admitted(&memory, &[ask(&logins, victim)], NOW), "its three are still counted");
    assert_eq!(memory.evicted(), 0);
}

#[test]
fn a_bucket_is_spent_by_the_rate_that_its_key_has_now() {
    let seconds = |seconds| NOW.after(Duration::from_secs(seconds));
    let (fast, slow) = (limit("a", &["60/m burst 60"]), limit("a", &["1/m burst 60"]));
    let fill = |memory: &Memory| (0..99).filter(|_| admitted(memory, &[ask(&fast, key(1))], NOW)).count();
    // A request of the key has a lower rate.
    let memory = Memory::new(100, usize::MAX);
    assert_eq!(fill(&memory), 60);
    assert!(!admitted(&memory, &[ask(&slow, key(1))], NOW));
    memory.sweep(1, seconds(120));
    assert_eq!(memory.keys(), 1);
    assert_eq!((0..99).filter(|_| admitted(&memory, &[ask(&slow, key(1))], seconds(120))).count(), 2);
    // A reload has lowered it, and nobody has used the key since.
    let memory = Memory::new(100, usize::MAX);
    assert_eq!(fill(&memory), 60);
    memory.reload(&LimitChanges { in_use: vec![fast.clone(), slow.clone()], ..LimitChanges::default() }, NOW);
    memory.sweep(1, seconds(120));
    assert_eq!((0..99).filter(|_| admitted(&memory, &[ask(&slow, key(1))], seconds(120))).count(), 2);
    memory.sweep(1, seconds(2 * 3600));
    assert_eq!(memory.keys(), 0);
}

#[test]
fn refused_newcomers_push_nobody_out() {
    let memory = Memory::new(1, usize::MAX);
    let (everybody, each) = (limit("everybody", &["1/h"]), limit("each", &["1/h"]));
    assert!(admitted(&memory, &[ask(&everybody, key(0))], NOW));
    for number in 1..1000 {
        assert!(!admitted(&memory, &[ask(&everybody, key(0)), ask(&each, key(number))], NOW));
    }
    assert_eq!((memory.keys(), memory.evicted()), (1, 0));
}

#[test]
fn nothing_is_given_back_to_a_cell_that_was_begun_anew() {
    let memory = Memory::new(1, usize::MAX);
    let limit = limit("a", &["5/h"]);
    let reserving = Ask { settles: true, ..ask(&limit, key(1)) };
    let reserved = memory.decide(&[reserving], NOW).reserved.pop().unwrap();
    assert!(admitted(&memory, &[ask(&limit, key(2))], NOW), "it makes the first one go");
    assert!((0..5).all(|_| admitted(&memory, &[ask(&limit, key(1))], NOW)));
    assert_eq!(memory.settle(&reserved, 0, NOW).remaining, 0);
    assert!(!admitted(&memory, &[ask(&limit, key(1))], NOW), "all five are from the new cell");
    assert!(admitted(&memory, &[ask(&limit, key(2))], NOW), "it makes that one go, too");
    assert_eq!(memory.settle(&reserved, 3, NOW).remaining, 3, "what is charged in addition begins it anew");
}

/// The bytes that this process has allocated and holds, from the system, without code, of which each test loads more.
fn resident() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = maps.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Every strategy in turn, with cells small and large.
fn counted_by(strategy: &str) -> Arc<Limit> {
    let sliding = |precision| Strategy::SlidingWindow { precision, edge: Edge::Weighted };
    let rates = match strategy {
        "sliding" => vec!["10/s".parse().unwrap(), "3000/10m".parse().unwrap()],
        "precise" => vec!["10/s".parse::<Rate>().unwrap().with_strategy(sliding(60)).unwrap()],
        "fixed" => vec!["10/h".parse::<Rate>().unwrap().with_strategy(Strategy::FixedWindow).unwrap()],
        "moving" => vec!["10/h".parse::<Rate>().unwrap().with_strategy(Strategy::SlidingLog).unwrap()],
        "large" => vec!["10000/h".parse::<Rate>().unwrap().with_strategy(Strategy::SlidingLog).unwrap()],
        "bucket" => vec!["10/h burst 20".parse().unwrap()],
        _ => vec!["10/day".parse().unwrap(), "100/month".parse().unwrap()],
    };
    Arc::new(Limit::new("a", &rates))
}

/// Fills a store with clients of one strategy, of which one comes back all the time, and checks its bytes.
fn fill(strategy: &str) {
    // A hundredth without optimisation, which takes twenty times as long.
    let (keys, room) = if cfg!(debug_assertions) { (100_000, 8 << 20) } else { (10_000_000, 256 << 20) };
    // In moving windows the requests take the room, not the keys: 257 is the least for which 512 entries are allocated.
    let (keys, each) = if strategy == "large" { (keys / 80, 257) } else { (keys, 1) };
    let pause = 1000 / each;
    let memory = Memory::new(usize::try_from(keys).unwrap(), room);
    let limit = counted_by(strategy);
    let before = resident();
    let mut now = NOW;
    for number in 0..keys {
        for _ in 0..each {
            now = now.after(if each > 1 { Duration::from_micros(1) } else { Duration::ZERO });
            admitted(&memory, &[ask(&limit, key(number))], now);
        }
        if number % pause == 0 {
            admitted(&memory, &[ask(&limit, key(0))], now);
        }
        assert!(memory.bytes() <= room, "{} bytes after {number} keys", memory.bytes());
    }
    let (held, taken) = (memory.keys() as u64, resident().saturating_sub(before));
    println!("{strategy}: {held} keys, {} bytes each, {} MiB resident", memory.bytes() as u64 / held, taken >> 20);
    assert!(memory.bytes() > room / 2, "{} bytes: the room is not used", memory.bytes());
    assert!(taken < room as u64 * 11 / 10 + (4 << 20), "{taken} bytes are resident");
    assert!(memory.evicted() >= keys - held, "{} made room", memory.evicted());
    let limit = ask(&limit, key(0));
    assert!(!admitted(&memory, &[limit], now) || each > 1, "a client that kept coming was forgotten");
}

/// Ten million clients of each strategy with room for some: the bound holds, and hot keys stay. Each strategy has its own
/// process, so that nothing else takes memory meanwhile.
#[test]
fn memory_is_bounded_whatever_is_counted() {
    const CHOSEN: &str = "GATEWAY_TEST_STRATEGY";
    if let Ok(strategy) = std::env::var(CHOSEN) {
        return fill(&strategy);
    }
    for strategy in ["sliding", "precise", "fixed", "moving", "large", "bucket", "calendar"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "--nocapture", "store::tests::memory_is_bounded_whatever_is_counted"]);
        let output = child.env(CHOSEN, strategy).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        said.lines().filter(|line| line.contains("keys")).for_each(|line| println!("{line}"));
        assert!(output.status.success(), "{strategy}: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn requests_are_reserved_above_a_level_that_each_finds_as_it_comes() {
    let kinds = ["10/s", "10/s burst 10", "10/day"].map(|rate| limit("a", &[rate]));
    let others = [Strategy::FixedWindow, Strategy::SlidingLog].map(|strategy| {
        let rate = "10/s".parse::<Rate>().unwrap().with_strategy(strategy).unwrap();
        Arc::new(Limit::new("a", &[rate]))
    });
    for slowed in kinds.iter().chain(&others) {
        let memory = Memory::new(1000, usize::MAX);
        let plain = limit("plain", &["100/s"]);
        let held = Ask { held_above: Some(500_000), ..ask(slowed, key(1)) };
        let both = [held, Ask { place: 1, ..ask(&plain, key(2)) }];
        let mut replies: Vec<Reply> = (0..8).map(|_| memory.decide(&both, NOW)).collect();
        replies.extend((0..3).map(|_| memory.decide(&both[..1], NOW)));
        let levels: Vec<u32> = replies.iter().map(|reply| reply.verdicts[0].1.level).collect();
        assert_eq!(levels, (0..10).map(|used| used * 100_000).chain([0]).collect::<Vec<_>>(), "{slowed:?}");
        let reserved: Vec<usize> = replies.iter().map(|reply| reply.reserved.len()).collect();
        assert_eq!(reserved, [0, 0, 0, 0, 0, 0, 2, 2, 1, 1, 0], "{slowed:?}");
        for reserved in replies.into_iter().flat_map(|reply| reply.reserved) {
            memory.settle(&reserved, 0, NOW);
        }
        assert_eq!(memory.peek(slowed, key(1), NOW).rates[0].used, 6, "{slowed:?}");
        assert_eq!(memory.peek(&plain, key(2), NOW).rates[0].used, 6, "{slowed:?}");
    }
}

const SECOND: u64 = 1_000_000;
const WINDOW: u64 = 10 * SECOND;
const QUOTA: u64 = 10;

thread_local! {
    static CLOCK: Local<u64> = const { Local::new(0) };
}

fn read() -> Time {
    Time::from_micros(CLOCK.get())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// In microseconds.
    Pass(u64),
    Come,
    Burst(u64),
    End(prop::sample::Index),
}

fn steps() -> impl Generate<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..SECOND).prop_map(Step::Pass),
        1 => (0..2 * WINDOW).prop_map(Step::Pass),
        2 => Just(Step::Come),
        2 => (1..2 * QUOTA).prop_map(Step::Burst),
        3 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 1..80)
}

/// The most that is admitted in so many microseconds.
type Most = fn(u64) -> u64;

/// A limit of ten in ten seconds by each exact strategy, and the most that it admits in so many microseconds.
fn limits() -> [(Arc<Limit>, Most); 4] {
    let of = |strategy| {
        let rate = Rate::new(QUOTA, Duration::from_micros(WINDOW)).unwrap().with_strategy(strategy).unwrap();
        Arc::new(Limit::new("test", &[rate]))
    };
    let whole = Strategy::SlidingWindow { precision: 5, edge: Edge::Whole };
    [
        (of(whole), |time| QUOTA * (time / WINDOW + 1)),
        (of(Strategy::FixedWindow), |time| QUOTA * (time / WINDOW + 2)),
        (of(Strategy::SlidingLog), |time| QUOTA * (time / WINDOW + 1)),
        (of(Strategy::TokenBucket { burst: QUOTA }), |time| QUOTA + time * QUOTA / WINDOW + 1),
    ]
}

proptest! {
    #[test]
    fn no_order_of_old_and_new_moments_admits_more_than_the_rule_allows(steps in steps()) {
        for (limit, most) in limits() {
            let counters = Counters::Memory(Memory::new(10, usize::MAX));
            let store = Store { counters, timeline: Some(Timeline::new(read)) };
            CLOCK.set(NOW.micros());
            let (mut held, mut admitted) = (Vec::new(), Vec::new());
            let decide = |moment: Time, admitted: &mut Vec<u64>| {
                let Answer::Now(reply) = store.decide(&[ask(&limit, key(1))], moment, 0) else { unreachable!() };
                if reply.verdicts[0].1.admitted {
                    admitted.push(CLOCK.get());
                }
            };
            for step in &steps {
                match step {
                    Step::Pass(time) => {
                        CLOCK.set(CLOCK.get() + time);
                        // Somebody else comes as well.
                        store.decide(&[ask(&limit, key(2))], read(), 0);
                    }
                    Step::Come => held.push(read()),
                    Step::Burst(times) => (0..*times).for_each(|_| decide(read(), &mut admitted)),
                    Step::End(_) if held.is_empty() => {}
                    Step::End(index) => decide(held.swap_remove(index.index(held.len())), &mut admitted),
                }
            }
            for (first, begin) in admitted.iter().enumerate() {
                for (count, end) in (1..).zip(&admitted[first..]) {
                    // A clock that was read a moment ago is believed.
                    let most = most(end - begin + clock::UNCHECKED);
                    prop_assert!(count <= most, "{count} in {} us, at most {most}: {:?}", end - begin, limit);
                }
            }
        }
    }
}
