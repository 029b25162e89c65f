//! Bytes that are not a request: each case is answered, and logged and counted with its reason.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Client, Gateway, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

#[track_caller]
fn line(gateway: &Gateway, reason: &str) -> Value {
    gateway.wait_log(reason, |line| line["message"] == "request" && line["reason"] == reason)
}

/// Fails unless the refusal is counted once, and logged with this status.
#[track_caller]
fn accounted(gateway: &Gateway, status: u16, reason: &str) {
    let line = line(gateway, reason);
    assert_eq!((&line["status"], &line["outcome"]), (&status.into(), &"refused".into()), "{line}");
    assert_eq!((&line["client"], &line["route"]), (&"127.0.0.1".into(), &"none".into()), "{line}");
    let metrics = gateway.admin("/metrics").text().to_owned();
    let request = "gateway_requests_total{route=\"none\",outcome=\"refused\",status=\"4xx\",method_class=\"other\"} 1";
    assert!(metrics.lines().any(|line| line == request), "{metrics}");
    let failure = format!("gateway_request_failures_total{{route=\"none\",reason=\"{reason}\"}} 1");
    assert!(metrics.lines().any(|line| line == failure), "no {failure} in {metrics}");
}

#[test]
fn bytes_that_are_not_http_are_recorded() {
    let requests: [&[u8]; 4] = [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Folded: a\r\n b\r\n\r\n",
        // Almost the preface of HTTP/2.
        b"PRI * HTTP/2.0\r\nHost: a\r\n\r\n",
    ];
    for request in requests {
        let gateway = Gateway::start(FIXED);
        let mut client = gateway.client();
        client.send(request);
        client.response(false).expect_problem(400);
        assert!(client.closed().is_empty());
        accounted(&gateway, 400, "bad_head");
    }
}

#[test]
fn they_are_recorded_after_a_request_too() {
    let gateway = Gateway::start(FIXED);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\ngarbage\r\n\r\n");
    assert_eq!(client.response(false).status, 200);
    client.response(false).expect_problem(400);
    assert!(client.closed().is_empty());
    accounted(&gateway, 400, "bad_head");
}

#[test]
fn a_head_that_is_too_large_is_recorded() {
    let gateway = Gateway::with_server("max_header_size = \"16KiB\"", FIXED);
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(17_000)));
    client.response(false).expect_problem(431);
    assert!(client.closed().is_empty());
    accounted(&gateway, 431, "max_header_size");
}

#[test]
fn a_target_that_is_too_long_is_recorded() {
    let gateway = Gateway::with_server("max_header_size = \"256KiB\"", FIXED);
    let mut client = gateway.client();
    client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000)));
    client.response(false).expect_problem(414);
    assert!(client.closed().is_empty());
    accounted(&gateway, 414, "max_header_size");
}

#[test]
fn a_head_with_too_many_fields_is_recorded() {
    let gateway = Gateway::start(FIXED);
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X-Field: 1\r\n".repeat(100)));
    client.response(false).expect_problem(431);
    assert!(client.closed().is_empty());
    accounted(&gateway, 431, "max_header_size");
}

#[test]
fn a_head_that_does_not_come_in_time_is_answered_and_recorded() {
    let gateway = Gateway::with_server("header_timeout = \"500ms\"", FIXED);
    let mut client = gateway.client();
    until("a request comes in time", Duration::from_secs(20), || {
        let is_answered = client.try_get() == Some(200);
        if !is_answered {
            client = gateway.client();
        }
        is_answered
    });
    let begun = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    client.response(false).expect_problem(408);
    assert!(begun.elapsed() > Duration::from_millis(400), "{:?}", begun.elapsed());
    assert!(client.closed().is_empty());
    accounted(&gateway, 408, "header_timeout");
    let micros = line(&gateway, "header_timeout")["micros"].as_u64().unwrap();
    assert!((400_000..20_000_000).contains(&micros), "{micros}");
}

#[test]
fn a_reload_shortens_the_wait_for_heads_that_have_begun() {
    let gateway = Gateway::with_server("header_timeout = \"1h\"", FIXED);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    gateway.reload("header_timeout = \"100ms\"", FIXED);
    client.response(false).expect_problem(408);
}

#[test]
fn a_head_that_comes_byte_by_byte_is_answered_when_its_time_is_over() {
    let gateway = Gateway::with_server("header_timeout = \"3s\"", FIXED);
    let mut client = gateway.client();
    client.wire.stream().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let begun = Instant::now();
    for byte in "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: and so on, and so on".bytes().cycle() {
        // This may fail after the response.
        if client.wire.write(&[byte]).is_err() || client.wire.stream().peek(&mut [0]).is_ok() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(19), "it goes on for ever");
    }
    client.wire.stream().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.response(false).expect_problem(408);
    accounted(&gateway, 408, "header_timeout");
}

#[test]
fn a_client_that_sends_nothing_gets_no_response() {
    let gateway = Gateway::with_server("header_timeout = \"300ms\"", FIXED);
    let mut client = gateway.client();
    assert!(client.closed().is_empty(), "browsers open connections that they may not need");
    assert!(!gateway.log().iter().any(|line| line.contains("\"request\"")), "{:?}", gateway.log());
    assert_eq!(gateway.metric("gateway_requests_total"), Some(0.0));
}

#[test]
fn the_response_reaches_a_client_that_is_still_sending() {
    let gateway = Gateway::with_server("max_header_size = \"16KiB\"", FIXED);
    for _ in 0..5 {
        let mut client = Client::connect(gateway.http);
        client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Long: ");
        // If the gateway did not read this, the connection would be reset and the response lost.
        for _ in 0..64 {
            let _ = client.wire.write(&[b'x'; 16 << 10]);
        }
        client.response(false).expect_problem(431);
    }
}
