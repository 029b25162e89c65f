//! Bytes of WebSockets are charged while their tunnels run.

use std::time::Duration;

use bytes::Bytes;

use crate::bytes::{limit, start};
use crate::harness::{Client, Gateway, Upstream, every_store, reply, until};
use crate::websocket::{accepting, echo, handshake, tungstenite_echo};
use crate::websocket_http2::{ask, connect, run};

const PATIENCE: Duration = Duration::from_secs(10);

fn open(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    assert_eq!(client.call(handshake("/")).status, 101);
    client
}

#[track_caller]
fn exchange(client: &mut Client, bytes: &[u8]) {
    client.send(bytes);
    let mut received = vec![0; bytes.len()];
    client.wire.read_exact(&mut received).unwrap();
    assert_eq!(received, bytes);
}

fn uses(gateway: &Gateway, expected: u64) {
    until(&format!("{expected} are used"), PATIENCE, || gateway.used("l", "127.0.0.1") == expected);
}

#[test]
fn a_tunnel_of_a_thousand_small_frames_is_charged_while_it_runs() {
    every_store(|store| {
        let upstream = accepting(echo);
        let gateway = start(store, "1MB", "bytes = \"both\", reserve = \"1KB\"", &upstream);
        let mut client = open(&gateway);
        assert_eq!(gateway.used("l", "127.0.0.1"), 0);
        for _ in 0..1000 {
            exchange(&mut client, b"0123456789");
        }
        uses(&gateway, 20_000);
        exchange(&mut client, b"0");
        uses(&gateway, 21_000);
        drop(client);
        uses(&gateway, 20_002);
    });
}

#[test]
fn a_tunnel_counts_only_the_direction_that_the_limit_names() {
    every_store(|store| {
        for (counted, expected) in [("request", 3), ("response", 5)] {
            let upstream = accepting(|wire| {
                let _ = wire.read_exact(&mut [0; 3]);
                let _ = wire.write(b"reply");
                let _ = wire.rest();
            });
            let gateway = start(store, "1MB", &format!("bytes = \"{counted}\""), &upstream);
            let before = gateway.used("l", "127.0.0.1");
            let mut client = open(&gateway);
            client.send("ask");
            client.wire.read_exact(&mut [0; 5]).unwrap();
            drop(client);
            uses(&gateway, before + expected);
        }
    });
}

#[test]
fn a_tunnel_is_cut_when_there_is_no_room() {
    every_store(|store| {
        let upstream = accepting(echo);
        let gateway = start(store, "10000B", "bytes = \"both\", reserve = \"512B\", on_exhausted = \"cut\"", &upstream);
        let mut client = open(&gateway);
        for _ in 0..5 {
            exchange(&mut client, &[b'x'; 1000]);
        }
        client.send("x");
        assert!(client.closed().is_empty());
        let line = gateway.wait_log("the end", |line| line["reason"] == "bytes_exhausted");
        assert_eq!((&line["outcome"], &line["status"]), (&"limited".into(), &101.into()), "{line}");
        uses(&gateway, 10_000);
        assert_eq!(gateway.client().call(handshake("/")).status, 429);
    });
}

#[test]
fn a_tunnel_that_is_finished_is_charged_past_the_quota() {
    every_store(|store| {
        let upstream = accepting(echo);
        let gateway = start(store, "10000B", "bytes = \"both\", reserve = \"512B\"", &upstream);
        let mut client = open(&gateway);
        for _ in 0..10 {
            exchange(&mut client, &[b'x'; 1000]);
        }
        assert!(gateway.used("l", "127.0.0.1") >= 20_000, "{store}");
        assert_eq!(gateway.client().get("/").status, 429);
    });
}

#[test]
fn a_declined_handshake_is_a_response_like_others() {
    every_store(|store| {
        let upstream = Upstream::start(|_| reply(403, "no"));
        let gateway = start(store, "10000B", "bytes = \"both\"", &upstream);
        assert_eq!(gateway.client().call(handshake("/")).status, 403);
        uses(&gateway, 2);
    });
}

#[test]
fn a_websocket_through_http2_is_charged_alike() {
    every_store(|store| {
        let up = format!("[upstreams.up]\nservers = [\"http://{}\"]\n", tungstenite_echo());
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
        let gateway = Gateway::start(&format!("{store}{}{up}{route}", limit("10000B", "bytes = \"both\"")));
        run(async {
            let client = connect(gateway.http, 65_535).await;
            let (response, mut send) = ask(&client, "/chat", "websocket").await;
            assert_eq!(response.status(), 200);
            send.send_data(Bytes::from_static(&[0x81, 0x83, 0, 0, 0, 0, b'a', b'b', b'c']), false).unwrap();
            let mut body = response.into_body();
            let mut received = 0;
            while received < 5 {
                received += body.data().await.unwrap().unwrap().len();
            }
            send.send_reset(h2::Reason::CANCEL);
        });
        uses(&gateway, 14);
    });
}
