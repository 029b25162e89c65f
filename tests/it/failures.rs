//! Upstreams that are away, late or send invalid responses, and clients that go away.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::harness::{Framing, Gateway, Upstream, closed_port, reply, until};

fn everything_to(servers: &str, more: &str) -> String {
    format!("[upstreams.up]\nservers = [{servers}]\n{more}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n")
}

#[test]
fn an_upstream_that_is_away_is_502() {
    let (_held, address) = closed_port();
    let gateway = Gateway::start(&everything_to(&format!("\"http://{address}\""), ""));
    let mut client = gateway.client();
    client.get("/").expect_problem(502);
    client.call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").expect_problem(502);
}

#[test]
fn an_upstream_that_never_answers_is_504() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.rest();
    });
    let gateway = Gateway::start(&everything_to(&format!("\"http://{}\"", up.address()), "timeout = \"400ms\""));
    let mut client = gateway.client();
    let asked = Instant::now();
    client.get("/").expect_problem(504);
    let waited = asked.elapsed();
    assert!((Duration::from_millis(390)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
}

#[test]
fn a_body_may_take_longer_to_send_than_an_upstream_to_answer() {
    let up = Upstream::start(|received| reply(200, &received.body.len().to_string()));
    let gateway = Gateway::start(&everything_to(&format!("\"http://{}\"", up.address()), "timeout = \"4s\""));
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(900));
        client.send("x");
    }
    assert_eq!(client.response(false).text(), "5");
}

#[test]
fn a_client_that_stops_in_the_middle_of_its_body_is_408() {
    let up = Upstream::start(|_| reply(200, "ok"));
    let gateway = Gateway::with_server("body_timeout = \"400ms\"", &up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nxx");
    client.response(false).expect_problem(408);
}

#[test]
fn a_response_may_take_longer_than_its_head() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(1100));
            let _ = wire.write(b"x");
        }
    });
    let gateway = Gateway::start(&everything_to(&format!("\"http://{}\"", up.address()), "timeout = \"4s\""));
    assert_eq!(gateway.client().get("/").text(), "xxxx");
}

#[test]
fn an_upstream_that_answers_garbage_is_502() {
    let garbage: &[&[u8]] = &[
        b"",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/3.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Cut: in the middle",
    ];
    for bytes in garbage {
        let up = Upstream::raw(|mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(bytes);
        });
        let gateway = Gateway::start(&up.everything());
        let mut client = gateway.client();
        let response = client.get("/");
        assert_eq!(response.status, 502, "{:?}", String::from_utf8_lossy(bytes));
        response.expect_problem(502);
    }
}

#[test]
fn a_response_with_both_framings_is_not_forwarded_with_both() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".to_vec()
    });
    let gateway = Gateway::start(&up.everything());
    let (response, framing) = {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_head().unwrap()
    };
    assert!(response.status == 502 || framing == Framing::Chunked, "{response:?}");
}

#[test]
fn an_endless_head_is_502() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\n");
        while wire.write(format!("X-Filler: {}\r\n", "x".repeat(4000)).as_bytes()).is_ok() {}
    });
    let gateway = Gateway::start(&up.everything());
    let before = gateway.memory("VmRSS");
    gateway.client().get("/").expect_problem(502);
    assert!(gateway.memory("VmHWM") - before < 32 << 20);
}

#[test]
fn a_body_that_is_cut_off_is_not_ended_cleanly() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe beginning"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbe",
    ] {
        let up = Upstream::raw(|mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(answer);
        });
        let gateway = Gateway::start(&up.everything());
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match client.try_response(false) {
            Ok(response) => assert_eq!(response.status, 502, "a clean end: {response:?}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}"),
        }
    }
}

#[test]
fn a_client_that_goes_away_in_the_middle_is_recorded_as_abandoned() {
    for framing in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let up = Upstream::raw(move |mut wire, _| {
            if let Ok(Some((_, headers))) = wire.head() {
                let framing = headers.framing(Framing::Length(0)).unwrap();
                tell.lock().unwrap().send(None).unwrap();
                let whole = wire.body(framing, &mut |_| ()).is_ok();
                tell.lock().unwrap().send(Some(whole)).unwrap();
                let _ = wire.write(&reply(200, ""));
            }
        });
        let gateway = Gateway::start(&up.everything());
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n5\r\nbegin\r\n"));
        let bound = Duration::from_secs(10);
        assert_eq!(told.recv_timeout(bound).unwrap(), None);
        drop(client);
        assert_eq!(told.recv_timeout(bound).unwrap(), Some(false), "{framing}");
    }
}

#[test]
fn a_client_that_goes_away_frees_the_upstream() {
    let gone = Arc::new(Mutex::new(false));
    let flag = Arc::clone(&gone);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        // The upstream does not answer, and waits for the end of the connection.
        let (_, closed) = wire.rest();
        *flag.lock().unwrap() = closed;
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    up.wait_connections(1);
    drop(client);
    until("the upstream sees the end", Duration::from_secs(10), || *gone.lock().unwrap());
}
