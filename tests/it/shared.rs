//! Several gateways with one server of a shared store: together they admit what the limit allows, with as few commands as possible.

use std::collections::BTreeMap;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::harness::{self, Client, Fault, Gateway, Mode, Server, Software, align, unix, until, with_each_server};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Requests wait for the server long enough on a busy machine.
pub(crate) const PATIENT: &str = "on_error = \"reject\"\ntimeout = \"5s\"\n";

pub(crate) fn limited(rate: &str, more: &str) -> String {
    harness::limited("global", rate, more)
}

/// Gateways that do not log each of many requests.
pub(crate) fn gateways(count: usize, config: &str) -> Vec<Gateway> {
    (0..count).map(|_| Gateway::with_log("access = false", config)).collect()
}

/// The counters of a limit by their buckets.
pub(crate) type Counts = BTreeMap<u64, u64>;

/// Runs `run` and returns its result and the last value of every counter, by limit and bucket. Counters of seconds live
/// only for seconds, so they are read all the while, and for `longer` after that.
pub(crate) fn watched<T: Send>(
    server: &Server,
    longer: Duration,
    run: impl FnOnce() -> T + Send,
) -> (T, BTreeMap<String, Counts>) {
    thread::scope(|scope| {
        let run = scope.spawn(run);
        let mut counts = BTreeMap::<_, Counts>::new();
        let mut end = None;
        while end.is_none_or(|end| Instant::now() < end) {
            for (name, count) in server.counters() {
                let limit = name.split(':').nth(1).unwrap();
                counts.entry(limit.to_owned()).or_default().insert(bucket(&name), count);
            }
            sleep(Duration::from_millis(300));
            if run.is_finished() {
                end = end.or(Some(Instant::now() + longer));
            }
        }
        (run.join().unwrap(), counts)
    })
}

/// Sends requests on all connections until `end`, to `paths` in turn, each with a pause after a refusal. Returns how many
/// were admitted to each.
fn overload<const PATHS: usize>(clients: Vec<Client>, paths: [&str; PATHS], end: Instant) -> [u64; PATHS] {
    thread::scope(|scope| {
        let ask = |mut client: Client| {
            let mut admitted = [0; PATHS];
            for at in (0..PATHS).cycle().take_while(|_| Instant::now() < end) {
                match client.get(paths[at]).status {
                    200 => admitted[at] += 1,
                    429 => sleep(Duration::from_millis(5)),
                    other => panic!("{other}"),
                }
            }
            admitted
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || ask(client))).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        std::array::from_fn(|at| all.iter().map(|admitted| admitted[at]).sum())
    })
}

/// The time of `each` refused requests on each of `connections`.
fn refused(gateway: &Gateway, connections: usize, each: usize) -> Duration {
    let clients: Vec<_> = (0..connections).map(|_| gateway.client()).collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                for _ in 0..each {
                    assert_eq!(client.get("/").status, 429);
                    sleep(Duration::from_millis(1));
                }
            });
        }
    });
    start.elapsed()
}

fn a_flood_of_refusals_asks_once(software: Software) {
    for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
        let server = software.start();
        let limit = limited("3/d", &format!("strategy = {strategy:?}"));
        let gateway = Gateway::start(&format!("{}{limit}", server.store_with(PATIENT)));
        let mut client = gateway.client();
        let statuses: Vec<_> = (0..4).map(|_| client.get("/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{strategy}");
        let asked = || server.commands();
        // The last admission may still be on its way.
        let before = asked();
        refused(&gateway, 4, 500);
        assert!(asked() - before <= 4, "{strategy}: {} commands for 2000 refusals", asked() - before);
    }
}

fn a_flood_asks_when_the_answer_may_have_changed(software: Software) {
    let server = software.start();
    // One leaves the window about every 200 ms once the first bucket slides out of it.
    let gateways = gateways(2, &format!("{}{}", server.store_with(PATIENT), limited("10/2s", "")));
    let trips =
        || gateways.iter().map(|gateway| gateway.metric("gateway_store_round_trips_total").unwrap()).sum::<f64>();
    let before = trips();
    let clients = gateways.iter().flat_map(|gateway| (0..4).map(|_| gateway.client())).collect();
    let [admitted] = overload(clients, ["/"], Instant::now() + Duration::from_secs(5));
    assert!((10..=50).contains(&admitted), "{admitted}");
    // Each gateway may read when one more fits, and one of them writes. Those that ask together at the start are not
    // refused yet.
    let bound = f64::from(u32::try_from(admitted).unwrap()) * 3.0 + 10.0;
    println!("{} exchanges, {admitted} admitted", trips() - before);
    assert!(trips() - before <= bound, "{} exchanges, {admitted} admitted", trips() - before);
}

fn a_flood_of_refusals_asks_now_and_then_where_counters_shrink(software: Software) {
    let server = software.start();
    let store = server.store_with(&format!("{PATIENT}strict = true"));
    let gateway = Gateway::start(&format!("{store}{}", limited("3/day", "")));
    let mut client = gateway.client();
    until("the day is used up", Duration::from_secs(10), || client.get("/").status == 429);
    let asked = || server.commands();
    // A day has one counter, so each look is one command.
    let (before, start) = (asked(), Instant::now());
    let mut count = 0;
    while start.elapsed() < 2 * SECOND || count < 2_000 {
        refused(&gateway, 4, 50);
        count += 200;
    }
    let (asked, most) = (asked() - before, 60.0 * start.elapsed().as_secs_f64());
    println!("{asked} commands for {count} refusals in {:?}", start.elapsed());
    // Not looking at all would be wrong, too: the gateway must see what others give back.
    assert!(asked > 20 && f64::from(u32::try_from(asked).unwrap()) <= most, "{asked} commands for {count} refusals");
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

/// A claim at the end of a bucket with an answer in the next one may not profit from the share that has faded meanwhile.
fn strictly_the_turn_of_a_bucket_lets_no_more_through(software: Software) {
    const WINDOW: Duration = Duration::from_secs(2);
    const QUOTA: u64 = 200;
    let server = software.start();
    let proxies = [(); 2].map(|()| Fault::start(server.address, Mode::Pass));
    let gateways = proxies.each_ref().map(|proxy| {
        let store = software.store(&[proxy.address], &format!("{PATIENT}strict = true"));
        Gateway::start(&(store + &limited("200/2s", "")))
    });
    // Together more than the quota, but for either gateway alone it fits.
    let clients = gateways.iter().flat_map(|gateway| (0..180).map(|_| gateway.client())).collect();
    proxies.iter().for_each(|proxy| proxy.set(Mode::Slow(Duration::from_millis(400))));
    align(WINDOW, WINDOW);
    sleep(Duration::from_millis(1_900));
    let admitted = burst(clients, "any", 1) as u64;
    let end = u64::try_from(unix().as_micros()).unwrap();
    // Two that claim the same may both give it back, but the first one does not.
    assert!(admitted > 0, "nobody is admitted");
    until("what was claimed for nothing is given back", 5 * SECOND, || server.counted() == admitted);
    let counts: Counts = server.counters().iter().map(|(name, count)| (bucket(name), *count)).collect();
    assert!(counts.values().all(|count| *count <= QUOTA), "{counts:?}");
    // A request with an answer in the next bucket may count there, as if it came only then.
    let window = u64::try_from(WINDOW.as_micros()).unwrap();
    let (newest, elapsed) = (end / window, end % window);
    let count = |bucket| counts.get(&bucket).copied().unwrap_or(0);
    let estimate = count(newest) + count(newest - 1) * (window - elapsed) / window;
    assert!(estimate <= QUOTA, "{estimate} after {elapsed} us of bucket {newest}: {counts:?}");
}

fn bucket(name: &str) -> u64 {
    name.rsplit('.').next().unwrap().parse().unwrap()
}

with_each_server! {
    a_flood_of_refusals_asks_once
    a_flood_asks_when_the_answer_may_have_changed
    a_flood_of_refusals_asks_now_and_then_where_counters_shrink
    strictly_the_turn_of_a_bucket_lets_no_more_through
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    fn strictly_four_gateways_admit_no_more_than_one_might(software: Software) {
        // A busy machine may not ask for enough in time.
        assert!((0..5).any(|_| four_gateways_admit_enough(software)), "far less than the limits permit");
    }

    /// Fails if they admit too much.
    fn four_gateways_admit_enough(software: Software) -> bool {
        const QUOTA: u64 = 200;
        let server = software.start();
        let limit = |edge: &str| {
            let limit = format!("[limits.{edge}]\nkey = \"global\"\nrates = [\"200/s\"]\nedge = {edge:?}\n");
            format!("{limit}[[routes]]\npath = \"/{edge}\"\nlimits = [{edge:?}]\nrespond = {{ status = 200 }}\n")
        };
        let store = server.store_with(&format!("{PATIENT}strict = true"));
        let gateways = gateways(4, &format!("{store}{}{}", limit("whole"), limit("weighted")));
        let clients = gateways.iter().flat_map(|gateway| (0..64).map(|_| gateway.client())).collect();
        let (admitted, counts) = watched(&server, SECOND, || {
            align(SECOND, SECOND);
            overload(clients, ["/whole", "/weighted"], Instant::now() + Duration::from_millis(9_900))
        });
        let (whole, weighted) = (&counts["whole"], &counts["weighted"]);
        println!("admitted {admitted:?}, {counts:?}");
        // Claims without success have been given back.
        assert_eq!([whole, weighted].map(|counts| counts.values().sum::<u64>()), admitted, "{counts:?}");
        for (bucket, count) in whole {
            let both = count + whole.get(&(bucket + 1)).unwrap_or(&0);
            assert!(both <= QUOTA, "{both} in two buckets from {bucket} on: {whole:?}");
        }
        assert!(weighted.values().all(|count| *count <= QUOTA), "{weighted:?}");
        // Of ten buckets. With a whole edge, whatever a bucket takes, the next one may only take the rest: five pairs, each
        // with the quota. With a weighted edge the first bucket takes all at once. Each later one takes as much while the
        // share of the previous one fades, which is gone at its end: all except the last tenth of a second, which is not
        // asked for, and what a busy machine does not ask for in time.
        let most = [5 * QUOTA, 10 * QUOTA];
        println!("of {most:?}");
        admitted.iter().zip(most).all(|(admitted, most)| admitted * 10 >= most * 9)
    }

    fn a_burst_gets_exactly_its_limit_whoever_serves_it(software: Software) {
        for strict in [false, true] {
            let server = software.start();
            let store = server.store_with(&format!("{PATIENT}strict = {strict}"));
            let gateway = Gateway::start(&format!("{store}{}", limited("20/d", "")));
            align(Duration::from_hours(24), Duration::from_secs(20));
            let clients: Vec<_> = (0..50).map(|_| gateway.client()).collect();
            assert_eq!(burst(clients, "any", 10), 20, "strict: {strict}");
            until("all is counted, and nothing else", 10 * SECOND, || server.counted() == 20);
        }
    }

    with_each_server! {
        strictly_four_gateways_admit_no_more_than_one_might
        a_burst_gets_exactly_its_limit_whoever_serves_it
    }
}
