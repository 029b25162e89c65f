//! The counters of one key in the admin API: how they are shown and forgotten.

use std::fmt::Write as _;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use crate::harness::{
    self, Client, Gateway, Response, Signer, Software, every_store, limited, until, with_each_server,
};

fn call(gateway: &Gateway, method: &str, path: &str) -> Response {
    Client::connect(gateway.admin).call(format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin))
}

fn key(gateway: &Gateway, path: &str) -> Value {
    let response = call(gateway, "GET", &format!("/api/limits/{path}"));
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.json()
}

fn used(gateway: &Gateway, path: &str) -> Value {
    key(gateway, path)["rates"][0]["used"].clone()
}

#[test]
fn the_counters_of_a_key_are_shown_and_forgotten() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &limited("header:x-api-key | client-ip", "3/d", "")));
        let mut client = gateway.client();
        let mut ask = |name: &str| client.get_with("/", format!("x-api-key: {name}\r\n")).status;
        assert_eq!(
            key(&gateway, "l/keys/a%2Fb%20c")["rates"][0],
            json!({ "rate": "3/d", "used": 0, "remaining": 3, "reset": 0 })
        );
        assert_eq!([(); 2].map(|()| ask("a/b c")), [200; 2]);
        until("it is counted", Duration::from_secs(10), || used(&gateway, "l/keys/a%2Fb%20c") == 2);
        let shown = key(&gateway, "l/keys/a%2Fb%20c");
        assert_eq!((&shown["admitted"], &shown["retry_after"]), (&json!(true), &json!(null)));
        assert_eq!([(); 2].map(|()| ask("a/b c")), [200, 429]);
        until("it is counted", Duration::from_secs(10), || used(&gateway, "l/keys/a%2Fb%20c") == 3);
        let shown = key(&gateway, "l/keys/a%2Fb%20c");
        assert_eq!(shown["admitted"], false);
        assert!((1..=2 * 86_400).contains(&shown["retry_after"].as_u64().unwrap()), "{shown}");
        assert_eq!(ask("other"), 200);
        until("it is counted", Duration::from_secs(10), || used(&gateway, "l/keys/other") == 1);
        let forgotten = call(&gateway, "DELETE", "/api/limits/l/keys/a%2Fb%20c");
        assert_eq!((forgotten.status, &forgotten.json()["rates"][0]["used"]), (200, &json!(0)));
        assert_eq!(used(&gateway, "l/keys/other"), 1);
        // A remembered refusal of this process may hold for a moment.
        until("it starts anew", Duration::from_secs(10), || ask("a/b c") == 200);
    });
}

#[test]
fn an_address_is_a_key_too_and_so_are_several_parts() {
    let text = limited("client-ip", "9/d", "")
        + "[limits.m]\nkey = [\"header:x-api-key\", \"method\"]\nrates = [\"9/d\"]\n\
           [[routes]]\npath = \"/m\"\nlimits = [\"m\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&text);
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    assert_eq!(used(&gateway, "l/keys/127.0.0.1"), 1);
    (0..3).for_each(|_| drop(client.get_with("/m", "x-api-key: a|b\r\n")));
    assert_eq!(used(&gateway, "m/keys/a%7Cb|GET"), 3);
    (0..2).for_each(|_| drop(client.get_with("/m", "x-api-key: k\r\n")));
    assert_eq!(used(&gateway, "m/keys/k%7CGET"), 2);
    assert_eq!(used(&gateway, "m/keys/k|POST"), 0);
    drop(client.get("/m"));
    assert_eq!(used(&gateway, "m/keys/|GET"), 1);
    for (path, status) in [
        ("l/keys/not-an-address", 400),
        ("m/keys/k|get", 400),
        ("m/keys/k", 404),
        ("m/keys/a|b|GET", 404),
        ("nothing/keys/k", 404),
        ("l/nothing", 404),
    ] {
        let response = call(&gateway, "GET", &format!("/api/limits/{path}"));
        assert_eq!(response.status, status, "{path}");
        assert_eq!(response.headers.get("content-type"), Some("application/problem+json"));
    }
}

#[test]
fn overrides_have_their_own_rates() {
    let overrides = "[[limits.l.overrides]]\nkeys = [\"partner-*\"]\nrates = [\"100/d\"]\n\
                     [[limits.l.overrides]]\nkeys = [\"free\"]\nexempt = true\n\
                     [[limits.l.overrides]]\nkeys = [\"bad\"]\nblock = true\n";
    let plain = limited("header:x-api-key", "5/d", "");
    let (limit, route) = plain.split_once("[[routes]]").unwrap();
    let gateway = Gateway::start(&format!("{limit}{overrides}[[routes]]{route}"));
    let mut client = gateway.client();
    drop(client.get_with("/", "x-api-key: partner-7\r\n"));
    let shown = key(&gateway, "l/keys/partner-7");
    assert_eq!((&shown["rates"][0]["rate"], &shown["rates"][0]["used"]), (&json!("100/d"), &json!(1)));
    assert_eq!(call(&gateway, "DELETE", "/api/limits/l/keys/partner-7").json()["rates"][0]["used"], 0);
    let exempt = json!({ "rates": [], "from": "file", "admitted": true, "retry_after": null, "banned_until": null, "exempt": true });
    assert_eq!(key(&gateway, "l/keys/free"), exempt);
    let blocked = json!({ "rates": [], "from": "file", "admitted": false, "retry_after": null, "banned_until": null, "block": true });
    assert_eq!(key(&gateway, "l/keys/bad"), blocked);
}

#[test]
fn of_a_key_with_several_tiers_the_fullest_is_shown_and_all_are_forgotten() {
    let plain = limited("header:x-api-key", "5/d", "tier = \"header:x-plan\"");
    let (limit, route) = plain.split_once("[[routes]]").unwrap();
    let gateway = Gateway::start(&format!("{limit}[limits.l.tiers.gold]\nrates = [\"10/2d\"]\n[[routes]]{route}"));
    let mut client = gateway.client();
    (0..2).for_each(|_| drop(client.get_with("/", "x-api-key: k\r\n")));
    (0..8).for_each(|_| drop(client.get_with("/", "x-api-key: k\r\nx-plan: gold\r\n")));
    let shown = key(&gateway, "l/keys/k");
    assert_eq!((&shown["rates"][0]["rate"], &shown["rates"][0]["used"]), (&json!("10/2d"), &json!(8)));
    call(&gateway, "DELETE", "/api/limits/l/keys/k");
    for plan in ["", "x-plan: gold\r\n"] {
        let mut statuses = (0..5).map(|_| client.get_with("/", format!("x-api-key: k\r\n{plan}")).status);
        assert!(statuses.all(|status| status == 200), "{plan}");
    }
}

fn a_store_that_is_away_is_an_answer(software: Software) {
    let mut server = software.start();
    let store = server.store();
    let gateway = Gateway::start(&(store + &limited("header:x-api-key", "5/d", "")));
    until("it answers", Duration::from_secs(10), || call(&gateway, "GET", "/api/limits/l/keys/k").status == 200);
    let body = r#"{"block": true, "for": "1h"}"#;
    let request = |method: &str, body: &str| {
        let length = format!("Host: {}\r\nContent-Length: {}", gateway.admin, body.len());
        Client::connect(gateway.admin).call(format!("{method} /api/limits/l/keys/k HTTP/1.1\r\n{length}\r\n\r\n{body}"))
    };
    server.kill();
    until("it is away", Duration::from_secs(10), || call(&gateway, "GET", "/api/limits/l/keys/k").status == 503);
    let response = call(&gateway, "DELETE", "/api/limits/l/keys/k");
    assert_eq!((response.status, response.headers.get("content-type")), (503, Some("application/problem+json")));
    // Overrides are in this process.
    assert_eq!(request("PUT", body).status, 200);
    assert_eq!(gateway.client().get_with("/", "x-api-key: k\r\n").status, 403);
    assert_eq!(request("DELETE", "").status, 503);
    assert_eq!(gateway.client().get_with("/", "x-api-key: k\r\n").status, 200);
}

#[test]
fn a_key_can_be_named_as_lists_show_it() {
    let limit = |name: &str, key: &str| {
        format!(
            "[limits.{name}]\nkey = {key}\nrates = [\"1/d\"]\nstrategy = \"moving-window\"\nban = {{ after = 1 }}\n\
             [[routes]]\npath = \"/{name}\"\nlimits = [\"{name}\"]\nrespond = {{ status = 200 }}\n"
        )
    };
    let limits = limit("ip", "\"client-ip\"")
        + &limit("key", "\"header:x-api-key\"")
        + &limit("two", "[\"header:x-api-key\", \"client-ip\"]");
    let encoded =
        |key: &str| percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC).to_string();
    // The limit, the key that the client sends, and the key as lists show it in full.
    let keys = [
        ("ip", "", "127.0.0.1"),
        ("key", "partner|7%7C", "partner|7%7C"),
        ("two", "a|b", "a%7Cb|127.0.0.1"),
        ("two", "a%7Cb", "a%257Cb|127.0.0.1"),
    ];
    every_store(|store| {
        for show_keys in [false, true] {
            let gateway = Gateway::with_admin(&format!("show_keys = {show_keys}"), &(store.to_owned() + &limits));
            let mut client = gateway.client();
            let mut ask =
                |(limit, sent, _)| client.get_with(&format!("/{limit}"), format!("x-api-key: {sent}\r\n")).status;
            // All are banned before any is deleted, so that each must find its own.
            keys.iter().for_each(|of| assert_eq!([(); 4].map(|()| ask(*of)), [200, 429, 429, 429], "{of:?}"));
            for of @ (limit, _, full) in keys {
                let listed = |list: &str| {
                    let response = call(&gateway, "GET", &format!("/api/limits/{limit}/{list}")).json();
                    let all = response[list].as_array().unwrap().iter();
                    all.map(|one| one["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
                };
                let named =
                    |method: &str, key: &str| call(&gateway, method, &format!("/api/limits/{limit}/keys/{key}"));
                let bans = listed("bans");
                assert!(!show_keys || bans[0] == full, "{store} {of:?}: {bans:?}");
                let banned = named("GET", &encoded(&bans[0])).json();
                assert!(
                    banned["banned_until"].is_string() && banned["rates"][0]["used"] == 1,
                    "{store} {of:?}: {banned}"
                );
                let answer = named("DELETE", &encoded(&bans[0]));
                assert_eq!(answer.status, 200, "{store} {of:?}: {}", answer.text());
                let left = (&answer.json()["banned_until"], &answer.json()["rates"][0]["used"]);
                assert_eq!((left.0, left.1), (&json!(null), &json!(0)), "{store} {of:?}");
                assert_eq!(listed("bans"), bans[1..], "{store} {of:?}");
                until("the ban is lifted", Duration::from_secs(20), || ask(of) == 200);

                let text = r#"{"block": true, "for": "1h"}"#;
                let length = format!("Host: {}\r\nContent-Length: {}", gateway.admin, text.len());
                let path = format!("/api/limits/{limit}/keys/{}", encoded(full));
                let set = Client::connect(gateway.admin).call(format!("PUT {path} HTTP/1.1\r\n{length}\r\n\r\n{text}"));
                assert_eq!((set.status, ask(of)), (200, 403), "{store} {of:?}");
                let overrides = listed("overrides");
                assert_eq!(overrides.len(), 1);
                assert!(!show_keys || overrides == [full], "{store} {of:?}: {overrides:?}");
                assert_eq!(named("GET", &encoded(&overrides[0])).json()["block"], true, "{store} {of:?}");
                let removed = named("DELETE", &encoded(&overrides[0]));
                assert_eq!((removed.status, &removed.json()["rates"][0]["used"]), (200, &json!(0)), "{store} {of:?}");
                assert_eq!((removed.json().get("block"), listed("overrides").len()), (None, 0), "{store} {of:?}");
            }
        }
    });
}

#[test]
fn every_kind_of_key_can_be_looked_up_as_the_client_sends_it() {
    let (folder, signer) = (tempfile::tempdir().unwrap(), Signer::new(Algorithm::ES256, "one"));
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, harness::key_set(&[&signer])).unwrap();
    let token = signer.sign(&harness::claims("alice"));
    // The key in the file, and the text of the key in the path below.
    let kinds: [(&str, &str); 15] = [
        ("\"client-ip\"", "127.0.0.1"),
        ("\"client-ip:48\"", "127.0.0.1"),
        ("\"header:x-api-key\"", "a/b c"),
        ("\"cookie:session\"", "s-1"),
        ("\"query:user\"", "u-1"),
        ("\"bearer\"", &token),
        ("\"path\"", "/5"),
        ("\"path:number\"", "6"),
        ("\"host\"", "test.example"),
        ("\"method\"", "POST"),
        ("\"route\"", "/{number}"),
        ("\"global\"", "*"),
        ("\"jwt:sub\"", "alice"),
        ("\"json:/model\"", "m-1"),
        ("[\"header:none | header:x-api-key\", \"client-ip\", \"method\"]", "a/b c|127.0.0.1|POST"),
    ];
    let mut text = format!(
        "[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = {keys:?}\nalgorithms = [\"ES256\"]\n"
    );
    for (number, (key, _)) in kinds.iter().enumerate() {
        // Each path has one segment, so the route with a more specific host takes the request.
        let path =
            if key.contains("path") || key.contains("route") { "{number}".to_owned() } else { number.to_string() };
        let host = if path == "{number}" { format!("host = \"{number}.example\"\n") } else { String::new() };
        write!(
            text,
            "[limits.l{number}]\nkey = {key}\nrates = [\"9/d\"]\n\
             [[routes]]\npath = \"/{path}\"\n{host}limits = [\"l{number}\"]\nrespond = {{ status = 200 }}\n"
        )
        .unwrap();
    }
    let gateway = Gateway::start(&text);
    let body = r#"{"model": "m-1"}"#;
    for (number, (key, typed)) in kinds.iter().enumerate() {
        let host = if key.contains("path") || key.contains("route") {
            format!("{number}.example")
        } else {
            "test.example".to_owned()
        };
        let typed = if *key == "\"path\"" { format!("/{number}") } else { (*typed).to_owned() };
        let typed = if *key == "\"path:number\"" { number.to_string() } else { typed };
        let typed = if *key == "\"route\"" { format!("{host}/{{number}}") } else { typed };
        let request = format!(
            "POST /{number}?user=u-1 HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: a/b c\r\nCookie: session=s-1\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(gateway.client().call(request).status, 200, "{key}");
        let encoded = percent_encoding::utf8_percent_encode(&typed, percent_encoding::NON_ALPHANUMERIC);
        let path = format!("l{number}/keys/{encoded}");
        assert_eq!(used(&gateway, &path), 1, "{key} {typed}");
        assert_eq!(call(&gateway, "DELETE", &format!("/api/limits/{path}")).json()["rates"][0]["used"], 0, "{key}");
    }
}

with_each_server! {
    a_store_that_is_away_is_an_answer
}
