//! Streams on which both sides may send without end: while one sends, the other may be silent.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;

use crate::harness::http2_server::{Http2Server, read, send};
use crate::harness::{Gateway, Upstream};

/// The limit of each side, and the pause between two pieces: all `PIECES` take longer than the limit.
const LIMITS: &str = "body_timeout = \"4s\"";
const PAUSE: Duration = Duration::from_millis(800);
const PIECES: usize = 6;

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await.expect("in time") })
}

async fn open(gateway: &Gateway) -> (h2::SendStream<Bytes>, h2::client::ResponseFuture) {
    let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::post("http://test.example/").body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data("subscribe".into(), false).unwrap();
    (body, response)
}

/// Sends pieces with pauses, once the client has begun to send, and reports when the client has ended.
fn sending() -> (Upstream, Receiver<bool>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..PIECES {
            thread::sleep(PAUSE);
            let _ = wire.write(b"1\r\nx\r\n");
        }
        let _ = wire.write(b"0\r\n\r\n");
        tell.lock().unwrap().send(wire.rest().1).unwrap();
    });
    (up, told)
}

#[test]
fn a_client_of_http_1_that_only_listens_gets_everything() {
    let (up, _told) = sending();
    let gateway = Gateway::with_server(LIMITS, &up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nsubscribe\r\n");
    assert_eq!(client.response(false).body.len(), PIECES);
}

#[test]
fn a_client_of_http_2_that_only_listens_gets_everything() {
    let (up, _told) = sending();
    let over_http2 = Http2Server::start(None, h2::server::Builder::new(), |request, mut respond| async move {
        let _request = request;
        let mut sender = respond.send_response(http::Response::new(()), false).unwrap();
        for _ in 0..PIECES {
            tokio::time::sleep(PAUSE).await;
            let _ = send(&mut sender, "x".into()).await;
        }
        let _ = sender.send_data(Bytes::new(), true);
    });
    for config in [up.everything(), over_http2.everything("http", "")] {
        let gateway = Gateway::with_server(LIMITS, &config);
        run(async {
            let (_body, response) = open(&gateway).await;
            let response = response.await.unwrap();
            assert_eq!(read(response.into_body()).await.unwrap().0.len(), PIECES);
        });
    }
}

#[test]
fn a_server_that_only_listens_gets_everything() {
    let up = Upstream::raw(|mut wire, _| {
        let (_, headers) = wire.head().unwrap().unwrap();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        let mut length = 0;
        let framing = headers.framing(crate::harness::Framing::UntilClose).unwrap();
        wire.body(framing, &mut |piece| length += piece.len()).unwrap();
        let _ = wire.write(format!("1\r\n{length}\r\n0\r\n\r\n").as_bytes());
    });
    let config = format!("{}read_timeout = \"4s\"\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", up.section());
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..PIECES {
        thread::sleep(PAUSE);
        client.send("1\r\nx\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.response(false).text(), format!("a{PIECES}"));
}
