//! Responses that break off: the client gets what came before, and can tell that it is not all.

use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;

use crate::harness::http2_server::Http2Server;
use crate::harness::{Gateway, Headers, Upstream};

const PATIENCE: Duration = Duration::from_secs(30);
const EVENTS: usize = 40;

/// A server whose responses end with the close of the connection, too early.
fn breaking(response: &'static [u8]) -> Upstream {
    Upstream::raw(move |mut wire, _| {
        if let Ok(Some((_, headers))) = wire.head() {
            // What is not read would make the close a reset.
            let framing = headers.framing(crate::harness::Framing::Length(0)).unwrap();
            let _ = wire.body(framing, &mut |_| ());
            let _ = wire.write(response);
        }
    })
}

/// The status, what has come of the body, and whether it is complete.
fn over_http1(gateway: &Gateway, request: &str) -> (u16, usize, bool) {
    let mut client = gateway.client();
    client.send(request);
    let (response, framing) = client.try_head().expect("a head");
    let mut length = 0;
    let end: std::io::Result<Headers> = client.wire.body(framing, &mut |piece| length += piece.len());
    (response.status, length, end.is_ok())
}

fn over_http2(gateway: &Gateway, method: &str) -> (u16, usize, bool) {
    let ask = async {
        let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = Request::builder().method(method).uri("http://test.example/").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let (head, mut body) = response.await.expect("a head").into_parts();
        let mut length = 0;
        loop {
            match body.data().await {
                Some(Ok(data)) => length += data.len(),
                Some(Err(_)) => return (head.status.as_u16(), length, false),
                None => return (head.status.as_u16(), length, true),
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, ask).await.unwrap() })
}

#[test]
fn what_came_with_the_head_is_delivered() {
    for (response, length) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"[..], 4),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", 4),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nx\r\n", 4),
    ] {
        let up = breaking(response);
        let gateway = Gateway::with_server("workers = 1", &up.everything());
        for _ in 0..10 {
            for request in
                ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"]
            {
                assert_eq!(over_http1(&gateway, request), (200, length, false));
            }
            for method in ["GET", "POST"] {
                assert_eq!(over_http2(&gateway, method), (200, length, false));
            }
        }
        let line = gateway.wait_message("request");
        assert_eq!((&line["outcome"], &line["bytes"]), (&"failed".into(), &length.into()), "{line}");
    }
}

#[test]
fn a_burst_before_the_break_is_delivered() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
        thread::sleep(Duration::from_millis(50));
        for _ in 1..EVENTS {
            let _ = wire.write(b"1\r\nx\r\n");
        }
    });
    let over_h2 = Http2Server::start(None, h2::server::Builder::new(), |_, mut respond| async move {
        let mut sender = respond.send_response(http::Response::new(()), false).unwrap();
        for _ in 0..EVENTS {
            let _ = sender.send_data(Bytes::from_static(b"x"), false);
        }
        // The library would drop what it has not written.
        tokio::time::sleep(Duration::from_millis(100)).await;
        sender.send_reset(h2::Reason::INTERNAL_ERROR);
    });
    for config in [up.everything(), over_h2.everything("http", "")] {
        let gateway = Gateway::with_server("workers = 1", &config);
        for _ in 0..10 {
            assert_eq!(over_http1(&gateway, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), (200, EVENTS, false));
            assert_eq!(over_http2(&gateway, "GET"), (200, EVENTS, false));
        }
    }
}

#[test]
fn a_client_that_reads_slowly_gets_what_came_before() {
    const LENGTH: usize = 3 << 20;
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", LENGTH + 1).as_bytes());
        let _ = wire.write(&vec![b'x'; LENGTH]);
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (_, framing) = client.try_head().unwrap();
    thread::sleep(Duration::from_millis(500));
    let mut length = 0;
    client.wire.body(framing, &mut |piece| length += piece.len()).expect_err("a clean end");
    assert_eq!(length, LENGTH);
}
