//! `gateway check --live` and `--ready`: health checks with the file of the running gateway.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Client, Gateway, Upstream, reply, run, until};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

fn check_once(config: &Path, question: &str) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = run(&["check", question, "--config", config.to_str().unwrap()]);
    assert_eq!(String::from_utf8(stdout).unwrap(), "", "health checks print nothing but errors");
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Checks again if the machine stood still for the 2 s that a check waits.
fn check(config: &Path, question: &str) -> (Option<i32>, String) {
    let is_late = |answer: &(Option<i32>, String)| answer.1.contains("no answer within");
    let mut answers = (0..5).map(|_| check_once(config, question));
    answers.find(|answer| !is_late(answer)).expect("no answer to five checks")
}

/// A file with this section.
fn written(admin: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, format!("{admin}\n{FIXED}")).unwrap();
    (folder, path)
}

fn check_file(admin: &str, question: &str) -> (Option<i32>, String) {
    let (_folder, path) = written(admin);
    check(&path, question)
}

/// The section of a file like that of the gateway, but with the port that the system has chosen.
fn section(gateway: &Gateway) -> String {
    format!("[admin]\nlisten = \"{}\"\ntoken = \"sixteen-characters\"", gateway.admin)
}

fn check_gateway(gateway: &Gateway, question: &str) -> (Option<i32>, String) {
    check_file(&section(gateway), question)
}

fn call(gateway: &Gateway, line: &str) {
    let request = format!("{line} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", gateway.admin);
    assert_eq!(Client::connect(gateway.admin).call(request).status, 200);
}

const YES: (Option<i32>, String) = (Some(0), String::new());

#[test]
fn a_gateway_is_alive_and_ready_or_draining() {
    // Neither a token nor a listener on all addresses is an obstacle.
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let gateway = Gateway::with_admin(&format!("listen = \"{listen}\"\ntoken = \"sixteen-characters\""), FIXED);
        assert_eq!((check_gateway(&gateway, "--live"), check_gateway(&gateway, "--ready")), (YES, YES), "{listen}");
    }
    let gateway = Gateway::start(FIXED);
    call(&gateway, "POST /api/drain");
    let (code, error) = check_gateway(&gateway, "--ready");
    assert_eq!((code, check_gateway(&gateway, "--live")), (Some(1), YES));
    assert_eq!(error, format!("error: {}: it answers 503: draining\n", gateway.admin));
    call(&gateway, "DELETE /api/drain");
    assert_eq!(check_gateway(&gateway, "--ready"), YES);
}

#[test]
fn a_unix_socket_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let mut gateway = Gateway::with_admin(&format!("listen = \"unix:{}\"", socket.display()), FIXED);
    gateway.wait_log("listening admin", |line| line["listener"] == "admin");
    assert_eq!(check(gateway.config_path(), "--ready"), YES);
    gateway.signal(Signal::TERM);
    gateway.wait_exit();
    let (code, error) = check(gateway.config_path(), "--live");
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.starts_with(&format!("error: unix:{}: ", socket.display())), "{error}");
}

#[test]
fn a_gateway_that_hangs_or_is_gone_is_not_alive() {
    let mut gateway = Gateway::start(FIXED);
    gateway.signal(Signal::STOP);
    let (_folder, path) = written(&section(&gateway));
    let begun = Instant::now();
    let (code, error) = check_once(&path, "--live");
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!((code, error), (Some(1), format!("error: {}: no answer within 2s\n", gateway.admin)));
    gateway.signal(Signal::CONT);
    until("it goes on", Duration::from_secs(20), || check_gateway(&gateway, "--live") == YES);
    gateway.signal(Signal::KILL);
    gateway.wait_exit();
    let (code, error) = check_gateway(&gateway, "--live");
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("nothing listens there"), "{error}");
}

#[test]
fn another_server_is_not_a_gateway() {
    let page = Upstream::start(|_| reply(200, "<html>"));
    let (code, error) = check_file(&format!("[admin]\nlisten = \"{}\"", page.address()), "--live");
    assert_eq!(code, Some(1));
    assert!(error.contains("not the admin listener of a gateway"), "{error}");
}

#[test]
fn a_file_that_has_become_wrong_elsewhere_is_good_enough() {
    let gateway = Gateway::start(FIXED);
    let admin = format!("[admin]\nlisten = \"{}\"", gateway.admin);
    for wrong in
        ["[server]\nworkers = \"many\"", "[limits.l]\nrates = []", "[[routes]]\npath = 7", "[server]\nworkers = "]
    {
        for file in [format!("{admin}\n{wrong}"), format!("{wrong}\n{admin}")] {
            assert_eq!(check_file(&file, "--live"), YES, "{file}");
        }
    }
}

#[test]
fn a_file_with_which_nobody_can_be_asked_is_an_error_of_the_file() {
    for (admin, why) in [
        ("", "has no [admin] section"),
        ("[admin]\nlisten = \"127.0.0.1:0\"", "choose a port"),
        ("[admin]\nlisten = \"nowhere\"", "gateway.toml:2:"),
    ] {
        for question in ["--live", "--ready"] {
            let (code, error) = check_file(admin, question);
            assert_eq!(code, Some(2), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }
    assert_eq!(check(Path::new("/nowhere/gateway.toml"), "--live").0, Some(2));
    let output = run(&["check", "--live", "--json"]);
    assert_eq!(output.status.code(), Some(2));
}
