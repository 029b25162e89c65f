//! An operator looks at a key or resets it, in every store. The shown counts are those that decide, and a reset holds
//! at every gateway, whatever the others know.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::base::fingerprint::Fingerprint;
use gateway::config::OnError;
use gateway::limit::{Limit, Rate, RateUsage};
use gateway::store::Away;
use rustix::process::Signal;

use crate::harness::{Software, until, with_each_server};
use crate::stores::{Bench, SECOND, everywhere, limit, raised, strategies};

/// How long a gateway refuses from memory, without asking whether the key was reset.
const RECHECK: u64 = 5 * SECOND;
const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_key_shows_what_is_decided_by_and_is_charged_nothing() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("shown", from_ref(rate)), bench.key());
        let shown = |at| bench.peek(&limit, key, at).unwrap().rates[0];
        let unused = RateUsage { capacity: 10, used: 0, remaining: 10, wait: None };
        for _ in 0..3 {
            assert_eq!(shown(0), unused, "{name}");
        }
        assert_eq!(bench.burst(&limit, key, 4, 0), 4, "{name}");
        for _ in 0..3 {
            assert_eq!((shown(0).used, shown(0).remaining), (4, 6), "{name}");
        }
        let verdict = bench.one(&limit, key, 1, 0);
        assert_eq!((shown(0).remaining, shown(0).wait), (verdict.remaining, verdict.wait), "{name}");
        assert_eq!(bench.burst(&limit, key, 20, 0), 5, "{name}");
        let refused = bench.one(&limit, key, 1, SECOND);
        assert_eq!((shown(SECOND).remaining, shown(SECOND).wait), (0, refused.wait), "{name}");
        assert_eq!(shown(5 * rate.memory()), unused, "{name}: nothing of it is left then");
    });
}

#[test]
fn every_rate_of_a_limit_is_shown() {
    everywhere(|bench, name, rate| {
        let rates = [raised(rate, 7), "100/h".parse().unwrap(), "30/month".parse().unwrap()];
        let (limit, key) = (limit("rates", &rates), bench.key());
        bench.burst(&limit, key, 5, 0);
        let usage = bench.peek(&limit, key, 0).unwrap();
        let shown: Vec<_> = usage.rates.iter().map(|rate| (rate.capacity, rate.used, rate.remaining)).collect();
        assert_eq!(shown, [(7, 5, 2), (100, 5, 95), (30, 5, 25)], "{name}");
        assert_eq!(usage.limit, limit, "{name}");
    });
}

#[test]
fn a_key_that_is_reset_begins_anew() {
    everywhere(|bench, name, rate| {
        let (limit, key, other) = (limit("reset", from_ref(rate)), bench.key(), bench.key());
        bench.reset(&limit, other, 0).unwrap();
        assert_eq!(bench.burst(&limit, other, 3, 0), 3, "{name}");
        for _ in 0..3 {
            assert_eq!(bench.burst(&limit, key, 20, 0), 10, "{name}");
            bench.reset(&limit, key, 0).unwrap();
            assert_eq!(bench.used(&limit, key, 0), 0, "{name}");
        }
        // Twice. What is left in this bucket is left for the next one, too.
        bench.reset(&limit, key, 0).unwrap();
        assert_eq!(bench.burst(&limit, key, 4, 59 * SECOND), 4, "{name}");
        bench.reset(&limit, key, 60 * SECOND).unwrap();
        assert_eq!(bench.burst(&limit, key, 20, 60 * SECOND), 10, "{name}: of the bucket before nothing is left");
        assert_eq!(bench.used(&limit, other, 0), 3, "{name}: another key");
    });
}

#[test]
fn what_was_reserved_before_a_reset_is_taken_from_nobody() {
    everywhere(|bench, name, rate| {
        let (limit, key) = (limit("open", from_ref(rate)), bench.key());
        let [given, costly] = [4, 2].map(|cost| bench.reserve(&limit, key, cost, 0).unwrap());
        bench.reset(&limit, key, 0).unwrap();
        assert_eq!(bench.burst(&limit, key, 3, 0), 3, "{name}");
        bench.settle(given, 0, 0);
        assert_eq!(bench.used(&limit, key, 0), 3, "{name}: they came after the reset");
        bench.settle(costly, 5, 0);
        assert_eq!(bench.used(&limit, key, 0), 6, "{name}: what it cost beyond is charged");
        assert_eq!(bench.burst(&limit, key, 20, 0), 4, "{name}");
    });
}

/// For every strategy, with several gateways on one server, with and without `strict`.
fn together<const GATEWAYS: usize>(
    software: Software,
    test: impl Fn([&Bench; GATEWAYS], &Arc<Limit>, Fingerprint, &str),
) {
    let server = software.start();
    for strict in [false, true] {
        let benches = [(); GATEWAYS].map(|()| Bench::on(&server, strict));
        for (name, rate) in strategies() {
            let (limit, key) = (limit("together", &[rate]), Fingerprint::of(name.as_bytes()));
            test(benches.each_ref(), &limit, key, &format!("{name}, strict: {strict}"));
        }
    }
}

#[track_caller]
fn all_show(benches: &[&Bench], limit: &Arc<Limit>, key: Fingerprint, used: u64, name: &str) {
    for bench in benches {
        until(&format!("{name}: {used} are used"), LONG, || bench.used(limit, key, 0) == used);
    }
    for bench in benches {
        assert_eq!(bench.used(limit, key, 0), used, "{name}");
    }
}

fn who_knows_the_count_does_not_write_it_again_after_a_reset(software: Software) {
    together(software, |[a, b, c], limit, key, name| {
        assert_eq!(
            (a.burst(limit, key, 3, 0), b.burst(limit, key, 3, 0), c.burst(limit, key, 1, 0)),
            (3, 3, 1),
            "{name}"
        );
        all_show(&[a, b, c], limit, key, 7, name);
        a.reset(limit, key, 0).unwrap();
        // One gateway looks at the key first, and the other writes at once.
        assert_eq!(b.used(limit, key, 0), 0, "{name}");
        assert_eq!(c.burst(limit, key, 1, 0), 1, "{name}");
        all_show(&[a, b, c], limit, key, 1, name);
        assert_eq!((b.burst(limit, key, 2, 0), a.burst(limit, key, 2, 0)), (2, 2), "{name}");
        all_show(&[c, b, a], limit, key, 5, name);
        // Another gateway resets before the others have heard of anything.
        c.reset(limit, key, 0).unwrap();
        assert_eq!((a.burst(limit, key, 1, 0), b.burst(limit, key, 1, 0)), (1, 1), "{name}");
        all_show(&[a, b, c], limit, key, 2, name);
    });
}

fn a_reset_by_another_gateway_ends_a_refusal_that_is_remembered(software: Software) {
    together(software, |[a, b], limit, key, name| {
        assert_eq!((a.burst(limit, key, 5, 0), b.burst(limit, key, 5, 0)), (5, 5), "{name}");
        all_show(&[a, b], limit, key, 10, name);
        assert!(!b.one(limit, key, 1, 0).admitted, "{name}");
        a.reset(limit, key, 0).unwrap();
        assert_eq!(a.burst(limit, key, 3, 0), 3, "{name}");
        all_show(&[a], limit, key, 3, name);
        // By then a bucket has drained by less than one.
        assert_eq!(b.burst(limit, key, 20, RECHECK), 7, "{name}");
        // The last admissions may be written after the answer, and an earlier reading answers for a moment.
        until(&format!("{name}: all 10 are used"), LONG, || a.used(limit, key, RECHECK) == 10);
        assert_eq!(a.burst(limit, key, 20, RECHECK), 0, "{name}");
    });
}

fn what_one_gateway_reserved_before_another_reset_is_taken_from_nobody(software: Software) {
    together(software, |[a, b], limit, key, name| {
        let reserved = b.reserve(limit, key, 4, 0).unwrap();
        all_show(&[a, b], limit, key, 4, name);
        a.reset(limit, key, 0).unwrap();
        assert_eq!(a.burst(limit, key, 3, 0), 3, "{name}");
        all_show(&[a, b], limit, key, 3, name);
        // It has seen the reset.
        b.settle(reserved, 0, 0);
        all_show(&[a, b], limit, key, 3, name);
    });
}

fn who_looks_at_a_key_remembers_no_refusal(software: Software) {
    together(software, |[a, b], limit, key, name| {
        assert_eq!(a.burst(limit, key, 10, 0), 10, "{name}");
        all_show(&[a, b], limit, key, 10, name);
        a.reset(limit, key, 0).unwrap();
        assert_eq!(b.burst(limit, key, 1, 0), 1, "{name}");
    });
}

fn a_flood_of_refusals_asks_now_and_then_whether_the_key_was_reset(software: Software) {
    let server = software.start();
    let bench = Bench::on(&server, false);
    for (name, rate) in strategies() {
        // In an hour, so that no token comes back meanwhile.
        let hourly = Rate::new(10, Duration::from_hours(1)).unwrap().with_strategy(rate.strategy().clone());
        let (limit, key) = (limit("flood", &[hourly.unwrap_or(rate)]), Fingerprint::of(name.as_bytes()));
        assert_eq!(bench.burst(&limit, key, 20, 0), 10, "{name}");
        all_show(&[&bench], &limit, key, 10, name);
        for round in 1..=4 {
            let before = server.commands();
            assert_eq!(bench.burst(&limit, key, 1, round * RECHECK), 0, "{name}");
            let asked = server.commands();
            assert!(asked > before, "{name}: nothing was asked in round {round}");
            assert_eq!(bench.burst(&limit, key, 500, (round + 1) * RECHECK - 1), 0, "{name}");
            assert_eq!(server.commands(), asked, "{name}: round {round}");
        }
    }
}

fn nothing_is_shown_or_reset_while_the_server_is_away(software: Software) {
    for on_error in [OnError::Local, OnError::Allow, OnError::Reject] {
        let mut server = software.start();
        let bench = Bench::with(&server, false, on_error);
        let (limit, key) = (limit("away", &["10/d".parse().unwrap()]), Fingerprint::of(b"k"));
        assert_eq!(bench.burst(&limit, key, 4, 0), 4);
        until("it is counted", LONG, || server.items() == 1);
        server.kill();
        until("it is away", LONG, || bench.peek(&limit, key, 0) == Err(Away));
        assert_eq!(bench.reset(&limit, key, 0), Err(Away), "{on_error:?}");
        server.restart();
        until("it is back", LONG, || bench.peek(&limit, key, 0).is_ok());
        assert_eq!(bench.used(&limit, key, 0), 4, "{on_error:?}: nothing was reset, and what was lost is known");
        bench.reset(&limit, key, 0).unwrap();
        assert_eq!(bench.burst(&limit, key, 20, 0), 10, "{on_error:?}");
    }
}

fn who_was_refused_stays_refused_while_nobody_can_be_asked(software: Software) {
    for on_error in [OnError::Local, OnError::Allow, OnError::Reject] {
        let mut server = software.start();
        let bench = Bench::with(&server, false, on_error);
        let (limit, key) = (limit("refused", &["10/d".parse().unwrap()]), Fingerprint::of(b"k"));
        assert_eq!(bench.burst(&limit, key, 20, 0), 10);
        server.kill();
        until("it is away", LONG, || bench.peek(&limit, key, 0) == Err(Away));
        assert!(!bench.one(&limit, key, 1, 3 * RECHECK).admitted, "{on_error:?}");
    }
}

fn who_asks_a_server_that_is_frozen_is_told(software: Software) {
    let server = software.start();
    let bench = Bench::on(&server, false);
    let (limit, key) = (limit("frozen", &["10/d".parse().unwrap()]), Fingerprint::of(b"k"));
    assert_eq!(bench.burst(&limit, key, 4, 0), 4);
    server.signal(Signal::STOP);
    let begun = Instant::now();
    assert_eq!(bench.peek(&limit, key, 0), Err(Away));
    assert_eq!(bench.reset(&limit, key, 0), Err(Away));
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    server.signal(Signal::CONT);
    until("it answers again", LONG, || bench.reset(&limit, key, 0).is_ok());
    assert_eq!(bench.burst(&limit, key, 20, 0), 10);
}

with_each_server! {
    who_knows_the_count_does_not_write_it_again_after_a_reset
    a_reset_by_another_gateway_ends_a_refusal_that_is_remembered
    what_one_gateway_reserved_before_another_reset_is_taken_from_nobody
    who_looks_at_a_key_remembers_no_refusal
    a_flood_of_refusals_asks_now_and_then_whether_the_key_was_reset
    nothing_is_shown_or_reset_while_the_server_is_away
    who_was_refused_stays_refused_while_nobody_can_be_asked
    who_asks_a_server_that_is_frozen_is_told
}
