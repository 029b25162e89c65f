//! How exactly two gateways share a rate, with clients that send at an even pace and more than it allows. This test
//! takes long and needs little processor time; its name makes it the first one, so that others run at the same time.

use std::collections::BTreeMap;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::harness::{Client, Memcached, align};
use crate::shared::{PATIENT, SECOND, gateways, limited, watched};

/// Sends requests at an even pace for `span` from `start` on. Returns in which second each was admitted.
fn paced(mut client: Client, start: Instant, (first, pause): (Duration, Duration), span: Duration) -> Vec<u64> {
    let mut admitted = Vec::new();
    let mut next = first;
    while next < span {
        sleep((start + next).saturating_duration_since(Instant::now()));
        match client.get("/").status {
            200 => admitted.push(start.elapsed().as_secs()),
            429 => {}
            other => panic!("{other}"),
        }
        next += pause;
    }
    admitted
}

#[test]
fn two_gateways_share_a_rate() {
    const SECONDS: u64 = 30;
    let memcached = Memcached::start();
    let gateways = gateways(2, &format!("{}{}", memcached.store_with(PATIENT), limited("500/s", "")));
    // Eight connections with 50 a second each, to either.
    let clients: Vec<_> = gateways.iter().flat_map(|gateway| (0..8).map(|_| gateway.client())).collect();
    let pause = Duration::from_millis(20);
    let (admitted, counts) = watched(&memcached, SECOND, || {
        align(SECOND, SECOND);
        let start = Instant::now();
        thread::scope(|scope| {
            let ask = |(at, client)| {
                let first = pause / 16 * at + Duration::from_millis(2);
                scope.spawn(move || paced(client, start, (first, pause), Duration::from_secs(SECONDS)))
            };
            let threads: Vec<_> = (0..).zip(clients).map(ask).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    });
    let mut seen = BTreeMap::<_, u64>::new();
    admitted.iter().for_each(|second| *seen.entry(*second).or_default() += 1);
    let counts = &counts["l"];
    println!("counted {counts:?}, seen {seen:?}");
    assert_eq!(counts.values().sum::<u64>(), admitted.len() as u64);
    // Requests of the last moment may have been answered or counted after the end.
    let whole = usize::try_from(SECONDS).unwrap();
    for counts in [counts.values(), seen.values()] {
        let steady: Vec<_> = counts.copied().take(whole).collect();
        assert_eq!(steady.len(), whole);
        assert!(steady.iter().all(|count| (480..=505).contains(count)), "{steady:?}");
    }
}
