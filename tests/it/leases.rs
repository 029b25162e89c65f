//! Gateways lease a part of the quota of busy keys: with a real server, at an end and at a crash.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Gateway, Server, Software, until, with_each_server};
use crate::shared::{PATIENT, limited};

const MINUTE: Duration = Duration::from_secs(60);
/// Successive requests of one client.
const ROUND: u32 = 100;
const ROUND_TRIPS: &str = "gateway_store_round_trips_total";

/// A limit that this test does not reach. Without leases, `strict` makes each request wait for its own exchange.
fn start(server: &Server) -> Gateway {
    Gateway::start(&(server.store_with(&format!("{PATIENT}strict = true")) + &limited("1000000/d", "")))
}

/// The server's count of the only key. Its list of names may lack recent ones.
fn counted(server: &Server) -> u64 {
    let mut counted = 0;
    until("the counter is listed", MINUTE, || {
        counted = server.counters().values().sum();
        counted > 0
    });
    counted
}

/// Sends requests until the gateway leases their key. Returns how many were admitted.
fn admit_until_leased(gateway: &Gateway) -> u64 {
    let (mut client, mut admitted) = (gateway.client(), 0);
    // On a slow machine a round may take so long that the key is not busy.
    until("most requests need no exchange", MINUTE, || {
        let before = gateway.metric(ROUND_TRIPS).unwrap();
        (0..ROUND).for_each(|_| assert_eq!(client.get("/").status, 200));
        admitted += u64::from(ROUND);
        gateway.metric(ROUND_TRIPS).unwrap() - before < f64::from(ROUND) / 2.0
    });
    admitted
}

fn what_is_leased_and_not_spent_is_given_back(software: Software) {
    let server = software.start();
    let gateway = start(&server);
    let admitted = admit_until_leased(&gateway);
    until("the rest is given back", Duration::from_secs(20), || counted(&server) == admitted);
    let remaining = gateway.client().get("/").headers.must("ratelimit").to_owned();
    assert!(remaining.contains(&format!("r={};", 1_000_000 - admitted - 1)), "{remaining}");
}

fn a_gateway_that_ends_gives_back_what_it_has_leased(software: Software) {
    let server = software.start();
    let mut gateway = start(&server);
    let admitted = admit_until_leased(&gateway);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit().success());
    assert_eq!(counted(&server), admitted);
}

fn a_gateway_that_is_killed_loses_no_more_than_its_lease(software: Software) {
    let server = software.start();
    let mut gateway = start(&server);
    let admitted = admit_until_leased(&gateway);
    gateway.signal(Signal::KILL);
    gateway.wait_exit();
    // A lease is at most what was admitted in the same time before.
    let counted = counted(&server);
    assert!((admitted..=2 * admitted).contains(&counted), "{counted} for {admitted}");
}

with_each_server! {
    what_is_leased_and_not_spent_is_given_back
    a_gateway_that_ends_gives_back_what_it_has_leased
    a_gateway_that_is_killed_loses_no_more_than_its_lease
}
