//! Streams of one HTTP/2 connection: each has its own time limits, waits for the slower side, and holds up no other.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;

use crate::harness::http2::{CANCEL, END_STREAM, Frame, RawHttp2, Reaction, frame, get, headers, kind};
use crate::harness::http2_server::read;
use crate::harness::{Framing, Gateway, Upstream, reply, until};

const PIECE: usize = 16 << 10;

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await.expect("in time") })
}

/// A connection with prior knowledge, with this window for each stream and for the connection.
async fn connect(address: SocketAddr, window: u32) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(1 << 30);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a.test{path}")).body(()).unwrap()
}

#[test]
fn uploads_that_are_held_keep_no_other_from_coming() {
    // The first request of a key passes, and others are held.
    let limit = "[limits.l]\nkey = \"header:x-key\"\nrates = [\"1/4m\"]\nstrategy = \"fixed-window\"\n\
                 on_limit = \"delay\"\nmax_delay = \"5m\"\n";
    let up = Upstream::start(|received| reply(200, &received.body.len().to_string()));
    for uploads in [8, 60] {
        let gateway = Gateway::start(&format!("{limit}{}limits = [\"l\"]\n", up.everything()));
        assert_eq!(gateway.client().get_with("/", "X-Key: k\r\n").status, 200);
        run(async {
            let mut client = connect(gateway.http, 1 << 20).await;
            let mut held = Vec::new();
            let upload = |key: &str| Request::post("http://a.test/").header("x-key", key).body(()).unwrap();
            for _ in 0..uploads {
                client = client.ready().await.unwrap();
                let (response, mut body) = client.send_request(upload("k"), false).unwrap();
                body.send_data(vec![b'x'; 400_000].into(), true).unwrap();
                held.push((response, body));
            }
            while gateway.metric("gateway_requests_held") != Some(f64::from(uploads)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // Leaves time for late events.
            tokio::time::sleep(Duration::from_millis(500)).await;
            for key in ["a", "b"] {
                client = client.ready().await.unwrap();
                let (response, mut body) = client.send_request(upload(key), false).unwrap();
                body.send_data(vec![b'x'; 10].into(), true).unwrap();
                let mut body = response.await.unwrap().into_body();
                assert_eq!(body.data().await.unwrap().unwrap(), "10", "{uploads}");
            }
        });
    }
}

/// Of a response, whose body is read.
async fn status(response: ResponseFuture) -> u16 {
    let response = response.await.unwrap();
    let status = response.status().as_u16();
    read(response.into_body()).await.unwrap();
    status
}

/// Ignores requests for `/held` until the returned value is dropped. Then it answers them like all others: with the
/// length of their bodies.
fn holding() -> (Upstream, Sender<()>) {
    let (end, ended): (_, Receiver<()>) = channel();
    let ended = Arc::new(Mutex::new(ended));
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some((line, headers))) = wire.head() {
            if line.contains("/held") {
                let _ = ended.lock().unwrap().recv();
            }
            let mut length = 0;
            let framing = headers.framing(Framing::Length(0)).unwrap();
            if wire.body(framing, &mut |piece| length += piece.len()).is_err() {
                break;
            }
            wire.write(&reply(200, &length.to_string())).unwrap();
        }
    });
    (up, end)
}

/// Sends as much as the gateway takes, up to `most` bytes. Returns how much that was once the gateway takes no more for
/// `patience`.
async fn send(stream: &mut SendStream<Bytes>, most: usize, patience: Duration) -> usize {
    let mut sent = 0;
    while sent < most {
        stream.reserve_capacity(PIECE);
        let capacity = tokio::time::timeout(patience, poll_fn(|cx| stream.poll_capacity(cx))).await;
        let Ok(capacity) = capacity else { break };
        let length = capacity.unwrap().unwrap().min(most - sent);
        stream.send_data(vec![b'x'; length].into(), false).unwrap();
        sent += length;
    }
    sent
}

#[test]
fn each_request_has_its_own_time_limits_and_its_own_line() {
    let (up, _end) = holding();
    let gateway = Gateway::with_server(
        "body_timeout = \"1s\"",
        &format!("{}timeout = \"4s\"\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", up.section()),
    );
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let (held, _) = client.send_request(post("/held"), true).unwrap();
        let (bodiless, _body) = client.send_request(post("/body"), false).unwrap();
        for _ in 0..10 {
            assert_eq!(status(client.send_request(post("/"), true).unwrap().0).await, 200);
        }
        assert_eq!(bodiless.await.unwrap().status(), 408);
        assert_eq!(status(client.send_request(post("/"), true).unwrap().0).await, 200);
        assert_eq!(held.await.unwrap().status(), 504);
    });
    for (path, status, reason) in [("/body", 408, "body_timeout"), ("/held", 504, "timeout")] {
        gateway.wait_log(path, |line| line["path"] == path && line["status"] == status && line["reason"] == reason);
    }
    let answered = || gateway.log().iter().filter(|line| line.contains("\"path\":\"/\"")).count();
    until("all have their lines", Duration::from_secs(20), || answered() >= 11);
    assert_eq!(answered(), 11);
}

#[test]
fn a_stream_that_is_not_read_has_its_reason_in_the_log() {
    let large = "x".repeat(1 << 20);
    let up = Upstream::start(move |_| reply(200, &large));
    let gateway = Gateway::with_server("body_timeout = \"1s\"", &up.everything());
    let mut client = RawHttp2::connect(gateway.http, &[(4, 0)]);
    let get = [(&b":method"[..], &b"GET"[..]), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];
    client.send(&headers(1, END_STREAM, &get)).unwrap();
    assert_eq!(client.reaction(1), Reaction::Status(200));
    assert_eq!(client.reaction(1), Reaction::Reset(8));
    let line = gateway.wait_log("the request", |line| line["path"] == "/");
    assert_eq!((&line["outcome"], &line["reason"]), (&"abandoned".into(), &"body_timeout".into()), "{line}");
}

#[test]
fn the_end_of_a_response_that_is_not_read_is_no_exception() {
    // All of it is there at once, and less than a frame may have.
    let up = Upstream::start(move |request| reply(200, &"x".repeat(request.target[1..].parse().unwrap())));
    let limit = "[server.http2]\nmax_streams = 2\n[limits.l]\nkey = \"client-ip\"\nmax_in_flight = 2\n";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::with_server("body_timeout = \"1s\"", &format!("{limit}{}{route}", up.section()));
    // Some clients grant nothing, and others all but one byte.
    for (path, window) in [("/5000", 0), ("/5001", 5000), ("/10240", 0), ("/10241", 10_240)] {
        let mut client = RawHttp2::connect(gateway.http, &[(4, window)]);
        client.send(&[get(1, path), get(3, path)].concat()).unwrap();
        let is_wanted = |frame: &Frame| [kind::HEADERS, kind::RST_STREAM].contains(&frame.kind);
        // Those of one stream come before, between or after those of the other.
        let frames = [(); 4].map(|()| client.find("response or reset", is_wanted));
        for stream in [1, 3] {
            let of: Vec<_> = frames.iter().filter(|frame| frame.stream == stream).collect();
            let kinds: Vec<_> = of.iter().map(|frame| frame.kind).collect();
            assert_eq!(kinds, [kind::HEADERS, kind::RST_STREAM], "{path}");
            // In the static table of HPACK, this is the status 200.
            assert_eq!((of[0].payload[0], &of[1].payload[..]), (0x88, &CANCEL.to_be_bytes()[..]), "{path}");
        }
        let line = gateway.wait_log("the request", |line| line["path"] == path);
        assert_eq!((&line["outcome"], &line["reason"]), (&"abandoned".into(), &"body_timeout".into()), "{line}");
        // Their places are free, in the protocol and under the limit.
        client.send(&get(5, path)).unwrap();
        assert_eq!(client.reaction(5), Reaction::Status(200), "{path}");
        assert_eq!(client.reaction(5), Reaction::Reset(CANCEL), "{path}");
    }
    // A stream is counted after its reset is sent.
    until("all resets are counted", Duration::from_secs(10), || {
        gateway.metric("gateway_http2_stream_errors_total{error=\"cancel\"}") == Some(12.0)
    });
}

#[test]
fn responses_that_wait_keep_no_window_of_their_requests() {
    const STREAMS: usize = 80;
    let up = Upstream::raw(|mut wire, _| {
        while let Ok(Some((_, headers))) = wire.head() {
            wire.body(headers.framing(Framing::Length(0)).unwrap(), &mut |_| {}).unwrap();
            // The rest never comes.
            wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello").unwrap();
        }
    });
    let gateway = Gateway::start(&up.everything());
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let mut waiting = Vec::new();
        // Together they are more than a connection may have ahead.
        for _ in 0..STREAMS {
            let request = Request::post("http://a.test/").header("content-length", PIECE).body(()).unwrap();
            let (response, mut stream) = client.send_request(request, false).unwrap();
            stream.reserve_capacity(PIECE);
            let granted = async {
                while stream.capacity() < PIECE {
                    poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
                }
            };
            // The responses end only when the upstream is late.
            tokio::time::timeout(Duration::from_secs(20), granted).await.expect("there is window");
            // The end comes together with the whole body.
            stream.send_data(vec![b'x'; PIECE].into(), true).unwrap();
            waiting.push(response.await.unwrap());
        }
    });
}

#[test]
fn an_upstream_that_does_not_read_stops_its_clients_and_no_others() {
    const MOST: usize = 64 << 20;
    let (up, end) = holding();
    let gateway = Gateway::start(&up.everything());
    let memory = gateway.memory("VmRSS");
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let (response, mut stream) = client.send_request(post("/held"), false).unwrap();
            let sent = send(&mut stream, MOST, Duration::from_secs(1)).await;
            assert!(sent < MOST, "the gateway keeps everything");
            held.push((response, stream, sent));
        }
        for _ in 0..10 {
            let (response, mut stream) = client.send_request(post("/"), false).unwrap();
            assert_eq!(send(&mut stream, 1 << 20, Duration::from_secs(20)).await, 1 << 20);
            stream.send_data(Bytes::new(), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "1048576");
        }
        let grown = gateway.memory("VmHWM").saturating_sub(memory);
        assert!(grown < 16 << 20, "{grown} bytes more were resident");
        drop(end);
        for (response, mut stream, sent) in held {
            stream.send_data(Bytes::new(), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), sent.to_string());
        }
    });
}

#[test]
fn clients_that_do_not_read_stop_their_upstreams_and_no_others() {
    const MOST: usize = 64 << 20;
    const STREAMS: u64 = 20;
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some((line, _))) = wire.head() {
            let length = if line.contains("/large") { MOST } else { 3 * PIECE };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            wire.write(head.as_bytes()).unwrap();
            for _ in 0..length / PIECE {
                if wire.stream().write_all(&[b'x'; PIECE]).is_err() {
                    return;
                }
                count.fetch_add(PIECE as u64, Ordering::SeqCst);
            }
        }
    });
    let gateway = Gateway::start(&up.everything());
    let memory = gateway.memory("VmRSS");
    run(async {
        let mut client = connect(gateway.http, 100_000).await;
        let mut unread = Vec::new();
        for _ in 0..STREAMS {
            unread.push(client.send_request(post("/large"), true).unwrap().0.await.unwrap().into_body());
        }
        // The upstream stops when the buffers of the system are full.
        let mut before = u64::MAX;
        while before != written.load(Ordering::SeqCst) {
            before = written.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(before < STREAMS * MOST as u64 / 2, "{before}");
        for _ in 0..10 {
            let mut body = client.send_request(post("/"), true).unwrap().0.await.unwrap().into_body();
            let mut length = 0;
            while let Some(piece) = body.data().await {
                length += piece.unwrap().len();
            }
            assert_eq!(length, 3 * PIECE);
        }
        let grown = gateway.memory("VmHWM").saturating_sub(memory);
        assert!(grown < 16 << 20, "{grown} bytes more were resident");
        // A body that is read again goes on to its end.
        let mut body = unread.remove(0);
        let mut length = 0;
        while let Some(piece) = body.data().await {
            let piece = piece.unwrap();
            length += piece.len();
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
        assert_eq!(length, MOST);
    });
}

#[test]
fn a_client_that_often_grants_window_is_no_flood() {
    const LENGTH: usize = 16 << 20;
    let up = Upstream::start(|request| reply(200, &"x".repeat(if request.target == "/large" { LENGTH } else { 2 })));
    let gateway = Gateway::start(&up.everything());
    let grant = |stream: u32, by: usize| {
        frame(kind::WINDOW_UPDATE, 0, stream, &u32::try_from(by.max(1)).unwrap().to_be_bytes())
    };
    let mut client = RawHttp2::connect(gateway.http, &[(4, 4 << 20)]);
    client.send(&[grant(0, 4 << 20), get(1, "/large")].concat()).unwrap();
    // The client grants a quarter of each frame at a time, late, for the stream and for the connection.
    let (mut received, mut late) = (0, VecDeque::new());
    while received < LENGTH {
        let data = client.find("DATA", |frame| frame.kind == kind::DATA).payload.len();
        received += data;
        late.push_back([grant(1, data / 4), grant(0, data / 4)].concat().repeat(4));
        if late.len() > 200 {
            client.send(&late.pop_front().unwrap()).unwrap();
        }
    }
    late.into_iter().for_each(|grants| client.send(&grants).unwrap());
    client.send(&get(3, "/")).unwrap();
    assert_eq!(client.reaction(3), Reaction::Status(200));
}

#[test]
#[ignore = "needs curl"]
fn an_expectation_is_dropped_and_the_body_is_read() {
    let up = Upstream::start(|request| reply(200, &request.body.len().to_string()));
    let gateway = Gateway::start(&up.everything());
    let mut body = tempfile::NamedTempFile::new().unwrap();
    body.write_all(&vec![b'x'; 3_000_000]).unwrap();
    let output = Command::new("curl")
        .args([
            "--silent",
            "--http2-prior-knowledge",
            "--max-time",
            "15",
            "--header",
            "Expect: 100-continue",
            "--data-binary",
        ])
        .arg(format!("@{}", body.path().display()))
        .arg(format!("http://{}/", gateway.http))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "3000000");
    let request = up.received().remove(0);
    assert_eq!((request.headers.get("expect"), request.headers.must("content-length")), (None, "3000000"));
    until("it is counted", Duration::from_secs(20), || gateway.metric("gateway_requests_total") == Some(1.0));
}
