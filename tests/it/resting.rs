//! Idle connections take little memory, and serve requests again.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Gateway, limited, until};

const CONNECTIONS: u64 = 400;

/// The state and the buffers of the library take some 10 KB, and three times as much in a test build.
const MOST_BYTES_AT_REST: u64 = 4 * 1024;

#[test]
fn an_idle_connection_takes_little_memory_and_serves_again() {
    let mut gateway = Gateway::with_server("workers = 1", &limited("client-ip", "1000000/d", ""));
    // The first request creates what all connections share.
    assert_eq!(gateway.client().get("/").status, 200);
    let before = gateway.memory("VmRSS");
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| gateway.client()).collect();
    let ask = |clients: &mut Vec<Client>| {
        for client in clients {
            assert_eq!(client.get("/").status, 200);
        }
    };
    let taken = || gateway.memory("VmRSS").saturating_sub(before) / CONNECTIONS;
    for _ in 0..2 {
        ask(&mut clients);
        until("all rest", Duration::from_secs(15), || taken() < MOST_BYTES_AT_REST);
    }
    // When the gateway stops, connections that have rested are served like others.
    let (told, rest) = clients.split_at_mut(1);
    told[0].send("GET /a HTTP/1.1\r\nHost: a\r\n");
    until("its head has begun to come", Duration::from_secs(20), || gateway.admin("/healthz").status == 200);
    gateway.signal(Signal::TERM);
    for client in rest.iter_mut() {
        assert!(client.try_response(false).is_err(), "it was idle");
    }
    told[0].send("\r\n");
    assert_eq!(told[0].response(false).status, 200);
    let asked = Instant::now();
    assert_eq!(gateway.wait_exit().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_silent_connection_takes_little_memory_from_the_start() {
    let gateway = Gateway::with_server("workers = 1", &limited("client-ip", "1000000/d", ""));
    assert_eq!(gateway.client().get("/").status, 200);
    let before = gateway.memory("VmRSS");
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| gateway.client()).collect();
    let connections = || gateway.metric("gateway_connections").unwrap_or_default();
    until("all are accepted", Duration::from_secs(10), || connections() >= 400.0);
    let taken = || gateway.memory("VmRSS").saturating_sub(before) / CONNECTIONS;
    until("they take little", Duration::from_secs(15), || taken() < MOST_BYTES_AT_REST);
    drop(clients);
}
