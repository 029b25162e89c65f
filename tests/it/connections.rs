//! The limits on connections, in total and for one address.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::http2::{RawHttp2, Reaction, get};
use crate::harness::{Client, Gateway, Upstream, limited, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
/// The shortest time limit sets the interval at which idle time is measured: 10 ms here.
const TICKS: &str = "body_timeout = \"80ms\"";
const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Answers each request when the test says so.
fn held_back() -> (Upstream, Sender<()>) {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let up = Upstream::raw(move |mut wire, _| {
        // One request for each connection, so connections are requests.
        if let Ok(Some(_)) = wire.head() {
            let _ = released.lock().unwrap().recv();
            let _ = wire.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nreleased");
        }
    });
    (up, release)
}

/// Whether a byte or the end comes on the connection within this time.
fn hears(client: &Client, within: Duration) -> bool {
    let stream = client.wire.stream();
    stream.set_read_timeout(Some(within)).unwrap();
    let heard = stream.peek(&mut [0]).is_ok();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    heard
}

fn from(gateway: &Gateway, last: u8) -> Client {
    Client::connect_from(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), gateway.http)
}

#[test]
fn the_longest_idle_connection_is_closed_for_a_new_one() {
    let server = format!("workers = 1\nmax_connections = 3\n{TICKS}");
    let gateway = Gateway::with_server(&server, FIXED);
    let mut clients = [(); 3].map(|()| {
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        sleep(Duration::from_millis(300));
        client
    });
    // The first one has sent a request in the meantime.
    assert_eq!(clients[0].get("/").status, 200);
    assert_eq!(gateway.client().get("/").status, 200);
    assert!(clients[1].closed().is_empty());
    assert_eq!(clients[0].get("/").status, 200);
    assert_eq!(clients[2].get("/").status, 200);
    assert_eq!(gateway.metric("gateway_connections_evicted_total"), Some(1.0));
}

#[test]
fn connections_without_a_request_are_closed_for_new_ones_too() {
    let gateway = Gateway::with_server("max_connections = 4", FIXED);
    let _silent: Vec<_> = (0..50).map(|_| gateway.client()).collect();
    assert_eq!(gateway.client().get("/").status, 200);
    until("all but four are closed", Duration::from_secs(9), || {
        gateway.metric("gateway_connections_evicted_total").is_some_and(|closed| closed >= 46.0)
    });
}

#[test]
fn without_idle_connections_new_ones_wait() {
    let (up, release) = held_back();
    let gateway = Gateway::with_server("max_connections = 2", &up.everything());
    let mut busy = [(); 2].map(|()| {
        let mut client = gateway.client();
        client.send(ASK);
        client
    });
    up.wait_connections(2);
    let mut waiting = gateway.client();
    waiting.send(ASK);
    assert!(!hears(&waiting, Duration::from_millis(300)), "there is no room for it");
    assert_eq!(up.connections(), 2);
    release.send(()).unwrap();
    up.wait_connections(3);
    release.send(()).unwrap();
    release.send(()).unwrap();
    for client in busy.iter_mut().chain([&mut waiting]) {
        assert_eq!(client.response(false).text(), "released");
    }
    assert_eq!(gateway.metric("gateway_connections_max"), Some(2.0));
}

#[test]
fn max_connections_is_shared_by_all_workers() {
    let gateway = Gateway::with_server("workers = 4\nmax_connections = 6", FIXED);
    let mut clients = Vec::new();
    for number in 0..60 {
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200, "connection {number}");
        clients.push(client);
        assert!(gateway.metric("gateway_connections").unwrap() <= 6.0, "after {number}");
    }
    assert_eq!(gateway.metric("gateway_connections_evicted_total"), Some(54.0));
    // All remaining connections are served, and no others.
    let open = || clients.iter().filter(|client| !hears(client, Duration::from_millis(20))).count();
    until("the others are closed", Duration::from_secs(20), || open() == 6);
}

#[test]
fn one_connection_ends_for_one_even_if_it_takes_its_time() {
    const ALL: usize = 20;
    let gateway = Gateway::with_server(&format!("workers = 1\nmax_connections = {ALL}"), FIXED);
    let mut idle: Vec<_> = (0..ALL).map(|_| RawHttp2::connect(gateway.http, &[])).collect();
    for client in &mut idle {
        client.send(&get(1, "/")).unwrap();
        assert_eq!(client.reaction(1), Reaction::Status(200));
    }
    // Their clients do not close them when the gateway announces the end.
    assert_eq!(gateway.client().get("/").status, 200);
    let evicted = gateway.metric("gateway_connections_evicted_total").unwrap();
    // A second one is asked only if the first takes too long.
    assert!((1.0..=2.0).contains(&evicted), "{evicted}");
    let last = idle.last_mut().unwrap();
    last.send(&get(3, "/")).unwrap();
    assert_eq!(last.reaction(3), Reaction::Status(200));
}

#[test]
fn clients_leave_file_handles_for_probes_whatever_max_connections_is() {
    let rest = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_handles(150, "workers = 1\nmax_connections = 1000\nheader_timeout = \"60s\"", rest);
    let line = gateway.wait_message("there are too few file handles for max_connections");
    // 150 handles less 74 for other things: half for clients.
    assert_eq!((&line["max_connections"], &line["enough_for"]), (&1000.into(), &38.into()));
    assert_eq!(gateway.metric("gateway_connections_max"), Some(38.0));
    let connect = |_| {
        let mut client = gateway.client();
        client.send("GET / HT");
        client
    };
    let clients: Vec<_> = (0..300).map(connect).collect();
    until("all places are taken", Duration::from_secs(20), || gateway.metric("gateway_connections") == Some(38.0));
    assert_eq!(gateway.admin("/healthz").status, 200);
    gateway.reload_and_wait("workers = 1\nmax_connections = 1001\nheader_timeout = \"60s\"", rest);
    gateway.wait_log("a warning of the new number", |line| line["max_connections"] == 1001);
    assert!(!gateway.log().iter().any(|line| line.contains("cannot accept connections")));
    drop(clients);
}

#[test]
fn a_reload_raises_max_connections() {
    let (up, release) = held_back();
    let gateway = Gateway::with_server("max_connections = 1", &up.everything());
    let mut busy = gateway.client();
    busy.send(ASK);
    up.wait_connections(1);
    let mut waiting = gateway.client();
    waiting.send(ASK);
    assert!(!hears(&waiting, Duration::from_millis(300)));
    gateway.reload("max_connections = 2", &up.everything());
    up.wait_connections(2);
    release.send(()).unwrap();
    release.send(()).unwrap();
    for client in [&mut busy, &mut waiting] {
        assert_eq!(client.response(false).text(), "released");
    }
}

#[test]
fn a_waiting_connection_does_not_delay_the_stop() {
    let (up, _never) = held_back();
    let mut gateway = Gateway::with_server("max_connections = 1\ndrain_timeout = \"200ms\"", &up.everything());
    let mut busy = gateway.client();
    busy.send(ASK);
    up.wait_connections(1);
    let mut waiting = gateway.client();
    waiting.send(ASK);
    sleep(Duration::from_millis(50));
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    assert!(!waiting.closed().starts_with(b"HTTP/1.1 200"));
}

#[test]
fn connections_per_address_are_limited() {
    let server = "workers = 2\nmax_connections_per_ip = 2";
    let gateway = Gateway::with_server(server, FIXED);
    let mut allowed = [(); 2].map(|()| from(&gateway, 2));
    assert!(allowed.iter_mut().all(|client| client.get("/").status == 200));
    let begun = Instant::now();
    for _ in 0..20 {
        assert!(from(&gateway, 2).closed().is_empty(), "without a word");
    }
    assert_eq!(from(&gateway, 3).get("/").status, 200, "another address");
    let line = gateway.wait_message("closed connections over max_connections_per_ip");
    assert_eq!((&line["peer"], &line["most"]), (&"127.0.0.2".into(), &2.into()), "{line}");
    let lines = gateway.log().iter().filter(|line| line.contains("max_connections_per_ip")).count();
    assert!(lines as u64 <= 2 + begun.elapsed().as_secs(), "{lines} lines in {:?}", begun.elapsed());
    assert_eq!(gateway.metric("gateway_connections_refused_total"), Some(20.0));
    let [one, mut other] = allowed;
    drop(one);
    until("its place is free", Duration::from_secs(20), || {
        let mut client = from(&gateway, 2);
        client.wire.write(ASK.as_bytes()).is_ok() && client.try_response(false).is_ok()
    });
    assert_eq!(other.get("/").status, 200);
}

#[test]
fn connections_of_a_trusted_proxy_are_not_limited() {
    let server = "max_connections_per_ip = 1\ntrusted_proxies = [\"127.0.0.9\"]";
    let gateway = Gateway::with_server(server, FIXED);
    let mut trusted = [(); 10].map(|()| from(&gateway, 9));
    assert!(trusted.iter_mut().all(|client| client.get("/").status == 200));
    // A connection that was trusted when it came is not counted either.
    gateway.reload("max_connections_per_ip = 1", FIXED);
    gateway.wait_message("reloaded");
    let mut first = from(&gateway, 9);
    assert_eq!(first.get("/").status, 200);
    assert!(from(&gateway, 9).closed().is_empty());
    drop(trusted);
    assert_eq!(first.get("/").status, 200);
}

#[test]
fn auto_allows_as_many_as_there_are_file_handles_for() {
    let gateway = Gateway::with_handles(100, "", FIXED);
    let most = gateway.metric("gateway_connections_max").unwrap();
    assert!((5.0..40.0).contains(&most), "{most} for 100 handles");
    let mut clients = Vec::new();
    for number in 0..300 {
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200, "connection {number}");
        clients.push(client);
    }
    assert_eq!(gateway.metric("gateway_accept_failures_total"), Some(0.0));
}

fn cpu(gateway: &Gateway) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid().as_raw_nonzero())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // utime and stime, in hundredths of a second.
    Duration::from_millis(fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
}

#[test]
fn keep_alive_probes_are_sent_to_silent_clients() {
    let gateway = Gateway::start(FIXED);
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let ours = client.wire.stream().local_addr().unwrap().port();
    let (local, remote) = (format!(":{:04X}", gateway.http.port()), format!(":{ours:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row[1].ends_with(&local) && row[2].ends_with(&remote));
    // The kind of the running timer: 02 is keep-alive.
    let timer = row.expect("the connection")[5].to_owned();
    assert!(timer.starts_with("02:"), "{timer}");
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn exhausted_file_handles_are_logged_once_a_second() {
        let (up, release) = held_back();
        let rest = limited("global", "1000/d", "max_in_flight = 100") + &up.section();
        let rest = rest.replace("respond = { status = 200 }", "upstream = \"up\"");
        let gateway = Gateway::with_handles(1000, "workers = 1", &rest);
        gateway.lower_handles(70);
        let begun = Instant::now();
        let mut clients: Vec<_> = (0..100).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send(ASK));
        gateway.wait_message("cannot accept connections");
        let since = Instant::now();
        let before = cpu(&gateway);
        sleep(Duration::from_secs(3));
        let lines = gateway.log().iter().filter(|line| line.contains("cannot accept connections")).count();
        assert!(lines as u64 <= 3 + begun.elapsed().as_secs(), "{lines} lines in {:?}", begun.elapsed());
        let (used, waited) = (cpu(&gateway).saturating_sub(before), since.elapsed());
        assert!(used < waited / 3, "{used:?} of processor time to wait for {waited:?}");
        // A connection that ends frees its place.
        clients.drain(..90);
        for _ in 0..200 {
            release.send(()).unwrap();
        }
        for client in &mut clients {
            assert!([200, 503].contains(&client.response(false).status));
        }
        drop(clients);
        until("it serves as ever", Duration::from_secs(10), || {
            let mut client = gateway.client();
            client.wire.write(ASK.as_bytes()).is_ok()
                && client.try_response(false).is_ok_and(|answer| answer.status == 200)
        });
    }
}
