//! Clients that close only their side after a request, as `printf ... nc` does: they look as if they had gone away.

use std::io::Result;
use std::net::Shutdown;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::harness::{Client, Gateway, Upstream, reply, until};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// How long a client that has closed its side counts as present, on a busy machine.
pub(crate) const CLOSED: Range<Duration> = Duration::from_millis(950)..Duration::from_secs(20);

/// If the machine stalls, the upstream is silent for a second, and the gateway rightly gives up the client. So an
/// attempt that fails after such a time is repeated. A fault of the gateway fails each time.
#[track_caller]
pub(crate) fn unless_stalled(mut attempt: impl FnMut() -> Result<()>) {
    for _ in 0..4 {
        let begun = Instant::now();
        let Err(error) = attempt() else { return };
        let lasted = begun.elapsed();
        assert!(lasted >= CLOSED.start, "it fails after {lasted:?}: {error}");
    }
    attempt().expect("it fails each time");
}

fn half_closed(gateway: &Gateway, requests: &str) -> Client {
    let mut client = gateway.client();
    client.send(requests);
    client.wire.stream().shutdown(Shutdown::Write).unwrap();
    client
}

/// Sends pieces, each after its pause, and reports the end of the connection.
fn slow(pieces: &[(u64, &'static str)]) -> (Upstream, Arc<Mutex<Option<Instant>>>) {
    let ended = Arc::new(Mutex::new(None));
    let (end, pieces) = (Arc::clone(&ended), pieces.to_vec());
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        for (pause, piece) in &pieces {
            sleep(Duration::from_millis(*pause));
            if wire.write(piece.as_bytes()).is_err() {
                break;
            }
        }
        wire.rest();
        *end.lock().unwrap() = Some(Instant::now());
    });
    (up, ended)
}

#[test]
fn it_gets_a_response_that_begins_within_a_second() {
    let (up, _) = slow(&[(200, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer")]);
    let gateway = Gateway::start(&up.everything());
    unless_stalled(|| {
        let mut client = half_closed(&gateway, ASK);
        assert_eq!(client.try_response(false)?.text(), "answer");
        assert!(client.closed().is_empty());
        Ok(())
    });
}

#[test]
fn it_gets_all_of_a_response_whose_parts_come_in_time() {
    let (up, _) = slow(&[
        (0, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na"),
        (300, "n"),
        (300, "s"),
        (300, "w"),
        (300, "e"),
        (300, "r"),
    ]);
    let gateway = Gateway::start(&up.everything());
    unless_stalled(|| {
        assert_eq!(half_closed(&gateway, ASK).try_response(false)?.text(), "answer");
        Ok(())
    });
}

#[test]
fn amid_a_response_it_counts_as_gone_after_a_second_of_silence() {
    for first in [
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nans",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nans\r\n",
    ] {
        let (up, ended) = slow(&[(0, first)]);
        let gateway = Gateway::start(&up.everything());
        unless_stalled(|| {
            *ended.lock().unwrap() = None;
            let begun = Instant::now();
            let mut client = half_closed(&gateway, ASK);
            let head = client.try_head();
            until("the upstream is left", CLOSED.end, || ended.lock().unwrap().is_some());
            let waited = ended.lock().unwrap().unwrap() - begun;
            assert!(CLOSED.contains(&waited), "{waited:?}");
            head.map(drop)
        });
        let line = gateway.wait_log("the request", |line| line["message"] == "request" && line["bytes"] == 3);
        assert_eq!(line["outcome"], "abandoned", "{line}");
    }
}

#[test]
fn it_gets_the_responses_to_all_its_requests() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&up.everything());
    let requests = ["/1", "/2", "/3"].map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    unless_stalled(|| {
        let mut client = half_closed(&gateway, &requests.concat());
        for path in ["/1", "/2", "/3"] {
            assert_eq!(client.try_response(false)?.text(), path);
        }
        assert!(client.closed().is_empty());
        Ok(())
    });
}

#[test]
fn it_gets_the_responses_of_the_gateway_itself() {
    let route = "[[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"here\" }\n";
    let gateway = Gateway::start(route);
    for _ in 0..20 {
        assert_eq!(half_closed(&gateway, ASK).response(false).text(), "here");
    }
}

#[test]
fn without_a_response_within_a_second_it_counts_as_gone() {
    let (up, ended) = slow(&[]);
    let gateway = Gateway::start(&up.everything());
    let begun = Instant::now();
    let mut client = half_closed(&gateway, ASK);
    assert!(client.closed().is_empty());
    until("the upstream is left", CLOSED.end, || ended.lock().unwrap().is_some());
    let waited = ended.lock().unwrap().unwrap() - begun;
    assert!(CLOSED.contains(&waited), "{waited:?}");
    let line = gateway.wait_message("request");
    assert_eq!((&line["outcome"], &line["status"]), (&"abandoned".into(), &0.into()), "{line}");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_response_frees_the_upstream() {
    let (go_on, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin");
        let _ = gone.lock().unwrap().recv();
        wire.rest();
        tell.lock().unwrap().send(()).unwrap();
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send(ASK);
    client.try_head().unwrap();
    // Nothing more is sent to the client, so only a reset shows that it has gone.
    client.wire.stream().shutdown(Shutdown::Write).unwrap();
    sleep(Duration::from_millis(50));
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    go_on.send(()).unwrap();
    told.recv_timeout(Duration::from_secs(10)).expect("the upstream is not released");
}
