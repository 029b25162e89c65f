//! The primary that sentinels name: found at the start, followed when another server takes its place.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{self, Client, Gateway, Valkey, until};

/// A failover takes some seconds, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn gateway(sentinels: &[&Valkey], name: &str, more: &str) -> Gateway {
    let sentinels: Vec<String> = sentinels.iter().map(|sentinel| sentinel.address.to_string()).collect();
    let store = format!(
        "[store]\ntype = \"valkey\"\nsentinels = {sentinels:?}\nmaster = \"{name}\"\ntimeout = \"5s\"\n{more}\n"
    );
    Gateway::start(&(store + &harness::limited("header:x-api-key", "1000000000/d", "")))
}

fn ask(client: &mut Client) -> u16 {
    client.get_with("/", "X-Api-Key: k\r\n").status
}

fn replica_of(primary: &Valkey) -> Valkey {
    let port = primary.address.port().to_string();
    let replica = Valkey::start_with(&["--replicaof", "127.0.0.1", &port]);
    until("the replica follows", PATIENCE, || {
        replica.ask(&["INFO", "replication"])[0].contains("master_link_status:up")
    });
    replica
}

fn is_primary(server: &Valkey) -> bool {
    server.ask(&["ROLE"])[0] == "master"
}

#[test]
fn the_primary_is_followed_when_it_dies_and_no_count_is_lost() {
    let mut primary = Valkey::start();
    let replica = replica_of(&primary);
    let sentinels = [(); 3].map(|()| Valkey::sentinel("main", primary.address));
    until("the sentinels know each other and the replica", PATIENCE, || {
        let knows = |sentinel: &Valkey| {
            let known = sentinel.ask(&["SENTINEL", "MASTER", "main"]);
            let number = |name: &str| known.iter().skip_while(|word| *word != name).nth(1).cloned();
            (number("num-slaves"), number("num-other-sentinels")) == (Some("1".to_owned()), Some("2".to_owned()))
        };
        sentinels.iter().all(knows)
    });
    let gateway = gateway(&sentinels.each_ref(), "main", "");
    let (mut client, mut sent) = (gateway.client(), 0);
    let mut send = || {
        assert_eq!(ask(&mut client), 200);
        sent += 1;
        sent
    };
    until("the primary counts, and so does its replica", PATIENCE, || {
        send();
        primary.counted() > 0 && replica.counted() > 0
    });
    primary.kill();
    until("the replica has taken its place", PATIENCE, || {
        send();
        is_primary(&replica)
    });
    until("the gateway counts there", PATIENCE, || {
        send();
        gateway.metric("gateway_store_up") == Some(1.0)
    });
    let sent = send();
    until("all requests are counted there", PATIENCE, || replica.counted() == sent);
    assert_eq!(gateway.metric("gateway_store_up{server=\"main\"}"), Some(1.0));
}

#[test]
fn a_sentinel_that_is_silent_or_names_another_server_is_outvoted() {
    let (primary, other) = (Valkey::start(), Valkey::start());
    let honest = [(); 2].map(|()| Valkey::sentinel("main", primary.address));
    let (silent, wrong) = (Valkey::sentinel("main", primary.address), Valkey::sentinel("main", other.address));
    silent.signal(Signal::STOP);
    let gateway = gateway(&[&wrong, &silent, &honest[0], &honest[1]], "main", "");
    let mut client = gateway.client();
    until("it is counted", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        primary.counted() > 0
    });
    assert_eq!(other.counted(), 0);
}

#[test]
fn a_primary_that_no_sentinel_knows_is_told() {
    let primary = Valkey::start();
    let sentinel = Valkey::sentinel("main", primary.address);
    let gateway = gateway(&[&sentinel], "mian", "");
    let said = gateway.wait_message("valkey does not answer");
    let failure = said["failure"].as_str().unwrap();
    assert!(
        failure.contains("no sentinel knows where \"mian\" is") && failure.contains("no primary of this name"),
        "{failure}"
    );
    assert_eq!(gateway.metric("gateway_store_up{server=\"mian\"}"), Some(0.0));
    assert_eq!(ask(&mut gateway.client()), 200, "it counts alone");
}

#[test]
fn a_server_that_follows_another_one_is_not_the_primary() {
    let primary = Valkey::start();
    let replica = replica_of(&primary);
    let sentinel = Valkey::sentinel("main", replica.address);
    let gateway = gateway(&[&sentinel], "main", "on_error = \"reject\"");
    let said = gateway.wait_message("valkey does not answer");
    assert!(said["failure"].as_str().unwrap().starts_with("it refuses SET: it answered \"READONLY"), "{said}");
    assert_eq!(ask(&mut gateway.client()), 503);
    assert_eq!(gateway.metric("gateway_store_up{server=\"main\"}"), Some(0.0));
}
