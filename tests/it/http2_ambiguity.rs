//! What HTTP/2 can carry but HTTP/1.1 cannot is refused before anything is forwarded. A forwarded request is one
//! well-formed request. The tests look at the bytes that the upstream received.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::http2::{
    ACK, END_HEADERS, END_STREAM, Frame, PADDED, RawHttp2, Reaction, WITH_PRIORITY, block, frame, headers, kind,
};
use crate::harness::{Gateway, Upstream, until};

type Field = (&'static [u8], &'static [u8]);

const METHOD: Field = (b":method", b"GET");
const POST: Field = (b":method", b"POST");
const SCHEME: Field = (b":scheme", b"http");
const AUTHORITY: Field = (b":authority", b"a.test");
const PATH: Field = (b":path", b"/p");

/// Keeps the bytes of each connection, answers a whole request, and then closes.
struct Recorder {
    up: Upstream,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    closed: Arc<AtomicUsize>,
}

impl Recorder {
    fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(AtomicUsize::new(0));
        let (all, count) = (received.clone(), closed.clone());
        let up = Upstream::raw(move |mut wire, number| {
            let mut stream = wire.stream().try_clone().unwrap();
            let mut bytes = [0; 4096];
            let mut whole = Vec::new();
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                whole.extend_from_slice(&bytes[..length]);
                let mut all = all.lock().unwrap();
                let length = all.len().max(number + 1);
                all.resize_with(length, Vec::new);
                all[number].clone_from(&whole);
                drop(all);
                if well_formed(&whole).is_ok() {
                    wire.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").unwrap();
                    // More bytes would be a second request.
                    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                }
            }
            count.fetch_add(1, Ordering::SeqCst);
        });
        Self { up, received, closed }
    }

    #[track_caller]
    fn wait_closed(&self) {
        let closed = || self.closed.load(Ordering::SeqCst) == self.up.connections();
        until("no connection is open", Duration::from_secs(10), closed);
    }

    fn take(&self) -> Vec<Vec<u8>> {
        let all = std::mem::take(&mut *self.received.lock().unwrap());
        all.into_iter().filter(|bytes| !bytes.is_empty()).collect()
    }
}

/// A request as an upstream reads it: the first line, the other lines, and the body with its framing.
type Read1 = (String, Vec<String>, Vec<u8>);

/// Reads exactly one request, more strictly than RFC 9112 asks for.
fn well_formed(bytes: &[u8]) -> Result<Read1, &'static str> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no end of the head")?;
    let (head, body) = (&bytes[..end], &bytes[end + 4..]);
    let mut lines = Vec::new();
    for line in head.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err("a control character");
        }
        lines.push(String::from_utf8_lossy(line).into_owned());
    }
    let start = lines.remove(0);
    let words: Vec<_> = start.split(' ').collect();
    let is_token = |text: &str| {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(is_token)
    };
    let [method, target, "HTTP/1.1"] = words[..] else { return Err("a first line") };
    if !is_token(method) || !target.starts_with('/') {
        return Err("a first line");
    }
    let mut values = std::collections::HashMap::<_, Vec<_>>::new();
    for line in &lines {
        let (name, value) = line.split_once(':').ok_or("a line without a colon")?;
        if !is_token(name) || value.trim_matches([' ', '\t']) != value.strip_prefix(' ').unwrap_or(value) {
            return Err("a header");
        }
        values.entry(name.to_ascii_lowercase()).or_default().push(value.trim().to_owned());
    }
    let mut only = |name: &str| match values.remove(name).unwrap_or_default().as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err("a header twice"),
    };
    let (host, length, coding) = (only("host")?, only("content-length")?, only("transfer-encoding")?);
    let is_whole = match (length, coding.as_deref()) {
        (None, None) => body.is_empty(),
        (Some(length), None) => length.parse() == Ok(body.len()),
        (None, Some("chunked")) => {
            body.ends_with(b"0\r\n\r\n") || body.windows(3).any(|end| end == b"\n0\r") && body.ends_with(b"\r\n\r\n")
        }
        _ => return Err("two framings"),
    };
    if host.is_none_or(|host| host.is_empty()) || !is_whole {
        return Err("no host or no end of the body");
    }
    Ok((start, lines, body.to_vec()))
}

/// The gateway's reaction to a request on its own connection, and what the upstream receives meanwhile.
fn send(gateway: &Gateway, up: &Recorder, frames: &[u8]) -> (Reaction, Vec<Vec<u8>>) {
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(frames).unwrap();
    (client.reaction(1), up.take())
}

/// Fails if any of these requests succeeds, or the upstream receives anything.
#[track_caller]
fn refused(cases: &[&[Field]]) {
    let up = Recorder::start();
    let gateway = Gateway::start(&up.up.everything());
    let mut wrong = Vec::new();
    for case in cases {
        let (reaction, received) = send(&gateway, &up, &headers(1, END_STREAM, case));
        let is_refusal = matches!(reaction, Reaction::Status(400 | 501) | Reaction::Reset(1) | Reaction::GoAway(1));
        if !is_refusal || !received.is_empty() {
            let fields =
                case.iter().map(|(name, value)| (String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
            let received: Vec<_> = received.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
            wrong.push(format!("{:?}: {reaction:?}, received {received:?}", fields.collect::<Vec<_>>()));
        }
    }
    // Nothing came late.
    assert_eq!(gateway.client().get("/").text(), "ok");
    wrong.extend((up.take().len() != 1).then(|| "something came late".to_owned()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn with(name: &'static [u8], value: &'static [u8]) -> Vec<Field> {
    vec![METHOD, SCHEME, AUTHORITY, PATH, (name, value)]
}

#[track_caller]
fn refused_fields(fields: &[Field]) {
    let cases: Vec<_> = fields.iter().map(|(name, value)| with(name, value)).collect();
    refused(&cases.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

/// A request in which one pseudo-field has another value.
#[track_caller]
fn refused_instead(name: &'static [u8], values: &[&'static [u8]]) {
    let cases: Vec<Vec<Field>> = values
        .iter()
        .map(|value| {
            let fields = [METHOD, SCHEME, AUTHORITY, PATH].into_iter();
            fields.map(|field| if field.0 == name { (name, *value) } else { field }).collect()
        })
        .collect();
    refused(&cases.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

#[test]
fn names_that_are_no_tokens() {
    refused_fields(&[
        (b"", b"v"),
        (b"X-Upper", b"v"),
        (b"x:y", b"v"),
        (b"x ", b"v"),
        (b" x", b"v"),
        (b"x y", b"v"),
        (b"x\ty", b"v"),
        (b"x\r", b"v"),
        (b"x\ny", b"v"),
        (b"x: y\r\nz", b"v"),
        (b"x\0", b"v"),
        (b"x\x7f", b"v"),
        (b"x\xe4", b"v"),
        (b"(x)", b"v"),
        (b"x/y", b"v"),
        (b"content-length:", b"0"),
        (b"transfer-encoding ", b"chunked"),
    ]);
}

#[test]
fn values_that_are_more_than_one_line() {
    refused_fields(&[
        (b"x", b"a\r\nb: c"),
        (b"x", b"a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"),
        (b"x", b"a\rb"),
        (b"x", b"a\nb"),
        (b"x", b"a\0b"),
        (b"x", b"\r"),
        (b"x", b"\n"),
        (b"x", b"\x01"),
        (b"x", b"\x7f"),
        (b"cookie", b"a=b\r\nx: y"),
    ]);
}

#[test]
fn values_that_end_elsewhere_in_http_1() {
    refused_fields(&[
        (b"x", b" a"),
        (b"x", b"a "),
        (b"x", b"\ta"),
        (b"x", b"a\t"),
        (b"x", b" "),
        (b"x-api-key", b"k  "),
    ]);
}

#[test]
fn fields_of_a_connection() {
    refused_fields(&[
        (b"connection", b"close"),
        (b"connection", b"x-private"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"transfer-encoding", b"gzip"),
        (b"upgrade", b"h2c"),
        (b"upgrade", b"websocket"),
        (b"te", b"gzip"),
        (b"te", b"trailers, gzip"),
    ]);
}

#[test]
fn lengths_that_are_not_one_number() {
    let two: Vec<Field> = [with(b"content-length", b"5"), vec![(b"content-length", b"6")]].concat();
    let zero: Vec<Field> = [with(b"content-length", b"0"), vec![(b"content-length", b"5")]].concat();
    refused(&[&two, &zero]);
    refused_fields(&[
        // There is no body.
        (b"content-length", b"5"),
        (b"content-length", b""),
        (b"content-length", b"+0"),
        (b"content-length", b"-1"),
        (b"content-length", b"0x0"),
        (b"content-length", b"0,0"),
        (b"content-length", b"0, 0"),
        (b"content-length", b"0 "),
        (b"content-length", b" 0"),
        (b"content-length", b"zero"),
        (b"content-length", b"18446744073709551616"),
    ]);
}

#[test]
fn pseudo_fields_out_of_place() {
    let after: Field = (b"x", b"y");
    refused(&[
        &[SCHEME, AUTHORITY, PATH],
        &[METHOD, AUTHORITY, PATH],
        &[METHOD, SCHEME, AUTHORITY],
        // No host at all.
        &[METHOD, SCHEME, PATH],
        &[METHOD, METHOD, SCHEME, AUTHORITY, PATH],
        &[METHOD, POST, SCHEME, AUTHORITY, PATH],
        &[METHOD, SCHEME, SCHEME, AUTHORITY, PATH],
        &[METHOD, SCHEME, AUTHORITY, AUTHORITY, PATH],
        &[METHOD, SCHEME, AUTHORITY, PATH, (b":path", b"/other")],
        &[after, METHOD, SCHEME, AUTHORITY, PATH],
        &[METHOD, SCHEME, AUTHORITY, after, PATH],
        &[METHOD, SCHEME, PATH, after, AUTHORITY],
        &[METHOD, SCHEME, AUTHORITY, PATH, (b":other", b"x")],
        &[METHOD, SCHEME, AUTHORITY, PATH, (b":status", b"200")],
        &[METHOD, SCHEME, AUTHORITY, PATH, (b":protocol", b"websocket")],
        &[METHOD, SCHEME, AUTHORITY, PATH, (b":", b"x")],
        &[(b":method", b"CONNECT"), AUTHORITY],
        &[(b":method", b"CONNECT"), SCHEME, AUTHORITY, PATH],
    ]);
}

#[test]
fn methods_that_are_no_tokens() {
    refused_instead(
        b":method",
        &[b"", b" GET", b"GET ", b"G ET", b"GET /x HTTP/1.1\r\nx:", b"GET\r\n", b"G\0T", b"G(T", b"get", b"post"],
    );
}

#[test]
fn schemes_that_are_not_of_the_web() {
    refused_instead(b":scheme", &[b"", b"ftp", b"file", b"javascript", b"http ", b"ht tp", b"http:", b"http://a/"]);
}

#[test]
fn paths_that_are_not_paths() {
    refused_instead(
        b":path",
        &[
            b"",
            b"*",
            b"p",
            b"?q",
            b"a.test/p",
            b"http://b.test/p",
            b"/ HTTP/1.1\r\nhost: b.test\r\n\r\n",
            b"/p q",
            b" /p",
            b"/p ",
            b"/p\t",
            b"/p\r",
            b"/p\n",
            b"/p\0",
            b"/p\x7f",
            b"/p?q r",
            b"/p?q\r\nx: y",
            b"/../p",
            b"/p%00",
        ],
    );
    let options: Field = (b":method", b"OPTIONS");
    refused(&[&[options, SCHEME, AUTHORITY, (b":path", b"*")]]);
}

#[test]
fn authorities_that_are_not_hosts() {
    refused_instead(
        b":authority",
        &[
            b"",
            b"user@a.test",
            b"user:password@a.test",
            b"@a.test",
            b"a.test b.test",
            b"a.test\r\nx: y",
            b"a.test\0",
            b"a.test/",
            b"a.test?",
            b"a.test#",
            b"http://a.test",
            b"a.test:port",
            b"a.test:-1",
            b"a.test:65536",
            b"a.test:80:80",
            b":80",
            b"[::1",
            b"[a]",
        ],
    );
    let host = |value: &'static [u8]| with(b"host", value);
    let alone = |value: &'static [u8]| -> Vec<Field> { vec![METHOD, SCHEME, PATH, (b"host", value)] };
    let cases = [
        host(b"b.test"),
        host(b"a.test:80"),
        host(b""),
        host(b"a.test "),
        [host(b"a.test"), vec![(b"host", b"a.test")]].concat(),
        [alone(b"a.test"), vec![(b"host", b"b.test")]].concat(),
        alone(b""),
        alone(b"a b"),
        alone(b"user@a.test"),
        alone(b"a.test, b.test"),
    ];
    refused(&cases.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

/// The one request that the upstream receives if a client sends these frames.
#[track_caller]
fn passed(gateway: &Gateway, up: &Recorder, frames: &[u8]) -> Read1 {
    let (reaction, received) = send(gateway, up, frames);
    let shown: Vec<_> = received.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    assert_eq!(reaction, Reaction::Status(200), "{shown:?}");
    assert_eq!(received.len(), 1, "{shown:?}");
    well_formed(&received[0]).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
}

#[test]
fn what_http_1_can_carry_goes_on_as_one_request() {
    let up = Recorder::start();
    let gateway = Gateway::start(&up.up.everything());
    let plain = with(b"x", b"y");
    for (fields, first, line) in [
        (plain.clone(), "GET /p HTTP/1.1", "x: y"),
        (with(b"x", b""), "GET /p HTTP/1.1", "x: "),
        (with(b"x", b"a \t b"), "GET /p HTTP/1.1", "x: a \t b"),
        (with(b"x", b"a: b, \"c\""), "GET /p HTTP/1.1", "x: a: b, \"c\""),
        (with(b"!#$%&'*+-.^_`|~09az", b"v"), "GET /p HTTP/1.1", "!#$%&'*+-.^_`|~09az: v"),
        (with(b"te", b"trailers"), "GET /p HTTP/1.1", "te: trailers"),
        (with(b"host", b"A.test"), "GET /p HTTP/1.1", "x-forwarded-host: a.test"),
        (with(b"content-length", b"0"), "GET /p HTTP/1.1", "content-length: 0"),
        ([with(b"cookie", b"a=1"), vec![(b"cookie", b"b=2")]].concat(), "GET /p HTTP/1.1", "cookie: a=1; b=2"),
        (vec![METHOD, SCHEME, PATH, (b"host", b"b.test:80")], "GET /p HTTP/1.1", "x-forwarded-host: b.test:80"),
        (vec![PATH, AUTHORITY, SCHEME, METHOD], "GET /p HTTP/1.1", "x-forwarded-host: a.test"),
        (vec![METHOD, (b":scheme", b"https"), AUTHORITY, PATH], "GET /p HTTP/1.1", "via: 2.0 gateway"),
        (vec![METHOD, SCHEME, AUTHORITY, (b":path", b"/a:b?c=d:e&f")], "GET /a:b?c=d:e&f HTTP/1.1", "via: 2.0 gateway"),
        // A fragment is only for the client, so it is cut off.
        (vec![METHOD, SCHEME, AUTHORITY, (b":path", b"/p#f")], "GET /p HTTP/1.1", "via: 2.0 gateway"),
        (vec![(b":method", b"M-SEARCH"), SCHEME, AUTHORITY, PATH], "M-SEARCH /p HTTP/1.1", "via: 2.0 gateway"),
    ] {
        let (start, lines, body) = passed(&gateway, &up, &headers(1, END_STREAM, &fields));
        assert_eq!(start, first);
        assert!(
            lines.iter().any(|found| found == line || line.starts_with("via") && found.starts_with(line)),
            "no {line:?} in {lines:?}"
        );
        assert!(body.is_empty(), "{body:?}");
    }
}

#[test]
fn bodies_go_on_with_one_framing() {
    let up = Recorder::start();
    let gateway = Gateway::start(&up.up.everything());
    let data = |flags: u8, payload: &[u8]| frame(kind::DATA, flags, 1, payload);
    let post = |more: &[Field]| headers(1, 0, &[&[POST, SCHEME, AUTHORITY, PATH], more].concat());
    let five: Field = (b"content-length", b"5");
    for (frames, body) in [
        ([post(&[five]), data(END_STREAM, b"hello")].concat(), "hello"),
        // Both lengths agree.
        ([post(&[five, five]), data(END_STREAM, b"hello")].concat(), "hello"),
        ([post(&[five]), data(0, b"he"), data(0, b""), data(0, b"llo"), data(END_STREAM, b"")].concat(), "hello"),
        ([post(&[]), data(END_STREAM, b"hello")].concat(), "5\r\nhello\r\n0\r\n\r\n"),
        // Padding is no part of the body.
        ([post(&[five]), data(PADDED | END_STREAM, b"\x03hello\0\0\0")].concat(), "hello"),
        (
            [post(&[]), data(0, b"hello"), headers(1, END_STREAM, &[(b"x-sum", b"1")])].concat(),
            "5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
        ),
        ([post(&[(b"expect", b"100-continue"), five]), data(END_STREAM, b"hello")].concat(), "hello"),
    ] {
        assert_eq!(String::from_utf8(passed(&gateway, &up, &frames).2).unwrap(), body);
    }
    // The head in pieces, with padding and a priority.
    let block = block(&[POST, SCHEME, AUTHORITY, PATH, five]);
    let first = [&[2][..], &[0, 0, 0, 0, 15], &block[..9], &[0, 0]].concat();
    let frames = [
        frame(kind::HEADERS, PADDED | WITH_PRIORITY, 1, &first),
        frame(kind::CONTINUATION, 0, 1, &block[9..20]),
        frame(kind::CONTINUATION, END_HEADERS, 1, &block[20..]),
        frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 7, 1]),
        data(END_STREAM, b"hello"),
    ];
    assert_eq!(passed(&gateway, &up, &frames.concat()).2, b"hello");
}

#[test]
fn bodies_that_are_not_whole_do_not_become_whole_requests() {
    let up = Recorder::start();
    let gateway = Gateway::start(&up.up.everything());
    let data = |flags: u8, payload: &[u8]| frame(kind::DATA, flags, 1, payload);
    let post = |more: &[Field]| headers(1, 0, &[&[POST, SCHEME, AUTHORITY, PATH], more].concat());
    let five: Field = (b"content-length", b"5");
    let begun = [post(&[]), data(0, b"hello")].concat();
    let trailers = |fields: &[Field]| [begun.clone(), headers(1, END_STREAM, fields)].concat();
    for frames in [
        [post(&[five]), data(END_STREAM, b"hell")].concat(),
        [post(&[five]), data(END_STREAM, b"hello!")].concat(),
        [post(&[five]), data(0, b"hello"), data(END_STREAM, b"!")].concat(),
        [post(&[five]), data(0, b"he"), headers(1, END_STREAM, &[(b"x-sum", b"1")])].concat(),
        trailers(&[(b":path", b"/other")]),
        trailers(&[(b":authority", b"b.test")]),
        trailers(&[(b":status", b"200")]),
        trailers(&[(b"x-sum", b"1"), (b":path", b"/other")]),
        trailers(&[(b"transfer-encoding", b"chunked")]),
        trailers(&[(b"connection", b"close")]),
        trailers(&[(b"X-Sum", b"1")]),
        trailers(&[(b"x-sum", b"1\r\nx: y")]),
        [begun.clone(), headers(1, 0, &[(b"x-sum", b"1")])].concat(),
        [begun.clone(), frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]), data(END_STREAM, b"")].concat(),
    ] {
        let mut client = RawHttp2::connect(gateway.http, &[]);
        client.send(&frames).unwrap();
        // A reset by the client is not answered, but what follows is.
        let _ = client.send(&frame(kind::PING, 0, 0, b"gateway!"));
        let is_over = |frame: &Frame| match frame.kind {
            kind::RST_STREAM | kind::GOAWAY => true,
            kind::PING => frame.flags == ACK,
            _ => false,
        };
        client.find("end of the stream", is_over);
        up.wait_closed();
        for received in up.take() {
            let shown = String::from_utf8_lossy(&received);
            assert!(well_formed(&received).is_err(), "{frames:x?} became {shown:?}");
        }
    }
}
