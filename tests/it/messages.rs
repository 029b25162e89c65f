//! The arguments of the command line, and the messages for wrong ones.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::harness::run;

const FIXED: &str = "[[routes]]\nhost = \"example.com\"\npath = \"/v1\"\nrespond = { status = 200 }\n";

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_file_has_a_short_flag_too() {
    let (_folder, path) = file(FIXED);
    let path = path.to_str().unwrap();
    for arguments in [&["check", path][..], &["check", "-c", path], &["-c", path, "check"]] {
        let (code, out, err) = said(arguments);
        assert!(code == Some(0) && out.contains("example.com/v1"), "{arguments:?}: {out}{err}");
    }
    for arguments in [&["check", "-c", path, path][..], &["-c", path, "check", path]] {
        let (code, _, err) = said(arguments);
        assert!(code == Some(2) && err.contains("remove one"), "{arguments:?}: {err}");
    }
}

#[test]
fn check_shows_tiers_overrides_and_time_zones_in_full() {
    let limit = r#"
[limits.l]
key = "header:x-api-key | client-ip"
rates = ["10/s"]
timezone = "Europe/Berlin"
tier = "header:x-plan"
[limits.l.tiers.gold]
rates = ["100/s", "5000/month"]
[[limits.l.overrides]]
keys = ["alice", "bob", "gold-*"]
rates = ["50/s"]
[[limits.l.overrides]]
keys = ["10.0.0.0/8", "2001:db8::/32"]
exempt = true
[[limits.l.overrides]]
keys = ["thief"]
block = true
[limits.per-address]
key = "client-ip"
rates = ["100/s"]
"#;
    let (_folder, path) = file(&format!("{limit}{FIXED}limits = [\"l\", \"per-address\"]\n"));
    let (code, out, err) = said(&["check", path.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for line in [
        "days and months begin at midnight in the time zone Europe/Berlin",
        "50/s: 2 keys, gold-*",
        "not limited: 10.0.0.0/8, 2001:db8::/32",
        "blocked, answered 403: 1 key",
        "tiers by header:x-plan",
        "gold: 100/s and 5000/month",
        "any other: 10/s",
    ] {
        assert!(out.lines().any(|shown| shown.trim() == line), "no {line:?} in:\n{out}");
    }
    assert!(!out.contains("alice") && !out.contains("thief"), "keys are secrets:\n{out}");
    let (_, out, _) = said(&["explain", "-c", path.to_str().unwrap(), "-H", "x-plan: gld", "example.com/v1"]);
    assert!(out.contains("tier     none: header:x-plan names no tier of the limit"), "{out}");
}

#[test]
fn the_url_for_explain_needs_no_scheme() {
    let (_folder, path) = file(FIXED);
    let path = path.to_str().unwrap();
    for url in [
        "example.com/v1",
        "example.com:8080/v1?x=1",
        "http://example.com/v1",
        "example.com/v1?u=http://x/",
        "EXAMPLE.com/v1",
    ] {
        let (code, out, err) = said(&["explain", "-c", path, url]);
        assert!(code == Some(0) && out.contains("route example.com/v1"), "{url}: {out}{err}");
    }
    let (_, out, _) = said(&["explain", "-c", path, "-H", "Host: example.com", "/v1"]);
    assert!(out.contains("route example.com/v1"), "{out}");
    let (code, _, err) = said(&["explain", "-c", path, "?x=1"]);
    assert!(code == Some(2) && err.contains("write it like http://host/path, host/path or /path"), "{err}");
}

#[test]
fn check_shows_what_a_route_changes() {
    let config = r#"
[upstreams.api]
servers = ["http://127.0.0.1:9"]

[[routes]]
path = "/v1/{tenant}/*"
upstream = "api"
rewrite = "/in/{tenant}/{rest}"
timeout = "5s"
request_headers = { set = { x-tenant = "{tenant}", cookie = "secret=7" }, remove = ["x-debug"] }
response_headers = { add = { x-host = "{host}", x-brace = "{{}}" } }
"#;
    let (_folder, path) = file(config);
    let (code, out, err) = said(&["check", path.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    for part in [
        "forwards to api, as /in/{tenant}/{rest}\n",
        "waits at most 5s for the head of the response\n",
        "sets the request header x-tenant: {tenant}\n",
        "sets the request header cookie: ***\n",
        "removes the request header x-debug\n",
        "adds the response header x-host: {host}\n",
        "adds the response header x-brace: {}\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}
