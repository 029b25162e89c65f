//! WebSockets: accepted and declined handshakes, and tunnels with their limits.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tungstenite::{Message, WebSocket};

use crate::harness::{Authority, Client, Gateway, TlsClient, Upstream, Wire, reply, until};

pub(crate) fn handshake(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: test.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
}

const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nContent-Length: 5\r\n\r\n";

/// Accepts every handshake, and then does what `serve` does.
pub(crate) fn accepting(serve: impl Fn(&mut Wire) + Send + Sync + 'static) -> Upstream {
    Upstream::raw(move |mut wire, _| {
        if let Ok(Some(_)) = wire.head() {
            wire.write(ACCEPTED).unwrap();
            serve(&mut wire);
        }
    })
}

pub(crate) fn echo(wire: &mut Wire) {
    let (mut reader, mut writer) = (wire.stream().try_clone().unwrap(), wire.stream().try_clone().unwrap());
    let _ = std::io::copy(&mut reader, &mut writer);
    let _ = writer.shutdown(Shutdown::Write);
}

#[track_caller]
fn open(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    let response = client.call(handshake("/"));
    assert_eq!(response.status, 101, "{response:?}");
    client
}

#[track_caller]
fn expect(client: &mut Client, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    client.wire.read_exact(&mut received).unwrap();
    assert_eq!(received, expected);
}

#[track_caller]
fn ended(gateway: &Gateway, outcome: &str) -> serde_json::Value {
    gateway.wait_log("the end of a tunnel", |line| line["message"] == "request" && line["outcome"] == outcome)
}

/// A foreign server that echoes messages.
pub(crate) fn tungstenite_echo() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut socket = tungstenite::accept(stream.unwrap()).unwrap();
                while let Ok(message) = socket.read() {
                    if message.is_text() || message.is_binary() {
                        socket.send(message).unwrap();
                    }
                }
            });
        }
    });
    address
}

fn exchange_messages<S: Read + Write>(mut socket: WebSocket<S>) -> WebSocket<S> {
    for length in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
        let text = "é".repeat(length / 2);
        socket.send(Message::text(text.clone())).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
        let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at % 256).unwrap()).collect();
        socket.send(Message::binary(bytes.clone())).unwrap();
        assert_eq!(socket.read().unwrap(), Message::binary(bytes));
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    socket
}

#[test]
fn a_client_and_a_server_that_others_wrote_talk_with_and_without_tls() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]).toml();
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{site}]\n");
    let up = format!("[upstreams.up]\nservers = [\"http://{}\"]\n", tungstenite_echo());
    let gateway = Gateway::with_server(&server, &format!("{up}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
    let stream = TcpStream::connect(gateway.http).unwrap();
    exchange_messages(tungstenite::client("ws://test.example/chat?a=b", stream).unwrap().0);
    let line = ended(&gateway, "tunneled");
    assert_eq!((line["status"].as_u64(), line["path"].as_str()), (Some(101), Some("/chat")));
    assert!(line["bytes"].as_u64().unwrap() > 2_000_000, "{line}");
    let client = TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    let mut socket = exchange_messages(tungstenite::client("wss://site.test/", client.stream).unwrap().0);
    // Without this notice, the end of its data could be an attack.
    socket.get_mut().conn.send_close_notify();
    socket.get_mut().flush().unwrap();
    until("both are counted", Duration::from_secs(20), || {
        let metrics = gateway.admin("/metrics").text().to_owned();
        metrics
            .lines()
            .any(|line| line.starts_with("gateway_requests_total") && line.contains("tunneled") && line.ends_with(" 2"))
    });
}

#[test]
fn only_what_asks_for_a_websocket_is_forwarded_as_an_upgrade() {
    let up = Upstream::start(|_| reply(200, "no"));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for (request, upgrade) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x-a, upgrade\r\nUpgrade: h2c, WebSocket\r\nX-A: 1\r\n\r\n",
            "websocket",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n",
            "",
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", ""),
        ("POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi", ""),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi", ""),
        ("GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade, keep-alive\r\nUpgrade: websocket\r\n\r\n", ""),
    ] {
        // A declined upgrade is an ordinary response, and the connection goes on.
        let response = client.call(request);
        assert_eq!((response.status, response.text()), (200, "no"), "{request}");
        let received = up.received().pop().unwrap().headers;
        assert_eq!(received.joined("upgrade"), upgrade, "{request}");
        assert_eq!(received.joined("connection"), if upgrade.is_empty() { "" } else { "upgrade" }, "{request}");
        assert!(received.get("x-a").is_none() && received.get("http2-settings").is_none());
    }
}

#[test]
fn a_switch_that_nobody_asked_for_is_no_response() {
    for (answer, asks) in [
        (ACCEPTED, false),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", true),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", true),
    ] {
        let up = Upstream::raw(move |mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(answer);
        });
        let gateway = Gateway::start(&up.everything());
        let mut client = gateway.client();
        let response = if asks { client.call(handshake("/")) } else { client.get("/") };
        response.expect_problem(502);
    }
}

#[test]
fn bytes_that_come_early_are_not_lost() {
    // These would be two invalid requests.
    const EARLY: &[u8] = b"\x81\x85\n\n\r\nGET / HTTP/1.1\nA\n\n\0\xff";
    let up = Upstream::raw(|mut wire, _| {
        let (_, headers) = wire.head().unwrap().unwrap();
        assert_eq!(headers.joined("upgrade"), "websocket");
        wire.write(&[ACCEPTED, b"first\n"].concat()).unwrap();
        echo_of(&mut wire, EARLY.len());
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let response = client.call([handshake("/").as_bytes(), EARLY].concat());
    assert_eq!(response.status, 101);
    assert_eq!((response.headers.must("connection"), response.headers.must("upgrade")), ("upgrade", "websocket"));
    assert_eq!(response.headers.must("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers.get("content-length"), None);
    expect(&mut client, b"first\n");
    expect(&mut client, EARLY);
}

fn echo_of(wire: &mut Wire, length: usize) {
    let mut received = vec![0; length];
    wire.read_exact(&mut received).unwrap();
    wire.write(&received).unwrap();
}

#[test]
fn no_request_is_smuggled_behind_a_handshake() {
    let up = Upstream::start(|request| reply(if request.target == "/chat" { 403 } else { 200 }, ""));
    let limit = "[limits.l]\nkey = \"path\"\nrates = [\"1/h\"]\n";
    let open = format!("{}\nlimits = [\"l\"]\n", up.everything());
    let gateway =
        Gateway::start(&format!("{limit}{open}[[routes]]\npath = \"/secret\"\nrespond = {{ status = 404 }}\n"));
    let mut client = gateway.client();
    let behind =
        "GET /secret HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(handshake("/chat") + behind);
    // After a declined handshake come requests like any others.
    let statuses = [0; 4].map(|_| client.response(false).status);
    assert_eq!(statuses, [403, 404, 200, 429]);
    let targets: Vec<_> = up.received().into_iter().map(|request| request.target).collect();
    assert_eq!(targets, ["/chat", "/b"]);
    // A request after it that could be read in two ways is refused by itself.
    let mut client = gateway.client();
    client.send(handshake("/c") + "GET /b HTTP/1.1\nHost: a\r\n\r\n");
    assert_eq!([0; 2].map(|_| client.response(false).status), [200, 400]);
}

#[test]
fn handshakes_are_limited_and_tunnels_are_in_flight() {
    let up = accepting(echo);
    let limits =
        "[limits.rate]\nkey = \"global\"\nrates = [\"3/h\"]\n[limits.open]\nkey = \"global\"\nmax_in_flight = 1\n";
    let gateway = Gateway::start(&format!("{limits}{}limits = [\"open\", \"rate\"]\n", up.everything()));
    let mut first = open(&gateway);
    for _ in 0..3 {
        gateway.client().call(handshake("/")).expect_problem(429);
    }
    first.send("still open");
    expect(&mut first, b"still open");
    drop(first);
    ended(&gateway, "tunneled");
    // Handshakes that the first limit refused were not charged to the second one.
    for _ in 0..2 {
        until("the place is free", Duration::from_secs(20), || gateway.client().call(handshake("/")).status == 101);
    }
    gateway.client().call(handshake("/")).expect_problem(429);
}

#[test]
fn a_quiet_tunnel_is_ended_only_by_its_own_limit() {
    let up = accepting(echo);
    let short = "header_timeout = \"2s\"\nidle_timeout = \"2s\"\nbody_timeout = \"2s\"";
    let rest = up.everything().replace("[[routes]]", "timeout = \"2s\"\nread_timeout = \"2s\"\n[[routes]]");
    let gateway = Gateway::with_server(short, &rest);
    let mut client = open(&gateway);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(2500));
        client.send("a");
        expect(&mut client, b"a");
    }
    let rest = rest.replace("[[routes]]", "tunnel_idle_timeout = \"3500ms\"\n[[routes]]");
    let gateway = Gateway::with_server(short, &rest);
    let mut client = open(&gateway);
    let mut quiet = Instant::now();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1300));
        quiet = Instant::now();
        client.send("a");
        expect(&mut client, b"a");
    }
    assert_eq!(client.closed(), b"");
    assert!(quiet.elapsed() >= Duration::from_millis(3_400));
    assert_eq!(ended(&gateway, "abandoned")["reason"], "tunnel_idle_timeout");
}

#[test]
fn a_tunnel_ends_with_the_drain() {
    let up = accepting(echo);
    let mut gateway = Gateway::with_server("drain_timeout = \"3500ms\"", &up.everything());
    let mut client = open(&gateway);
    gateway.signal(Signal::TERM);
    gateway.wait_message("draining");
    client.send("still open");
    expect(&mut client, b"still open");
    assert_eq!(client.closed(), b"");
    assert!(gateway.wait_exit().success());
    assert_eq!(ended(&gateway, "abandoned")["status"], 101);
}

#[test]
fn a_side_that_does_not_read_is_not_waited_for_without_end() {
    // Neither side reads, and both send as much as they can.
    let up = accepting(|wire| while wire.write(&[b'x'; 4096]).is_ok() {});
    let gateway = Gateway::with_server("body_timeout = \"500ms\"", &up.everything());
    let before = gateway.memory("VmRSS");
    let clients: Vec<_> = (0..50).map(|_| open(&gateway)).collect();
    let line = ended(&gateway, "abandoned");
    assert_eq!(line["reason"], "body_timeout", "{line}");
    assert!(gateway.memory("VmHWM") - before < 32 << 20, "back-pressure");
    drop(clients);
}

#[test]
fn each_side_can_end_first() {
    let up = accepting(|wire| {
        let (received, ended) = wire.rest();
        assert!(ended);
        wire.write(&received).unwrap();
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = open(&gateway);
    client.send("all of it");
    client.wire.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.closed(), b"all of it");
    ended(&gateway, "tunneled");

    let up = accepting(|wire| {
        wire.write(b"bye").unwrap();
        wire.stream().shutdown(Shutdown::Write).unwrap();
        assert_eq!(wire.rest().0, b"good bye");
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = open(&gateway);
    expect(&mut client, b"bye");
    assert_eq!(client.wire.rest().0, b"");
    client.send("good bye");
    client.wire.stream().shutdown(Shutdown::Write).unwrap();
    ended(&gateway, "tunneled");
}

#[test]
fn an_upstream_that_breaks_off_is_a_failure() {
    let up = accepting(|wire| {
        socket2::SockRef::from(wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = open(&gateway);
    client.closed();
    assert_eq!(ended(&gateway, "failed")["reason"], "truncated");
}

#[test]
fn a_tunnel_makes_no_room_for_other_connections() {
    let up = accepting(echo);
    let gateway = Gateway::with_server("max_connections = 1", &up.everything());
    let mut client = open(&gateway);
    let mut waiting = gateway.client();
    waiting.send(handshake("/"));
    std::thread::sleep(Duration::from_millis(500));
    client.send("a");
    expect(&mut client, b"a");
    drop(client);
    assert_eq!(waiting.response(false).status, 101);
}

#[test]
fn a_quiet_tunnel_holds_no_buffers() {
    const TUNNELS: u64 = 200;
    let up = accepting(echo);
    let gateway = Gateway::start(&up.everything());
    let used = |count| {
        let tunnels: Vec<_> = (0..count)
            .map(|_| {
                let mut client = open(&gateway);
                client.send([b'x'; 10_000]);
                expect(&mut client, &[b'x'; 10_000]);
                client
            })
            .collect();
        (gateway.memory("VmRSS"), tunnels)
    };
    let (before, _few) = used(20);
    let (after, _many) = used(TUNNELS);
    // About 4 KiB were measured.
    assert!(after.saturating_sub(before) / TUNNELS < 12 << 10, "{} bytes each", (after - before) / TUNNELS);
}
