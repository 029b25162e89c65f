//! Costs in bytes of limits that several clients share: none holds what it does not use.

use crate::bytes::{PATIENCE, files};
use crate::harness::{Client, Gate, Gateway, Upstream, Wire, every_store, until};

/// What is reserved at once.
const STEP: u64 = 64 << 10;

fn start(store: &str, limits: &str, of_route: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&format!("{store}{limits}{}limits = [{of_route:?}]\n", upstream.everything()))
}

fn uses(gateway: &Gateway, limit: &str, expected: u64) {
    let mut last = 0;
    until(&format!("{limit} has used {expected}"), PATIENCE, || {
        last = gateway.used(limit, "*");
        last == expected
    });
}

fn upload(gateway: &Gateway, length: usize) -> u16 {
    let head = format!("PUT /0 HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    gateway.client().call(head + &"x".repeat(length)).status
}

/// Begins an upload of this length, and sends a byte of it.
fn begin_upload(gateway: &Gateway, length: usize) -> Client {
    let mut client = gateway.client();
    client.send(format!("PUT /0 HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\nx"));
    client
}

#[test]
fn an_upload_holds_no_more_than_a_step() {
    every_store(|store| {
        let upstream = files();
        let limits = "[limits.l]\nkey = \"global\"\nrates = [\"1000KB/d\"]\ncost = { bytes = \"request\", on_exhausted = \"cut\" }\n";
        let gateway = start(store, limits, "l", &upstream);
        let slow = begin_upload(&gateway, 1_000_000);
        uses(&gateway, "l", STEP);
        assert_eq!(upload(&gateway, 300_000), 200, "{store}");
        uses(&gateway, "l", STEP + 300_000);
        assert_eq!(upload(&gateway, 700_000), 429, "{store}: more than is left");
        drop(slow);
        uses(&gateway, "l", 300_001);
        // Until the first byte comes, nothing is reserved.
        let mut waits = gateway.client();
        waits.send("PUT /0 HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 690000\r\n\r\n");
        assert_eq!(waits.try_head().unwrap().0.status, 100);
        uses(&gateway, "l", 300_001);
        // A step is no longer than the rest of a body.
        let small = begin_upload(&gateway, 1000);
        uses(&gateway, "l", 301_001);
        drop(small);
        uses(&gateway, "l", 300_002);
        assert_eq!(upload(&gateway, 699_998), 200, "{store}: all that is left");
        uses(&gateway, "l", 1_000_000);
    });
}

#[test]
fn an_upload_holds_no_more_than_a_step_of_a_pool() {
    every_store(|store| {
        let limits = "[limits.l]\nkey = \"client-ip\"\nrates = [\"10KB/d\"]\ncost = { bytes = \"request\", on_exhausted = \"cut\" }\n\
                      overflow = \"pool\"\n\
                      [limits.pool]\nkey = \"global\"\nrates = [\"1000KB/d\"]\ncost = { bytes = \"request\", on_exhausted = \"cut\" }\n";
        let gateway = start(store, limits, "l", &files());
        let _slow = begin_upload(&gateway, 1_000_000);
        uses(&gateway, "pool", STEP);
        assert_eq!(upload(&gateway, 300_000), 200, "{store}");
        uses(&gateway, "pool", STEP + 300_000);
        assert_eq!(upload(&gateway, 700_000), 429, "{store}");
        // What only one client has is reserved as a whole.
        let _own = begin_upload(&gateway, 9000);
        until("it is reserved", PATIENCE, || gateway.used("l", "127.0.0.1") == 9000);
        uses(&gateway, "pool", STEP + 300_000);
    });
}

/// Answers `/N` with a body of N bytes, and `/slow/N` with as many, but the rest after the first of them once the gate is open.
fn downloads(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::raw(move |mut wire: Wire, _| {
        while let Ok(Some((line, _))) = wire.head() {
            let target = line.split(' ').nth(1).unwrap();
            let length: usize = target.rsplit('/').next().unwrap().parse().unwrap();
            let begin = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nx");
            if wire.write(begin.as_bytes()).is_err() {
                return;
            }
            if target.starts_with("/slow/") {
                gate.pass();
            }
            if wire.write("x".repeat(length - 1).as_bytes()).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_download_holds_no_more_than_a_step_and_is_cut_when_there_is_no_room() {
    every_store(|store| {
        let gate = Gate::default();
        let limits = "[limits.l]\nkey = \"global\"\nrates = [\"1000KB/d\"]\n\
                      cost = { bytes = \"response\", on_exhausted = \"cut\" }\n";
        let gateway = start(store, limits, "l", &downloads(&gate));
        let mut slow = gateway.client();
        slow.send("GET /slow/900000 HTTP/1.1\r\nHost: h\r\n\r\n");
        uses(&gateway, "l", STEP);
        assert_eq!(gateway.client().get("/300000").status, 200, "{store}");
        uses(&gateway, "l", STEP + 300_000);
        assert_eq!(gateway.client().get("/700000").status, 429, "{store}: more than is left");
        gate.open();
        let (head, framing) = slow.try_head().unwrap();
        let mut passed = 0;
        let is_whole = slow.wire.body(framing, &mut |piece| passed += piece.len()).is_ok();
        assert_eq!((head.status, is_whole), (200, false), "{store}: {passed}");
        assert!(passed <= 700_000, "{store}: {passed}");
        let used = gateway.used("l", "*");
        assert!((300_000 + passed as u64..=1_000_000).contains(&used), "{store}: {passed} {used}");
    });
}

/// Otherwise many that begin side by side would pass more than the limit.
#[test]
fn what_is_not_cut_is_reserved_as_a_whole() {
    every_store(|store| {
        let gate = Gate::default();
        let limits = "[limits.l]\nkey = \"global\"\nrates = [\"1000KB/d\"]\ncost = { bytes = \"response\" }\n";
        let gateway = start(store, limits, "l", &downloads(&gate));
        let mut slow = gateway.client();
        slow.send("GET /slow/900000 HTTP/1.1\r\nHost: h\r\n\r\n");
        uses(&gateway, "l", 900_000);
        assert_eq!(gateway.client().get("/300000").status, 429, "{store}");
        gate.open();
        let (head, framing) = slow.try_head().unwrap();
        assert!(slow.wire.body(framing, &mut |_| {}).is_ok(), "{store}");
        assert_eq!(head.status, 200);
        uses(&gateway, "l", 900_000);
    });
}
