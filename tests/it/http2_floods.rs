//! Floods over HTTP/2: the connection ends, memory stays bounded, and other clients are served meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use crate::harness::http2::{
    ACK, CANCEL, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, PREFACE, RawHttp2, Reaction, block, frame, headers,
    kind, setting,
};
use crate::harness::{Gateway, Upstream, receive, reply, until};

const GET: &[(&[u8], &[u8])] = &[(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];
const POST: &[(&[u8], &[u8])] =
    &[(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];

/// At the same time.
const ATTACKERS: usize = 4;
/// How much the memory of the gateway may grow.
const MOST_MEMORY: u64 = 64 << 20;
/// How long another client may wait for a response, besides the time of a thousand requests in sequence: attackers open as many
/// streams together.
const MOST_WAIT: Duration = Duration::from_secs(1);
/// Of one attacker.
const MOST_FRAMES: u32 = 300_000;

/// A gateway with an upstream, and its memory before any attack.
struct Target {
    gateway: Gateway,
    memory: u64,
    _up: Upstream,
}

impl Target {
    fn start(server: &str, up: Upstream) -> Self {
        Self::with_routes(server, up, "")
    }

    fn with_routes(server: &str, up: Upstream, more: &str) -> Self {
        let own = "[[routes]]\npath = \"/own\"\nrespond = { status = 200 }\n";
        let gateway = Gateway::with_server(server, &format!("{}{own}{more}", up.everything()));
        assert_eq!(gateway.client().get("/").status, 200);
        let memory = gateway.memory("VmRSS");
        Self { gateway, memory, _up: up }
    }

    /// Runs `attack` in several threads, and tells whether another client was served soon meanwhile.
    #[track_caller]
    fn attacked<T: Send>(&self, attack: impl Fn(&Gateway) -> T + Sync) -> (Vec<T>, bool) {
        let over = AtomicBool::new(false);
        let begun = Instant::now();
        (0..100).for_each(|_| assert_eq!(self.gateway.client().get("/own").status, 200));
        let most = MOST_WAIT + 10 * begun.elapsed();
        let (ended, slowest) = scope(|scope| {
            let others = scope.spawn(|| {
                let mut slowest = Duration::ZERO;
                loop {
                    for path in ["/", "/own"] {
                        let begun = Instant::now();
                        let response = self.gateway.client().get(path);
                        assert_eq!(response.status, 200, "{response:?}");
                        slowest = slowest.max(begun.elapsed());
                    }
                    if over.load(Ordering::SeqCst) {
                        break slowest;
                    }
                    sleep(Duration::from_millis(10));
                }
            });
            let attackers: Vec<_> = (0..ATTACKERS).map(|_| scope.spawn(|| attack(&self.gateway))).collect();
            let ended: Vec<_> = attackers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            over.store(true, Ordering::SeqCst);
            let others = others.join().unwrap();
            (ended.into_iter().map(Result::unwrap).collect(), others)
        });
        println!("another client waited {slowest:?} of {most:?}");
        let grown = self.gateway.memory("VmHWM").saturating_sub(self.memory);
        assert!(grown < MOST_MEMORY, "{} MiB more were resident", grown >> 20);
        (ended, slowest < most)
    }
}

/// Attacks a new target, and up to two more if another client waits too long, as on a machine that stalls.
#[track_caller]
fn attacked<T: Send>(start: impl Fn() -> Target, attack: impl Fn(&Gateway) -> T + Sync) -> (Target, Vec<T>) {
    let once = |_| {
        let target = start();
        let (ended, is_served_soon) = target.attacked(&attack);
        is_served_soon.then_some((target, ended))
    };
    (0..3).find_map(once).expect("another client is served soon")
}

/// Answers nothing on this path.
fn never_answering(path: &'static str) -> Upstream {
    Upstream::raw(move |mut wire, _| {
        while let Ok(Some(request)) = receive(&mut wire) {
            // Goes on reading, to learn when the gateway closes the connection.
            if request.target != path && wire.write(&reply(200, "hello")).is_err() {
                break;
            }
        }
    })
}

fn flood(gateway: &Gateway, settings: &[(u16, u32)], next: impl Fn(u32) -> Vec<u8> + Send + 'static) -> Reaction {
    let mut client = RawHttp2::connect(gateway.http, settings);
    let mut writer = client.twin();
    let sending: JoinHandle<()> = std::thread::spawn(move || {
        let mut number = 0;
        while number < MOST_FRAMES {
            // Several frames in one write, as attackers do it.
            let some: Vec<u8> = (number..number + 50).flat_map(&next).collect();
            number += 50;
            if writer.send(&some).is_err() {
                break;
            }
        }
    });
    let ending = client.ending();
    drop(client);
    sending.join().unwrap();
    ending
}

#[test]
fn requests_that_are_reset_when_their_bodies_are_wanted() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let gateway = Gateway::start(&up.everything());
    let post = [POST, &[(b"expect", b"100-continue")]].concat();
    let mut client = RawHttp2::connect(gateway.http, &[]);
    for number in (0..MOST_FRAMES).step_by(20) {
        let streams = || (number..number + 20).map(|number| 2 * number + 1);
        let _ = client.send(&streams().flat_map(|stream| headers(stream, 0, &post)).collect::<Vec<_>>());
        for _ in streams() {
            let next = client.find("reaction", |frame| [kind::HEADERS, kind::GOAWAY].contains(&frame.kind));
            if next.kind == kind::GOAWAY {
                assert_eq!((u32::from(next.payload[7]), number > 900), (ENHANCE_YOUR_CALM, true), "after {number}");
                return;
            }
        }
        streams().for_each(|stream| _ = client.send(&frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])));
    }
    panic!("the connection goes on");
}

#[test]
fn a_head_that_is_not_completed_ends_the_connection_although_other_requests_are_in_flight() {
    let up = never_answering("/");
    let gateway = Gateway::with_server("header_timeout = \"2s\"", &up.everything());
    let send = |begun: &[u8]| {
        let mut client = RawHttp2::bare(gateway.http);
        let settings = frame(kind::SETTINGS, 0, 0, b"");
        // Together, because the time of a head begins with the connection.
        client.send(&[PREFACE, &settings, &headers(1, END_STREAM, GET), begun].concat()).unwrap();
        client
    };
    for begun in [frame(kind::HEADERS, END_STREAM, 3, &block(GET)), headers(3, END_STREAM, GET)[..20].to_vec()] {
        assert_eq!(send(&begun).ending(), Reaction::GoAway(ENHANCE_YOUR_CALM));
    }
    // Without this frame, the request stays in flight.
    let mut client = send(b"");
    let end = Instant::now() + Duration::from_secs(3);
    while let Ok(frame) = client.next(end) {
        assert!(frame.is_some_and(|frame| frame.kind == kind::SETTINGS || frame.kind == kind::WINDOW_UPDATE));
    }
}

#[test]
fn a_trusted_proxy_may_reset_all_that_its_clients_have_left() {
    let never = never_answering("/never");
    let waits = "max_in_flight = 1\nmax_waiting = 1000\nmax_wait = \"60s\"\n";
    let route = "[[routes]]\npath = \"/own\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_server(
        "trusted_proxies = [\"127.0.0.0/8\"]",
        &(never.section() + waits + route + "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"),
    );
    let mut client = RawHttp2::connect(gateway.http, &[]);
    let at = |path: &'static [u8]| [&GET[..3], &[(&b":path"[..], path)]].concat();
    for round in 0..60 {
        let streams = || (0..50).map(|number| 2 * (50 * round + number) + 1);
        let requests: Vec<_> = streams().flat_map(|stream| headers(stream, END_STREAM, &at(b"/never"))).collect();
        client.send(&requests).unwrap();
        if round % 2 == 0 {
            // When this is answered, the gateway has read the requests. A reset before that would hide them.
            client.send(&frame(kind::PING, 0, 0, b"together")).unwrap();
            client.find("an answer to the ping", |frame| frame.kind == kind::PING && frame.flags == ACK);
        }
        let resets = streams().flat_map(|stream| frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
        client.send(&resets.collect::<Vec<_>>()).unwrap();
    }
    client.send(&headers(100_001, END_STREAM, &at(b"/own"))).unwrap();
    assert_eq!(client.reaction(100_001), Reaction::Status(200));
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    /// Fails unless the connection of such a flood ends with ENHANCE_YOUR_CALM, and the metrics count that.
    #[track_caller]
    fn calmed(next: impl Fn(u32) -> Vec<u8> + Clone + Send + Sync + 'static) {
        let start = || Target::start("", Upstream::start(|_| reply(200, "hello")));
        let (target, ended) = attacked(start, |gateway| flood(gateway, &[], next.clone()));
        assert_eq!(ended, [Reaction::GoAway(ENHANCE_YOUR_CALM); ATTACKERS]);
        let metric = "gateway_http2_connection_errors_total{error=\"enhance_your_calm\"}";
        let count = f64::from(u32::try_from(ATTACKERS).unwrap());
        until("they are counted", Duration::from_secs(20), || target.gateway.metric(metric) == Some(count));
    }

    #[test]
    fn pings() {
        calmed(|_| frame(kind::PING, 0, 0, b"gateway!"));
    }

    #[test]
    fn acknowledgements_of_pings() {
        calmed(|_| frame(kind::PING, ACK, 0, b"gateway!"));
    }

    #[test]
    fn settings() {
        calmed(|number| frame(kind::SETTINGS, 0, 0, &setting(4, 1000 + number % 2)));
    }

    #[test]
    fn priorities() {
        calmed(|number| frame(kind::PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 16]));
    }

    #[test]
    fn windows() {
        calmed(|_| frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
    }

    #[test]
    fn frames_of_unknown_types() {
        calmed(|_| frame(0x42, 0xff, 0, b"anything"));
    }

    #[test]
    fn requests_that_are_reset_at_once() {
        calmed(|number| {
            let stream = 2 * number + 1;
            [headers(stream, END_STREAM, GET), frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        });
    }

    #[test]
    fn requests_that_are_reset_as_soon_as_they_are_read() {
        // The upstream never answers, so at its reset each request is in flight or waits for a place there. If each made a
        // connection, some would fail, and a client that gets answers may reset more.
        let never = never_answering("/never");
        let upstream = format!("[upstreams.never]\nservers = [\"http://{}\"]\n", never.address());
        let waits = "max_in_flight = 1\nmax_waiting = 1000\nmax_wait = \"60s\"\n";
        let route = "[[routes]]\npath = \"/never\"\nupstream = \"never\"\n";
        let routes = format!("{upstream}{waits}{route}");
        let start = || Target::with_routes("", Upstream::start(|_| reply(200, "hello")), &routes);
        let (_target, ended) = attacked(start, |gateway| {
            let begun = Instant::now();
            let mut client = RawHttp2::connect(gateway.http, &[]);
            let get = [&GET[..3], &[(b":path", b"/never")]].concat();
            for number in (0..MOST_FRAMES).step_by(20) {
                let streams = || (number..number + 20).map(|number| 2 * number + 1);
                let requests: Vec<_> = streams().flat_map(|stream| headers(stream, END_STREAM, &get)).collect();
                // When the PING is answered, the gateway has read the requests. If it has ended the connection meanwhile, it has
                // said why.
                let ping = frame(kind::PING, 0, 0, &u64::from(number).to_be_bytes());
                let _ = client.send(&requests).and_then(|()| client.send(&ping));
                let end = Instant::now() + Duration::from_secs(10);
                let answered = loop {
                    match client.next(end) {
                        Ok(Some(frame)) if frame.kind == kind::PING && frame.flags == ACK => break Ok(None),
                        Ok(Some(frame)) if frame.kind == kind::GOAWAY => break Ok(Some(frame.payload[7])),
                        Ok(Some(_)) => {}
                        Ok(None) => break Ok(Some(0)),
                        Err(error) => break Err(error),
                    }
                };
                match answered {
                    Ok(None) => {}
                    Ok(Some(code)) => return (number, u32::from(code), begun.elapsed()),
                    Err(error) => panic!("{error} after {number} requests"),
                }
                streams().for_each(|stream| _ = client.send(&frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])));
            }
            (MOST_FRAMES, 0, begun.elapsed())
        });
        for (number, code, lasted) in ended {
            assert_eq!(code, ENHANCE_YOUR_CALM, "after {number}");
            // A thousand at once, and a hundred in each second.
            assert!(u64::from(number) <= 1200 + 100 * lasted.as_secs(), "{number} in {lasted:?}");
        }
    }

    #[test]
    fn heads_that_go_on_and_on() {
        calmed(|number| match number {
            0 => frame(kind::HEADERS, 0, 1, b""),
            _ => frame(kind::CONTINUATION, 0, 1, b""),
        });
        calmed(|number| match number {
            0 => frame(kind::HEADERS, 0, 1, &block(GET)),
            _ => frame(kind::CONTINUATION, 0, 1, &block(&[(b"x", &[b'y'; 16_000])])),
        });
    }

    #[test]
    fn data_without_bytes() {
        calmed(|number| match number {
            0 => headers(1, 0, POST),
            _ => frame(kind::DATA, 0, 1, b""),
        });
        // Padding is not content.
        calmed(|number| match number {
            0 => headers(1, 0, POST),
            _ => frame(kind::DATA, 8, 1, &[8, 0, 0, 0, 0, 0, 0, 0, 0]),
        });
    }

    #[test]
    fn fields_that_grow_when_they_are_decompressed() {
        // The first head puts a field of 4 KB into the table; each other head names it 4000 times, with a byte for each.
        calmed(|number| {
            let large = [&b"\x40\x01x\x7f\xa1\x1e"[..], &[b'y'; 4000]].concat();
            let many = [&block(GET)[..], &[0xbe; 4000]].concat();
            match number {
                0 => frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &[block(GET), large].concat()),
                _ => frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &many),
            }
        });
    }

    #[test]
    fn more_streams_than_allowed() {
        // The streams stay open, because their bodies do not come.
        calmed(|number| headers(2 * number + 1, 0, POST));
    }

    #[test]
    fn streams_that_are_made_to_be_reset() {
        calmed(|number| headers(2 * number + 1, END_STREAM, &[GET, &[(b"content-length", b"5")]].concat()));
    }

    #[test]
    fn windows_that_stay_closed() {
        let get = [&GET[..3], &[(b":path", b"/large")]].concat();
        // No stream gets more window than this.
        for window in [0, 1, 20_000] {
            let start = || {
                let large = "x".repeat(64 << 10);
                let body = move |target: &str| if target == "/large" { large.clone() } else { "hello".to_owned() };
                let up = Upstream::start(move |request| reply(200, &body(&request.target)));
                Target::start("body_timeout = \"1s\"", up)
            };
            let (target, resets) = attacked(start, |gateway| {
                let mut client = RawHttp2::connect(gateway.http, &[(4, window)]);
                client.send(&frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).unwrap();
                (0..250).for_each(|number| client.send(&headers(2 * number + 1, END_STREAM, &get)).unwrap());
                let is_reset = |frame: &Frame| frame.kind == kind::RST_STREAM;
                (0..250).map(|_| client.find("reset", is_reset).payload[3]).collect::<Vec<_>>()
            });
            assert!(resets.concat().iter().all(|code| u32::from(*code) == CANCEL), "{resets:?}");
            let metric = "gateway_http2_stream_errors_total{error=\"cancel\"}";
            until("all are counted", Duration::from_secs(20), || target.gateway.metric(metric) == Some(1000.0));
        }
    }

    #[test]
    fn streams_whose_bodies_do_not_come() {
        let start = || Target::start("body_timeout = \"1s\"", Upstream::start(|_| reply(200, "hello")));
        let (target, answers) = attacked(start, |gateway| {
            let mut client = RawHttp2::connect(gateway.http, &[]);
            (0..250).for_each(|number| client.send(&headers(2 * number + 1, 0, POST)).unwrap());
            (0..250).map(|_| client.find("answer", |frame| frame.kind == kind::HEADERS)).count()
        });
        assert_eq!(answers, [250; ATTACKERS]);
        // Some may have found no place in the queue of the upstream's socket.
        let failed = || target.gateway.metric("gateway_request_failures_total") == Some(1000.0);
        until("all are counted", Duration::from_secs(20), failed);
    }

    #[test]
    fn connections_on_which_nothing_comes() {
        const CONNECTIONS: usize = 250;
        let server = "header_timeout = \"2s\"\nidle_timeout = \"2s\"";
        let start = || Target::start(server, Upstream::start(|_| reply(200, "hello")));
        // Half of them have had a request, and all of them send pings. On a slow machine some may end before that.
        let (_target, endings) = attacked(start, |gateway| {
            let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| RawHttp2::connect(gateway.http, &[])).collect();
            clients.iter_mut().step_by(2).for_each(|client| _ = client.send(&headers(1, END_STREAM, GET)));
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(1) {
                clients.iter_mut().for_each(|client| _ = client.send(&frame(kind::PING, 0, 0, b"gateway!")));
                sleep(Duration::from_millis(200));
            }
            clients.iter_mut().map(|client| client.find("GOAWAY", |frame| frame.kind == kind::GOAWAY).payload[7]).max()
        });
        assert_eq!(endings, [Some(0); ATTACKERS]);
    }
}
