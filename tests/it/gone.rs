//! Clients that go away while there are unread bytes after their request. The bytes must not hide this.

use std::io::Result;
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::half_close::{CLOSED, unless_stalled};
use crate::harness::{Client, Framing, Gateway, Upstream, align, reply, until};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(30);

/// Never answers, and reports the end of each connection with a request.
fn silent() -> (Upstream, Receiver<Instant>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, _| {
        let Ok(Some(_)) = wire.head() else { return };
        wire.rest();
        let _ = tell.lock().unwrap().send(Instant::now());
    });
    (up, told)
}

/// A client whose request waits for the upstream, and which then sends `behind`.
fn waiting(gateway: &Gateway, up: &Upstream, request: &str, behind: &str) -> Client {
    let before = up.connections();
    let mut client = gateway.client();
    client.send(request);
    up.wait_connections(before + 1);
    client.send(behind);
    // The gateway must receive these bytes separately.
    sleep(Duration::from_millis(50));
    client
}

fn reset(client: Client) {
    SockRef::from(client.wire.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
}

/// Bytes of clients between their request and their going away.
fn behind() -> [String; 4] {
    [String::new(), "G".to_owned(), ASK.repeat(3), "x".repeat(100_000)]
}

/// Clients reset their connections. The gateway notices each sooner than it would notice a half close.
#[track_caller]
fn is_noticed_at_once(reset: fn(Client)) {
    let (up, ended) = silent();
    let gateway = Gateway::start(&up.everything());
    for behind in behind() {
        let noticed_after = || {
            let client = waiting(&gateway, &up, ASK, &behind);
            let gone = Instant::now();
            reset(client);
            ended.recv_timeout(PATIENCE).expect("the upstream is not released") - gone
        };
        // It is noticed late each time, unless the machine stalled.
        let is_soon = (0..3).any(|_| noticed_after() < CLOSED.start);
        assert!(is_soon, "it is noticed late with {} bytes behind the request", behind.len());
    }
}

#[test]
fn a_client_that_closes_is_noticed_behind_unread_bytes() {
    let (up, ended) = silent();
    let gateway = Gateway::start(&up.everything());
    for behind in behind() {
        let client = waiting(&gateway, &up, ASK, &behind);
        let gone = Instant::now();
        drop(client);
        let end = ended.recv_timeout(PATIENCE).expect("the upstream is not released");
        assert!(CLOSED.contains(&(end - gone)), "{:?} with {} bytes behind the request", end - gone, behind.len());
    }
}

#[test]
fn a_client_that_resets_is_noticed_at_once_behind_unread_bytes() {
    is_noticed_at_once(reset);
}

#[test]
fn a_reset_after_the_end_is_noticed_at_once() {
    let go = |client: Client| {
        client.wire.stream().shutdown(Shutdown::Write).unwrap();
        sleep(Duration::from_millis(50));
        reset(client);
    };
    is_noticed_at_once(go);
}

#[test]
fn its_place_in_flight_is_free_again() {
    let (up, _) = silent();
    let limit = "[limits.l]\nkey = \"global\"\nmax_in_flight = 1\n";
    let routes = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n\
                  [[routes]]\npath = \"/own\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n";
    let gateway = Gateway::with_server("max_connections = 2", &format!("{limit}{}{routes}", up.section()));
    let mut second = gateway.client();
    assert_eq!(second.get("/own").status, 200);
    let first = waiting(&gateway, &up, ASK, "G");
    assert_eq!(second.get("/own").status, 429, "its place is taken");
    drop(first);
    until("its place is free", PATIENCE, || second.get("/own").status == 200);
    until("its connection is closed", PATIENCE, || gateway.metric("gateway_connections") == Some(1.0));
}

#[test]
fn an_unread_body_does_not_hide_it_either() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/m\"]\non_limit = \"delay\"\nmax_delay = \"5m\"\n";
    let (up, _) = silent();
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
    let gateway = Gateway::start(&format!("{limit}{}{route}", up.section()));
    align(Duration::from_mins(1), Duration::from_secs(15));
    let mut first = gateway.client();
    first.send(ASK);
    up.wait_connections(1);
    let mut held = gateway.client();
    held.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000)));
    until("it is held", PATIENCE, || gateway.metric("gateway_requests_held") == Some(1.0));
    drop(held);
    until("it is not held any more", PATIENCE, || gateway.metric("gateway_requests_held") == Some(0.0));
}

#[test]
fn an_interim_response_is_not_the_beginning_of_a_response() {
    let (up, ended) = silent();
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.try_head().unwrap().0.status, 100);
    client.send("ab");
    up.wait_connections(1);
    let gone = Instant::now();
    drop(client);
    let end = ended.recv_timeout(PATIENCE).expect("the upstream is not released");
    assert!(CLOSED.contains(&(end - gone)), "{:?}", end - gone);
}

#[test]
fn a_body_that_the_upstream_reads_slowly_is_sent_completely() {
    unless_stalled(|| {
        let (taken, text) = read_slowly()?;
        assert_eq!((taken, &*text), (LENGTH, "all of it"));
        Ok(())
    });
}

const LENGTH: usize = 8 << 20;

/// Returns how much the upstream has read, and what it answers.
fn read_slowly() -> Result<(usize, String)> {
    let taken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&taken);
    let up = Upstream::raw(move |mut wire, _| {
        // A larger buffer would let the upstream read long after the gateway has sent everything.
        SockRef::from(wire.stream()).set_recv_buffer_size(1 << 16).unwrap();
        let Ok(Some((_, headers))) = wire.head() else { return };
        let framing = headers.framing(Framing::Length(0)).unwrap();
        let mut take = |piece: &[u8]| {
            let mut taken = count.lock().unwrap();
            *taken += piece.len();
            // The rest is read fast: the gateway does not see how long the read of sent bytes takes.
            if *taken < LENGTH / 2 {
                sleep(Duration::from_nanos(600 * piece.len() as u64));
            }
        };
        if wire.body(framing, &mut take).is_ok() {
            let _ = wire.write(&reply(200, "all of it"));
        }
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.wire.write(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes())?;
    client.wire.write("x".repeat(LENGTH).as_bytes())?;
    client.wire.stream().shutdown(Shutdown::Write)?;
    let text = client.try_response(false)?.text().to_owned();
    let taken = *taken.lock().unwrap();
    Ok((taken, text))
}

#[test]
fn pipelined_requests_are_answered_to_a_client_that_stays() {
    let up = Upstream::start(|request| {
        sleep(Duration::from_millis(100));
        reply(200, &request.target)
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = waiting(&gateway, &up, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n", "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!([client.response(false).text(), client.response(false).text()], ["/1", "/2"]);
    assert_eq!(client.get("/3").text(), "/3");
}
