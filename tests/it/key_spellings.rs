//! Keys that operators write: another spelling of a host, a path or a segment than that of requests means the same key.

use std::fs;
use std::path::Path;

use crate::harness::{Client, Gateway, Response, run};

const ROUTES: &str = r#"
[[routes]]
path = "/h"
limits = ["host"]
respond = { status = 200 }
[[routes]]
path = "/p/*"
limits = ["path"]
respond = { status = 200 }
[[routes]]
path = "/c/{t}"
limits = ["segment"]
respond = { status = 200 }
[[routes]]
path = "/f/{t}"
ignore_case = true
limits = ["folded"]
respond = { status = 200 }
[limits.host]
key = "host"
rates = ["1000/d"]
[limits.path]
key = "path"
rates = ["1000/d"]
[limits.segment]
key = "path:t"
rates = ["1000/d"]
[limits.folded]
key = "path:t"
rates = ["1000/d"]
[limits.verb]
key = "method"
rates = ["1000/d"]
"#;

/// The limit, the key as an operator writes it, and the host and the target of a request that has it.
const KEYS: [(&str, &str, &str, &str); 12] = [
    ("host", "EVIL.test", "evil.test", "/h"),
    ("host", "evil2.test:8080", "evil2.test", "/h"),
    ("host", "evil3.test.", "Evil3.test", "/h"),
    ("path", "/p/evil/", "a", "/p/evil"),
    ("path", "/p//evil2", "a", "/p/evil2/"),
    ("path", "/p/caf\u{e9}", "a", "/p/caf%C3%A9"),
    ("path", "/p/ev il", "a", "/p/ev%20il"),
    ("segment", "a b", "a", "/c/a%20b"),
    ("segment", "caf\u{e9}", "a", "/c/caf%c3%a9"),
    ("segment", "x%2Cy", "a", "/c/x,y"),
    ("segment", "q%20r", "a", "/c/q%20r"),
    ("folded", "ACME", "a", "/f/Acme"),
];

const BLOCK: &str = r#"{"block":true,"for":"1h"}"#;

fn status(client: &mut Client, host: &str, target: &str) -> u16 {
    client.call(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).status
}

/// The same text with a setting in the table of a limit.
fn with(text: &str, limit: &str, setting: &str) -> String {
    let table = format!("[limits.{limit}]\n");
    text.replace(&table, &format!("{table}{setting}\n"))
}

fn config(more: &str) -> String {
    format!("{ROUTES}{more}")
}

#[test]
fn overrides_in_the_file_hold_for_requests_in_any_spelling() {
    let overrides = |(limit, key, ..): &(&str, &str, &str, &str)| {
        format!("[[limits.{limit}.overrides]]\nkeys = [{key:?}]\nblock = true\n")
    };
    let gateway = Gateway::start(&config(&KEYS.iter().map(overrides).collect::<String>()));
    let mut client = gateway.client();
    for (_, key, host, target) in KEYS {
        assert_eq!(status(&mut client, host, target), 403, "{key}");
    }
    for (host, target) in [("other.test", "/h"), ("a", "/p/other"), ("a", "/c/other"), ("a", "/f/other")] {
        assert_eq!(status(&mut client, host, target), 200, "{host} {target}");
    }
}

#[test]
fn overrides_in_another_file_hold_for_requests_in_any_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = config("");
    for limit in ["host", "path", "segment", "folded"] {
        let file = folder.path().join(format!("{limit}.csv"));
        let rows = KEYS.iter().filter(|(of, ..)| *of == limit).map(|(_, key, ..)| format!("{key},block\n"));
        fs::write(&file, "key,rates\n".to_owned() + &rows.collect::<String>()).unwrap();
        text = with(&text, limit, &format!("overrides_file = {file:?}"));
    }
    let gateway = Gateway::start(&text);
    let mut client = gateway.client();
    for (_, key, host, target) in KEYS {
        assert_eq!(status(&mut client, host, target), 403, "{key}");
    }
}

#[test]
fn known_keys_are_known_in_any_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = config("");
    for (limit, keys) in [
        ("host", "EVIL.test:80\n"),
        ("path", "/p/caf\u{e9}/\n"),
        ("segment", "caf\u{e9}\nx%2cy\n"),
        ("folded", "ACME\n"),
    ] {
        let file = folder.path().join(limit);
        fs::write(&file, keys).unwrap();
        text = with(&text, limit, &format!("missing = \"reject\"\nknown_keys = {file:?}"));
    }
    let gateway = Gateway::start(&text);
    let mut client = gateway.client();
    for (host, target, expected) in [
        ("evil.test", "/h", 200),
        ("other.test", "/h", 400),
        ("a", "/p/caf%C3%A9", 200),
        ("a", "/p/other", 400),
        ("a", "/c/caf%C3%A9", 200),
        ("a", "/c/x,y", 200),
        ("a", "/c/other", 400),
        ("a", "/f/aCMe", 200),
    ] {
        assert_eq!(status(&mut client, host, target), expected, "{host} {target}");
    }
}

/// Both sources may have a text, but count it differently.
#[test]
fn an_override_holds_for_each_source_in_the_form_in_which_that_is_counted() {
    let overrides = "[limits.l]\nkey = \"header:x-key | host\"\nrates = [\"1000/d\"]\n\
                     [[limits.l.overrides]]\nkeys = [\"Evil.test\"]\nblock = true\n\
                     [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(overrides);
    let mut client = gateway.client();
    for (host, fields, expected) in [
        ("evil.test", "", 403),
        ("a", "X-Key: Evil.test\r\n", 403),
        ("a", "X-Key: EVIL.test\r\n", 200),
        ("other.test", "", 200),
    ] {
        let got = client.call(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")).status;
        assert_eq!(got, expected, "{host} {fields}");
    }
}

#[test]
fn a_network_is_a_key_as_the_gateway_shows_it() {
    let text = "[limits.l]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n\
                [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(text);
    for key in ["2001:DB8:0::1", "2001:db8::/64", "192.0.2.7/32"] {
        assert_eq!(call(&gateway, "GET", "l", key, "").status, 200, "{key}");
    }
    for key in ["2001:db8::/56", "192.0.2.0/24", "evil.test"] {
        assert_eq!(call(&gateway, "GET", "l", key, "").status, 400, "{key}");
    }
}

fn call(gateway: &Gateway, method: &str, limit: &str, key: &str, body: &str) -> Response {
    let key: String = percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC).collect();
    ask(gateway, method, &format!("{limit}/keys/{key}"), body)
}

fn ask(gateway: &Gateway, method: &str, path: &str, body: &str) -> Response {
    let (host, length) = (gateway.admin, body.len());
    Client::connect(gateway.admin)
        .call(format!("{method} /api/limits/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"))
}

/// The keys with an override, as the admin API shows them.
fn listed(gateway: &Gateway, limit: &str) -> Vec<String> {
    let list = ask(gateway, "GET", &format!("{limit}/overrides"), "").json();
    list["overrides"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_admin_api_means_the_key_of_requests_in_any_spelling() {
    let gateway = Gateway::start(&config(""));
    let mut client = gateway.client();
    for (limit, key, host, target) in KEYS {
        assert_eq!(status(&mut client, host, target), 200, "{key}");
        let shown = call(&gateway, "GET", limit, key, "").json();
        assert_eq!(shown["rates"][0]["used"], 1, "{key}: {shown}");
        let set = call(&gateway, "PUT", limit, key, BLOCK);
        assert_eq!(set.status, 200, "{key}: {}", set.text());
        assert_eq!(status(&mut client, host, target), 403, "{key}");
        assert_eq!(call(&gateway, "DELETE", limit, key, "").status, 200, "{key}");
        assert_eq!(status(&mut client, host, target), 200, "{key}");
    }
}

#[test]
fn the_admin_api_means_each_part_of_a_key_in_any_spelling() {
    let text = "[limits.l]\nkey = [\"host\", \"path:t\", \"method\"]\nrates = [\"9/d\"]\n\
                [[routes]]\npath = \"/{t}\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(text);
    let mut client = gateway.client();
    assert_eq!(call(&gateway, "PUT", "l", "EVIL.test:80|a b|GET", BLOCK).status, 200);
    assert_eq!(status(&mut client, "evil.test", "/a%20b"), 403);
    assert_eq!(status(&mut client, "evil.test", "/ab"), 200);
    assert_eq!(call(&gateway, "PUT", "l", "EVIL.test:80|a b|get", BLOCK).status, 400);
}

/// Some routes of the limit ignore the case of paths, and others do not. One is a pool.
#[test]
fn an_override_holds_for_each_case_in_which_routes_count() {
    let text = "[limits.l]\nkey = \"client-ip\"\nrates = [\"1/d\"]\noverflow = \"pool\"\n\
                [limits.pool]\nkey = \"path:t\"\nrates = [\"1000/d\"]\n\
                [[limits.pool.overrides]]\nkeys = [\"ACME\"]\nblock = true\n\
                [[routes]]\npath = \"/f/{t}\"\nignore_case = true\nlimits = [\"l\"]\nrespond = { status = 200 }\n\
                [[routes]]\npath = \"/c/{t}\"\nlimits = [\"pool\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(text);
    let mut client = gateway.client();
    for (target, expected) in [("/f/x", 200), ("/f/x", 200), ("/f/aCMe", 429), ("/c/ACME", 403), ("/c/aCMe", 200)] {
        assert_eq!(status(&mut client, "a", target), expected, "{target}");
    }
}

#[test]
fn the_admin_api_lists_the_key_of_requests_and_accepts_what_it_lists() {
    let gateway = Gateway::with_admin("show_keys = true", &config(""));
    for (limit, key, shown) in
        [("host", "EVIL.test:80", "evil.test"), ("path", "/p//caf\u{e9}/", "/p/caf%C3%A9"), ("segment", "a b", "a%20b")]
    {
        assert_eq!(call(&gateway, "PUT", limit, key, BLOCK).status, 200, "{key}");
        assert_eq!(listed(&gateway, limit), [shown]);
        assert_eq!(call(&gateway, "DELETE", limit, shown, "").status, 200);
        assert!(listed(&gateway, limit).is_empty());
    }
}

#[test]
fn keys_that_no_request_has_are_refused_in_the_same_words() {
    let gateway = Gateway::start(&config(""));
    for (limit, key) in
        [("host", "a b"), ("path", "p/evil"), ("path", "/a/../b"), ("segment", "/acme"), ("verb", "get")]
    {
        for (method, body) in [("GET", ""), ("PUT", BLOCK), ("DELETE", "")] {
            let refused = call(&gateway, method, limit, key, body);
            assert_eq!(refused.status, 400, "{method} {key}: {}", refused.text());
        }
        let refused = call(&gateway, "GET", limit, key, "").json();
        let sentence = refused["detail"].as_str().unwrap().split_once(" has no such key: ").unwrap().1;
        let (message, help) = sentence.split_once("`: ").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let overrides = format!("[[limits.{limit}.overrides]]\nkeys = [{key:?}]\nblock = true\n");
        let checked = check(folder.path(), &config(&overrides));
        assert!(checked.contains(&format!("error: {message}`")), "{sentence}\n{checked}");
        assert!(checked.contains(&format!("help: {}", help.trim_end_matches('.'))), "{sentence}\n{checked}");
    }
}

#[test]
fn a_member_that_an_override_has_twice_is_refused() {
    let gateway = Gateway::start(&config(""));
    let body = r#"{"block":true,"for":"1h","for":"1s"}"#;
    let refused = call(&gateway, "PUT", "host", "a", body);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("duplicate field `for`"), "{}", refused.text());
}

/// What `gateway check` says of a file with this text, which has an error.
fn check(folder: &Path, text: &str) -> String {
    let file = folder.join("gateway.toml");
    fs::write(&file, text).unwrap();
    let output = run(&["check", "--config", file.to_str().unwrap()]);
    assert!(!output.status.success(), "{text}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn addresses_mean_the_clients_that_have_their_counter() {
    let limits = r#"
[limits.address]
key = "client-ip"
rates = ["1000/d"]
[[limits.address.overrides]]
keys = ["2001:db8::1", "::ffff:192.0.2.8", "::ffff:198.51.100.0/120"]
block = true
[limits.either]
key = "header:x-api-key | client-ip"
rates = ["1000/d"]
[[limits.either.overrides]]
keys = ["192.0.2.7"]
exempt = true
[[limits.either.overrides]]
keys = ["*"]
block = true
[[routes]]
path = "/address"
limits = ["address"]
respond = { status = 200 }
[[routes]]
path = "/either"
limits = ["either"]
respond = { status = 200 }
"#;
    let gateway = Gateway::with_server("trusted_proxies = [\"::ffff:127.0.0.1/128\"]", limits);
    let mut client = gateway.client();
    for (path, from, expected) in [
        ("/address", "2001:db8::2", 403),
        ("/address", "2001:db8:0:1::1", 200),
        ("/address", "192.0.2.8", 403),
        ("/address", "::ffff:192.0.2.8", 403),
        ("/address", "198.51.100.9", 403),
        ("/address", "192.0.2.9", 200),
        ("/either", "192.0.2.7", 200),
        ("/either", "192.0.2.9", 403),
        ("/either", "2001:db8::9", 403),
    ] {
        let answered = client.get_with(path, format!("X-Forwarded-For: {from}\r\n"));
        assert_eq!(answered.status, expected, "{path} {from}");
    }
    assert_eq!(client.get_with("/either", "X-Api-Key: k\r\n").status, 403);
}
