//! WebSockets through HTTP/2 (RFC 8441): the client asks with CONNECT, and the upstream gets an HTTP/1.1 handshake.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};

use crate::harness::{Gateway, Received, Upstream, reply};
use crate::websocket::tungstenite_echo;

pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time") })
}

/// A connection that may send extended CONNECT.
pub(crate) async fn connect(address: SocketAddr, window: u32) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    // Any answer comes after the server's settings.
    let request = Request::get("http://test.example/first").body(()).unwrap();
    let _ = client.send_request(request, true).unwrap().0.await;
    assert!(client.is_extended_connect_protocol_enabled());
    client
}

pub(crate) async fn ask(
    client: &SendRequest<Bytes>,
    path: &str,
    protocol: &str,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    let mut request = Request::builder().method(Method::CONNECT).uri(format!("http://test.example{path}"));
    request = request.header("sec-websocket-version", "13").header("sec-websocket-protocol", "chat");
    let request = request.extension(Protocol::from(protocol)).body(()).unwrap();
    let mut client = client.clone().ready().await.unwrap();
    let (response, body) = client.send_request(request, false).unwrap();
    (response.await.unwrap(), body)
}

/// A short text in a client's frame, whose mask changes nothing.
fn frame(text: &str) -> Bytes {
    let length = 0x80 | u8::try_from(text.len()).unwrap();
    [&[0x81, length, 0, 0, 0, 0], text.as_bytes()].concat().into()
}

async fn expect(body: &mut RecvStream, expected: &[u8]) {
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let piece = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        received.extend_from_slice(&piece);
    }
    assert_eq!(received, expected);
}

#[test]
fn messages_pass_between_http_2_and_a_server_of_http_1() {
    let up = format!("[upstreams.up]\nservers = [\"http://{}\"]\n", tungstenite_echo());
    let limit = "[limits.l]\nkey = \"path\"\nrates = [\"2/h\"]\nmax_in_flight = 1\n";
    let routes = "[[routes]]\npath = \"/chat\"\nmethods = [\"GET\"]\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::start(&format!("{up}{limit}{routes}"));
    run(async {
        let client = connect(gateway.http, 65_535).await;
        let (response, mut send) = ask(&client, "/chat", "websocket").await;
        assert_eq!(response.status(), 200);
        for name in ["sec-websocket-accept", "connection", "upgrade", "content-length"] {
            assert!(!response.headers().contains_key(name), "{name}");
        }
        assert!(response.headers().contains_key("ratelimit"));
        let mut body = response.into_body();
        for text in ["hello", "", "again"] {
            send.send_data(frame(text), false).unwrap();
            let echoed = [&[0x81, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            expect(&mut body, &echoed).await;
        }
        // The handshake is limited like any request, and the tunnel is in flight until it ends.
        assert_eq!(ask(&client, "/chat", "websocket").await.0.status(), 429);
        send.send_data(Bytes::from_static(&[0x88, 0x80, 0, 0, 0, 0]), true).unwrap();
        expect(&mut body, &[0x88, 0]).await;
        while let Some(piece) = body.data().await {
            assert_eq!(piece.unwrap(), "", "the server has closed its side");
        }
    });
    let line = gateway.wait_log("the end", |line| line["outcome"] == "tunneled");
    assert_eq!((line["status"].as_u64(), line["method"].as_str()), (Some(200), Some("GET")));
}

#[test]
fn the_upstream_gets_a_whole_handshake_of_its_own() {
    for (answer, status) in [
        // The answer does not fit the key.
        (&b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"[..], 502),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403),
        // A success would be a tunnel.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", 501),
    ] {
        let up = Upstream::start(move |_| answer.to_vec());
        let gateway = Gateway::start(&up.everything());
        run(async {
            let client = connect(gateway.http, 65_535).await;
            let (response, _) = ask(&client, "/a?b=c", "websocket").await;
            assert_eq!(response.status(), status);
        });
        let received = up.received().pop().unwrap();
        assert_eq!((&*received.method, &*received.target), ("GET", "/a?b=c"));
        let headers = received.headers;
        assert_eq!((headers.must("upgrade"), headers.must("connection")), ("websocket", "upgrade"));
        assert_eq!((headers.must("sec-websocket-version"), headers.must("sec-websocket-protocol")), ("13", "chat"));
        assert_eq!(headers.must("sec-websocket-key").len(), 24);
        assert_eq!(headers.must("host"), up.address().to_string());
    }
}

#[test]
fn other_protocols_are_not_served() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    run(async {
        let client = connect(gateway.http, 65_535).await;
        for protocol in ["connect-udp", "h2c", "websocket2"] {
            assert_eq!(ask(&client, "/", protocol).await.0.status(), 501, "{protocol}");
        }
    });
    assert_eq!(up.received().len(), 1, "only what opened the connection");
}

#[test]
fn a_client_that_grants_no_window_ends_only_its_own_tunnel() {
    let accept = |request: &Received| {
        if request.headers.get("upgrade").is_none() {
            return reply(200, "");
        }
        let key = request.headers.must("sec-websocket-key").to_owned();
        let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
        let head =
            format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n");
        [head.as_bytes(), &vec![b'x'; 1 << 20]].concat()
    };
    let up = Upstream::start(accept);
    let gateway = Gateway::with_server("body_timeout = \"500ms\"", &up.everything());
    run(async {
        let mut client = connect(gateway.http, 1000).await;
        let (response, _send) = ask(&client, "/", "websocket").await;
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let request = Request::get("http://test.example/").body(()).unwrap();
        assert_eq!(client.send_request(request, true).unwrap().0.await.unwrap().status(), 200);
        tokio::time::sleep(Duration::from_secs(2)).await;
        while let Some(Ok(_)) = body.data().await {}
        let request = Request::get("http://test.example/").body(()).unwrap();
        assert_eq!(client.send_request(request, true).unwrap().0.await.unwrap().status(), 200);
    });
    let line = gateway.wait_log("the end", |line| line["outcome"] == "abandoned");
    assert_eq!(line["reason"], "body_timeout");
}
