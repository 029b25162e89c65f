//! The access log in its own file: formats, contents and rotation.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Gateway, Upstream, reply, run, run_json, until};

const PATIENCE: Duration = Duration::from_secs(20);

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn lines(path: &Path, count: usize) -> Vec<String> {
    until(&format!("{count} lines"), PATIENCE, || text(path).lines().count() >= count && text(path).ends_with('\n'));
    text(path).lines().map(str::to_owned).collect()
}

fn limited(up: &Upstream) -> String {
    let limits =
        "[limits.few]\nkey = \"client-ip\"\nrates = [\"2/d\"]\n[limits.many]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n";
    let routes = "[[routes]]\npath = \"/*\"\nlimits = [\"few\", \"many\"]\nupstream = \"up\"\n";
    format!("{}{limits}{routes}", up.section())
}

#[test]
fn json_lines_say_who_decided_what_was_left_and_which_server_responded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let up = Upstream::start(|_| reply(200, "body"));
    let gateway = Gateway::with_log(&format!("access_file = {path:?}"), &limited(&up));
    let mut client = gateway.client();
    let statuses = [(); 3].map(|()| client.get_with("/a?key=secret", "X-Request-ID: mine\r\n").status);
    assert_eq!(statuses, [200, 200, 429]);
    let lines: Vec<Value> = lines(&path, 3).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, _, last] = &lines[..] else { panic!("{lines:?}") };
    for (field, value) in [
        ("message", "request"),
        ("client", "127.0.0.1"),
        ("method", "GET"),
        ("host", "test.example"),
        ("path", "/a"),
        ("protocol", "HTTP/1.1"),
        ("outcome", "forwarded"),
        ("request_id", "mine"),
    ] {
        assert_eq!(first[field], value, "{field}");
    }
    assert_eq!((&first["status"], &first["bytes"]), (&200.into(), &4.into()));
    assert_eq!(first["remaining"], serde_json::json!({ "few": 1, "many": 8 }));
    assert_eq!(first["server"], up.address().to_string());
    let (upstream, all) = (first["upstream_micros"].as_u64().unwrap(), first["micros"].as_u64().unwrap());
    assert!(upstream > 0 && upstream <= all, "{upstream} of {all}");
    assert_eq!((&last["status"], &last["outcome"], &last["limit"]), (&429.into(), &"limited".into(), &"few".into()));
    assert_eq!(last["remaining"], serde_json::json!({ "few": 0, "many": 7 }));
    assert!(last.get("server").is_none());
    assert!(!text(&path).contains("secret"), "a query may have keys");
    assert!(!gateway.log().iter().any(|line| line.contains("\"message\":\"request\"")), "each line is written once");

    // `gateway simulate` reads the log.
    let config = gateway.config_path().to_str().unwrap().to_owned();
    let report = run_json(&["simulate", "--config", &config, "--json", path.to_str().unwrap()]);
    assert_eq!((&report["requests"], &report["skipped"]), (&3.into(), &0.into()), "{report}");
}

#[test]
fn the_combined_format_is_that_of_other_servers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let up = Upstream::start(|_| reply(200, "body"));
    let gateway = Gateway::with_log(&format!("access_file = {path:?}\naccess_format = \"combined\""), &limited(&up));
    let agent = "Referer: http://a.example/?q=1\r\nUser-Agent: Mozilla/5.0 (X11; \"Linux\" \\ x)\r\n";
    let mut client = gateway.client();
    assert_eq!(client.get_with("/a/b?c=d", agent).status, 200);
    // The lines of different workers may come in another order.
    assert_eq!(client.get("/").status, 200);
    let lines = lines(&path, 2);
    let (before, after) = lines[0].split_once('[').unwrap();
    let (time, after) = after.split_once(']').unwrap();
    assert_eq!(before, "127.0.0.1 - - ");
    assert!(time.len() == 26 && time.ends_with(" +0000"), "{time}");
    let expected =
        "\"GET /a/b HTTP/1.1\" 200 4 \"http://a.example/?q=1\" \"Mozilla/5.0 (X11; \\x22Linux\\x22 \\x5c x)\"";
    assert_eq!(after.trim_start(), expected);
    assert!(lines[1].ends_with("\"GET / HTTP/1.1\" 200 4 \"-\" \"-\""), "{}", lines[1]);
}

#[test]
fn without_a_file_lines_of_the_format_go_to_standard_error() {
    let up = Upstream::start(|_| reply(200, "body"));
    let gateway = Gateway::with_log("access_format = \"combined\"", &limited(&up));
    assert_eq!(gateway.client().get("/a").status, 200);
    until("the line is there", PATIENCE, || {
        gateway.log().iter().any(|line| line.contains("\"GET /a HTTP/1.1\" 200 4"))
    });
}

#[test]
fn a_file_that_was_renamed_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_log(&format!("access_file = {path:?}"), &up.everything());
    let mut client = gateway.client();
    let told = || gateway.log().iter().filter(|line| line.contains("the access log is opened again")).count();
    for round in 1..=3 {
        client.get("/before");
        lines(&path, 1);
        fs::rename(&path, &rotated).unwrap();
        client.get("/between");
        lines(&rotated, 2);
        gateway.signal(Signal::USR1);
        until("it is told", PATIENCE, || told() == 2 * round - 1);
        client.get("/after");
        assert!(lines(&path, 1)[0].contains("/after"));
        assert_eq!(lines(&rotated, 2).len(), 2);
        fs::remove_file(&path).unwrap();
        gateway.signal(Signal::USR1);
        until("it is told", PATIENCE, || told() == 2 * round);
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    let route = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    // Opening a pipe that nobody reads would wait for ever.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    for file in ["no/such/folder", "pipe", "."] {
        let text = format!("[server]\nlisten = \"127.0.0.1:0\"\n[log]\naccess_file = {file:?}\n{route}");
        fs::write(&config, text).unwrap();
        let ended = run(&["--config", config.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(1) && said.contains("cannot open the access log"), "{file}: {said}");
        assert!(said.contains(folder.path().to_str().unwrap()), "{said}");
    }
}
