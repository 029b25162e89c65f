//! Connections of the admin listener: a probe always gets a response, however many other connections there are.

use std::fs::read_dir;
use std::time::Duration;

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
