//! Counters and metrics after a reload are kept if possible, the log says which are not, and those of removed limits
//! and routes are dropped.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Client, Gateway, Software, Upstream, limited, reply, run, until, with_each_server};
use crate::shared::PATIENT;

const PATIENCE: Duration = Duration::from_secs(20);

fn limit(key: &str, more: &str) -> String {
    format!(
        "[limits.l]\nkey = {key:?}\n{more}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"
    )
}

struct Change {
    old: String,
    new: String,
    /// The change in words; `None` if counters stay as they are.
    changed: Option<&'static str>,
    /// The rates whose counts are carried over, and those that start at 0.
    carried: &'static str,
    anew: &'static str,
    /// How many of two requests pass after the reload, if two have passed before it.
    passed: usize,
}

fn changes() -> Vec<Change> {
    let change = |old: &str, new: &str, changed, (carried, anew), passed| {
        let [old, new] = [old, new].map(|more| limit("client-ip", more));
        Change { old, new, changed, carried, anew, passed }
    };
    let two = "rates = [\"2/d\"]";
    let counted = |way: &str| format!("{two}\nstrategy = {way:?}");
    let (periods, way) = (Some("periods"), Some("strategy, precision or time zone"));
    let both = "rates = [\"2/d\", \"9/h\"]";
    vec![
        change(two, "rates = [\"3/d\"]", None, ("", ""), 1),
        change(two, "rates = [\"3/d\"]\nstatus = 503", None, ("", ""), 1),
        change(two, "rates = [\"2/h\"]", periods, ("", "2/h"), 2),
        change(two, both, periods, ("2/d", "9/h"), 0),
        change(both, "rates = [\"2/d\", \"9/m\"]", periods, ("2/d", "9/m"), 0),
        change(both, "rates = [\"9/h\"]", periods, ("9/h", ""), 2),
        change(two, &format!("{two}\nprecision = 4"), way, ("2/d", ""), 0),
        change(two, "rates = [\"3/d\"]\nprecision = 4", way, ("3/d", ""), 1),
        change(two, &counted("fixed-window"), way, ("2/d", ""), 0),
        change(two, &counted("moving-window"), way, ("2/d", ""), 0),
        change(two, &counted("token-bucket"), way, ("2/d", ""), 0),
        change(&counted("token-bucket"), &counted("moving-window"), way, ("2/d", ""), 0),
        change(&counted("fixed-window"), two, way, ("2/d", ""), 0),
        change("rates = [\"2/day\"]", "rates = [\"2/day\"]\ntimezone = \"Asia/Tokyo\"", way, ("2/day", ""), 0),
        change("rates = [\"2/day\"]", two, periods, ("", "2/d"), 2),
        change(two, &format!("{two}\ncost = {{ tokens = \"auto\" }}"), Some("unit"), ("", "2/d"), 1),
        change(
            two,
            "rates = [\"2B/d\"]\ncost = { bytes = \"response\", reserve = \"1B\" }",
            Some("unit"),
            ("", "2B/d"),
            2,
        ),
        Change {
            old: limit("client-ip", two),
            new: limit("global", two),
            changed: Some("key"),
            carried: "",
            anew: "2/d",
            passed: 2,
        },
    ]
}

const CARRIED: &str = "the counters of a limit are carried over";
const ANEW: &str = "the counters of a limit start anew";

/// The change and the rates in log lines with this message.
fn told(gateway: &Gateway, message: &str) -> Option<(String, String)> {
    let lines = gateway.log();
    let mut lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["message"] == message)?;
    assert_eq!(line["limit"], "l");
    Some((line["changed"].as_str().unwrap().to_owned(), line["rates"].as_str().unwrap().to_owned()))
}

/// Applies a change, with this `store` section.
fn goes_on(store: &str, Change { old, new, changed, carried, anew, passed }: Change) {
    let [old, new] = [old, new].map(|file| store.to_owned() + &file);
    let gateway = Gateway::start(&old);
    let mut client = gateway.client();
    assert_eq!([(); 3].map(|()| client.get("/").status == 200), [true, true, false]);
    gateway.reload("", &new);
    gateway.wait_message("reloaded");
    for (message, rates) in [(CARRIED, carried), (ANEW, anew)] {
        let wanted = changed.filter(|_| !rates.is_empty()).map(|changed| (changed.to_owned(), rates.to_owned()));
        assert_eq!(told(&gateway, message), wanted, "{message}: {old} to {new}");
    }
    let count = (0..2).filter(|_| client.get("/").status == 200).count();
    assert_eq!(count, passed, "{old} to {new}");
}

#[test]
fn counters_are_kept_if_possible_and_the_log_says_which() {
    changes().into_iter().for_each(|change| goes_on("", change));
}

fn with_a_shared_store_counters_go_on_as_well(software: Software) {
    for change in changes() {
        let server = software.start();
        goes_on(&server.store_with(PATIENT), change);
    }
}

/// Every way to count `rates`.
fn ways(rates: &str) -> Vec<String> {
    let ways = [
        "precision = 4",
        "strategy = \"fixed-window\"",
        "strategy = \"moving-window\"",
        "strategy = \"token-bucket\"",
        "precision = 1",
    ];
    ways.iter().map(|way| limit("global", &format!("rates = [{rates:?}]\n{way}"))).collect()
}

/// Reloads this file. `number` is the number of reloads before.
fn reload_and_wait(gateway: &Gateway, file: &str, number: usize) {
    gateway.reload("", file);
    until("it reloads", PATIENCE, || gateway.reloads() > number);
}

/// However often a limit changes during a flood, no more requests pass than its quota.
fn reloads_in_a_flood_admit_no_more(store: &str) {
    const QUOTA: usize = 400;
    let ways = ways(&format!("{QUOTA}/d"));
    let file = |way: &str| store.to_owned() + way;
    let gateway = Gateway::start(&file(&ways[0]));
    let is_over = AtomicBool::new(false);
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !is_over.load(Relaxed) {
                    if client.get("/").status == 200 {
                        passed.fetch_add(1, Relaxed);
                        // The flood lasts for some reloads.
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let mut number = 0;
        while passed.load(Relaxed) < QUOTA || number < 2 * ways.len() {
            reload_and_wait(&gateway, &file(&ways[(number + 1) % ways.len()]), number);
            number += 1;
        }
        for _ in 0..ways.len() {
            reload_and_wait(&gateway, &file(&ways[(number + 1) % ways.len()]), number);
            number += 1;
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!(passed.into_inner(), QUOTA);
}

#[test]
fn clients_that_flood_a_gateway_gain_nothing_by_its_reloads() {
    reloads_in_a_flood_admit_no_more("");
}

fn with_a_shared_store_clients_that_flood_a_gateway_gain_nothing_by_its_reloads(software: Software) {
    // Without an answer in time the gateway would decide alone, which this test is not about.
    reloads_in_a_flood_admit_no_more(&software.start().store_with("timeout = \"10s\""));
}

/// Two gateways share the counters, and one reloads later than the other. What both know counts once.
fn gateways_that_reload_one_after_the_other_go_on_with_what_they_know(software: Software) {
    let ways = ways("6/d");
    for (old, new) in ways.iter().zip(ways.iter().cycle().skip(1)) {
        let server = software.start();
        let [old, new] = [old, new].map(|way| server.store_with(PATIENT) + way);
        let gateways = [(); 2].map(|()| Gateway::start(&old));
        let mut clients = gateways.each_ref().map(Gateway::client);
        let mut passed = |gateway: usize, times: usize| {
            let passed = (0..times).filter(|_| clients[gateway].get("/").status == 200).count();
            // An admission is counted on the server a moment later, but before this read.
            gateways[gateway].used("l", "*");
            passed
        };
        assert_eq!((passed(0, 2), passed(1, 2)), (2, 2), "{old}");
        // The gateway learns what the other one has admitted.
        assert_eq!(passed(0, 0), 0);
        reload_and_wait(&gateways[0], &new, 0);
        assert_eq!(passed(0, 1), 1, "{old} to {new}");
        reload_and_wait(&gateways[1], &new, 0);
        assert_eq!(passed(1, 3), 1, "{old} to {new}");
        assert_eq!(passed(0, 3), 0, "{old} to {new}");
        // And back, while the server still has the old counters.
        reload_and_wait(&gateways[1], &old, 1);
        assert_eq!(passed(1, 3), 0, "{new} back to {old}");
        reload_and_wait(&gateways[0], &old, 1);
        assert_eq!(passed(0, 3), 0, "{new} back to {old}");
    }
}

#[test]
fn a_key_that_is_seen_after_several_reloads_has_its_count() {
    let rates = |more: &str| limit("client-ip", &format!("rates = [\"3/d\"]\n{more}"));
    let gateway = Gateway::start(&rates(""));
    let mut client = gateway.client();
    assert_eq!([(); 2].map(|()| client.get("/").status), [200; 2]);
    for (number, way) in
        ["precision = 7", "strategy = \"fixed-window\"", "strategy = \"moving-window\""].iter().enumerate()
    {
        gateway.reload("", &rates(way));
        until("it reloads", PATIENCE, || gateway.reloads() > number);
    }
    let response = client.get("/");
    assert_eq!(response.status, 200);
    assert!(response.headers.must("ratelimit").starts_with("\"l\";r=0;"), "{:?}", response.headers);
    assert_eq!(client.get("/").status, 429);
    assert_eq!(gateway.metric("gateway_store_keys"), Some(1.0));
}

#[test]
fn counters_of_tiers_and_overrides_are_kept_too() {
    let config = |way: &str| {
        limit(
            "client-ip",
            &format!(
                "rates = [\"9/d\"]\nstrategy = {way:?}\ntier = \"header:x-plan\"\n\
                 [limits.l.tiers.gold]\nrates = [\"3/d\"]\n\
                 [[limits.l.overrides]]\nkeys = [\"127.0.0.9\"]\nrates = [\"4/d\", \"5/h\"]\n"
            ),
        )
    };
    let gateway = Gateway::start(&config("sliding-window"));
    let from = |last: u8| Client::connect_from([127, 0, 0, last].into(), gateway.http);
    let (mut gold, mut known) = (from(1), from(9));
    let mut passed = |times: usize| {
        let count = |is_ok: &mut dyn FnMut() -> bool| (0..times).filter(|_| is_ok()).count();
        let gold = count(&mut || gold.get_with("/", "X-Plan: gold\r\n").status == 200);
        (gold, count(&mut || known.get("/").status == 200))
    };
    assert_eq!(passed(2), (2, 2));
    gateway.reload("", &config("fixed-window"));
    gateway.wait_message("reloaded");
    let line = gateway.wait_log("a tier", |line| line["message"] == CARRIED && line["tier"] == "gold");
    assert_eq!(line["rates"], "3/d");
    assert_eq!(passed(5), (1, 2));
}

#[test]
fn what_was_reserved_before_is_given_back_after() {
    for (old, new) in
        [("sliding-window", "moving-window"), ("moving-window", "token-bucket"), ("moving-window", "fixed-window")]
    {
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let upstream = Upstream::start(move |request| {
            let is_slow = request.target == "/slow";
            if is_slow {
                let _ = gate.lock().unwrap().recv();
            }
            reply(if is_slow { 200 } else { 401 }, "")
        });
        let config = |way: &str| {
            let limit = "[limits.l]\nkey = \"global\"\nrates = [\"3/d\"]\ncount = { status = [\"401\"] }";
            format!("{limit}\nstrategy = {way:?}\n{}limits = [\"l\"]\n", upstream.everything())
        };
        let gateway = Gateway::start(&config(old));
        let mut slow = gateway.client();
        slow.send("GET /slow HTTP/1.1\r\nHost: test.example\r\n\r\n");
        until("it is in flight", PATIENCE, || upstream.received().len() == 1);
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 401);
        gateway.reload("", &config(new));
        gateway.wait_message("reloaded");
        assert_eq!([(); 2].map(|()| client.get("/").status), [401, 429], "{old} to {new}");
        drop(open);
        assert_eq!(slow.response(false).status, 200);
        assert_eq!([(); 2].map(|()| client.get("/").status), [401, 429], "{old} to {new}");
    }
}

#[test]
fn counters_of_removed_limits_are_freed() {
    let store = "[store]\nmax_keys = 1000\n";
    let config = |name: &str| {
        store.to_owned()
            + &limited("header:a", "9/d", "")
                .replace("limits.l]", &format!("limits.{name}]"))
                .replace("\"l\"", &format!("{name:?}"))
    };
    let gateway = Gateway::start(&config("first"));
    let mut client = gateway.client();
    for key in 0..100 {
        assert_eq!(client.get_with("/", format!("A: {key}\r\n")).status, 200);
    }
    assert_eq!(gateway.metric("gateway_store_keys"), Some(100.0));
    gateway.reload("", &config("second"));
    gateway.wait_message("reloaded");
    assert_eq!(client.get_with("/", "A: 1\r\n").status, 200);
    until("they leave", PATIENCE, || gateway.metric("gateway_store_keys") == Some(1.0));
    assert_eq!(gateway.metric("gateway_store_evictions_total"), Some(0.0));
}

#[test]
fn check_says_it_before_the_reload() {
    let folder = tempfile::tempdir().unwrap();
    let [old_file, new_file] = ["old.toml", "new.toml"].map(|name| folder.path().join(name));
    let check = |old: &str, new: &str| {
        fs::write(&old_file, old).unwrap();
        fs::write(&new_file, new).unwrap();
        let output = run(&["check", new_file.to_str().unwrap(), "--against", old_file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    for Change { old, new, changed, carried, anew, .. } in changes() {
        let (code, said) = check(&old, &new);
        assert_eq!(code, Some(0), "{said}");
        for (what, rates) in [("carries over", carried), ("starts anew", anew)] {
            let wanted = changed.filter(|_| !rates.is_empty());
            let wanted = wanted.map(|changed| format!("  {what} what l has counted: {rates} (changed: {changed})"));
            assert_eq!(said.lines().find(|line| line.starts_with(&format!("  {what}"))), wanted.as_deref(), "{said}");
        }
        assert_eq!(said.contains("  keeps all counters"), changed.is_none(), "{said}");
    }
    let route = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
    let (code, said) = check(&limit("client-ip", "rates = [\"2/d\"]"), route);
    assert!(code == Some(0) && said.contains("  drops what l has counted (the limit is removed)"), "{said}");
    let (code, said) =
        check(route, &format!("[server]\nworkers = 3\n[log]\nformat = \"json\"\nlevel = \"debug\"\n{route}"));
    assert_eq!(code, Some(2), "{said}");
    for (setting, place) in [("server.workers", "new.toml:2:1"), ("log.format", "new.toml:4:1")] {
        let line = said.lines().find(|line| line.contains(setting)).unwrap();
        assert!(line.starts_with("  is refused: ") && line.ends_with(&format!("{place})")), "{said}");
    }
    assert!(!said.contains("log.level"), "{said}");
    let (code, said) = check("broken", route);
    assert!(code == Some(2) && said.contains("old.toml"), "{said}");
}

#[test]
fn metrics_of_removed_routes_and_limits_are_removed() {
    let config = |name: &str| {
        let limit = format!("[limits.{name}]\nkey = \"client-ip\"\nrates = [\"9/d\"]\n");
        let upstream = format!("[upstreams.{name}]\nservers = [\"http://127.0.0.1:1\"]\n");
        let stays = "[[routes]]\npath = \"/stays\"\nrespond = { status = 200 }\n";
        let goes = format!("[[routes]]\npath = \"/{name}\"\nlimits = [{name:?}]\nupstream = {name:?}\n");
        [limit, upstream, stays.to_owned(), goes].concat()
    };
    let gateway = Gateway::start(&config("first"));
    let mut client = gateway.client();
    assert_eq!(["/first", "/stays", "/nowhere"].map(|path| client.get(path).status), [502, 200, 404]);
    let text = || gateway.admin("/metrics").text().to_owned();
    for series in ["limit=\"first\"", "route=\"/first\"", "upstream=\"first\""] {
        assert!(text().contains(series), "{}", text());
    }
    gateway.reload("", &config("second"));
    gateway.wait_message("reloaded");
    assert!(!text().contains("first\""), "{}", text());
    assert!(text().contains("limit=\"second\""), "{}", text());
    for outcome in ["responded", "unrouted"] {
        let is_counted = |line: &&str| line.starts_with("gateway_requests_total") && !line.ends_with(" 0");
        let count = text().lines().filter(is_counted).filter(|line| line.contains(outcome)).count();
        assert_eq!(count, 1, "what is kept goes on counting: {}", text());
    }
}

with_each_server! {
    with_a_shared_store_counters_go_on_as_well
    with_a_shared_store_clients_that_flood_a_gateway_gain_nothing_by_its_reloads
    gateways_that_reload_one_after_the_other_go_on_with_what_they_know
}
