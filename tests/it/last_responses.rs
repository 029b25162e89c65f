//! The last responses of a connection, for every reason for its end: a slow client gets everything that was sent, and an
//! answer to a request that comes meanwhile.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::http2::{ACK, END_STREAM, Frame, RawHttp2, Reaction, frame, get, kind};
use crate::harness::{Authority, Client, Gateway, until};

/// Longer than an idle connection may wait before it ends.
const LONGER: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(20);
/// More than the system buffers.
const LARGE: usize = 16 << 20;
/// The largest window (RFC 9113, section 6.9.1).
const WINDOW: u32 = (1 << 31) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Drain,
    ListenerCloses,
    ListenerUsesTls,
    PlaceIsNeeded,
    IdleTimeout,
}

const ENDINGS: [Ending; 5] =
    [Ending::Drain, Ending::ListenerCloses, Ending::ListenerUsesTls, Ending::PlaceIsNeeded, Ending::IdleTimeout];

/// A gateway whose connections are going to end.
struct Ended {
    ending: Ending,
    gateway: Gateway,
    rest: String,
    authority: Authority,
    /// The client that needs the place.
    other: Option<Client>,
}

impl Ended {
    /// `idle` is the time limit of idle connections for [`Ending::IdleTimeout`].
    fn new(ending: Ending, idle: &str) -> Self {
        let server = match ending {
            Ending::PlaceIsNeeded => "workers = 1\nmax_connections = 1".to_owned(),
            Ending::IdleTimeout => format!("idle_timeout = \"{idle}\""),
            _ => String::new(),
        };
        let fixed = "[[routes]]\npath = \"/fixed\"\nrespond = { status = 200, body = \"fixed\" }\n";
        let large =
            format!("[[routes]]\npath = \"/large\"\nrespond = {{ status = 200, body = \"{}\" }}\n", "x".repeat(LARGE));
        let rest = format!("{fixed}{large}");
        Self { ending, gateway: Gateway::with_server(&server, &rest), rest, authority: Authority::new(), other: None }
    }

    fn begin(&mut self) {
        match self.ending {
            Ending::Drain => self.gateway.signal(Signal::TERM),
            Ending::ListenerCloses => self.gateway.reload("listen = \"127.0.0.2:0\"", &self.rest),
            Ending::ListenerUsesTls => {
                let issued = self.authority.issue("site", "site.test", &["site.test"]);
                let listen = "listen = { address = \"127.0.0.1:0\", tls = true }";
                let tls = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", issued.toml());
                self.gateway.reload(&tls, &self.rest);
            }
            Ending::PlaceIsNeeded => {
                let mut other = self.gateway.client();
                other.send("GET /fixed HTTP/1.1\r\nHost: a\r\n\r\n");
                self.other = Some(other);
            }
            // The time has begun already.
            Ending::IdleTimeout => {}
        }
    }

    fn end(mut self) {
        match self.ending {
            Ending::Drain => assert_eq!(self.gateway.wait_exit().code(), Some(0)),
            Ending::PlaceIsNeeded => assert_eq!(self.other.take().unwrap().response(false).text(), "fixed"),
            _ => {}
        }
    }
}

enum Connection {
    Http1(Client),
    Http2(Http2),
}

/// An HTTP/2 client that answers pings, and grants window for what it has read.
struct Http2 {
    client: RawHttp2,
    last: u32,
    /// The received bytes of each stream, and whether the stream has ended.
    received: HashMap<u32, (usize, bool)>,
}

impl Http2 {
    fn open(gateway: &Gateway) -> Self {
        let mut client = RawHttp2::connect(gateway.http, &[(4, WINDOW)]);
        client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes())).unwrap();
        Self { client, last: 0, received: HashMap::new() }
    }

    fn ask(&mut self, path: &str) {
        self.last = if self.last == 0 { 1 } else { self.last + 2 };
        self.received.insert(self.last, (0, false));
        self.client.send(&get(self.last, path)).unwrap();
    }

    /// `None` at the end.
    fn next(&mut self) -> Option<Frame> {
        let next = self.client.next(Instant::now() + PATIENCE).expect("a frame")?;
        // The gateway may have closed its side already.
        match next.kind {
            kind::PING if next.flags & ACK == 0 => _ = self.client.send(&frame(kind::PING, ACK, 0, &next.payload)),
            kind::DATA => {
                let (length, ended) = self.received.get_mut(&next.stream).expect("a stream that was opened");
                *length += next.payload.len();
                *ended = next.flags & END_STREAM > 0;
                if !next.payload.is_empty() {
                    let grant = u32::try_from(next.payload.len()).unwrap().to_be_bytes();
                    _ = self.client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &grant));
                }
            }
            kind::RST_STREAM => panic!("a stream is reset: {next:?}"),
            _ => {}
        }
        Some(next)
    }
}

impl Connection {
    fn open(gateway: &Gateway, is_http2: bool) -> Self {
        if is_http2 { Self::Http2(Http2::open(gateway)) } else { Self::Http1(gateway.client()) }
    }

    fn ask(&mut self, path: &str) {
        match self {
            Self::Http1(client) => client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")),
            Self::Http2(client) => client.ask(path),
        }
    }

    /// The length of the last response. `sink` gets each piece as it comes.
    fn length(&mut self, sink: &mut dyn FnMut()) -> usize {
        match self {
            Self::Http1(client) => {
                let (response, framing) = client.try_head().expect("a response");
                assert_eq!(response.status, 200);
                let mut length = 0;
                let take = &mut |piece: &[u8]| {
                    length += piece.len();
                    sink();
                };
                client.wire.body(framing, take).expect("a whole body");
                length
            }
            Self::Http2(client) => {
                while !client.received[&client.last].1 {
                    let frame = client.next().expect("a whole response");
                    if frame.kind == kind::DATA {
                        sink();
                    }
                }
                client.received[&client.last].0
            }
        }
    }

    /// The connection ends without anything else. An HTTP/2 client gets GOAWAY.
    fn ends(&mut self) {
        match self {
            Self::Http1(client) => assert!(client.closed().is_empty()),
            Self::Http2(client) => {
                let mut rest = Vec::new();
                while let Some(frame) = client.next() {
                    rest.push(frame);
                }
                assert!(rest.iter().all(|frame| frame.kind != kind::DATA && frame.kind != kind::HEADERS), "{rest:?}");
            }
        }
    }
}

/// Runs a test for each ending and each protocol at the same time: the tests mostly wait.
fn each(test: impl Fn(Ending, bool) + Sync) {
    thread::scope(|scope| {
        let test = &test;
        let all = ENDINGS.into_iter().flat_map(|ending| [(ending, false), (ending, true)]);
        let running: Vec<_> =
            all.map(|(ending, is_http2)| ((ending, is_http2), scope.spawn(move || test(ending, is_http2)))).collect();
        let failed: Vec<_> = running.into_iter().filter_map(|(which, run)| run.join().err().map(|_| which)).collect();
        assert!(failed.is_empty(), "not so with {failed:?} (ending, is HTTP/2)");
    });
}

#[test]
fn a_client_that_takes_its_window_back_does_not_keep_a_connection_from_ending() {
    let body = "x".repeat(60_000);
    let fixed = format!("[[routes]]\npath = \"/fixed\"\nrespond = {{ status = 200, body = \"{body}\" }}\n");
    let mut gateway = Gateway::with_server("body_timeout = \"1s\"", &fixed);
    // The first stream uses up the window of the connection, and the window of the second is taken back.
    let mut client = RawHttp2::connect(gateway.http, &[(4, 60_000)]);
    client
        .send(&[get(1, "/fixed"), get(3, "/fixed"), frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat())
        .unwrap();
    until("the gateway has answered", PATIENCE, || {
        gateway.log().iter().filter(|line| line.contains("\"path\":\"/fixed\"")).count() == 2
    });
    gateway.signal(Signal::TERM);
    let begun = Instant::now();
    assert_eq!(gateway.wait_exit().code(), Some(0));
    // Far below drain_timeout, which is 30 s.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_client_that_goes_on_sending_does_not_keep_a_connection_from_ending() {
    let fixed = "[[routes]]\npath = \"/fixed\"\nrespond = { status = 200 }\n";
    let mut gateway = Gateway::with_server("body_timeout = \"3s\"", fixed);
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&get(1, "/fixed")).unwrap();
    assert_eq!(client.reaction(1), Reaction::Status(200));
    gateway.signal(Signal::TERM);
    let begun = Instant::now();
    thread::scope(|scope| {
        let mut sender = client.twin();
        scope.spawn(move || {
            while sender.send(&frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())).is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        assert_eq!(gateway.wait_exit().code(), Some(0));
    });
    // Far below drain_timeout, which is 30 s.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn a_response_that_is_read_late_is_complete() {
        each(|ending, is_http2| {
            let mut ended = Ended::new(ending, "500ms");
            let mut client = Connection::open(&ended.gateway, is_http2);
            client.ask("/large");
            let mut has_begun = false;
            let length = client.length(&mut || {
                // So slowly that it takes some seconds, in which the client grants window.
                thread::sleep(Duration::from_millis(if is_http2 { 10 } else { 40 }));
                if !has_begun && ended.gateway.log().iter().any(|line| line.contains("\"path\":\"/large\"")) {
                    // The request has ended. The rest is in the buffers of the gateway and of the system.
                    has_begun = true;
                    ended.begin();
                    thread::sleep(LONGER);
                }
            });
            assert!(has_begun);
            assert_eq!(length, LARGE, "{ending:?}");
            client.ends();
            ended.end();
        });
    }

    #[test]
    fn a_request_that_comes_at_the_same_time_is_answered() {
        each(|ending, is_http2| {
            // The gateway is stopped before an idle connection ends, also on a slow machine.
            let mut ended = Ended::new(ending, "3s");
            let mut client = Connection::open(&ended.gateway, is_http2);
            client.ask("/fixed");
            assert_eq!(client.length(&mut || {}), "fixed".len());
            if ending != Ending::IdleTimeout {
                thread::sleep(LONGER);
            }
            // Everything that comes while the gateway is stopped comes at the same time.
            ended.gateway.signal(Signal::STOP);
            ended.begin();
            client.ask("/fixed");
            thread::sleep(if ending == Ending::IdleTimeout { Duration::from_secs(4) } else { LONGER });
            ended.gateway.signal(Signal::CONT);
            assert_eq!(client.length(&mut || {}), "fixed".len(), "{ending:?}");
            client.ends();
            ended.end();
        });
    }
}
