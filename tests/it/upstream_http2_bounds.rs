//! HTTP/2 to upstreams: bounds of servers that hold although clients cancel requests, and servers that allow no request for a
//! time, say nothing for a time, or send empty pieces or too much.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use h2::Reason;
use h2::server::Builder;
use http::{HeaderValue, Response};
use socket2::SockRef;

use crate::harness::http2::{ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, frame, kind};
use crate::harness::http2_server::{Frames, Http2Server, STATUS_200, over_http2};
use crate::harness::{Client, Gateway, until};

const PATIENCE: Duration = Duration::from_secs(20);
const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const WHOLE: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
const HALF: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe";

/// What a server sees. It answers a request with a body when the body is complete, and no others.
#[derive(Debug, Default)]
struct Seen {
    /// The streams that are open now, by connection.
    open: Mutex<HashSet<(usize, u32)>>,
    /// The most that were open at a time.
    peak: AtomicUsize,
    requests: AtomicUsize,
    resets: AtomicUsize,
    connections: AtomicUsize,
    /// Whether the server announces the end of the first connection when it gets the next frame there.
    says_goodbye: AtomicBool,
    /// Whether it ends a connection with the next reset.
    hangs_up: AtomicBool,
}

impl Seen {
    fn at(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    fn opened(&self, stream: (usize, u32)) {
        let mut open = self.open.lock().unwrap();
        open.insert(stream);
        self.peak.fetch_max(open.len(), Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    fn ended(&self, stream: (usize, u32)) {
        self.open.lock().unwrap().remove(&stream);
    }
}

fn server() -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let record = seen.clone();
    let address = Frames::serve(move |mut frames, number| {
        record.connections.fetch_add(1, Ordering::SeqCst);
        let mut last = 0;
        while let Ok(frame) = frames.next() {
            let stream = (number, frame.stream);
            match frame.kind {
                kind::SETTINGS if frame.flags & ACK == 0 => frames.send(kind::SETTINGS, ACK, 0, &[]),
                kind::PING if frame.flags & ACK == 0 => frames.send(kind::PING, ACK, 0, &frame.payload),
                kind::HEADERS => {
                    last = frame.stream;
                    record.opened(stream);
                }
                kind::DATA if frame.flags & END_STREAM != 0 => {
                    frames.answer(frame.stream, "well");
                    record.ended(stream);
                }
                kind::RST_STREAM => {
                    record.ended(stream);
                    record.resets.fetch_add(1, Ordering::SeqCst);
                    if record.hangs_up.load(Ordering::SeqCst) {
                        return;
                    }
                }
                _ => {}
            }
            if number == 0 && record.says_goodbye.swap(false, Ordering::SeqCst) {
                frames.go_away(last, Reason::NO_ERROR);
            }
        }
    });
    (address, seen)
}

/// Requests that have come to the server, each of a client with another address, after a part of a request with a body.
fn begin(gateway: &Gateway, seen: &Seen, count: usize) -> Vec<Client> {
    let before = Seen::at(&seen.requests);
    let address = |number: usize| [127, 0, 1, u8::try_from(number + 1).unwrap()].into();
    let mut clients: Vec<_> = (0..count).map(|number| Client::connect_from(address(number), gateway.http)).collect();
    clients.iter_mut().for_each(|client| client.send(ASK));
    until("they have come", PATIENCE, || Seen::at(&seen.requests) == before + count);
    clients
}

/// A part of a request, which has come to the server. Others share its connection.
fn begin_half(gateway: &Gateway, seen: &Seen) -> Client {
    let before = Seen::at(&seen.requests);
    let mut client = gateway.client();
    client.send(HALF);
    until("it has come", PATIENCE, || Seen::at(&seen.requests) > before);
    client
}

fn cancel(clients: Vec<Client>) {
    for client in clients {
        SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

#[track_caller]
fn finish(mut half: Client) {
    half.send("llo");
    assert_eq!(half.response(false).text(), "well");
}

#[test]
fn requests_that_clients_cancel_stay_in_flight_until_the_server_knows() {
    let (address, seen) = server();
    let waits = "max_in_flight = 12\nmax_waiting = 100\nmax_wait = \"60s\"";
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, waits));
    let under_way = begin_half(&gateway, &seen);
    for _ in 0..5 {
        cancel(begin(&gateway, &seen, 11));
    }
    // What the gateway sends at once, resets and the next requests, may come in any order. All requests are 56.
    assert!(Seen::at(&seen.peak) <= 12 + 11, "{} requests at a time", Seen::at(&seen.peak));
    until("all are reset", PATIENCE, || Seen::at(&seen.resets) == 55);
    until("their places are free", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == Some(1.0));
    assert_eq!(Seen::at(&seen.connections), 1);
    finish(under_way);
    until("none is in flight", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == Some(0.0));
}

#[test]
fn the_end_of_a_connection_frees_all_places() {
    let (address, seen) = server();
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, "max_in_flight = 61"));
    let under_way = begin_half(&gateway, &seen);
    let cancelled = begin(&gateway, &seen, 60);
    seen.hangs_up.store(true, Ordering::SeqCst);
    cancel(cancelled);
    until("all places are free", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == Some(0.0));
    assert!(Seen::at(&seen.resets) < 60);
    drop(under_way);
}

#[test]
fn cancelled_requests_are_reset_on_a_connection_that_takes_no_more() {
    for says_goodbye in [true, false] {
        let (address, seen) = server();
        let keys = if says_goodbye { "max_in_flight = 90" } else { "max_in_flight = 90\nmax_age = \"1s\"" };
        let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, keys));
        let under_way = begin_half(&gateway, &seen);
        let cancelled = begin(&gateway, &seen, 30);
        seen.says_goodbye.store(says_goodbye, Ordering::SeqCst);
        let mut others = begin(&gateway, &seen, 1);
        until("others get another connection", PATIENCE, || {
            others.extend(begin(&gateway, &seen, 1));
            thread::sleep(Duration::from_millis(200));
            Seen::at(&seen.connections) > 1
        });
        // Until the gateway has looked at its connections again.
        thread::sleep(Duration::from_millis(1500));
        cancel(cancelled);
        until("all are reset", PATIENCE, || Seen::at(&seen.resets) == 30);
        #[expect(clippy::cast_precision_loss, reason = "they are few")]
        let left = Some((others.len() + 1) as f64);
        until("places are free", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == left);
        finish(under_way);
    }
}

/// The payload of settings that allow so many streams at a time.
fn allowing(streams: u8) -> [u8; 6] {
    [0, 3, 0, 0, 0, streams]
}

/// A stream that the test ends.
type Held = Arc<Mutex<Option<(Frames, u32)>>>;

/// Begins a response on the stream, whose end is left to the test.
fn hold(held: &Held, frames: &mut Frames, stream: u32) {
    frames.send(kind::HEADERS, END_HEADERS, stream, STATUS_200);
    frames.send(kind::DATA, 0, stream, b"we");
    let twin = Frames { socket: frames.socket.try_clone().unwrap() };
    *held.lock().unwrap() = Some((twin, stream));
}

#[track_caller]
fn end(held: &Held, mut client: Client) {
    let (mut frames, stream) = held.lock().unwrap().take().unwrap();
    frames.send(kind::DATA, END_STREAM, stream, b"ll");
    assert_eq!(client.response(false).text(), "well");
}

#[test]
fn a_connection_whose_server_allows_no_request_gets_none() {
    for is_busy in [true, false] {
        let held = Held::default();
        let kept = held.clone();
        let address = Frames::serve(move |mut frames, number| {
            while let Ok(head) = frames.until(kind::HEADERS) {
                if number > 0 {
                    frames.answer(head.stream, &number.to_string());
                    continue;
                }
                frames.send(kind::SETTINGS, 0, 0, &allowing(0));
                if is_busy {
                    hold(&kept, &mut frames, head.stream);
                } else {
                    frames.answer(head.stream, "0");
                }
            }
        });
        let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, "timeout = \"8s\""));
        let mut first = gateway.client();
        first.send(ASK);
        if is_busy {
            until("it has come", PATIENCE, || held.lock().unwrap().is_some());
        } else {
            assert_eq!(first.response(false).text(), "0");
        }
        for request in [ASK, WHOLE, ASK] {
            assert_eq!(gateway.client().call(request).text(), "1", "{is_busy} {request}");
        }
        if is_busy {
            end(&held, first);
        }
    }
}

/// A server that sends these pieces on each connection, one every 300 ms, and then answers requests, or says nothing more.
fn slow_to_begin(pieces: Vec<Vec<u8>>, answers: bool) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let pieces = pieces.clone();
            thread::spawn(move || {
                let mut socket = socket.unwrap();
                for piece in pieces {
                    let _ = socket.write_all(&piece);
                    thread::sleep(Duration::from_millis(300));
                }
                if !answers {
                    let _ = socket.read_to_end(&mut Vec::new());
                    return;
                }
                socket.read_exact(&mut [0; PREFACE.len()]).unwrap();
                let mut frames = Frames { socket };
                while let Ok(head) = frames.until(kind::HEADERS) {
                    frames.answer(head.stream, "late");
                }
            });
        }
    });
    address
}

#[test]
fn a_connection_is_made_when_its_settings_allow_a_request() {
    let settings = |payload: &[u8]| frame(kind::SETTINGS, 0, 0, payload);
    let (zero, some) = (settings(&allowing(0)), settings(&allowing(2)));
    let (begun, rest) = some.split_at(5);
    for pieces in [vec![begun.to_vec(), rest.to_vec()], vec![zero.clone(), some.clone()]] {
        let server = slow_to_begin(pieces, true);
        let gateway = Gateway::with_server("workers = 1", &over_http2("http", server, "connect_timeout = \"20s\""));
        assert_eq!(gateway.client().get("/").text(), "late");
    }
    for pieces in [vec![begun.to_vec()], vec![zero.clone()]] {
        let server = slow_to_begin(pieces, false);
        let keys = "connect_timeout = \"4s\"\neject = false\nbalance = \"round-robin\"";
        let alone = over_http2("http", server, keys);
        let gateway = Gateway::with_server("workers = 1", &alone);
        gateway.client().get("/").expect_problem(504);
        assert_eq!(gateway.wait_message("upstream failed")["reason"], "connect_timeout");

        let other = Http2Server::echo(None);
        let with_other = alone.replace("servers = [", &format!("servers = [\"http://{}\", ", other.address));
        let gateway = Gateway::with_server("workers = 1", &with_other);
        for _ in 0..2 {
            assert_eq!(gateway.client().call(WHOLE).text(), "hello");
        }
    }
}

#[test]
fn empty_pieces_of_bodies_break_no_others() {
    let held = Held::default();
    let kept = held.clone();
    let address = Frames::serve(move |mut frames, number| {
        let mut is_first = number == 0;
        while let Ok(head) = frames.until(kind::HEADERS) {
            if std::mem::take(&mut is_first) {
                hold(&kept, &mut frames, head.stream);
                continue;
            }
            frames.send(kind::HEADERS, END_HEADERS, head.stream, STATUS_200);
            // Half of them are nothing but padding.
            let (flags, payload): (_, &[u8]) = if head.stream % 4 == 1 { (PADDED, &[2, 0, 0]) } else { (0, &[]) };
            frames.send(kind::DATA, flags, head.stream, payload);
            frames.send(kind::DATA, END_STREAM, head.stream, number.to_string().as_bytes());
        }
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let mut under_way = gateway.client();
    under_way.send(ASK);
    until("it has come", PATIENCE, || held.lock().unwrap().is_some());
    let mut client = gateway.client();
    let numbers: Vec<usize> = (0..130).map(|_| client.get("/").text().parse().unwrap()).collect();
    assert_eq!((numbers[0], numbers[129]), (0, 2), "{numbers:?}");
    end(&held, under_way);
}

#[test]
fn a_response_has_as_many_headers_as_over_http_1() {
    let server = Http2Server::start(None, Builder::new(), |request, mut respond| async move {
        let mut response = Response::new(());
        let count: usize = request.uri().path()[1..].parse().unwrap();
        (0..count).for_each(|_| _ = response.headers_mut().append("x-many", HeaderValue::from_static("x")));
        let _ = respond.send_response(response, true);
    });
    let gateway = Gateway::start(&server.everything("http", ""));
    assert_eq!(gateway.client().get("/128").status, 200);
    gateway.client().get("/129").expect_problem(502);
}
