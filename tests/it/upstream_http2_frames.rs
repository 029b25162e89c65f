//! HTTP/2 to upstreams, frame by frame: which requests are sent again, and what happens with servers that break the rules or
//! fall silent.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use h2::Reason;
use socket2::SockRef;

use crate::harness::http2::{END_HEADERS, END_STREAM, block, kind};
use crate::harness::http2_server::{Frames, Http2Server, over_http2};
use crate::harness::{Gateway, Upstream, until};

const BOUND: Duration = Duration::from_secs(10);
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

/// Requests that have come, by the number of their connection.
type Came = Arc<Mutex<Vec<usize>>>;

/// A gateway with one worker before a server. The first connection passes every request to `first`, which says whether the
/// connection goes on. Other connections answer with their number.
fn gateway(first: impl Fn(&mut Frames, u32) -> bool + Send + Sync + 'static, keys: &str) -> (Gateway, Came) {
    let came = Came::default();
    let record = came.clone();
    let address = Frames::serve(move |mut frames, number| {
        while let Ok(head) = frames.until(kind::HEADERS) {
            record.lock().unwrap().push(number);
            if number > 0 {
                frames.answer(head.stream, &number.to_string());
            } else if !first(&mut frames, head.stream) {
                return;
            }
        }
    });
    (Gateway::with_server("workers = 1", &over_http2("http", address, keys)), came)
}

#[test]
fn what_a_server_has_not_processed_is_sent_again_once() {
    // The server names another last stream than this one, or this one.
    let ways: [fn(&mut Frames, u32) -> bool; 3] = [
        |frames, stream| {
            frames.go_away(stream - 1, Reason::NO_ERROR);
            frames.until(kind::GOAWAY).is_ok()
        },
        |frames, stream| {
            frames.go_away(0, Reason::ENHANCE_YOUR_CALM);
            let _ = stream;
            false
        },
        |frames, stream| {
            frames.reset(stream, Reason::REFUSED_STREAM);
            frames.go_away(stream, Reason::NO_ERROR);
            true
        },
    ];
    for (at, way) in ways.into_iter().enumerate() {
        for request in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"]
        {
            let (gateway, came) = gateway(way, "");
            assert_eq!(gateway.client().call(request).text(), "1", "way {at} of {request}");
            assert_eq!(*came.lock().unwrap(), [0, 1]);
        }
    }
}

#[test]
fn only_streams_above_the_last_one_are_sent_again() {
    for reason in [Reason::NO_ERROR, Reason::ENHANCE_YOUR_CALM] {
        let (gateway, came) = gateway(
            move |frames, stream| {
                if stream == 3 {
                    frames.go_away(1, reason);
                    frames.answer(1, "0");
                }
                true
            },
            "",
        );
        let mut clients = [gateway.client(), gateway.client()];
        for (at, client) in clients.iter_mut().enumerate() {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            until("it has come", BOUND, || came.lock().unwrap().len() > at);
        }
        for (client, expected) in clients.iter_mut().zip(["0", "1"]) {
            assert_eq!(client.response(false).text(), expected, "{reason:?}");
        }
        assert_eq!(*came.lock().unwrap(), [0, 0, 1]);
    }
}

#[test]
fn a_request_is_not_sent_three_times() {
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    let address = Frames::serve(move |mut frames, _| {
        while let Ok(head) = frames.until(kind::HEADERS) {
            count.fetch_add(1, Ordering::SeqCst);
            frames.reset(head.stream, Reason::REFUSED_STREAM);
        }
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    gateway.client().get("/").expect_problem(502);
    assert_eq!(came.load(Ordering::SeqCst), 2);
    let line = gateway.wait_message("upstream failed");
    assert_eq!(line["reason"], "closed", "{line}");
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}");
}

#[test]
fn what_a_server_may_have_processed_is_sent_again_only_if_it_may_come_twice() {
    // The connection has carried a request before. The server ends it with kind::GOAWAY for a later stream, or without notice.
    for is_told in [true, false] {
        let ends = move |frames: &mut Frames, stream: u32| {
            if stream == 1 {
                frames.answer(stream, "0");
                return true;
            }
            if is_told {
                frames.go_away(stream, Reason::NO_ERROR);
            }
            false
        };
        let (gateway_, came) = gateway(ends, "");
        assert_eq!(gateway_.client().get("/").text(), "0");
        assert_eq!(gateway_.client().get("/").text(), "1");
        assert_eq!(*came.lock().unwrap(), [0, 0, 1]);

        let (gateway_, came) = gateway(ends, "");
        assert_eq!(gateway_.client().get("/").text(), "0");
        gateway_.client().call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").expect_problem(502);
        assert_eq!(*came.lock().unwrap(), [0, 0]);
    }
    // On a new connection the request may be the reason for the end.
    let (gateway, came) = gateway(|_, _| false, "");
    gateway.client().get("/").expect_problem(502);
    assert_eq!(*came.lock().unwrap(), [0]);
}

#[test]
fn other_resets_are_not_a_reason_to_send_again() {
    for reason in [Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::NO_ERROR, Reason::ENHANCE_YOUR_CALM] {
        let (gateway, came) = gateway(
            move |frames, stream| {
                frames.reset(stream, reason);
                true
            },
            "",
        );
        gateway.client().get("/").expect_problem(502);
        assert_eq!(*came.lock().unwrap(), [0], "{reason:?}");
    }
}

#[test]
fn a_body_that_has_begun_is_not_sent_again() {
    let refuses = |frames: &mut Frames, stream| {
        while frames.until(kind::DATA).is_ok_and(|data| data.payload.is_empty()) {}
        frames.reset(stream, Reason::REFUSED_STREAM);
        true
    };
    let (gateway_, came) = gateway(refuses, "");
    gateway_.client().call(POST).expect_problem(502);
    assert_eq!(*came.lock().unwrap(), [0]);
    // Nor is a request whose body has partly come.
    let (gateway_, came) = gateway(refuses, "");
    let mut client = gateway_.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    client.response(false).expect_problem(502);
    assert_eq!(*came.lock().unwrap(), [0]);

    // A request without a part of its body can be sent again.
    let refuses_at_once = |frames: &mut Frames, stream| {
        frames.reset(stream, Reason::REFUSED_STREAM);
        frames.go_away(stream, Reason::NO_ERROR);
        true
    };
    let (gateway, came) = gateway(refuses_at_once, "");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    until("it is sent again", BOUND, || *came.lock().unwrap() == [0, 1]);
    client.send("hello");
    assert_eq!(client.response(false).text(), "1");
}

#[test]
fn requests_under_way_are_finished_after_a_goodbye() {
    let came = Came::default();
    let record = came.clone();
    let address = Frames::serve(move |mut frames, number| {
        while let Ok(head) = frames.until(kind::HEADERS) {
            record.lock().unwrap().push(number);
            if number > 0 {
                frames.answer(head.stream, "new");
                continue;
            }
            frames.go_away(head.stream, Reason::NO_ERROR);
            frames.send(kind::HEADERS, END_HEADERS, head.stream, &[0x88]);
            until("another has come", BOUND, || record.lock().unwrap().len() == 2);
            frames.send(kind::DATA, END_STREAM, head.stream, b"old");
        }
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    let mut first = gateway.client();
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, framing) = first.try_head().unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(gateway.client().get("/").text(), "new");
    let mut body = Vec::new();
    first.wire.body(framing, &mut |piece| body.extend_from_slice(piece)).unwrap();
    assert_eq!(body, b"old");
}

#[test]
fn an_early_response_ends_the_upload() {
    let (gateway, _) = gateway(
        |frames, stream| {
            frames.answer(stream, "no");
            frames.reset(stream, Reason::NO_ERROR);
            true
        },
        "",
    );
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nthe beginning");
    assert_eq!(client.response(false).text(), "no");
}

#[test]
fn a_response_that_breaks_off_is_no_whole_one() {
    // A reset, even one without an error, and the end of the connection.
    let ways: [fn(&mut Frames, u32) -> bool; 4] = [
        |frames, stream| {
            frames.reset(stream, Reason::NO_ERROR);
            true
        },
        |frames, stream| {
            frames.reset(stream, Reason::INTERNAL_ERROR);
            true
        },
        |_, _| false,
        |frames, stream| {
            frames.go_away(stream, Reason::NO_ERROR);
            false
        },
    ];
    for (at, way) in ways.into_iter().enumerate() {
        let (gateway, _) = gateway(
            move |frames, stream| {
                frames.send(kind::HEADERS, END_HEADERS, stream, &[0x88]);
                frames.send(kind::DATA, 0, stream, b"a part");
                way(frames, stream)
            },
            "",
        );
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response(false).expect_err("a clean end");
        let line = gateway.wait_message("upstream failed");
        assert_eq!(line["reason"], "truncated", "way {at}: {line}");
    }
}

#[test]
fn a_server_that_breaks_the_rules_is_502() {
    let literal = |name: &[u8], value: &[u8]| block(&[(name, value)]);
    let two_lengths = [vec![0x88], literal(b"content-length", b"5"), literal(b"content-length", b"6")].concat();
    let too_short = [vec![0x88], literal(b"content-length", b"5")].concat();
    let of_connection = [vec![0x88], literal(b"transfer-encoding", b"chunked")].concat();
    let switch = literal(b":status", b"101");
    for (block, ends) in
        [(two_lengths, false), (too_short, true), (of_connection, false), (switch, true), (vec![0xff; 30], false)]
    {
        let bytes = block.clone();
        let (gateway, _) = gateway(
            move |frames, stream| {
                frames.send(kind::HEADERS, END_HEADERS | if ends { END_STREAM } else { 0 }, stream, &bytes);
                true
            },
            "",
        );
        gateway.client().get("/").expect_problem(502);
        let line = gateway.wait_message("upstream failed");
        assert_eq!(line["reason"], "bad_response", "{block:?}: {line}");
    }
    // Interim responses without an end.
    let (gateway_, _) = gateway(
        |frames, stream| {
            let interim = block(&[(b":status", b"103")]);
            (0..500).for_each(|_| frames.send(kind::HEADERS, END_HEADERS, stream, &interim));
            true
        },
        "",
    );
    gateway_.client().get("/").expect_problem(502);
    let up = Upstream::start(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec());
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", up.address(), ""));
    gateway.client().get("/").expect_problem(502);
}

#[test]
fn a_server_that_closes_every_connection_at_once_is_502() {
    let up = Upstream::raw(|_, _| ());
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", up.address(), ""));
    for _ in 0..5 {
        gateway.client().get("/").expect_problem(502);
    }
    assert!(up.connections() <= 10, "{}", up.connections());
}

#[test]
fn where_no_connection_can_be_made_any_request_goes_to_another_server() {
    let (bad, good) = (Upstream::raw(|_, _| ()), Http2Server::echo(None));
    let servers = format!("servers = [\"http://{}\", \"http://{}\"]\nhttp2 = true", bad.address(), good.address);
    let more =
        "connect_timeout = \"10s\"\nbalance = \"round-robin\"\nretries = 0\n[upstreams.up.eject]\nfailures = 1000";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"";
    let gateway = Gateway::with_server("workers = 1", &format!("[upstreams.up]\n{servers}\n{more}\n{route}\n"));
    for _ in 0..4 {
        assert_eq!(gateway.client().call(POST).text(), "hello", "nothing was sent, so any method may be");
    }
    assert!(bad.connections() > 0);
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let rest = over_http2("http", silent.local_addr().unwrap(), "connect_timeout = \"300ms\"");
    let gateway = Gateway::with_server("workers = 1", &rest);
    let begun = Instant::now();
    gateway.client().get("/").expect_problem(504);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(gateway.wait_message("upstream failed")["reason"], "connect_timeout");
}

#[test]
fn the_windows_carry_a_gigabit_over_twenty_milliseconds() {
    const NEEDED: u32 = 2_500_000;
    let seen = Arc::new(Mutex::new((0, 65_535)));
    let record = seen.clone();
    let address = Frames::serve(move |mut frames, _| {
        while let Ok(frame) = frames.next() {
            let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
            match frame.kind {
                kind::SETTINGS => {
                    for setting in frame.payload.chunks(6).filter(|setting| setting[..2] == [0, 4]) {
                        record.lock().unwrap().0 = number(&setting[2..]);
                    }
                }
                kind::WINDOW_UPDATE if frame.stream == 0 => record.lock().unwrap().1 += number(&frame.payload),
                kind::HEADERS => frames.answer(frame.stream, ""),
                _ => {}
            }
        }
    });
    let gateway = Gateway::with_server("workers = 1", &over_http2("http", address, ""));
    assert_eq!(gateway.client().get("/").status, 200);
    let (stream, connection) = *seen.lock().unwrap();
    assert!(stream >= NEEDED && connection >= NEEDED, "{stream} and {connection}");
}

#[test]
fn a_connection_whose_server_is_silent_is_given_up() {
    let silent = Arc::new(AtomicBool::new(false));
    let (told, asked) = (silent.clone(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    let (gateway, came) = gateway(
        move |frames, stream| {
            if !told.load(Ordering::SeqCst) {
                frames.answer(stream, "well");
                return true;
            }
            // As if the server had disappeared: it takes everything and sends nothing.
            while let Ok(frame) = frames.next() {
                count.fetch_add(usize::from(frame.kind == kind::PING), Ordering::SeqCst);
            }
            false
        },
        "timeout = \"9s\"",
    );
    let mut client = gateway.client();
    assert_eq!(client.get("/").text(), "well");
    silent.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    // The gateway sends a ping after three seconds, and gives up after six. A GET may be sent again.
    assert_eq!(client.get("/").text(), "1");
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(4500) && took < Duration::from_millis(8900), "{took:?}");
    assert_eq!((asked.load(Ordering::SeqCst), came.lock().unwrap().len()), (1, 3));
}

#[test]
fn a_slow_server_that_answers_pings_is_not_given_up() {
    let (gateway, _) = gateway(
        |frames, stream| {
            let ping = frames.next_ping();
            frames.send(kind::PING, 1, 0, &ping);
            // Longer than an answer may take.
            std::thread::sleep(Duration::from_millis(4500));
            frames.answer(stream, "at last");
            true
        },
        "timeout = \"12s\"",
    );
    assert_eq!(gateway.client().get("/").text(), "at last");
}

#[test]
fn a_gateway_that_stops_finishes_requests_over_http_2() {
    let (mut gateway, came) = gateway(
        |frames, stream| {
            std::thread::sleep(Duration::from_millis(500));
            frames.answer(stream, "the last");
            true
        },
        "",
    );
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    until("it is in flight", BOUND, || came.lock().unwrap().len() == 1);
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(client.response(false).text(), "the last");
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn resets_of_clients_reach_the_server() {
    let reset = Arc::new(Mutex::new(None));
    let record = reset.clone();
    let (gateway, _) = gateway(
        move |frames, stream| {
            frames.send(kind::HEADERS, END_HEADERS, stream, &[0x88]);
            frames.send(kind::DATA, 0, stream, b"a part");
            let frame = frames.until(kind::RST_STREAM).unwrap();
            *record.lock().unwrap() = Some((frame.stream == stream, frame.payload));
            true
        },
        "",
    );
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.try_head().unwrap();
    // A reset, because after a plain close the client could still read.
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    until("the stream is reset", BOUND, || reset.lock().unwrap().is_some());
    assert_eq!(*reset.lock().unwrap(), Some((true, u32::from(Reason::CANCEL).to_be_bytes().to_vec())));
}
