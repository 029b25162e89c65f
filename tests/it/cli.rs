//! The command line: output, streams and exit codes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Output;

use tempfile::TempDir;

use crate::harness::run;

fn file(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.toml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn check(text: &str) -> Output {
    let (_directory, path) = file(text);
    run(&["check", "--config", path.to_str().unwrap()])
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

const GOOD: &str = "
[server]
listen = \"127.0.0.1:8080\"
[upstreams.api]
servers = [\"http://10.0.1.1:9000\", { url = \"http://10.0.1.2:9000\", weight = 2 }]
[limits.per-client]
key = \"header:x-api-key | client-ip\"
rates = [\"10/s\", \"3000/10m\"]
[[routes]]
path = \"/v1/{tenant}/*\"
upstream = \"api\"
limits = [\"per-client\"]
";

#[test]
fn help_and_version() {
    let output = run(&["--help"]);
    let (out, err) = texts(&output);
    assert!(output.status.success() && err.is_empty());
    for word in ["--config", "check", "schema", "top", "Usage"] {
        assert!(out.contains(word), "no {word} in:\n{out}");
    }
    let output = run(&["--version"]);
    assert!(output.status.success());
    assert_eq!(texts(&output).0.trim(), format!("gateway {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let output = run(&["--colour"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("--colour"));
}

#[test]
fn check_describes_the_configuration() {
    // A limit by a key that clients can invent needs another one beside it.
    let limits = GOOD.replace("[\"per-client\"]", "[\"per-client\", \"per-address\"]");
    let output = check(&format!("{limits}[limits.per-address]\nkey = \"client-ip\"\nrates = [\"100/s\"]\n"));
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""));
    for word in ["127.0.0.1:8080", "/v1/{tenant}/*", "per-client", "10/s", "3000/10m", "x-api-key", "10.0.1.2:9000"] {
        assert!(out.contains(word), "no {word} in:\n{out}");
    }
}

#[test]
fn check_reports_all_errors_with_their_places() {
    let broken = GOOD
        .replace("listen = \"127.0.0.1:8080\"", "listen = \"nowhere\"")
        .replace("\"10/s\"", "\"ten a second\"")
        .replace("upstream = \"api\"", "upstream = \"apy\"");
    let output = check(&broken);
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{err}");
    for (line, text) in [(3, "nowhere"), (8, "ten a second"), (11, "apy")] {
        let place = format!("gateway.toml:{line}:");
        let column = err.split(&place).nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).count());
        assert!(column.is_some_and(|digits| digits > 0), "no {place}COLUMN for {text:?} in:\n{err}");
        assert!(err.contains(text), "no {text:?} in:\n{err}");
    }
}

#[test]
fn every_kind_of_mistake_is_refused() {
    let mistakes = [
        ("rates", "rate"),
        ("[server]", "[sever]"),
        ("[[routes]]", "[[route]]"),
        ("\"3000/10m\"", "\"0/10m\""),
        ("\"3000/10m\"", "\"3000/10ms\""),
        ("\"3000/10m\"", "\"3000/32d\""),
        ("\"3000/10m\"", "\"4294967297/d\""),
        ("rates = [\"10/s\", \"3000/10m\"]", "rates = []"),
        ("client-ip", "client-ipp"),
        ("client-ip", "client-ip:129"),
        ("header:x-api-key", "header:x api key"),
        ("header:x-api-key", "path:nobody"),
        ("limits = [\"per-client\"]", "limits = [\"per-clint\"]"),
        ("{tenant}/*", "*/more"),
        ("{tenant}/*", "{tenant/*"),
        ("\"/v1", "\"v1"),
        ("weight = 2", "weight = 0"),
        ("http://10.0.1.1:9000", "ftp://10.0.1.1"),
        ("http://10.0.1.1:9000", "http://"),
        ("127.0.0.1:8080\"", "127.0.0.1:8080\"\nidle_timeout = \"5\""),
        ("127.0.0.1:8080\"", "127.0.0.1:8080\"\nmax_header_size = \"5 furlongs\""),
        ("127.0.0.1:8080\"", "127.0.0.1:8080\"\ntrusted_proxies = [\"10.0.0.0/33\"]"),
        ("upstream = \"api\"", ""),
        ("upstream = \"api\"", "upstream = \"api\"\nrespond = { status = 200 }"),
        ("upstream = \"api\"", "upstream = \"api\"\nmethods = [\"GE T\"]"),
    ];
    let mut accepted = Vec::new();
    for (good, bad) in mistakes {
        assert!(GOOD.contains(good), "{good}");
        let output = check(&GOOD.replacen(good, bad, 1));
        let (_, err) = texts(&output);
        if output.status.code() != Some(2) || !err.contains("gateway.toml:") {
            accepted.push(format!("{bad:?}: {:?} {err}", output.status.code()));
        }
    }
    assert!(accepted.is_empty(), "{}", accepted.join("\n"));
}

#[test]
fn a_missing_file_is_named() {
    for arguments in [&["--config", "/nowhere/gateway.toml"][..], &["check", "--config", "/nowhere/gateway.toml"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2));
        let (_, err) = texts(&output);
        assert!(err.contains("/nowhere/gateway.toml") && !err.contains("panicked"), "{err}");
    }
}

#[test]
fn a_broken_file_does_not_run() {
    let (_directory, path) = file("[[routes]]\npath = \"/\"\nupstream = \"nobody\"\n");
    let output = run(&["--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("nobody"));
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let routes = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
    let listeners = [
        format!("[server]\nlisten = \"{address}\"\n"),
        format!("[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"{address}\"\n"),
    ];
    for listener in listeners {
        let (_directory, path) = file(&format!("{listener}{routes}"));
        let output = run(&["--config", path.to_str().unwrap()]);
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains(&address) && !err.contains("panicked"), "{err}");
    }
}
