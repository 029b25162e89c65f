//! A head that begins in the same piece as a complete request has the same time limit as every head.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Gateway, Upstream, reply};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const BEGUN: &str = "GET / HTTP/1.1\r\nX-Begun: ";
const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
const TIMES: &str = "header_timeout = \"3s\"\nidle_timeout = \"1h\"\n";

#[test]
fn a_head_that_begins_after_a_request_has_to_come_in_time() {
    let gateway = Gateway::with_server(TIMES, FIXED);
    let clients = ["G", BEGUN].map(|begun| {
        let (mut client, start) = (gateway.client(), Instant::now());
        client.send(format!("{ASK}{begun}"));
        (begun, client, start)
    });
    for (begun, mut client, start) in clients {
        assert_eq!(client.response(false).status, 200);
        client.response(false).expect_problem(408);
        assert!(client.closed().is_empty());
        let waited = start.elapsed();
        assert!((Duration::from_millis(2_400)..Duration::from_secs(19)).contains(&waited), "{waited:?} for {begun:?}");
    }
    gateway.wait_log("the heads", |line| line["message"] == "request" && line["reason"] == "header_timeout");
}

#[test]
fn single_bytes_do_not_prolong_its_time() {
    let gateway = Gateway::with_server(TIMES, FIXED);
    let mut client = gateway.client();
    client.send(format!("{ASK}{BEGUN}"));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(19) && client.wire.write(b"x").is_ok() {
        sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() < Duration::from_secs(19), "it goes on for ever");
}

#[test]
fn the_time_of_a_head_begins_after_the_previous_response() {
    let up = Upstream::start(|_| {
        sleep(Duration::from_millis(3_500));
        reply(200, "late")
    });
    let gateway = Gateway::with_server(TIMES, &up.everything());
    let mut client = gateway.client();
    client.send(format!("{ASK}{BEGUN}"));
    assert_eq!(client.response(false).text(), "late");
    client.send("x\r\nHost: a\r\n\r\n");
    assert_eq!(client.response(false).text(), "late");
}

#[test]
fn empty_lines_are_not_a_request() {
    let gateway = Gateway::with_server(TIMES, FIXED);
    let mut client = gateway.client();
    client.send(format!("{ASK}\r\n"));
    assert_eq!(client.response(false).status, 200);
    sleep(Duration::from_millis(3_500));
    assert_eq!(client.get("/").status, 200);
}
