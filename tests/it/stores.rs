//! The same tests for every store and every strategy. Time is injected; the clock of a server only drops counters that
//! no gateway reads any more.

use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use gateway::base::clock::Time;
use gateway::base::fingerprint::Fingerprint;
use gateway::config::{self, OnError, Role};
use gateway::limit::{Edge, Limit, Rate, Strategy, Verdict};
use gateway::store::{Answer, Ask, Away, KeyUsage, Reply, Reserved, Store};

use crate::harness::{Server, Software, unix, until};

pub(crate) const SECOND: u64 = 1_000_000;

/// A way to count, and a rate of 10 a minute (or day) counted that way.
pub(crate) fn strategies() -> Vec<(&'static str, Rate)> {
    let sliding = |precision, edge| Strategy::SlidingWindow { precision, edge };
    let minute = |strategy| "10/m".parse::<Rate>().unwrap().with_strategy(strategy).unwrap();
    vec![
        ("sliding", minute(sliding(1, Edge::Weighted))),
        ("sliding in 7 buckets", minute(sliding(7, Edge::Weighted))),
        ("sliding in 60 buckets, whole", minute(sliding(60, Edge::Whole))),
        ("fixed", minute(Strategy::FixedWindow)),
        ("moving", minute(Strategy::SlidingLog)),
        ("bucket", minute(Strategy::TokenBucket { burst: 10 })),
        ("calendar", "10/day".parse().unwrap()),
    ]
}

pub(crate) struct Bench {
    store: Store,
    start: u64,
    next_key: u64,
}

impl Bench {
    pub(crate) fn memory() -> Self {
        Self::new(&config::Store::Memory { max_keys: 10_000, max_memory: 64 << 20, snapshot: None, share: None })
    }

    pub(crate) fn on(server: &Server, strict: bool) -> Self {
        Self::with(server, strict, OnError::Reject)
    }

    pub(crate) fn with(server: &Server, strict: bool, on_error: OnError) -> Self {
        Self::new(&config::Store::Shared(config::SharedStore {
            software: server.software.config(),
            servers: vec![server.address.to_string()],
            prefix: if strict { "strict" } else { "test" }.to_owned(),
            timeout: Duration::from_secs(5),
            on_error,
            strict,
            login: config::Login::default(),
        }))
    }

    fn new(config: &config::Store) -> Self {
        // A future midnight: nothing that is written expires while the test runs.
        let day = 86_400 * SECOND;
        let start = (u64::try_from(unix().as_micros()).unwrap() / day + 1) * day;
        Self { store: Store::open(config, 0).unwrap().simulated(), start, next_key: 0 }
    }

    pub(crate) fn key(&mut self) -> Fingerprint {
        self.next_key += 1;
        Fingerprint::of(&self.next_key.to_be_bytes())
    }

    /// Decides at `at` microseconds after the start.
    pub(crate) fn decide(&self, asks: &[Ask<'_>], at: u64) -> Vec<Verdict> {
        self.reply(asks, at).verdicts.into_iter().map(|(_, verdict)| verdict).collect()
    }

    fn reply(&self, asks: &[Ask<'_>], at: u64) -> Reply {
        match self.store.decide(asks, Time::from_micros(self.start + at), 0) {
            Answer::Now(reply) => reply,
            Answer::Later(reply) => reply.blocking_recv().expect("the server did not answer"),
            Answer::Away => panic!("the server is away"),
        }
    }

    pub(crate) fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, at: u64) -> Result<KeyUsage, Away> {
        block_on(self.store.peek(limit, key, Time::from_micros(self.start + at)))
    }

    pub(crate) fn used(&self, limit: &Arc<Limit>, key: Fingerprint, at: u64) -> u64 {
        self.peek(limit, key, at).unwrap().rates[0].used
    }

    pub(crate) fn reset(&self, limit: &Arc<Limit>, key: Fingerprint, at: u64) -> Result<(), Away> {
        block_on(self.store.reset(limit, key, Time::from_micros(self.start + at)))
    }

    /// `None` if the cost is not admitted.
    pub(crate) fn reserve(&self, limit: &Arc<Limit>, key: Fingerprint, cost: u64, at: u64) -> Option<Reserved> {
        self.reply(&[Ask { settles: true, ..Ask::new(limit, key, cost) }], at).reserved.pop()
    }

    /// Settles a reservation at this cost. Returns what the client learns then if it had learned that nothing remains.
    pub(crate) fn settle(&self, reserved: Reserved, cost: u64, at: u64) -> Verdict {
        let mut told = Verdict { admitted: true, rate: 0, remaining: 0, wait: None, level: 0 };
        self.store.settle(reserved, cost, Some(&mut told), Time::from_micros(self.start + at), 0);
        told
    }

    pub(crate) fn one(&self, limit: &Arc<Limit>, key: Fingerprint, cost: u64, at: u64) -> Verdict {
        self.decide(&[Ask::new(limit, key, cost)], at)[0]
    }

    pub(crate) fn burst(&self, limit: &Arc<Limit>, key: Fingerprint, count: usize, at: u64) -> usize {
        (0..count).filter(|_| self.one(limit, key, 1, at).admitted).count()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) fn limit(name: &str, rates: &[Rate]) -> Arc<Limit> {
    Arc::new(Limit::new(name, rates))
}

/// Each way to keep counters, with its name.
pub(crate) fn benches(servers: &[Server]) -> Vec<(String, Bench)> {
    let on = |server: &Server, strict| (format!("{:?}, strict: {strict}", server.software), Bench::on(server, strict));
    let shared = servers.iter().flat_map(|server| [on(server, false), on(server, true)]);
    [("memory".to_owned(), Bench::memory())].into_iter().chain(shared).collect()
}

pub(crate) fn everywhere(test: impl Fn(&mut Bench, &str, &Rate)) {
    let servers = Software::ALL.map(Software::start);
    for (which, mut bench) in benches(&servers) {
        for (name, rate) in strategies() {
            test(&mut bench, &format!("{which}, {name}"), &rate);
        }
    }
    assert!(servers.iter().all(|server| server.commands() > 0), "a server was never asked");
}

#[test]
fn a_burst_gets_what_is_allowed_and_is_told_what_remains() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("burst", std::slice::from_ref(rate)), bench.key());
        for left in (0..10).rev() {
            let verdict = bench.one(&limit, key, 1, 0);
            assert_eq!((verdict.admitted, verdict.remaining), (true, left), "{name}");
        }
        assert_eq!(bench.burst(&limit, key, 20, 0), 0, "{name}");
        let other = bench.key();
        assert_eq!(bench.burst(&limit, other, 20, 0), 10, "{name}: another key");
    });
}

#[test]
fn the_wait_of_a_refusal_is_exact() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("wait", std::slice::from_ref(rate)), bench.key());
        // In two lots, so that the strategies differ in what leaves first.
        let lots = [(0, 6), (20 * SECOND + 7, 4)];
        for (at, count) in lots {
            assert_eq!(bench.burst(&limit, key, count, at), count, "{name}");
        }
        let mut now = lots[1].0;
        // A bucket has filled by three meanwhile.
        bench.burst(&limit, key, 4, now);
        for cost in [1, 3] {
            let refused = bench.one(&limit, key, cost, now);
            assert!(!refused.admitted, "{name}: {refused:?}");
            let wait = refused.wait.unwrap();
            assert!(!bench.one(&limit, key, cost, now + wait - 1).admitted, "{name}: a microsecond early");
            assert!(bench.one(&limit, key, cost, now + wait).admitted, "{name}: in time");
            now += wait;
            bench.burst(&limit, key, 10, now);
        }
        assert_eq!(bench.one(&limit, key, 11, now).wait, None, "{name}: eleven never fit");
    });
}

#[test]
fn costs_are_charged_in_full_or_not_at_all() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("cost", std::slice::from_ref(rate)), bench.key());
        let admitted: Vec<bool> = [4, 4, 4, 3, 2, 1].map(|cost| bench.one(&limit, key, cost, 0).admitted).to_vec();
        assert_eq!(admitted, [true, true, false, false, true, false], "{name}");
    });
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    everywhere(|bench, name, rate| {
        let (wide, narrow) = (limit("wide", std::slice::from_ref(rate)), limit("narrow", &["3/m".parse().unwrap()]));
        let (a, b) = (bench.key(), bench.key());
        let both = [Ask::new(&wide, a, 1), Ask { place: 1, ..Ask::new(&narrow, b, 1) }];
        let passed = (0..9).filter(|_| bench.decide(&both, 0).iter().all(|verdict| verdict.admitted)).count();
        assert_eq!(passed, 3, "{name}");
        assert_eq!(bench.burst(&wide, a, 20, 0), 7, "{name}: refusals were not charged");
    });
}

#[test]
fn what_only_reports_stops_nobody_and_is_charged_as_if_it_did() {
    everywhere(|bench, name, rate| {
        let (real, trial) = (limit("real", &["20/m".parse().unwrap()]), limit("trial", std::slice::from_ref(rate)));
        let (a, b) = (bench.key(), bench.key());
        let both = [Ask::new(&real, a, 1), Ask { role: Role::Reports, ..Ask::new(&trial, b, 1) }];
        let verdicts: Vec<_> = (0..30).map(|_| bench.decide(&both, 0)).collect();
        let admitted = |place: usize| verdicts.iter().filter(|verdicts| verdicts[place].admitted).count();
        assert_eq!((admitted(0), admitted(1)), (20, 10), "{name}");
        assert_eq!(bench.burst(&trial, b, 5, 0), 0, "{name}: what it admitted was charged");
    });
}

#[test]
fn what_is_charged_afterwards_may_pass_the_quota_and_the_next_wait() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("after", std::slice::from_ref(rate)), bench.key());
        let look = Ask { cost: 0, ..Ask::new(&limit, key, 1) };
        for _ in 0..3 {
            assert_eq!(bench.decide(&[look], 0)[0].remaining, 10, "{name}: looking is free");
        }
        let reserved = bench.reserve(&limit, key, 1, 0).unwrap();
        assert_eq!(bench.settle(reserved, 25, 0).remaining, 0, "{name}");
        let refused = bench.decide(&[look], 0)[0];
        assert_eq!((refused.admitted, refused.remaining), (false, 0), "{name}");
        let wait = refused.wait.unwrap();
        assert!(!bench.decide(&[look], wait - 1)[0].admitted, "{name}");
        assert!(bench.decide(&[look], wait)[0].admitted, "{name}");
    });
}

#[test]
fn what_is_reserved_counts_until_it_is_given_back() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("reserved", std::slice::from_ref(rate)), bench.key());
        let reserved: Vec<_> = (0..30).filter_map(|_| bench.reserve(&limit, key, 1, 0)).collect();
        assert_eq!(reserved.len(), 10, "{name}: side by side no more pass than may cost something");
        for (remaining, reserved) in (1..).zip(reserved) {
            let told = bench.settle(reserved, 0, 0);
            // The server is not asked: the answer is from the time of the reservation.
            assert!((1..=remaining).contains(&told.remaining), "{name}: {told:?}");
        }
        for _ in 0..30 {
            let reserved = bench.reserve(&limit, key, 1, 0).expect(name);
            bench.settle(reserved, 0, 0);
        }
        let look = Ask { cost: 0, ..Ask::new(&limit, key, 1) };
        assert_eq!(bench.decide(&[look], 0)[0].remaining, 10, "{name}: nothing is left of them");
    });
}

#[test]
fn what_is_reserved_is_given_back_where_it_was_counted() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("turn", std::slice::from_ref(rate)), bench.key());
        let of = |cost| bench.reserve(&limit, key, cost, 59 * SECOND).unwrap();
        let (kept, partly, given) = (of(4), of(3), of(3));
        assert!(bench.reserve(&limit, key, 1, 59 * SECOND).is_none(), "{name}");
        // Another minute has begun, and a sliding window still counts the last one in full.
        let (now, day) = (60 * SECOND, 86_400 * SECOND);
        bench.settle(kept, 4, now);
        bench.settle(partly, 1, now);
        bench.settle(given, 0, now);
        let left = |now| bench.decide(&[Ask { cost: 0, ..Ask::new(&limit, key, 1) }], now)[0].remaining;
        // A sixth of a token has come back in the second.
        assert_eq!(left(now), 5, "{name}");
        assert_eq!(left(now + rate.memory() + day), 10, "{name}");
        bench.burst(&limit, key, 1, now + rate.memory() + day);
        assert_eq!(left(now + rate.memory() + day), 9, "{name}: nothing of it is taken from later ones");
    });
}

#[test]
fn what_is_given_back_after_its_time_is_taken_from_nobody() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("late", std::slice::from_ref(rate)), bench.key());
        let reserved = bench.reserve(&limit, key, 5, 0).unwrap();
        let late = rate.memory();
        assert_eq!(bench.burst(&limit, key, 20, late), 10, "{name}");
        bench.settle(reserved, 0, late);
        assert_eq!(bench.burst(&limit, key, 20, late), 0, "{name}");
    });
}

#[test]
fn idle_keys_begin_anew() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("idle", std::slice::from_ref(rate)), bench.key());
        assert_eq!(bench.burst(&limit, key, 20, 0), 10, "{name}");
        assert_eq!(bench.burst(&limit, key, 20, rate.memory()), 10, "{name}");
        assert_eq!(bench.burst(&limit, key, 20, 5 * rate.memory() + SECOND), 10, "{name}");
    });
}

#[test]
fn a_raised_quota_holds_at_once_and_keeps_the_count() {
    everywhere(|bench, name, rate| {
        let key = bench.key();
        assert_eq!(bench.burst(&limit("raised", std::slice::from_ref(rate)), key, 20, 0), 10, "{name}");
        let strategy = match rate.strategy() {
            Strategy::TokenBucket { .. } => Strategy::TokenBucket { burst: 15 },
            other => other.clone(),
        };
        let higher = Rate::new(15, Duration::from_secs(60)).unwrap().with_strategy(strategy).unwrap();
        assert_eq!(bench.burst(&limit("raised", &[higher]), key, 20, 0), 5, "{name}");
    });
}

#[test]
fn many_rates_of_many_kinds_hold_together() {
    everywhere(|bench, name, rate| {
        let few = "4/s".parse::<Rate>().unwrap().with_strategy(Strategy::default()).unwrap();
        let month = "12/month".parse::<Rate>().unwrap();
        let (limit, key) = (limit("mixed", &[few, rate.clone(), month]), bench.key());
        let admitted: usize = (0..10).map(|second| bench.burst(&limit, key, 9, second * 3 * SECOND)).sum();
        // Within half a minute a bucket gives back what it can; of the month there is never more.
        let most = if matches!(rate.strategy(), Strategy::TokenBucket { .. }) { 12 } else { 10 };
        assert_eq!(admitted, most, "{name}");
    });
}

#[test]
fn a_burst_from_many_threads_gets_exactly_what_is_allowed() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("threads", std::slice::from_ref(rate)), bench.key());
        let bench = &*bench;
        let admitted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.burst(&limit, key, 50, 0))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 10, "{name}");
    });
}

/// Runs the test with so many gateways on one server of each kind, for each strategy.
fn together<const GATEWAYS: usize>(strict: bool, test: impl Fn(&[Bench; GATEWAYS], &str, &Rate)) {
    for software in Software::ALL {
        let server = software.start();
        let benches = [(); GATEWAYS].map(|()| Bench::on(&server, strict));
        strategies().iter().for_each(|(name, rate)| test(&benches, &format!("{software:?}, {name}"), rate));
    }
}

#[test]
fn gateways_on_one_server_lose_nothing_of_each_other() {
    together::<2>(false, |benches, name, rate| {
        let rate = raised(rate, 500);
        let (limit, key) = (limit("shared", &[rate]), Fingerprint::of(name.as_bytes()));
        let admitted: usize = thread::scope(|scope| {
            let burst = |at: usize| benches[at % 2].burst(&limit, key, 100, 0);
            let threads: Vec<_> = (0..4).map(|at| scope.spawn(move || burst(at))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 400, "{name}: there was room for all");
        // All simultaneous writes are there in the end.
        for bench in benches {
            let look = Ask { cost: 0, ..Ask::new(&limit, key, 1) };
            let remaining = || bench.decide(&[look], 0)[0].remaining;
            until(&format!("{name}: all is counted"), Duration::from_secs(20), || remaining() == 100);
        }
    });
}

#[test]
fn strict_gateways_admit_together_what_one_would() {
    together::<3>(true, |benches, name, rate| {
        let limits = [limit("strict", &[raised(rate, 100)]), limit("wider", &["110/h".parse().unwrap()])];
        let keys = [name, "all"].map(|key| Fingerprint::of(format!("{name} {key}").as_bytes()));
        let both = [Ask::new(&limits[0], keys[0], 1), Ask { place: 1, ..Ask::new(&limits[1], keys[1], 1) }];
        let burst = |at: usize, asks: &[Ask<'_>]| {
            let admitted = |_: &usize| benches[at % 3].decide(asks, 0).iter().all(|verdict| verdict.admitted);
            (0..60).filter(admitted).count()
        };
        let admitted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|at| scope.spawn(move || burst(at, &both))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 100, "{name}");
        // Claims without success have been given back.
        until(&format!("{name}: the wider limit has room for the rest"), Duration::from_secs(20), || {
            let look = Ask { cost: 0, ..Ask::new(&limits[1], keys[1], 1) };
            benches[0].decide(&[look], 0)[0].remaining == 10
        });
    });
}

pub(crate) fn raised(rate: &Rate, quota: u64) -> Rate {
    let strategy = match rate.strategy() {
        Strategy::TokenBucket { .. } => Strategy::TokenBucket { burst: quota },
        other => other.clone(),
    };
    Rate::new(quota, rate.window()).unwrap().with_strategy(strategy).unwrap()
}

fn both(rate: &str, strategy: Strategy, test: impl Fn(&Bench, &Arc<Limit>, Fingerprint)) {
    let servers = Software::ALL.map(Software::start);
    let rate = rate.parse::<Rate>().unwrap().with_strategy(strategy).unwrap();
    for (_, mut bench) in benches(&servers) {
        let key = bench.key();
        test(&bench, &limit("published", std::slice::from_ref(&rate)), key);
    }
}

/// Makes the counts of an example, whatever their history.
fn count(bench: &Bench, limit: &Arc<Limit>, key: Fingerprint, cost: u64, second: u64) {
    let reserved = bench.reserve(limit, key, 1, second * SECOND).unwrap();
    bench.settle(reserved, cost, second * SECOND);
    // Exchanges with a server have one moment: this lets it arrive before the next.
    bench.decide(&[Ask { cost: 0, ..Ask::new(limit, key, 1) }], second * SECOND);
}

#[test]
fn the_published_examples_of_the_sliding_window() {
    both("500/m", Strategy::default(), |bench, limit, key| {
        count(bench, limit, key, 400, 30);
        count(bench, limit, key, 250, 60);
        // Estimated at 350, and one more.
        let verdict = bench.one(limit, key, 1, 105 * SECOND);
        assert_eq!((verdict.admitted, verdict.remaining), (true, 149));
    });
    both("100/m", Strategy::default(), |bench, limit, key| {
        count(bench, limit, key, 40, 30);
        count(bench, limit, key, 80, 60);
        assert!(!bench.one(limit, key, 1, 90 * SECOND).admitted);
        let verdict = bench.one(limit, key, 1, 100 * SECOND);
        assert_eq!((verdict.admitted, verdict.remaining), (true, 6), "floor(93.3) and one more");
    });
}

#[test]
fn the_published_examples_of_the_exact_windows() {
    both("10/m", Strategy::SlidingLog, |bench, limit, key| {
        for (second, requests) in [(10, 1), (20, 2), (30, 4), (50, 3), (71, 1)] {
            assert_eq!(bench.burst(limit, key, requests, second * SECOND), requests, "at {second}");
        }
        assert!(!bench.one(limit, key, 1, 72 * SECOND).admitted);
    });
    both("10/m", Strategy::FixedWindow, |bench, limit, key| {
        assert_eq!(bench.burst(limit, key, 4, 45 * SECOND), 4);
        assert_eq!(bench.burst(limit, key, 20, 75 * SECOND), 6, "everything until 1:45 counts together");
        assert_eq!(bench.burst(limit, key, 20, 105 * SECOND - 1), 0);
        assert_eq!(bench.burst(limit, key, 20, 105 * SECOND), 10, "a new window starts at 1:45");
    });
}
