//! Keys that are listed in a file: an invented key counts as no key.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::harness::{Client, Gateway, every_store, limited, run};

/// The digest of `real-2`, as `printf %s real-2 sha256sum` prints it.
const DIGEST: &str = "a853d9256fbf40b1b341fe7690e97655471b5dd71f7683acb031f32e3c264408";

fn config(key: &str, file: &Path, more: &str) -> String {
    limited(key, "2/d", &format!("known_keys = {:?}\n{more}", file.to_str().unwrap()))
}

/// How many of six requests with these fields are admitted; `#` is another number in each.
fn admitted(client: &mut Client, fields: &str) -> usize {
    (0..6).filter(|number| client.get_with("/", fields.replace('#', &number.to_string())).status == 200).count()
}

#[test]
fn invented_keys_share_the_counter_of_their_address() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, format!("# partners\nreal-1\r\n\nsha256:{DIGEST}\n")).unwrap();
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &config("header:x-key | client-ip", &keys, "")));
        let from = |address: &str| Client::connect_from(address.parse().unwrap(), gateway.http);
        let (mut one, mut two) = (from("127.0.0.2"), from("127.0.0.3"));
        assert_eq!(admitted(&mut one, "X-Key: made-up-#\r\n"), 2, "{store}");
        assert_eq!(admitted(&mut one, ""), 0, "{store}");
        assert_eq!(admitted(&mut one, &format!("X-Key: sha256:{DIGEST}\r\n")), 0, "{store}");
        for key in ["real-1", "real-2"] {
            assert_eq!(admitted(&mut one, &format!("X-Key: {key}\r\n")), 2, "{store}");
        }
        assert_eq!(admitted(&mut two, &format!("X-Key: {}\r\n", "k".repeat(5000))), 2, "{store}");
        assert_eq!(admitted(&mut two, "X-Key: real-1\r\n"), 0, "{store}");
    });
}

#[test]
fn every_source_that_clients_choose_is_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "real\n").unwrap();
    for (key, request) in [
        ("query:key | client-ip", "GET /?key=@"),
        ("cookie:sid | client-ip", "GET / HTTP/1.1\r\nCookie: sid=@"),
        ("bearer | client-ip", "GET / HTTP/1.1\r\nAuthorization: Bearer @"),
        ("host | client-ip", "GET / HTTP/1.1\r\nX-Host: @"),
    ] {
        let gateway = Gateway::start(&config(key, &keys, ""));
        let mut client = gateway.client();
        let mut ask = |value: String| {
            let host = if key.starts_with("host") { &value } else { "a" };
            let request = request.replace('@', &value);
            let version = if request.contains("HTTP/1.1") { "" } else { " HTTP/1.1" };
            client.call(format!("{request}{version}\r\nHost: {host}\r\n\r\n")).status
        };
        assert_eq!([(); 3].map(|()| ask("real".to_owned())), [200, 200, 429], "{key}");
        assert_eq!([1, 2, 3].map(|number| ask(format!("made-up-{number}"))), [200, 200, 429], "{key}");
    }
}

#[test]
fn without_another_source_they_have_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "real\n").unwrap();
    for (missing, expected) in [("shared", 200), ("skip", 200), ("reject", 400)] {
        let gateway = Gateway::start(&config("header:x-key", &keys, &format!("missing = {missing:?}")));
        let mut client = gateway.client();
        assert_eq!(client.get_with("/", "X-Key: made-up\r\n").status, expected, "{missing}");
        assert_eq!(
            admitted(&mut client, "X-Key: made-up-#\r\n"),
            if missing == "skip" { 6 } else { usize::from(missing == "shared") }
        );
        assert_eq!(admitted(&mut client, "X-Key: real\r\n"), 2, "{missing}");
    }
}

#[test]
fn a_key_that_is_not_known_gets_no_override_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "gold-1\n").unwrap();
    let overrides = "[[limits.l.overrides]]\nkeys = [\"gold-*\"]\nexempt = true\n\
                     [[limits.l.overrides]]\nkeys = [\"127.0.0.9\"]\nblock = true\n";
    let gateway = Gateway::start(&config("header:x-key | client-ip", &keys, overrides));
    let mut client = gateway.client();
    assert_eq!(admitted(&mut client, "X-Key: gold-1\r\n"), 6);
    assert_eq!(admitted(&mut client, "X-Key: gold-2\r\n"), 2);
    let mut blocked = Client::connect_from([127, 0, 0, 9].into(), gateway.http);
    assert_eq!(blocked.get_with("/", "X-Key: made-up\r\n").status, 403, "it comes from an address that is blocked");
}

#[test]
fn a_reload_reads_them_again_or_keeps_the_last_valid_ones() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "first\n").unwrap();
    let config = config("header:x-key | client-ip", &keys, "");
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    assert_eq!(admitted(&mut client, "X-Key: first\r\n"), 2);
    assert_eq!(admitted(&mut client, "X-Key: second\r\n"), 2, "by address");
    fs::write(&keys, "second\n").unwrap();
    gateway.reload("", &config);
    gateway.wait_message("reloaded");
    assert_eq!(admitted(&mut client, "X-Key: second\r\n"), 2);
    assert_eq!(admitted(&mut client, "X-Key: first\r\n"), 0, "by address");
    for (broken, why) in
        [("third\nsha256:12\n", "keys.txt:2:10: this is not a digest"), ("", "keys.txt:1:1: the file has no keys")]
    {
        fs::write(&keys, broken).unwrap();
        gateway.reload("", &config);
        gateway.wait_log("the refusal", |line| line.to_string().contains(why));
    }
    assert_eq!(admitted(&mut client, "X-Key: third\r\n"), 0, "by address");
}

#[test]
fn check_counts_them_and_explain_finds_none() {
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("gateway.toml"), folder.path().join("keys.txt"));
    fs::write(&keys, format!("real-1\nreal-1\nsha256:{DIGEST}\nreal-2\n")).unwrap();
    fs::write(&file, config("header:x-key | client-ip", Path::new("keys.txt"), "")).unwrap();
    let said = |arguments: &[&str]| {
        let output = run(&[arguments, &["--config", file.to_str().unwrap()]].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&["check"]);
    assert!(code == Some(0) && text.contains("    2 known key(s); any other key counts as missing\n"), "{text}");
    let (_, text) = said(&["explain", "-H", "x-key: made-up", "/"]);
    assert!(
        text.contains("*** from client-ip") && text.contains("the value of header:x-key is not in known_keys"),
        "{text}"
    );
    assert!(!text.contains("made-up"), "{text}");
    let (_, text) = said(&["explain", "-H", "x-key: real-2", "/"]);
    assert!(text.contains("*** from header:x-key") && !text.contains("known_keys"), "{text}");

    fs::remove_file(&keys).unwrap();
    mknodat(CWD, &keys, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (code, text) = said(&["check"]);
    assert!(code == Some(2) && text.contains("it is a named pipe, not a file"), "{text}");
}

#[test]
fn a_million_of_them_are_read_in_time() {
    // A tenth in builds without optimisation, which take ten times as long.
    let count = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("gateway.toml"), folder.path().join("keys.txt"));
    let lines: Vec<_> = (0..count).map(|number| format!("key-{number}\n")).collect();
    fs::write(&keys, lines.concat()).unwrap();
    fs::write(&file, config("header:x-key", Path::new("keys.txt"), "")).unwrap();
    let output = run(&["check", "--config", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("{count} known key(s)")), "{output:?}");
}

const SHIPPED: &str = include_str!("../../gateway.toml");

#[test]
fn the_shipped_file_limits_clients_that_invent_keys() {
    let rest = SHIPPED.split_once("[upstreams.echo]").unwrap().1;
    let rest = rest.replace("\"10/s\", ", "").replace("3000/10m", "10/d");
    let gateway = Gateway::start(&format!("[upstreams.echo]{rest}"));
    let mut client = gateway.client();
    let statuses: Vec<_> =
        (0..12).map(|number| client.get_with("/", format!("X-Api-Key: k{number}\r\n")).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 2, "{statuses:?}");
}

/// Whether clients can omit or invent this source.
fn is_chosen(source: &str) -> bool {
    ["header:", "cookie:", "query:", "bearer"].iter().any(|kind| source.contains(kind))
}

#[test]
fn no_example_is_evaded_by_omitting_or_inventing_a_header() {
    let pages = [include_str!("../../docs/limits.md"), include_str!("../../docs/reference.md"), SHIPPED];
    let blocks = pages.iter().flat_map(|page| page.split("\n\n")).filter(|block| block.contains("[limits."));
    let mut examples = 0;
    for block in blocks {
        let settings = block.lines().filter_map(|line| line.trim_start_matches(['#', ' ']).split_once(" = "));
        let settings: Vec<_> = settings.map(|(name, value)| (name.trim(), value)).collect();
        let has = |wanted: &str| settings.iter().any(|(name, _)| *name == wanted);
        for (name, value) in &settings {
            let is_wrong = match *name {
                "key" => is_chosen(value) && !has("known_keys"),
                "tier" => is_chosen(value),
                "cost" => value.contains("request_header"),
                "missing" => value.starts_with("\"skip\""),
                _ => false,
            };
            assert!(!is_wrong, "{name} = {value} in:\n{block}");
        }
        examples += usize::from(has("key"));
    }
    assert!(examples >= 10, "only {examples} examples");
}
