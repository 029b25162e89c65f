//! What happens to requests over a limit besides rejection: reports, silent answers and delays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::harness::{Client, Gateway, Software, Upstream, every_store, reply, until, with_each_server};

fn limit(name: &str, rates: &str, rest: &str) -> String {
    format!("[limits.{name}]\nkey = \"header:x-key\"\nrates = [{rates}]\n{rest}\n")
}

fn counting() -> (Upstream, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let upstream = Upstream::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        reply(200, "from upstream")
    });
    (upstream, count)
}

fn decisions(gateway: &Gateway, limit: &str, decision: &str) -> u64 {
    let wanted = format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}} ");
    let metrics = gateway.admin("/metrics");
    metrics.text().lines().find_map(|line| line.strip_prefix(&wanted)).map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_shadow_limit_reports_what_it_would_refuse() {
    every_store(|store| {
        let (upstream, count) = counting();
        let limits = limit("real", "\"5/d\"", "") + &limit("trial", "\"2/d\"", "on_limit = \"shadow\"");
        let routes = upstream.everything() + "limits = [\"trial\", \"real\"]\n";
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        let mut client = gateway.client();
        for at in 0..8 {
            let answer = client.get("/");
            assert_eq!(answer.status, if at < 5 { 200 } else { 429 }, "{at}, {store}");
            let shadow = (2..5).contains(&at).then_some("\"trial\"");
            assert_eq!(answer.headers.get("ratelimit-shadow"), shadow, "{at}, {store}");
            assert_eq!(answer.headers.must("ratelimit-policy"), "\"real\";q=5;w=86400");
        }
        assert_eq!(count.load(Ordering::SeqCst), 5, "{store}");
        // The shadow limit would have refused all requests that the real limit refused.
        let trial = ["admitted", "shadowed", "rejected"].map(|kind| decisions(&gateway, "trial", kind));
        assert_eq!(trial, [2, 6, 0], "{store}");
        assert_eq!(["admitted", "rejected"].map(|kind| decisions(&gateway, "real", kind)), [5, 3], "{store}");
    });
}

#[test]
fn a_silent_limit_answers_without_a_hint() {
    every_store(|store| {
        let (upstream, count) = counting();
        let limits = limit("quiet", "\"2/d\"", "on_limit = \"silent\"")
            + &limit("words", "\"1/d\"", "on_limit = \"silent\"\nstatus = 202\nbody = \"accepted\"");
        let route = |name: &str| format!("[[routes]]\npath = \"/{name}\"\nupstream = \"up\"\nlimits = [\"{name}\"]\n");
        let routes = upstream.section() + &route("quiet") + &route("words");
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        let mut client = gateway.client();
        let answers: Vec<_> = (0..4).map(|_| client.get("/quiet")).collect();
        let texts: Vec<_> = answers.iter().map(|answer| (answer.status, answer.text())).collect();
        assert_eq!(texts, [(200, "from upstream"), (200, "from upstream"), (200, ""), (200, "")], "{store}");
        for (name, _) in answers.iter().flat_map(|answer| &answer.headers.0) {
            assert!(!name.to_ascii_lowercase().contains("ratelimit") && name != "retry-after", "{name}");
        }
        assert_eq!(client.get("/words").text(), "from upstream");
        let answer = client.get("/words");
        assert_eq!((answer.status, answer.text()), (202, "accepted"));
        assert_eq!(count.load(Ordering::SeqCst), 3, "{store}");
        assert_eq!(decisions(&gateway, "quiet", "silenced"), 2);
    });
}

/// Sends each request on its own connection, after the previous one is answered, held or refused. Returns each status
/// with its time since the beginning, and when the last request had arrived.
fn ask_in_order(gateway: &Gateway, count: usize) -> (Vec<(u16, Duration)>, Duration) {
    let begun = Instant::now();
    let decided = || decisions(gateway, "l", "delayed") + decisions(gateway, "l", "rejected");
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let before = decided();
            let mut client = gateway.client();
            client.send("GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
            let thread = thread::spawn(move || {
                let status = client.response(false).status;
                (status, begun.elapsed())
            });
            until("it has arrived", Duration::from_secs(20), || thread.is_finished() || decided() > before);
            thread
        })
        .collect();
    let arrived = begun.elapsed();
    (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), arrived)
}

fn delaying(store: &str, rate: &str, rest: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start(|_| reply(200, "in"));
    let limit = limit("l", &format!("{rate:?}"), &format!("strategy = \"token-bucket\"\non_limit = \"delay\"\n{rest}"));
    let routes = upstream.everything() + "limits = [\"l\"]\n";
    (Gateway::start(&format!("{store}{limit}{routes}")), upstream)
}

#[test]
fn held_requests_are_forwarded_at_the_rate_in_order_of_arrival() {
    const ATTEMPTS: usize = 5;
    every_store(|store| {
        for attempt in 1..=ATTEMPTS {
            let (gateway, _upstream) = delaying(store, "2/s burst 2", "max_delay = \"20s\"");
            let (answers, _) = ask_in_order(&gateway, 8);
            assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}, {store}");
            assert_eq!(decisions(&gateway, "l", "rejected"), 0, "{store}");
            let times: Vec<_> = answers.iter().map(|(_, time)| *time).collect();
            let mut sorted = times.clone();
            sorted.sort_unstable();
            assert!(sorted[7] >= Duration::from_millis(2_950), "too early: {answers:?}, {store}");
            // Two are not held. The other six are forwarded every half second.
            let is_apart = sorted[1..].windows(2).all(|pair| pair[1] > pair[0] + Duration::from_millis(250));
            let is_even = is_apart && sorted[7] < sorted[0] + Duration::from_millis(4_500);
            let delayed = decisions(&gateway, "l", "delayed");
            // If the machine stalls, a request comes too late to be held, or several answers come together or late.
            if (is_even && delayed == 6) || attempt == ATTEMPTS {
                assert_eq!((is_even, delayed), (true, 6), "{answers:?}, {store}");
                assert_eq!(times, sorted, "out of order, {store}");
                return;
            }
        }
    });
}

#[test]
fn a_request_that_would_be_held_too_long_is_rejected_at_once() {
    every_store(|store| {
        let (gateway, _upstream) = delaying(store, "1/m burst 1", "max_delay = \"10s\"");
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        let begun = Instant::now();
        let refused = client.get("/");
        assert_eq!(refused.status, 429, "{store}");
        assert!(begun.elapsed() < Duration::from_secs(9), "{store}");
        let wait: u64 = refused.headers.must("retry-after").parse().unwrap();
        assert!((50..=60).contains(&wait), "{refused:?}");
    });
}

#[test]
fn no_more_than_max_delayed_requests_of_a_key_are_held() {
    every_store(|store| {
        for _ in 0..5 {
            let (gateway, _upstream) = delaying(store, "1/2s burst 1", "max_delay = \"10s\"\nmax_delayed = 2");
            let (answers, arrived) = ask_in_order(&gateway, 6);
            // The first one that is held leaves after two seconds, and another one finds room.
            if arrived < Duration::from_millis(1_900) {
                let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
                assert_eq!(statuses, [200, 200, 200, 429, 429, 429], "{store}");
                assert_eq!(gateway.client().get_with("/", "X-Key: other\r\n").status, 200);
                if answers[5].1 < answers[1].1 {
                    return;
                }
            }
        }
        panic!("a request that finds no room is not refused at once, or the machine is too slow: {store}");
    });
}

#[test]
fn a_client_that_goes_away_leaves_the_queue_at_once() {
    every_store(|store| {
        for _ in 0..5 {
            let (gateway, upstream) = delaying(store, "1/4s burst 1", "max_delay = \"60s\"\nmax_delayed = 5");
            let held = || {
                let metrics = gateway.admin("/metrics");
                metrics.text().lines().find_map(|line| line.strip_prefix("gateway_requests_held ")).unwrap().to_owned()
            };
            let first = Instant::now();
            // From then on, one that is held may be forwarded.
            let is_late = || first.elapsed() > Duration::from_millis(3_900);
            assert_eq!(gateway.client().get("/").status, 200);
            let mut leaving: Vec<_> = (0..5).map(|_| gateway.client()).collect();
            leaving.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
            until("all are held", Duration::from_secs(20), || held() == "5" || is_late());
            // After a half close, the gateway waits a second for the response to begin. After a reset it does not wait.
            let reset = |client: &Client| SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
            leaving.iter().for_each(reset);
            drop(leaving);
            until("all have left", Duration::from_secs(20), || held() == "0" || is_late());
            if !is_late() {
                assert_eq!(upstream.received().len(), 1, "{store}");
                let begun = Instant::now();
                assert_eq!(gateway.client().get("/").status, 200);
                // Behind five others its turn would come after 20 seconds.
                assert!(begun.elapsed() < Duration::from_secs(8), "they took nothing with them: {store}");
                return;
            }
        }
        panic!("they do not leave at once, or the machine is too slow: {store}");
    });
}

#[test]
fn requests_with_other_rates_do_not_wait_behind_those_that_are_held() {
    every_store(|store| {
        let tiers = "tier = \"header:x-plan\"\ntiers = { gold = { rates = [\"1000/s\"] } }\nmax_delay = \"5m\"";
        let (gateway, _upstream) = delaying(store, "1/m burst 1", &format!("{tiers}\nmax_delayed = 2"));
        assert_eq!(gateway.client().get("/").status, 200, "{store}");
        let mut held = [(); 2].map(|()| gateway.client());
        held.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
        until("both are held", Duration::from_secs(10), || decisions(&gateway, "l", "delayed") == 2);
        let begun = Instant::now();
        let gold = [(); 3].map(|()| gateway.client().get_with("/", "X-Plan: gold\r\n").status);
        assert_eq!(gold, [200; 3], "{store}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{store}");
    });
}

#[test]
fn requests_that_come_after_an_override_or_a_reset_do_not_wait_for_the_old_time() {
    for (method, body) in [("PUT", r#"{"rates": ["500/m"], "for": "1h"}"#), ("DELETE", "")] {
        every_store(|store| {
            let (gateway, _upstream) = delaying(store, "1/m burst 1", "max_delay = \"5m\"");
            assert_eq!(gateway.client().get_with("/", "X-Key: k\r\n").status, 200, "{store}");
            let mut held = [(); 2].map(|()| gateway.client());
            for (client, count) in held.iter_mut().zip(1..) {
                client.send("GET / HTTP/1.1\r\nHost: h\r\nX-Key: k\r\n\r\n");
                until("it is held", Duration::from_secs(10), || decisions(&gateway, "l", "delayed") == count);
            }
            let begun = Instant::now();
            let admin = gateway.admin;
            let request =
                format!("{method} /api/limits/l/keys/k HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {}", body.len());
            assert_eq!(Client::connect(admin).call(format!("{request}\r\n\r\n{body}")).status, 200, "{store}");
            // After a reset, the first that was held is forwarded at once, and the others wait for their turns.
            let status = match method {
                "PUT" => gateway.client().get_with("/", "X-Key: k\r\n").status,
                _ => held[0].response(false).status,
            };
            assert_eq!(status, 200, "{store}");
            assert!(begun.elapsed() < Duration::from_secs(20), "its turn would be after a minute: {method}, {store}");
        });
    }
}

fn held_requests_end_when_the_store_goes_away(software: Software) {
    let mut server = software.start();
    let (gateway, _upstream) =
        delaying(&server.store_with("on_error = \"allow\""), "1/m burst 1", "max_delay = \"100s\"");
    assert_eq!(gateway.client().get("/").status, 200);
    server.kill();
    let begun = Instant::now();
    assert_eq!(gateway.client().get("/").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(10), "its turn would be after a minute");
}

#[test]
fn a_rejecting_limit_comes_before_a_delaying_one() {
    let upstream = Upstream::start(|_| reply(200, "in"));
    let limits =
        limit("slow", "\"1/10s\"", "on_limit = \"delay\"\nmax_delay = \"50s\"") + &limit("hard", "\"1/d\"", "");
    let routes = upstream.everything() + "limits = [\"slow\", \"hard\"]\n";
    let gateway = Gateway::start(&format!("{limits}{routes}"));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let begun = Instant::now();
    assert_eq!(client.get("/").status, 429);
    assert!(begun.elapsed() < Duration::from_secs(9), "a refusal comes at once");
    assert_eq!(decisions(&gateway, "slow", "delayed"), 0, "it was not held");
}

#[test]
fn a_rejection_names_the_limit_that_rejects() {
    let limits = limit("real", "\"2/m\"", "")
        + &limit("trial", "\"1/d\"", "on_limit = \"shadow\"\nstatus = 503")
        + &limit("quiet", "\"1/31d\"", "on_limit = \"silent\"\nbody = \"nothing\"");
    let route = |name: &str, limits: &str| {
        format!("[[routes]]\npath = \"/{name}\"\nlimits = [{limits}]\nrespond = {{ status = 200 }}\n")
    };
    let routes = route("a", "\"trial\", \"real\"") + &route("b", "\"quiet\", \"real\"");
    let gateway = Gateway::start(&(limits + &routes));
    let mut client = gateway.client();
    assert_eq!([client.get("/a").status, client.get("/a").status], [200, 200]);
    for path in ["/a", "/b"] {
        let refused = client.get(path);
        assert_eq!(refused.status, 429, "{path}");
        let wait: u64 = refused.headers.must("retry-after").parse().unwrap();
        assert!(wait <= 120, "{refused:?}");
        assert!(refused.text().contains("\"real\\\""), "{}", refused.text());
    }
    assert_eq!(client.get_with("/b", "X-Key: other\r\n").status, 200);
    // Now only the silent limit refuses, and then both do.
    let silenced = client.get_with("/b", "X-Key: other\r\n");
    assert_eq!((silenced.status, silenced.text()), (200, "nothing"));
    assert_eq!(client.get_with("/a", "X-Key: other\r\n").status, 200);
    assert_eq!(client.get_with("/b", "X-Key: other\r\n").status, 429);
}

with_each_server! {
    held_requests_end_when_the_store_goes_away
}
