//! The number of requests of a key in flight, and that every place becomes free again.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::harness::{Client, Gate, Gateway, Upstream, reply, until};

/// Answers `/free` at once, and everything else when the gate is open.
fn gated() -> (Gate, Upstream) {
    let gate = Gate::default();
    let waiting = gate.clone();
    let upstream = Upstream::start(move |request| {
        if request.target != "/free" {
            waiting.pass();
        }
        reply(200, "in")
    });
    (gate, upstream)
}

fn config(upstream: &Upstream, rest: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"header:x-key\"\nmax_in_flight = 2\n{rest}\n");
    format!("{limit}{}limits = [\"l\"]\n", upstream.everything())
}

fn begin(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    client
}

#[track_caller]
fn both_are_free(gateway: &Gateway) {
    until("both places are free", Duration::from_secs(20), || {
        let mut client = gateway.client();
        let answer = client.get("/free");
        answer.status == 200 && answer.headers.must("ratelimit").contains("r=1")
    });
}

#[test]
fn no_more_requests_than_allowed_are_in_flight() {
    let (gate, upstream) = gated();
    let gateway = Gateway::start(&config(&upstream, ""));
    let mut under_way = [begin(&gateway), begin(&gateway)];
    upstream.wait_connections(2);
    let refused = gateway.client().get("/free");
    refused.expect_problem(429);
    assert_eq!(refused.headers.must("ratelimit-policy"), "\"l\";q=2;qu=\"concurrent-requests\"");
    assert_eq!(refused.headers.must("ratelimit"), "\"l\";r=0");
    assert!(refused.headers.get("retry-after").is_none(), "the end of a request cannot be predicted: {refused:?}");
    assert_eq!(gateway.client().get_with("/free", "X-Key: other\r\n").status, 200, "another key");
    gate.open();
    under_way.iter_mut().for_each(|client| assert_eq!(client.response(false).status, 200));
    both_are_free(&gateway);
}

#[test]
fn the_place_of_a_client_that_goes_away_is_free_again() {
    let (gate, upstream) = gated();
    let gateway = Gateway::start(&config(&upstream, ""));
    let under_way = [begin(&gateway), begin(&gateway)];
    upstream.wait_connections(2);
    assert_eq!(gateway.client().get("/free").status, 429);
    drop(under_way);
    both_are_free(&gateway);
    gate.open();
}

#[test]
fn a_request_is_in_flight_until_the_last_byte_of_its_response() {
    let (finish, finished) = channel::<()>();
    let finished = Mutex::new(finished);
    let upstream = Upstream::raw(move |mut wire, _| {
        while let Ok(Some((line, _))) = wire.head() {
            if line.contains("/free") {
                wire.write(&reply(200, "in")).unwrap();
                continue;
            }
            wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha").unwrap();
            let _ = finished.lock().unwrap().recv_timeout(Duration::from_secs(10));
            let _ = wire.write(b"lf");
        }
    });
    let gateway = Gateway::start(&config(&upstream, ""));
    let mut first = begin(&gateway);
    assert_eq!(first.try_head().unwrap().0.status, 200);
    let half = gateway.client().get("/free");
    assert!(half.headers.must("ratelimit").contains("r=0"), "one and this one are in flight: {half:?}");
    finish.send(()).unwrap();
    both_are_free(&gateway);
}

#[test]
fn the_place_is_free_again_if_the_upstream_fails() {
    let upstream = Upstream::raw(|mut wire, _| {
        while let Ok(Some((line, _))) = wire.head() {
            match line.split(' ').nth(1) {
                Some("/free") => wire.write(&reply(200, "in")).unwrap(),
                Some("/garbage") => return wire.write(b"what\r\n\r\n").unwrap(),
                Some("/short") => return wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nha").unwrap(),
                _ => return,
            }
        }
    });
    let gateway = Gateway::start(&config(&upstream, ""));
    for path in ["/garbage", "/short", "/closed"] {
        for _ in 0..5 {
            let mut client = gateway.client();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            // A problem document, or a body that breaks off.
            let _ = client.try_response(false);
        }
        both_are_free(&gateway);
    }
}

#[test]
fn rates_and_max_in_flight_apply_together() {
    let upstream = Upstream::start(|_| reply(200, "in"));
    let gateway = Gateway::start(&config(&upstream, "rates = [\"3/d\"]"));
    let mut client = gateway.client();
    let answers: Vec<_> = (0..5).map(|_| client.get("/free")).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 200, 429, 429]);
    let policy = "\"l-d\";q=3;w=86400, \"l-concurrency\";q=2;qu=\"concurrent-requests\"";
    assert_eq!(answers[0].headers.must("ratelimit-policy"), policy);
    assert!(answers[4].headers.must("ratelimit").starts_with("\"l-d\";r=0;t="), "{:?}", answers[4]);
}

#[test]
fn a_reload_keeps_the_number_of_requests_in_flight() {
    let (gate, upstream) = gated();
    let gateway = Gateway::start(&config(&upstream, ""));
    let under_way = [begin(&gateway), begin(&gateway)];
    upstream.wait_connections(2);
    gateway.reload("", &config(&upstream, "headers = \"both\""));
    gateway.wait_message("reloaded");
    assert_eq!(gateway.client().get("/free").status, 429);
    gate.open();
    drop(under_way);
}

#[test]
fn every_policy_is_listed_once_in_the_order_of_the_route() {
    let limit = |name: &str| format!("[limits.{name}]\nkey = \"global\"\nmax_in_flight = 2\nrates = [\"3/d\"]\n");
    let route = "[[routes]]\npath = \"/*\"\nlimits = [\"b\", \"a\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&format!("{}{}{route}", limit("a"), limit("b")));
    let policies = gateway.client().get("/").headers.must("ratelimit-policy").to_owned();
    let names: Vec<_> = policies.split(", ").map(|policy| policy.split(';').next().unwrap()).collect();
    assert_eq!(names, ["\"b-d\"", "\"b-concurrency\"", "\"a-d\"", "\"a-concurrency\""]);
}
