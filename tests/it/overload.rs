//! Servers with their maximum of requests: further ones get 503 at once, or wait for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream, reply, until};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a request when the test says so.
fn holding() -> (Upstream, Sender<()>) {
    let (go, held): (_, Receiver<()>) = channel();
    let held = Arc::new(Mutex::new(held));
    let up = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(_)) = wire.head() {
            if held.lock().unwrap().recv().is_err() || wire.write(&reply(200, "ok")).is_err() {
                break;
            }
        }
    });
    (up, go)
}

fn config(up: &Upstream, more: &str) -> String {
    format!("{}{more}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", up.section())
}

fn gateway(up: &Upstream, more: &str) -> Gateway {
    Gateway::start(&config(up, more))
}

/// `count` requests that the server has not answered.
fn in_flight(gateway: &Gateway, count: usize) -> Vec<Client> {
    let mut clients: Vec<_> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(ASK));
    #[expect(clippy::cast_precision_loss, reason = "they are few")]
    let all = Some(count as f64);
    until("they are in flight", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == all);
    clients
}

#[test]
fn more_than_max_in_flight_are_503_at_once() {
    let (up, go) = holding();
    let gateway = gateway(&up, "max_in_flight = 2");
    let mut busy = in_flight(&gateway, 2);
    let response = gateway.client().get("/");
    response.expect_problem(503);
    assert_eq!(response.headers.must("retry-after"), "1");
    go.send(()).unwrap();
    go.send(()).unwrap();
    busy.iter_mut().for_each(|client| assert_eq!(client.response(false).status, 200));
    go.send(()).unwrap();
    assert_eq!(gateway.client().get("/").status, 200);
    assert_eq!(gateway.metric("gateway_upstream_server_in_flight"), Some(0.0));
    let line = gateway.wait_log("the refusal", |line| line["status"] == 503);
    assert_eq!((line["outcome"].as_str(), line["reason"].as_str()), (Some("failed"), Some("max_in_flight")));
}

#[test]
fn requests_that_limits_refuse_do_not_hide_that_servers_are_full() {
    let (up, _go) = holding();
    let limited = "[limits.one]\nkey = \"global\"\nrates = [\"1/h\"]\n\
                   [[routes]]\npath = \"/limited\"\nupstream = \"up\"\nlimits = [\"one\"]\n";
    let rest = config(&up, &format!("max_in_flight = 1\n{limited}"));
    let gateway = Gateway::with_server("shed = { latency = \"1h\" }", &rest);
    let mut busy = gateway.client();
    busy.send("GET /limited HTTP/1.1\r\nHost: a\r\n\r\n");
    until("it is in flight", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == Some(1.0));
    let mut client = gateway.client();
    assert_eq!([client.get("/limited").status, client.get("/").status], [429, 503]);
    until("requests are shed because the server is full", PATIENCE, || {
        (0..50).for_each(|_| _ = client.get("/limited"));
        client.get("/");
        gateway.log().iter().any(|line| line.contains("shedding begins"))
    });
}

#[test]
fn requests_wait_in_a_short_queue_if_configured() {
    let (up, go) = holding();
    let gateway = gateway(&up, "max_in_flight = 1\nmax_waiting = 2\nmax_wait = \"20s\"");
    let mut busy = in_flight(&gateway, 1);
    let mut waiting: Vec<_> = (0..2).map(|_| gateway.client()).collect();
    for (count, client) in waiting.iter_mut().enumerate() {
        client.send(ASK);
        #[expect(clippy::cast_precision_loss, reason = "they are few")]
        until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some((count + 1) as f64));
    }
    gateway.client().get("/").expect_problem(503);
    for client in busy.iter_mut().chain(&mut waiting) {
        go.send(()).unwrap();
        assert_eq!(client.response(false).text(), "ok", "in the order in which they came");
    }
    assert_eq!(gateway.metric("gateway_upstream_requests_waiting"), Some(0.0));
}

#[test]
fn a_request_waits_no_longer_than_configured() {
    let (up, go) = holding();
    let gateway = gateway(&up, "max_in_flight = 1\nmax_waiting = 9\nmax_wait = \"300ms\"");
    let _busy = in_flight(&gateway, 1);
    let begun = Instant::now();
    gateway.client().get("/").expect_problem(503);
    let waited = begun.elapsed();
    assert!((Duration::from_millis(290)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    drop(go);
}

#[test]
fn a_client_that_goes_away_frees_its_place_and_the_server() {
    let (up, go) = holding();
    let gateway = gateway(&up, "max_in_flight = 1\nmax_waiting = 9\nmax_wait = \"20s\"");
    let busy = in_flight(&gateway, 1);
    let mut waiting = gateway.client();
    waiting.send(ASK);
    let mut leaves = gateway.client();
    leaves.send(ASK);
    until("both wait", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(2.0));
    drop(leaves);
    until("one waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(1.0));
    drop(busy);
    until("none waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(0.0));
    // The server reads the request that waited on another connection, and may answer the first one, which nobody reads.
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(waiting.response(false).text(), "ok");
}

#[test]
fn a_response_is_in_flight_until_its_end() {
    let (tell, told) = channel::<()>();
    let told = Mutex::new(told);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na");
        let _ = told.lock().unwrap().recv();
        let _ = wire.write(b"b");
    });
    let gateway = gateway(&up, "max_in_flight = 1");
    let mut client = gateway.client();
    client.send(ASK);
    let (response, framing) = client.try_head().unwrap();
    assert_eq!((response.status, framing), (200, crate::harness::Framing::Length(2)));
    gateway.client().get("/").expect_problem(503);
    tell.send(()).unwrap();
    until("it has ended", PATIENCE, || gateway.metric("gateway_upstream_server_in_flight") == Some(0.0));
}

/// Answers with the path when the test says so, and reports each path it gets. Answers checks at once.
fn naming() -> (Upstream, Sender<()>, Receiver<String>) {
    let (go, held): (_, Receiver<()>) = channel();
    let (tell, told) = channel();
    let shared = Mutex::new((held, tell));
    let up = Upstream::start(move |request| {
        if request.target != "/health" {
            let shared = shared.lock().unwrap();
            let _ = shared.1.send(request.target.clone());
            let _ = shared.0.recv();
        }
        reply(200, &request.target)
    });
    (up, go, told)
}

fn ask(gateway: &Gateway, path: &str) -> Client {
    let mut client = gateway.client();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

#[test]
fn those_that_wait_are_overtaken_by_nobody() {
    const WAITING: usize = 12;
    let (up, go, told) = naming();
    let gateway = gateway(&up, "max_in_flight = 1\nmax_waiting = 999\nmax_wait = \"60s\"");
    let _busy = ask(&gateway, "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    let mut waiting = Vec::new();
    for number in 0..WAITING {
        waiting.push(ask(&gateway, &format!("/{number}")));
        #[expect(clippy::cast_precision_loss, reason = "they are few")]
        let all = Some(waiting.len() as f64);
        until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == all);
    }
    // Others come all the time, on all workers.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut late = Vec::new();
                while !is_over.load(Ordering::SeqCst) && late.len() < 200 {
                    late.push(ask(&gateway, "/late"));
                }
            });
        }
        let order: Vec<_> = (0..WAITING)
            .map(|_| {
                go.send(()).unwrap();
                told.recv_timeout(PATIENCE)
            })
            .collect();
        is_over.store(true, Ordering::SeqCst);
        let expected: Vec<_> = (0..WAITING).map(|number| Ok(format!("/{number}"))).collect();
        assert_eq!(order, expected);
    });
}

#[test]
fn a_request_that_began_before_waiting_was_allowed_makes_room_too() {
    let (up, go, told) = naming();
    let gateway = gateway(&up, "max_in_flight = 1");
    let mut busy = ask(&gateway, "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    gateway.reload_and_wait("", &config(&up, "max_in_flight = 1\nmax_waiting = 1\nmax_wait = \"60s\""));
    let mut waiting = ask(&gateway, "/second");
    until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(1.0));
    go.send(()).unwrap();
    assert_eq!(busy.response(false).text(), "/first");
    assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok("/second"), "it is woken");
    go.send(()).unwrap();
    assert_eq!(waiting.response(false).text(), "/second");
}

#[test]
fn nobody_waits_behind_requests_that_a_former_configuration_keeps_waiting() {
    let (busy_server, go, told) = naming();
    let idle_server = Upstream::start(|_| reply(200, "new"));
    let waiting = "max_in_flight = 1\nmax_waiting = 10\nmax_wait = \"120s\"";
    let gateway = gateway(&busy_server, waiting);
    let mut first = ask(&gateway, "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    let mut second = ask(&gateway, "/second");
    until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(1.0));
    gateway.reload_and_wait("", &config(&idle_server, waiting));
    assert_eq!(gateway.client().get("/new").text(), "new");
    assert_eq!(gateway.metric("gateway_upstream_requests_waiting"), Some(1.0), "the other one waits still");
    for (client, path) in [(&mut first, "/first"), (&mut second, "/second")] {
        go.send(()).unwrap();
        assert_eq!(client.response(false).text(), path);
    }
}

#[test]
fn a_request_that_waits_is_sent_to_a_server_that_returns() {
    let (busy_server, go, told) = naming();
    let is_well = Arc::new(AtomicBool::new(false));
    let answers = is_well.clone();
    let returning = Upstream::start(move |_| reply(if answers.load(Ordering::SeqCst) { 200 } else { 500 }, "returned"));
    let servers = format!("servers = [\"http://{}\", \"http://{}\"]", busy_server.address(), returning.address());
    let waiting = "max_in_flight = 1\nmax_waiting = 10\nmax_wait = \"120s\"";
    let health = "health = { path = \"/health\", interval = \"1s\", timeout = \"20s\", unhealthy_after = 1 }";
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(&format!("[upstreams.up]\n{servers}\n{waiting}\n{health}\n{route}"));
    gateway.wait_log("the failed check", |line| line["message"] == "a server gets no requests");
    gateway.wait_log("the good check", |line| line["message"] == "a server gets requests");
    let mut first = ask(&gateway, "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    let mut second = ask(&gateway, "/second");
    until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(1.0));
    is_well.store(true, Ordering::SeqCst);
    assert_eq!(second.response(false).text(), "returned", "although no request has ended");
    go.send(()).unwrap();
    assert_eq!(first.response(false).text(), "/first");
}

#[test]
fn the_time_that_a_request_waits_is_no_latency_of_the_server() {
    let (up, go, told) = naming();
    let gateway = gateway(&up, "max_in_flight = 1\nmax_waiting = 1\nmax_wait = \"60s\"");
    let mut first = ask(&gateway, "/first");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "/first");
    let mut second = ask(&gateway, "/second");
    until("it waits", PATIENCE, || gateway.metric("gateway_upstream_requests_waiting") == Some(1.0));
    let since = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let waited = since.elapsed();
    for client in [&mut first, &mut second] {
        go.send(()).unwrap();
        assert_eq!(client.response(false).status, 200);
    }
    let line = gateway.wait_log("the request", |line| line["path"] == "/second");
    let micros = |name: &str| line[name].as_u64().unwrap();
    assert!(u128::from(micros("micros") - micros("upstream_micros")) >= waited.as_micros(), "{waited:?}: {line}");
}
