//! Memcached that is away, ends, or does not answer: requests are served in time, and the log has few lines about it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{self, Client, Gateway, Memcached, alone, closed_port, measured, until};

/// `timeout` of the store, and how long a request may take because of it.
const TIMEOUT: Duration = Duration::from_millis(50);
const BOUND: Duration = Duration::from_millis(150);

fn limited(rate: &str) -> String {
    harness::limited("header:x-api-key", rate, "")
}

fn gateway(memcached: &Memcached, more: &str) -> Gateway {
    let store = memcached.store_with(&format!("timeout = \"{}ms\"\n{more}", TIMEOUT.as_millis()));
    Gateway::start(&(store + &limited("1000/d")))
}

/// Asks for `span`, every request with this status and none later than the bound; returns how many.
#[track_caller]
fn ask_for(client: &mut Client, span: Duration, status: u16) -> usize {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < span {
        let asked = Instant::now();
        let response = client.get_with("/", format!("X-Api-Key: {count}\r\n"));
        let took = asked.elapsed();
        assert_eq!(response.status, status, "{response:?}");
        assert!(took <= BOUND, "request {count} took {took:?}");
        count += 1;
        sleep(Duration::from_millis(2));
    }
    count
}

/// Log lines that are no request's.
fn words(gateway: &Gateway) -> Vec<String> {
    gateway.log().into_iter().filter(|line| !line.contains("\"message\":\"request\"")).collect()
}

/// Waits until requests are counted in memcached again.
#[track_caller]
fn counted_again(client: &mut Client, memcached: &Memcached) {
    let before = memcached.increments();
    until("memcached is asked again", Duration::from_secs(15), || {
        assert_eq!(client.get_with("/", "X-Api-Key: again\r\n").status, 200);
        memcached.increments() > before + 2
    });
}

#[test]
fn away_from_the_start() {
    let _alone = alone();
    measured(|| {
        let (_held, address) = closed_port();
        let gateway = Gateway::start(&format!(
            "[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\ntimeout = \"50ms\"\n{}",
            limited("1000/d")
        ));
        let before = words(&gateway).len();
        let count = ask_for(&mut gateway.client(), Duration::from_secs(3), 200);
        assert!(count > 100, "only {count} requests in three seconds");
        let said = words(&gateway).len() - before;
        assert!((1..=5).contains(&said), "{said} lines:\n{}", words(&gateway).join("\n"));
    });
}

#[test]
fn killed_in_the_middle_and_back() {
    let _alone = alone();
    measured(|| {
        let mut memcached = Memcached::start();
        let gateway = gateway(&memcached, "");
        let mut client = gateway.client();
        ask_for(&mut client, Duration::from_millis(300), 200);
        until("it counts", Duration::from_secs(10), || memcached.stat("curr_items") > 0);
        let before = words(&gateway).len();
        memcached.kill();
        ask_for(&mut client, Duration::from_secs(3), 200);
        let said = words(&gateway).len() - before;
        assert!((1..=5).contains(&said), "{said} lines:\n{}", words(&gateway).join("\n"));
        memcached.restart();
        counted_again(&mut client, &memcached);
    });
}

#[test]
fn frozen_and_thawed() {
    let _alone = alone();
    measured(|| {
        let memcached = Memcached::start();
        let gateway = gateway(&memcached, "");
        let mut client = gateway.client();
        ask_for(&mut client, Duration::from_millis(300), 200);
        let before = words(&gateway).len();
        memcached.signal(Signal::STOP);
        // Connections are open and nothing answers: only the time limit helps.
        let count = ask_for(&mut client, Duration::from_secs(3), 200);
        assert!(count > 100, "only {count} requests in three seconds: a server known to be away is asked");
        let said = words(&gateway).len() - before;
        assert!((1..=5).contains(&said), "{said} lines:\n{}", words(&gateway).join("\n"));
        memcached.signal(Signal::CONT);
        counted_again(&mut client, &memcached);
    });
}

#[test]
fn one_of_two_that_is_away_takes_only_its_own_keys_along() {
    let _alone = alone();
    let (kept, mut lost) = (Memcached::start(), Memcached::start());
    let servers = format!("servers = [\"{}\", \"{}\"]\ntimeout = \"50ms\"\n", kept.address, lost.address);
    let store = format!("[store]\ntype = \"memcached\"\n{servers}");
    let gateway = Gateway::start(&format!("{store}{}", limited("5/d")));
    let mut client = gateway.client();
    let mut admitted = |key: String| {
        let asked = (0..10).map(|_| client.get_with("/", format!("X-Api-Key: {key}\r\n")).status);
        asked.filter(|status| *status == 200).count()
    };
    let mut limited = |name: &str| (0..40).filter(|at| admitted(format!("{name}{at}")) == 5).count();
    assert_eq!(limited("both"), 40);
    lost.signal(Signal::STOP);
    assert!(limited("frozen") >= 8);
    lost.signal(Signal::CONT);
    until("both count again", Duration::from_secs(15), || limited(&format!("{:?}", Instant::now())) == 40);
    lost.kill();
    assert!(limited("killed") >= 8);
}

#[test]
fn many_at_once_wait_no_longer_than_one() {
    let _alone = alone();
    measured(|| {
        let memcached = Memcached::start();
        let gateway = gateway(&memcached, "");
        ask_for(&mut gateway.client(), Duration::from_millis(100), 200);
        let mut clients: Vec<_> = (0..16).map(|_| gateway.client()).collect();
        memcached.signal(Signal::STOP);
        std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .map(|client| scope.spawn(|| ask_for(client, Duration::from_millis(500), 200)))
                .collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() > 0));
        });
        memcached.signal(Signal::CONT);
    });
}

#[test]
fn rejecting_while_it_is_away() {
    let _alone = alone();
    measured(|| {
        let mut memcached = Memcached::start();
        let gateway = gateway(&memcached, "on_error = \"reject\"");
        let mut client = gateway.client();
        ask_for(&mut client, Duration::from_millis(300), 200);
        memcached.kill();
        client.get("/").expect_problem(503);
        ask_for(&mut client, Duration::from_millis(500), 503);
        memcached.restart();
        until("it is counted in again", Duration::from_secs(15), || client.get("/").status == 200);
        // Increments travel after the answer.
        until("it counts again", Duration::from_secs(10), || memcached.stat("curr_items") > 0);
    });
}

#[test]
fn allowing_while_it_is_away() {
    let _alone = alone();
    let (_held, address) = closed_port();
    let store = format!("[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\non_error = \"allow\"\n");
    let gateway = Gateway::start(&format!("{store}{}", limited("1/d")));
    let mut client = gateway.client();
    assert!((0..5).all(|_| client.get("/").status == 200));
}

#[test]
fn routes_without_limits_do_not_care() {
    let (_held, address) = closed_port();
    let store = format!("[store]\ntype = \"memcached\"\nservers = [\"{address}\"]\non_error = \"reject\"\n");
    let gateway = Gateway::start(&format!("{store}[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n"));
    assert_eq!(gateway.client().get("/").status, 200);
}
