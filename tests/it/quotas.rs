//! Rates of keys from a source that speaks HTTP: which rates hold, and in which order.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::plans::{Plans, burst, field, limit, statuses};
use crate::harness::{Authority, Client, Gateway, Response, TlsServer, read_request, reply, run, until};

fn change(gateway: &Gateway, method: &str, key: &str, body: &str) -> Response {
    let (address, length) = (gateway.admin, body.len());
    let head = format!("{method} /api/limits/l/keys/{key} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}");
    Client::connect(address).call(format!("{head}\r\n\r\n{body}"))
}

#[test]
fn the_source_says_what_a_key_may() {
    let plans = Plans::start();
    plans.set("/v1/gold", 200, r#"{"rates": ["3/d"]}"#);
    plans.set("/v1/gr%C3%BCn%2F..%2Fa%3Fb", 200, r#"{"rates": ["2/d"]}"#);
    plans.set("/v1/free", 200, r#"{"exempt": true}"#);
    plans.set("/v1/bad", 200, r#"{"block": true}"#);
    plans.set("/v1/none", 200, "{}");
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let client = &mut gateway.client();
    let first = client.get_with("/", field("gold"));
    assert_eq!((first.status, first.headers.must("ratelimit-policy")), (200, "\"l\";q=3;w=86400"));
    assert_eq!(statuses(client, "gold"), [200, 200, 429]);
    assert_eq!(statuses(client, "gr\u{fc}n/../a?b"), [200, 200, 429]);
    assert_eq!(statuses(client, "free"), [200; 5]);
    assert_eq!(statuses(client, "bad"), [403; 2]);
    assert_eq!(statuses(client, "none"), [200, 429]);
    assert_eq!(statuses(client, "unknown"), [200, 429]);
    assert_eq!(statuses(client, ".."), [200, 429], "a server would take it for another path");
    assert_eq!([client.get("/").status, client.get("/").status], [200, 429], "without a key there is nothing to ask");
    assert_eq!(plans.server.received().len(), 6, "each key once");
    assert_eq!(plans.server.connections(), 1, "it is used again");
    let count = |result: &str| {
        let text = gateway.admin("/metrics");
        let line = format!("gateway_quota_lookups_total{{limit=\"l\",result={result:?}}} ");
        text.text().lines().find_map(|found| found.strip_prefix(&line).map(str::to_owned)).unwrap()
    };
    assert_eq!(["found", "absent", "unusable", "failed"].map(count), ["4", "3", "0", "0"]);
    assert_eq!(gateway.metric("gateway_quota_cached_keys"), Some(7.0));
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
}

#[test]
fn keys_can_be_sent_as_digests() {
    let plans = Plans::start();
    let digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";
    plans.set(&format!("/v1/{digest}"), 200, r#"{"rates": ["2/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "send = \"sha256\"", ""));
    assert_eq!(statuses(&mut gateway.client(), "key"), [200, 200, 429]);
    assert_eq!(plans.server.received().len(), 1);
}

#[test]
fn the_first_that_says_something_holds_and_the_admin_api_says_which() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"rates": ["2/d"]}"#);
    for (key, answer) in [
        ("silver", r#"{"tier": "silver"}"#),
        ("odd", r#"{"tier": "iron"}"#),
        ("free", r#"{"exempt": true}"#),
        ("bad", r#"{"block": true}"#),
    ] {
        plans.set(&format!("/v1/{key}"), 200, answer);
    }
    let more = "tier = \"header:x-plan\"\n\
                tiers = { gold = { rates = [\"5/d\"] }, silver = { rates = [\"3/d\"] } }\n\
                overrides = [{ keys = [\"partner\"], rates = [\"4/d\"] }]";
    let gateway = Gateway::start(&limit(&plans.url(), "", more));
    let client = &mut gateway.client();
    let body = r#"{"rates": ["6/d"], "for": "1h"}"#;
    let answer = change(&gateway, "PUT", "guest", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let policy = |client: &mut Client, key: &str, plan: &str| {
        let response = client.get_with("/", field(key) + plan);
        response.headers.must("ratelimit-policy").split(';').nth(1).unwrap().to_owned()
    };
    let gold = "x-plan: gold\r\n";
    assert_eq!(policy(client, "partner", gold), "q=4", "an override of the file");
    assert_eq!(policy(client, "guest", gold), "q=6", "an override of the admin API");
    assert!(plans.server.received().is_empty(), "the source is not asked about these");
    assert_eq!(policy(client, "any", gold), "q=2", "the source");
    assert_eq!(policy(client, "silver", gold), "q=3", "a tier that the source names");
    plans.forget("*");
    assert_eq!(policy(client, "unknown", gold), "q=5", "the tier of the request");
    assert_eq!(policy(client, "odd", gold), "q=5", "the limit has no such tier");
    assert_eq!(policy(client, "own", ""), "q=1", "the limit's own rates");
    assert_eq!((statuses(client, "free"), statuses(client, "bad")), ([200], [403]));

    let shown = |key: &str| gateway.admin(&format!("/api/limits/l/keys/{key}")).json();
    for (key, from, quota) in [
        ("partner", "file", json!(null)),
        ("guest", "admin", json!(null)),
        ("any", "source", json!({"rates": ["2/d"], "holds": true, "known": true, "failures": 0})),
        ("silver", "source", json!({"tier": "silver", "holds": true, "known": true, "failures": 0})),
        ("free", "source", json!({"exempt": true, "holds": true, "known": true, "failures": 0})),
        ("bad", "source", json!({"block": true, "holds": true, "known": true, "failures": 0})),
        ("unknown", "limit", json!({"holds": false, "known": false, "failures": 0})),
        ("odd", "limit", json!({"holds": false, "known": false, "failures": 1})),
        ("own", "limit", json!({"holds": false, "known": false, "failures": 0})),
    ] {
        let mut shown = shown(key);
        assert_eq!(shown["from"], from, "{key}: {shown}");
        let mut found = shown["quota"].take();
        if let Some(found) = found.as_object_mut() {
            // These depend on the time.
            let (age, due) = (found.remove("age").unwrap(), found.remove("due").unwrap());
            assert!(if key == "odd" { age.is_null() } else { age.is_u64() && due == false }, "{key}: {age}, {due}");
        }
        assert_eq!(found, quota, "{key}");
    }
    assert_eq!(shown("silver")["rates"][0]["rate"], "3/d");
    until("it gets older", Duration::from_secs(10), || shown("any")["quota"]["age"].as_u64() > Some(0));
    // An override hides what is cached.
    assert_eq!(change(&gateway, "PUT", "any", body).status, 200);
    let any = shown("any");
    assert_eq!(
        (&any["from"], &any["quota"]["holds"], &any["quota"]["known"]),
        (&json!("admin"), &json!(false), &json!(true))
    );
}

#[test]
fn many_requests_of_a_key_cause_one_lookup() {
    let plans = Plans::start();
    plans.set("/v1/busy", 200, r#"{"rates": ["1000/d"]}"#);
    plans.gate.close();
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let mut clients: Vec<_> = (0..30).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", field("busy")));
    }
    plans.server.wait_connections(1);
    plans.gate.open();
    assert!(clients.iter_mut().all(|client| client.response(false).status == 200));
    assert_eq!(plans.asked("/v1/busy"), 1);
}

#[test]
fn what_has_expired_is_used_while_it_is_renewed() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"exempt": true}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"2s\"", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "k"), [200; 3]);
    plans.gate.close();
    plans.set("/v1/k", 200, r#"{"block": true}"#);
    until("it is renewed", Duration::from_secs(20), || {
        assert_eq!(client.get_with("/", field("k")).status, 200, "no request waits for that");
        plans.asked("/v1/k") >= 2
    });
    plans.gate.open();
    until("it has the new answer", Duration::from_secs(20), || client.get_with("/", field("k")).status == 403);
}

#[test]
fn no_request_of_an_idle_key_passes_by_an_answer_that_is_long_out_of_date() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"exempt": true}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1s\"", ""));
    assert_eq!(statuses(&mut gateway.client(), "k"), [200]);
    plans.set("/v1/k", 200, r#"{"block": true}"#);
    let age = || gateway.admin("/api/limits/l/keys/k").json()["quota"]["age"].as_u64();
    until("it is twice as old as it may be", Duration::from_secs(20), || age() >= Some(2));
    assert_eq!(burst(&gateway, &field("k")), [403; 20]);
    assert_eq!(plans.asked("/v1/k"), 2);
}

#[test]
fn a_reload_keeps_what_is_cached_and_reads_it_again() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"rates": ["3/d"]}"#);
    plans.set("/v1/t", 200, r#"{"tier": "gold"}"#);
    let tiers = |rates: &str| format!("tier = \"header:x-plan\"\ntiers.gold.rates = [{rates:?}]");
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1h\"", &tiers("2/d")));
    let client = &mut gateway.client();
    assert_eq!((statuses(client, "k"), statuses(client, "t")), ([200], [200, 200, 429]));
    gateway.reload_and_wait("", &limit(&plans.url(), "cache_for = \"1h\"", &tiers("4/d")));
    assert_eq!((statuses(client, "k"), statuses(client, "t")), ([200, 200, 429], [200, 200, 429]), "counts go on");
    let bucket = tiers("4/d") + "\nstrategy = \"token-bucket\"";
    gateway.reload_and_wait("", &limit(&plans.url(), "cache_for = \"1h\"", &bucket));
    assert!(client.get_with("/", field("k")).headers.must("ratelimit-policy").contains("q=3"));
    assert_eq!((plans.asked("/v1/k"), plans.asked("/v1/t")), (1, 1), "the cache outlives reloads");
    gateway.reload_and_wait("", &limit(&plans.url(), "cache_for = \"2h\"", &bucket));
    assert!(client.get_with("/", field("k")).headers.must("ratelimit-policy").contains("q=3"));
    assert_eq!(plans.asked("/v1/k"), 2, "another section has another cache");
}

#[test]
fn counters_of_quotas_survive_reloads_and_their_sweep() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"rates": ["3/h", "5/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1h\"", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "k"), [200, 200]);
    gateway.signal(Signal::HUP);
    until("it reloads", Duration::from_secs(20), || gateway.reloads() > 0);
    assert_eq!(statuses(client, "k"), [200, 429]);
    let shown = gateway.admin("/api/limits/l/keys/k").json();
    assert_eq!((&shown["rates"][0]["used"], &shown["quota"]["rates"]), (&json!(3), &json!(["3/h", "5/d"])), "{shown}");
    assert_eq!(change(&gateway, "DELETE", "k", "").status, 200);
    assert_eq!(statuses(client, "k"), [200, 200, 200, 429]);
}

#[test]
fn reloads_under_load_lose_no_answer() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"exempt": true}"#);
    let text = |rate: &str| limit(&plans.url(), "cache_for = \"1h\"", "").replace("1/d", rate);
    let gateway = Gateway::start(&text("1/d"));
    let mut client = gateway.client();
    let reloads = Arc::new(AtomicUsize::new(0));
    let done = reloads.clone();
    let load = std::thread::spawn(move || {
        let mut count = 0;
        while count < 1000 || done.load(Ordering::SeqCst) < 2 {
            assert_eq!(statuses(&mut client, &format!("k{}", count % 50)), [200]);
            count += 1;
        }
    });
    while !load.is_finished() {
        let number = reloads.load(Ordering::SeqCst);
        gateway.reload_and_wait("", &text(if number.is_multiple_of(2) { "2/d" } else { "1/d" }));
        reloads.store(number + 1, Ordering::SeqCst);
    }
    load.join().unwrap();
    assert!(plans.server.received().len() <= 50);
}

#[test]
fn explain_asks_the_source_and_check_shows_no_secret() {
    let plans = Plans::start();
    plans.set("/v1/gold?token=very-secret", 200, r#"{"rates": ["3/d"]}"#);
    plans.set("/v1/bad?token=very-secret", 200, "{");
    plans.set("/v1/free?token=very-secret", 200, r#"{"exempt": true}"#);
    plans.set("/v1/blocked?token=very-secret", 200, r#"{"block": true}"#);
    plans.set("/v1/silver?token=very-secret", 200, r#"{"tier": "silver"}"#);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(folder.path().join("source"), plans.url() + "?token=very-secret\n").unwrap();
    let more = "tier = \"header:x-plan\"\ntiers.silver.rates = [\"3/d\"]\n\
                overrides = [{ keys = [\"partner\"], rates = [\"4/d\"] }]";
    fs::write(&file, limit("file:source", "", more)).unwrap();
    let file = file.to_str().unwrap();
    let explain = |key: &str| {
        let header = format!("x-api-key: {key}");
        let output = run(&["explain", "--config", file, "-H", &header, "http://a/"]);
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain("gold");
    assert!(text.contains("3/d (from the source of quotas)") && text.contains("and names these rates"), "{text}");
    let override_of_file = explain("partner");
    assert!(override_of_file.contains("4/d (an override for the key)"), "{override_of_file}");
    assert!(override_of_file.contains("not asked about this key"), "{override_of_file}");
    assert!(explain("free").contains("the source of quotas exempts the key"));
    assert!(explain("blocked").contains("the source of quotas blocks the key"));
    let of_tier = explain("silver");
    assert!(of_tier.contains("3/d (tier silver)") && of_tier.contains("names the tier silver"), "{of_tier}");
    assert!(explain("other").contains("and does not know the key"));
    assert!(explain("bad").contains("without a usable answer: the answer is not JSON"));
    let mut shown = String::new();
    for arguments in [&["check", "--config", file][..], &["check", "--json", "--config", file]] {
        let output = run(arguments);
        assert!(output.status.success());
        write!(shown, "{}", String::from_utf8(output.stdout).unwrap()).unwrap();
    }
    assert!(shown.contains("quotas from http://127.0.0.1") && shown.contains("/***"), "{shown}");
    assert!(!(shown + &text).contains("very-secret"));
}

#[test]
fn a_source_with_tls_has_a_certificate_that_the_system_trusts() {
    let (known, unknown) = (Authority::new(), Authority::new());
    let server =
        TlsServer::raw(known.server(&known.issue("plans", "plans", &["localhost"]), false), |mut stream, _| {
            while let Some((path, _)) = read_request(&mut stream) {
                assert_eq!(path, "/v1/k");
                if stream.write_all(&reply(200, r#"{"rates": ["2/d"]}"#)).is_err() {
                    return;
                }
            }
        });
    let text = limit(&format!("https://localhost:{}/v1/{{key}}", server.address.port()), "", "");
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &known.ca(), &text);
    assert_eq!(statuses(&mut gateway.client(), "k"), [200, 200, 429]);
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &unknown.ca(), &text);
    assert_eq!(statuses(&mut gateway.client(), "k"), [200, 429]);
    gateway.wait_message("a source of quotas is away: cached answers stay in use");
    assert_eq!(server.handshakes().len(), 1);
}
