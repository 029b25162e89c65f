//! Costs in bytes of uploads, and of both directions together, in HTTP/1.1 and HTTP/2.

use std::io::Write;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::bytes::{PATIENCE, files, left, limit, start};
use crate::harness::http2::{END_STREAM, PADDED, RawHttp2, Reaction, frame, get, headers, kind};
use crate::harness::http2_server::Http2Server;
use crate::harness::{Client, Framing, Gateway, Software, Upstream, Wire, every_store, reply, until, with_each_server};

const REQUEST: &str = "bytes = \"request\"";
const CUT: &str = "bytes = \"request\", reserve = \"2KiB\", on_exhausted = \"cut\"";

fn put(length: usize) -> String {
    format!("PUT /0 HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length))
}

fn put_chunked(length: usize) -> String {
    let chunks = format!("3e8\r\n{}\r\n", "x".repeat(1000)).repeat(length / 1000);
    format!("PUT /0 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
}

#[test]
fn an_upload_of_known_length_passes_if_there_is_room_for_all_of_it() {
    every_store(|store| {
        let upstream = files();
        let gateway = start(store, "10000B", REQUEST, &upstream);
        for expected in [6000, 2000] {
            assert_eq!(gateway.client().call(put(4000)).status, 200);
            assert_eq!(left(&gateway), expected, "{store}");
        }
        gateway.client().call(put(4000)).expect_problem(429);
        let never = gateway.client().call(put(10_001));
        never.expect_problem(413);
        assert!(never.text().contains("costs 10001"), "{}", never.text());
        assert_eq!(upstream.received().iter().filter(|request| request.method == "PUT").count(), 2);
        assert_eq!(gateway.client().call(put(2000)).status, 200);
        assert_eq!(gateway.client().call(put(0)).status, 429, "without room for a byte nothing passes");
    });
}

#[test]
fn a_client_that_waits_for_leave_is_refused_before_it_sends() {
    every_store(|store| {
        let gateway = start(store, "1000B", REQUEST, &files());
        let mut client = gateway.client();
        client.send("PUT /0 HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 800\r\n\r\n");
        assert_eq!(client.try_head().unwrap().0.status, 100);
        client.send("x".repeat(800));
        assert_eq!(client.response(false).status, 200);
        client.send("PUT /0 HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 800\r\n\r\n");
        assert_eq!(client.response(false).status, 429);
    });
}

#[test]
fn an_upload_without_a_length_is_cut_and_answered() {
    every_store(|store| {
        let upstream = files();
        let gateway = start(store, "10000B", CUT, &upstream);
        let mut client = gateway.client();
        client.send(put_chunked(30_000));
        let refused = client.response(false);
        refused.expect_problem(429);
        assert!(refused.headers.get("retry-after").is_some());
        client.closed();
        let line = gateway.wait_log("the reason", |line| line["reason"] == "bytes_exhausted");
        assert_eq!((&line["outcome"], &line["limit"]), (&"limited".into(), &"l".into()), "{line}");
        assert_eq!(gateway.used("l", "127.0.0.1"), 10_000, "{store}");
        assert!(upstream.received().is_empty(), "no server got a whole request");
    });
}

#[test]
fn uploads_that_are_cut_count_for_a_ban() {
    every_store(|store| {
        let cost = "bytes = \"request\", reserve = \"1000B\", on_exhausted = \"cut\"";
        let ban = "ban = { after = 2, for = \"1h\" }\n";
        let text = format!("{store}{}{ban}{}limits = [\"l\"]\n", limit("1000B", cost), files().everything());
        let gateway = Gateway::start(&text);
        let upload = || {
            let piece = "x".repeat(1500);
            let request = format!("PUT /0 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n{piece}\r\n");
            let refused = gateway.client().call(request);
            refused.expect_problem(429);
            refused.text().contains("refuses all of its requests for a while")
        };
        assert_eq!([(); 4].map(|()| upload()), [false, false, false, true], "{store}");
        assert_eq!(gateway.metric("gateway_bans_total{limit=\"l\"}"), Some(1.0), "{store}");
        assert_eq!(gateway.used("l", "127.0.0.1"), 0, "{store}");
    });
}

#[test]
fn an_upload_without_a_length_is_charged_past_the_quota_unless_it_is_cut() {
    every_store(|store| {
        let gateway = start(store, "10000B", REQUEST, &files());
        assert_eq!(gateway.client().call(put_chunked(30_000)).status, 200);
        until("all is charged", Duration::from_secs(10), || gateway.used("l", "127.0.0.1") == 30_000);
        assert_eq!(gateway.client().get("/0").status, 429);
    });
}

#[test]
fn both_directions_are_one_cost() {
    every_store(|store| {
        let gateway = start(store, "100000B", "bytes = \"both\"", &files());
        let upload = |path: &str, length: usize| put(length).replace("/0", path);
        assert_eq!(gateway.client().call(upload("/300", 4000)).status, 200);
        assert_eq!(left(&gateway), 95_700);
        assert_eq!(gateway.client().call(upload("/chunked/300", 4000)).status, 200);
        assert_eq!(left(&gateway), 91_400);
        let refused = gateway.client().call(upload("/99000", 1400));
        assert_eq!(refused.status, 429);
        assert_eq!(left(&gateway), 90_000, "what was uploaded stays charged: {store}");
    });
}

#[test]
fn an_upload_that_the_client_breaks_off_costs_what_has_come() {
    every_store(|store| {
        let upstream = Upstream::raw(|mut wire: Wire, _| {
            while let Ok(Some((line, _))) = wire.head() {
                if line.contains("GET") {
                    wire.write(&reply(200, "")).unwrap();
                } else {
                    wire.read_exact(&mut [0; 1000]).unwrap();
                }
            }
        });
        let gateway = start(store, "100000B", REQUEST, &upstream);
        let mut client = gateway.client();
        client.send(format!("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n{}", "x".repeat(1000)));
        until("the decision is made", Duration::from_secs(10), || left(&gateway) == 50_000);
        until("the upstream is asked", Duration::from_secs(10), || upstream.connections() >= 2);
        // What has come has passed once the upstream has it.
        drop(client);
        until("the rest is given back", Duration::from_secs(10), || left(&gateway) >= 99_000);
        assert!([99_000, 100_000].contains(&left(&gateway)), "{}", left(&gateway));
    });
}

#[test]
fn a_body_that_is_sent_again_is_counted_once() {
    every_store(|store| {
        let failing = Upstream::raw(|mut wire: Wire, _| {
            if let Ok(Some((_, headers))) = wire.head() {
                let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
                let _ = wire.read_exact(&mut vec![0; length]);
            }
        });
        let serving = files();
        let text = format!(
            "{store}{}[upstreams.up]\nservers = [\"http://{}\", \"http://{}\"]\nbalance = \"round-robin\"\neject = false\n\
             retry = {{ budget = 1.0 }}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n",
            limit("100000B", REQUEST),
            failing.address(),
            serving.address()
        );
        let gateway = Gateway::start(&text);
        for sent in 1..=4 {
            assert_eq!(gateway.client().call(put(1000)).status, 200);
            assert_eq!(gateway.used("l", "127.0.0.1"), sent * 1000, "{store}");
        }
        assert!(failing.connections() > 0, "something was sent again");
    });
}

#[test]
fn padding_of_http2_costs_nothing_and_cuts_reset_the_stream() {
    every_store(|store| {
        let upstream = files();
        let gateway = start(store, "10000B", "bytes = \"both\", reserve = \"2KiB\", on_exhausted = \"cut\"", &upstream);
        let mut client = RawHttp2::connect(gateway.http, &[]);
        let head: [(&[u8], &[u8]); 4] =
            [(b":method", b"PUT"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/500")];
        let mut padded = vec![200];
        padded.extend_from_slice(&[b'x'; 300]);
        padded.extend_from_slice(&[0; 200]);
        client.send(&headers(1, 0, &head)).unwrap();
        client.send(&frame(kind::DATA, PADDED | END_STREAM, 1, &padded)).unwrap();
        assert_eq!(client.reaction(1), Reaction::Status(200));
        client.find("the end", |frame| frame.stream == 1 && frame.flags & END_STREAM > 0);
        assert_eq!(gateway.used("l", "127.0.0.1"), 800, "{store}");
        client.send(&get(3, "/drip/50000")).unwrap();
        assert_eq!(client.reaction(3), Reaction::Status(200));
        let (mut passed, end) = (0, Instant::now() + Duration::from_secs(20));
        let last = loop {
            let frame = client.next(end).unwrap().unwrap();
            match frame.kind {
                kind::DATA if frame.stream == 3 => passed += frame.payload.len(),
                _ if frame.stream == 3 => break frame.kind,
                _ => {}
            }
        };
        assert_eq!((last, passed), (kind::RST_STREAM, 9000), "{store}");
        client.send(&get(5, "/500")).unwrap();
        assert_eq!(client.reaction(5), Reaction::Status(429));
        client.send(&get(7, "/200")).unwrap();
        assert_eq!(client.reaction(7), Reaction::Status(200));
    });
}

#[test]
fn bytes_of_an_upstream_that_speaks_http2_are_counted_alike() {
    every_store(|store| {
        let upstream = Http2Server::echo(None);
        let routed =
            upstream.everything("http", "").replacen("upstream = \"up\"\n", "upstream = \"up\"\nlimits = [\"l\"]\n", 1);
        let gateway = Gateway::start(&format!("{store}{}{routed}", limit("1000B", "bytes = \"response\"")));
        let path = format!("/{}", "x".repeat(699));
        let mut client: Client = gateway.client();
        assert_eq!(client.get(&path).body.len(), 700);
        assert_eq!(gateway.used("l", "127.0.0.1"), 700, "{store}");
        // The echo states no length, so all that the limit allows is reserved at once.
        assert_eq!((client.get(&path).status, gateway.used("l", "127.0.0.1")), (429, 700));
    });
}

/// Both directions of a request wait for the same answer of the store.
fn both_directions_go_on_when_the_store_answers(software: Software) {
    let server = software.start();
    let (tell, told) = mpsc::channel();
    let (go, begin) = mpsc::channel::<()>();
    let (tell, begin) = (Mutex::new(tell), Mutex::new(begin));
    let upstream = Upstream::raw(move |mut wire, _| {
        let (_, headers) = wire.head().unwrap().unwrap();
        let framing = headers.framing(Framing::UntilClose).unwrap();
        let mut answer = wire.stream().try_clone().unwrap();
        answer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.lock().unwrap().recv().unwrap();
                answer.write_all(b"1\r\n+\r\n").unwrap();
            });
            wire.body(framing, &mut |_| tell.lock().unwrap().send(()).unwrap()).unwrap();
        });
        wire.write(b"0\r\n\r\n").unwrap();
    });
    let store = server.store_with("on_error = \"reject\"\ntimeout = \"10s\"");
    let gateway = start(&store, "1MiB", "bytes = \"both\", reserve = \"1B\", on_exhausted = \"cut\"", &upstream);
    let mut client: Client = gateway.client();
    client.send("PUT /0 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    told.recv_timeout(PATIENCE).expect("the first byte has room");
    server.signal(Signal::STOP);
    client.send("1\r\nx\r\n");
    go.send(()).unwrap();
    // Nothing shows that both wait. If one of them is late, it asks on its own.
    thread::sleep(Duration::from_millis(500));
    server.signal(Signal::CONT);
    told.recv_timeout(PATIENCE).expect("the request goes on");
    client.send("0\r\n\r\n");
    assert_eq!(client.response(false).body, b"+", "the response goes on");
    until("both directions are charged", PATIENCE, || gateway.used("l", "127.0.0.1") == 3);
}

with_each_server! { both_directions_go_on_when_the_store_answers }
