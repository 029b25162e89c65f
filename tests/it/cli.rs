//! The command line: what it prints, where, and with which exit code.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Output;

use tempfile::TempDir;

use crate::harness::{Authority, run};

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
    let output = check(GOOD);
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

/// What the lines of a file are that only wait to be used: tables with their keys, and keys of the table above them, each
/// group of them on its own. All are the numbers of their lines.
fn commented(file: &[&str]) -> Vec<Vec<usize>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (number, line) in file.iter().enumerate() {
        let Some(text) = line.strip_prefix("# ") else { continue };
        let is_key = text.split_once(" = ").is_some_and(|(key, _)| key.chars().all(is_name));
        let is_table = text.starts_with('[');
        if !is_key && !is_table {
            continue;
        }
        // A line without anything does not divide what belongs to a table.
        let begun = groups.last_mut().filter(|group| {
            let between = &file[group[group.len() - 1] + 1..number];
            let begins_with_table = file[group[0]].starts_with("# [");
            between.iter().all(|line| line.starts_with('#')) && (begins_with_table || !is_table)
        });
        match begun {
            Some(group) => group.push(number),
            None => groups.push(vec![number]),
        }
    }
    groups
}

/// The file, where some lines are used. A table that they have, too, is not: there is one of each, except in lists.
fn used(file: &[&str], lines: &[usize]) -> String {
    let title = |line: &str| line.split_once(']').map_or("", |(title, _)| title).to_owned();
    let replaced = Some(title(&file[lines[0]][2..])).filter(|title| !title.starts_with("[["));
    let (mut is_replaced, mut text) = (false, String::new());
    for (number, line) in file.iter().enumerate() {
        if line.starts_with('[') {
            is_replaced = replaced.as_ref() == Some(&title(line));
        }
        let used = if lines.contains(&number) { line.strip_prefix("# ").unwrap() } else { line };
        is_replaced &= !lines.contains(&number);
        text += if is_replaced { "" } else { used };
        text += "\n";
    }
    text
}

#[test]
fn every_line_of_the_example_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    write("keys.txt", b"k-1\n");
    write("admin-token", b"secret\n");
    let authority = Authority::new();
    let client = authority.issue("client", "client", &["client.test"]);
    std::fs::create_dir(folder.path().join("tls")).unwrap();
    write("tls/client.pem", &std::fs::read(&client.cert).unwrap());
    write("tls/client.key", &std::fs::read(&client.key).unwrap());
    write("tls/ca.pem", &std::fs::read(&client.cert).unwrap());
    let path = folder.path().join("gateway.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
        let output = command.arg("check").arg(&path).env("COLLECTOR_TOKEN", "secret").output().unwrap();
        if output.status.success() { Ok(()) } else { Err(texts(&output).1) }
    };
    let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.toml")).unwrap();
    let file: Vec<_> = file.lines().collect();
    let groups = commented(&file);
    assert!(groups.len() >= 10, "{groups:?}");
    for group in groups {
        if file[group[0]].starts_with("# [") {
            check(&used(&file, &group)).unwrap_or_else(|why| panic!("{}: {why}", file[group[0]]));
            continue;
        }
        // A key may need the keys above it.
        for (index, line) in group.iter().enumerate() {
            let alone = check(&used(&file, &[*line]));
            let with_others = || check(&used(&file, &group[..=index]));
            alone.or_else(|why| with_others().map_err(|_| why)).unwrap_or_else(|why| panic!("{}: {why}", file[*line]));
        }
    }
}

/// The indented blocks of a page that define limits.
fn examples(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().unwrap().extend([code, "\n"]),
            None if line.is_empty() => blocks.last_mut().unwrap().push('\n'),
            None => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| block.contains("[limits."));
    blocks
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    let examples = examples(include_str!("../../docs/limits.md"));
    assert!(examples.len() >= 6, "only {} examples", examples.len());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("quotas.csv"), "key,rates\npartner-7,500/s 50000000/month\nstolen-key,block\n")
        .unwrap();
    std::fs::write(folder.path().join("keys.txt"), "partner-7\n").unwrap();
    for example in examples {
        let names: Vec<_> =
            example.lines().filter_map(|line| line.strip_prefix("[limits.")?.strip_suffix(']')).collect();
        let names: Vec<_> = names.into_iter().filter(|name| !name.contains('.')).collect();
        let route =
            format!("[[routes]]\npath = \"/{{customer}}/*\"\nlimits = {names:?}\nrespond = {{ status = 200 }}\n");
        let file = folder.path().join("gateway.toml");
        std::fs::write(&file, example.clone() + &route).unwrap();
        let output = run(&["check", "--config", file.to_str().unwrap()]);
        assert!(output.status.success(), "{example}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
