//! Rates of keys from a source that speaks HTTP: what holds, and in which order.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Client, Gateway, Response, Upstream, closed_port, receive, reply, run, until};

/// Statuses and bodies by the target of a request.
type Answers = Mutex<HashMap<String, (u16, String)>>;

/// A source whose answers the test changes. It knows what a test has set, and answers 404 otherwise.
struct Plans {
    server: Upstream,
    answers: Arc<Answers>,
    gate: Arc<Gate>,
}

/// While it is closed, no answer is given.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut is_closed = self.is_closed.lock().unwrap();
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap();
        }
    }

    fn set(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }
}

impl Plans {
    fn start() -> Self {
        let (answers, gate) = (Arc::<Answers>::default(), Arc::<Gate>::default());
        let (known, passed) = (answers.clone(), gate.clone());
        let server = Upstream::start(move |request| {
            passed.pass();
            let all = known.lock().unwrap();
            let answer = all.get(&request.target).or_else(|| all.get("*"));
            answer.map_or_else(|| reply(404, ""), |(status, body)| reply(*status, body))
        });
        Self { server, answers, gate }
    }

    /// Sets the answer for a target; `*` is any other.
    fn set(&self, target: &str, status: u16, body: &str) {
        self.answers.lock().unwrap().insert(target.to_owned(), (status, body.to_owned()));
    }

    fn forget(&self, target: &str) {
        self.answers.lock().unwrap().remove(target);
    }

    /// How often it was asked about a target.
    fn asked(&self, target: &str) -> usize {
        self.server.received().iter().filter(|request| request.target == target).count()
    }

    fn url(&self) -> String {
        url(self.server.address())
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/v1/{{key}}")
}

/// A limit of one request a day with this source. A request waits for long, so that tests depend on no time.
fn limit(url: &str, quotas: &str, more: &str) -> String {
    let timeout = if quotas.contains("timeout") { "" } else { "timeout = \"5s\"" };
    format!(
        "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/d\"]\n{more}\n\
         [limits.l.quotas]\nsource = {url:?}\n{timeout}\n{quotas}\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"
    )
}

fn field(key: &str) -> String {
    format!("x-api-key: {key}\r\n")
}

/// Changes a key by the admin API.
fn change(gateway: &Gateway, method: &str, key: &str, body: &str) -> Response {
    let (address, length) = (gateway.admin, body.len());
    let head = format!("{method} /api/limits/l/keys/{key} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}");
    Client::connect(address).call(format!("{head}\r\n\r\n{body}"))
}

fn statuses<const N: usize>(client: &mut Client, key: &str) -> [u16; N] {
    [(); N].map(|()| client.get_with("/", field(key)).status)
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
fn overrides_come_before_the_source_and_the_source_before_tiers() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"rates": ["2/d"]}"#);
    plans.set("/v1/silver", 200, r#"{"tier": "silver"}"#);
    plans.set("/v1/odd", 200, r#"{"tier": "iron"}"#);
    let more = "tier = \"header:x-plan\"\n\
                tiers = { gold = { rates = [\"5/d\"] }, silver = { rates = [\"3/d\"] } }\n\
                overrides = [{ keys = [\"partner\"], rates = [\"4/d\"] }]";
    let gateway = Gateway::start(&limit(&plans.url(), "", more));
    let client = &mut gateway.client();
    let body = r#"{"rates": ["6/d"], "for": "1h"}"#;
    let answer = change(&gateway, "PUT", "guest", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let policy = |client: &mut Client, key: &str| {
        let response = client.get_with("/", field(key) + "x-plan: gold\r\n");
        response.headers.must("ratelimit-policy").split(';').nth(1).unwrap().to_owned()
    };
    assert_eq!(policy(client, "partner"), "q=4", "an override of the file");
    assert_eq!(policy(client, "guest"), "q=6", "an override of the admin API");
    assert!(plans.server.received().is_empty(), "the source is not asked about these");
    assert_eq!(policy(client, "any"), "q=2", "the source");
    assert_eq!(policy(client, "silver"), "q=3", "a tier that the source names");
    plans.forget("*");
    assert_eq!(policy(client, "unknown"), "q=5", "the tier of the request");
    assert_eq!(policy(client, "odd"), "q=5", "the limit has no such tier");
    let shown = gateway.admin("/api/limits/l/keys/silver").json();
    assert_eq!((&shown["quota"]["tier"], &shown["quota"]["holds"]), (&json!("silver"), &json!(true)), "{shown}");
    assert_eq!(shown["rates"][0]["rate"], "3/d", "{shown}");
    assert_eq!(gateway.admin("/api/limits/l/keys/odd").json()["quota"]["failures"], 1);
}

#[test]
fn many_requests_of_a_key_cause_one_lookup() {
    let plans = Plans::start();
    plans.set("/v1/busy", 200, r#"{"rates": ["1000/d"]}"#);
    plans.gate.set(true);
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let mut clients: Vec<_> = (0..30).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", field("busy")));
    }
    plans.server.wait_connections(1);
    plans.gate.set(false);
    assert!(clients.iter_mut().all(|client| client.response(false).status == 200));
    assert_eq!(plans.asked("/v1/busy"), 1);
}

#[test]
fn a_slow_source_delays_a_request_for_its_timeout_and_answers_later_ones() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"rates": ["5/d"]}"#);
    plans.gate.set(true);
    let gateway = Gateway::start(&limit(&plans.url(), "timeout = \"20ms\"", ""));
    let client = &mut gateway.client();
    assert_eq!(client.get_with("/", field("k")).headers.must("ratelimit-policy"), "\"l\";q=1;w=86400");
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), Some(1.0));
    plans.gate.set(false);
    until("the lookup ends", Duration::from_secs(10), || gateway.metric("gateway_quota_cached_keys") == Some(1.0));
    assert_eq!(statuses(client, "k"), [200, 200, 200, 200, 429], "the first one is counted, too");
    assert_eq!(plans.asked("/v1/k"), 1);
}

#[test]
fn what_has_expired_is_used_while_it_is_renewed() {
    let plans = Plans::start();
    plans.set("/v1/k", 200, r#"{"exempt": true}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1s\"", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "k"), [200; 3]);
    plans.set("/v1/k", 200, r#"{"block": true}"#);
    plans.gate.set(true);
    until("it is renewed", Duration::from_secs(10), || {
        assert_eq!(client.get_with("/", field("k")).status, 200, "no request waits for that");
        plans.asked("/v1/k") == 2
    });
    plans.gate.set(false);
    until("it has the new answer", Duration::from_secs(10), || client.get_with("/", field("k")).status == 403);
}

#[test]
fn while_the_source_is_away_what_is_known_holds_and_nobody_waits() {
    let plans = Plans::start();
    plans.set("/v1/bad", 200, r#"{"block": true}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1s\"", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "bad"), [403]);
    plans.set("*", 503, "");
    plans.set("/v1/bad", 503, "");
    assert_eq!(statuses(client, "first"), [200, 429]);
    gateway.wait_message("a source of quotas is away: what is cached goes on holding");
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(0.0));
    let begun = Instant::now();
    for number in 0..50 {
        assert_eq!(statuses(client, &format!("new-{number}")), [200, 429]);
    }
    assert!(begun.elapsed() < Duration::from_secs(25), "each would have waited for 5 s");
    let until_expired = Instant::now() + Duration::from_millis(1500);
    until("it has expired", Duration::from_secs(10), || Instant::now() > until_expired);
    assert_eq!(statuses(client, "bad"), [403; 3]);
    assert!(plans.asked("/v1/bad") + plans.asked("/v1/new-7") <= 2, "it is not asked again and again");
    plans.set("*", 200, r#"{"block": true}"#);
    gateway.wait_message("a source of quotas is back");
    until("new keys are asked about", Duration::from_secs(10), || statuses(client, "later") == [403]);
    assert!(!gateway.log().concat().contains("new-7"), "a key is in the log");
}

#[test]
fn a_source_that_cannot_be_connected_to_is_away() {
    let (_socket, address) = closed_port();
    let gateway = Gateway::start(&limit(&url(address), "", ""));
    let client = &mut gateway.client();
    for number in 0..20 {
        assert_eq!(statuses(client, &format!("k{number}")), [200, 429]);
    }
    gateway.wait_message("a source of quotas is away: what is cached goes on holding");
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), Some(0.0));
}

#[test]
fn a_frozen_source_is_away_after_five_seconds() {
    let server = Upstream::raw(|wire, _| {
        std::mem::forget(wire);
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "timeout = \"20ms\"", ""));
    let client = &mut gateway.client();
    let mut number = 0;
    until("it is away", Duration::from_secs(30), || {
        number += 1;
        assert_eq!(statuses(client, &format!("k{number}")), [200]);
        gateway.metric("gateway_quota_source_up") == Some(0.0)
    });
    let before = gateway.metric("gateway_quota_waits_timed_out_total");
    for number in 0..20 {
        assert_eq!(statuses(client, &format!("later-{number}")), [200]);
    }
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), before, "nobody waits");
}

#[test]
fn a_killed_source_is_connected_to_again() {
    let first = Arc::new(Mutex::new(true));
    let cut = first.clone();
    // It closes the connection after its first answer, when the next request arrives.
    let server = Upstream::raw(move |mut wire, _| {
        while let Ok(Some(_)) = receive(&mut wire) {
            if std::mem::take(&mut *cut.lock().unwrap()) || wire.write(&reply(200, r#"{"rates": ["2/d"]}"#)).is_err() {
                return;
            }
        }
    });
    let gateway = Gateway::start(&limit(&url(server.address()), "", ""));
    let client = &mut gateway.client();
    assert_eq!(statuses(client, "a"), [200, 429], "the connection broke");
    gateway.wait_message("a source of quotas is back");
    assert_eq!(statuses(client, "b"), [200, 200, 429]);
    *first.lock().unwrap() = true;
    assert_eq!(statuses(client, "c"), [200, 200, 429], "a kept connection that breaks is no failure");
}

#[test]
fn answers_that_cannot_be_used_concern_one_key() {
    let plans = Plans::start();
    let garbage = [
        (200, "not JSON".to_owned()),
        (200, r#"{"rate": ["1/s"]}"#.to_owned()),
        (200, r#"{"rates": ["fast"]}"#.to_owned()),
        (200, r#"{"rates": ["5/s burst 9"]}"#.to_owned()),
        (200, r#"{"exempt": true, "block": true}"#.to_owned()),
        (200, format!("{{\"tier\": \"{}\"}}", "x".repeat(100_000))),
        (302, String::new()),
        (500, String::new()),
    ];
    for (number, (status, body)) in garbage.iter().enumerate() {
        plans.set(&format!("/v1/secret-{number}"), *status, body);
    }
    plans.set("/v1/good", 200, r#"{"rates": ["2/d"]}"#);
    let gateway = Gateway::start(&limit(&plans.url(), "", ""));
    let client = &mut gateway.client();
    for number in 0..garbage.len() {
        assert_eq!(statuses(client, &format!("secret-{number}")), [200, 429], "{number}");
        assert_eq!(plans.asked(&format!("/v1/secret-{number}")), 1, "it is not asked again at once");
    }
    assert_eq!(statuses(client, "good"), [200, 200, 429]);
    assert_eq!(gateway.metric("gateway_quota_source_up"), Some(1.0));
    assert!(
        gateway.admin("/metrics").text().contains("gateway_quota_lookups_total{limit=\"l\",result=\"unusable\"} 8")
    );
    let text = gateway.log().concat() + gateway.admin("/metrics").text();
    assert!(!text.contains("secret-"), "a key is in the log or the metrics");
}

#[test]
fn invented_keys_evict_none_that_the_source_knows() {
    let plans = Plans::start();
    for key in ["a", "b"] {
        plans.set(&format!("/v1/{key}"), 200, r#"{"rates": ["100000/d"]}"#);
    }
    let gateway = Gateway::start(&limit(&plans.url(), "cache_for = \"1h\"\nmax_cached = 64", ""));
    let client = &mut gateway.client();
    assert_eq!((statuses(client, "a"), statuses(client, "b")), ([200], [200]));
    for number in 0..1000 {
        assert_eq!(statuses(client, &format!("invented-{number}")), [200]);
    }
    assert!(gateway.metric("gateway_quota_cached_keys").unwrap() <= 64.0);
    assert!(gateway.metric("gateway_quota_evictions_total").unwrap() > 900.0);
    assert_eq!((statuses(client, "a"), statuses(client, "b")), ([200; 3], [200; 3]));
    assert_eq!((plans.asked("/v1/a"), plans.asked("/v1/b")), (1, 1));
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
    let load = std::thread::spawn(move || {
        for count in 0..1000 {
            assert_eq!(statuses(&mut client, &format!("k{}", count % 50)), [200]);
        }
    });
    let mut reloads = 0;
    while !load.is_finished() {
        reloads += 1;
        gateway.reload_and_wait("", &text(if reloads % 2 == 0 { "2/d" } else { "1/d" }));
    }
    load.join().unwrap();
    assert!(reloads > 1);
    assert!(plans.server.received().len() <= 50);
}

#[test]
fn explain_asks_the_source_and_check_shows_no_secret() {
    let plans = Plans::start();
    plans.set("/v1/gold?token=very-secret", 200, r#"{"rates": ["3/d"]}"#);
    plans.set("/v1/bad?token=very-secret", 200, "{");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(folder.path().join("source"), plans.url() + "?token=very-secret\n").unwrap();
    fs::write(&file, limit("file:source", "", "")).unwrap();
    let file = file.to_str().unwrap();
    let explain = |key: &str| {
        let header = format!("x-api-key: {key}");
        let output = run(&["explain", "--config", file, "-H", &header, "http://a/"]);
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain("gold");
    assert!(text.contains("3/d (from the source of quotas)") && text.contains("and names these rates"), "{text}");
    assert!(explain("other").contains("and does not know the key"));
    assert!(explain("bad").contains("without an answer that can be used: the answer is not JSON"));
    let mut shown = String::new();
    for arguments in [&["check", "--config", file][..], &["check", "--json", "--config", file]] {
        let output = run(arguments);
        assert!(output.status.success());
        write!(shown, "{}", String::from_utf8(output.stdout).unwrap()).unwrap();
    }
    assert!(shown.contains("quotas from http://127.0.0.1") && shown.contains("?***"), "{shown}");
    assert!(!(shown + &text).contains("very-secret"));
}
