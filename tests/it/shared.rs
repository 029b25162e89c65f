//! One Memcached and several gateways: all together admit what the limit allows, and ask no more than they must.

use std::collections::BTreeMap;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Memcached, align, alone, until};

const SECOND: Duration = Duration::from_secs(1);
/// Who has to wait for Memcached waits, on a busy machine as well.
const PATIENT: &str = "on_error = \"reject\"\ntimeout = \"5s\"\n";

/// One limit for everybody, with more keys, on a route of its own.
fn limited(rate: &str, more: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"global\"\nrates = [{rate:?}]\n{more}\n");
    format!("{limit}[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n")
}

fn gateways(count: usize, config: &str) -> Vec<Gateway> {
    (0..count).map(|_| Gateway::start(config)).collect()
}

/// Runs `run` and returns what it does and the last value of the counter of every bucket: of seconds they live for
/// seconds only, so they are read all the while, and for `longer` than it takes.
fn watched<T: Send>(
    memcached: &Memcached,
    longer: Duration,
    run: impl FnOnce() -> T + Send,
) -> (T, BTreeMap<u64, u64>) {
    thread::scope(|scope| {
        let run = scope.spawn(run);
        let mut counts = BTreeMap::new();
        let mut end = None;
        while end.is_none_or(|end| Instant::now() < end) {
            let bucket = |name: &str| name.rsplit('.').next().unwrap().parse::<u64>().unwrap();
            counts.extend(memcached.counters().into_iter().map(|(name, count)| (bucket(&name), count)));
            sleep(Duration::from_millis(300));
            if run.is_finished() {
                end = end.or(Some(Instant::now() + longer));
            }
        }
        (run.join().unwrap(), counts)
    })
}

/// Requests on all these connections until then, each after a short pause: how many were admitted.
fn overload(clients: Vec<Client>, end: Instant) -> u64 {
    thread::scope(|scope| {
        let ask = |mut client: Client| {
            let mut admitted = 0;
            while Instant::now() < end {
                match client.get("/").status {
                    200 => admitted += 1,
                    429 => sleep(Duration::from_millis(10)),
                    other => panic!("{other}"),
                }
            }
            admitted
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || ask(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Four gateways in strict mode, overloaded for ten buckets of a second by 64 connections each, with "200/s" and `edge`:
/// what their clients got, and the counter of every bucket.
fn strictly(edge: &str) -> (u64, BTreeMap<u64, u64>) {
    let _alone = alone();
    let memcached = Memcached::start();
    let store = memcached.store_with(&format!("{PATIENT}strict = true"));
    let gateways = gateways(4, &format!("{store}{}", limited("200/s", &format!("edge = {edge:?}"))));
    let clients = gateways.iter().flat_map(|gateway| (0..64).map(|_| gateway.client())).collect();
    watched(&memcached, SECOND, || {
        align(SECOND, SECOND);
        overload(clients, Instant::now() + Duration::from_millis(9_980))
    })
}

#[test]
fn strictly_no_two_neighbouring_buckets_hold_more_than_the_quota() {
    let (admitted, counts) = strictly("whole");
    println!("{admitted} admitted, {counts:?}");
    for (bucket, count) in &counts {
        let both = count + counts.get(&(bucket + 1)).unwrap_or(&0);
        assert!(both <= 200, "{both} in two buckets from {bucket} on: {counts:?}");
    }
    assert_eq!(counts.values().sum::<u64>(), admitted, "what was claimed for nothing is given back: {counts:?}");
    // Whatever a bucket takes, the next one may only take the rest: five pairs of buckets, each with 200.
    assert!(admitted >= 970, "{admitted} admitted of 1000: {counts:?}");
}

#[test]
fn strictly_no_bucket_holds_more_than_the_quota() {
    let (admitted, counts) = strictly("weighted");
    println!("{admitted} admitted, {counts:?}");
    assert!(counts.values().all(|count| *count <= 200), "{counts:?}");
    assert_eq!(counts.values().sum::<u64>(), admitted, "what was claimed for nothing is given back: {counts:?}");
    // The first bucket takes 200 at once. Each that follows takes them as the share of the one before fades, which is
    // gone at its end: ten buckets, less what the last one lacks.
    assert!(admitted >= 1_940, "{admitted} admitted of 2000: {counts:?}");
}

/// Requests at an even pace, for `span` from `start` on: in which second after it each was admitted.
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
    let _alone = alone();
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
    println!("counted {counts:?}, seen {seen:?}");
    assert_eq!(counts.values().sum::<u64>(), admitted.len() as u64);
    // What was asked in the last moment may have been answered, or counted, after the end.
    let whole = usize::try_from(SECONDS).unwrap();
    for counts in [counts.values(), seen.values()] {
        let steady: Vec<_> = counts.copied().take(whole).collect();
        assert_eq!(steady.len(), whole);
        assert!(steady.iter().all(|count| (480..=505).contains(count)), "{steady:?}");
    }
}

/// Refused requests from `connections`, `each` on every one, while they last: how long that took.
fn refused(gateway: &Gateway, connections: usize, each: usize) -> Duration {
    let clients: Vec<_> = (0..connections).map(|_| gateway.client()).collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || assert!((0..each).all(|_| client.get("/").status == 429)));
        }
    });
    start.elapsed()
}

#[test]
fn a_flood_of_refusals_asks_once() {
    for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
        let memcached = Memcached::start();
        let limit = limited("3/d", &format!("strategy = {strategy:?}"));
        let gateway = Gateway::start(&format!("{}{limit}", memcached.store_with(PATIENT)));
        let mut client = gateway.client();
        let statuses: Vec<_> = (0..4).map(|_| client.get("/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{strategy}");
        let asked = || memcached.stat("cmd_meta");
        // The last admission may still be on its way.
        let before = asked();
        refused(&gateway, 4, 500);
        assert!(asked() - before <= 4, "{strategy}: {} commands for 2000 refusals", asked() - before);
    }
}

#[test]
fn a_flood_asks_when_the_answer_may_have_changed() {
    let memcached = Memcached::start();
    // One leaves the window about every 200 ms once the first bucket slides out of it.
    let gateways = gateways(2, &format!("{}{}", memcached.store_with(PATIENT), limited("10/2s", "")));
    let trips = || gateways.iter().map(|gateway| gateway.metric("gateway_store_round_trips_total").unwrap()).sum::<f64>();
    let before = trips();
    let clients = gateways.iter().flat_map(|gateway| (0..4).map(|_| gateway.client())).collect();
    let admitted = overload(clients, Instant::now() + Duration::from_secs(5));
    assert!((10..=50).contains(&admitted), "{admitted}");
    // Each gateway may read when one more fits, and one of them writes; what the other had admitted may cost either one
    // more look, and those who ask together at the start are not yet refused.
    let bound = f64::from(u32::try_from(admitted).unwrap()) * 5.0 + 10.0;
    println!("{} exchanges, {admitted} admitted", trips() - before);
    assert!(trips() - before <= bound, "{} exchanges, {admitted} admitted", trips() - before);
}

#[test]
fn a_flood_of_refusals_asks_now_and_then_where_counters_shrink() {
    let memcached = Memcached::start();
    let store = memcached.store_with(&format!("{PATIENT}strict = true"));
    let gateway = Gateway::start(&format!("{store}{}", limited("3/day", "")));
    let mut client = gateway.client();
    until("the day is used up", Duration::from_secs(10), || client.get("/").status == 429);
    let asked = || memcached.stat("cmd_meta");
    // Of a day there is one counter, so each look is one command.
    let (before, start) = (asked(), Instant::now());
    let mut count = 0;
    while start.elapsed() < 2 * SECOND || count < 2_000 {
        refused(&gateway, 4, 50);
        count += 200;
    }
    let (asked, most) = (asked() - before, 60.0 * start.elapsed().as_secs_f64());
    println!("{asked} commands for {count} refusals in {:?}", start.elapsed());
    // Not to look at all would be wrong too: what others give back must be seen.
    assert!(asked > 20 && f64::from(u32::try_from(asked).unwrap()) <= most, "{asked} commands for {count} refusals");
}

#[test]
fn a_burst_gets_exactly_its_limit_whoever_serves_it() {
    let _alone = alone();
    for strict in [false, true] {
        let memcached = Memcached::start();
        let store = memcached.store_with(&format!("{PATIENT}strict = {strict}"));
        let gateway = Gateway::start(&format!("{store}{}", limited("20/d", "")));
        let clients: Vec<_> = (0..50).map(|_| gateway.client()).collect();
        align(Duration::from_hours(24), Duration::from_secs(20));
        assert_eq!(burst(clients, "any", 10), 20, "strict: {strict}");
        until("all is counted, and nothing else", SECOND, || memcached.counted() == 20);
    }
}

/// `each` requests on every connection, all at once, for this key: how many were admitted.
pub(crate) fn burst(clients: Vec<Client>, key: &str, each: usize) -> usize {
    let field = format!("X-Api-Key: {key}\r\n");
    let start = std::sync::Barrier::new(clients.len());
    thread::scope(|scope| {
        let ask = |mut client: Client| {
            start.wait();
            let statuses: Vec<_> = (0..each).map(|_| client.get_with("/", &field).status).collect();
            assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
            statuses.iter().filter(|status| **status == 200).count()
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || ask(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}
