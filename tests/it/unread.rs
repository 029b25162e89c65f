//! Clients that do not read: nothing waits for them for ever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::harness::http2::{RawHttp2, frame, get, kind};
use crate::harness::{Gateway, Upstream, until};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends without end, and reports when it cannot send any more.
fn endless() -> (Upstream, Arc<Mutex<Option<Instant>>>) {
    let ended = Arc::new(Mutex::new(None));
    let end = Arc::clone(&ended);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\n\r\n");
        while wire.write(&[b'x'; 16 << 10]).is_ok() {}
        *end.lock().unwrap() = Some(Instant::now());
    });
    (up, ended)
}

#[test]
fn a_client_that_does_not_read_frees_the_upstream_and_its_place() {
    let (up, ended) = endless();
    let limit = "[limits.l]\nkey = \"global\"\nmax_in_flight = 1\n";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::with_server("body_timeout = \"4s\"", &format!("{limit}{}{route}", up.section()));
    let mut client = gateway.client();
    let begun = Instant::now();
    client.send(ASK);
    assert_eq!(client.try_head().unwrap().0.status, 200);
    assert_eq!(gateway.client().get("/").status, 429, "its place is taken");
    until("the upstream is left", Duration::from_secs(20), || ended.lock().unwrap().is_some());
    let waited = ended.lock().unwrap().unwrap() - begun;
    assert!((Duration::from_millis(3_900)..Duration::from_secs(15)).contains(&waited), "{waited:?}");
    let line = gateway.wait_log("the request", |line| line["message"] == "request" && line["status"] == 200);
    assert_eq!((&line["outcome"], &line["reason"]), (&"abandoned".into(), &"body_timeout".into()), "{line}");
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(1.0));
    assert_eq!(gateway.metric("gateway_connections_stalled_total"), Some(1.0));
    let mut next = gateway.client();
    next.send(ASK);
    assert_eq!(next.try_head().unwrap().0.status, 200, "its place is free");
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    let body = "x".repeat(12 << 20);
    let route = format!("[[routes]]\npath = \"/\"\nrespond = {{ status = 200, body = \"{body}\" }}\n");
    let gateway = Gateway::with_server("body_timeout = \"4s\"", &route);
    let mut client = gateway.client();
    SockRef::from(client.wire.stream()).set_recv_buffer_size(64 << 10).unwrap();
    client.send(ASK);
    let (_, framing) = client.try_head().unwrap();
    let (mut taken, begun) = (0, Instant::now());
    client
        .wire
        .body(framing, &mut |piece| {
            taken += piece.len();
            std::thread::sleep(Duration::from_nanos(500 * piece.len() as u64));
        })
        .unwrap_or_else(|error| panic!("{error} after {taken} bytes"));
    assert_eq!(taken, body.len());
    assert!(begun.elapsed() > Duration::from_secs(5), "not slowly: {:?}", begun.elapsed());
}

#[test]
fn a_client_that_sends_requests_but_reads_no_response_is_disconnected() {
    let body = "x".repeat(64 << 10);
    let route = format!("[[routes]]\npath = \"/\"\nrespond = {{ status = 200, body = \"{body}\" }}\n");
    let gateway = Gateway::with_server("body_timeout = \"500ms\"", &route);
    let mut client = gateway.client();
    client.wire.stream().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let before = gateway.memory("VmRSS");
    let begun = Instant::now();
    // Until the gateway reads no more, and then until it has closed the connection.
    let mut over = false;
    while !over && begun.elapsed() < Duration::from_secs(10) {
        over = match client.wire.write(ASK.repeat(100).as_bytes()) {
            Ok(()) => false,
            Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        };
    }
    assert!(over, "it goes on for ever");
    assert_eq!(gateway.metric("gateway_connections_stalled_total"), Some(1.0));
    assert!(gateway.memory("VmHWM") - before < 16 << 20, "answers pile up");
}

/// Sends without end to many at a time, and counts the bytes of all.
fn endless_to_many() -> (Upstream, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\n\r\n");
        while wire.write(&[b'x'; 16 << 10]).is_ok() {
            count.fetch_add(16 << 10, Ordering::SeqCst);
        }
    });
    (up, sent)
}

/// How much the memory of the gateway grows until the upstream cannot send any more.
fn grown(gateway: &Gateway, sent: &AtomicUsize, begin: impl FnOnce()) -> u64 {
    let before = gateway.memory("VmRSS");
    begin();
    let mut last = 0;
    until("nothing more is sent", Duration::from_secs(60), || {
        std::thread::sleep(Duration::from_secs(1));
        let now = sent.load(Ordering::SeqCst);
        now > 0 && now == std::mem::replace(&mut last, now)
    });
    gateway.memory("VmRSS").saturating_sub(before) >> 10
}

#[test]
fn little_is_kept_for_each_client_that_does_not_read() {
    const CLIENTS: u64 = 200;
    let (up, sent) = endless_to_many();
    let gateway = Gateway::with_server("workers = 1\nbody_timeout = \"300s\"", &up.everything());
    let mut clients = Vec::new();
    let mut begin = |count| {
        clients.extend((0..count).map(|_| {
            let mut client = gateway.client();
            client.send(ASK);
            client
        }));
    };
    // The first ones also allocate what all share.
    grown(&gateway, &sent, || begin(50));
    let kib = grown(&gateway, &sent, || begin(CLIENTS));
    println!("{} KiB each", kib / CLIENTS);
    assert!(kib < CLIENTS * 240, "{} KiB each", kib / CLIENTS);
}

#[test]
fn little_is_kept_for_a_client_of_http2_that_does_not_read() {
    const STREAMS: u32 = 250;
    let (up, sent) = endless_to_many();
    let gateway = Gateway::with_server("workers = 1\nbody_timeout = \"300s\"", &up.everything());
    // The client grants the largest window.
    let most = u32::MAX >> 1;
    let mut client = RawHttp2::connect(gateway.http, &[(4, most)]);
    let kib = grown(&gateway, &sent, || {
        client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &(most - 65_535).to_be_bytes())).unwrap();
        client.send(&(0..STREAMS).flat_map(|number| get(2 * number + 1, "/")).collect::<Vec<_>>()).unwrap();
    });
    assert!(kib < 12 << 10, "{kib} KiB");
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_body_frees_the_upstream() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        wire.rest();
        tell.lock().unwrap().send(()).unwrap();
    });
    let gateway = Gateway::with_server("body_timeout = \"500ms\"", &up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nbegin");
    client.response(false).expect_problem(408);
    assert!(client.closed().is_empty());
    told.recv_timeout(Duration::from_secs(10)).expect("the upstream is not released");
}
