//! Keys with other allowances than a limit's own rates: overrides, tiers, exemptions and blocks.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::harness::{Client, Gateway, every_store};

const ROUTES: &str = r#"
[[routes]]
path = "/key"
limits = ["by-key"]
respond = { status = 200 }

[[routes]]
path = "/ip"
limits = ["by-ip"]
respond = { status = 200 }
"#;

const LIMITS: &str = r#"
[limits.by-key]
key = ["header:x-key | client-ip", "method"]
rates = ["2/d"]
tier = "header:x-plan"

[limits.by-key.tiers.silver]
rates = ["4/d"]
[limits.by-key.tiers.gold]
rates = ["6/d", "1000/10d"]

[[limits.by-key.overrides]]
keys = ["partner-7", "big-*"]
rates = ["5/d"]
[[limits.by-key.overrides]]
keys = ["partner-*"]
rates = ["3/d"]
[[limits.by-key.overrides]]
keys = ["monitor", "127.0.0.3"]
exempt = true
[[limits.by-key.overrides]]
keys = ["thief"]
block = true

[limits.by-ip]
key = "client-ip"
rates = ["1/d"]
[[limits.by-ip.overrides]]
keys = ["127.0.0.2", "127.0.1.0/24"]
rates = ["3/d"]
[[limits.by-ip.overrides]]
keys = ["127.0.0.0/16"]
block = true
"#;

fn admitted(client: &mut Client, path: &str, fields: &str) -> usize {
    (0..8).filter(|_| client.get_with(path, fields).status == 200).count()
}

#[test]
fn keys_get_the_first_override_that_matches() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{LIMITS}{ROUTES}"));
        let mut client = gateway.client();
        let cases = [
            ("X-Key: somebody\r\n", 2),
            ("X-Key: partner-7\r\n", 5),
            ("X-Key: partner-8\r\n", 3),
            ("X-Key: big-\r\n", 5),
            ("X-Key: big\r\n", 2),
            ("X-Key: monitor\r\n", 8),
            ("X-Key: thief\r\n", 0),
            // No header changes the address.
            ("X-Key: 127.0.0.3\r\n", 2),
            ("X-Key: s\r\nX-Plan: silver\r\n", 4),
            ("X-Key: g\r\nX-Plan: gold\r\n", 6),
            ("X-Key: u\r\nX-Plan: unknown\r\n", 2),
            // An override of the key comes before its tier.
            ("X-Key: big-1\r\nX-Plan: gold\r\n", 5),
        ];
        for (fields, expected) in cases {
            assert_eq!(admitted(&mut client, "/key", fields), expected, "{fields:?}, {store}");
        }
        client.get_with("/key", "X-Key: thief\r\n").expect_problem(403);
        let exempt = client.get_with("/key", "X-Key: monitor\r\n");
        assert!(exempt.headers.get("ratelimit").is_none(), "{exempt:?}");
    });
}

#[test]
fn headers_state_the_rates_that_apply() {
    let gateway = Gateway::start(&format!("{LIMITS}{ROUTES}"));
    let mut client = gateway.client();
    let policy =
        |client: &mut Client, fields: &str| client.get_with("/key", fields).headers.must("ratelimit-policy").to_owned();
    for _ in 0..2 {
        assert_eq!(policy(&mut client, "X-Key: a\r\n"), "\"by-key\";q=2;w=86400");
        assert_eq!(policy(&mut client, "X-Key: partner-7\r\n"), "\"by-key\";q=5;w=86400");
        let gold = "\"by-key-d\";q=6;w=86400, \"by-key-10d\";q=1000;w=864000";
        assert_eq!(policy(&mut client, "X-Key: b\r\nX-Plan: gold\r\n"), gold);
    }
}

#[test]
fn addresses_get_the_override_of_their_network() {
    every_store(|store| {
        let gateway = Gateway::start(&format!("{store}{LIMITS}{ROUTES}"));
        let from = |ip: &str| Client::connect_from(ip.parse::<IpAddr>().unwrap(), gateway.http);
        assert_eq!(admitted(&mut from("127.0.0.2"), "/ip", ""), 3, "{store}");
        assert_eq!(admitted(&mut from("127.0.1.200"), "/ip", ""), 3, "{store}");
        assert_eq!(admitted(&mut from("127.0.7.7"), "/ip", ""), 0, "{store}");
        assert_eq!(from("127.0.7.7").get("/ip").status, 403, "{store}");
        assert_eq!(admitted(&mut from("127.7.0.1"), "/ip", ""), 1, "{store}");
        assert_eq!(admitted(&mut from("127.0.0.3"), "/key", ""), 8, "{store}");
        assert_eq!(admitted(&mut from("127.0.0.4"), "/key", ""), 2, "{store}");
    });
}

fn with_file(file: &Path) -> String {
    let limit = "[limits.l]\nkey = \"header:x-key\"\nrates = [\"1/d\"]\n";
    let route = "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    format!("{limit}overrides_file = {:?}\n{route}", file.to_str().unwrap())
}

#[test]
fn overrides_come_from_a_file_that_a_reload_reads_again() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, toml) = (folder.path().join("quotas.csv"), folder.path().join("quotas.toml"));
    fs::write(&csv, "key,rates\npartner-7,3/d 100/10d\nmonitor,exempt\n\"a,b\",block\ngold-*,2/d\n").unwrap();
    let entry = |keys: &str, grants: &str| format!("[[overrides]]\nkeys = [{keys}]\n{grants}\n");
    let entries = entry("\"partner-7\"", "rates = [\"3/d\", \"100/10d\"]")
        + &entry("\"monitor\"", "exempt = true")
        + &entry("\"a,b\"", "block = true")
        + &entry("\"gold-*\"", "rates = [\"2/d\"]");
    fs::write(&toml, entries).unwrap();
    for file in [&csv, &toml] {
        let gateway = Gateway::start(&with_file(file));
        let mut client = gateway.client();
        for (key, expected) in [("partner-7", 3), ("monitor", 8), ("a,b", 0), ("gold-1", 2), ("other", 1)] {
            assert_eq!(admitted(&mut client, "/", &format!("X-Key: {key}\r\n")), expected, "{key}, {file:?}");
        }
    }
    let gateway = Gateway::start(&with_file(&csv));
    let mut client = gateway.client();
    assert_eq!(admitted(&mut client, "/", "X-Key: partner-7\r\n"), 3);
    fs::write(&csv, "key,rates\npartner-7,5/d 100/10d\n").unwrap();
    gateway.reload("", &with_file(&csv));
    gateway.wait_message("reloaded");
    assert_eq!(admitted(&mut client, "/", "X-Key: partner-7\r\n"), 2, "what was counted stays");
    fs::write(&csv, "key,rates\npartner-7,5/day/night\n").unwrap();
    gateway.reload("", &with_file(&csv));
    gateway.wait_log("the refusal", |line| line.to_string().contains("quotas.csv:2:11"));
    assert_eq!(client.get_with("/", "X-Key: partner-7\r\n").headers.must("ratelimit-policy").matches("q=5").count(), 1);
}

#[test]
fn no_header_gives_a_client_the_override_of_another() {
    let gateway = Gateway::with_server("max_header_size = \"256KiB\"", &format!("{LIMITS}{ROUTES}"));
    let mut client = gateway.client();
    let long = "a".repeat(64 << 10);
    let lines: Vec<Vec<u8>> = vec![
        [b"X-Key: big-", long.as_bytes(), b"\r\n"].concat(),
        b"X-Key: \xff\xfe\r\n".to_vec(),
        b"X-Key: big-\xff\r\n".to_vec(),
        b"X-Key: partner-7\xff\r\n".to_vec(),
        [b"X-Key: x\r\nX-Plan: ", long.as_bytes(), b"\r\n"].concat(),
        b"X-Key: y\r\nX-Plan: gold\xff\r\n".to_vec(),
        b"X-Key: z\r\nX-Plan: gold, silver\r\n".to_vec(),
        b"X-Key: partner-7, monitor\r\n".to_vec(),
    ];
    let expected = [5, 2, 5, 3, 2, 2, 2, 3];
    for (line, expected) in lines.iter().zip(expected) {
        let admitted = (0..8).filter(|_| client.get_with("/key", line).status == 200).count();
        assert_eq!(admitted, expected, "{}", String::from_utf8_lossy(&line[..line.len().min(40)]));
    }
    // The client with that address has not been charged.
    assert_eq!(admitted(&mut client, "/key", "X-Key: partner-7\r\n"), 5);
}
