//! Claims of the page about configurations without an equal peer: systems do not have Envoy, Traefik, Kong and Caddy with its
//! module, and we have no tarpit. The numbers are those of the page.

use std::time::{Duration, Instant};

use super::servers::{gateway, haproxy};
use super::traffic::{Bucket, SlidingWindow, burst_then, last_multiple, passed, repeat, request, send};
use super::{CLIENT, GatedUpstream, OTHER, answering, begin_with, millis};
use crate::harness::align;

fn burst(count: usize) -> Vec<Duration> {
    vec![Duration::ZERO; count]
}

#[test]
fn envoys_local_rate_limit() {
    let upstream = answering();
    let gateway = gateway("envoy-local", &upstream);
    let begun = Instant::now();
    let mut exchanges = send(gateway.http, CLIENT, begun, &burst(60));
    // All clients share the bucket.
    exchanges.extend(send(gateway.http, OTHER, begun, &burst_then(60, millis(25), millis(1500))));
    Bucket { rate: 10.0, capacity: 100.0 }.expect("gateway", &exchanges);
    assert!(passed(&exchanges) >= 100, "{}", passed(&exchanges));
}

#[test]
fn envoys_global_rate_limit() {
    let upstream = answering();
    let gateway = gateway("envoy-global", &upstream);
    align(Duration::from_mins(1), Duration::from_secs(15));
    let begun = Instant::now();
    // `quota` requests of a client pass, and the others get this status.
    let expect = |client: &str, fields: &str, quota: usize, status: u16| {
        let exchanges = repeat(gateway.http, client, &request("GET", "/", fields), begun, &burst(quota + 6));
        // In the next minute there would be room again.
        if begun.elapsed() < Duration::from_secs(10) {
            assert_eq!((passed(&exchanges), exchanges[quota].response.status), (quota, status), "{client}");
        }
    };
    expect("198.51.100.1", "x-api-key: a\r\n", 5, 429);
    expect("198.51.100.2", "x-api-key: partner-7\r\n", 10, 429);
    // It has only the limit of its address.
    expect("198.51.100.3", "x-api-key: monitoring\r\n", 15, 429);
    expect("198.51.100.4", "", 15, 429);
    expect("198.51.100.5", "x-api-key: stolen\r\n", 0, 403);
    // The six requests over the limit of the other key were not charged to the address: 5 + 6 + 5 would be more than 15.
    expect("198.51.100.1", "x-api-key: b\r\n", 5, 429);
}

#[test]
fn traefiks_rate_limit() {
    let upstream = answering();
    let gateway = gateway("traefik-rate", &upstream);
    let exchanges = send(gateway.http, CLIENT, Instant::now(), &burst_then(60, millis(5), millis(800)));
    Bucket { rate: 100.0, capacity: 50.0 }.expect("gateway", &exchanges);
    assert!(exchanges[..50].iter().all(|exchange| exchange.passed));
}

#[test]
fn traefiks_limit_of_requests_in_flight() {
    let gated = GatedUpstream::new(200);
    let gateway = gateway("traefik-in-flight", &gated.upstream);
    let begin = |key: &str| begin_with(gateway.http, CLIENT, &request("GET", "/", &format!("X-Api-Key: {key}\r\n")));
    let mut in_flight: Vec<_> = (0..10).map(|_| begin("a")).collect();
    gated.wait(10);
    assert_eq!(begin("a").response(false).status, 429);
    in_flight.push(begin("b"));
    gated.wait(11);
    gated.gate.open();
    assert!(in_flight.iter_mut().all(|connection| connection.response(false).status == 200));
}

#[test]
fn kongs_rate_limit() {
    let upstream = answering();
    let gateway = gateway("kong", &upstream);
    let (begun, second) = (Instant::now(), last_multiple(1.0));
    let ask = request("GET", "/", "apikey: a\r\n");
    let exchanges = repeat(gateway.http, CLIENT, &ask, begun, &burst_then(20, millis(20), millis(1500)));
    let window = SlidingWindow { period: 1.0, quota: 5.0, origin: [second, second], counts_refused: false };
    window.expect("gateway", &exchanges);
    let other = repeat(gateway.http, CLIENT, &request("GET", "/", "apikey: b\r\n"), begun, &burst(1));
    assert_eq!(passed(&other), 1, "another consumer");
    let refused = exchanges.iter().find(|exchange| !exchange.passed).unwrap();
    assert_eq!(refused.response.text(), r#"{"message":"Too many requests"}"#);
    assert_eq!(refused.response.headers.must("content-type"), "application/json");
    assert_eq!(refused.response.headers.must("retry-after"), "1");
    for exchange in &exchanges {
        let names: Vec<_> = exchange.response.headers.0.iter().map(|(name, _)| name.as_str()).collect();
        assert!(!names.iter().any(|name| name.contains("ratelimit")), "{names:?}");
    }
}

#[test]
fn caddys_zones() {
    let upstream = answering();
    let gateway = gateway("caddy", &upstream);
    let begun = Instant::now();
    let logins = repeat(gateway.http, CLIENT, &request("POST", "/login", ""), begun, &burst(8));
    assert_eq!(passed(&logins), 5);
    // The refused logins were not charged to the other zone, which has 15 left.
    let others = send(gateway.http, CLIENT, begun, &burst(18));
    if begun.elapsed() < Duration::from_secs(10) {
        assert_eq!(passed(&others), 15);
    }
    assert_eq!(passed(&send(gateway.http, OTHER, begun, &burst(3))), 3);
}

#[test]
#[ignore = "needs HAProxy"]
fn instead_of_a_tarpit_clients_do_not_notice_the_limit() {
    let upstream = answering();
    let peer = haproxy("haproxy-tarpit", &upstream);
    let exchanges = send(peer.address, CLIENT, Instant::now(), &burst(101));
    assert_eq!(passed(&exchanges), 100);
    let held = exchanges[100].received - exchanges[100].sent;
    assert!((4.9..15.0).contains(&held), "the refused client waits for 5 s: {held}");

    let gateway = gateway("haproxy-tarpit", &upstream);
    let (begun, period) = (Instant::now(), last_multiple(10.0));
    let mut exchanges = send(gateway.http, CLIENT, begun, &burst(250));
    assert_eq!(passed(&exchanges), 250, "all get 200");
    exchanges.iter_mut().for_each(|exchange| exchange.passed = exchange.response.text() == "app");
    let window = SlidingWindow { period: 10.0, quota: 100.0, origin: [period, period], counts_refused: false };
    window.expect("gateway", &exchanges);
    assert!(passed(&exchanges) < 250);
}
