//! HTTP/2 to upstreams: negotiation, passed messages, shared connections, and what holds up what.

use std::net::Shutdown;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::Builder;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use tokio::sync::Semaphore;

use crate::harness::http2_server::{Http2Server, over_http2, read, send};
use crate::harness::{Authority, Client, Gateway, Pattern, Process, TlsServer, closed_port, reserved_port, until};

const BOUND: Duration = Duration::from_secs(10);

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time") })
}

async fn client_of(gateway: &Gateway) -> h2::client::SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// Answers with the path of a request once it may.
fn holding(settings: Builder) -> (Http2Server, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let held = go.clone();
    let server = Http2Server::start(None, settings, move |request, mut respond| {
        let held = held.clone();
        async move {
            if request.uri().path() != "/free" {
                held.acquire().await.unwrap().forget();
            }
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            let _ = sender.send_data(request.uri().path().to_owned().into(), true);
        }
    });
    (server, go)
}

#[test]
fn a_request_of_http_1_becomes_one_of_http_2() {
    let up = Http2Server::echo(None);
    let gateway = Gateway::start(&up.everything("http", ""));
    let mut client = gateway.client();
    let fields =
        "Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nCookie: a=1\r\nX-Twice: 1\r\nX-Twice: 2\r\n";
    assert_eq!(client.get_with("/a?b=c", fields).text(), "/a");
    let request = "POST /b HTTP/1.1\r\nHost: test.example\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(client.call(request).text(), "hello");
    assert_eq!(client.call("POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").text(), "/c");
    let chunked = "POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert_eq!(client.call(chunked).text(), "abc");

    let requests = up.requests();
    let one = &requests[0];
    assert_eq!((&one.method, one.version), (&Method::GET, Version::HTTP_2));
    assert_eq!(one.uri.to_string(), format!("http://{}/a?b=c", up.address));
    let mut headers: Vec<_> =
        one.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    headers.sort_unstable();
    // These differ each time.
    headers.retain(|(name, _)| !matches!(*name, "x-request-id" | "via"));
    let expected = [
        ("cookie", "a=1"),
        ("te", "trailers"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "test.example"),
        ("x-forwarded-proto", "http"),
        ("x-real-ip", "127.0.0.1"),
        ("x-twice", "1"),
        ("x-twice", "2"),
    ];
    assert_eq!(headers, expected);
    let lengths: Vec<_> = requests
        .iter()
        .map(|request| request.headers.get("content-length").map(|value| value.to_str().unwrap()))
        .collect();
    assert_eq!(lengths, [None, Some("5"), Some("0"), None]);
}

#[test]
fn the_host_of_the_client_is_the_authority_if_it_is_preserved() {
    let up = Http2Server::echo(None);
    let rest = up.everything("http", "").replace("upstream = \"up\"", "upstream = \"up\"\npreserve_host = true");
    let gateway = Gateway::start(&rest);
    assert_eq!(gateway.client().get("/").status, 200);
    assert_eq!(up.requests()[0].uri.authority().unwrap(), "test.example");
}

#[test]
fn with_tls_the_server_chooses() {
    let authority = Authority::new();
    let own = authority.issue("up", "up", &["127.0.0.1"]);
    let tls = format!("[upstreams.up.tls]\nca = \"{}\"\n", authority.ca().display());
    let up = Http2Server::echo(Some(authority.server(&own, false)));
    let gateway = Gateway::with_server("workers = 1", &up.everything("https", &tls));
    for _ in 0..3 {
        assert_eq!(gateway.client().get("/a").text(), "/a");
    }
    assert_eq!(up.requests()[0].uri.to_string(), format!("https://{}/a", up.address));
    assert_eq!(up.connections(), 1);

    // A server without HTTP/2 gets HTTP/1.1.
    let mut only_http1 = authority.server(&own, false);
    only_http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    let up = TlsServer::start(only_http1);
    let gateway = Gateway::with_server("workers = 1", &over_http2("https", up.address, &tls));
    let mut client = gateway.client();
    for path in ["/a", "/b", "/c"] {
        assert_eq!(client.get(path).text(), path);
    }
    // One connection finds out the server's protocol, and another carries the requests.
    assert!(up.handshakes().len() <= 2, "{:?}", up.handshakes());

    // The same for a server that negotiates nothing.
    let mut silent = authority.server(&own, false);
    silent.alpn_protocols = Vec::new();
    let up = TlsServer::start(silent);
    let gateway = Gateway::with_server("workers = 1", &over_http2("https", up.address, &tls));
    assert_eq!(gateway.client().get("/a").text(), "/a");
}

#[test]
fn a_connection_carries_as_many_requests_as_the_server_allows() {
    // All clients have the same address, so all requests except the first 16 go to its own connections.
    for (allowed, expected) in [(100, 2), (30, 4), (1, 100)] {
        let mut settings = Builder::new();
        settings.max_concurrent_streams(allowed);
        let (up, go) = holding(settings);
        let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
        // The settings of the server are known after the first response.
        assert_eq!(gateway.client().get("/free").text(), "/free");
        let mut clients: Vec<Client> = (0..100).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n"));
        until("all have come", BOUND, || up.requests().len() == 101);
        assert_eq!(up.connections(), expected);
        go.add_permits(100);
        clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "/held"));
    }
}

#[test]
fn requests_that_need_the_first_connection_wait_for_one_attempt() {
    let (up, go) = holding(Builder::new());
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    let mut clients: Vec<Client> = (0..50).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n"));
    until("all have come", BOUND, || up.requests().len() == 50);
    assert_eq!(up.connections(), 2, "one that clients share, and one of this client");
    go.add_permits(50);
    clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "/held"));

    let (_held, address) = closed_port();
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let mut clients: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    clients.iter_mut().for_each(|client| client.response(false).expect_problem(502));
    assert_eq!(gateway.wait_message("upstream failed")["reason"], "connect");
}

#[test]
fn bodies_and_trailers_pass_both_ways() {
    const LENGTH: usize = 30_000_000;
    let authority = Authority::new();
    let own = authority.issue("up", "up", &["127.0.0.1"]);
    let tls = format!("[upstreams.up.tls]\nca = \"{}\"\n", authority.ca().display());
    for (scheme, config, keys) in [("http", None, ""), ("https", Some(authority.server(&own, false)), &*tls)] {
        let up = Http2Server::echo(config);
        let gateway = Gateway::start(&up.everything(scheme, keys));
        let (received, trailers) = run(async {
            let mut client = client_of(&gateway).await;
            let request = Request::post("http://test.example/").body(()).unwrap();
            let (response, mut sender) = client.send_request(request, false).unwrap();
            let sending = tokio::spawn(async move {
                let mut pattern = Pattern::new();
                for _ in 0..LENGTH / 50_000 {
                    send(&mut sender, Bytes::copy_from_slice(pattern.next(50_000))).await.unwrap();
                }
                let trailers = [("x-sum", "7"), ("authorization", "secret")];
                let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
                sender.send_trailers(HeaderMap::from_iter(trailers)).unwrap();
            });
            let answered = read(response.await.unwrap().into_body()).await.unwrap();
            sending.await.unwrap();
            answered
        });
        Pattern::new().check(&received);
        assert_eq!(received.len(), LENGTH);
        let trailers = trailers.unwrap();
        assert_eq!(
            (&trailers["x-sum"], &trailers["x-names"]),
            (&HeaderValue::from_static("7"), &HeaderValue::from_static("x-sum"))
        );

        // From and to HTTP/1.1.
        let mut client = gateway.client();
        let mut pattern = Pattern::new();
        let mut request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n").into_bytes();
        (0..LENGTH / 50_000).for_each(|_| request.extend_from_slice(pattern.next(50_000)));
        let mut writing = client.wire.stream().try_clone().unwrap();
        let writer = std::thread::spawn(move || std::io::Write::write_all(&mut writing, &request).unwrap());
        let response = client.response(false);
        writer.join().unwrap();
        Pattern::new().check(&response.body);
        assert_eq!(response.body.len(), LENGTH);
        assert!(up.requests().iter().all(|request| request.uri.scheme_str() == Some(scheme)));
    }
}

#[test]
fn responses_without_a_body_have_none() {
    let up = Http2Server::start(None, Builder::new(), |request, mut respond| async move {
        let status = request.uri().path()[1..].parse().unwrap();
        let response = Response::builder().status::<u16>(status).header("content-length", 7);
        let ends = request.method() != Method::HEAD || status != 200;
        let mut sender = respond.send_response(response.body(()).unwrap(), ends && status != 200).unwrap();
        if !ends {
            // The end of the stream comes later.
            let _ = sender.send_data(Bytes::new(), true);
        } else if status == 200 {
            let _ = sender.send_data("content".into(), false);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let _ = sender.send_data(Bytes::new(), true);
        }
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    let mut client = gateway.client();
    let head = client.call("HEAD /200 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.headers.must("content-length")), (200, "7"));
    assert_eq!(client.get("/304").status, 304);
    // The length says where the content ends, so nobody waits for the end of the stream.
    assert_eq!(client.get("/200").text(), "content");
    assert_eq!(client.get("/200").text(), "content");
    assert_eq!(up.connections(), 1);
    until("all are logged", BOUND, || gateway.log().iter().filter(|line| line.contains("\"request\"")).count() == 4);
    assert!(gateway.log().iter().all(|line| !line.contains("abandoned")), "{:#?}", gateway.log());
}

/// Sends without end on `/endless`, stops in the middle of `/half`, never answers `/never`, and reports the ends of these.
fn misbehaving() -> (Http2Server, Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) {
    let (ends, sent) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (record, count) = (ends.clone(), sent.clone());
    let up = Http2Server::start(None, Builder::new(), move |request, mut respond| {
        let (record, count) = (record.clone(), count.clone());
        async move {
            let path = request.uri().path().to_owned();
            if path == "/never" {
                let reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                record.lock().unwrap().push(format!("{path} {reset:?}"));
                return;
            }
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            match &*path {
                "/endless" => {
                    while send(&mut sender, Bytes::from_static(&[b'x'; 16_384])).await.is_some() {
                        count.fetch_add(16_384, Ordering::SeqCst);
                    }
                    record.lock().unwrap().push(path);
                }
                "/half" => {
                    let _ = sender.send_data("half".into(), false);
                    let reset = std::future::poll_fn(|cx| sender.poll_reset(cx)).await;
                    record.lock().unwrap().push(format!("{path} {reset:?}"));
                }
                _ => _ = sender.send_data("well".into(), true),
            }
        }
    });
    (up, ends, sent)
}

#[test]
fn time_limits_are_those_of_a_request_and_not_of_its_connection() {
    let (up, ends, _) = misbehaving();
    let keys = "timeout = \"4s\"\nread_timeout = \"3s\"";
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", keys));
    let begun = Instant::now();
    gateway.client().get("/never").expect_problem(504);
    assert!(begun.elapsed() >= Duration::from_millis(3_900) && begun.elapsed() < Duration::from_secs(20));
    let mut client = gateway.client();
    client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
    client.try_response(false).expect_err("a clean end");
    until("both are reset", BOUND, || ends.lock().unwrap().len() == 2);
    assert_eq!(*ends.lock().unwrap(), ["/never Ok(CANCEL)", "/half Ok(CANCEL)"]);
    assert_eq!(gateway.client().get("/").text(), "well");
    assert_eq!(up.connections(), 1, "the connection goes on");
    let reasons = || {
        let lines = gateway.log().into_iter().filter(|line| line.contains("\"request\""));
        let reason = |line: String| serde_json::from_str::<serde_json::Value>(&line).unwrap()["reason"].clone();
        lines.map(reason).collect::<Vec<_>>()
    };
    until("all are logged", BOUND, || reasons().len() == 3);
    assert_eq!(reasons()[..2], ["timeout", "read_timeout"]);
}

#[test]
fn a_client_that_goes_away_resets_the_stream() {
    let (up, ends, _) = misbehaving();
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    for path in ["/never", "/half", "/endless"] {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        until("it has come", BOUND, || up.requests().iter().any(|request| request.uri.path() == path));
        drop(client);
        until("the stream is reset", BOUND, || ends.lock().unwrap().iter().any(|end| end.starts_with(path)));
    }
    assert_eq!(gateway.client().get("/").text(), "well");
    assert_eq!(up.connections(), 1);
}

#[test]
fn a_client_that_does_not_read_holds_up_its_server_and_nobody_else() {
    let (up, _, sent) = misbehaving();
    let gateway = Gateway::with_server("workers = 1\nbody_timeout = \"60s\"", &up.everything("http", ""));
    let before = gateway.memory("VmRSS");
    let mut clients: Vec<Client> = (0..40).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n"));
    let still = || {
        let before = sent.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        before > 0 && sent.load(Ordering::SeqCst) == before
    };
    until("the server waits", Duration::from_secs(20), still);
    let grown = gateway.memory("VmRSS").saturating_sub(before) >> 20;
    assert!(grown < 120, "{grown} MiB for {} bytes", sent.load(Ordering::SeqCst));
    // All streams are on two connections, and others go on there.
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.get("/").text(), "well");
    }
    assert_eq!(up.connections(), 2);
}

#[test]
fn a_server_that_grants_no_window_holds_up_its_client() {
    let mut settings = Builder::new();
    settings.initial_window_size(100_000);
    let up = Http2Server::start(None, settings, |request, mut respond| async move {
        if request.uri().path() == "/free" {
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            let _ = sender.send_data("well".into(), true);
            return;
        }
        // It keeps the body without reading it.
        let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        drop(request);
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", "timeout = \"4s\""));
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n");
    let mut writing = client.wire.stream().try_clone().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let writer = std::thread::spawn(move || {
        let piece = vec![b'x'; 65_536];
        while std::io::Write::write_all(&mut writing, &piece).is_ok() {
            count.fetch_add(piece.len(), Ordering::SeqCst);
        }
    });
    // The upstream is to blame, although the client has sent only a part.
    assert_eq!(client.try_response(false).unwrap().status, 504);
    let taken = written.load(Ordering::SeqCst);
    assert!(taken < 32 << 20, "{taken}");
    client.wire.stream().shutdown(Shutdown::Both).unwrap();
    writer.join().unwrap();
    assert_eq!(gateway.client().get("/free").text(), "well");
}

#[test]
fn connections_are_kept_for_max_idle_and_used_for_max_age() {
    for keys in ["max_idle = \"300ms\"", "max_age = \"300ms\""] {
        let (up, go) = holding(Builder::new());
        go.add_permits(100);
        let gateway = Gateway::with_server("workers = 1", &up.everything("http", keys));
        let mut client = gateway.client();
        assert_eq!(client.get("/").text(), "/");
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(client.get("/").text(), "/");
        assert_eq!(up.connections(), 2, "{keys}");
    }
    // A response that has begun is finished.
    let (up, go) = holding(Builder::new());
    let gateway =
        Gateway::with_server("workers = 1", &up.everything("http", "max_age = \"200ms\"\nmax_idle = \"100ms\""));
    let mut client = gateway.client();
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(Duration::from_millis(600));
    go.add_permits(1);
    assert_eq!(client.response(false).text(), "/held");
}

#[test]
fn a_reload_that_changes_the_protocol_uses_other_connections() {
    let (up, go) = holding(Builder::new());
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    let mut client = gateway.client();
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    until("it has come", BOUND, || up.requests().len() == 1);
    gateway.reload("workers = 1", &up.everything("http", "").replace("http2 = true", "http2 = false"));
    gateway.wait_message("reloaded");
    // The server does not understand HTTP/1.1.
    gateway.client().get("/free").expect_problem(502);
    go.add_permits(1);
    assert_eq!(client.response(false).text(), "/held", "a request under way is finished");
}

struct Nghttpd {
    _process: Process,
    port: u16,
}

impl Nghttpd {
    fn start(folder: &std::path::Path) -> Self {
        // The server cannot choose a port and report it.
        let (_held, address) = reserved_port();
        let mut command = Command::new("nghttpd");
        command.args(["--no-tls", "--address", "127.0.0.1", "--echo-upload", "--trailer", "x-sum: 7", "--htdocs"]);
        command.arg(folder).arg(address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(command.spawn().expect("nghttpd is installed: scripts/test --all does that"));
        let server = Self { _process: process, port: address.port() };
        until("it listens", BOUND, || std::net::TcpStream::connect(address).is_ok());
        server
    }
}

#[test]
#[ignore = "needs nghttpd"]
fn nghttpd_is_an_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let mut pattern = Pattern::new();
    let content: Vec<u8> = (0..200).flat_map(|_| pattern.next(50_000).to_vec()).collect();
    std::fs::write(folder.path().join("file"), &content).unwrap();
    let up = Nghttpd::start(folder.path());
    let address = ([127, 0, 0, 1], up.port).into();
    let gateway = Gateway::start(&over_http2("http", address, ""));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/file").body, content);
    }
    assert_eq!(client.get("/nothing").status, 404);
    let (body, trailers) = run(async {
        let mut client = client_of(&gateway).await;
        let request = Request::post("http://test.example/echo").body(()).unwrap();
        let (response, mut sender) = client.send_request(request, false).unwrap();
        send(&mut sender, Bytes::from(content.clone())).await.unwrap();
        sender.send_data(Bytes::new(), true).unwrap();
        read(response.await.unwrap().into_body()).await.unwrap()
    });
    assert!(body == content);
    assert_eq!(trailers.unwrap()["x-sum"], "7");
    let url = format!("http://{}/file", gateway.http);
    let output = Command::new("h2load").args(["-n", "200", "-c", "4", "-m", "10", &url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("status codes: 200 2xx"), "{text}");
}

#[test]
fn streams_whose_end_does_not_come_count_as_reset() {
    const REQUESTS: usize = 300;
    let up = Http2Server::start(None, Builder::new(), |_, mut respond| async move {
        let response = Response::builder().header("content-length", "1").body(()).unwrap();
        let mut sender = respond.send_response(response, false).unwrap();
        let _ = send(&mut sender, Bytes::from_static(b"x")).await;
        // It never ends the stream.
        let _ = std::future::poll_fn(|cx| sender.poll_reset(cx)).await;
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", ""));
    let mut client = gateway.client();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/").text(), "x");
    }
    assert_eq!(up.connections(), 2, "a connection has 256 resets at most");
}
