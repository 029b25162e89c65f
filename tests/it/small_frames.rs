//! Bodies in small frames of HTTP/2 that nobody reads: they end neither the connection with the requests of others, nor take much
//! more memory than their content.

use std::time::Duration;

use crate::harness::http2::{END_HEADERS, END_STREAM, Frame, RawHttp2, Reaction, frame, get, headers, kind};
use crate::harness::http2_server::{Frames, STATUS_200, over_http2};
use crate::harness::{Client, Gate, Gateway, Upstream, limited, reply, until};

const PATIENCE: Duration = Duration::from_secs(20);
const OWN: &str = "[[routes]]\npath = \"/own\"\nrespond = { status = 200 }\n";

fn post(stream: u32, path: &[u8]) -> Vec<u8> {
    headers(stream, 0, &[(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path)])
}

/// The byte of a body at this position.
fn letter(position: usize) -> u8 {
    b'a' + u8::try_from(position % 26).unwrap()
}

/// The bytes of a body at these positions, each in a frame of its own.
fn letters(stream: u32, positions: std::ops::Range<usize>) -> Vec<u8> {
    positions.flat_map(|position| frame(kind::DATA, 0, stream, &[letter(position)])).collect()
}

/// The response on this stream, which must become complete.
#[track_caller]
fn body(client: &mut RawHttp2, stream: u32) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let is_part = |frame: &Frame| frame.stream == stream && frame.kind == kind::DATA;
        let part = client.find("end of the response", is_part);
        body.extend_from_slice(&part.payload);
        if part.flags & END_STREAM > 0 {
            return body;
        }
    }
}

#[test]
fn a_held_upload_ends_no_other_request() {
    const FRAMES: usize = 5000;
    let gate = Gate::default();
    let held = gate.clone();
    let up = Upstream::start(move |received| {
        if received.target == "/first" {
            held.pass();
        }
        reply(200, std::str::from_utf8(&received.body).unwrap())
    });
    let one_at_a_time = "max_in_flight = 1\nmax_waiting = 10\nmax_wait = \"5m\"\n";
    let routes = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(&format!("{}{one_at_a_time}{OWN}{routes}", up.section()));
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&get(1, "/first")).unwrap();
    until("the first request has come", PATIENCE, || up.connections() == 1);
    client.send(&post(3, b"/held")).unwrap();
    for thousand in 0..FRAMES / 1000 {
        client.send(&letters(3, 1000 * thousand..1000 * (thousand + 1))).unwrap();
    }
    client.send(&get(5, "/own")).unwrap();
    assert_eq!(client.reaction(5), Reaction::Status(200));
    client.send(&frame(kind::DATA, END_STREAM, 3, b"")).unwrap();
    gate.open();
    assert_eq!(client.reaction(3), Reaction::Status(200));
    assert!(body(&mut client, 3).into_iter().eq((0..FRAMES).map(letter)));
}

#[test]
fn frames_that_come_after_a_refusal_end_no_other_request() {
    const REFUSED: u32 = 100;
    // Too many for the library, although it drops them.
    const FRAMES: usize = 5000;
    let gateway =
        Gateway::with_server("trusted_proxies = [\"127.0.0.0/8\"]", &(OWN.to_owned() + &limited("global", "1/h", "")));
    assert_eq!(gateway.client().get("/").status, 200);
    let mut client = RawHttp2::connect(gateway.http, &[]);
    let streams = || (0..REFUSED).map(|number| 2 * number + 1);
    client.send(&streams().flat_map(|stream| post(stream, b"/")).collect::<Vec<_>>()).unwrap();
    for _ in streams() {
        client.find("end of a refused request", |frame| frame.kind == kind::RST_STREAM);
    }
    client.send(&letters(2 * REFUSED - 1, 0..FRAMES)).unwrap();
    // Those of the first ones come after the resets of so many others.
    client.send(&streams().flat_map(|stream| letters(stream, 0..30)).collect::<Vec<_>>()).unwrap();
    client.send(&get(2 * REFUSED + 1, "/own")).unwrap();
    assert_eq!(client.reaction(2 * REFUSED + 1), Reaction::Status(200));
}

#[test]
fn a_response_in_small_frames_that_is_not_read_ends_no_other_response() {
    const FRAMES: usize = 900_000;
    const MOST_MEMORY: u64 = 32 << 20;
    let [has_come, may_end] = [(); 2].map(|()| Gate::default());
    let (comes, ends) = (has_come.clone(), may_end.clone());
    let server = Frames::serve(move |mut server, number| {
        assert_eq!(number, 0, "both requests come on one connection");
        let [slow, small] = [(); 2].map(|()| {
            let stream = server.until(kind::HEADERS).unwrap().stream;
            server.send(kind::HEADERS, END_HEADERS, stream, STATUS_200);
            comes.open();
            stream
        });
        server.send(kind::DATA, 0, slow, b"well");
        for thousand in 0..FRAMES / 1000 {
            let frames = letters(small, 1000 * thousand..1000 * (thousand + 1));
            let _ = std::io::Write::write_all(&mut server.socket, &frames);
        }
        server.send(kind::DATA, END_STREAM, slow, b" done");
        ends.pass();
        server.send(kind::DATA, END_STREAM, small, b"");
        // Reads until the gateway goes.
        while server.next().is_ok() {}
    });
    let gateway = Gateway::with_server(
        "workers = 1\nbody_timeout = \"5m\"",
        &over_http2("http", server, "read_timeout = \"5m\""),
    );
    let before = gateway.memory("VmRSS");
    let mut slow = Client::connect_from([127, 0, 0, 2].into(), gateway.http);
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    has_come.pass();
    // This client grants its stream no window.
    let mut small = RawHttp2::connect(gateway.http, &[(4, 0)]);
    small.send(&get(1, "/small")).unwrap();
    assert_eq!(small.reaction(1), Reaction::Status(200));
    assert_eq!(slow.response(false).text(), "well done");
    let grown = gateway.memory("VmHWM").saturating_sub(before);
    assert!(grown < MOST_MEMORY, "{} MiB more were resident", grown >> 20);

    may_end.open();
    let more = u32::try_from(2 * FRAMES).unwrap().to_be_bytes();
    small.send(&[0, 1].map(|stream| frame(kind::WINDOW_UPDATE, 0, stream, &more)).concat()).unwrap();
    assert!(body(&mut small, 1).into_iter().eq((0..FRAMES).map(letter)));
}
