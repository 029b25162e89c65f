//! Connections of the admin listener: a probe always gets a response, however many other connections there are.

use std::fs::read_dir;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Client, Gateway, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

#[test]
fn silent_connections_are_closed_for_new_ones() {
    let gateway = Gateway::start(FIXED);
    let handles = || read_dir(format!("/proc/{}/fd", gateway.pid().as_raw_nonzero())).unwrap().count();
    // Workers open their file handles once they serve.
    until("every worker serves", Duration::from_secs(10), || {
        let before = handles();
        (0..8).all(|_| gateway.client().get("/").status == 200) && handles() == before
    });
    let before = handles();
    let mut silent: Vec<_> = (0..200).map(|_| Client::connect(gateway.admin)).collect();
    assert_eq!(gateway.admin("/healthz").status, 200);
    until("the oldest have left", Duration::from_secs(10), || handles() <= before + 32);
    assert!(silent[0].closed().is_empty());
    let probe = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin);
    assert_eq!(silent.last_mut().unwrap().call(probe).status, 200, "the newest stay");
}

fn begin(client: &mut Client, gateway: &Gateway) {
    client.send(format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n", gateway.admin));
}

#[test]
fn who_opens_many_connections_closes_none_of_others() {
    let gateway = Gateway::start(FIXED);
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let mut probe = Client::connect_from(other, gateway.admin);
    begin(&mut probe, &gateway);
    let mut silent: Vec<_> = (0..100).map(|_| Client::connect(gateway.admin)).collect();
    assert!(silent[0].closed().is_empty());
    assert_eq!(probe.call("\r\n").status, 200);
}

#[test]
fn a_probe_that_has_sent_its_head_gets_through_a_burst_of_connections() {
    let gateway = Gateway::start(FIXED);
    gateway.signal(Signal::STOP);
    let mut probe = Client::connect(gateway.admin);
    begin(&mut probe, &gateway);
    probe.send("\r\n");
    let _silent: Vec<_> = (0..100).map(|_| Client::connect(gateway.admin)).collect();
    gateway.signal(Signal::CONT);
    assert_eq!(probe.response(false).status, 200);
}
