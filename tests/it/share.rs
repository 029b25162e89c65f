//! `share` of the memory store: gateways that count apart, each of which enforces its part of every rate.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Client, Gateway, Upstream, limited, reply, run, until};

const PATIENCE: Duration = Duration::from_secs(20);
/// The name by which gateways find each other.
const NAME: &str = "gateways.test";
/// Addresses that no test machine has.
const ELSEWHERE: [&str; 3] = ["203.0.113.1", "203.0.113.2", "203.0.113.3"];

/// Limits whose keys get rates from all possible places.
const LIMITS: &str = r#"
[limits.l]
key = "header:k"
rates = ["9/d", "40/10d"]
headers = "both"
tier = "header:t"
[limits.l.tiers.big]
rates = ["12/d"]
[[limits.l.overrides]]
keys = ["gold"]
rates = ["16/d"]
[limits.bucket]
key = "header:k"
strategy = "token-bucket"
rates = ["7/h burst 13"]
[limits.whole]
key = "header:k"
rates = ["3/d"]
share = false
[[routes]]
path = "/l"
limits = ["l"]
respond = { status = 200 }
[[routes]]
path = "/bucket"
limits = ["bucket"]
respond = { status = 200 }
[[routes]]
path = "/whole"
limits = ["whole"]
respond = { status = 200 }
"#;

fn shared(share: &str, rest: &str) -> String {
    format!("[store]\nshare = {share}\n{rest}")
}

fn passed(gateway: &Gateway, path: &str, fields: &str) -> usize {
    let mut client = gateway.client();
    (0..20).filter(|_| client.get_with(path, fields).status == 200).count()
}

fn described(gateway: &Gateway) -> (Value, Value) {
    let limit = gateway.admin("/api/limits").json()["limits"][0].clone();
    (limit["rates"].clone(), limit["gateways"].clone())
}

/// A gateway that shares limits with the addresses of the name, and the file for lookups.
fn named(addresses: &[&str], rest: &str) -> Option<(Gateway, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    write_hosts(&folder, addresses);
    let gateway = Gateway::with_hosts(&folder.path().join("hosts"), &shared(&format!("\"dns:{NAME}\""), rest));
    Some((gateway?, folder))
}

fn write_hosts(folder: &TempDir, addresses: &[&str]) {
    let hosts: String = addresses.iter().flat_map(|address| [address, " ", NAME, "\n"]).collect();
    // A bound file must be written in place.
    fs::write(folder.path().join("hosts"), hosts).unwrap();
}

#[track_caller]
fn until_shared_by(gateway: &Gateway, gateways: f64) {
    let shared = || gateway.metric("gateway_share_gateways") == Some(gateways);
    until(&format!("{gateways} gateways share"), PATIENCE, shared);
}

#[test]
fn each_gateway_enforces_its_part_of_every_rate() {
    let gateway = Gateway::start(&shared("4", LIMITS));
    for (path, fields, part) in [
        ("/l", "k: a\r\n", 2),
        ("/l", "k: b\r\nt: big\r\n", 3),
        ("/l", "k: gold\r\n", 4),
        ("/bucket", "k: a\r\n", 3),
        ("/whole", "k: a\r\n", 3),
    ] {
        assert_eq!(passed(&gateway, path, fields), part, "{path} {fields}");
    }
    let body = json!({ "rates": ["20/d"], "for": "1h" }).to_string();
    let (admin, length) = (gateway.admin, body.len());
    let put = format!("PUT /api/limits/l/keys/d HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {length}\r\n\r\n{body}");
    let set = Client::connect(admin).call(put).json();
    assert_eq!(set["override"]["rates"], json!(["20/d"]), "what was asked for, of all gateways");
    assert_eq!(passed(&gateway, "/l", "k: d\r\n"), 5);

    // The response tells the part.
    let first = gateway.client().get_with("/l", "k: c\r\n");
    assert_eq!(first.headers.get("ratelimit-policy"), Some("\"l-d\";q=2;w=86400, \"l-10d\";q=10;w=864000"));
    assert_eq!(first.headers.get("x-ratelimit-limit"), Some("2"));
    assert_eq!(first.headers.get("x-ratelimit-remaining"), Some("1"));
    let refused = gateway.client().get_with("/l", "k: a\r\n");
    refused.expect_problem(429);
    assert!(refused.text().contains("2/d") || refused.text().contains("\"quota\":2"), "{}", refused.text());
    assert_eq!(described(&gateway), (json!(["2/d", "10/10d"]), json!(4)));
    let whole = gateway.admin("/api/limits").json()["limits"][2].clone();
    assert_eq!((&whole["rates"], &whole["gateways"]), (&json!(["3/d"]), &json!(1)));
    let key = gateway.admin("/api/limits/l/keys/a").json();
    assert_eq!(key["rates"][0], json!({ "rate": "2/d", "used": 2, "remaining": 0, "reset": key["rates"][0]["reset"] }));
    let config = gateway.admin("/api/config").json();
    assert_eq!((&config["store"]["share"], &config["store"]["gateways"]), (&json!(4), &json!(4)));
    let limit = &config["limits"]["l"];
    assert_eq!((&limit["rates"], &limit["part"]), (&json!(["9/d", "40/10d"]), &json!(["2/d", "10/10d"])));
    assert_eq!(limit["tiers"]["big"]["part"], json!(["3/d"]));
    assert_eq!(limit["overrides"][0]["part"], json!(["4/d"]));
    assert_eq!(config["limits"]["whole"]["share"], json!(false));
    assert_eq!(config["limits"]["whole"]["part"], Value::Null);
    assert_eq!(gateway.metric("gateway_share_gateways"), Some(4.0));
}

#[test]
fn another_number_needs_no_restart_and_counts_go_on() {
    let limit = limited("header:k", "10/d", "");
    let gateway = Gateway::start(&shared("1", &limit));
    let mut client = gateway.client();
    let mut ask = || client.get_with("/", "k: a\r\n").status;
    assert!((0..8).all(|_| ask() == 200));
    let usage = || gateway.admin("/api/limits/l/keys/a").json()["rates"][0].clone();
    gateway.reload_and_wait("", &shared("2", &limit));
    assert_eq!(ask(), 429, "8 of 5 are used");
    assert_eq!((&usage()["rate"], &usage()["used"], &usage()["remaining"]), (&json!("5/d"), &json!(8), &json!(0)));
    gateway.wait_message("the number of gateways that share the limits has changed");
    // What was counted meanwhile counts, too.
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 5);
    gateway.reload_and_wait("", &limit);
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 5);
    assert_eq!(gateway.metric("gateway_share_gateways"), None, "nobody shares");
    gateway.reload_and_wait("", &shared("11", &limit));
    assert_eq!(passed(&gateway, "/", "k: c\r\n"), 1, "each gateway admits at least one");
}

#[test]
fn gateways_are_the_addresses_of_a_name_and_changes_are_followed() {
    let begun = Instant::now();
    let Some((gateway, folder)) = named(&["127.0.0.9", ELSEWHERE[0]], &limited("header:k", "12/d", "")) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    // The start waits for two seconds at most.
    if begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(gateway.metric("gateway_share_gateways"), Some(2.0), "the start waits for the first answer");
    }
    until_shared_by(&gateway, 2.0);
    assert_eq!(gateway.metric("gateway_share_known"), Some(1.0));
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 6);
    // More gateways: each has less, and counts go on.
    write_hosts(&folder, &["127.0.0.9", ELSEWHERE[0], ELSEWHERE[1]]);
    until_shared_by(&gateway, 3.0);
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 0);
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 4);
    assert_eq!(described(&gateway), (json!(["4/d"]), json!(3)));
    // A failure changes nothing.
    write_hosts(&folder, &[]);
    gateway.wait_message("the name of the gateways is not found: its known addresses stay in use");
    assert_eq!(passed(&gateway, "/", "k: c\r\n"), 4);
    assert!(gateway.metric("gateway_share_failed_lookups_total").unwrap() >= 1.0);
    assert_eq!(gateway.metric("gateway_share_known"), Some(1.0));
    // Fewer: each has more.
    write_hosts(&folder, &["127.0.0.9"]);
    until_shared_by(&gateway, 1.0);
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 6);
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 8);
    // A reload keeps what is known.
    write_hosts(&folder, &["127.0.0.9", ELSEWHERE[0]]);
    until_shared_by(&gateway, 2.0);
    gateway.reload_and_wait("", &shared(&format!("\"dns:{NAME}\""), &limited("header:k", "14/d", "")));
    assert_eq!(passed(&gateway, "/", "k: d\r\n"), 7);
    gateway.reload_and_wait("", &shared("7", &limited("header:k", "14/d", "")));
    assert_eq!(passed(&gateway, "/", "k: e\r\n"), 2);
}

#[test]
fn a_gateway_that_is_not_listed_counts_itself_and_one_family_is_counted() {
    for (addresses, gateways) in [
        (&ELSEWHERE[..], 4.0),
        (&["127.0.0.9", "127.0.0.9", ELSEWHERE[0]], 2.0),
        (&["127.0.0.9", ELSEWHERE[0], "2001:db8::1", "2001:db8::2", "2001:db8::3"], 2.0),
        (&["2001:db8::1", "2001:db8::2"], 3.0),
    ] {
        let Some((gateway, _folder)) = named(addresses, &limited("header:k", "12/d", "")) else {
            return eprintln!("skipped: no namespaces for users here");
        };
        until_shared_by(&gateway, gateways);
    }
}

#[test]
fn whole_rates_hold_until_the_name_is_found_and_a_change_keeps_all_overrides() {
    let source = Upstream::start(|_| reply(200, r#"{"rates": ["16/d"]}"#));
    let quotas = format!("[limits.l.quotas]\nsource = \"http://{}/{{key}}\"\ntimeout = \"5s\"\n", source.address());
    let Some((gateway, folder)) = named(&[], &limited("header:k", "8/d", &quotas)) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    gateway.wait_message("the number of gateways is not known: until it is, limits have their whole rates");
    assert_eq!(gateway.metric("gateway_share_gateways"), Some(1.0));
    assert_eq!(gateway.metric("gateway_share_known"), Some(0.0));
    assert!(gateway.metric("gateway_share_failed_lookups_total").unwrap() >= 1.0);
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 16);
    let body = json!({ "rates": ["20/d"], "for": "1h" }).to_string();
    let (admin, length) = (gateway.admin, body.len());
    let put = format!("PUT /api/limits/l/keys/b HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {length}\r\n\r\n{body}");
    assert_eq!(Client::connect(admin).call(put).status, 200);
    write_hosts(&folder, &["127.0.0.9", ELSEWHERE[0], ELSEWHERE[1], ELSEWHERE[2]]);
    until_shared_by(&gateway, 4.0);
    assert_eq!(gateway.metric("gateway_share_known"), Some(1.0));
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 5, "the override is there, and divided");
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 0);
    assert_eq!(passed(&gateway, "/", "k: c\r\n"), 4, "what the source says is divided");
    let quota = gateway.admin("/api/limits/l/keys/a").json();
    assert_eq!((&quota["quota"]["rates"], &quota["rates"][0]["rate"]), (&json!(["16/d"]), &json!("4/d")));
}

#[test]
fn a_lookup_that_hangs_blocks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    // A reader of a pipe waits for a writer.
    assert!(Command::new("mkfifo").arg(&hosts).status().unwrap().success());
    let text = shared(&format!("\"dns:{NAME}\""), &limited("header:k", "12/d", ""));
    let Some(mut gateway) = Gateway::with_hosts(&hosts, &text) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    assert_eq!(passed(&gateway, "/", "k: a\r\n"), 12);
    let failed = || gateway.metric("gateway_share_failed_lookups_total").unwrap();
    until("that there is no answer is seen", PATIENCE, || failed() >= 2.0);
    gateway.reload_and_wait("", &text);
    assert_eq!(passed(&gateway, "/", "k: b\r\n"), 12);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn commands_tell_the_part() {
    let folder = tempfile::tempdir().unwrap();
    let said = |share: &str, command: &[&str]| {
        let file = folder.path().join("gateway.toml");
        fs::write(&file, shared(share, &limited("header:k", "12/d", ""))).unwrap();
        let output = run(&[&["--config", file.to_str().unwrap()], command].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (number, name) = ("4", "\"dns:gateways.test\"");
    let checked = said(number, &["check"]);
    assert!(checked.contains("4 gateways share the limits"), "{checked}");
    assert!(checked.contains("of which this gateway enforces 3/d"), "{checked}");
    let checked = said(name, &["check"]);
    assert!(checked.contains("as many gateways share the limits as gateways.test has addresses"), "{checked}");
    let explained = said(number, &["explain", "-H", "k: a", "http://a/"]);
    assert!(
        explained.contains("rates    3/d\n    share    4 gateways: these rates are the part of each"),
        "{explained}"
    );
    assert!(explained.contains("q=3"), "{explained}");
    let explained = said(name, &["explain", "-H", "k: a", "http://a/"]);
    assert!(explained.contains("rates    12/d\n    share    gateways.test is not looked up"), "{explained}");
    // The log covers all gateways, so the simulation uses the whole rates.
    let log = folder.path().join("access.log");
    let line = "127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 2\n";
    fs::write(&log, line.repeat(20)).unwrap();
    let simulated = said(number, &["simulate", log.to_str().unwrap(), "--json"]);
    let simulated: Value = serde_json::from_str(&simulated).unwrap();
    assert_eq!(simulated["limits"]["l"]["rejected"], json!(0), "its key is not in the log");
    fs::write(folder.path().join("gateway.toml"), shared(number, &limited("client-ip", "12/d", ""))).unwrap();
    let output =
        run(&["--config", folder.path().join("gateway.toml").to_str().unwrap(), "simulate", log.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("12/d") && text.contains("the logs are taken to be those of all"), "{text}");
}

#[test]
fn gateways_together_admit_no_more_than_the_limit() {
    let gateways = [(); 3].map(|()| Gateway::start(&shared("3", &limited("header:k", "11/d", ""))));
    let mut clients = gateways.each_ref().map(Gateway::client);
    let mut ask = |place: usize| clients[place % 3].get_with("/", "k: a\r\n").status == 200;
    assert_eq!((0..30).filter(|place| ask(*place)).count(), 9, "each admits 3");
}

#[test]
fn the_recipe_for_a_small_fleet_does_what_its_page_says() {
    let page = include_str!("../../docs/limits.md");
    let (_, recipe) = page.split_once("**A small fleet without a store.**").unwrap();
    let lines = recipe.lines().skip_while(|line| !line.starts_with("    "));
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let recipe = lines.collect::<Vec<_>>().join("\n").replace("\n    ", "\n");
    let route = "[[routes]]\npath = \"/*\"\nlimits = [\"per-client\", \"reports\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&format!("{}\n{route}", recipe.trim()));
    assert_eq!(described(&gateway), (json!(["10/s", "3000/10m"]), json!(3)));
    let policy = "\"per-client-s\";q=10;w=1, \"per-client-10m\";q=3000;w=600, \"reports\";q=1;w=60";
    assert_eq!(gateway.client().get("/").headers.get("ratelimit-policy"), Some(policy));
}
