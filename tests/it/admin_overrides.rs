//! Overrides from the admin API: what they grant, how they end, and what a reload does to them.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Gateway, Response, Software, every_store, limited, unix, until, with_each_server};

const BOUND: Duration = Duration::from_secs(20);

fn call(gateway: &Gateway, method: &str, path: &str, body: &str) -> Response {
    let (host, length) = (gateway.admin, body.len());
    Client::connect(gateway.admin)
        .call(format!("{method} /api/limits/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"))
}

#[track_caller]
fn put(gateway: &Gateway, path: &str, body: &Value) -> Value {
    let response = call(gateway, "PUT", path, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["override"].clone()
}

#[track_caller]
fn key(gateway: &Gateway, path: &str) -> Value {
    let response = call(gateway, "GET", path, "");
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[track_caller]
fn refused(gateway: &Gateway, path: &str, body: &str, status: u16) -> Value {
    let response = call(gateway, "PUT", path, body);
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.headers.get("content-type"), Some("application/problem+json"));
    response.json()
}

fn ask(client: &mut Client, key: &str) -> u16 {
    client.get_with("/", format!("x-api-key: {key}\r\n")).status
}

fn count(gateway: &Gateway) -> Value {
    let limits =
        Client::connect(gateway.admin).call(format!("GET /api/limits HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
    let limits = limits.json();
    limits["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "l").unwrap()["temporary_overrides"]
        .clone()
}

#[test]
fn a_key_is_exempted_blocked_or_gets_other_rates_until_it_is_deleted() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &limited("header:x-api-key", "2/d", "")));
        let mut client = gateway.client();
        assert_eq!([(); 3].map(|()| ask(&mut client, "customer-7")), [200, 200, 429]);
        assert_eq!(count(&gateway), 0);

        let given = put(&gateway, "l/keys/customer-7", &json!({ "rates": ["5/d"], "for": "1h" }));
        assert_eq!((&given["rates"], given["seconds"].as_u64()), (&json!(["5/d"]), Some(3600)));
        let until: jiff::Timestamp = given["until"].as_str().unwrap().parse().unwrap();
        let left = until.as_second() - i64::try_from(unix().as_secs()).unwrap();
        assert!((3_590..=3_601).contains(&left), "{given}");
        assert_eq!([(); 4].map(|()| ask(&mut client, "customer-7")), [200, 200, 200, 429]);
        let shown = key(&gateway, "l/keys/customer-7");
        assert_eq!((&shown["rates"][0]["rate"], &shown["override"]["rates"]), (&json!("5/d"), &json!(["5/d"])));
        assert_eq!([(); 3].map(|()| ask(&mut client, "other")), [200, 200, 429]);
        assert_eq!(key(&gateway, "l/keys/other").get("override"), None);
        assert_eq!(count(&gateway), 1);
        assert_eq!(gateway.metric("gateway_limit_temporary_overrides"), Some(1.0));

        put(&gateway, "l/keys/customer-7", &json!({ "exempt": true, "for": "31d" }));
        assert_eq!([(); 3].map(|()| ask(&mut client, "customer-7")), [200; 3]);
        let shown = key(&gateway, "l/keys/customer-7");
        assert_eq!((&shown["exempt"], &shown["override"]["exempt"]), (&json!(true), &json!(true)));
        put(&gateway, "l/keys/customer-7", &json!({ "block": true, "for": "90s" }));
        assert_eq!(ask(&mut client, "customer-7"), 403);
        let shown = key(&gateway, "l/keys/customer-7");
        assert_eq!((&shown["block"], &shown["admitted"]), (&json!(true), &json!(false)));
        assert_eq!((&shown["override"]["block"], count(&gateway)), (&json!(true), json!(1)));

        let left = call(&gateway, "DELETE", "l/keys/customer-7", "");
        assert_eq!((left.status, left.json().get("override")), (200, None));
        assert_eq!(left.json()["rates"][0]["rate"], "2/d");
        until_admitted(&mut client, "customer-7");
        assert_eq!((count(&gateway), gateway.metric("gateway_limit_temporary_overrides")), (json!(0), Some(0.0)));
        let line = gateway.wait_message("the admin API has set an override");
        assert_eq!([&line["limit"], &line["override"], &line["for"]], ["l", "5/d", "1h"], "{line}");
        assert!(gateway.log().iter().all(|line| !line.contains("customer-7")), "keys are not logged");
    });
}

#[test]
fn a_masked_key_is_not_taken_for_one_that_clients_send() {
    let gateway = Gateway::start(&limited("header:x-api-key", "2/d", ""));
    put(&gateway, "l/keys/customer-7", &json!({ "exempt": true, "for": "1h" }));
    let listed = Client::connect(gateway.admin)
        .call(format!("GET /api/limits/l/overrides HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin));
    let masked = listed.json()["overrides"][0]["key"].as_str().unwrap().replace('…', "%E2%80%A6").replace('#', "%23");
    let block = r#"{"block": true, "for": "1h"}"#;
    let problem = refused(&gateway, &format!("l/keys/{masked}"), block, 409);
    assert!(problem["detail"].as_str().unwrap().contains("the key itself"), "{problem}");
    assert_eq!((count(&gateway), ask(&mut gateway.client(), "customer-7")), (json!(1), 200));
    refused(&gateway, "l/keys/%E2%80%A6%23a1b2c3d4", block, 409);
    put(&gateway, "l/keys/n%C2%B0%23a1b2c3d4", &json!({ "block": true, "for": "1h" }));
}

fn until_admitted(client: &mut Client, key: &str) {
    // A remembered refusal of this process may hold for a moment.
    until("it starts anew", BOUND, || ask(client, key) == 200);
}

fn what_is_remembered_of_other_keys_stays(software: Software) {
    let server = software.start();
    let store = server.store_with("on_error = \"reject\"\ntimeout = \"5s\"");
    let gateway = Gateway::start(&(store + &limited("header:x-api-key", "1/d", "")));
    let mut client = gateway.client();
    let mut round = 0;
    until("refusals are remembered while overrides change", BOUND, || {
        round += 1;
        let keys: Vec<_> = (0..50).map(|number| format!("{number}-{round}")).collect();
        // The gateway looks at a refusal again after five seconds.
        let begun = Instant::now();
        keys.iter().for_each(|key| assert_eq!([(); 2].map(|()| ask(&mut client, key)), [200, 429]));
        let before = server.commands();
        for number in 0..8 {
            // Some overrides have their own counters.
            let rates = ["5/d", "5/h"][number % 2];
            put(&gateway, &format!("l/keys/k-{number}"), &json!({ "rates": [rates], "for": "1h" }));
        }
        keys.iter().for_each(|key| assert_eq!(ask(&mut client, key), 429));
        let asked = server.commands() - before;
        assert!(asked == 0 || begun.elapsed() > Duration::from_secs(4), "{asked} commands");
        asked == 0
    });
    // Refusals of the key itself are not remembered.
    for (key, rates) in [("0-1", "5/d"), ("1-1", "5/h")] {
        assert_eq!((ask(&mut client, key), ask(&mut client, key)), (429, 429));
        put(&gateway, &format!("l/keys/{key}"), &json!({ "rates": [rates], "for": "1h" }));
        assert_eq!(ask(&mut client, key), 200, "{rates}");
    }
}

#[test]
fn an_override_ends_when_its_time_is_over() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &limited("header:x-api-key", "9/d", "")));
        let mut client = gateway.client();
        assert_eq!([(); 2].map(|()| ask(&mut client, "k")), [200; 2]);
        // Its cells have another layout, so counts are carried over and back.
        let set = |lasts: &str| {
            put(&gateway, "l/keys/k", &json!({ "rates": ["7/h", "100/d"], "for": lasts }));
            put(&gateway, "l/keys/blocked", &json!({ "block": true, "for": lasts }));
        };
        set("1h");
        assert_eq!((ask(&mut client, "k"), ask(&mut client, "blocked")), (200, 403));
        until("it is counted", BOUND, || {
            let shown = key(&gateway, "l/keys/k");
            (&shown["rates"][0]["used"], &shown["rates"][1]["used"]) == (&json!(1), &json!(3))
        });
        set("1s");
        until("the block ends", BOUND, || ask(&mut client, "blocked") == 200);
        until("the rates end", BOUND, || key(&gateway, "l/keys/k").get("override").is_none());
        // One line tells of both if they end together.
        let ended = || {
            let lines = gateway.log().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
            let lines = lines.filter(|line| line["message"] == "overrides of the admin API have ended");
            lines.filter(|line| line["limit"] == "l").map(|line| line["count"].as_u64().unwrap()).sum::<u64>()
        };
        until("both ends are logged", BOUND, || ended() == 2);
        assert_eq!(count(&gateway), 0);
        assert_eq!(ask(&mut client, "k"), 200);
        until("the counts are there again", BOUND, || key(&gateway, "l/keys/k")["rates"][0]["used"] == 4);
    });
}

#[test]
fn counts_of_a_tier_are_carried_over_and_back() {
    every_store(|store| {
        let tiers = "tier = \"header:x-plan\"\ntiers.big.rates = [\"50/2h\", \"50/d\"]";
        let gateway = Gateway::start(&(store.to_owned() + &limited("header:x-api-key", "9/d", tiers)));
        let mut client = gateway.client();
        let mut ask = |key: &str, plan: &str| {
            let response = client.get_with("/", format!("x-api-key: {key}\r\nx-plan: {plan}\r\n"));
            assert_eq!(response.status, 200);
            let fields = response.headers.get("ratelimit").unwrap().to_owned();
            fields.split(';').find_map(|field| field.trim().strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
        };
        // An override has another layout, the layout of the limit's own rates, or that of the tier.
        let overrides: [(&str, &[&str]); 3] = [("a", &["70/h", "40/d"]), ("b", &["40/d"]), ("c", &["70/2h", "40/d"])];
        for (key, rates) in overrides {
            assert_eq!([(); 3].map(|()| ask(key, "big")), [49, 48, 47], "{rates:?}");
            put(&gateway, &format!("l/keys/{key}"), &json!({ "rates": rates, "for": "1h" }));
            assert_eq!([(); 2].map(|()| ask(key, "big")), [36, 35], "{rates:?}");
        }
        for (key, rates) in overrides {
            put(&gateway, &format!("l/keys/{key}"), &json!({ "rates": rates, "for": "1s" }));
        }
        until("all end", 2 * BOUND, || count(&gateway) == 0);
        for (key, rates) in overrides {
            assert_eq!([(); 2].map(|()| ask(key, "big")), [44, 43], "{rates:?}");
        }
        // A key without the tier.
        assert_eq!(ask("d", "none"), 8);
    });
}

#[test]
fn every_reading_and_every_part_of_a_key_is_meant() {
    let text = limited("header:x-api-key | client-ip", "1/d", "")
        + "[limits.m]\nkey = [\"header:x-api-key\", \"method\"]\nrates = [\"1/d\"]\n\
           [[routes]]\npath = \"/m\"\nlimits = [\"m\"]\nrespond = { status = 200 }\n\
           [limits.n]\nkey = [\"header:x\", \"header:x-api-key | client-ip\"]\nrates = [\"1/d\"]\n\
           [[routes]]\npath = \"/n\"\nlimits = [\"n\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&text);
    let mut client = gateway.client();
    put(&gateway, "l/keys/127.0.0.1", &json!({ "exempt": true, "for": "1h" }));
    assert_eq!([(); 3].map(|()| client.get("/").status), [200; 3]);
    // A client may send the address as its key.
    assert_eq!([(); 2].map(|()| ask(&mut client, "127.0.0.1")), [200, 429]);
    assert_eq!(key(&gateway, "l/keys/127.0.0.1")["override"]["exempt"], true);
    // Another spelling of the same address replaces the override.
    put(&gateway, "l/keys/::ffff:127.0.0.1", &json!({ "block": true, "for": "1h" }));
    assert_eq!((client.get("/").status, count(&gateway)), (403, json!(1)));
    put(&gateway, "m/keys/a%7Cb|GET", &json!({ "block": true, "for": "1h" }));
    let mut ask = |key: &str| client.get_with("/m", key).status;
    assert_eq!((ask("x-api-key: a|b\r\n"), ask("x-api-key: a\r\n")), (403, 200));
    // The address may be in any other part of the key, too.
    put(&gateway, "n/keys/x|127.0.0.1", &json!({ "exempt": true, "for": "1h" }));
    let lines = ["x: x\r\n"; 2].into_iter().chain(["x: x\r\nx-api-key: 127.0.0.1\r\n"; 2]);
    assert_eq!(lines.map(|lines| client.get_with("/n", lines).status).collect::<Vec<_>>(), [200, 200, 200, 429]);
    let mut ask = |key: &str| client.get_with("/m", key).status;
    // Requests without a key share one counter, which may have an override, too.
    put(&gateway, "m/keys/|GET", &json!({ "exempt": true, "for": "1h" }));
    assert_eq!([(); 3].map(|()| ask("")), [200; 3]);
    for path in ["m/keys/k", "nothing/keys/k"] {
        refused(&gateway, path, "{}", 404);
    }
}

#[test]
fn overrides_in_the_file_come_first() {
    let plain = limited("header:x-api-key", "1/d", "tier = \"header:x-plan\"");
    let (limit, route) = plain.split_once("[[routes]]").unwrap();
    let overrides = "[[limits.l.overrides]]\nkeys = [\"gold-*\"]\nrates = [\"3/d\"]\n\
                     [limits.l.tiers.big]\nrates = [\"2/d\"]\n";
    let gateway = Gateway::start(&format!("{limit}{overrides}[[routes]]{route}"));
    let mut client = gateway.client();
    let problem = refused(&gateway, "l/keys/gold-1", r#"{"block": true, "for": "1h"}"#, 409);
    assert!(problem["detail"].as_str().unwrap().contains("The file has an override"), "{problem}");
    assert_eq!(ask(&mut client, "gold-1"), 200);
    // Overrides come before tiers, though.
    put(&gateway, "l/keys/k", &json!({ "rates": ["4/d"], "for": "1h" }));
    let statuses = [(); 5].map(|()| client.get_with("/", "x-api-key: k\r\nx-plan: big\r\n").status);
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    // An override in the file hides an earlier one of the API, which is back when the file has none.
    put(&gateway, "l/keys/silver", &json!({ "block": true, "for": "1h" }));
    gateway.write_config(&format!("{limit}{}[[routes]]{route}", overrides.replace("gold-*", "silver")));
    assert_eq!(reload(&gateway), 200);
    assert_eq!((ask(&mut client, "silver"), key(&gateway, "l/keys/silver").get("override")), (200, None));
    gateway.write_config(&format!("{limit}{overrides}[[routes]]{route}"));
    assert_eq!(reload(&gateway), 200);
    assert_eq!(ask(&mut client, "silver"), 403);
}

fn reload(gateway: &Gateway) -> u16 {
    Client::connect(gateway.admin)
        .call(format!("POST /api/reload HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", gateway.admin))
        .status
}

#[test]
fn a_reload_keeps_what_the_limits_can_still_have() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "one\ntwo\n").unwrap();
    let known = format!("known_keys = {:?}", keys.to_str().unwrap());
    let other = "[limits.gone]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n";
    let bucket = "strategy = \"token-bucket\"\n";
    let text = |more: &str| limited("header:x-api-key", "2/d", &format!("{known}\n{more}"));
    let gateway = Gateway::start(&(text(bucket) + other));
    let mut client = gateway.client();
    put(&gateway, "l/keys/one", &json!({ "rates": ["5/d"], "for": "1h" }));
    put(&gateway, "l/keys/two", &json!({ "rates": ["5/d burst 9"], "for": "1h" }));
    put(&gateway, "gone/keys/192.0.2.1", &json!({ "block": true, "for": "1h" }));
    assert_eq!(ask(&mut client, "one"), 200);
    gateway.write_config(&(text(bucket) + other));
    assert_eq!((reload(&gateway), count(&gateway)), (200, json!(2)));
    assert_eq!(key(&gateway, "gone/keys/192.0.2.1")["block"], true);

    // Sliding windows have no bursts, and the other limit is gone.
    gateway.write_config(&text(""));
    assert_eq!((reload(&gateway), count(&gateway)), (200, json!(1)));
    gateway.wait_log("removed", |line| {
        line["message"] == "overrides of the admin API are removed" && line["limit"] == "gone"
    });
    let shown = key(&gateway, "l/keys/one");
    assert_eq!((&shown["rates"][0]["rate"], &shown["override"]["rates"]), (&json!("5/d"), &json!(["5/d"])));
    assert_eq!(key(&gateway, "l/keys/two").get("override"), None);
    let admitted = (0..6).filter(|_| ask(&mut client, "one") == 200).count();
    assert!((4..=5).contains(&admitted), "{admitted}");

    // An unknown key loses its override, even if the key is known again later.
    fs::write(&keys, "two\n").unwrap();
    assert_eq!((reload(&gateway), count(&gateway)), (200, json!(0)));
    fs::write(&keys, "one\ntwo\n").unwrap();
    assert_eq!((reload(&gateway), count(&gateway)), (200, json!(0)));
    assert_eq!(key(&gateway, "l/keys/one").get("override"), None);
}

#[test]
fn what_is_not_valid_is_refused_as_in_the_file() {
    let text = limited("header:x-api-key", "2/d", "") + "[limits.flights]\nkey = \"client-ip\"\nmax_in_flight = 3\n";
    let gateway = Gateway::start(&text);
    let long = "k".repeat(5_000);
    for (path, body, message, help) in [
        ("l/keys/k", json!({ "for": "1h" }), "has none of `rates`, `exempt` and `block`", "\"exempt\": true"),
        ("l/keys/k", json!({ "exempt": true }), "an override has no `for`", "\"for\": \"1h\""),
        (
            "l/keys/k",
            json!({ "exempt": true, "block": true, "for": "1h" }),
            "has both `exempt` and `block`",
            "keep one",
        ),
        ("l/keys/k", json!({ "exempt": false, "for": "1h" }), "`exempt = false` has no effect", "remove"),
        ("l/keys/k", json!({ "exempt": 1, "for": "1h" }), "`exempt` must be true or false, found an integer", ""),
        ("l/keys/k", json!({ "rates": "5/s", "for": "1h" }), "`rates` must be a list, found a string", "in brackets"),
        ("l/keys/k", json!({ "rates": [], "for": "1h" }), "`rates` is empty", "10/s"),
        ("l/keys/k", json!({ "rates": ["5/sec"], "for": "1h" }), "is not a rate", "did you mean \"5/s\"?"),
        ("l/keys/k", json!({ "rates": ["5/s burst 9"], "for": "1h" }), "a burst belongs to", "\"5/s\""),
        ("l/keys/k", json!({ "rates": ["5/s", "7/s"], "for": "1h" }), "has the same period", "\"5/s\""),
        ("l/keys/k", json!({ "rates": ["0/s"], "for": "1h" }), "out of range", "allowed"),
        ("l/keys/k", json!({ "block": true, "for": "0s" }), "\"0s\" is out of range", "1s to 31d"),
        ("l/keys/k", json!({ "block": true, "for": "32d" }), "\"32d\" is out of range", "1s to 31d"),
        ("l/keys/k", json!({ "block": true, "for": 60 }), "`for` must be a duration, found an integer", "\"1h\""),
        ("l/keys/k", json!({ "blok": true, "for": "1h" }), "unknown key `blok`", "`block`"),
        ("l/keys/k", json!({ "block": null, "for": "1h" }), "null", "leave out"),
        ("flights/keys/::1", json!({ "rates": ["5/s"], "for": "1h" }), "no rates to override", "`exempt` or `block`"),
    ] {
        let problem = refused(&gateway, path, &body.to_string(), 422);
        let found = problem["problems"].as_array().unwrap();
        let is_there = found.iter().any(|one| {
            one["message"].as_str().unwrap().contains(message)
                && one["help"].as_str().unwrap_or_default().contains(help)
        });
        assert!(is_there, "{body}: {problem:#}");
    }
    let problem = refused(&gateway, &format!("l/keys/{long}"), r#"{"block": true, "for": "1h"}"#, 422);
    assert!(problem["detail"].as_str().unwrap().contains("4096 bytes"), "{problem}");
    for body in ["", "[]", "{", "null", "{\"for\": \"1h\", \"block\": true} x"] {
        refused(&gateway, "l/keys/k", body, 400);
    }
    assert_eq!(count(&gateway), 0);
    put(&gateway, "flights/keys/127.0.0.1", &json!({ "exempt": true, "for": "1h" }));
}

#[test]
fn no_request_fails_while_overrides_change() {
    let overrides = "[[limits.l.overrides]]\nkeys = [\"partner\"]\nrates = [\"1000000/h\"]\n";
    let plain = limited("header:x-api-key", "1000000/d", "");
    let (limit, route) = plain.split_once("[[routes]]").unwrap();
    let gateway = Gateway::start(&format!("{limit}{overrides}[[routes]]{route}"));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for name in ["k-0", "k-1", "partner"] {
            let mut client = gateway.client();
            let (stop, served) = (&stop, &served);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ask(&mut client, name), 200, "{name}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..60 {
            let given = [
                json!({ "exempt": true, "for": "1s" }),
                json!({ "rates": ["1000000/h", "2000000/d"], "for": "1h" }),
                json!({ "rates": ["2000000/d"], "for": "1h" }),
            ];
            put(&gateway, &format!("l/keys/k-{}", number % 4), &given[number % 3]);
            if number % 20 == 19 {
                assert_eq!(reload(&gateway), 200);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(served.into_inner() > 0);
    assert_eq!(gateway.client().get_with("/", "x-api-key: k-0\r\n").status, 200);
}

#[test]
fn they_are_listed_with_what_they_grant_and_until_when() {
    for (admin, shown) in [("show_keys = true", true), ("", false)] {
        let limits = limited("header:x-api-key", "2/d", "")
            + "[limits.pair]\nkey = [\"header:x-api-key\", \"method\"]\nrates = [\"2/d\"]\n\
               [[routes]]\npath = \"/pair\"\nlimits = [\"pair\"]\nrespond = { status = 200 }\n";
        let gateway = Gateway::with_admin(admin, &limits);
        let list = |limit: &str| key(&gateway, &format!("{limit}/overrides"))["overrides"].as_array().unwrap().clone();
        assert_eq!((list("l"), list("pair")), (vec![], vec![]));
        put(&gateway, "l/keys/customer-7", &json!({ "rates": ["100/s", "5000/d"], "for": "3h" }));
        put(&gateway, "l/keys/customer-8", &json!({ "exempt": true, "for": "1h" }));
        put(&gateway, "l/keys/customer-9", &json!({ "block": true, "for": "2h" }));
        put(&gateway, "pair/keys/customer-7|POST", &json!({ "exempt": true, "for": "1h" }));
        let (all, pair) = (list("l"), list("pair"));
        // Those that end first come first, and each has all fields.
        let granted: Vec<_> = all.iter().map(|one| (&one["rates"], &one["exempt"], &one["block"])).collect();
        let (yes, no, none) = (json!(true), json!(false), json!([]));
        assert_eq!(granted, [(&none, &yes, &no), (&none, &no, &yes), (&json!(["100/s", "5000/d"]), &no, &no)]);
        for (one, hours) in all.iter().zip(1..) {
            let until: jiff::Timestamp = one["until"].as_str().unwrap().parse().unwrap();
            let left = until.as_second() - i64::try_from(unix().as_secs()).unwrap();
            assert!((hours * 3600 - 60..=hours * 3600 + 1).contains(&left), "{one}");
            assert_eq!(one.as_object().unwrap().len(), 5, "{one}");
        }
        let keys: Vec<_> = all.iter().chain(&pair).map(|one| one["key"].as_str().unwrap()).collect();
        let full = ["customer-8", "customer-9", "customer-7", "customer-7|POST"];
        if shown {
            assert_eq!(keys, full);
        } else {
            for (key, full) in keys.iter().zip(full) {
                let masked =
                    key.starts_with("cu\u{2026}") && key.contains(&full[full.len() - 2..]) && key.contains('#');
                assert!(masked && !key.contains(full), "{key}");
            }
        }
        // `GET /api/limits` shows the same, and a masked key from there can be removed.
        let limits = Client::connect(gateway.admin)
            .call(format!("GET /api/limits HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin))
            .json();
        let limits = limits["limits"].as_array().unwrap();
        let described = limits.iter().find(|limit| limit["name"] == "l").unwrap();
        assert_eq!((&described["temporary"], &described["temporary_overrides"]), (&json!(all), &json!(3)));
        let path = percent_encoding::utf8_percent_encode(keys[1], percent_encoding::NON_ALPHANUMERIC);
        assert_eq!(call(&gateway, "DELETE", &format!("l/keys/{path}"), "").status, 200);
        assert_eq!(list("l"), [all[0].clone(), all[2].clone()]);
        assert_eq!(list("pair"), pair);
        for path in ["none/overrides", "l/overrides/", "l/x/overrides"] {
            assert_eq!(call(&gateway, "GET", path, "").status, 404, "{path}");
        }
    }
}

with_each_server! {
    what_is_remembered_of_other_keys_stays
}
