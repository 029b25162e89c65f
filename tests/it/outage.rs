//! A server that is away, ends, or does not answer: requests are served in time, and the log has few lines about it.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{self, Client, Gateway, Server, Software, closed_port, until, with_each_server};

/// `timeout` of the store: a request that waits for a silent server waits for all of it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A request that takes less than this has not waited, even on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(4500);

fn limited(rate: &str) -> String {
    harness::limited("header:x-api-key", rate, "")
}

fn gateway(server: &Server, more: &str) -> Gateway {
    let store = server.store_with(&format!("timeout = \"{}s\"\n{more}", TIMEOUT.as_secs()));
    // More than the fastest machine asks.
    Gateway::start(&(store + &limited("1000000000/d")))
}

/// Asks for these keys. Every request must get this status in time.
#[track_caller]
fn ask_within(most: Duration, client: &mut Client, keys: Range<usize>, status: u16) {
    for key in keys {
        let asked = Instant::now();
        let response = client.get_with("/", format!("X-Api-Key: {key}\r\n"));
        let took = asked.elapsed();
        assert_eq!(response.status, status, "{response:?}");
        assert!(took < most, "request {key} took {took:?}");
    }
}

/// Asks until the server has failed `times` more often: no request waits, and the log has about a line a second.
#[track_caller]
fn ask_while_it_fails(software: Software, gateway: &Gateway, client: &mut Client, times: u32) {
    let failures = || gateway.metric("gateway_store_errors_total").unwrap();
    let (before, begun) = (failures(), Instant::now());
    let said = words(gateway).len();
    until("it is tried again", Duration::from_secs(60), || {
        ask_within(AT_ONCE, client, 1000..1020, 200);
        failures() >= before + f64::from(times)
    });
    gateway.wait_message(&format!("{} does not answer", software.name()));
    let (said, most) = (words(gateway).len() - said, 2 + begun.elapsed().as_secs());
    assert!(said as u64 <= most, "{said} lines instead of {most}:\n{}", words(gateway).join("\n"));
}

/// Log lines except those of requests.
fn words(gateway: &Gateway) -> Vec<String> {
    gateway.log().into_iter().filter(|line| !line.contains("\"message\":\"request\"")).collect()
}

#[track_caller]
fn counted_again(client: &mut Client, server: &Server) {
    let before = server.counted();
    until("it is asked again", Duration::from_secs(30), || {
        assert_eq!(client.get_with("/", "X-Api-Key: again\r\n").status, 200);
        server.counted() > before + 2
    });
}

fn away_from_the_start(software: Software) {
    let (_held, address) = closed_port();
    let store = software.store(&[address], "timeout = \"3s\"");
    let gateway = Gateway::start(&(store + &limited("1000000000/d")));
    ask_while_it_fails(software, &gateway, &mut gateway.client(), 8);
}

fn killed_in_the_middle_and_back(software: Software) {
    let mut server = software.start();
    let gateway = gateway(&server, "");
    let mut client = gateway.client();
    ask_within(AT_ONCE, &mut client, 0..100, 200);
    until("it counts", Duration::from_secs(20), || server.items() > 0);
    server.kill();
    ask_while_it_fails(software, &gateway, &mut client, 8);
    server.restart();
    counted_again(&mut client, &server);
}

fn frozen_and_thawed(software: Software) {
    let server = software.start();
    let gateway = gateway(&server, "");
    let mut client = gateway.client();
    ask_within(AT_ONCE, &mut client, 0..100, 200);
    server.signal(Signal::STOP);
    // Connections are open and nothing answers: only the time limit helps.
    let asked = Instant::now();
    ask_within(TIMEOUT + AT_ONCE, &mut client, 100..101, 200);
    assert!(asked.elapsed() >= Duration::from_secs(1), "it has not waited for the server: {:?}", asked.elapsed());
    // No request waits for a server known to be away.
    ask_while_it_fails(software, &gateway, &mut client, 2);
    server.signal(Signal::CONT);
    counted_again(&mut client, &server);
}

fn one_of_two_that_is_away_takes_only_its_own_keys_along(software: Software) {
    let (kept, mut lost) = (software.start(), software.start());
    let store = software.store(&[kept.address, lost.address], "timeout = \"3s\"");
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
    until("both count again", Duration::from_secs(30), || limited(&format!("{:?}", Instant::now())) == 40);
    lost.kill();
    assert!(limited("killed") >= 8);
}

fn many_at_once_wait_no_longer_than_one(software: Software) {
    let server = software.start();
    let gateway = gateway(&server, "");
    ask_within(AT_ONCE, &mut gateway.client(), 0..50, 200);
    let mut clients: Vec<_> = (0..16).map(|_| gateway.client()).collect();
    server.signal(Signal::STOP);
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                ask_within(TIMEOUT + AT_ONCE, client, 100..101, 200);
                ask_within(AT_ONCE, client, 200..250, 200);
            });
        }
    });
    server.signal(Signal::CONT);
}

fn rejecting_while_it_is_away(software: Software) {
    let mut server = software.start();
    let gateway = gateway(&server, "on_error = \"reject\"");
    let mut client = gateway.client();
    ask_within(AT_ONCE, &mut client, 0..100, 200);
    server.kill();
    client.get("/").expect_problem(503);
    ask_within(AT_ONCE, &mut client, 0..100, 503);
    server.restart();
    until("it is counted in again", Duration::from_secs(30), || client.get("/").status == 200);
    // Increments arrive after the answer.
    until("it counts again", Duration::from_secs(20), || server.items() > 0);
}

fn allowing_while_it_is_away(software: Software) {
    let (_held, address) = closed_port();
    let store = software.store(&[address], "on_error = \"allow\"");
    let gateway = Gateway::start(&format!("{store}{}", limited("1/d")));
    let mut client = gateway.client();
    assert!((0..5).all(|_| client.get("/").status == 200));
}

fn routes_without_limits_do_not_care(software: Software) {
    let (_held, address) = closed_port();
    let store = software.store(&[address], "on_error = \"reject\"");
    let gateway = Gateway::start(&format!("{store}[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n"));
    assert_eq!(gateway.client().get("/").status, 200);
}

with_each_server! {
    away_from_the_start
    killed_in_the_middle_and_back
    frozen_and_thawed
    one_of_two_that_is_away_takes_only_its_own_keys_along
    many_at_once_wait_no_longer_than_one
    rejecting_while_it_is_away
    allowing_while_it_is_away
    routes_without_limits_do_not_care
}
