//! How the gateway reacts to frames that break HTTP/2, by the sections of RFC 9113 and RFC 7541. The cases are those of
//! conformance suites such as h2spec.
//!
//! A stream error may also end the connection (RFC 9113, section 5.4), and the code of an error is a hint. So the tests
//! check who is affected: nobody, the stream, or the connection.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::http2::{
    ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, RawHttp2, Reaction, WITH_PRIORITY, block, frame, headers, kind,
    setting,
};
use crate::harness::{Authority, Gateway, TlsClient, Upstream, reply, until};

const GET: &[(&[u8], &[u8])] = &[(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];
const POST: &[(&[u8], &[u8])] =
    &[(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affected {
    /// A following request is answered.
    Nobody,
    /// The first stream is reset, or the connection ends.
    Stream,
    Connection,
}
use Affected::{Connection, Nobody, Stream};

/// The section, the error, the frames after the preface and the settings, and who is affected.
type Case = (&'static str, &'static str, Vec<u8>, Affected);

fn get(stream: u32) -> Vec<u8> {
    headers(stream, END_STREAM, GET)
}

fn post(stream: u32) -> Vec<u8> {
    headers(stream, 0, POST)
}

fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, payload)
}

fn with(name: &[u8], value: &[u8]) -> Vec<u8> {
    headers(1, END_STREAM, &[GET, &[(name, value)]].concat())
}

fn window(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

fn coded(block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, block)
}

#[track_caller]
fn check(cases: Vec<Case>) {
    let up = Upstream::start(|request| reply(200, &"x".repeat(request.body.len())));
    let gateway = Gateway::start(&up.everything());
    let mut wrong = Vec::new();
    for (section, what, frames, expected) in cases {
        let mut client = RawHttp2::connect(gateway.http, &[]);
        client.send(&frames).unwrap();
        // The next request shows whether the connection goes on. It may have ended already.
        let _ = client.send(&get(101));
        let end = Instant::now() + Duration::from_secs(10);
        let mut found = Nobody;
        loop {
            let frame = match client.next(end) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    found = Connection;
                    break;
                }
                Err(error) => {
                    wrong.push(format!("{section}, {what}: {error}"));
                    break;
                }
            };
            match frame.kind {
                kind::GOAWAY if frame.payload[7] > 0 => {
                    found = Connection;
                    break;
                }
                kind::RST_STREAM if frame.stream == 1 => found = Stream,
                // A refusal is as good as a reset of the stream.
                kind::HEADERS if frame.stream == 1 && frame.payload[0] == 0x8c => found = Stream,
                kind::HEADERS if frame.stream == 101 => break,
                _ => {}
            }
        }
        if found != expected && (expected, found) != (Stream, Connection) {
            wrong.push(format!("{section}, {what}: affects {found:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(gateway.client().get("/").status, 200);
}

#[test]
fn beginnings() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    let settings = frame(kind::SETTINGS, 0, 0, b"");
    for (what, bytes) in [
        ("PING first", [PREFACE, &frame(kind::PING, 0, 0, b"gateway!")].concat()),
        ("HEADERS first", [PREFACE, &get(1)].concat()),
        ("an acknowledgement first", [PREFACE, &frame(kind::SETTINGS, ACK, 0, b"")].concat()),
        ("an unknown frame first", [PREFACE, &frame(0x42, 0, 0, b"")].concat()),
        ("a preface that goes on in another way", [&PREFACE[..20], b"XX\r\n", &settings].concat()),
    ] {
        let mut client = RawHttp2::bare(gateway.http);
        client.send(&bytes).unwrap();
        let _ = client.send(&get(1));
        if bytes.starts_with(PREFACE) {
            assert_eq!(client.ending(), Reaction::GoAway(1), "{what}");
        }
    }
    assert!(up.received().is_empty());
}

#[test]
fn frames() {
    let large = vec![0; 16_385];
    check(vec![
        ("4.1", "an unknown type", [frame(0x16, 0xff, 0, b"any"), frame(0xff, 0, 1, b"")].concat(), Nobody),
        ("4.1", "unknown flags", frame(kind::PING, 0x16, 0, b"gateway!"), Nobody),
        ("4.1", "the reserved bit of a stream", frame(kind::HEADERS, 5, 1 << 31 | 1, &block(GET)), Nobody),
        ("4.1", "the reserved bit of no stream", frame(kind::PING, 0, 1 << 31, b"gateway!"), Nobody),
        ("4.2", "DATA of the largest size", [post(1), data(1, END_STREAM, &large[1..])].concat(), Nobody),
        ("4.2", "DATA that is too large", [post(1), data(1, END_STREAM, &large)].concat(), Stream),
        ("4.2", "HEADERS that is too large", frame(kind::HEADERS, 5, 1, &large), Connection),
        ("4.2", "SETTINGS that is too large", frame(kind::SETTINGS, 0, 0, &[0; 16_386]), Connection),
        ("4.3", "an invalid block", coded(b"\x00\xff\xff\xff\xff\xff\xff\x00"), Connection),
        (
            "4.3",
            "another frame in a block",
            [frame(kind::HEADERS, 1, 1, &block(GET)), frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1])].concat(),
            Connection,
        ),
        ("4.3", "another request in a block", [frame(kind::HEADERS, 1, 1, &block(GET)), get(3)].concat(), Connection),
        (
            "4.3",
            "an unknown frame in a block",
            [frame(kind::HEADERS, 1, 1, &block(GET)), frame(0x42, 0, 1, b"")].concat(),
            Connection,
        ),
    ]);
}

#[test]
fn states_of_streams() {
    let idle = |frame: Vec<u8>| frame;
    let closed = |more: Vec<u8>| [get(1), more].concat();
    let cancelled = |more: Vec<u8>| [post(1), reset(1), more].concat();
    check(vec![
        ("5.1", "idle: DATA", idle(data(1, END_STREAM, b"x")), Connection),
        ("5.1", "idle: RST_STREAM", idle(reset(1)), Connection),
        ("5.1", "idle: WINDOW_UPDATE", idle(window(1, 100)), Connection),
        ("5.1", "idle: CONTINUATION", idle(frame(kind::CONTINUATION, END_HEADERS, 1, &block(GET))), Connection),
        ("5.1", "idle: PRIORITY", idle(frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1])), Nobody),
        ("5.1", "half-closed: DATA", closed(data(1, END_STREAM, b"x")), Stream),
        ("5.1", "half-closed: HEADERS", closed(get(1)), Stream),
        (
            "5.1",
            "half-closed: CONTINUATION",
            closed(frame(kind::CONTINUATION, END_HEADERS, 1, &block(GET))),
            Connection,
        ),
        ("5.1", "half-closed: WINDOW_UPDATE", closed(window(1, 100)), Nobody),
        ("5.1", "half-closed: PRIORITY", closed(frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1])), Nobody),
        ("5.1", "half-closed: RST_STREAM", closed(reset(1)), Nobody),
        ("5.1", "closed: HEADERS", cancelled(get(1)), Stream),
        ("5.1", "closed: DATA", cancelled(data(1, END_STREAM, b"x")), Stream),
        ("5.1", "closed: PRIORITY", cancelled(frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1])), Nobody),
        ("5.1", "closed: RST_STREAM", cancelled(reset(1)), Nobody),
        ("5.1.1", "an even number", get(2), Connection),
        ("5.1.1", "a smaller number", [get(5), get(3)].concat(), Connection),
        (
            "5.3.1",
            "HEADERS that depends on itself",
            frame(kind::HEADERS, WITH_PRIORITY | 5, 1, &[&[0, 0, 0, 1, 9][..], &block(GET)].concat()),
            Stream,
        ),
        ("5.3.1", "PRIORITY that depends on itself", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 9]), Stream),
        (
            "5.5",
            "a frame of an extension",
            [post(1), frame(0x10, 0, 0, b"\0\0\0\x01u=1"), data(1, END_STREAM, b"x")].concat(),
            Nobody,
        ),
    ]);
}

#[test]
fn frames_of_each_type() {
    let ping = |flags: u8, stream: u32, payload: &[u8]| frame(kind::PING, flags, stream, payload);
    let settings = |flags: u8, stream: u32, payload: &[u8]| frame(kind::SETTINGS, flags, stream, payload);
    let parameter = |id: u16, value: u32| settings(0, 0, &setting(id, value));
    check(vec![
        ("6.1", "DATA of no stream", data(0, END_STREAM, b"x"), Connection),
        (
            "6.1",
            "DATA with too much padding",
            [post(1), data(1, PADDED | END_STREAM, b"\x05x\0\0")].concat(),
            Connection,
        ),
        (
            "6.1",
            "DATA with nothing but padding",
            [post(1), data(1, PADDED | END_STREAM, b"\x03\0\0\0")].concat(),
            Nobody,
        ),
        ("6.2", "HEADERS of no stream", headers(0, END_STREAM, GET), Connection),
        (
            "6.2",
            "HEADERS with too much padding",
            frame(kind::HEADERS, PADDED | 5, 1, &[&[255][..], &block(GET)].concat()),
            Connection,
        ),
        ("6.3", "PRIORITY of no stream", frame(kind::PRIORITY, 0, 0, &[0, 0, 0, 0, 1]), Connection),
        ("6.3", "PRIORITY of another length", [post(1), frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1])].concat(), Stream),
        ("6.4", "RST_STREAM of no stream", reset(0), Connection),
        (
            "6.4",
            "RST_STREAM of another length",
            [post(1), frame(kind::RST_STREAM, 0, 1, &[0, 0, 8])].concat(),
            Connection,
        ),
        ("6.5", "an acknowledgement with parameters", settings(ACK, 0, &setting(3, 100)), Connection),
        (
            "6.5",
            "an acknowledgement that is not due",
            [settings(ACK, 0, b""), settings(ACK, 0, b"")].concat(),
            Connection,
        ),
        ("6.5", "SETTINGS of a stream", settings(0, 1, &setting(3, 100)), Connection),
        ("6.5", "SETTINGS of another length", settings(0, 0, &[0, 3, 0, 0, 0]), Connection),
        ("6.5.2", "ENABLE_PUSH of 2", parameter(2, 2), Connection),
        ("6.5.2", "INITIAL_WINDOW_SIZE above the maximum", parameter(4, 1 << 31), Connection),
        ("6.5.2", "MAX_FRAME_SIZE below the minimum", parameter(5, 16_383), Connection),
        ("6.5.2", "MAX_FRAME_SIZE above the maximum", parameter(5, 1 << 24), Connection),
        ("6.5.2", "an unknown parameter", parameter(0xff, 1), Nobody),
        ("6.5.3", "two values of one parameter", settings(0, 0, &[setting(4, 1), setting(4, 100)].concat()), Nobody),
        (
            "6.6",
            "PUSH_PROMISE",
            [post(1), frame(kind::PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block(GET)].concat())].concat(),
            Connection,
        ),
        ("6.7", "PING", ping(0, 0, b"gateway!"), Nobody),
        ("6.7", "an acknowledgement of no PING", ping(ACK, 0, b"gateway!"), Nobody),
        ("6.7", "PING of a stream", ping(0, 1, b"gateway!"), Connection),
        ("6.7", "PING of another length", ping(0, 0, b"gateway"), Connection),
        ("6.8", "GOAWAY of a stream", frame(kind::GOAWAY, 0, 1, &[0; 8]), Connection),
        (
            "7",
            "RST_STREAM with an unknown code",
            [post(1), frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 255])].concat(),
            Nobody,
        ),
    ]);
}

#[test]
fn windows_and_continuations() {
    check(vec![
        ("6.9", "WINDOW_UPDATE of 0 for the connection", window(0, 0), Connection),
        ("6.9", "WINDOW_UPDATE of 0 for a stream", [post(1), window(1, 0)].concat(), Stream),
        ("6.9", "WINDOW_UPDATE of another length", frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 1]), Connection),
        (
            "6.9.1",
            "too large a window of the connection",
            [window(0, (1 << 31) - 1), window(0, 1)].concat(),
            Connection,
        ),
        ("6.9.1", "too large a window of a stream", [post(1), window(1, (1 << 31) - 1), window(1, 1)].concat(), Stream),
        (
            "6.9.2",
            "too large a window by SETTINGS",
            [post(1), window(1, 1 << 30), frame(kind::SETTINGS, 0, 0, &setting(4, (1 << 31) - 1))].concat(),
            Connection,
        ),
        (
            "6.10",
            "CONTINUATION of no stream",
            [frame(kind::HEADERS, 1, 1, &block(GET)), frame(kind::CONTINUATION, 4, 0, b"")].concat(),
            Connection,
        ),
        (
            "6.10",
            "CONTINUATION of another stream",
            [frame(kind::HEADERS, 1, 1, &block(GET)), frame(kind::CONTINUATION, 4, 3, b"")].concat(),
            Connection,
        ),
        ("6.10", "CONTINUATION after the end", [get(1), frame(kind::CONTINUATION, 4, 1, b"")].concat(), Connection),
        (
            "6.10",
            "CONTINUATION after DATA",
            [post(1), data(1, 0, b"x"), frame(kind::CONTINUATION, 4, 1, b"")].concat(),
            Connection,
        ),
        (
            "6.10",
            "several of them",
            {
                let fields = block(GET);
                let more = |flags: u8, piece: &[u8]| frame(kind::CONTINUATION, flags, 1, piece);
                [frame(kind::HEADERS, 1, 1, &fields[..5]), more(0, &fields[5..9]), more(0, b""), more(4, &fields[9..])]
                    .concat()
            },
            Nobody,
        ),
    ]);
}

#[test]
fn messages() {
    let pseudo = |fields: &[(&[u8], &[u8])]| headers(1, END_STREAM, fields);
    let [method, scheme, authority, path] = GET else { panic!("four fields") };
    let (method, scheme, authority, path) = (*method, *scheme, *authority, *path);
    check(vec![
        ("8.1", "a second HEADERS without the end", [post(1), headers(1, 0, &[(b"x", b"y")])].concat(), Stream),
        (
            "8.1",
            "a pseudo-field in trailers",
            [post(1), headers(1, END_STREAM, &[(b":method", b"GET")])].concat(),
            Stream,
        ),
        ("8.1", "trailers", [post(1), data(1, 0, b"x"), headers(1, END_STREAM, &[(b"x", b"y")])].concat(), Nobody),
        (
            "8.1.1",
            "less than content-length",
            [headers(1, 0, &[POST, &[(b"content-length", b"2")]].concat()), data(1, END_STREAM, b"x")].concat(),
            Stream,
        ),
        (
            "8.1.1",
            "more than content-length",
            [
                headers(1, 0, &[POST, &[(b"content-length", b"2")]].concat()),
                data(1, 0, b"x"),
                data(1, END_STREAM, b"yz"),
            ]
            .concat(),
            Stream,
        ),
        ("8.2", "an upper-case name", with(b"X-Upper", b"v"), Stream),
        ("8.2.2", "connection", with(b"connection", b"keep-alive"), Stream),
        ("8.2.2", "te", with(b"te", b"trailers, deflate"), Stream),
        ("8.2.2", "te: trailers", with(b"te", b"trailers"), Nobody),
        ("8.3", "an unknown pseudo-field", with(b":test", b"v"), Stream),
        ("8.3", "a pseudo-field of responses", with(b":status", b"200"), Stream),
        ("8.3", "a pseudo-field after another field", pseudo(&[method, scheme, authority, (b"x", b"y"), path]), Stream),
        ("8.3.1", "an empty path", pseudo(&[method, scheme, authority, (b":path", b"")]), Stream),
        ("8.3.1", "no method", pseudo(&[scheme, authority, path]), Stream),
        ("8.3.1", "no scheme", pseudo(&[method, authority, path]), Stream),
        ("8.3.1", "no path", pseudo(&[method, scheme, authority]), Stream),
        ("8.3.1", "two methods", pseudo(&[method, method, scheme, authority, path]), Stream),
        ("8.3.1", "two schemes", pseudo(&[method, scheme, scheme, authority, path]), Stream),
        ("8.3.1", "two paths", pseudo(&[method, scheme, authority, path, path]), Stream),
    ]);
}

#[test]
fn compression() {
    let base = block(GET);
    let then = |more: &[u8]| coded(&[&base[..], more].concat());
    check(vec![
        ("HPACK 2.3.3", "an entry of no table", then(b"\xff\x00"), Connection),
        ("HPACK 2.3.3", "a name of no table", then(b"\x7f\x00\x01x"), Connection),
        ("HPACK 4.2", "a new size at the end", then(b"\x20"), Connection),
        ("HPACK 5.2", "padding of more than seven bits", then(b"\x00\x01x\x83\x18\xff\xff"), Connection),
        ("HPACK 5.2", "padding of zeros", then(b"\x00\x01x\x81\x18"), Connection),
        ("HPACK 5.2", "the end of a string in it", then(b"\x00\x01x\x84\xff\xff\xff\xfc"), Connection),
        ("HPACK 6.1", "the entry 0", then(b"\x80"), Connection),
        ("HPACK 6.3", "a new size above the maximum", coded(&[&b"\x3f\xe2\x1f"[..], &base].concat()), Connection),
        ("HPACK 6.3", "the largest size", coded(&[&b"\x3f\xe1\x1f"[..], &base].concat()), Nobody),
        ("HPACK", "a string that does not end", then(b"\x00\x05x"), Connection),
    ]);
}

/// The generic part of h2spec: correct frames are answered.
#[test]
fn what_is_right_is_answered() {
    let up = Upstream::start(|request| reply(200, &"x".repeat(request.body.len())));
    let gateway = Gateway::start(&up.everything());
    // PING with its payload, and no answer to an acknowledgement.
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&frame(kind::PING, ACK, 0, b"nothing!")).unwrap();
    client.send(&frame(kind::PING, 0, 0, b"gateway!")).unwrap();
    let pong = client.find("PING", |frame| frame.kind == kind::PING);
    assert_eq!((pong.flags, &pong.payload[..]), (ACK, &b"gateway!"[..]));
    // SETTINGS is acknowledged, and a smaller window counts for an open stream.
    let mut client = RawHttp2::connect(gateway.http, &[(4, 3)]);
    client.find("acknowledgement", |frame| frame.kind == kind::SETTINGS && frame.flags == ACK);
    client.send(&[post(1), data(1, END_STREAM, b"0123456789")].concat()).unwrap();
    let is_data = |found: &crate::harness::http2::Frame| found.kind == kind::DATA && found.stream == 1;
    assert_eq!(client.find("DATA", is_data).payload.len(), 3);
    client.send(&frame(kind::SETTINGS, 0, 0, &setting(4, 5))).unwrap();
    assert_eq!(client.find("DATA", is_data).payload.len(), 2);
    // The window becomes negative, and must become positive again.
    client.send(&frame(kind::SETTINGS, 0, 0, &setting(4, 1))).unwrap();
    client.find("acknowledgement", |frame| frame.kind == kind::SETTINGS && frame.flags == ACK);
    client.send(&window(1, 4)).unwrap();
    client.send(&frame(kind::PING, 0, 0, b"gateway!")).unwrap();
    let next = client.find("PING or DATA", |found| is_data(found) || found.kind == kind::PING);
    assert_eq!(next.kind, kind::PING);
    client.send(&window(1, 1)).unwrap();
    assert_eq!(client.find("DATA", is_data).payload.len(), 1);
    client.send(&window(1, 100)).unwrap();
    let last = client.find("DATA", is_data);
    assert_eq!((last.payload.len(), last.flags), (4, END_STREAM));
    // No frame is larger than the client allows, and a client may allow more.
    let mut client = RawHttp2::connect(gateway.http, &[(4, 1 << 20), (5, 16_384)]);
    client.send(&window(0, 1 << 20)).unwrap();
    client.send(&[post(1), data(1, 0, &[0; 16_384]), data(1, END_STREAM, &[0; 16_384])].concat()).unwrap();
    let mut received = 0;
    while received < 32_768 {
        let piece = client.find("DATA", is_data).payload.len();
        assert!(piece <= 16_384, "{piece}");
        received += piece;
    }
}

#[test]
fn a_head_that_is_too_large_is_431_and_is_counted() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("[server.http2]\nmax_header_list = \"16KiB\"", &up.everything());
    let mut client = RawHttp2::connect(gateway.http, &[]);
    for (stream, length, expected) in [(1, 15_000, 200), (3, 17_000, 431), (5, 1000, 200)] {
        let fields = block(&[GET, &[(b"x", &vec![b'y'; length])]].concat());
        let (first, rest) = fields.split_at(fields.len() / 2);
        client.send(&frame(kind::HEADERS, END_STREAM, stream, first)).unwrap();
        client.send(&frame(kind::CONTINUATION, END_HEADERS, stream, rest)).unwrap();
        assert_eq!(client.reaction(stream), Reaction::Status(expected), "{length} bytes");
    }
    assert_eq!(up.received().len(), 2);
    drop(client);
    let counted = || gateway.metric("gateway_http2_requests_refused_total") == Some(1.0);
    until("it is counted", Duration::from_secs(20), counted);
}

/// A client that has agreed on HTTP/2 in TLS.
fn agreed(authority: &Authority, gateway: &Gateway) -> TlsClient {
    let mut config = (*authority.client(None)).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsClient::connect(gateway.https(), &Arc::new(config), "site.test").unwrap()
}

fn rest(client: &mut TlsClient) -> Vec<u8> {
    let mut rest = Vec::new();
    // A client that goes on sending may be cut off.
    let _ = client.stream.read_to_end(&mut rest);
    rest
}

#[test]
fn the_rules_hold_in_tls() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let up = Upstream::start(|_| reply(200, ""));
    let server = format!("[server.tls]\ncertificates = [{}]\n", site.toml());
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]\n";
    let gateway = Gateway::with_server(&format!("{listen}{server}"), &up.everything());
    // The agreed protocol is spoken, whatever the client begins with.
    let mut client = agreed(&authority, &gateway);
    client.stream.write_all(b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n").unwrap();
    let answer = rest(&mut client);
    assert!(!answer.windows(4).any(|four| four == b"HTTP"), "{answer:x?}");
    assert!(up.received().is_empty());
    for (frames, code) in [
        (frame(kind::PING, 0, 0, b"gateway!"), 1),
        ([&frame(kind::SETTINGS, 0, 0, b"")[..], &frame(kind::PING, 0, 0, b"gateway!").repeat(1000)].concat(), 11),
    ] {
        let mut client = agreed(&authority, &gateway);
        client.stream.write_all(&[PREFACE, &frames].concat()).unwrap();
        let answer = rest(&mut client);
        assert!(answer.ends_with(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, code])), "{answer:x?}");
    }
}
