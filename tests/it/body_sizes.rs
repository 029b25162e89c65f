//! Bodies larger than `max_body_size`: refused if their length is known, else cut off.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Framing, Gateway, Upstream, reply, run, until};

const BOUND: Duration = Duration::from_secs(10);

fn up() -> Upstream {
    Upstream::start(|received| reply(200, &received.body.len().to_string()))
}

fn post(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length))
}

fn chunked(path: &str, chunks: &[usize]) -> String {
    let chunks: Vec<_> = chunks.iter().map(|size| format!("{size:x}\r\n{}\r\n", "x".repeat(*size))).collect();
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    format!("{head}{}0\r\n\r\n", chunks.concat())
}

#[track_caller]
fn expect_reason(gateway: &Gateway, status: u16, outcome: &str) {
    let line = gateway.wait_log("a body that is too large", |line| line["reason"] == "max_body_size");
    assert_eq!((&line["status"], &line["outcome"]), (&status.into(), &outcome.into()), "{line}");
    until("it is counted", BOUND, || gateway.metric("gateway_request_failures_total") == Some(1.0));
    assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(0.0));
}

#[test]
fn a_length_that_is_too_large_is_413_and_charged_nowhere() {
    let up = up();
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let gateway =
        Gateway::with_server("max_body_size = \"10B\"", &format!("{limit}{}limits = [\"l\"]\n", up.everything()));
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n");
    let refused = client.response(false);
    refused.expect_problem(413);
    assert_eq!(refused.headers.must("connection"), "close");
    client.closed();
    assert_eq!(up.connections(), 0);
    expect_reason(&gateway, 413, "refused");
    assert_eq!(gateway.client().call(post("/", 10)).text(), "10", "it was charged");
    assert_eq!(gateway.client().call(post("/", 10)).status, 429);
}

#[test]
fn bodies_up_to_the_limit_pass_in_either_framing() {
    let up = up();
    let gateway = Gateway::with_server("max_body_size = \"4KiB\"", &up.everything());
    let mut client = gateway.client();
    assert_eq!(client.call(post("/", 4096)).text(), "4096");
    assert_eq!(client.call(chunked("/", &[4000, 1, 95])).text(), "4096");
    assert_eq!(client.call(post("/", 0)).text(), "0");
    assert_eq!(client.get("/").text(), "0");
    assert_eq!(client.call(chunked("/", &[4000, 1, 96])).status, 413);
}

/// Reports how much of a body has come, and whether it was complete.
fn counting(early: &'static str) -> (Upstream, Receiver<(usize, bool)>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, _| {
        let Ok(Some((_, headers))) = wire.head() else { return };
        let _ = wire.write(early.as_bytes());
        let mut length = 0;
        let framing = headers.framing(Framing::Length(0)).unwrap();
        let whole = wire.body(framing, &mut |piece| length += piece.len()).is_ok();
        let _ = tell.lock().unwrap().send((length, whole));
        let _ = wire.write(&reply(200, "whole"));
    });
    (up, told)
}

#[test]
fn a_body_that_becomes_too_large_is_cut_off() {
    let (up, bodies) = counting("");
    let gateway = Gateway::with_server("max_body_size = \"10B\"", &up.everything());
    let mut client = gateway.client();
    // The bytes after the limit are part of the refused request.
    client.send(chunked("/", &[10, 1]) + "GET /behind HTTP/1.1\r\nHost: a\r\n\r\n");
    client.response(false).expect_problem(413);
    assert!(client.closed().is_empty());
    let (length, whole) = bodies.recv_timeout(BOUND).unwrap();
    assert!(length <= 10 && !whole, "{length} bytes, whole: {whole}");
    expect_reason(&gateway, 413, "refused");
    assert_eq!(up.connections(), 1);
}

#[test]
fn a_body_that_becomes_too_large_after_the_response_has_begun_ends_it() {
    let (up, bodies) = counting("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
    let gateway = Gateway::with_server("max_body_size = \"10B\"", &up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    let (response, framing) = client.try_head().unwrap();
    assert_eq!((response.status, framing), (200, Framing::Chunked));
    client.send("a\r\nxxxxxxxxxx\r\n0\r\n\r\n");
    client.wire.body(framing, &mut |_| ()).expect_err("a clean end");
    let (length, whole) = bodies.recv_timeout(BOUND).unwrap();
    assert!(length <= 10 && !whole, "{length} bytes, whole: {whole}");
    expect_reason(&gateway, 200, "abandoned");
}

#[test]
fn a_route_has_a_limit_of_its_own_also_after_a_reload() {
    let up = up();
    let route = |path: &str, keys: &str| format!("[[routes]]\npath = \"{path}\"\n{keys}\n");
    let rest = |small: &str| {
        let routes = [
            route("/server", "upstream = \"up\""),
            route("/small", &format!("upstream = \"up\"\nmax_body_size = {small:?}")),
            route("/large", "upstream = \"up\"\nmax_body_size = \"1KiB\""),
            route("/any", "upstream = \"up\"\nmax_body_size = \"0\""),
            route("/own", "respond = { status = 200 }"),
        ];
        format!("{}{}", up.section(), routes.concat())
    };
    let gateway = Gateway::with_server("max_body_size = \"100B\"", &rest("10B"));
    let taken = |path, length| gateway.client().call(post(path, length)).status == 200;
    for (path, most) in [("/server", 100), ("/small", 10), ("/large", 1024), ("/own", 100)] {
        assert!(taken(path, most), "{path}");
        assert!(!taken(path, most + 1), "{path}");
    }
    assert!(taken("/any", 1 << 20));
    gateway.reload("max_body_size = \"200B\"", &rest("20B"));
    gateway.wait_message("reloaded");
    for (path, most) in [("/server", 200), ("/small", 20), ("/large", 1024)] {
        until("the new limit is in force", BOUND, || taken(path, most));
        assert!(!taken(path, most + 1), "{path}");
    }
}

#[test]
fn check_shows_the_largest_body() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let routes = "[[routes]]\npath = \"/a\"\nrespond = { status = 200 }\nmax_body_size = \"1KiB\"\n\
                  [[routes]]\npath = \"/b\"\nrespond = { status = 200 }\n";
    std::fs::write(&file, routes).unwrap();
    let output = run(&["check", "--config", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("accepts bodies of at most").count(), 1, "{text}");
    assert!(text.contains("accepts bodies of at most 1024 bytes"), "{text}");
}

#[test]
fn a_client_that_goes_on_sending_gets_the_response() {
    let up = up();
    let gateway = Arc::new(Gateway::with_server("max_body_size = \"10B\"", &up.everything()));
    for _ in 0..5 {
        let mut client = gateway.client();
        // More than the sockets buffer. The client reads nothing before everything is sent, as simple clients do.
        let sent = client.wire.write(post("/", 16 << 20).as_bytes());
        let response = client.try_response(false).unwrap_or_else(|error| panic!("{error}, after {sent:?}"));
        response.expect_problem(413);
    }
}
