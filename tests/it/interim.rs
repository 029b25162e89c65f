//! Interim responses (1xx): HTTP/2 clients get early hints, and hear when the gateway wants their body.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::Builder;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Semaphore;

use crate::harness::http2::{END_HEADERS, END_STREAM, RawHttp2, Reaction, block, frame, headers, kind};
use crate::harness::http2_server::{Frames, Http2Server, over_http2, read};
use crate::harness::{Framing, Gateway, Upstream, limited, reply, until};

const BOUND: Duration = Duration::from_secs(20);

const HIDING: &str = "response_headers = { remove = [\"x-hidden\"], set = { server = \"gateway\" } }\n";

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, future).await.expect("in time") })
}

async fn connect(gateway: &Gateway) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

fn get() -> Request<()> {
    Request::get("http://test.example/").body(()).unwrap()
}

fn post(length: usize) -> Request<()> {
    let request = Request::post("http://test.example/").header("expect", "100-Continue");
    request.header("content-length", length).body(()).unwrap()
}

/// `None` if the final response has come.
async fn interim(response: &mut ResponseFuture) -> Option<Response<()>> {
    poll_fn(|cx| response.poll_informational(cx)).await.map(Result::unwrap)
}

async fn statuses(mut response: ResponseFuture) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(head) = interim(&mut response).await {
        statuses.push(head.status().as_u16());
    }
    statuses.push(response.await.unwrap().status().as_u16());
    statuses
}

/// Sends `before` over HTTP/1.1, and its response when the test says so.
fn holding(before: &'static str) -> (Upstream, Sender<()>) {
    let (go, held): (_, Receiver<()>) = channel();
    let held = Mutex::new(held);
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(_)) = wire.head() {
            wire.write(before.as_bytes()).unwrap();
            let _ = held.lock().unwrap().recv();
            wire.write(&reply(200, "hello")).unwrap();
        }
    });
    (up, go)
}

/// Sends hints over HTTP/2, and its response when it may.
fn hinting(hints: usize) -> (Http2Server, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let held = go.clone();
    let server = Http2Server::start(None, Builder::new(), move |_, mut respond| {
        let held = held.clone();
        async move {
            for _ in 0..hints {
                let hint = Response::builder().status(103).header("link", "</a.css>").header("x-hidden", "1");
                respond.send_informational(hint.header("server", "secret").body(()).unwrap()).unwrap();
            }
            held.acquire().await.unwrap().forget();
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            let _ = sender.send_data("hello".into(), true);
        }
    });
    (server, go)
}

fn links() -> HeaderMap {
    HeaderMap::from_iter([(http::header::LINK, "</a.css>".parse().unwrap())])
}

#[test]
fn hints_of_a_server_of_http_1_come_before_its_response() {
    let hint = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\n\
                X-Hop: 1\r\nKeep-Alive: 5\r\nTE: x\r\nContent-Length: 3\r\nServer: secret\r\nX-Hidden: 1\r\n\r\n";
    let (up, go) = holding(hint);
    let gateway = Gateway::start(&(up.everything() + HIDING));
    run(async {
        let mut client = connect(&gateway).await;
        let mut response = client.send_request(get(), true).unwrap().0;
        assert_eq!(interim(&mut response).await.unwrap().status(), StatusCode::PROCESSING);
        let hint = interim(&mut response).await.unwrap();
        assert_eq!((hint.status(), hint.headers()), (StatusCode::EARLY_HINTS, &links()));
        // The upstream makes its response only now.
        drop(go);
        let response = response.await.unwrap();
        assert_eq!((response.status(), &response.headers()["server"]), (StatusCode::OK, &"gateway".parse().unwrap()));
        assert_eq!(read(response.into_body()).await.unwrap().0, b"hello");
    });
}

#[test]
fn hints_of_a_server_of_http_2_come_before_its_response() {
    let (up, go) = hinting(1);
    let routes = format!("[[routes]]\npath = \"/*\"\nupstream = \"up\"\n{HIDING}");
    let up = format!("{routes}[upstreams.up]\nservers = [\"http://{}\"]\nhttp2 = true\n", up.address);
    let gateway = Gateway::start(&up);
    run(async {
        let mut client = connect(&gateway).await;
        let mut response = client.send_request(get(), true).unwrap().0;
        let hint = interim(&mut response).await.unwrap();
        assert_eq!((hint.status(), hint.headers()), (StatusCode::EARLY_HINTS, &links()));
        go.add_permits(1);
        assert_eq!(read(response.await.unwrap().into_body()).await.unwrap().0, b"hello");
    });
}

#[test]
fn a_client_of_http_1_gets_the_response_alone() {
    let (over_http1, go) = holding("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
    drop(go);
    let (over_http2, go) = hinting(1);
    go.add_permits(1);
    for config in [over_http1.everything(), over_http2.everything("http", "")] {
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        let response = client.get("/");
        assert_eq!((response.status, response.text()), (200, "hello"));
        assert!(!response.headers.0.iter().any(|(name, _)| name.eq_ignore_ascii_case("link")));
    }
}

#[test]
#[ignore = "needs curl"]
fn curl_shows_hints() {
    let (up, go) = holding("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
    drop(go);
    let gateway = Gateway::start(&up.everything());
    let url = format!("http://{}/", gateway.http);
    let output = Command::new("curl")
        .args(["--silent", "--include", "--http2-prior-knowledge", "--max-time", "15", &url])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let begins = text.starts_with("HTTP/2 103 \r\nlink: </a.css>\r\n\r\nHTTP/2 200 \r\n");
    assert!(begins && text.ends_with("\r\n\r\nhello"), "{text}");
}

#[test]
fn more_than_a_hundred_are_too_many() {
    for (count, last) in [(100, 200), (101, 502)] {
        let up = Upstream::start(move |_| {
            let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(count);
            [hints.as_bytes(), &reply(200, "hello")].concat()
        });
        let (over_http2, go) = hinting(count);
        go.add_permits(1);
        for config in [up.everything(), over_http2.everything("http", "")] {
            let gateway = Gateway::start(&config);
            run(async {
                let response = connect(&gateway).await.send_request(get(), true).unwrap().0;
                let statuses = statuses(response).await;
                assert_eq!(statuses, [&[103; 100][..], &[last]].concat(), "{count}");
            });
        }
    }
}

#[test]
fn hints_that_a_client_does_not_read_take_little_memory() {
    const STREAMS: u32 = 100;
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let up = Upstream::raw(move |mut wire, _| {
        let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: <{}>\r\n\r\n", "x".repeat(7 << 10)).repeat(100);
        while let Ok(Some(_)) = wire.head() {
            wire.write(hint.as_bytes()).unwrap();
            wire.write(&reply(200, "hello")).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let gateway = Gateway::start(&up.everything());
    let get = [(&b":method"[..], &b"GET"[..]), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&headers(1, END_STREAM, &get)).unwrap();
    until("one is answered", BOUND, || written.load(Ordering::SeqCst) == 1);
    let memory = gateway.memory("VmRSS");
    let streams = (1..STREAMS).flat_map(|stream| headers(2 * stream + 1, END_STREAM, &get));
    client.send(&streams.collect::<Vec<_>>()).unwrap();
    until("all are answered", BOUND, || gateway.metric("gateway_requests_total") == Some(f64::from(STREAMS)));
    let grown = gateway.memory("VmHWM").saturating_sub(memory);
    assert!(grown < 24 << 20, "{grown} bytes more were resident");
    // Two of 7 KiB are within what the gateway passes on, and then the response comes.
    let mut heads = BTreeMap::<u32, usize>::new();
    for _ in 0..STREAMS {
        let mut is_head = true;
        while is_head {
            let next = client.find("response", |frame| [kind::HEADERS, kind::DATA].contains(&frame.kind));
            is_head = next.kind == kind::HEADERS;
            *heads.entry(next.stream).or_default() += usize::from(is_head);
        }
    }
    assert!(heads.len() == 100 && heads.values().all(|count| *count == 3), "{heads:?}");
}

#[test]
fn a_client_that_resets_its_requests_while_hints_come_goes_on() {
    let up = Upstream::raw(|mut wire, _| {
        while let Ok(Some(_)) = wire.head() {
            for _ in 0..50 {
                if wire.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n").is_err() {
                    return;
                }
            }
            let _ = wire.write(&reply(200, "hello"));
        }
    });
    let gateway = Gateway::start(&up.everything());
    let get = [(&b":method"[..], &b"GET"[..]), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];
    let mut client = RawHttp2::connect(gateway.http, &[]);
    for number in 0..300 {
        let stream = 2 * number + 1;
        client.send(&headers(stream, END_STREAM, &get)).unwrap();
        if number % 3 > 0 {
            client.find("hint", |frame| frame.kind == kind::HEADERS && frame.stream == stream);
        }
        client.send(&frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])).unwrap();
    }
    client.send(&headers(601, END_STREAM, &get)).unwrap();
    let last =
        client.find("response", |frame| [kind::DATA, kind::GOAWAY].contains(&frame.kind) && frame.stream % 601 == 0);
    assert_eq!((last.kind, &last.payload[..]), (kind::DATA, &b"hello"[..]));
    assert!(gateway.log().iter().all(|line| !line.contains("panic")));
}

#[test]
fn a_client_that_waits_is_told_to_send_its_body() {
    let up = Upstream::start(|request| reply(200, &request.body.len().to_string()));
    let over_http2 = Http2Server::echo(None);
    for config in [up.everything(), over_http2.everything("http", "")] {
        let gateway = Gateway::start(&config);
        run(async {
            let mut client = connect(&gateway).await;
            let (mut response, mut body) = client.send_request(post(5), false).unwrap();
            let head = interim(&mut response).await.unwrap();
            assert_eq!((head.status(), head.headers()), (StatusCode::CONTINUE, &HeaderMap::new()));
            body.send_data("hel".into(), false).unwrap();
            body.send_data("lo".into(), true).unwrap();
            assert_eq!(statuses(response).await, [200], "it is told so once");
        });
    }
    assert_eq!((up.received()[0].headers.get("expect"), &up.received()[0].body[..]), (None, &b"hello"[..]));
    assert!(over_http2.requests().iter().all(|request| !request.headers.contains_key("expect")));
}

#[test]
fn a_client_whose_body_is_not_wanted_is_not_told_to_send_it() {
    let up = Upstream::start(|_| reply(200, ""));
    let fixed = "[[routes]]\npath = \"/*\"\nrespond = { status = 201 }\n";
    let small = format!("{}max_body_size = \"1KiB\"\n", up.everything());
    for (config, status) in [(fixed, 201), (&*small, 413), (&limited("client-ip", "1/h", ""), 429)] {
        let gateway = Gateway::start(config);
        run(async {
            let mut client = connect(&gateway).await;
            if status == 429 {
                client.send_request(get(), true).unwrap().0.await.unwrap();
            }
            let (mut response, mut body) = client.send_request(post(5000), false).unwrap();
            assert_eq!(interim(&mut response).await.map(|head| head.status()), None, "{status}");
            assert_eq!(response.await.unwrap().status(), status);
            // The client has the whole response, and need not send anything (RFC 9113, section 8.1).
            assert_eq!(poll_fn(|cx| body.poll_reset(cx)).await.unwrap(), Reason::NO_ERROR);
        });
    }
    assert_eq!(up.connections(), 0);
}

#[test]
fn a_client_that_does_not_wait_is_not_told_to_send() {
    let up = Upstream::start(|request| reply(200, &request.body.len().to_string()));
    let gateway = Gateway::start(&up.everything());
    let head = [
        (&b":method"[..], &b"POST"[..]),
        (b":scheme", b"http"),
        (b":authority", b"a"),
        (b":path", b"/"),
        (b"expect", b"100-continue"),
    ];
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&[headers(1, 0, &head), frame(kind::DATA, END_STREAM, 1, b"hello")].concat()).unwrap();
    assert_eq!(client.reaction(1), Reaction::Status(200));
    // Other expectations of a client do not matter.
    let other = [&head[..4], &[(&b"expect"[..], &b"miracles"[..])]].concat();
    client.send(&headers(3, 0, &other)).unwrap();
    up.wait_connections(1);
    client.send(&frame(kind::DATA, END_STREAM, 3, b"hello")).unwrap();
    assert_eq!(client.reaction(3), Reaction::Status(200));
}

#[test]
#[ignore = "needs nghttp"]
fn nghttp_waits_until_its_body_is_wanted() {
    let up = Upstream::raw(|mut wire, _| {
        while let Ok(Some((_, headers))) = wire.head() {
            let framing = headers.framing(Framing::Length(0)).unwrap();
            let mut length = 0;
            wire.body(framing, &mut |piece| length += piece.len()).unwrap();
            wire.write(&reply(200, &length.to_string())).unwrap();
        }
    });
    let gateway = Gateway::start(&up.everything());
    let mut body = tempfile::NamedTempFile::new().unwrap();
    body.write_all(&vec![b'x'; 300_000]).unwrap();
    let output = Command::new("nghttp")
        .args(["--verbose", "--expect-continue", "--timeout=15", "--data"])
        .arg(body.path())
        .arg(format!("http://{}/", gateway.http))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let place = |wanted: &str| text.find(wanted).unwrap_or_else(|| panic!("no {wanted}: {text}"));
    assert!(place(":status: 100") < place("send DATA frame") && place("send DATA frame") < place(":status: 200"));
    assert!(text.contains("300000"), "{text}");
}

#[test]
fn nothing_is_sent_again_once_a_part_of_a_response_was_passed_on() {
    let (hints, good) = (
        Upstream::raw(|mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }),
        Upstream::start(|_| reply(200, "ok")),
    );
    let servers = format!("servers = [\"http://{}\", \"http://{}\"]", hints.address(), good.address());
    let eject = "balance = \"round-robin\"\n[upstreams.up.eject]\nfailures = 1000";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"";
    let gateway = Gateway::start(&format!("[upstreams.up]\n{servers}\n{eject}\n{route}\n"));
    run(async {
        let mut requests = connect(&gateway).await;
        assert_eq!(statuses(requests.send_request(get(), true).unwrap().0).await, [103, 502]);
        assert!(good.received().is_empty());
        assert_eq!(statuses(requests.send_request(get(), true).unwrap().0).await, [200]);
    });
    // An HTTP/1.1 client gets no hints, so its response has not begun.
    assert_eq!(gateway.client().get("/").status, 200);
    assert_eq!(gateway.metric("gateway_upstream_retries_total"), Some(1.0));
}

#[test]
fn a_connection_of_http_2_that_ends_after_hints_is_no_reason_to_send_again() {
    for is_passed in [true, false] {
        let came = Arc::new(Mutex::new(Vec::new()));
        let record = came.clone();
        // Each connection answers its first request, and ends after hints for the second.
        let address = Frames::serve(move |mut frames, number| {
            while let Ok(head) = frames.until(kind::HEADERS) {
                record.lock().unwrap().push(number);
                if head.stream > 1 {
                    frames.send(kind::HEADERS, END_HEADERS, head.stream, &block(&[(b":status", b"103")]));
                    return;
                }
                frames.answer(head.stream, "ok");
            }
        });
        let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
        if is_passed {
            run(async {
                let mut requests = connect(&gateway).await;
                assert_eq!(statuses(requests.send_request(get(), true).unwrap().0).await, [200]);
                assert_eq!(statuses(requests.send_request(get(), true).unwrap().0).await, [103, 502]);
            });
        } else {
            assert_eq!([(); 2].map(|()| gateway.client().get("/").status), [200, 502]);
        }
        assert_eq!(*came.lock().unwrap(), [0, 0], "the client gets the hints: {is_passed}");
    }
}
