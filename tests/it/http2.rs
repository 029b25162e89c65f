//! HTTP/2 with clients: every request on a connection is limited, answered and bounded in time by itself.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use rustix::process::Signal;

use crate::harness::http2_server::read;
use crate::harness::{Authority, Client, Gateway, Headers, Received, Upstream, curl, limited, reply, until};

/// The beginning of a connection, without settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time") })
}

/// Opens a connection with prior knowledge, whose streams have this initial window.
async fn connect(address: SocketAddr, window: u32) -> SendRequest<bytes::Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(1 << 24)
        .handshake(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test.example{path}")).body(()).unwrap()
}

fn send(client: &mut SendRequest<bytes::Bytes>, request: Request<()>) -> ResponseFuture {
    client.send_request(request, true).unwrap().0
}

fn names(headers: &Headers) -> Vec<&str> {
    headers.0.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
#[ignore = "needs curl"]
fn it_is_agreed_on_in_tls_and_known_beforehand_without() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let up = Upstream::start(|_| reply(200, "hello"));
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", site.toml());
    let gateway = Gateway::with_server(&server, &up.everything());
    let (plain, https) = (gateway.http.port(), gateway.https().port());
    let ca = authority.ca();
    let version = |more: &[&str], url: &str| {
        let output = curl(["--write-out", " %{http_version}"].iter().chain(more).copied().chain([url]));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let connect = format!("site.test:{https}:127.0.0.1:{https}");
    let tls = ["--cacert", ca.to_str().unwrap(), "--connect-to", &connect];
    let url = format!("https://site.test:{https}/");
    assert_eq!(version(&tls, &url), "hello 2");
    assert_eq!(version(&[&tls[..], &["--http1.1"]].concat(), &url), "hello 1.1");
    let url = format!("http://127.0.0.1:{plain}/");
    assert_eq!(version(&["--http2-prior-knowledge"], &url), "hello 2");
    assert_eq!(version(&[], &url), "hello 1.1");
    // The gateway offers no upgrade within HTTP/1.1, and answers as if the client had not asked.
    assert_eq!(version(&["--http2"], &url), "hello 1.1");
    let via = |request: &Received| request.headers.must("via").split_once('-').unwrap().0.to_owned();
    let vias: Vec<_> = up.received().iter().map(via).collect();
    assert_eq!(vias, ["2.0 gateway", "1.1 gateway", "2.0 gateway", "1.1 gateway", "1.1 gateway"]);
}

#[test]
#[ignore = "needs h2load"]
fn a_hundred_streams_at_once_get_what_is_allowed() {
    let gateway = Gateway::start(&limited("client-ip", "20/h", ""));
    let url = format!("http://{}/", gateway.http);
    let output = Command::new("h2load").args(["-n", "100", "-c", "1", "-m", "100", &url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("status codes: 20 2xx, 0 3xx, 80 4xx, 0 5xx"), "{text}");
}

#[test]
fn a_request_goes_on_as_one_of_http_1() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let gateway = Gateway::start(&up.everything());
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let mut request = get("/a?b=c");
        for crumb in ["a=1", "b=2; c=3", "d=4"] {
            request.headers_mut().append("cookie", HeaderValue::from_static(crumb));
        }
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        request.headers_mut().insert("x-one", HeaderValue::from_static("1"));
        let response = send(&mut client, request).await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["content-length"]), (200, &HeaderValue::from(5)));
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(read(response.into_body()).await.unwrap().0, b"hello");
    });
    let request = up.received().remove(0);
    assert_eq!((&*request.method, &*request.target), ("GET", "/a?b=c"));
    assert_eq!(request.headers.joined("cookie"), "a=1; b=2; c=3; d=4");
    assert_eq!(request.headers.joined("x-forwarded-host"), "test.example");
    assert_eq!((request.headers.joined("te"), request.headers.joined("x-one")), ("trailers".into(), "1".into()));
    assert!(!names(&request.headers).iter().any(|name| name.starts_with(':')), "{:?}", request.headers);
}

#[test]
fn the_authority_is_the_host() {
    let routes = "[[routes]]\nhost = \"a.test\"\npath = \"/*\"\nrespond = { status = 201 }\n";
    let gateway = Gateway::start(&format!("{routes}[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n"));
    let statuses = run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let mut statuses = Vec::new();
        for (authority, host) in
            [("a.test", None), ("b.test", None), ("a.test:80", Some("a.test:80")), ("a.test", Some("b.test"))]
        {
            let mut request = Request::get(format!("http://{authority}/")).body(()).unwrap();
            if let Some(host) = host {
                request.headers_mut().insert("host", HeaderValue::from_static(host));
            }
            statuses.push(send(&mut client, request).await.unwrap().status().as_u16());
        }
        statuses
    });
    assert_eq!(statuses, [201, 200, 201, 400]);
}

#[test]
fn heads_are_complete_and_those_without_content_have_none() {
    let up = Upstream::start(|request| match &*request.target {
        "/dated" => {
            b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\n\r\nhello".to_vec()
        }
        _ if request.method == "HEAD" => b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n".to_vec(),
    });
    let own = "[[routes]]\npath = \"/own\"\nrespond = { status = 200, body = \"hello\" }\n";
    let gateway = Gateway::start(&format!("{own}{}", up.everything()));
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        for (method, path, length, body) in [
            ("GET", "/own", "5", "hello"),
            ("HEAD", "/own", "5", ""),
            ("GET", "/dated", "5", "hello"),
            ("HEAD", "/up", "7", ""),
            ("GET", "/up", "7", ""),
        ] {
            let request = Request::builder().method(method).uri(format!("http://test.example{path}"));
            let response = send(&mut client, request.body(()).unwrap()).await.unwrap();
            let dates: Vec<_> = response.headers().get_all("date").iter().cloned().collect();
            assert_eq!(dates.len(), 1, "{method} {path}");
            assert_eq!(dates[0] == "Sun, 06 Nov 1994 08:49:37 GMT", path == "/dated");
            assert_eq!(response.headers()["content-length"], length, "{method} {path}");
            assert_eq!(response.body().is_end_stream(), body.is_empty(), "{method} {path}");
            assert_eq!(read(response.into_body()).await.unwrap().0, body.as_bytes(), "{method} {path}");
        }
    });
}

#[test]
fn bodies_and_trailers_pass_both_ways() {
    const LENGTH: usize = 3_000_000;
    let up = Upstream::start(|request| {
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n".to_vec();
        for piece in request.body.chunks(70_000) {
            answer.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            answer.extend_from_slice(piece);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\nx-sum: 7\r\n\r\n");
        answer
    });
    let gateway = Gateway::start(&up.everything());
    let sent: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let (body, trailers) = run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let request = Request::post("http://test.example/").header("trailer", "x-check").body(()).unwrap();
        let (response, mut stream) = client.send_request(request, false).unwrap();
        stream.send_data(sent.clone().into(), false).unwrap();
        stream.send_trailers(HeaderMap::from_iter([("x-check".parse().unwrap(), "9".parse().unwrap())])).unwrap();
        read(response.await.unwrap().into_body()).await.unwrap()
    });
    assert!(body == sent);
    assert_eq!(trailers.unwrap()["x-sum"], "7");
    let request = up.received().remove(0);
    assert!(request.body == sent);
    assert_eq!(request.headers.joined("transfer-encoding"), "chunked");
}

#[test]
fn trailers_of_a_response_are_none_that_decide_something() {
    let up = Upstream::start(|_| {
        let trailers = "x-sum: 7\r\nConnection: x\r\nKeep-Alive: 5\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\
                        Content-Type: text/html\r\nSet-Cookie: a=b\r\nTrailer: x\r\ngrpc-status: 0\r\n\
                        HTTP2-Settings: x\r\nContent-Location: /x\r\nVia: 1.1 x\r\nX-Hop: 1\r\n";
        format!(
            "HTTP/1.1 200 OK\r\nConnection: x-hop\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n{trailers}\r\n"
        )
        .into_bytes()
    });
    let gateway = Gateway::start(&up.everything());
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let response = send(&mut client, get("/")).await.unwrap();
        let (body, trailers) = read(response.into_body()).await.unwrap();
        let trailers = trailers.unwrap();
        let names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        assert_eq!((&body[..], &names[..]), (&b"ab"[..], &["x-sum", "grpc-status"][..]));
    });
}

#[test]
fn a_stream_that_waits_holds_up_no_other() {
    let (up, go) = Upstream::holding();
    let gateway = Gateway::start(&up.everything());
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let held = send(&mut client, get("/held"));
        for _ in 0..10 {
            assert_eq!(send(&mut client, get("/")).await.unwrap().status(), 200);
        }
        drop(go);
        assert_eq!(held.await.unwrap().status(), 200);
    });
}

#[test]
fn a_stream_that_is_not_read_is_reset_and_the_others_go_on() {
    let large = "x".repeat(1 << 20);
    let up = Upstream::start(move |request| reply(200, if request.target == "/large" { &large } else { "hello" }));
    let limit = "[limits.l]\nkey = \"client-ip\"\nmax_in_flight = 2\n";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::with_server("body_timeout = \"3s\"", &format!("{limit}{}{route}", up.section()));
    run(async {
        // Not one byte of a body may come before window is granted, on any stream.
        let mut client = connect(gateway.http, 0).await;
        let mut bodies = Vec::new();
        for path in ["/large", "/large"] {
            let response = send(&mut client, get(path)).await.unwrap();
            assert_eq!(response.status(), 200);
            bodies.push(response.into_body());
        }
        assert_eq!(send(&mut client, get("/")).await.unwrap().status(), 429, "both are in flight");
        let stalled = bodies.remove(0).data().await.unwrap().unwrap_err();
        assert_eq!(stalled.reason(), Some(Reason::CANCEL), "{stalled}");
        assert!(bodies.remove(0).data().await.unwrap().is_err());
        let response = send(&mut client, get("/")).await.unwrap();
        assert_eq!(response.status(), 200, "the connection goes on, and their places are free");
    });
}

#[test]
fn a_stream_that_is_read_slowly_is_not_reset() {
    let up = Upstream::start(|_| reply(200, &"x".repeat(60)));
    let gateway = Gateway::with_server("body_timeout = \"3s\"", &up.everything());
    run(async {
        let mut client = connect(gateway.http, 10).await;
        let mut body = send(&mut client, get("/")).await.unwrap().into_body();
        let mut length = 0;
        while let Some(piece) = body.data().await {
            length += piece.unwrap().len();
            // Less than `body_timeout` for each piece, and more in total.
            tokio::time::sleep(Duration::from_millis(800)).await;
            body.flow_control().release_capacity(10).unwrap();
        }
        assert_eq!(length, 60);
    });
}

/// Like `until`, while other tasks go on.
async fn until_async(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !so() {
        assert!(Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_request_that_is_cancelled_is_cancelled_at_the_upstream() {
    let heads = Arc::new(AtomicUsize::new(0));
    let closed = Arc::new(AtomicUsize::new(0));
    let (count_head, count_closed) = (heads.clone(), closed.clone());
    let up = Upstream::raw(move |mut wire, _| {
        wire.head().unwrap();
        count_head.fetch_add(1, Ordering::SeqCst);
        // Nothing is answered; the next event is the close of the connection by the gateway.
        count_closed.fetch_add(usize::from(wire.rest().1), Ordering::SeqCst);
    });
    let gateway = Gateway::start(&up.everything());
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let response = send(&mut client, get("/"));
        until_async("the upstream has the request", || heads.load(Ordering::SeqCst) == 1).await;
        // The connection stays.
        drop(response);
        until_async("the upstream's connection is closed", || closed.load(Ordering::SeqCst) == 1).await;
    });
    run(async {
        let mut client = connect(gateway.http, 65_535).await;
        let _response = send(&mut client, get("/"));
        until_async("the upstream has the request", || heads.load(Ordering::SeqCst) == 2).await;
        // The client goes away altogether.
    });
    let is_closed = || closed.load(Ordering::SeqCst) == 2;
    until("the upstream's connection is closed", Duration::from_secs(15), is_closed);
    until("nothing is open", Duration::from_secs(10), || gateway.metric("gateway_connections") == Some(0.0));
}

#[test]
fn a_drain_finishes_what_is_under_way_and_takes_nothing_new() {
    let (up, go) = Upstream::holding();
    let mut gateway = Gateway::start(&up.everything());
    run(async {
        let mut idle = connect(gateway.http, 65_535).await;
        assert_eq!(send(&mut idle, get("/")).await.unwrap().status(), 200);
        let mut client = connect(gateway.http, 65_535).await;
        let held = send(&mut client, get("/held"));
        let client = client.ready().await.unwrap();
        let is_held = || up.received().iter().any(|request| request.target == "/held");
        until_async("the upstream has the request", is_held).await;
        gateway.signal(Signal::TERM);
        let end = Instant::now() + Duration::from_secs(15);
        // After GOAWAY the connection takes no request any more.
        while client.clone().ready().await.is_ok() {
            assert!(Instant::now() < end, "it is not told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(go);
        assert_eq!(held.await.unwrap().status(), 200);
    });
    let begun = Instant::now();
    assert_eq!(gateway.wait_exit().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn pings_are_no_use_of_a_connection() {
    let gateway = Gateway::with_server("idle_timeout = \"1s\"", &limited("client-ip", "1000/s", ""));
    let mut stream = TcpStream::connect(gateway.http).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.write_all(PREFACE).unwrap();
    let begun = Instant::now();
    // GET http / of the authority a, in the static table and literally (RFC 7541, appendix A).
    stream.write_all(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a").unwrap();
    let mut bytes = vec![0; 4096];
    loop {
        assert!(begun.elapsed() < Duration::from_secs(10), "it stays open");
        if stream.write_all(b"\0\0\x08\x06\0\0\0\0\0gateway!").is_err() {
            break;
        }
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            _ => {}
        }
        // Too many of them would be a flood.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_beginning_that_does_not_go_on_is_bounded_in_time() {
    let gateway = Gateway::with_server("header_timeout = \"1s\"", &limited("client-ip", "1000/s", ""));
    for beginning in [&PREFACE[..3], &PREFACE[..20], &PREFACE[..24], PREFACE] {
        let mut client = gateway.client();
        client.send(beginning);
        let begun = Instant::now();
        client.closed();
        // By default it would take at least 10 s.
        assert!(begun.elapsed() < Duration::from_secs(10), "{beginning:?}");
    }
    // A preface in pieces still counts, and other beginnings are HTTP/1.1.
    let gateway = Gateway::start(&limited("client-ip", "1000/s", ""));
    let mut client = gateway.client();
    for piece in PREFACE.chunks(5) {
        client.send(piece);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut head = [0; 4];
    client.wire.read_exact(&mut head).unwrap();
    assert!(matches!(head, [0, _, _, 4]), "settings: {head:?}");
    let mut client = gateway.client();
    client.send("P");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(client.call("UT / HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut client = Client::connect(gateway.http);
    assert_eq!(client.call("PRI / HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}
