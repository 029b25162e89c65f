//! Every wait for an upstream has a time limit, and the log and the metrics name its reason.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Gateway, Upstream, Wire, closed_port, reply, until};

const BOUND: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_millis(500);

/// An upstream with these keys, a route to it, and a limit of one request in flight.
fn one_at_a_time(up: &Upstream, keys: &str) -> String {
    let limit = "[limits.one]\nkey = \"global\"\nmax_in_flight = 1\n";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"one\"]\n";
    format!("{}{keys}\n{limit}{route}", up.section())
}

/// Passes the first connection to `first`, and reports when the gateway has closed it. Other connections get answers.
fn first_then_well(first: impl Fn(&mut Wire) + Send + Sync + 'static) -> (Upstream, Receiver<()>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire, number| {
        if number > 0 {
            while let Ok(Some(_)) = wire.head() {
                let _ = wire.write(&reply(200, "well"));
            }
            return;
        }
        first(&mut wire);
        if wire.rest().1 {
            let _ = tell.lock().unwrap().send(());
        }
    });
    (up, told)
}

#[track_caller]
fn request_line(gateway: &Gateway) -> Value {
    gateway.wait_message("request")
}

#[track_caller]
fn expect_end(gateway: &Gateway, outcome: &str, reason: &str) {
    let line = request_line(gateway);
    assert_eq!((&line["outcome"], &line["reason"]), (&outcome.into(), &reason.into()), "{line}");
    let sample = format!("gateway_request_failures_total{{route=\"/*\",reason=\"{reason}\"}} 1");
    until(&sample, BOUND, || gateway.admin("/metrics").text().lines().any(|line| line == sample));
}

/// Sends `request` and reads until the gateway closes the connection. This must happen in time and without a complete
/// response, and everything must be free afterwards.
#[track_caller]
fn expect_cut(gateway: &Gateway, upstream_ends: &Receiver<()>, request: &str, outcome: &str, reason: &str) {
    let mut client = gateway.client();
    let begun = Instant::now();
    client.send(request);
    let error = client.try_response(false).expect_err("a clean end");
    let took = begun.elapsed();
    assert!(took >= LIMIT * 9 / 10 && took < Duration::from_secs(19), "{took:?}: {error}");
    upstream_ends.recv_timeout(BOUND).expect("the upstream's connection stays open");
    expect_end(gateway, outcome, reason);
    assert_eq!(gateway.client().get("/").text(), "well", "its place is still taken");
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn an_upstream_that_stops_in_the_middle_of_a_body_is_disconnected() {
    for begun in [
        "Content-Length: 10\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        "Connection: close\r\n\r\nhalf",
    ] {
        let (up, ends) = first_then_well(move |wire| {
            let _ = wire.head();
            let _ = wire.write(format!("HTTP/1.1 200 OK\r\n{begun}").as_bytes());
        });
        let gateway = Gateway::start(&one_at_a_time(&up, "read_timeout = \"500ms\""));
        expect_cut(&gateway, &ends, GET, "failed", "read_timeout");
        assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(1.0));
        let line = gateway.wait_message("upstream failed");
        assert_eq!(line["server"], up.address().to_string(), "{line}");
    }
}

#[test]
fn bytes_that_are_not_part_of_a_body_do_not_prolong_its_time() {
    let (up, ends) = first_then_well(|wire| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n4;");
        while wire.write(b"x").is_ok() {
            thread::sleep(LIMIT / 5);
        }
    });
    let gateway = Gateway::start(&one_at_a_time(&up, "read_timeout = \"500ms\""));
    expect_cut(&gateway, &ends, GET, "failed", "read_timeout");
}

#[test]
fn a_body_may_take_longer_than_the_time_between_two_pieces() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(600));
            let _ = wire.write(b"x");
        }
    });
    let gateway = Gateway::start(&one_at_a_time(&up, "read_timeout = \"4s\""));
    assert_eq!(gateway.client().get("/").text(), "xxxxxxxx");
}

/// More than the sockets buffer.
const LENGTH: usize = 64 << 20;

#[test]
fn the_time_that_a_client_takes_to_read_does_not_count_for_the_upstream() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
        let _ = wire.write(&vec![b'x'; LENGTH]);
    });
    let gateway = Gateway::start(&one_at_a_time(&up, "read_timeout = \"4s\""));
    let mut client = gateway.client();
    client.send(GET);
    thread::sleep(Duration::from_secs(5));
    assert_eq!(client.response(false).body.len(), LENGTH);
}

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nthe beginning";

#[test]
fn an_upload_that_stops_after_the_response_has_begun_is_ended() {
    let (up, ends) = first_then_well(move |wire| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
    });
    // The response must begin before this time is over.
    let gateway = Gateway::with_server("body_timeout = \"3s\"", &one_at_a_time(&up, ""));
    expect_cut(&gateway, &ends, UPLOAD, "abandoned", "body_timeout");
    assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(0.0));
}

#[test]
fn what_is_silent_on_both_sides_has_the_limit_of_the_upstream_if_the_client_has_none() {
    let (up, ends) = first_then_well(move |wire| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
    });
    let own = "body_timeout = \"0\"\n";
    let config = one_at_a_time(&up, "read_timeout = \"500ms\"").replace("[[routes]]\n", &format!("[[routes]]\n{own}"));
    let gateway = Gateway::with_server("body_timeout = \"100ms\"", &config);
    expect_cut(&gateway, &ends, UPLOAD, "failed", "read_timeout");
}

#[test]
fn an_upload_that_stops_before_the_response_is_408_and_frees_the_upstream() {
    let (up, ends) = first_then_well(|_| ());
    let gateway = Gateway::with_server("body_timeout = \"2s\"", &one_at_a_time(&up, "timeout = \"1s\""));
    let mut client = gateway.client();
    client.send(UPLOAD);
    client.response(false).expect_problem(408);
    client.closed();
    ends.recv_timeout(BOUND).expect("the upstream's connection stays open");
    expect_end(&gateway, "refused", "body_timeout");
    assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(0.0));
    assert_eq!(gateway.client().get("/").text(), "well");
}

#[test]
fn an_upstream_that_stops_reading_a_body_is_disconnected() {
    let (tell, told) = channel();
    let (tell, told) = (Mutex::new(tell), Mutex::new(told));
    // The upstream does not read until the test is over.
    let up = Upstream::raw(move |mut wire, number| {
        let _ = wire.head();
        if number == 0 {
            let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
            let _ = told.lock().unwrap().recv();
        } else {
            let _ = wire.write(&reply(200, "well"));
        }
    });
    let gateway = Gateway::start(&one_at_a_time(&up, "read_timeout = \"500ms\""));
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n");
    let mut writing = Wire::new(client.wire.stream().try_clone().unwrap());
    let piece = vec![b'x'; 65_536];
    let writer = thread::spawn(move || while writing.write(&piece).is_ok() {});
    client.try_response(false).expect_err("a clean end");
    expect_end(&gateway, "failed", "read_timeout");
    writer.join().unwrap();
    assert_eq!(gateway.client().get("/").text(), "well");
    tell.lock().unwrap().send(()).unwrap();
}

#[test]
fn many_failures_are_one_line_a_second() {
    const REQUESTS: u64 = 200;
    let (_held, address) = closed_port();
    let away = format!("[upstreams.away]\nservers = [\"http://{address}\"]\n");
    let gateway = Gateway::start(&format!("{away}[[routes]]\npath = \"/*\"\nupstream = \"away\"\n"));
    let begun = Instant::now();
    let mut client = gateway.client();
    (0..REQUESTS).for_each(|_| client.get("/").expect_problem(502));
    let lines = || -> Vec<Value> {
        let log = gateway.log();
        let lines = log.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == "upstream failed").collect()
    };
    let told = |lines: &[Value]| lines.iter().map(|line| line["failures"].as_u64().unwrap()).sum::<u64>();
    until("all are told of", BOUND, || told(&lines()) == REQUESTS);
    let (lines, seconds) = (lines(), begun.elapsed().as_secs());
    assert!(lines.len() as u64 <= seconds + 2, "{lines:#?}");
    assert!(lines.iter().all(|line| line["upstream"] == "away" && line["reason"] == "connect"), "{lines:#?}");
    let sample = format!("gateway_upstream_failures_total{{upstream=\"away\",reason=\"connect\"}} {REQUESTS}");
    assert!(gateway.admin("/metrics").text().contains(&sample));
}
