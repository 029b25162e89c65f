//! Limits are exact under load, several limits admit a request together or not at all, and Retry-After is exact.

use std::sync::Barrier;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Response, Software, align, every_store, unix, until, with_each_server};

fn route(name: &str, limits: &str) -> String {
    format!("[[routes]]\npath = \"/{name}\"\nlimits = [{limits}]\nrespond = {{ status = 200, body = \"in\" }}\n")
}

fn limit(name: &str, rates: &str) -> String {
    format!("[limits.{name}]\nkey = \"global\"\nrates = [{rates}]\n")
}

/// `each` requests on every connection, all at once: how many were admitted and how many rejected.
fn flood(clients: Vec<Client>, each: usize) -> (usize, usize) {
    let start = Barrier::new(clients.len());
    let statuses: Vec<u16> = thread::scope(|scope| {
        let flood = |mut client: Client| {
            start.wait();
            (0..each).map(|_| client.get("/in").status).collect::<Vec<_>>()
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || flood(client))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let of = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(of(200) + of(429), statuses.len(), "{statuses:?}");
    (of(200), of(429))
}

fn statuses(client: &mut Client, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| client.get(path).status).collect()
}

fn a_second_gateway_sees_what_the_first_admitted(software: Software) {
    let server = software.start();
    let config = format!("{}{}{}", server.store(), limit("l", "\"5/d\""), route("in", "\"l\""));
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    assert_eq!(statuses(&mut gateways[0].client(), "/in", 3), [200; 3]);
    // Increments arrive a moment after the answer.
    until("all are counted", Duration::from_secs(20), || server.counted() == 3);
    assert_eq!(statuses(&mut gateways[1].client(), "/in", 3), [200, 200, 429]);
}

#[test]
fn a_request_is_charged_to_all_limits_or_to_none() {
    every_store(|store| {
        // Different names for each order: fresh counters in the server that both use.
        for (wide, names) in [("a", "\"a\", \"b\""), ("d", "\"c\", \"d\"")] {
            let limits = [limit("a", "\"10/d\""), limit("b", "\"2/d\""), limit("c", "\"2/d\""), limit("d", "\"10/d\"")];
            let routes = route("both", names) + &route("wide", &format!("{wide:?}"));
            let gateway = Gateway::start(&format!("{store}{}{routes}", limits.concat()));
            let mut client = gateway.client();
            assert_eq!(statuses(&mut client, "/both", 5), [200, 200, 429, 429, 429], "{store}");
            let admitted = statuses(&mut client, "/wide", 10).iter().filter(|status| **status == 200).count();
            assert_eq!(admitted, 8, "the rejected requests were charged to the wide limit: {store}");
        }
    });
}

#[test]
fn every_rate_of_a_limit_holds() {
    every_store(|store| {
        let limits = limit("first", "\"2/h\", \"5/d\"") + &limit("second", "\"5/h\", \"3/d\"");
        let routes = route("first", "\"first\"") + &route("second", "\"second\"");
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        align(Duration::from_hours(1), Duration::from_secs(5));
        let mut client = gateway.client();
        assert_eq!(statuses(&mut client, "/first", 4), [200, 200, 429, 429], "{store}");
        assert_eq!(statuses(&mut client, "/second", 4), [200, 200, 200, 429], "{store}");
    });
}

#[track_caller]
fn retry_after(rejected: &Response) -> u64 {
    assert_eq!(rejected.status, 429, "{rejected:?}");
    rejected.headers.must("retry-after").parse().unwrap()
}

#[test]
fn the_previous_bucket_counts_by_its_share() {
    let window = Duration::from_secs(4);
    let tenths_of_windows = || unix().as_millis() * 10 / window.as_millis();
    // How many were admitted, and when the burst began and ended.
    let burst = |client: &mut Client, count| {
        let begun = tenths_of_windows();
        let admitted = statuses(client, "/in", count).iter().filter(|status| **status == 200).count() as u128;
        (admitted, begun, tenths_of_windows())
    };
    let measure = |_| {
        let gateway = Gateway::start(&(limit("l", "\"10/4s\"") + &route("in", "\"l\"")));
        let mut client = gateway.client();
        align(window, Duration::from_millis(3900));
        let (before, first_begun, first_ended) = burst(&mut client, 11);
        align(window, window);
        sleep(Duration::from_secs(2));
        // Half of the next window has passed, so about half of the ten still count.
        let (admitted, begun, ended) = burst(&mut client, 10);
        // If the machine stalls, the bursts are in other buckets.
        let buckets = [first_begun, first_ended, begun, ended].map(|tenths| tenths / 10 - first_begun / 10);
        (buckets == [0, 0, 1, 1]).then_some((before, admitted, begun % 10, ended % 10))
    };
    let (before, admitted, begun, ended) = (0..10).find_map(measure).expect("bursts in two successive buckets");
    assert_eq!(before, 10);
    assert!((begun..=ended + 2).contains(&admitted), "{admitted} admitted from {begun} tenths of the window on");
}

fn a_window_of_a_month_counts_in_a_shared_store_too(software: Software) {
    // Memcached would read a TTL of more than 30 days as a date, long past.
    let server = software.start();
    let store = server.store_with("on_error = \"reject\"");
    let gateway = Gateway::start(&format!("{store}{}{}", limit("l", "\"3/31d\""), route("in", "\"l\"")));
    let mut client = gateway.client();
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += usize::from(client.get("/in").status == 200);
    }
    assert_eq!(admitted, 3);
    // The increments may be on their way.
    until("all are counted", Duration::from_secs(20), || server.counted() == 3);
    let second = Gateway::start(&format!("{store}{}{}", limit("l", "\"3/31d\""), route("in", "\"l\"")));
    assert_eq!(second.client().get("/in").status, 429);
}

#[test]
fn days_begin_at_midnight_of_their_zone() {
    every_store(|store| {
        // Nine hours ahead of UTC all year.
        let limit = "[limits.l]\nkey = \"global\"\nrates = [\"2/day\", \"100/month\"]\ntimezone = \"Asia/Tokyo\"\n";
        let gateway = Gateway::start(&format!("{store}{limit}{}", route("in", "\"l\"")));
        let mut client = gateway.client();
        assert_eq!(statuses(&mut client, "/in", 2), [200, 200], "{store}");
        let to_midnight = || 86_400 - (unix().as_secs() + 9 * 3600) % 86_400;
        let before = to_midnight();
        let refused = client.get("/in");
        let (wait, after) = (retry_after(&refused), to_midnight());
        assert!((after - 1..=before + 1).contains(&wait), "{wait}, {before} to {after} seconds to midnight: {store}");
        assert_eq!(refused.headers.must("ratelimit-policy"), "\"l-day\";q=2;w=86400, \"l-month\";q=100");
    });
}

#[test]
fn every_strategy_counts_over_http_in_every_store() {
    every_store(|store| {
        for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket"] {
            let limit = format!("[limits.{strategy}]\nkey = \"global\"\nrates = [\"5/h\"]\nstrategy = {strategy:?}\n");
            let gateway = Gateway::start(&format!("{store}{limit}{}", route("in", &format!("{strategy:?}"))));
            let mut client = gateway.client();
            let admitted = statuses(&mut client, "/in", 12).iter().filter(|status| **status == 200).count();
            assert_eq!(admitted, 5, "{strategy}, {store}");
            let wait = retry_after(&client.get("/in"));
            assert!((1..=7200).contains(&wait), "{wait}: {strategy}, {store}");
        }
    });
}

fn a_flood_of_refused_requests_leaves_the_store_alone(software: Software) {
    let server = software.start();
    let limits = limit("l", "\"2/d\"") + &limit("all", "\"1000/d\"");
    let gateway = Gateway::start(&format!("{}{limits}{}", server.store(), route("in", "\"all\", \"l\"")));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, "/in", 3), [200, 200, 429]);
    let asked = || server.commands();
    let before = asked();
    assert!((0..500).all(|_| client.get("/in").status == 429));
    // The third charge may have been on its way.
    assert!(asked() - before <= 20, "{} commands for 500 refusals", asked() - before);
    let to_midnight = || 86_400 - unix().as_secs() % 86_400;
    let earlier = to_midnight();
    let last = client.get("/in");
    let later = to_midnight();
    // One of the two leaves the window at the end of the day.
    assert!((later.saturating_sub(2)..=earlier + 2).contains(&retry_after(&last)), "{earlier} to {later}: {last:?}");
    assert!(last.headers.must("ratelimit").starts_with("\"l\";r=0"), "{last:?}");
    assert_eq!(last.headers.must("ratelimit-policy"), "\"all\";q=1000;w=86400, \"l\";q=2;w=86400");
}

with_each_server! {
    a_second_gateway_sees_what_the_first_admitted
    a_window_of_a_month_counts_in_a_shared_store_too
    a_flood_of_refused_requests_leaves_the_store_alone
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn a_burst_over_fifty_connections_gets_exactly_its_limit() {
        every_store(|store| {
            let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"20/h\"]\n";
            let gateway = Gateway::start(&format!("{store}{limit}{}", route("in", "\"l\"")));
            let clients = (0..50).map(|_| gateway.client()).collect();
            assert_eq!(flood(clients, 4), (20, 180), "{store}");
        });
    }

    fn gateways_share_their_counters(software: Software) {
        let server = software.start();
        let store = server.store_with("on_error = \"reject\"\ntimeout = \"5s\"");
        let config = format!("{store}{}{}", limit("l", "\"20/h\""), route("in", "\"l\""));
        let gateways = [Gateway::start(&config), Gateway::start(&config)];
        let connections = 16;
        let clients = gateways.iter().flat_map(|gateway| (0..connections / 2).map(|_| gateway.client())).collect();
        let (admitted, _) = flood(clients, 20);
        // Two gateways may each admit requests in flight before they see the other's increments.
        assert!((20..=20 + connections).contains(&admitted), "{admitted} admitted");
        for gateway in &gateways {
            assert_eq!(gateway.client().get("/in").status, 429);
        }
    }

    #[test]
    fn a_rejected_request_is_charged_nowhere() {
        every_store(|store| {
            let bucket = || unix().as_secs() / 2;
            // If the machine stalls, the requests are in several buckets. Each limit has fresh counters.
            let burst = ["a", "b", "c", "d", "e"].into_iter().find_map(|name| {
                let limit = limit(name, "\"2/2s\", \"4/d\"");
                let gateway = Gateway::start(&format!("{store}{limit}{}", route("in", &format!("{name:?}"))));
                let mut client = gateway.client();
                align(Duration::from_secs(2), Duration::from_millis(1500));
                let begun = bucket();
                let statuses = statuses(&mut client, "/in", 12);
                (bucket() == begun).then_some((gateway, client, statuses))
            });
            let (_gateway, mut client, first) = burst.expect("a burst in one bucket");
            // If rejections counted, the day would be used up before the short window is over.
            assert_eq!(first[..4], [200, 200, 429, 429], "{store}");
            sleep(Duration::from_millis(4100));
            assert_eq!(statuses(&mut client, "/in", 3), [200, 200, 429], "{store}");
            sleep(Duration::from_millis(4100));
            let last = client.get("/in");
            assert_eq!(last.status, 429, "the day allows four: {store}");
            assert!(retry_after(&last) > 4, "longer than the short window refuses: {last:?}");
        });
    }

    #[test]
    fn retry_after_is_exact() {
        every_store(|store| {
            for rate in ["1/2s", "7/3s", "10/4s"] {
                let name = format!("l{}", &rate[..1]);
                let gateway = Gateway::start(&format!(
                    "{store}{}{}",
                    limit(&name, &format!("{rate:?}")),
                    route("in", &format!("{name:?}"))
                ));
                let mut client = gateway.client();
                for _ in 0..2 {
                    let (asked, refused) = loop {
                        let (asked, response) = (Instant::now(), client.get("/in"));
                        if response.status != 200 {
                            break (asked, response);
                        }
                    };
                    let (seconds, answered) = (retry_after(&refused), Instant::now());
                    // A second before 1 is the refusal itself.
                    if seconds > 1 {
                        let almost = Duration::from_millis(seconds * 1000 - 1050);
                        // A little before, because the gateway decided at some moment between the two.
                        sleep(almost.saturating_sub(asked.elapsed()));
                        let early = client.get("/in").status;
                        if asked.elapsed() >= Duration::from_secs(seconds - 1) {
                            // The machine was too busy to ask early enough.
                            continue;
                        }
                        assert_eq!(early, 429, "a second before Retry-After: {seconds}, {rate}, {store}");
                    }
                    sleep(Duration::from_secs(seconds).saturating_sub(answered.elapsed()) + Duration::from_millis(5));
                    assert_eq!(client.get("/in").status, 200, "at Retry-After: {seconds}, {rate}, {store}");
                }
            }
        });
    }

    with_each_server! {
        gateways_share_their_counters
    }
}
