//! Signals: a second stop signal ends the process at once, the log says how many requests were cut off, and meaningless
//! signals are ignored.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Gateway, Upstream};

/// Accepts requests and does not answer until the returned value is dropped.
fn silent() -> (Upstream, Sender<()>) {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let up = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = released.lock().unwrap().recv();
    });
    (up, release)
}

fn under_way(gateway: &Gateway, up: &Upstream, count: usize) -> Vec<Client> {
    let mut clients: Vec<_> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    up.wait_connections(count);
    clients
}

#[test]
fn a_second_signal_stops_at_once() {
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::INT)] {
        let (up, _never) = silent();
        let mut gateway = Gateway::with_server("drain_timeout = \"10m\"", &up.everything());
        let mut clients = under_way(&gateway, &up, 3);
        gateway.signal(first);
        gateway.wait_message("draining");
        // From now on only stop signals have an effect.
        gateway.signal(Signal::HUP);
        gateway.wait_message("not reloaded: the gateway is about to stop");
        let asked = Instant::now();
        gateway.signal(second);
        assert_eq!(gateway.wait_exit().code(), Some(1));
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        let line = gateway.wait_log("stopped at once", |line| {
            line["message"].as_str().is_some_and(|message| message.starts_with("stopped at once"))
        });
        assert_eq!(line["requests"], 3);
        clients.iter_mut().for_each(|client| assert!(client.closed().is_empty()));
    }
}

#[test]
fn a_second_signal_ends_the_wait_of_drain_delay_too() {
    let (up, _never) = silent();
    let mut gateway = Gateway::with_server("drain_delay = \"10m\"", &up.everything());
    gateway.signal(Signal::TERM);
    gateway.wait_message("not ready");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(1));
}

#[test]
fn the_log_says_how_many_requests_a_drain_cut_off() {
    let (up, _never) = silent();
    let mut gateway = Gateway::with_server("drain_timeout = \"200ms\"", &up.everything());
    let _clients = under_way(&gateway, &up, 3);
    let _idle = gateway.client();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    let line = gateway.wait_log("drain_timeout is over", |line| {
        line["message"].as_str().is_some_and(|message| message.contains("drain_timeout is over"))
    });
    assert_eq!((&line["requests"], &line["level"]), (&3.into(), &"WARN".into()));
    // Each of these requests has a log line, too.
    let abandoned = gateway.log().iter().filter(|line| line.contains("\"abandoned\"")).count();
    assert_eq!(abandoned, 3);
}

#[test]
fn other_signals_are_ignored() {
    let (up, _never) = silent();
    let mut gateway = Gateway::start(&up.everything());
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        gateway.signal(signal);
        gateway.wait_log(name, |line| line["signal"] == name);
    }
    gateway.signal(Signal::PIPE);
    assert_eq!(gateway.admin("/healthz").status, 200);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
