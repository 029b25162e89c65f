//! How exactly two gateways share a rate, with clients that send evenly and too much. This test takes long and needs
//! little CPU; its name makes it the first test, so others run at the same time.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::harness::{Client, Software, align, unix, with_each_server};
use crate::shared::{PATIENT, SECOND, gateways, limited, watched};

const SECONDS: u64 = 30;
const RATE: u64 = 500;
/// The most requests in flight. Each has a charge that others may not have seen yet.
const CONNECTIONS: u32 = 16;
/// If nothing in a second took longer, neither an answer nor a pause of all clients, the machine was free enough for an
/// even pace.
const SHORT: Duration = Duration::from_millis(10);

/// With the times of the request and its answer, by the clock of the counters.
struct Answer {
    sent: Duration,
    came: Duration,
    is_admitted: bool,
}

impl Answer {
    fn is_within(&self, second: u64) -> bool {
        self.sent.as_secs() == second && self.came.as_secs() == second
    }

    fn overlaps(&self, second: u64) -> bool {
        (self.sent.as_secs()..=self.came.as_secs()).contains(&second)
    }
}

/// The first request goes at `next`.
fn paced(mut client: Client, mut next: Instant, pause: Duration, end: Instant) -> Vec<Answer> {
    let mut answers = Vec::new();
    while next.max(Instant::now()) < end {
        sleep(next.saturating_duration_since(Instant::now()));
        let sent = unix();
        let is_admitted = match client.get("/").status {
            200 => true,
            429 => false,
            other => panic!("{other}"),
        };
        answers.push(Answer { sent, came: unix(), is_admitted });
        next += pause;
    }
    answers
}

/// Whether requests came and were answered in all of this second without a longer pause.
fn is_even(answers: &[&Answer], second: u64) -> bool {
    let mut sent: Vec<_> = answers.iter().map(|answer| answer.sent).collect();
    sent.extend([second, second + 1].map(Duration::from_secs));
    sent.sort();
    sent.windows(2).all(|two| two[1].saturating_sub(two[0]) <= SHORT)
        && answers.iter().all(|answer| answer.came.saturating_sub(answer.sent) <= SHORT)
}

/// How much of the quota may be free at the end of a second, with `before` requests in the second before. At a refusal,
/// the window was full except for requests in flight.
fn may_be_free(answers: &[&Answer], second: u64, before: u64) -> u64 {
    let refused = answers.iter().filter(|answer| !answer.is_admitted && answer.is_within(second));
    let Some(last) = refused.map(|answer| answer.sent.subsec_micros()).max() else { return RATE };
    let rest = u64::from(1_000_000 - last);
    ((before * rest).div_ceil(1_000_000) + u64::from(CONNECTIONS)).min(RATE)
}

fn two_gateways_share_a_rate(software: Software) {
    let server = software.start();
    let gateways = gateways(2, &format!("{}{}", server.store_with(PATIENT), limited("500/s", "")));
    // Eight connections to each gateway, with 50 requests a second each.
    let clients: Vec<_> = gateways.iter().flat_map(|gateway| (0..CONNECTIONS / 2).map(|_| gateway.client())).collect();
    let pause = Duration::from_millis(20);
    let ((first, answers), counts) = watched(&server, SECOND, || {
        align(SECOND, SECOND);
        let (first, start) = (unix().as_secs(), Instant::now());
        let end = start + Duration::from_secs(SECONDS);
        let answers: Vec<_> = thread::scope(|scope| {
            let ask = |(at, client)| {
                let next = start + pause / CONNECTIONS * at + Duration::from_millis(2);
                scope.spawn(move || paced(client, next, pause, end))
            };
            let threads: Vec<_> = (0..).zip(clients).map(ask).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        (first, answers)
    });
    let counts = &counts["l"];
    let admitted = |answers: &[&Answer]| answers.iter().filter(|answer| answer.is_admitted).count() as u64;
    assert_eq!(counts.values().sum::<u64>(), admitted(&answers.iter().collect::<Vec<_>>()));
    let mut even = 0;
    for second in first..first + SECONDS {
        let count_of = |second| counts.get(&second).copied().unwrap_or(0);
        let count = count_of(second);
        let overlapping: Vec<_> = answers.iter().filter(|answer| answer.overlaps(second)).collect();
        let within: Vec<_> = answers.iter().filter(|answer| answer.is_within(second)).collect();
        // Each counter matches what clients saw in its second.
        let seen = admitted(&within)..=admitted(&overlapping);
        assert!(seen.contains(&count), "{second}: {count}, seen {seen:?}");
        let allowed = if is_even(&overlapping, second) {
            even += 1;
            480..=505
        } else {
            RATE - may_be_free(&overlapping, second, count_of(second - 1))..=RATE + u64::from(CONNECTIONS)
        };
        assert!(allowed.contains(&count), "{second}: {count}, not {allowed:?}: {counts:?}");
    }
    println!("{even} of {SECONDS} seconds were even: {counts:?}");
    assert!(answers.iter().any(|answer| !answer.is_admitted));
}

with_each_server! {
    two_gateways_share_a_rate
}
