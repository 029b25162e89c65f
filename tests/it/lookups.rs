//! Lookups of upstreams that hang: requests fail in time, and the number of lookups stays bounded.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Gateway, Upstream, reply};

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway whose upstream has a name, and the file for lookups. The file is a pipe, so a reader waits for a writer.
fn hanging(up: &Upstream) -> Option<(Gateway, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    assert!(Command::new("mkfifo").arg(&hosts).status().unwrap().success());
    let server = format!("servers = [\"http://hangs.test:{}\"]\n", up.address().port());
    let upstream = format!("[upstreams.up]\n{server}connect_timeout = \"1s\"\n");
    let gateway = Gateway::with_hosts(&hosts, &format!("{upstream}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
    Some((gateway?, folder))
}

fn threads(gateway: &Gateway) -> usize {
    fs::read_dir(format!("/proc/{}/task", gateway.pid().as_raw_nonzero())).unwrap().count()
}

#[test]
fn requests_share_one_lookup_and_wait_for_a_limited_time() {
    let up = Upstream::start(|_| reply(200, "found"));
    let Some((gateway, _folder)) = hanging(&up) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    let before = threads(&gateway);
    let begun = Instant::now();
    let mut clients: Vec<_> = (0..40).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(ASK));
    for client in &mut clients {
        client.response(false).expect_problem(504);
        // Workers may have started in the meantime.
        assert!(threads(&gateway) < before + 10, "{} more threads for one name", threads(&gateway) - before);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_lookup_that_hangs_does_not_delay_the_stop() {
    let up = Upstream::start(|_| reply(200, ""));
    let Some((mut gateway, _folder)) = hanging(&up) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    gateway.client().get("/").expect_problem(504);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
