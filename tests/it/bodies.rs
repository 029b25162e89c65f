//! Bodies of every size and framing, streamed in both directions and never stored as a whole.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Framing, Gate, Gateway, Pattern, Upstream, Wire, reply, until};

const MIB: usize = 1 << 20;
/// How much more memory the gateway may use for a body of any size.
const ROOM: u64 = 64 << 20;

/// Writes a body of the pattern in pieces of all sizes, with or without chunks.
fn write_body(mut to: impl Write, length: usize, chunked: bool) -> std::io::Result<()> {
    let (mut pattern, mut left, mut round) = (Pattern::new(), length, 0);
    while left > 0 {
        let size = [65_521, 1, 16_384, 40_000, 65_000][round % 5].min(left);
        round += 1;
        left -= size;
        if chunked {
            let head = format!("{size:x}\r\n");
            to.write_all(&[head.as_bytes(), pattern.next(size), b"\r\n"].concat())?;
        } else {
            to.write_all(pattern.next(size))?;
        }
    }
    if chunked { to.write_all(b"0\r\n\r\n") } else { Ok(()) }
}

fn framing_field(length: usize, chunked: bool) -> String {
    if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {length}") }
}

/// Checks the body as it comes, then responds with a body of the same length in the framing that the path names.
fn mirror() -> Upstream {
    Upstream::raw(|mut wire, _| {
        while let Ok(Some((line, headers))) = wire.head() {
            let framing = headers.framing(Framing::Length(0)).unwrap();
            let mut pattern = Pattern::new();
            wire.body(framing, &mut |piece| pattern.check(piece)).unwrap();
            let length = usize::try_from(pattern.len()).unwrap();
            let chunked = line.contains("/chunked");
            let head = format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", framing_field(length, chunked));
            wire.write(head.as_bytes()).unwrap();
            write_body(wire.stream(), length, chunked).unwrap();
        }
    })
}

fn round_trip(gateway: &Gateway, length: usize, chunked: bool, back_chunked: bool) {
    let mut client = gateway.client();
    let path = if back_chunked { "/chunked" } else { "/length" };
    client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n", framing_field(length, chunked)));
    let stream: TcpStream = client.wire.stream().try_clone().unwrap();
    let writer = thread::spawn(move || write_body(stream, length, chunked).unwrap());
    let (response, framing) = client.try_head().unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(framing == Framing::Chunked, back_chunked, "{framing:?}");
    let mut pattern = Pattern::new();
    client.wire.body(framing, &mut |piece| pattern.check(piece)).unwrap();
    writer.join().unwrap();
    assert_eq!(pattern.len(), length as u64);
    assert_eq!(client.get("/length").status, 200, "the connection is of no use after {length} bytes");
}

const WAYS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn small_bodies() {
    let up = mirror();
    let gateway = Gateway::start(&up.everything());
    for (chunked, back_chunked) in WAYS {
        for length in [0, 1, 2, 4096, 65_536, MIB] {
            round_trip(&gateway, length, chunked, back_chunked);
        }
    }
}

#[test]
fn pieces_arrive_as_they_are_sent() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        // The rest comes only when the client has the beginning.
        wire.body(Framing::Length(4), &mut |_| ()).unwrap();
        let _ = wire.write(b"4\r\nlast\r\n0\r\n\r\n");
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n");
    let (_, framing) = client.try_head().unwrap();
    assert_eq!(framing, Framing::Chunked);
    let mut body = Vec::new();
    let stream = client.wire.stream().try_clone().unwrap();
    client
        .wire
        .body(framing, &mut |piece| {
            if body.is_empty() {
                (&stream).write_all(b"more").unwrap();
            }
            body.extend_from_slice(piece);
        })
        .unwrap();
    assert_eq!(body, b"firstlast");
}

#[test]
fn trailers_pass_both_ways() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"
            .to_vec()
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n";
    let response = client.call(request);
    assert_eq!((response.text(), response.trailers.get("x-sum")), ("ok", Some("7")));
    let received = &up.received()[0];
    assert_eq!((&received.body[..], received.trailers.get("x-sum")), (&b"abc"[..], Some("6")));
    assert_eq!(client.get("/").text(), "ok");
}

#[test]
fn trailers_cannot_contain_forbidden_headers() {
    let up = Upstream::start(|_| reply(200, "ok"));
    let gateway = Gateway::start(&up.everything());
    let trailers = "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\nHost: b\r\nContent-Length: 9\r\n\
        Transfer-Encoding: chunked\r\nConnection: close\r\nX-Sum: 6\r\n";
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n";
    assert_eq!(gateway.client().call(format!("{request}{trailers}\r\n")).text(), "ok");
    let received = &up.received()[0].trailers;
    for name in ["x-forwarded-for", "forwarded", "host", "content-length", "transfer-encoding", "connection"] {
        assert_eq!(received.get(name), None, "{received:?}");
    }
    assert_eq!(received.get("x-sum"), Some("6"));
}

#[test]
fn expect_is_answered_when_the_body_is_needed() {
    let up = Upstream::start(|request| reply(200, std::str::from_utf8(&request.body).unwrap()));
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let gateway = Gateway::start(&format!("{limit}{}limits = [\"l\"]\n", up.everything()));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let mut client = gateway.client();
    client.send(head);
    let (interim, _) = client.try_head().unwrap();
    assert_eq!(interim.status, 100);
    client.send("hello");
    let response = client.response(false);
    assert_eq!((response.status, response.text()), (200, "hello"));

    // A client over the limit need not send its body.
    let mut client = gateway.client();
    client.send(head);
    assert_eq!(client.response(false).status, 429);
    assert_eq!(up.received().len(), 1);
}

#[test]
fn an_early_response_does_not_wait_for_the_body() {
    let up = Upstream::raw(|mut wire: Wire, _| {
        let _ = wire.head();
        let _ = wire.write(&reply(413, "too long"));
        let _ = wire.rest();
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nthe beginning");
    let response = client.response(false);
    assert_eq!((response.status, response.text()), (413, "too long"));
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn bodies_of_64_mib() {
        let up = mirror();
        let gateway = Gateway::start(&up.everything());
        for (chunked, back_chunked) in WAYS {
            round_trip(&gateway, 64 * MIB, chunked, back_chunked);
        }
    }

    #[test]
    fn a_body_of_1_gib_takes_no_memory() {
        let up = mirror();
        let gateway = Gateway::start(&up.everything());
        round_trip(&gateway, MIB, false, false);
        let before = gateway.memory("VmRSS");
        round_trip(&gateway, 1024 * MIB, false, false);
        // The peak, because memory may be larger between two measurements.
        let grown = gateway.memory("VmHWM").saturating_sub(before);
        assert!(grown < ROOM, "{} MiB more", grown >> 20);
    }

    #[test]
    fn a_client_that_does_not_read_stops_the_upstream() {
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let up = Upstream::raw(move |mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4294967296\r\n\r\n");
            let piece = vec![b'x'; 65_536];
            while wire.write(&piece).is_ok() {
                counter.fetch_add(piece.len() as u64, Ordering::SeqCst);
            }
        });
        let gateway = Gateway::start(&up.everything());
        let before = gateway.memory("VmRSS");
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_head().unwrap();
        let (mut last, mut since) = (0, Instant::now());
        until("the upstream is held back", Duration::from_secs(15), || {
            let now = sent.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            now > 0 && since.elapsed() > Duration::from_millis(500)
        });
        // The buffers of the sockets, and no more.
        assert!(last < ROOM, "{} MiB were taken", last >> 20);
        assert!(gateway.memory("VmHWM").saturating_sub(before) < ROOM / 4);
    }

    #[test]
    fn an_upstream_that_does_not_read_stops_the_client() {
        let up = Upstream::raw(|mut wire, _| {
            let _ = wire.head();
            thread::sleep(Duration::from_secs(60));
        });
        let gateway = Gateway::start(&up.everything());
        let before = gateway.memory("VmRSS");
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n");
        client.wire.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let (piece, mut sent) = (vec![b'x'; 65_536], 0);
        while sent < ROOM * 2 && client.wire.write(&piece).is_ok() {
            sent += piece.len() as u64;
        }
        assert!(sent < ROOM, "{} MiB were taken", sent >> 20);
        assert!(gateway.memory("VmHWM").saturating_sub(before) < ROOM / 4);
    }

    #[test]
    fn uploads_that_an_upstream_does_not_read_take_little_memory() {
        const UPLOADS: u64 = 60;
        let end = Gate::default();
        let held = end.clone();
        let up = Upstream::raw(move |mut wire, _| {
            let _ = wire.head();
            held.pass();
        });
        let gateway = Gateway::start(&up.everything());
        let before = gateway.memory("VmRSS");
        let uploads: Vec<_> = (0..UPLOADS)
            .map(|_| {
                let mut client = gateway.client();
                thread::spawn(move || {
                    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n");
                    client.wire.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                    let piece = vec![b'x'; MIB];
                    while client.wire.write(&piece).is_ok() {}
                    client
                })
            })
            .collect();
        let uploads: Vec<_> = uploads.into_iter().map(|upload| upload.join().unwrap()).collect();
        let grown = gateway.memory("VmHWM").saturating_sub(before) / UPLOADS;
        assert!(grown < 512 << 10, "{} KiB for each", grown >> 10);
        drop(uploads);
        end.open();
    }
}
