//! Requests that are held although they are admitted: the fuller their limit, the longer.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use socket2::SockRef;

use crate::bytes::{self, files};
use crate::harness::{Client, Gateway, Upstream, every_store, reply, until};

const ASK: &str = "GET / HTTP/1.1\r\nHost: h\r\nX-Key: k\r\n\r\n";

/// Ten requests fit, and nothing leaves while a test lasts.
fn limit(name: &str, rest: &str) -> String {
    format!("[limits.{name}]\nkey = \"header:x-key\"\nrates = [\"10/h\"]\nstrategy = \"fixed-window\"\n{rest}\n")
}

fn serving(store: &str, limits: &str, names: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start(|_| reply(200, "in"));
    let routes = format!("{}limits = [{names}]\n", upstream.everything());
    (Gateway::start(&format!("{store}{limits}{routes}")), upstream)
}

fn decisions(gateway: &Gateway, limit: &str, decision: &str) -> u64 {
    let wanted = format!("gateway_limit_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}} ");
    let metrics = gateway.admin("/metrics");
    metrics.text().lines().find_map(|line| line.strip_prefix(&wanted)).map_or(0, |count| count.parse().unwrap())
}

fn held(gateway: &Gateway) -> u64 {
    gateway.metric("gateway_requests_held").unwrap().to_string().parse().unwrap()
}

/// A request that comes after `before` others. The first six are not held.
fn sent(gateway: &Gateway, before: u64) -> (Instant, JoinHandle<(u16, Instant)>) {
    let mut client = gateway.client();
    let begun = Instant::now();
    client.send(ASK);
    let thread = thread::spawn(move || (client.response(false).status, Instant::now()));
    until("it has come", Duration::from_secs(20), || match before {
        0..6 => thread.is_finished(),
        _ => decisions(gateway, "l", "delayed") == before - 5,
    });
    (begun, thread)
}

fn reset(client: Client) {
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
}

#[test]
fn requests_are_held_in_proportion_and_leave_in_order() {
    every_store(|store| {
        let (gateway, upstream) = serving(store, &limit("l", "slow = { from = 0.5, up_to = \"20s\" }"), "\"l\"");
        let begun: Vec<_> = (0..8).map(|before| sent(&gateway, before)).collect();
        let ends: Vec<_> = begun
            .into_iter()
            .map(|(begun, thread)| {
                let (status, end) = thread.join().unwrap();
                assert_eq!(status, 200, "{store}");
                (end - begun, end)
            })
            .collect();
        // 60 and 70 % were used when the last two came.
        for (at, millis) in [(6, 4_000), (7, 8_000)] {
            assert!(ends[at].0 >= Duration::from_millis(millis), "{at} after {:?}, {store}", ends[at].0);
        }
        assert!(ends[6].1 < ends[7].1, "{store}");
        assert_eq!(upstream.received().len(), 8, "{store}");
        assert_eq!(
            ["delayed", "admitted", "rejected"].map(|kind| decisions(&gateway, "l", kind)),
            [2, 8, 0],
            "{store}"
        );
        gateway.wait_log("the log says so", |line| line["held_micros"].as_u64().is_some_and(|held| held >= 8_000_000));
    });
}

#[test]
fn one_that_would_be_held_shorter_waits_for_those_before_it() {
    let slow = |up_to: &str| limit("l", &format!("slow = {{ from = 0.5, up_to = {up_to:?} }}"));
    let (gateway, upstream) = serving("", &slow("30s"), "\"l\"");
    let mut held: Vec<_> = (0..7).map(|before| sent(&gateway, before)).collect();
    gateway.reload_and_wait("", &format!("{}{}limits = [\"l\"]\n", slow("500ms"), upstream.everything()));
    held.push(sent(&gateway, 7));
    let first = held[6].0;
    let (status, end) = held.pop().unwrap().1.join().unwrap();
    assert_eq!(status, 200);
    // That one found 60 % used, when requests were held for longer.
    assert!(end - first >= Duration::from_secs(6), "after {:?}", end - first);
}

#[test]
fn no_request_is_held_below_nor_of_keys_and_limits_that_are_not_slowed() {
    every_store(|store| {
        let slow = "slow = { from = 0.5, up_to = \"60s\" }\n";
        let exempt = "[[limits.l.overrides]]\nkeys = [\"free\"]\nexempt = true\n";
        let limits =
            limit("l", &format!("{slow}{exempt}")) + &limit("trial", &format!("on_limit = \"shadow\"\n{slow}"));
        let (gateway, _upstream) = serving(store, &limits, "\"trial\", \"l\"");
        let mut client = gateway.client();
        (0..6).for_each(|_| assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 200, "{store}"));
        (0..20).for_each(|_| assert_eq!(client.get_with("/", "X-Key: free\r\n").status, 200, "{store}"));
        assert_eq!(["l", "trial"].map(|limit| decisions(&gateway, limit, "delayed")), [0, 0], "{store}");
    });
}

#[test]
fn what_a_client_was_charged_that_goes_away_is_given_back() {
    every_store(|store| {
        let slow = "slow = { from = 0.5, up_to = \"60s\" }\n";
        let limits = limit("l", slow) + &limit("other", "");
        let (gateway, upstream) = serving(store, &limits, "\"l\", \"other\"");
        let mut client = gateway.client();
        (0..6).for_each(|_| assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 200, "{store}"));
        for _ in 0..2 {
            let mut leaving: Vec<_> = (0..4).map(|_| gateway.client()).collect();
            leaving.iter_mut().for_each(|client| client.send(ASK));
            until("all are held", Duration::from_secs(10), || held(&gateway) == 4);
            assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 429, "they are charged: {store}");
            leaving.into_iter().for_each(reset);
            until("all have left", Duration::from_secs(10), || held(&gateway) == 0);
            // Other limits give back, too.
            for limit in ["l", "other"] {
                until("it is given back", Duration::from_secs(10), || gateway.used(limit, "k") == 6);
            }
        }
        assert_eq!(upstream.received().len(), 6, "{store}");
    });
}

fn of_all(places: u64) -> String {
    format!("[limits.all]\nkey = \"global\"\nmax_in_flight = {places}\n")
}

#[test]
fn the_held_take_no_place_of_those_in_flight() {
    let held_in = |limit: &str, names: &str, passing: usize| {
        let (gateway, upstream) = serving("", &(limit.to_owned() + &of_all(2)), names);
        let mut client = gateway.client();
        (0..passing).for_each(|_| assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 200));
        let mut waiting: Vec<_> = (0..4).map(|_| gateway.client()).collect();
        for (held_before, client) in (0..).zip(&mut waiting) {
            client.send(ASK);
            until("it is held", Duration::from_secs(10), || held(&gateway) == held_before + 1);
        }
        assert_eq!(client.get_with("/", "X-Key: other\r\n").status, 200, "{limit}");
        waiting.into_iter().for_each(reset);
        until("all have left", Duration::from_secs(10), || held(&gateway) == 0);
        assert_eq!(client.get_with("/", "X-Key: other\r\n").status, 200, "{limit}");
        assert_eq!(upstream.received().len(), passing + 2, "{limit}");
    };
    for names in ["\"l\", \"all\"", "\"all\", \"l\""] {
        held_in(&limit("l", "slow = { from = 0.5, up_to = \"60s\" }"), names, 6);
        let delays = limit("l", "on_limit = \"delay\"\nmax_delay = \"5m\"").replace("10/h", "10/4m");
        held_in(&delays, names, 10);
    }
}

#[test]
fn who_finds_no_place_after_the_hold_is_refused_and_charged_nothing() {
    every_store(|store| {
        let (open, opened) = std::sync::mpsc::channel::<()>();
        let opened = std::sync::Mutex::new(opened);
        let upstream = Upstream::start(move |request| {
            if request.target == "/waits" {
                let _ = opened.lock().unwrap().recv_timeout(Duration::from_secs(60));
            }
            reply(200, "in")
        });
        // The seventh request of a key is held for a fifth of that.
        let limits = limit("l", "slow = { from = 0.5, up_to = \"30s\" }") + &of_all(1);
        let routes = format!("{}limits = [\"l\", \"all\"]\n", upstream.everything());
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        let mut client = gateway.client();
        (0..6).for_each(|_| assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 200, "{store}"));
        client.send(ASK);
        until("it is held", Duration::from_secs(10), || held(&gateway) == 1);
        let mut other = gateway.client();
        other.send("GET /waits HTTP/1.1\r\nHost: h\r\nX-Key: other\r\n\r\n");
        let refused = client.response(false);
        refused.expect_problem(429);
        assert!(refused.text().contains("\"all\""), "{store}: {}", refused.text());
        until("it is given back", Duration::from_secs(10), || gateway.used("l", "k") == 6);
        open.send(()).unwrap();
        assert_eq!(other.response(false).status, 200, "{store}");
    });
}

#[test]
fn a_pool_takes_at_once_what_a_slowed_limit_has_no_room_for() {
    every_store(|store| {
        let slow = "slow = { from = 0.5, up_to = \"60s\" }\n";
        let limits = limit("l", &format!("{slow}overflow = \"pool\"\n")) + &limit("pool", slow);
        let (gateway, upstream) = serving(store, &limits, "\"l\"");
        let mut client = gateway.client();
        let mut passed = |count: usize| (0..count).all(|_| client.get_with("/", "X-Key: k\r\n").status == 200);
        assert!(passed(6), "{store}");
        let mut waiting: Vec<_> = (0..4).map(|_| gateway.client()).collect();
        waiting.iter_mut().for_each(|client| client.send(ASK));
        until("all are held", Duration::from_secs(10), || held(&gateway) == 4);
        // The pool holds only requests of routes that name it.
        assert!(passed(10), "{store}");
        assert_eq!(["l", "pool"].map(|limit| decisions(&gateway, limit, "delayed")), [4, 0], "{store}");
        assert!(!passed(1), "both are full: {store}");
        reset(waiting.pop().unwrap());
        until("it is given back to the limit", Duration::from_secs(10), || gateway.used("l", "k") == 9);
        assert_eq!(gateway.used("pool", "k"), 10, "{store}");
        assert_eq!(upstream.received().len(), 16, "{store}");
    });
}

#[test]
fn what_a_pool_was_charged_for_a_held_request_is_given_back_to_it() {
    every_store(|store| {
        let six = limit("small", "overflow = \"pool\"\n").replace("10/h", "6/h");
        let limits = limit("l", "slow = { from = 0.5, up_to = \"60s\" }\n") + &six + &limit("pool", "");
        let (gateway, upstream) = serving(store, &limits, "\"l\", \"small\"");
        let mut client = gateway.client();
        (0..6).for_each(|_| assert_eq!(client.get_with("/", "X-Key: k\r\n").status, 200, "{store}"));
        let mut leaving: Vec<_> = (0..4).map(|_| gateway.client()).collect();
        leaving.iter_mut().for_each(|client| client.send(ASK));
        until("all are held", Duration::from_secs(10), || held(&gateway) == 4);
        let counts = || ["l", "small", "pool"].map(|limit| gateway.used(limit, "k"));
        until("the pool is charged for them", Duration::from_secs(10), || counts() == [10, 6, 4]);
        leaving.into_iter().for_each(reset);
        until("it is given back", Duration::from_secs(10), || counts() == [6, 6, 0]);
        assert_eq!(upstream.received().len(), 6, "{store}");
    });
}

#[test]
fn bytes_of_a_held_request_are_charged_once() {
    every_store(|store| {
        let upstream = files();
        let slowed = limit("slowed", "slow = { from = 0.01, up_to = \"100ms\" }");
        let cut = bytes::limit("100000B", "bytes = \"both\", on_exhausted = \"cut\"");
        let routes = format!("{}limits = [\"l\", \"slowed\"]\n", upstream.everything());
        let gateway = Gateway::start(&format!("{store}{slowed}{cut}{routes}"));
        let mut client = gateway.client();
        let upload = format!(
            "PUT /10000 HTTP/1.1\r\nHost: h\r\nX-Key: k\r\nContent-Length: 20000\r\n\r\n{}",
            "x".repeat(20_000)
        );
        for passed in [30_000, 60_000] {
            let response = client.call(&*upload);
            assert_eq!((response.status, response.body.len()), (200, 10_000), "{store}");
            assert_eq!(gateway.used("l", "127.0.0.1"), passed, "{store}");
        }
        assert_eq!(decisions(&gateway, "slowed", "delayed"), 1, "the second one was held");
    });
}

#[test]
fn who_finds_no_place_is_refused_and_charged_nothing() {
    every_store(|store| {
        let rest = "slow = { from = 0.5, up_to = \"60s\" }\nmax_delayed = 2\n";
        let (gateway, _upstream) = serving(store, &limit("l", rest), "\"l\"");
        let _held: Vec<_> = (0..8).map(|before| sent(&gateway, before)).collect();
        let mut client = gateway.client();
        for _ in 0..5 {
            let refused = client.get_with("/", "X-Key: k\r\n");
            assert_eq!((refused.status, refused.headers.must("retry-after")), (429, "60"), "{store}");
        }
        until("they are not charged", Duration::from_secs(10), || gateway.used("l", "k") == 8);
        assert_eq!(held(&gateway), 2, "{store}");
        assert_eq!(decisions(&gateway, "l", "rejected"), 5, "{store}");
        assert_eq!(client.get_with("/", "X-Key: other\r\n").status, 200, "{store}");
    });
}

#[test]
fn the_longest_of_several_holds_counts_once() {
    let limits =
        limit("l", "slow = { from = 0.5, up_to = \"5s\" }") + &limit("short", "slow = { from = 0.5, up_to = \"1s\" }");
    let (gateway, _upstream) = serving("", &limits, "\"short\", \"l\"");
    let mut held: Vec<_> = (0..7).map(|before| sent(&gateway, before)).collect();
    let (begun, last) = held.pop().unwrap();
    let (status, end) = last.join().unwrap();
    assert_eq!(status, 200);
    assert!(end - begun >= Duration::from_secs(1));
    assert_eq!(["l", "short"].map(|limit| decisions(&gateway, limit, "delayed")), [1, 0]);
}

#[test]
fn one_that_has_waited_for_room_is_held_that_much_less() {
    every_store(|store| {
        let limits = "[limits.l]\nkey = \"header:x-key\"\nrates = [\"1/4s burst 2\"]\nstrategy = \"token-bucket\"\n\
                      on_limit = \"delay\"\nmax_delay = \"60s\"\nslow = { from = 0.25, up_to = \"3s\" }\n";
        for round in 0..5 {
            let (gateway, _upstream) = serving(store, limits, "\"l\"");
            let begun = Instant::now();
            let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
            for (client, expected) in clients.iter_mut().zip([0, 1, 2]) {
                client.send(ASK.replace("X-Key: k", &format!("X-Key: {round}")));
                until("it has come", Duration::from_secs(10), || {
                    decisions(&gateway, "l", "admitted") + held(&gateway) > expected
                });
            }
            let is_in_time = begun.elapsed() < Duration::from_secs(1);
            // The second finds the bucket half empty, so it is held for a second. The third waits longer for a token.
            for client in &mut clients {
                assert_eq!(client.response(false).status, 200, "{store}");
            }
            assert!(begun.elapsed() >= Duration::from_millis(3_900), "{store}");
            // If they came late, the bucket was fuller.
            if is_in_time || round == 4 {
                assert_eq!(decisions(&gateway, "l", "delayed"), 2, "each once: {store}");
                break;
            }
        }
    });
}

#[test]
fn a_drain_and_a_reload_let_held_requests_be_answered() {
    let limits = limit("l", "slow = { from = 0.5, up_to = \"20s\" }");
    let (mut gateway, upstream) = serving("", &limits, "\"l\"");
    let held: Vec<_> = (0..7).map(|before| sent(&gateway, before)).collect();
    gateway.reload_and_wait("", &format!("{}limits = []\n", upstream.everything()));
    gateway.signal(Signal::TERM);
    for (_, thread) in held {
        assert_eq!(thread.join().unwrap().0, 200);
    }
    assert!(gateway.wait_exit().success());
}
