//! What clients get of a server that is offered more than it can serve, with and without overload control.
//!
//! All numbers come from a fixed seed, so every run gives the same. `cargo test --lib overload::tests -- --nocapture` prints
//! those in docs/overload.md.

mod simulation;

use std::net::IpAddr;

use proptest::prelude::*;

use super::gradient::{GradientLimit, Sample};
use super::{Admission, GROUPS, Level, RANKS, Window, rank};
use crate::base::clock::Monotonic;
use crate::config::AdaptiveBounds;
use simulation::{Control, Load, Results, run};

fn results(name: &str, control: Control, load: Load) -> Results {
    let results = run(control, load, 120);
    println!(
        "{name:<18} load {:>3} retries {}  goodput {:>5.1} %  high {:>5.1} %  mean {:>5.1} ms  limit up to {}",
        load.multiple(),
        load.retries,
        results.goodput() * 100.0,
        results.high() * 100.0,
        results.mean_latency() * 1000.0,
        results.limit,
    );
    results
}

fn all_overloads() -> [Load; 4] {
    [Load::ABANDON.of(2.0), Load::ABANDON.of(5.0), Load::RETRY.of(2.0), Load::RETRY.of(5.0)]
}

#[test]
fn without_control_nobody_is_served_in_time() {
    for load in all_overloads() {
        let none = results("none", Control::NONE, load);
        assert!(none.goodput() < 0.05 && none.high() < 0.05, "{none:?}");
    }
}

#[test]
fn shedding_holds_the_goodput_and_serves_the_important() {
    for load in all_overloads() {
        let shed = results("shed", Control::SHED, load);
        assert!(shed.goodput() > 0.95 && shed.high() > 0.98, "{shed:?}");
        assert!(shed.mean_latency() < 0.25, "{shed:?}");
    }
}

#[test]
fn an_adaptive_limit_holds_the_goodput_and_the_latency() {
    for load in all_overloads() {
        let adaptive = results("adaptive", Control::ADAPTIVE, load);
        assert!(adaptive.goodput() > 0.95, "{adaptive:?}");
        // A response takes 20 ms without a queue.
        assert!(adaptive.mean_latency() < 0.06 && adaptive.limit < 60, "{adaptive:?}");
        assert!(adaptive.high() < 0.6, "it does not know priorities: {adaptive:?}");
    }
}

#[test]
fn both_together_serve_the_important_best_with_a_queue() {
    for load in all_overloads() {
        let both = results("both", Control::BOTH, load);
        assert!(both.goodput() > 0.8 && both.high() > 0.85, "{both:?}");
        let queue = results("both with a queue", Control::WITH_QUEUE, load);
        assert!(queue.goodput() > 0.95 && queue.high() > 0.98, "{queue:?}");
    }
}

#[test]
fn without_overload_nearly_nothing_is_refused() {
    for (name, control, least) in [
        ("none", Control::NONE, 0.99),
        ("shed", Control::SHED, 0.99),
        ("adaptive", Control::ADAPTIVE, 0.97),
        ("both with a queue", Control::WITH_QUEUE, 0.99),
    ] {
        let calm = results(name, control, Load::ABANDON.of(0.8));
        assert!(calm.goodput() / 0.8 > least, "{name}: {calm:?}");
    }
}

#[test]
fn a_limit_does_not_drift_while_an_overload_lasts() {
    let short = run(Control::ADAPTIVE, Load::ABANDON.of(5.0), 60);
    let long = run(Control::ADAPTIVE, Load::ABANDON.of(5.0), 900);
    assert!(long.limit < short.limit * 2 && long.mean_latency() < 0.06, "{short:?} {long:?}");
}

#[test]
fn a_limit_follows_a_server_that_gets_slower_without_a_queue() {
    let bounds = AdaptiveBounds { min: 1, max: 1000 };
    let mut gradient = GradientLimit::default();
    // A server without a queue that always has as many requests as the limit allows.
    let mut limits = |millis: u64, from: u64| {
        let limit = |tick: u64| {
            let in_flight = gradient.limit(bounds);
            let responses = in_flight as u64 * 100 / millis;
            let now = Monotonic::from_micros((from + tick) * 100_000);
            let (micros, cut) = (responses * millis * 1000, responses * (millis * 1000).min(gradient.longest()));
            gradient.observe(Sample { responses, micros, cut }, in_flight, bounds, now);
            gradient.limit(bounds)
        };
        (0..200).map(limit).collect::<Vec<_>>()
    };
    let fast = limits(5, 0);
    assert!(fast.is_sorted_by(|one, next| next * 2 >= *one) && fast[199] > 500, "{fast:?}");
    let slow = limits(50, 200);
    assert!(*slow.iter().min().unwrap() < 100, "it looks like a queue at first: {slow:?}");
    assert!(slow[199] > 300, "it is measured again: {slow:?}");
}

#[test]
fn a_client_with_slow_requests_does_not_lower_the_limit() {
    let bounds = AdaptiveBounds { min: 4, max: 1000 };
    // Requests of others take 2 ms, and those of one client 2.5 s, for a minute.
    for (others, slow) in [(30, 4), (30, 8), (130, 16)] {
        let mut gradient = GradientLimit::default();
        let (mut lowest, mut highest) = (usize::MAX, 0);
        gradient.observe(Sample::default(), 0, bounds, Monotonic::from_micros(0));
        for second in 1..90 {
            let slow = if second < 30 { 0 } else { slow };
            let (responses, micros) = (others + slow, others * 2000 + slow * 2_500_000);
            let cut = others * 2000 + slow * 2_500_000.min(gradient.longest());
            let now = Monotonic::from_micros(second * 1_000_000);
            gradient.observe(Sample { responses, micros, cut }, 10, bounds, now);
            if second >= 30 {
                lowest = lowest.min(gradient.limit(bounds));
                highest = highest.max(gradient.limit(bounds));
            }
        }
        assert!(lowest >= 8 && highest <= 20, "{others} {slow}: {lowest} {highest}");
    }
}

#[test]
fn the_processors_are_kept_at_their_share_until_the_overload_ends() {
    let mut admission = Admission::default();
    let mut rate = None;
    // All processors can serve 1000 requests per second, and shedding a request costs a twentieth of serving it.
    let mut used = |arrived: f64| {
        let admitted = rate.map_or(arrived, |rate: f64| rate.min(arrived));
        let used = ((admitted + (arrived - admitted) / 20.0) / 1000.0).min(1.0);
        let window = Window { seconds: 0.25, arrived: arrived / 4.0, admitted: admitted / 4.0, ..Window::default() };
        rate = admission.observe_share(&window, used / 0.9);
        (used, rate)
    };
    let overload: Vec<_> = (0..200).map(|_| used(4000.0).0).collect();
    assert!(overload[40..].iter().all(|used| (0.8..0.95).contains(used)), "{overload:?}");
    let calm: Vec<_> = (0..40).map(|_| used(500.0).1).collect();
    assert!(calm[39].is_none() && calm[10].is_some(), "{calm:?}");
}

#[test]
fn a_window_without_requests_leads_to_no_shedding() {
    let window = |requests: f64| Window { seconds: 0.25, arrived: requests, admitted: requests, ..Window::default() };
    // Other processes have used the processors, and an upstream has not answered some requests, while no others came.
    let mut processors = Admission::default();
    let mut upstream = Admission::default();
    for _ in 0..4 {
        processors.observe_share(&window(0.0), 1.2);
        let hanging = Window { waiting: (4.0, 40.0), ..window(0.0) };
        upstream.observe_upstream(&hanging, Some(1.0));
    }
    assert_eq!(processors.observe_share(&window(10.0), 0.5), None);
    assert_eq!(upstream.observe_upstream(&window(10.0), Some(1.0)), None);

    // Shedding does not outlast the overload's requests.
    assert!(processors.observe_share(&window(10.0), 2.0).is_some());
    for _ in 0..4 {
        processors.observe_share(&window(0.0), 2.0);
    }
    assert!(processors.is_limited());
    for _ in 0..21 {
        processors.observe_share(&window(0.0), 0.5);
    }
    assert!(!processors.is_limited());
}

#[test]
fn a_latency_that_no_response_confirms_is_forgotten() {
    let mut admission = Admission::default();
    let slow = Window {
        seconds: 0.25,
        arrived: 100.0,
        admitted: 100.0,
        answered: 50.0,
        ended: (50.0, 50.0),
        waiting: (50.0, 25.0),
        full: 0.0,
    };
    (0..8).for_each(|_| _ = admission.observe_upstream(&slow, Some(0.2)));
    assert!(admission.is_limited());
    // From now on the server answers with errors, at once, which show no latency.
    let errors = Window { answered: 100.0, ended: (0.0, 0.0), waiting: (0.0, 0.0), ..slow };
    (0..100).for_each(|_| _ = admission.observe_upstream(&errors, Some(0.2)));
    assert!(!admission.is_limited());
}

#[test]
fn a_client_with_slow_requests_does_not_get_others_shed() {
    // `fast` requests per second take 20 ms each, and `slow` requests of 10 s each wait all the time.
    for (fast, slow) in [(100.0, 4.0), (300.0, 10.0), (1000.0, 40.0), (5000.0, 40.0)] {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut admission, mut rate) = (Admission::default(), None);
        let (mut arrived, mut admitted) = (0.0, 0.0);
        for _ in 0..400 {
            let now = (fast / 4.0 * (0.5 + random.f64())).round();
            let passed = rate.map_or(now, |rate: f64| (rate / 4.0).min(now));
            (arrived, admitted) = (arrived + now, admitted + passed);
            let (slow_ended, fast_waiting) = (slow / 40.0, passed * 0.08);
            let window = Window {
                seconds: 0.25,
                arrived: now + slow_ended,
                admitted: passed + slow_ended,
                answered: passed + slow_ended,
                ended: (passed + slow_ended, passed * 0.02 + slow_ended * 10.0),
                waiting: (slow + fast_waiting, slow * 5.0 + fast_waiting * 0.01),
                full: 0.0,
            };
            rate = admission.observe_upstream(&window, Some(0.2));
        }
        assert!(admitted > arrived * 0.99, "{fast} {slow}: {}", admitted / arrived);
    }
}

fn shed(level: Level, rank: usize) -> usize {
    (0..=u8::MAX).filter(|random| !level.admits(rank, || *random)).count()
}

#[test]
fn the_lowest_priorities_are_shed_first() {
    let mut arrived = vec![0.0; RANKS];
    arrived[rank(2, [10, 0, 0, 1].into(), 0)] = 100.0;
    arrived[rank(7, [10, 0, 0, 2].into(), 0)] = 100.0;
    let [low, high] = [rank(2, [10, 0, 0, 1].into(), 0), rank(7, [10, 0, 0, 2].into(), 0)];
    for (admitted, low_shed, high_shed) in
        [(1000.0, 0, 0), (200.0, 0, 0), (150.0, 128, 0), (100.0, 256, 0), (75.0, 256, 64), (0.0, 256, 256)]
    {
        let level = Level::for_share(&arrived, admitted);
        assert_eq!((shed(level, low), shed(level, high)), (low_shed, high_shed), "{admitted}");
    }
    assert_eq!(Level::for_share(&arrived, 200.0), Level::NONE);
}

#[test]
fn clients_are_spread_and_change_their_groups() {
    let mut counts = vec![0; GROUPS];
    let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
    (0..32_000).for_each(|number| counts[rank(0, address(number), 0)] += 1);
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    let moved = (0..1000).filter(|number| rank(0, address(*number), 0) != rank(0, address(*number), 3600)).count();
    assert!(moved > 900, "{moved}");
    assert_eq!(rank(3, address(7), 0), rank(3, address(7), 3599));
    let v6 = |text: &str| rank(9, text.parse().unwrap(), 0);
    assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff"), "one client has a whole network");
    assert!((0..9).any(|net| v6(&format!("2001:db8:{net}::1")) != v6("2001:db8::1")));
}

proptest! {
    #[test]
    fn as_many_pass_as_are_wanted(counts in prop::collection::vec(0u32..1000, RANKS), share in 0.0..1.0f64) {
        let arrived: Vec<_> = counts.iter().map(|count| f64::from(*count)).collect();
        let total: f64 = arrived.iter().sum();
        let level = Level::for_share(&arrived, total * share);
        let passed = |rank: usize| f64::from(u32::try_from(256 - shed(level, rank)).unwrap()) / 256.0;
        let sum: f64 = arrived.iter().enumerate().map(|(rank, count)| count * passed(rank)).sum();
        let rounding = arrived.iter().copied().fold(0.0, f64::max) / 256.0 + 1e-6;
        prop_assert!((sum - total * share).abs() <= rounding, "{sum} of {total} instead of {share}");
        let shares: Vec<_> = (0..RANKS).map(passed).collect();
        prop_assert!(shares.is_sorted(), "a lower rank passes more");
        prop_assert!(level.in_priorities() <= 10.0);
    }
}
