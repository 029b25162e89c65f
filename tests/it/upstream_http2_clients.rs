//! HTTP/2 to upstreams: clients that share connections to a server neither hold up nor break each other's requests.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use h2::server::Builder;
use http::Response;
use socket2::SockRef;

use crate::harness::http2::{ACK, CANCEL, END_STREAM, PREFACE, RawHttp2, frame, get, kind};
use crate::harness::http2_server::{Frames, Http2Server, over_http2, read, send};
use crate::harness::{Client, Gateway, until};

const PATIENCE: Duration = Duration::from_secs(20);
const HALF: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe";

/// A client with the address 127.0.0.`last`; others have 127.0.0.1.
fn client_at(last: u8, gateway: &Gateway) -> Client {
    Client::connect_from([127, 0, 0, last].into(), gateway.http)
}

#[test]
fn responses_that_nobody_reads_hold_up_no_others() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let up = Http2Server::start(None, Builder::new(), move |request, mut respond| {
        let count = count.clone();
        async move {
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            if request.uri().path() != "/endless" {
                let _ = sender.send_data("well".into(), true);
                return;
            }
            while send(&mut sender, Bytes::from_static(&[b'x'; 16_384])).await.is_some() {
                count.fetch_add(16_384, Ordering::SeqCst);
            }
        }
    });
    let gateway = Gateway::with_server("workers = 1\nbody_timeout = \"60s\"", &up.everything("http", ""));
    let before = gateway.memory("VmRSS");
    let mut unread = RawHttp2::connect(gateway.http, &[]);
    let still = || {
        let before = sent.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        before > 0 && sent.load(Ordering::SeqCst) == before
    };
    // They begin one after another, so the first ones have larger windows.
    for eight in 0..8 {
        let gets = (0..8).flat_map(|number| get(2 * (8 * eight + number) + 1, "/endless"));
        unread.send(&gets.collect::<Vec<_>>()).unwrap();
        until("the server waits", PATIENCE, still);
    }
    let grown = gateway.memory("VmRSS").saturating_sub(before) >> 20;
    assert!(grown < 160, "{grown} MiB for {} bytes", sent.load(Ordering::SeqCst));
    for mut client in [gateway.client(), client_at(2, &gateway)] {
        for _ in 0..10 {
            assert_eq!(client.get("/").text(), "well");
        }
    }
    assert!(up.connections() <= 3, "{}", up.connections());
}

#[test]
fn uploads_that_a_server_does_not_read_hold_up_no_others() {
    const LENGTH: usize = 400_000;
    // By default, the library grants all streams together the same window as each of them.
    let up = Http2Server::start(None, Builder::new(), |request, mut respond| async move {
        if request.uri().path() == "/unread" {
            // It keeps the body without reading it.
            let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
            drop(request);
            return;
        }
        let Ok((body, _)) = read(request.into_body()).await else { return };
        let mut sender = respond.send_response(Response::new(()), false).unwrap();
        let _ = sender.send_data(body.len().to_string().into(), true);
    });
    let gateway = Gateway::with_server("workers = 1", &up.everything("http", "timeout = \"60s\""));
    let head = |path, length| format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    let half = "x".repeat(LENGTH / 2);
    let mut under_way = client_at(2, &gateway);
    under_way.send(head("/", LENGTH) + &half);
    until("it has come", PATIENCE, || up.requests().len() == 1);

    // The windows are larger than one body and smaller than two, and smaller than each.
    let mut unread: Vec<Client> = Vec::new();
    for length in [60_000, LENGTH] {
        let before = up.requests().len();
        unread.extend((0..5).map(|_| gateway.client()));
        unread.iter_mut().rev().take(5).for_each(|client| client.send(head("/unread", length) + &half[..60_000]));
        until("they have come", PATIENCE, || up.requests().len() == before + 5);
        for last in [3, 1] {
            let mut client = client_at(last, &gateway);
            assert_eq!(client.call(head("/", LENGTH) + &half + &half).text(), LENGTH.to_string());
            assert_eq!(client.get("/").text(), "0");
        }
    }
    under_way.send(&half);
    assert_eq!(under_way.response(false).text(), LENGTH.to_string());
    assert!(up.connections() <= 14, "{}", up.connections());
}

#[test]
fn a_server_that_takes_one_connection_gets_all_requests_on_it() {
    const ALL: usize = 30;
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        drop(listener);
        socket.read_exact(&mut [0; PREFACE.len()]).unwrap();
        let mut frames = Frames { socket };
        frames.send(kind::SETTINGS, 0, 0, &[]);
        let first = frames.until(kind::HEADERS).unwrap().stream;
        frames.answer(first, "well");
        let streams: Vec<_> = (0..ALL).map(|_| frames.until(kind::HEADERS).unwrap().stream).collect();
        streams.iter().for_each(|stream| frames.answer(*stream, "well"));
        let _ = frames.until(kind::GOAWAY);
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    assert_eq!(gateway.client().get("/").text(), "well");
    let mut clients: Vec<_> = (0..ALL).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "well"));
}

#[derive(Debug, Default)]
struct Came {
    requests: AtomicUsize,
    resets: AtomicUsize,
}

/// Answers each request with a body once the body is complete, and no others. Ends a connection on which more than `most`
/// streams were reset.
fn guarding(most: usize) -> (SocketAddr, Arc<Came>) {
    let came = Arc::new(Came::default());
    let record = came.clone();
    let address = Frames::serve(move |mut frames, _| {
        let (mut last, mut resets) = (0, 0);
        while let Ok(frame) = frames.next() {
            match frame.kind {
                kind::SETTINGS if frame.flags & ACK == 0 => frames.send(kind::SETTINGS, ACK, 0, &[]),
                kind::PING if frame.flags & ACK == 0 => frames.send(kind::PING, ACK, 0, &frame.payload),
                kind::HEADERS => {
                    last = frame.stream;
                    record.requests.fetch_add(1, Ordering::SeqCst);
                }
                kind::DATA if frame.flags & END_STREAM != 0 => frames.answer(frame.stream, "well"),
                kind::RST_STREAM => {
                    resets += 1;
                    record.resets.fetch_add(1, Ordering::SeqCst);
                    if resets > most {
                        frames.go_away(last, Reason::ENHANCE_YOUR_CALM);
                        return;
                    }
                }
                _ => {}
            }
        }
    });
    (address, came)
}

#[test]
fn a_client_that_cancels_its_requests_breaks_no_others() {
    const AT_ONCE: u32 = 10;
    let (address, came) = guarding(50);
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let requests = || came.requests.load(Ordering::SeqCst);
    let mut under_way: Vec<Client> = Vec::new();
    let mut begin = |mut client: Client| {
        let before = requests();
        client.send(HALF);
        until("it has come", PATIENCE, || requests() > before);
        under_way.push(client);
    };
    begin(client_at(2, &gateway));
    let mut cancelling = RawHttp2::connect(gateway.http, &[]);
    for round in 0..30 {
        let before = requests();
        let streams: Vec<_> = (0..AT_ONCE).map(|number| 2 * (AT_ONCE * round + number) + 1).collect();
        cancelling.send(&streams.iter().flat_map(|stream| get(*stream, "/")).collect::<Vec<_>>()).unwrap();
        until("they have come", PATIENCE, || requests() >= before + AT_ONCE as usize);
        let reset = |stream: &u32| frame(kind::RST_STREAM, 0, *stream, &CANCEL.to_be_bytes());
        cancelling.send(&streams.iter().flat_map(reset).collect::<Vec<_>>()).unwrap();
        if round == 3 {
            // One has the address of the client that cancels.
            begin(gateway.client());
            begin(client_at(3, &gateway));
        }
    }
    for mut client in under_way {
        client.send("llo");
        assert_eq!(client.response(false).text(), "well");
    }
}

#[test]
fn clients_that_all_cancel_at_once_break_no_others() {
    others_go_on_when_all_cancel("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 3, 48, 47);
    // Bodies are spread over eight connections, and count as several requests of their client.
    others_go_on_when_all_cancel(HALF, 72, 288, 35);
}

/// `clients` cancel `all` requests at once. The server ends a connection with more than `most` resets in 800 ms. This
/// is one less than the requests on a connection, as a server that stalls finds several portions of resets at once.
fn others_go_on_when_all_cancel(request: &str, clients: usize, all: usize, most: usize) {
    let came = Arc::new(Came::default());
    let record = came.clone();
    let address = Frames::serve(move |mut frames, _| {
        let (mut last, mut resets) = (0, Vec::new());
        while let Ok(frame) = frames.next() {
            match frame.kind {
                kind::SETTINGS if frame.flags & ACK == 0 => frames.send(kind::SETTINGS, ACK, 0, &[]),
                kind::PING if frame.flags & ACK == 0 => frames.send(kind::PING, ACK, 0, &frame.payload),
                kind::HEADERS => {
                    last = frame.stream;
                    record.requests.fetch_add(1, Ordering::SeqCst);
                }
                kind::DATA if frame.flags & END_STREAM != 0 => frames.answer(frame.stream, "well"),
                kind::RST_STREAM => {
                    record.resets.fetch_add(1, Ordering::SeqCst);
                    resets.push(Instant::now());
                    resets.retain(|at| at.elapsed() < Duration::from_millis(800));
                    if resets.len() > most {
                        frames.go_away(last, Reason::ENHANCE_YOUR_CALM);
                        return;
                    }
                }
                _ => {}
            }
        }
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let requests = || came.requests.load(Ordering::SeqCst);
    let mut under_way: Vec<Client> = Vec::new();
    for last in 2..7 {
        under_way.push(client_at(last, &gateway));
        under_way.last_mut().unwrap().send(HALF);
        until("it has come", PATIENCE, || requests() == under_way.len());
    }
    let mut cancelling: Vec<_> =
        (0..all).map(|number| client_at(10 + u8::try_from(number % clients).unwrap(), &gateway)).collect();
    cancelling.iter_mut().for_each(|client| client.send(request));
    until("they have come", PATIENCE, || requests() == 5 + all);
    for client in cancelling {
        SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }
    until("all are reset", PATIENCE, || came.resets.load(Ordering::SeqCst) == all);
    for mut client in under_way {
        client.send("llo");
        assert_eq!(client.response(false).text(), "well");
    }
}

#[test]
fn many_clients_that_cancel_some_requests_break_no_others() {
    const CLIENTS: u8 = 60;
    let (address, came) = guarding(500);
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let mut under_way = client_at(2, &gateway);
    under_way.send(HALF);
    for round in 1..=10 {
        let mut clients: Vec<_> = (0..CLIENTS).map(|number| client_at(10 + number, &gateway)).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let all = round * usize::from(CLIENTS);
        until("they have come", PATIENCE, || came.requests.load(Ordering::SeqCst) == 1 + all);
        for client in clients {
            SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
        }
        // Some of the streams are reset later.
        until("they are left", PATIENCE, || gateway.metric("gateway_connections") == Some(1.0));
    }
    under_way.send("llo");
    assert_eq!(under_way.response(false).text(), "well");
}
