//! A client that repeats the same request gets the same responses as others, and every request is counted.

use std::collections::BTreeSet;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Gateway, Response, every_store, limited, unix};

/// Without a log, so a request needs only its response.
fn quiet(rest: &str) -> Gateway {
    Gateway::with_log("access = false", rest)
}

fn number(response: &Response, header: &str) -> u64 {
    response.headers.must(header).parse().unwrap()
}

fn seconds(response: &Response) -> u64 {
    let after = response.headers.must("ratelimit").rsplit(";t=").next().unwrap();
    after.split(';').next().unwrap().parse().unwrap()
}

fn statuses(client: &mut Client, request: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| client.call(request).status).collect()
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn each_refusal_is_the_same_and_is_counted() {
    every_store(|store| {
        for (name, start) in [("logged", Gateway::start as fn(&str) -> Gateway), ("quiet", quiet)] {
            let rest = limited(&format!("header:{name}"), "3/d", "headers = \"both\"");
            let gateway = start(&format!("{store}{rest}"));
            let mut client = gateway.client();
            let mut ask = || {
                let asked = unix().as_secs();
                let response = client.get_with("/", format!("{name}: 1\r\n"));
                (response, asked, unix().as_secs())
            };
            let responses: Vec<_> = (0..500).map(|_| ask()).collect();
            let (admitted, refused) = responses.split_at(3);
            assert!(admitted.iter().all(|(response, ..)| response.status == 200), "{store}");
            let names = |response: &Response| -> Vec<String> {
                response.headers.0.iter().map(|(name, _)| name.clone()).collect()
            };
            let mut last = u64::MAX;
            let (first, ..) = &refused[0];
            for (response, asked, answered) in refused {
                response.expect_problem(429);
                assert_eq!((response.anonymous(), names(response)), (first.anonymous(), names(first)));
                let wait = number(response, "retry-after");
                assert_eq!(wait, seconds(response));
                assert!(wait <= last, "{wait} after {last}");
                let end = number(response, "x-ratelimit-reset");
                assert!((asked + wait - 2..=answered + wait + 2).contains(&end), "{response:?}");
                last = wait;
            }
            for (metric, count) in [
                (
                    "gateway_requests_total{route=\"/*\",outcome=\"limited\",status=\"4xx\",method_class=\"read\"}",
                    497.0,
                ),
                ("gateway_request_duration_seconds_count", 500.0),
                ("gateway_limit_decisions_total{limit=\"l\",decision=\"rejected\"}", 497.0),
            ] {
                assert_eq!(gateway.metric(metric), Some(count), "{metric}, {name}, {store}");
            }
            if let Some(remembered) = gateway.metric("gateway_store_remembered_total") {
                // Memcached decides the first refusal, or the first two, and a later one after each five seconds.
                assert!((490.0..497.0).contains(&remembered), "{remembered}");
            }
        }
    });
}

#[test]
fn each_refusal_has_a_line_in_the_log() {
    let gateway = Gateway::start(&limited("global", "1/d", "body = \"no\""));
    let mut client = gateway.client();
    statuses(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 20);
    statuses(&mut client, "HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n", 20);
    // Lines are in order, so with the last one all are there.
    statuses(&mut client, "GET /last HTTP/1.1\r\nHost: a\r\n\r\n", 1);
    gateway.wait_log("the last", |line| line["path"] == "/last");
    let lines = gateway.log();
    let of = |method: &str, bytes: u64| {
        let lines = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mine =
            lines.filter(|line| line["method"] == method && line["status"] == 429 && line["outcome"] == "limited");
        mine.filter(|line| line["bytes"] == bytes && line["route"] == "/*" && line["client"] == "127.0.0.1").count()
    };
    assert_eq!((of("GET", 2), of("HEAD", 0)), (20, 20), "{lines:#?}");
}

#[test]
fn the_date_and_the_wait_change_with_time() {
    let gateway = quiet(&limited("global", "1/m burst 1", "strategy = \"token-bucket\""));
    let mut client = gateway.client();
    // A bucket has room in a minute, and the second is half over: the date and the wait change at different times.
    sleep(Duration::from_millis((1500 - u64::from(unix().subsec_millis())) % 1000));
    let before = Instant::now();
    assert_eq!(client.get("/").status, 200);
    let (begun, mut waits, mut dates) = (Instant::now(), BTreeSet::new(), BTreeSet::new());
    let has_changed = |values: &BTreeSet<u64>| values.len() >= 2;
    while begun.elapsed() < Duration::from_secs(3) || !has_changed(&waits) || !has_changed(&dates) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{waits:?}, {dates:?}");
        let (asked, since) = (Instant::now(), unix());
        let response = client.get("/");
        let (wait, date) = (number(&response, "retry-after"), response.headers.must("date").to_owned());
        let second: u64 = date[23..25].parse().unwrap();
        // The date may be read a moment before or after it was written.
        let seconds = since.as_secs()..=unix().as_secs();
        assert!(seconds.clone().any(|time| time % 60 == second), "{date}, between {seconds:?}");
        let left = |passed: Duration| Duration::from_secs(60).saturating_sub(passed).as_micros().div_ceil(1_000_000);
        let expected = left(before.elapsed())..=left(asked - begun);
        assert!(expected.contains(&u128::from(wait)), "{wait}, not {expected:?}");
        waits.insert(wait);
        dates.insert(second);
    }
}

#[test]
fn other_requests_on_the_same_connection_are_not_affected() {
    every_store(|store| {
        let gateway = quiet(&format!("{store}{}", limited("header:k", "2/d", "")));
        let mut client = gateway.client();
        let (one, two) = (get("k: one\r\n"), get("k: two\r\n"));
        assert_eq!(statuses(&mut client, &one, 6), [200, 200, 429, 429, 429, 429], "{store}");
        assert_eq!(statuses(&mut client, &two, 1), [200], "{store}");
        assert_eq!(statuses(&mut client, &one, 3), [429; 3], "{store}");
        assert_eq!(statuses(&mut client, &two, 4), [200, 429, 429, 429], "{store}");
        // The beginning of one request and the end of another, in one piece or in two.
        client.send(format!("{one}{two}{one}"));
        let all = (0..3).map(|_| client.response(false).status).collect::<Vec<_>>();
        assert_eq!(all, [429; 3]);
        assert_eq!(statuses(&mut client, &one, 3), [429; 3], "{store}");
        let (head, tail) = one.split_at(20);
        client.send(head);
        client.send(format!("{tail}{}", &head[..5]));
        assert_eq!(client.response(false).status, 429);
        client.send(format!("{}{tail}", &head[5..]));
        assert_eq!(client.response(false).status, 429);
        assert_eq!(statuses(&mut client, &get("k: three\r\n"), 4), [200, 200, 429, 429], "{store}");
    });
}

#[test]
fn any_kind_of_request_may_be_repeated() {
    let limits =
        "[limits.a]\nkey = \"global\"\nrates = [\"1/d\", \"1/m\"]\n[limits.b]\nkey = \"global\"\nrates = [\"9/d\"]\n";
    let route = "[[routes]]\npath = \"/*\"\nlimits = [\"b\", \"a\"]\nrespond = { status = 200 }\n";
    let gateway = quiet(&format!("{limits}{route}"));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for request in [
        "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        chunked,
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let responses: Vec<_> = (0..6).map(|_| client.call(request)).collect();
        for response in &responses {
            assert_eq!((response.status, &response.version), (responses[0].status, &responses[0].version), "{request}");
            assert_eq!(response.anonymous(), responses[0].anonymous(), "{request}");
            assert!(response.headers.get("connection").is_none_or(|value| value != "close"), "{response:?}");
        }
    }
    let not_charged = "gateway_limit_decisions_total{limit=\"b\",decision=\"not_charged\"}";
    let rejected = "gateway_limit_decisions_total{limit=\"a\",decision=\"rejected\"}";
    assert_eq!(gateway.metric(not_charged), gateway.metric(rejected));
    assert!(gateway.metric(rejected) >= Some(24.0));
}

#[test]
fn a_raised_limit_holds_at_once() {
    let gateway = quiet(&limited("global", "2/d", ""));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, &get(""), 6), [200, 200, 429, 429, 429, 429]);
    gateway.reload("", &limited("global", "4/d", ""));
    gateway.wait_message("reloaded");
    assert_eq!(statuses(&mut client, &get(""), 6), [200, 200, 429, 429, 429, 429]);
}

#[test]
fn a_new_route_applies_at_once() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"2/d\"]\n";
    let route = |path: &str, limits: &str| {
        format!("[[routes]]\npath = \"{path}\"\nlimits = [{limits}]\nrespond = {{ status = 200 }}\n")
    };
    let gateway = quiet(&format!("{limit}{}", route("/*", "\"l\"")));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, &get(""), 6), [200, 200, 429, 429, 429, 429]);
    // The old limit still applies, but to another path.
    gateway.reload("", &format!("{limit}{}{}", route("/a", "\"l\""), route("/*", "")));
    gateway.wait_message("reloaded");
    assert_eq!(statuses(&mut client, &get(""), 3), [200; 3]);
    assert_eq!(client.get("/a").status, 429);
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn a_repeated_request_is_admitted_as_soon_as_a_different_one() {
        every_store(|store| {
            let gateway = quiet(&format!("{store}{}", limited("header:k", "5/s", "")));
            let (mut same, mut other) = (gateway.client(), gateway.client());
            let (begun, mut admitted, mut count) = (Instant::now(), [0_u32; 2], 0);
            let is_over = |time: Duration, count: u32| time.as_secs() >= 60 || time.as_secs() >= 3 && count >= 12;
            while !is_over(begun.elapsed(), admitted[0]) {
                count += 1;
                admitted[0] += u32::from(same.call(get("k: same\r\n")).status == 200);
                admitted[1] += u32::from(other.call(get(&format!("k: other\r\nn: {count}\r\n"))).status == 200);
            }
            assert!(count > 100 && admitted[0] >= 12, "{admitted:?} of {count}: {store}");
            assert!(admitted[0].abs_diff(admitted[1]) <= 1, "{admitted:?}: {store}");
        });
    }

    #[test]
    fn a_flood_does_not_delay_the_stop() {
        let mut gateway = quiet(&limited("global", "1/d", ""));
        let clients: Vec<_> = (0..8).map(|_| gateway.client()).collect();
        scope(|scope| {
            for mut client in clients {
                scope.spawn(move || {
                    // Every response is complete until the connection ends.
                    loop {
                        if client.wire.write(get("").as_bytes()).is_err() {
                            break;
                        }
                        match client.try_response(false) {
                            Ok(response) => assert!(response.status == 429 || response.status == 200),
                            Err(_) => break,
                        }
                    }
                });
            }
            let rejected = "gateway_limit_decisions_total{limit=\"l\",decision=\"rejected\"}";
            crate::harness::until("all are at it", Duration::from_secs(20), || gateway.metric(rejected) > Some(1000.0));
            gateway.signal(Signal::TERM);
            let asked = Instant::now();
            assert_eq!(gateway.wait_exit().code(), Some(0));
            assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
        });
    }
}
