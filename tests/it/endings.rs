//! Whatever ends a connection, the responses on it are complete, in both protocols, with slow upstreams and slow clients.

mod servers;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rustix::process::Signal;

use crate::harness::http2::{RawHttp2, get, kind};
use crate::harness::{Authority, Client, Gateway, Upstream, reply, until};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the gateway waits for an idle client.
const LONG: Duration = Duration::from_millis(1500);
/// More than the system buffers.
const LARGE: usize = 6 << 20;
const REQUESTS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Ending {
    Signal,
    ListenerMoves,
    ListenerTakesTls,
    PlaceIsNeeded,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    fn connections(self) -> usize {
        if self == Self::Http1 { REQUESTS } else { 1 }
    }

    /// Sends all requests at once, tells `begun` when all response heads are there, waits for `go`, and reads the bodies.
    /// Returns their lengths.
    fn ask(self, address: SocketAddr, begun: &Sender<()>, go: &Receiver<()>) -> Vec<usize> {
        match self {
            Self::Http1 => {
                let mut clients: Vec<_> = (0..REQUESTS).map(|_| Client::connect(address)).collect();
                clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n"));
                let framings: Vec<_> = clients.iter_mut().map(|client| client.try_head().unwrap().1).collect();
                begun.send(()).unwrap();
                go.recv().unwrap();
                let read = |(client, framing): (&mut Client, _)| {
                    let mut length = 0;
                    client.wire.body(framing, &mut |piece| length += piece.len()).unwrap();
                    length
                };
                clients.iter_mut().zip(framings).map(read).collect()
            }
            Self::Http2 => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { tokio::time::timeout(PATIENCE, ask_http2(address, begun, go)).await.unwrap() })
            }
        }
    }
}

async fn ask_http2(address: SocketAddr, begun: &Sender<()>, go: &Receiver<()>) -> Vec<usize> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 24).initial_connection_window_size(1 << 26);
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let get = || Request::get("http://test.example/held").body(()).unwrap();
    let asked: Vec<_> = (0..REQUESTS).map(|_| client.send_request(get(), true).unwrap().0).collect();
    let mut bodies = Vec::new();
    for response in asked {
        bodies.push(response.await.unwrap().into_body());
    }
    begun.send(()).unwrap();
    // This thread does nothing meanwhile, so nothing is read.
    go.recv().unwrap();
    let mut lengths = Vec::new();
    for body in &mut bodies {
        let mut length = 0;
        while let Some(piece) = body.data().await {
            length += piece.unwrap().len();
        }
        lengths.push(length);
    }
    lengths
}

/// `ending` happens while requests are in flight. The upstream or the client holds them up.
fn responses_are_complete(protocol: Protocol, ending: Ending, is_upstream_slow: bool) {
    let released = &*Box::leak(Box::new(AtomicBool::new(!is_upstream_slow)));
    let length = if is_upstream_slow { 5 } else { LARGE };
    let up = Upstream::start(move |request| {
        if request.target == "/held" {
            until("the test goes on", PATIENCE, || released.load(Ordering::SeqCst));
        }
        reply(200, &"x".repeat(length))
    });
    let places = format!("max_connections = {}\n", protocol.connections());
    let mut gateway = Gateway::with_server(&places, &up.everything());
    let reload = |listen: &str| gateway.reload_and_wait(&format!("{places}{listen}"), &up.everything());
    thread::scope(|scope| {
        // They end with this closure, so a failed test does not wait for its client.
        let (begun, has_begun) = channel();
        let (go, goes) = channel();
        let address = gateway.http;
        let client = scope.spawn(move || protocol.ask(address, &begun, &goes));
        if is_upstream_slow {
            until("all are in flight", PATIENCE, || up.received().len() == REQUESTS);
            thread::sleep(LONG);
        } else {
            has_begun.recv_timeout(PATIENCE).unwrap();
        }
        let mut next = None;
        match ending {
            Ending::Signal => {
                gateway.signal(Signal::TERM);
                gateway.wait_message("draining");
            }
            Ending::ListenerMoves => reload("listen = \"127.0.0.2:0\""),
            Ending::ListenerTakesTls => {
                let authority = Authority::new();
                let site = authority.issue("site", "site", &["site.test"]);
                let listen = "listen = { address = \"127.0.0.1:0\", tls = true }";
                reload(&format!("{listen}\n[server.tls]\ncertificates = [{}]\n", site.toml()));
            }
            Ending::PlaceIsNeeded => {
                let mut client = gateway.client();
                client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                next = Some(client);
            }
        }
        thread::sleep(LONG);
        released.store(true, Ordering::SeqCst);
        go.send(()).unwrap();
        assert_eq!(client.join().unwrap(), [length; REQUESTS], "{protocol:?} {ending:?}");
        if let Some(client) = &mut next {
            assert_eq!(client.response(false).status, 200, "{protocol:?}: it gets the place");
        }
    });
    if let Ending::Signal = ending {
        assert_eq!(gateway.wait_exit().code(), Some(0));
    }
}

fn whatever_ends_it(protocol: Protocol, is_upstream_slow: bool) {
    let endings = [Ending::Signal, Ending::ListenerMoves, Ending::ListenerTakesTls, Ending::PlaceIsNeeded];
    thread::scope(|scope| {
        for ending in endings {
            scope.spawn(move || responses_are_complete(protocol, ending, is_upstream_slow));
        }
    });
}

#[test]
fn a_slow_upstream_is_waited_for_in_http_1() {
    whatever_ends_it(Protocol::Http1, true);
}

#[test]
fn a_slow_upstream_is_waited_for_in_http_2() {
    whatever_ends_it(Protocol::Http2, true);
}

#[test]
fn a_slow_reader_is_waited_for_in_http_1() {
    whatever_ends_it(Protocol::Http1, false);
}

#[test]
fn a_slow_reader_is_waited_for_in_http_2() {
    whatever_ends_it(Protocol::Http2, false);
}

#[test]
fn a_client_of_http_2_that_does_not_answer_is_told_what_was_served_and_let_go() {
    let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n");
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&get(1, "/")).unwrap();
    client.find("response", |frame| frame.kind == kind::HEADERS && frame.stream == 1);
    gateway.signal(Signal::TERM);
    // The first GOAWAY leaves open which requests are still served; the ping after it is not answered.
    let last = |stream: u32| {
        move |frame: &crate::harness::http2::Frame| {
            frame.kind == kind::GOAWAY && frame.payload[..4] == stream.to_be_bytes()
        }
    };
    client.find("first GOAWAY", last(i32::MAX as u32));
    client.find("last GOAWAY", last(1));
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
