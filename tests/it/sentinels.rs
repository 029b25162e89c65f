//! The primary that sentinels name: found at the start, followed when another server takes its place.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{self, Client, Control, Gateway, Valkey, until};

/// A failover takes some seconds, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn gateway(sentinels: &[&Valkey], name: &str, more: &str) -> Gateway {
    limited(sentinels, name, more, "1000000000/d")
}

fn limited(sentinels: &[&Valkey], name: &str, more: &str, rate: &str) -> Gateway {
    let sentinels: Vec<String> = sentinels.iter().map(|sentinel| sentinel.address.to_string()).collect();
    let store = format!(
        "[store]\ntype = \"valkey\"\nsentinels = {sentinels:?}\nmaster = \"{name}\"\ntimeout = \"5s\"\n{more}\n"
    );
    Gateway::start(&(store + &harness::limited("header:x-api-key", rate, "")))
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

/// Three sentinels that know each other, the primary called `main`, and its replica.
fn watching(primary: &Valkey) -> [Valkey; 3] {
    let sentinels = [(); 3].map(|()| Valkey::sentinel("main", primary.address));
    until("the sentinels know each other and the replica", PATIENCE, || {
        let knows = |sentinel: &Valkey| {
            let known = sentinel.ask(&["SENTINEL", "MASTER", "main"]);
            let number = |name: &str| known.iter().skip_while(|word| *word != name).nth(1).cloned();
            (number("num-slaves"), number("num-other-sentinels")) == (Some("1".to_owned()), Some("2".to_owned()))
        };
        sentinels.iter().all(knows)
    });
    sentinels
}

fn is_primary(server: &Valkey) -> bool {
    server.ask(&["ROLE"])[0] == "master"
}

#[test]
fn the_primary_is_followed_when_it_dies_and_no_count_is_lost() {
    let mut primary = Valkey::start();
    let replica = replica_of(&primary);
    let sentinels = watching(&primary);
    let gateway = gateway(&sentinels.each_ref(), "main", "");
    let (mut client, mut count) = (gateway.client(), 0);
    let mut send = || {
        assert_eq!(ask(&mut client), 200);
        count += 1;
        count
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
    let all = send();
    until("all requests are counted there", PATIENCE, || replica.counted() == all);
    assert_eq!(gateway.metric("gateway_store_up{server=\"main\"}"), Some(1.0));
}

/// Gateways in a flood of one key, while the primary dies. Returns how many of `quota` requests are admitted.
fn admitted_over_a_failover(gateways: usize, more: &str, quota: usize) -> usize {
    let mut primary = Valkey::start();
    let replica = replica_of(&primary);
    let sentinels = watching(&primary);
    let start = |_| limited(&sentinels.each_ref(), "main", more, &format!("{quota}/d"));
    let gateways: Vec<_> = (0..gateways).map(start).collect();
    let (admitted, refused, undecided) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    let flood = |mut client: Client| {
        while !is_over.load(Relaxed) {
            let count = match ask(&mut client) {
                200 => &admitted,
                429 => &refused,
                503 => &undecided,
                other => panic!("{other}"),
            };
            count.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    };
    thread::scope(|scope| {
        for gateway in gateways.iter().cycle().take(4) {
            scope.spawn(|| flood(gateway.client()));
        }
        until("both count", PATIENCE, || admitted.load(Relaxed) > quota / 4 && replica.counted() > 0);
        primary.kill();
        until("the replica has taken its place", PATIENCE, || is_primary(&replica));
        let before = refused.load(Relaxed);
        until("all is used up there", PATIENCE, || refused.load(Relaxed) > before + 50);
        is_over.store(true, Relaxed);
    });
    println!("{admitted:?} of {quota} admitted, {undecided:?} not decided");
    assert_eq!(undecided.load(Relaxed) > 0, more.contains("reject"), "it died in the flood");
    until("all is counted", PATIENCE, || replica.counted() >= quota as u64);
    admitted.into_inner()
}

#[test]
fn a_failover_in_a_flood_changes_little_for_the_clients_of_a_gateway() {
    const QUOTA: usize = 3_000;
    let admitted = admitted_over_a_failover(1, "", QUOTA);
    // What the primary has not answered when it dies is counted once, twice, or not at all.
    assert!((QUOTA - 100..=QUOTA + 100).contains(&admitted), "{admitted} admitted");
}

#[test]
fn strictly_no_more_passes_over_a_failover_than_was_not_copied_yet() {
    const QUOTA: usize = 3_000;
    let admitted = admitted_over_a_failover(2, "strict = true\non_error = \"reject\"", QUOTA);
    // The replica is on the same machine, and copies at once.
    assert!((QUOTA / 2..=QUOTA + QUOTA / 10).contains(&admitted), "{admitted} admitted");
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
fn sentinels_that_are_away_keep_no_gateway_from_being_ready() {
    let mut sentinel = Valkey::start();
    sentinel.kill();
    let gateway = gateway(&[&sentinel], "main", "");
    gateway.wait_message("valkey does not answer");
    assert_eq!(gateway.metric("gateway_ready"), Some(1.0));
}

#[test]
fn a_primary_that_is_replaced_while_it_lives_is_left() {
    let (primary, other) = (Valkey::start(), Valkey::start());
    let sentinels = [(); 3].map(|()| Valkey::sentinel("main", primary.address));
    let gateway = gateway(&sentinels.each_ref(), "main", "strict = true");
    let mut client = gateway.client();
    until("it is counted", PATIENCE, || {
        assert_eq!(ask(&mut client), 200);
        primary.counted() > 0
    });
    let port = other.address.port().to_string();
    let rename = |sentinel: &Valkey| {
        sentinel.ask(&["SENTINEL", "REMOVE", "main"]);
        sentinel.ask(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "2"]);
    };
    rename(&sentinels[0]);
    thread::sleep(Duration::from_secs(2));
    assert_eq!((ask(&mut client), other.counted()), (200, 0), "one of three is no majority");
    rename(&sentinels[1]);
    until("it is counted at the other one", PATIENCE, || {
        ask(&mut client);
        other.counted() > 0
    });
    assert!(is_primary(&primary), "it would have gone on");
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
    let ready = gateway.admin("/readyz");
    assert_eq!((ready.status, ready.text().contains("no primary of this name")), (503, true), "{ready:?}");
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
