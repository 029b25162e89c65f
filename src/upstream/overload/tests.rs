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

/// A server without a queue, in steps of 100 ms.
struct Steady {
    gradient: GradientLimit,
    millis: u64,
}

impl Steady {
    const BOUNDS: AdaptiveBounds = AdaptiveBounds { min: 4, max: 1000 };

    fn new() -> Self {
        Self { gradient: GradientLimit::default(), millis: 0 }
    }

    /// `wanted` requests are in flight, or as many as the limit allows. The clients of `groups` groups share them, and each
    /// takes `takes` milliseconds. Once in each second, another client has some responses that have taken so many
    /// milliseconds each. Returns the limits of these `seconds`.
    fn serve(&mut self, seconds: u64, (wanted, groups, takes): (u64, u64, u64), other: (u64, u64)) -> Vec<usize> {
        let step = |_| {
            self.millis += 100;
            let mut samples = [Sample::default(); 64];
            let longest = self.gradient.longest();
            let mut add = |group: u64, millis: u64| {
                let sample = &mut samples[usize::try_from(group).unwrap()];
                *sample = sample.and(Sample { responses: 1, micros: (millis * 1000).min(longest) });
            };
            let in_flight = self.gradient.limit(Self::BOUNDS).min(usize::try_from(wanted).unwrap());
            let until = |millis: u64| in_flight as u64 * millis / takes;
            (until(self.millis - 100)..until(self.millis)).for_each(|response| add(response % groups, takes));
            if self.millis % 1000 == 900 {
                (0..other.0).for_each(|_| add(63, other.1));
            }
            let now = Monotonic::from_micros(self.millis * 1000);
            self.gradient.observe(&samples, in_flight, Self::BOUNDS, now);
            self.gradient.limit(Self::BOUNDS)
        };
        (0..seconds * 10).map(step).collect()
    }
}

#[test]
fn a_limit_follows_a_server_that_gets_slower_or_faster_without_a_queue() {
    for (groups, before, after) in [(1, 5, 50), (1, 5, 500), (40, 5, 500), (40, 500, 5)] {
        let mut server = Steady::new();
        let limits = server.serve(60, (1000, groups, before), (0, 0));
        assert!(limits.is_sorted_by(|one, next| next * 2 >= *one) && limits[599] > 500, "{limits:?}");
        let limits = server.serve(60, (1000, groups, after), (0, 0));
        assert!(limits[599] > 300, "it is measured again: {limits:?}");
        assert!(after < before || *limits.iter().min().unwrap() < 300, "it looks like a queue at first: {limits:?}");
        assert_eq!(server.gradient.longest(), after * 3000);
    }
    let mut server = Steady::new();
    server.serve(30, (1000, 40, 5), (0, 0));
    server.serve(20, (1000, 40, 10_000), (0, 0));
    let limits = server.serve(20, (1000, 40, 50), (0, 0));
    assert!(limits[199] > 300, "too few responses came for a probe: {limits:?}");
}

#[test]
fn a_client_with_slow_requests_does_not_lower_the_limit() {
    for (others, slow) in [((1, 3, 20), (4, 2500)), ((8, 7, 20), (4, 2500)), ((1, 7, 20), (100, 100))] {
        let mut server = Steady::new();
        server.serve(30, others, (0, 0));
        let limits = server.serve(60, others, slow);
        // A probe lowers it for a moment.
        let (lowest, highest) = (limits.iter().min().unwrap(), limits.iter().max().unwrap());
        assert!(*lowest >= 8 && *highest <= 100, "{others:?} {slow:?}: {limits:?}");
    }
}

#[test]
fn a_client_with_fast_requests_does_not_lower_the_limit() {
    for (others, fast) in [((16, 16, 100), 48), ((16, 16, 100), 100), ((16, 16, 1000), 100), ((8, 5, 2000), 100)] {
        let mut server = Steady::new();
        server.serve(30, others, (0, 0));
        let limits = [server.serve(60, others, (fast, 1)), server.serve(60, others, (0, 0))].concat();
        let lowest = limits.iter().min().unwrap();
        assert!(*lowest >= 8, "{others:?} {fast}: {limits:?}");
        // No others come at night.
        server.serve(100, (0, 1, 1), (fast, 1));
        let limits = server.serve(20, others, (0, 0));
        assert!(limits[100..].iter().all(|limit| *limit >= 16), "it is measured again: {limits:?}");
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
    // `fast` requests per second take 20 ms each, and `slow` requests of 10 s each wait all the time. First, the upstream
    // answers nothing in `hung` windows, after which shedding has to end.
    let loads = [(100.0, 1.0), (100.0, 4.0), (300.0, 10.0), (1000.0, 40.0), (5000.0, 40.0)];
    for ((fast, slow), hung) in loads.into_iter().flat_map(|load| [(load, 0), (load, 8), (load, 20)]) {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut admission, mut rate) = (Admission::default(), None);
        let (mut arrived, mut admitted) = (0.0, 0.0);
        for step in 0..400 {
            let now = (fast / 4.0 * (0.5 + random.f64())).round();
            let passed = rate.map_or(now, |rate: f64| (rate / 4.0).min(now));
            if step >= hung * 10 {
                (arrived, admitted) = (arrived + now, admitted + passed);
            }
            let (slow_ended, fast_waiting) = (slow / 40.0, passed * 0.08);
            let mut window = Window {
                seconds: 0.25,
                arrived: now + slow_ended,
                admitted: passed + slow_ended,
                answered: passed + slow_ended,
                ended: (passed + slow_ended, passed * 0.02 + slow_ended * 10.0),
                waiting: (slow + fast_waiting, slow * 5.0 + fast_waiting * 0.01),
                full: 0.0,
            };
            if (1..=hung).contains(&step) {
                window = Window { answered: 0.0, ended: (0.0, 0.0), waiting: (fast, fast), ..window };
            }
            rate = admission.observe_upstream(&window, Some(0.2));
        }
        assert!(admitted > arrived * 0.99, "{fast} {slow} {hung}: {}", admitted / arrived);
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
