//! What the commands, the headers, the metrics and other settings of a limit make of costs in bytes.

use std::fmt::Write as _;
use std::fs;

use serde_json::json;

use crate::bytes::{files, left, limit};
use crate::harness::{Gateway, Software, Upstream, every_store, reply, run, run_json};

fn written(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(&file, text).unwrap();
    (folder, file.to_str().unwrap().to_owned())
}

/// A gateway whose limit `l` has these further keys, on a route with these limits.
fn with_keys(store: &str, quota: &str, cost: &str, keys: &str, limits: &str, upstream: &Upstream) -> Gateway {
    let own = limit(quota, cost) + keys;
    Gateway::start(&format!("{store}{own}\n{}limits = {limits}\n", upstream.everything()))
}

fn everything() -> String {
    "[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n".to_owned()
}

#[test]
fn check_and_explain_say_what_is_counted() {
    let cost = "bytes = \"both\", reserve = \"8KiB\", on_exhausted = \"cut\"";
    let (_folder, file) = written(&(limit("500MB", cost) + &everything()));
    let said = String::from_utf8(run(&["check", "--config", &file]).stdout).unwrap();
    for part in [
        "500MB/d per client-ip",
        "a request costs the bytes of its body and its response",
        "8KiB at a time are reserved of a body without a length",
        "such a body is cut",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let read = run_json(&["check", "--json", "--config", &file]);
    let cost = &read["limits"]["l"]["cost"];
    assert_eq!([&cost["bytes"], &cost["reserve"], &cost["on_exhausted"]], ["both", "8KiB", "cut"], "{read}");
    let explained =
        run(&["explain", "--config", &file, "-X", "PUT", "-H", "content-length: 2048", "http://h/a"]).stdout;
    let explained = String::from_utf8(explained).unwrap();
    let expected = "the bytes of its body and its response: 2KiB reserved at first, and before the head of the response \
                    its length; of a body without a length 8KiB at a time";
    assert!(explained.contains(expected) && explained.contains("500MB/d"), "{explained}");
}

#[test]
fn simulate_takes_the_bytes_of_the_log() {
    let (folder, file) = written(&(limit("10KB", "bytes = \"response\"") + &everything()));
    let mut lines = String::new();
    for (second, bytes) in [(1, "4000"), (2, "4000"), (3, "4000"), (4, "-"), (5, "2000"), (6, "1")] {
        let _ = writeln!(lines, "203.0.113.7 - - [10/Oct/2000:13:55:0{second} +0000] \"GET /a HTTP/1.1\" 200 {bytes}");
    }
    let log = folder.path().join("access.log");
    fs::write(&log, lines).unwrap();
    let simulated = run_json(&["simulate", "--json", "--suggest", "--config", &file, log.to_str().unwrap()]);
    let found = &simulated["limits"]["l"];
    assert_eq!((&found["requests"], &found["rejected"]), (&json!(6), &json!(2)), "{simulated}");
    assert_eq!(found["exact"]["wrongly_admitted"], 0, "{simulated}");
    assert_eq!(found["exact"]["wrongly_rejected"], 0, "{simulated}");
    let suggested = found["suggested"][0]["rates"][0].as_str().unwrap();
    assert!(suggested.ends_with("B/d"), "{suggested}");
}

#[test]
fn simulate_reads_the_log_that_the_gateway_writes() {
    let upstream = files();
    let text = limit("10KB", "bytes = \"response\"");
    let gateway = Gateway::start(&format!("{text}{}limits = [\"l\"]\n", upstream.everything()));
    // The lines of one connection are written in order.
    let mut client = gateway.client();
    for path in ["/4000", "/4000", "/4000", "/2000"] {
        client.get(path);
    }
    gateway.wait_log("the last", |line| line["path"] == "/2000");
    let lines: Vec<_> = gateway.log().into_iter().filter(|line| line.contains("\"request\"")).collect();
    let (folder, file) = written(&(text + &everything()));
    let log = folder.path().join("access.log");
    fs::write(&log, lines.join("\n")).unwrap();
    let simulated = run_json(&["simulate", "--json", "--config", &file, log.to_str().unwrap()]);
    // 4000 bytes twice and 2000 fill the limit, and the line of the refusal has bytes, too.
    assert_eq!((&simulated["limits"]["l"]["requests"], &simulated["limits"]["l"]["rejected"]), (&json!(4), &json!(1)));
}

#[test]
fn the_metrics_say_how_much_has_passed_and_what_was_cut() {
    let upstream = files();
    let gateway =
        with_keys("", "10KB", "bytes = \"both\", reserve = \"1KB\", on_exhausted = \"cut\"", "", "[\"l\"]", &upstream);
    let put = format!("PUT /300 HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{}", "x".repeat(100));
    assert_eq!(gateway.client().call(put).status, 200);
    assert_eq!(gateway.client().get("/20000").status, 429);
    let mut client = gateway.client();
    client.send("GET /drip/20000 HTTP/1.1\r\nHost: h\r\n\r\n");
    client.closed();
    gateway.wait_log("the cut", |line| line["reason"] == "bytes_exhausted");
    let of = |name: &str| gateway.metric(&format!("gateway_limit_{name}"));
    assert_eq!(of("bytes_total{limit=\"l\",direction=\"request\"}"), Some(100.0));
    assert_eq!(of("bytes_total{limit=\"l\",direction=\"response\"}"), Some(9300.0));
    assert_eq!(of("bodies_cut_total{limit=\"l\"}"), Some(1.0));
    assert_eq!(of("decisions_total{limit=\"l\",decision=\"rejected\"}"), Some(1.0));
}

#[test]
fn a_silent_limit_answers_instead_of_a_response_without_room() {
    every_store(|store| {
        let keys = "on_limit = \"silent\"\n";
        let gateway = with_keys(store, "10KB", "bytes = \"response\"", keys, "[\"l\"]", &files());
        let mut client = gateway.client();
        assert_eq!(client.get("/7000").body.len(), 7000);
        let silenced = client.get("/7000");
        assert_eq!((silenced.status, silenced.body.len(), silenced.headers.get("ratelimit")), (200, 0, None));
        assert_eq!(client.get("/3000").body.len(), 3000);
    });
}

#[test]
fn a_full_limit_overflows_into_a_pool_of_bytes() {
    every_store(|store| {
        let keys = "overflow = \"pool\"\n[limits.pool]\nkey = \"route\"\nrates = [\"5KB/d\"]\n\
                    cost = { bytes = \"response\" }\n";
        let gateway = with_keys(store, "3KB", "bytes = \"response\"", keys, "[\"l\"]", &files());
        let mut client = gateway.client();
        assert_eq!(client.get("/3000").status, 200);
        assert_eq!(client.get("/4000").status, 200);
        assert_eq!(client.get("/4000").status, 429);
        assert_eq!((gateway.used("l", "127.0.0.1"), gateway.used("pool", "%2F*")), (3000, 4000), "{store}");
    });
}

#[test]
fn every_strategy_counts_bytes() {
    every_store(|store| {
        for (strategy, rate) in [
            ("sliding-window", "30000B/d"),
            ("fixed-window", "30000B/d"),
            ("token-bucket", "30000B/d"),
            ("sliding-window", "30000B/day"),
        ] {
            let name = format!("l{}", strategy.len() + rate.len());
            let text = format!(
                "[limits.{name}]\nkey = \"route\"\nrates = [\"{rate}\"]\ncost = {{ bytes = \"both\", reserve = \"1KB\" }}\n"
            );
            let text = if rate.ends_with("day") { text } else { format!("{text}strategy = \"{strategy}\"\n") };
            let gateway = Gateway::start(&format!("{store}{text}{}limits = [{name:?}]\n", files().everything()));
            let mut client = gateway.client();
            assert_eq!(client.get("/10000").status, 200);
            assert_eq!(client.get("/chunked/10000").status, 200);
            assert_eq!(client.get("/20000").status, 429);
            // A bucket drains a third of a byte a second.
            let used = gateway.used(&name, "%2F*");
            assert!((19_980..=20_000).contains(&used), "{used}, {strategy}, {rate}, {store}");
        }
    });
}

#[test]
fn larger_quotas_than_of_requests_are_counted_exactly() {
    every_store(|store| {
        let gateway = with_keys(store, "256TiB", "bytes = \"response\"", "", "[\"l\"]", &files());
        assert_eq!(gateway.client().get("/4096").status, 200);
        assert_eq!(left(&gateway), (1 << 48) - 4096, "{store}");
    });
}

fn strict_stores_refuse_what_has_no_room(software: Software) {
    let server = software.start();
    let store = server.store_with("strict = true\non_error = \"reject\"");
    let gateway = with_keys(&store, "10KB", "bytes = \"response\", on_exhausted = \"cut\"", "", "[\"l\"]", &files());
    let mut client = gateway.client();
    assert_eq!([client.get("/4000").status, client.get("/4000").status, client.get("/4000").status], [200, 200, 429]);
    assert_eq!((client.get("/2000").status, client.get("/1").status), (200, 429));
}

fn a_store_that_is_away_decides_by_on_error(software: Software) {
    for (on_error, status) in [("allow", 200), ("reject", 503)] {
        let mut server = software.start();
        let held = crate::harness::Gate::default();
        let gate = held.clone();
        let upstream = Upstream::start(move |_| {
            gate.pass();
            reply(200, "body")
        });
        let store = server.store_with(&format!("on_error = \"{on_error}\"\ntimeout = \"2s\""));
        let gateway = with_keys(&store, "10KB", "bytes = \"response\"", "", "[\"l\"]", &upstream);
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        upstream.wait_connections(1);
        server.kill();
        gateway.wait_log("the outage", |line| {
            line["message"].as_str().is_some_and(|message| message.contains("away")) || line["level"] == "WARN"
        });
        held.open();
        assert_eq!(client.response(false).status, status, "{software:?}");
    }
}

crate::harness::with_each_server! {
    strict_stores_refuse_what_has_no_room
    a_store_that_is_away_decides_by_on_error
}

#[test]
fn tokens_and_bytes_of_one_response_are_both_charged() {
    let answer = r#"{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;
    let upstream = Upstream::start(move |_| {
        let length = answer.len();
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}").into()
    });
    let keys = "[limits.t]\nkey = \"route\"\nrates = [\"1000/d\"]\ncost = { tokens = \"auto\", max_output = 10 }\n";
    let gateway = with_keys("", "10KB", "bytes = \"both\"", keys, "[\"l\", \"t\"]", &upstream);
    let body = r#"{"model":"m","messages":[]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(gateway.client().call(request).status, 200);
    assert_eq!(gateway.used("l", "127.0.0.1"), (body.len() + answer.len()) as u64);
    assert_eq!(gateway.used("t", "%2F*"), 7);
}
