//! Servers and clients that end too early. A client gets what came before, and can tell that it is not all; nobody is left
//! waiting; and a connection that its server has ended costs no request. In both protocols on both sides, whoever is slow.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;

use super::{LONG, PATIENCE, Protocol};
use crate::harness::http2::{END_HEADERS, kind};
use crate::harness::http2_server::{Frames, STATUS_200};
use crate::harness::{Framing, Gateway, Headers, Upstream, Wire};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
const EVENTS: usize = 40;
const MUCH: usize = 3 << 20;

#[derive(Clone, Copy, Debug)]
enum Break {
    /// Directly after the head.
    BehindHead,
    /// In the segment of the head.
    WithHead,
    /// Like `WithHead`, in an invalid chunk, if there are chunks.
    InChunks,
    /// After many small pieces at once.
    Burst,
    /// After more than buffers hold.
    Much,
}

impl Break {
    const ALL: [Self; 5] = [Self::BehindHead, Self::WithHead, Self::InChunks, Self::Burst, Self::Much];

    fn length(self) -> usize {
        match self {
            Self::BehindHead => 0,
            Self::WithHead | Self::InChunks => 4,
            Self::Burst => EVENTS,
            Self::Much => MUCH,
        }
    }

    fn server(self, protocol: Protocol, pause: Duration) -> SocketAddr {
        match protocol {
            Protocol::Http1 => raw(move |mut wire| {
                read_request(&mut wire);
                let length = self.length();
                let _ = match self {
                    Self::BehindHead | Self::WithHead => {
                        thread::sleep(pause);
                        wire.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{:x<length$}", "").as_bytes())
                    }
                    Self::InChunks => {
                        thread::sleep(pause);
                        wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nx\r\n")
                    }
                    Self::Burst => {
                        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                        thread::sleep(pause.max(Duration::from_millis(50)));
                        (0..EVENTS).try_for_each(|_| wire.write(b"1\r\nx\r\n"))
                    }
                    Self::Much => {
                        let _ =
                            wire.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MUCH + 1).as_bytes());
                        thread::sleep(pause);
                        wire.write(&vec![b'x'; MUCH])
                    }
                };
            }),
            Protocol::Http2 => Frames::serve(move |mut frames, _| {
                while let Ok(asked) = frames.until(kind::HEADERS) {
                    thread::sleep(pause);
                    frames.send(kind::HEADERS, END_HEADERS, asked.stream, STATUS_200);
                    let size = if let Self::Burst = self { 1 } else { 1 << 14 };
                    let all = vec![b'x'; self.length()];
                    all.chunks(size).for_each(|data| frames.send(kind::DATA, 0, asked.stream, data));
                    frames.reset(asked.stream, h2::Reason::INTERNAL_ERROR);
                }
            }),
        }
    }
}

fn raw(serve: impl Fn(Wire) + Send + Sync + 'static) -> SocketAddr {
    Upstream::raw(move |wire, _| serve(wire)).address()
}

/// Reads a request, because a close with unread bytes would be a reset. Returns whether there was one.
fn read_request(wire: &mut Wire) -> bool {
    let Ok(Some((_, headers))) = wire.head() else { return false };
    let framing = headers.framing(Framing::Length(0)).unwrap();
    wire.body(framing, &mut |_| ()).is_ok()
}

/// A gateway with the servers of this protocol at these addresses: the paths are `/0`, `/1` and so on.
fn gateway(protocol: Protocol, servers: &[SocketAddr]) -> Gateway {
    let http2 = protocol == Protocol::Http2;
    let section = |(index, address): (usize, &SocketAddr)| {
        format!(
            "[upstreams.u{index}]\nservers = [\"http://{address}\"]\nhttp2 = {http2}\n[[routes]]\npath = \"/{index}\"\n\
             upstream = \"u{index}\"\n"
        )
    };
    Gateway::with_server("workers = 1", &servers.iter().enumerate().map(section).collect::<String>())
}

impl Protocol {
    /// Sends requests to a path, one after another over one connection as long as it lasts, each without a body or with one byte,
    /// and each after a pause. Returns for each response its status, the length of the body that came, and whether this is all.
    /// The bodies are read after another pause.
    fn get(
        self,
        gateway: SocketAddr,
        (method, path): (&str, &str),
        count: usize,
        pauses: [Duration; 2],
    ) -> Vec<(u16, usize, bool)> {
        match self {
            Self::Http1 => {
                let mut client = crate::harness::Client::connect(gateway);
                let body = if method == "POST" { "Content-Length: 1\r\n\r\nx" } else { "\r\n" };
                let ask = |_| {
                    thread::sleep(pauses[0]);
                    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{body}"));
                    let (response, framing) = client.try_head().expect("a head");
                    thread::sleep(pauses[1]);
                    let mut length = 0;
                    let end: std::io::Result<Headers> = client.wire.body(framing, &mut |piece| length += piece.len());
                    (response.status, length, end.is_ok())
                };
                (0..count).map(ask).collect()
            }
            Self::Http2 => {
                let all = async {
                    let stream = tokio::net::TcpStream::connect(gateway).await.unwrap();
                    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
                    tokio::spawn(connection);
                    let mut got = Vec::new();
                    for _ in 0..count {
                        tokio::time::sleep(pauses[0]).await;
                        client = client.ready().await.unwrap();
                        let uri = format!("http://test.example{path}");
                        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
                        let has_body = method == "POST";
                        let (response, mut sender) = client.send_request(request, !has_body).unwrap();
                        if has_body {
                            sender.send_data(Bytes::from_static(b"x"), true).unwrap();
                        }
                        let (head, mut body) = response.await.expect("a head").into_parts();
                        // This thread does nothing meanwhile, so nothing is read.
                        thread::sleep(pauses[1]);
                        let mut length = 0;
                        let is_all = loop {
                            match body.data().await {
                                Some(Ok(data)) => {
                                    length += data.len();
                                    let _ = body.flow_control().release_capacity(data.len());
                                }
                                end => break end.is_none(),
                            }
                        };
                        got.push((head.status.as_u16(), length, is_all));
                    }
                    got
                };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { tokio::time::timeout(PATIENCE, all).await.unwrap() })
            }
        }
    }

    /// Sends a request to a path, waits until a part of the response has come, and closes the sending side.
    fn half_close(self, gateway: SocketAddr, path: &str) -> TcpStream {
        match self {
            Self::Http1 => {
                let mut client = crate::harness::Client::connect(gateway);
                client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                client.try_head().unwrap();
                client.wire.stream().shutdown(Shutdown::Write).unwrap();
                client.wire.stream().try_clone().unwrap()
            }
            Self::Http2 => {
                let mut client = crate::harness::http2::RawHttp2::connect(gateway, &[]);
                client.send(&crate::harness::http2::get(1, path)).unwrap();
                client.find("a head", |frame| frame.kind == kind::HEADERS);
                client.stream.shutdown(Shutdown::Write).unwrap();
                client.stream.try_clone().unwrap()
            }
        }
    }
}

/// What came before the break of the server's response is delivered.
fn what_came_before_is_delivered(of_server: Protocol) {
    let all = || Break::ALL.into_iter().flat_map(|kind| [Duration::ZERO, LONG].map(|pause| (kind, pause)));
    let servers: Vec<_> = all().map(|(kind, pause)| kind.server(of_server, pause)).collect();
    let gateway = gateway(of_server, &servers);
    thread::scope(|scope| {
        for (index, (kind, pause)) in all().enumerate() {
            for of_client in BOTH {
                for reads_after in [Duration::ZERO, LONG] {
                    let address = gateway.http;
                    scope.spawn(move || {
                        let is_quick = pause + reads_after == Duration::ZERO;
                        for method in ["GET", "POST"].into_iter().cycle().take(if is_quick { 10 } else { 2 }) {
                            let asked = (method, &*format!("/{index}"));
                            let got = of_client.get(address, asked, 1, [Duration::ZERO, reads_after]);
                            let what = format!("{method} over {of_client:?} to {of_server:?}: {kind:?}, {pause:?}");
                            assert_eq!(got, [(200, kind.length(), false)], "{what}");
                        }
                    });
                }
            }
        }
    });
    let line = gateway.wait_log("a broken response", |line| line["message"] == "request" && line["bytes"] == EVENTS);
    assert_eq!(line["outcome"], "failed", "{line}");
}

#[test]
fn what_came_before_a_break_is_delivered_over_http_1() {
    what_came_before_is_delivered(Protocol::Http1);
}

#[test]
fn what_came_before_a_break_is_delivered_over_http_2() {
    what_came_before_is_delivered(Protocol::Http2);
}

#[test]
fn a_client_that_closes_its_sending_side_amid_silence_frees_the_server() {
    for of_server in BOTH {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let server = match of_server {
            Protocol::Http1 => raw(move |mut wire| {
                read_request(&mut wire);
                let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
                let has_ended = wire.rest().1;
                tell.lock().unwrap().send(has_ended).unwrap();
            }),
            Protocol::Http2 => Frames::serve(move |mut frames, _| {
                while let Ok(asked) = frames.until(kind::HEADERS) {
                    frames.send(kind::HEADERS, END_HEADERS, asked.stream, STATUS_200);
                    frames.send(kind::DATA, 0, asked.stream, b"x");
                    let has_ended = frames.until(kind::RST_STREAM).is_ok();
                    tell.lock().unwrap().send(has_ended).unwrap();
                }
            }),
        };
        let gateway = gateway(of_server, &[server]);
        for of_client in BOTH {
            let _open = of_client.half_close(gateway.http, "/0");
            assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "{of_client:?} to {of_server:?}");
        }
    }
}

#[test]
fn a_connection_that_its_server_has_ended_costs_no_request() {
    for of_server in BOTH {
        // Each connection serves one request, and closes when the next one has come.
        let server = |pause: Duration| match of_server {
            Protocol::Http1 => raw(move |mut wire| {
                if read_request(&mut wire) {
                    thread::sleep(pause);
                    let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell");
                    read_request(&mut wire);
                }
            }),
            Protocol::Http2 => Frames::serve(move |mut frames, _| {
                let Ok(asked) = frames.until(kind::HEADERS) else { return };
                thread::sleep(pause);
                frames.answer(asked.stream, "well");
                let _ = frames.until(kind::HEADERS);
            }),
        };
        let slow = [[Duration::ZERO; 2], [LONG, Duration::ZERO], [Duration::ZERO, LONG]];
        let all: Vec<_> = slow.into_iter().flat_map(|pauses| BOTH.map(|of_client| (pauses, of_client))).collect();
        // Each client has its own server, because requests share HTTP/2 connections.
        let servers: Vec<_> = all.iter().map(|([pause, _], _)| server(*pause)).collect();
        let gateway = gateway(of_server, &servers);
        thread::scope(|scope| {
            for (index, ([pause, reads_after], of_client)) in all.into_iter().enumerate() {
                let address = gateway.http;
                scope.spawn(move || {
                    let got = of_client.get(address, ("GET", &format!("/{index}")), 3, [Duration::ZERO, reads_after]);
                    assert_eq!(got, [(200, 4, true); 3], "{of_client:?} to {of_server:?}, {pause:?}, {reads_after:?}");
                });
            }
        });
    }
}

#[test]
fn no_request_meets_the_close_that_its_server_has_announced() {
    let server = |pause: Duration| {
        raw(move |mut wire| {
            while read_request(&mut wire) {
                thread::sleep(pause);
                let _ = wire.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 4\r\n\r\nwell");
                wire.stream().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            }
        })
    };
    let gateway = gateway(Protocol::Http1, &[server(Duration::ZERO), server(Duration::from_millis(100))]);
    thread::scope(|scope| {
        for number in 0..20 {
            let (path, of_client) = (["/0", "/1"][number % 2], BOTH[number / 2 % 2]);
            let address = gateway.http;
            scope.spawn(move || {
                // They come about when the server closes.
                let pause = Duration::from_millis(990 + number as u64);
                let got = of_client.get(address, ("POST", path), 5, [pause, Duration::ZERO]);
                assert_eq!(got, [(200, 4, true); 5], "{path} over {of_client:?}");
            });
        }
    });
}
