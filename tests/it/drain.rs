//! The end of the process: requests in flight finish, new ones are not accepted, and there is a deadline.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::bytes::{self, PATIENCE, files, settles_at};
use crate::harness::http2::{self, RawHttp2, kind};
use crate::harness::{Client, Gateway, Software, Upstream, limited, reply, until, with_each_server};

/// Sends one response for every message of the test.
fn held_back() -> (Upstream, Sender<()>) {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(_)) = wire.head() {
            let _ = released.lock().unwrap().recv();
            let _ = wire.write(&reply(200, "finished"));
        }
    });
    (up, release)
}

fn under_way(gateway: &Gateway, up: &Upstream) -> Client {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    up.wait_connections(1);
    client
}

#[test]
fn sigterm_finishes_requests_and_accepts_no_new_ones() {
    let (up, release) = held_back();
    let fixed = "[[routes]]\npath = \"/fixed\"\nrespond = { status = 200 }\n";
    let mut gateway = Gateway::start(&format!("{}{fixed}", up.everything()));
    let mut idle = gateway.client();
    assert_eq!(idle.get("/fixed").status, 200);
    assert_eq!(gateway.admin("/readyz").status, 200);
    let mut busy = under_way(&gateway, &up);

    gateway.signal(Signal::TERM);
    gateway.wait_message("draining");
    assert!(idle.closed().is_empty());
    until("new connections are refused", Duration::from_secs(20), || TcpStream::connect(gateway.http).is_err());
    assert_eq!(gateway.admin("/readyz").status, 503);
    assert_eq!(gateway.admin("/healthz").status, 200);

    release.send(()).unwrap();
    let response = busy.response(false);
    assert_eq!((response.status, response.text()), (200, "finished"));
    assert!(busy.closed().is_empty());
    assert_eq!(gateway.wait_exit().code(), Some(0));
    gateway.wait_message("stopped");
}

#[test]
fn without_requests_it_stops_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let up = Upstream::start(|_| reply(200, ""));
        let mut gateway = Gateway::start(&up.everything());
        let mut idle = gateway.client();
        assert_eq!(idle.get("/").status, 200);
        let asked = Instant::now();
        gateway.signal(signal);
        assert_eq!(gateway.wait_exit().code(), Some(0), "{signal:?}");
        // Below drain_timeout, which is 30 s.
        assert!(asked.elapsed() < Duration::from_secs(20), "{signal:?}: {:?}", asked.elapsed());
        gateway.wait_message("stopped");
    }
}

#[test]
fn a_signal_right_after_the_start_is_handled() {
    // A supervisor may send a signal right after "listening". Without a handler the signal would kill the process.
    for _ in 0..10 {
        let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n");
        gateway.signal(Signal::HUP);
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait_exit().code(), Some(0));
    }
}

#[test]
fn sigint_finishes_requests_too() {
    let (up, release) = held_back();
    let mut gateway = Gateway::start(&up.everything());
    let mut busy = under_way(&gateway, &up);
    gateway.signal(Signal::INT);
    gateway.wait_message("draining");
    release.send(()).unwrap();
    assert_eq!(busy.response(false).status, 200);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn a_drain_ends_at_drain_timeout() {
    let (up, _never) = held_back();
    let mut gateway = Gateway::with_server("drain_timeout = \"700ms\"", &up.everything());
    let mut busy = under_way(&gateway, &up);
    let asked = Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    let took = asked.elapsed();
    assert!((Duration::from_millis(600)..Duration::from_secs(20)).contains(&took), "{took:?}");
    let left = busy.closed();
    assert!(!left.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&left));
}

#[test]
fn a_body_that_is_being_sent_is_finished_too() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        let _ = released.lock().unwrap().recv();
        let _ = wire.write(b"4\r\nlast\r\n0\r\n\r\n");
    });
    let mut gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (_, framing) = client.try_head().unwrap();
    gateway.signal(Signal::TERM);
    gateway.wait_message("draining");
    release.send(()).unwrap();
    let mut body = Vec::new();
    client.wire.body(framing, &mut |piece| body.extend_from_slice(piece)).unwrap();
    assert_eq!(body, b"firstlast");
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn a_response_that_the_client_has_not_read_is_finished_too() {
    // More than the system buffers.
    let body = "x".repeat(16 << 20);
    let route = format!("[[routes]]\npath = \"/\"\nrespond = {{ status = 200, body = \"{body}\" }}\n");
    let mut gateway = Gateway::start(&route);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (_, framing) = client.try_head().unwrap();
    gateway.signal(Signal::TERM);
    gateway.wait_message("draining");
    sleep(Duration::from_millis(100));
    let mut read = 0;
    client.wire.body(framing, &mut |piece| read += piece.len()).unwrap();
    assert_eq!(read, body.len());
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn connections_that_are_not_accepted_yet_are_served() {
    let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n");
    gateway.signal(Signal::STOP);
    let mut asking: Vec<_> = (0..150).map(|_| gateway.client()).collect();
    let mut silent: Vec<_> = (0..150).map(|_| gateway.client()).collect();
    asking.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    gateway.signal(Signal::TERM);
    gateway.signal(Signal::CONT);
    for client in &mut asking {
        assert_eq!(client.response(false).status, 200);
    }
    for client in asking.iter_mut().chain(&mut silent) {
        assert!(client.closed().is_empty());
    }
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn the_log_is_complete_when_it_ends() {
    let up = Upstream::start(|_| reply(200, ""));
    let mut gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for _ in 0..200 {
        client.get("/");
    }
    gateway.signal(Signal::TERM);
    gateway.wait_exit();
    gateway.wait_message("stopped");
    let requests = gateway.log().iter().filter(|line| line.contains("\"message\":\"request\"")).count();
    assert_eq!(requests, 200);
}

fn all_admissions_are_written_before_the_end(software: Software) {
    for workers in [1, 2] {
        let server = software.start();
        let rest = server.store_with("timeout = \"5s\"") + &limited("global", "1000/d", "");
        let mut gateway = Gateway::with_server(&format!("workers = {workers}"), &rest);
        let mut client = gateway.client();
        for _ in 0..20 {
            assert_eq!(client.get("/").status, 200);
        }
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.wait_exit().code(), Some(0));
        assert_eq!(server.counted(), 20, "{workers} workers");
    }
}

#[test]
fn a_request_whose_head_has_begun_is_answered() {
    for before in [0, 1] {
        let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n");
        let mut client = gateway.client();
        for _ in 0..before {
            assert_eq!(client.get("/").status, 200);
        }
        client.send("GET / HTTP/1.1\r\nHo");
        // Nothing shows that the gateway has read it.
        sleep(Duration::from_millis(200));
        gateway.signal(Signal::TERM);
        gateway.wait_message("draining");
        sleep(Duration::from_millis(200));
        client.send("st: a\r\n\r\n");
        assert_eq!(client.response(false).status, 200, "after {before}");
        assert!(client.closed().is_empty());
        assert_eq!(gateway.wait_exit().code(), Some(0));
    }
}

fn what_is_cut_off_costs_what_has_passed_of_it(software: Software) {
    let (server, upstream) = (software.start(), files());
    let rest = server.store_with("timeout = \"5s\"")
        + &bytes::limit("100000B", "bytes = \"request\"")
        + &format!("{}limits = [\"l\"]\n", upstream.everything());
    let mut gateway = Gateway::with_server("drain_timeout = \"2s\"", &rest);
    let mut client = gateway.client();
    client.send(format!("PUT /0 HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n{}", "x".repeat(1000)));
    let mut multiplexed = RawHttp2::connect(gateway.http, &[]);
    let head: [(&[u8], &[u8]); 5] = [
        (b":method", b"PUT"),
        (b":scheme", b"http"),
        (b":authority", b"a"),
        (b":path", b"/0"),
        (b"content-length", b"20000"),
    ];
    multiplexed.send(&http2::headers(1, 0, &head)).unwrap();
    multiplexed.send(&http2::frame(kind::DATA, 0, 1, &[b'x'; 500])).unwrap();
    until("both are reserved", PATIENCE, || bytes::left(&gateway) == 20_000);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    settles_at(&Gateway::start(&rest), 98_500);
}

with_each_server! {
    all_admissions_are_written_before_the_end
    what_is_cut_off_costs_what_has_passed_of_it
}
