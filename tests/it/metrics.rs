//! The metrics: both formats as other programs read them, their documentation, and what they count.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    self, Authority, Gateway, Server, Signer, Software, Upstream, closed_port, every_store, limited, reply, until,
};

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Documented {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
    unit: String,
}

pub(crate) fn documented() -> BTreeMap<String, Documented> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let metrics: Vec<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            assert_eq!(cells.len(), 6, "{row}");
            assert!(!cells[4].is_empty(), "nothing is said about {}", cells[0]);
            let labels = cells[2].split(", ").map(|label| label.trim_matches('`').to_owned());
            let labels = labels.filter(|label| !label.is_empty()).collect();
            (cells[0].to_owned(), Documented { kind: cells[1].to_owned(), labels, unit: cells[3].to_owned() })
        })
        .collect();
    let count = metrics.len();
    let metrics: BTreeMap<_, _> = metrics.into_iter().collect();
    assert_eq!(metrics.len(), count, "a metric is in the documentation twice");
    metrics
}

/// Runs promtool, which is no part of the gateway, on this input.
#[track_caller]
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Output {
    // `scripts/test --all` installs it here if the system does not have it.
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/promtool/usr/bin/promtool");
    let mut promtool = Command::new(if std::path::Path::new(own).exists() { own } else { "promtool" })
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: scripts/test --all installs what the tests need");
    // It may end before it has read everything.
    let _ = promtool.stdin.take().unwrap().write_all(input.as_bytes());
    promtool.wait_with_output().unwrap()
}

/// Gateways with everything: one counts in memory, the second in Memcached, the third in Valkey, and the last has its configuration from a
/// server, which now sends something wrong.
struct Everything {
    gateways: [Gateway; 4],
    _servers: [Upstream; 4],
    _memcached: Server,
    _valkey: Server,
}

impl Everything {
    fn start() -> Self {
        let authority = Authority::new();
        let site = authority.issue("site", "site", &["site.test"]);
        let signer = Signer::new(Algorithm::ES256, "one");
        let keys = harness::key_set(&[&signer]);
        let plans = Upstream::start(|_| reply(404, ""));
        let issuer = Upstream::start(move |_| reply(200, &keys));
        let up = Upstream::start(|_| reply(200, "hello"));
        let (_held, away) = closed_port();
        let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
        let server = format!(
            "{listen}\nshed = {{ latency = \"60s\", status = 503 }}\n[server.tls]\ncertificates = [{}]\n",
            site.toml()
        );
        let rest = format!(
            "[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\njwks = \"http://{}/\"\n\
             algorithms = [\"ES256\"]\n\
             [limits.l]\nkey = \"jwt:sub | header:x-api-key\"\nrates = [\"2/d\"]\nban = {{ after = 100 }}\n\
             [limits.l.quotas]\nsource = \"http://{}/{{key}}\"\ntimeout = \"5s\"\n\
             [limits.tokens]\nkey = \"global\"\nrates = [\"100000/d\"]\ncost = {{ tokens = \"auto\" }}\n\
             [limits.bytes]\nkey = \"global\"\nrates = [\"1GiB/d\"]\ncost = {{ bytes = \"response\" }}\n\
             [[notices]]\nurl = \"http://{away}/\"\n\
             [upstreams.away]\nservers = [\"http://{away}\"]\n\
             [upstreams.up]\nservers = [\"http://{}\"]\nmax_in_flight = 100\n\
             [[routes]]\npath = \"/up\"\nlimits = [\"l\"]\nupstream = \"up\"\n\
             [[routes]]\npath = \"/tokens\"\nlimits = [\"tokens\"]\nupstream = \"up\"\n\
             [[routes]]\npath = \"/bytes\"\nlimits = [\"bytes\"]\nupstream = \"up\"\n\
             [[routes]]\npath = \"/away\"\nupstream = \"away\"\n",
            issuer.address(),
            plans.address(),
            up.address()
        );
        let (memcached, valkey) = (Software::Memcached.start(), Software::Valkey.start());
        let memory = "[store]\ntype = \"memory\"\nshare = 1\n".to_owned();
        let stores = [memory, memcached.store(), valkey.store_with("")];
        let [in_memory, in_memcached, in_valkey] = stores.map(|store| {
            let gateway = Gateway::with_server(&server, &format!("{store}{rest}"));
            let mut client = gateway.client();
            let statuses = ["/up", "/up", "/up", "/tokens", "/away", "/none"]
                .map(|path| client.get_with(path, "X-Api-Key: k\r\n"));
            assert_eq!(statuses.map(|response| response.status), [200, 200, 429, 200, 502, 404]);
            gateway
        });
        let (source, fetched) = Self::fetched();
        let gateways = [in_memory, in_memcached, in_valkey, fetched];
        Self { gateways, _servers: [issuer, up, plans, source], _memcached: memcached, _valkey: valkey }
    }

    fn fetched() -> (Upstream, Gateway) {
        let listen = "listen = \"127.0.0.1:0\"";
        let good = format!("[server]\n{listen}\n[admin]\n{listen}\n[[routes]]\npath = \"/\"\nrespond = {{}}\n");
        let is_first = AtomicBool::new(true);
        let source = Upstream::start(move |_| {
            reply(200, if is_first.swap(false, Ordering::Relaxed) { &good } else { "[serve]\n" })
        });
        let (url, state) = (format!("http://{}/gateway.toml", source.address()), tempfile::tempdir().unwrap());
        let gateway = Gateway::with_source(&["--config", &url, "--state-dir", state.path().to_str().unwrap()], &[]);
        gateway.signal(Signal::HUP);
        gateway.wait_message("reload refused");
        (source, gateway)
    }
}

fn scrape(gateway: &Gateway) -> harness::Response {
    let response = gateway.admin("/metrics");
    assert_eq!(response.status, 200);
    response
}

const PARSE: &str = "
import json, sys
from prometheus_client import parser

print(json.dumps([
    {'name': family.name, 'type': family.type, 'help': family.documentation,
     'samples': [[sample.name, sample.labels, sample.value] for sample in family.samples]}
    for family in parser.text_string_to_metric_families(sys.stdin.read())
]))
";

/// The families as Prometheus' library for Python parses them.
#[track_caller]
fn parsed_elsewhere(text: &str) -> Value {
    let library = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/prometheus-client");
    let mut python = Command::new("python3")
        .args(["-c", PARSE])
        .env("PYTHONPATH", library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is missing: scripts/test --all installs what the tests need");
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "prometheus_client does not parse this, or is missing: scripts/test --all installs it\n{text}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn each_documented_metric_has_a_help() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/metrics/help.txt")).unwrap();
    let lines = text.lines().skip(1).map(|line| line.split_once(' ').unwrap());
    let names: Vec<_> =
        lines.inspect(|(name, help)| assert!(help.ends_with('.'), "{name}")).map(|(name, _)| name).collect();
    assert_eq!(names, documented().keys().collect::<Vec<_>>());
}

#[test]
#[ignore = "needs promtool and Python"]
fn others_read_the_metrics_and_the_documentation_describes_them() {
    let everything = Everything::start();
    let (documented, mut exported) = (documented(), BTreeMap::<String, Documented>::new());
    let mut without_samples: BTreeSet<_> = documented.keys().cloned().collect();
    for gateway in &everything.gateways {
        let text = scrape(gateway);
        assert_eq!(text.headers.must("content-type"), "text/plain; version=0.0.4");
        let checked = promtool(&["check", "metrics"], text.text());
        let complaints = [checked.stdout, checked.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(checked.status.success() && complaints.is_empty(), "{complaints}");

        for family in parsed_elsewhere(text.text()).as_array().unwrap() {
            let (name, kind) = (family["name"].as_str().unwrap(), family["type"].as_str().unwrap());
            assert!(family["help"].as_str().unwrap().ends_with('.'), "{name}");
            let (name, kind) = match kind {
                "counter" => (format!("{name}_total"), "counter"),
                _ => (name.to_owned(), kind),
            };
            let samples = family["samples"].as_array().unwrap();
            let labels = samples.iter().flat_map(|sample| sample[1].as_object().unwrap().keys().cloned());
            let labels: BTreeSet<_> = labels.filter(|label| label != "le").collect();
            if !samples.is_empty() {
                without_samples.remove(&name);
                assert_eq!(Some(&labels), documented.get(&name).map(|known| &known.labels), "labels of {name}");
            }
            let known = documented.get(&name);
            let unit = known.map_or(String::new(), |known| known.unit.clone());
            let labels = known.map_or(labels, |known| known.labels.clone());
            exported.insert(name, Documented { kind: kind.to_owned(), labels, unit });
        }
    }
    assert_eq!(exported, documented);
    assert_eq!(without_samples, BTreeSet::new());
}

struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
}

fn samples(gateway: &Gateway) -> Vec<Sample> {
    let text = scrape(gateway);
    let lines = text.text().lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let line = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = line.strip_suffix('}').and_then(|line| line.split_once('{')).unwrap_or((line, ""));
        let labels = labels.split("\",").filter_map(|pair| pair.trim_end_matches('"').split_once("=\""));
        Sample {
            name: name.to_owned(),
            labels: labels.map(|(label, value)| (label.to_owned(), value.to_owned())).collect(),
        }
    };
    lines.map(sample).collect()
}

/// The meaning of each label, in all metrics: its possible values, or `None` if they come from the configuration.
const LABELS: [(&str, Option<&[&str]>); 21] = [
    ("certificate", None),
    ("decision", None),
    ("direction", Some(&["request", "response"])),
    ("error", None),
    ("jwt", None),
    ("kind", Some(&["input", "cached", "output"])),
    ("le", None),
    ("limit", None),
    ("method_class", Some(&["read", "write", "other"])),
    ("mode", Some(&["memory", "shared", "local", "allow", "reject"])),
    ("model", None),
    ("outcome", None),
    ("priority", Some(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"])),
    ("reason", None),
    ("result", None),
    ("route", None),
    ("server", None),
    ("state", Some(&["known", "absent"])),
    ("status", Some(&["none", "1xx", "2xx", "3xx", "4xx", "5xx"])),
    ("upstream", None),
    ("version", None),
];

#[test]
fn every_metric_follows_the_rules() {
    let everything = Everything::start();
    let meanings = BTreeMap::from(LABELS);
    let mut used = BTreeSet::new();
    for (name, Documented { kind, unit, .. }) in documented() {
        assert!(name.starts_with("gateway_") || name.starts_with("process_"), "{name} has another prefix");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'2'), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        let words: Vec<_> = name.trim_end_matches("_total").split('_').collect();
        let other_units = [
            "ms",
            "millis",
            "milliseconds",
            "micros",
            "us",
            "minutes",
            "hours",
            "days",
            "kb",
            "kib",
            "mb",
            "mib",
            "percent",
        ];
        assert!(words.iter().all(|word| !other_units.contains(word)), "{name} has a unit that is no base unit");
        let ending = ["seconds", "bytes", "ratio"].into_iter().find(|unit| words.last() == Some(unit));
        assert_eq!(ending.unwrap_or(""), unit, "{name} ends with its unit");
        assert!(kind != "histogram" || ending.is_some(), "{name} has no unit");
        assert!(!name.contains("timestamp") || name.ends_with("_timestamp_seconds"), "{name}");
    }
    for gateway in &everything.gateways {
        let ports = [gateway.http.port(), gateway.admin.port()].map(|port| port.to_string());
        let mut seen = BTreeSet::new();
        for Sample { name, labels } in samples(gateway) {
            assert!(seen.insert((name.clone(), labels.clone())), "{name} {labels:?} is there twice");
            for (label, value) in &labels {
                let known = meanings.get(label.as_str());
                let known = known.unwrap_or_else(|| panic!("nothing says what the label {label} of {name} means"));
                assert!(known.is_none_or(|values| values.contains(&value.as_str())), "{label} of {name}: {value}");
                assert!(ports.iter().all(|port| !value.ends_with(&format!(":{port}"))), "{label} of {name}: {value}");
                used.insert(label.clone());
            }
        }
    }
    assert_eq!(used, meanings.keys().map(|label| (*label).to_owned()).collect());
}

/// The series of counters, which must all exist before their first events.
fn counters(gateway: &Gateway) -> BTreeSet<String> {
    let counter = |name: &String| name.split('{').next().unwrap().ends_with("_total");
    names(gateway).into_iter().filter(counter).collect()
}

#[test]
fn counters_have_their_series_before_the_first_event() {
    let up = Upstream::start(|request| match &*request.target {
        "/up/broken" => b"nonsense\r\n\r\n".to_vec(),
        "/up/bad" => reply(500, ""),
        "/up/away" => reply(302, ""),
        _ => reply(200, "hello"),
    });
    let limit = |name: &str, more: &str| {
        format!("[limits.{name}]\nkey = \"header:x-api-key\"\nrates = [\"1/d\"]\nmissing = \"reject\"\n{more}\n")
    };
    let route = |path: &str, rest: &str| format!("[[routes]]\npath = \"{path}\"\n{rest}\n");
    let rest = [
        limit("hard", ""),
        limit("busy", "status = 503"),
        limit("quiet", "on_limit = \"silent\""),
        limit("banning", "ban = { after = 1, respond = \"forbid\" }"),
        limit("models", "cost = { tokens = \"auto\" }"),
        format!("[upstreams.up]\nservers = [\"http://{}\"]\n", up.address()),
        "[upstreams.echo]\nservers = [\"builtin:echo\"]\n".to_owned(),
        route("/up/*", "upstream = \"up\""),
        route("/hard", "upstream = \"up\"\nlimits = [\"hard\"]"),
        route("/busy", "upstream = \"up\"\nlimits = [\"busy\"]"),
        route("/quiet", "upstream = \"up\"\nlimits = [\"quiet\"]"),
        route("/banning", "upstream = \"up\"\nlimits = [\"banning\"]"),
        route("/models", "upstream = \"up\"\nlimits = [\"models\"]"),
        route("/echo", "upstream = \"echo\""),
        route("/own", "respond = { status = 418 }"),
        route("/gone", "redirect = { to = \"/own\" }"),
    ]
    .concat();
    let gateway = Gateway::start(&rest);
    let before = counters(&gateway);
    for path in
        ["/up/", "/up/bad", "/up/away", "/up/broken", "/hard", "/busy", "/quiet", "/banning", "/models", "/echo"]
    {
        for method in ["GET", "POST"] {
            for key in
                ["X-Api-Key: a\r\n", "X-Api-Key: a\r\n", "X-Api-Key: a\r\n", "", "X-Api-Key: a\r\nX-Api-Key: b\r\n"]
            {
                let head = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n{key}\r\n");
                gateway.client().call(head);
            }
        }
    }
    for path in ["/own", "/gone", "/none", "/%"] {
        gateway.client().get(path);
    }
    gateway.client().call("nonsense\r\n\r\n");
    let after = counters(&gateway);
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
    let of = |series: &str| gateway.metric(series).unwrap_or_else(|| panic!("{series}"));
    assert!(of("gateway_request_failures_total{route=\"/up/*\",reason=\"bad_response\"}") >= 1.0);
    assert!(of("gateway_bans_total{limit=\"banning\"}") >= 1.0);
    // No label depends on a start: a gateway with the same configuration has the same series.
    let again = Gateway::start(&rest);
    assert_eq!(counters(&again), before);
    assert!(before.contains("gateway_upstream_server_requests_total{upstream=\"echo\",server=\"builtin:echo\"}"));
}

fn names(gateway: &Gateway) -> BTreeSet<String> {
    let text = scrape(gateway);
    let samples = text.text().lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn clients_cannot_create_series() {
    let rest = "[limits.l]\nkey = [\"header:x-api-key\", \"path\", \"method\", \"host\"]\nrates = [\"1/d\"]\n\
                [[routes]]\npath = \"/a/{name}\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(rest);
    let mut client = gateway.client();
    let mut attack = |number: u32| {
        let host = format!("Host: h{number}.test\r\nX-Api-Key: {number}\"}} 1\r\n\r\n");
        let statuses = [
            client.call(format!("X{number} /a/{number} HTTP/1.1\r\n{host}")).status,
            client.call(format!("X{number} /a/{number} HTTP/1.1\r\n{host}")).status,
            client.call(format!("GET /a/%22%7D{number} HTTP/1.1\r\n{host}")).status,
            client.call(format!("GET /{number} HTTP/1.1\r\n{host}")).status,
            client.call(format!("Y{number} /{number} HTTP/1.1\r\n{host}")).status,
        ];
        assert_eq!(statuses, [200, 429, 200, 404, 404]);
        // The connection ends after this one.
        assert_eq!(gateway.client().call(format!("GET /a/%0A{number} HTTP/1.1\r\n{host}")).status, 400);
    };
    attack(0);
    let before = names(&gateway);
    (1..100).for_each(&mut attack);
    assert_eq!(names(&gateway), before);
    let methods = ["read", "other"].map(|method| {
        let labels = format!("route=\"/a/{{name}}\",outcome=\"responded\",status=\"2xx\",method_class=\"{method}\"");
        gateway.metric(&format!("gateway_requests_total{{{labels}}}"))
    });
    assert_eq!(methods, [Some(100.0), Some(100.0)]);
}

#[test]
fn the_tokens_of_models_are_counted() {
    let up = Upstream::start(|_| reply(200, ""));
    let limit = |name: &str, cost: &str| format!("[limits.{name}]\nkey = \"global\"\nrates = [\"10000/d\"]\n{cost}\n");
    let gateway = Gateway::start(
        &(limit("tokens", "cost = { tokens = \"auto\", input = 2, max_output = 100, without_usage = \"size\" }")
            + &limit("requests", "")
            + &up.section()
            + "[[routes]]\npath = \"/*\"\nlimits = [\"tokens\", \"requests\"]\nupstream = \"up\"\n"),
    );
    let ask = |body: &str| {
        let length = body.len();
        let head = format!("POST /chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(gateway.client().call(head + body).status, 200);
    };
    ask(r#"{"model":"m-1","max_tokens":7,"messages":[{"content":"eleven here"}]}"#);
    ask("");
    let tokens = |model: &str, kind: &str| {
        gateway.metric(&format!("gateway_tokens_total{{limit=\"tokens\",model=\"{model}\",kind=\"{kind}\"}}"))
    };
    assert_eq!(["input", "cached", "output"].map(|kind| tokens("m-1", kind)), [12.0, 0.0, 0.0].map(Some));
    assert_eq!(["input", "cached", "output"].map(|kind| tokens("other", kind)), [0.0; 3].map(Some));
    let of = |name: &str| gateway.metric(&format!("gateway_token_{name}_total{{limit=\"tokens\"}}"));
    let counts = ["cost_reserved", "cost_settled", "estimates", "streams_cut", "counts_ignored"].map(of);
    assert_eq!(counts, [131.0, 24.0, 2.0, 0.0, 0.0].map(Some));
    let others: Vec<_> = names(&gateway).into_iter().filter(|name| name.contains("_token")).collect();
    assert!(others.iter().all(|name| !name.contains("requests")), "{others:?}");
}

#[test]
fn models_that_the_upstream_refuses_are_not_told_apart() {
    let up = Upstream::start(|_| reply(404, ""));
    let gateway = Gateway::start(
        &("[limits.tokens]\nkey = \"global\"\nrates = [\"10000/d\"]\ncost = { tokens = \"auto\" }\n".to_owned()
            + &up.section()
            + "[[routes]]\npath = \"/*\"\nlimits = [\"tokens\"]\nupstream = \"up\"\n"),
    );
    for number in 0..3 {
        let body = format!(r#"{{"model":"invented-{number}","max_tokens":7}}"#);
        let request = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(gateway.client().call(request).status, 404);
    }
    let names = names(&gateway);
    let has = |model: &str| names.iter().any(|name| name.contains(&format!("model=\"{model}")));
    assert!(has("other") && !has("invented"), "{names:?}");
}

#[test]
fn the_fullest_key_of_a_limit_is_shown_without_its_name() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &limited("header:x-api-key", "10/d", "")));
        let ratio = || gateway.metric("gateway_limit_fullest_key_ratio{limit=\"l\"}");
        assert_eq!(ratio(), Some(0.0));
        let ask = |key: &str, times: u32| {
            // Each client may reach another worker.
            (0..times).for_each(|_| _ = gateway.client().get_with("/", format!("X-Api-Key: {key}\r\n")));
        };
        ask("a", 7);
        assert_eq!(ratio(), Some(0.7), "{store}");
        ask("b", 3);
        assert_eq!(ratio(), Some(0.7), "{store}");
        ask("b", 9);
        assert_eq!(ratio(), Some(1.0), "{store}");
    });
}

#[test]
fn requests_in_flight_fill_a_limit_too() {
    let limit = "[limits.l]\nkey = \"global\"\nmax_in_flight = 4\n";
    let gateway =
        Gateway::start(&format!("{limit}[[routes]]\npath = \"/\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n"));
    assert_eq!(gateway.client().get("/").status, 200);
    assert_eq!(gateway.metric("gateway_limit_fullest_key_ratio"), Some(0.25));
}

#[test]
fn the_latency_of_each_server_is_measured() {
    let up = Upstream::start(|request| reply(if request.target == "/bad" { 503 } else { 200 }, "hello"));
    let gateway = Gateway::start(&up.everything());
    let statuses = ["/", "/", "/bad", "/"].map(|path| gateway.client().get(path).status);
    assert_eq!(statuses, [200, 200, 503, 200]);
    let server = format!("{{upstream=\"up\",server=\"{}\"}}", up.address());
    let metric = |name: &str| gateway.metric(&format!("gateway_upstream_server_{name}{server}"));
    assert_eq!((metric("latency_seconds_count"), metric("requests_total")), (Some(3.0), Some(4.0)));
    assert!(metric("latency_seconds_sum").unwrap() > 1e-6);
}

#[test]
fn servers_with_the_same_address_have_series_of_their_own() {
    let up = Upstream::start(|_| reply(200, "hello"));
    let (address, port) = (up.address(), up.address().port());
    // They differ in the name that the server gets.
    let servers = format!("servers = [\"http://{address}\", \"http://localhost:{port}\"]");
    let rest = format!("[upstreams.up]\n{servers}\n[[routes]]\npath = \"/\"\nupstream = \"up\"\n");
    let gateway = Gateway::start(&rest);
    until("the name is looked up", PATIENCE, || {
        let text = scrape(&gateway);
        let samples = text.text().lines().filter(|line| line.starts_with("gateway_upstream_server_healthy{"));
        let samples: Vec<_> = samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect();
        let distinct: BTreeSet<_> = samples.iter().collect();
        assert_eq!(distinct.len(), samples.len(), "{samples:?}");
        samples.iter().any(|name| name.contains(&format!("server=\"{address} #2\"")))
    });
}

#[test]
fn a_refused_reload_is_seen_until_one_succeeds() {
    let route = |status: u16| format!("[[routes]]\npath = \"/\"\nrespond = {{ status = {status} }}\n");
    let gateway = Gateway::start(&route(200));
    let good = || gateway.metric("gateway_config_last_reload_successful");
    let since = || gateway.metric("gateway_config_last_success_timestamp_seconds").unwrap();
    let begun = since();
    assert!((harness::unix().as_secs_f64() - begun).abs() < 60.0, "{begun}");
    assert_eq!(good(), Some(1.0));
    gateway.reload("", "this is no toml");
    gateway.wait_message("reload refused");
    until("it is counted", PATIENCE, || good() == Some(0.0));
    // Each mistake is in another place, and none of them is a series.
    let refused = names(&gateway);
    gateway.reload("", "\n\n\n [nothing]");
    until("it is counted", PATIENCE, || {
        gateway.metric("gateway_config_reloads_total{result=\"refused\"}") == Some(2.0)
    });
    assert_eq!(names(&gateway), refused);
    assert!((since() - begun).abs() < 0.1);
    gateway.reload("", &route(201));
    gateway.wait_message("reloaded");
    until("it is counted", PATIENCE, || good() == Some(1.0));
    assert!(since() >= begun);
    let reloads =
        ["ok", "refused"].map(|result| gateway.metric(&format!("gateway_config_reloads_total{{result=\"{result}\"}}")));
    assert_eq!(reloads, [Some(1.0), Some(2.0)]);
}

#[test]
fn the_store_says_how_it_decides() {
    let memory = Gateway::start(&limited("client-ip", "9/d", ""));
    assert_eq!(memory.metric("gateway_store_mode{mode=\"memory\"}"), Some(1.0));
    assert!(memory.metric("gateway_store_max_keys").unwrap() > 900_000.0);
    assert_eq!(memory.metric("gateway_store_max_bytes"), Some(268_435_456.0));

    let mut memcached = Software::Memcached.start();
    let gateway = Gateway::start(&(memcached.store() + &limited("header:x-api-key", "3/d", "")));
    let modes = || ["shared", "local"].map(|mode| gateway.metric(&format!("gateway_store_mode{{mode=\"{mode}\"}}")));
    for (key, status) in [("a", 200), ("a", 200), ("b", 200), ("a", 200), ("a", 429)] {
        assert_eq!(gateway.client().get_with("/", format!("X-Api-Key: {key}\r\n")).status, status);
    }
    assert_eq!(gateway.metric("gateway_store_decisions_total"), Some(5.0));
    assert_eq!(gateway.metric("gateway_store_keys"), Some(2.0));
    assert_eq!(modes(), [Some(1.0), Some(0.0)]);
    memcached.kill();
    until("it counts alone", PATIENCE, || modes() == [Some(0.0), Some(1.0)]);
    memcached.restart();
    until("it shares again", PATIENCE, || modes() == [Some(1.0), Some(0.0)]);
}

#[test]
fn the_process_shows_what_it_uses() {
    let gateway = Gateway::start(&limited("client-ip", "9/d", ""));
    let metric = |name: &str| gateway.metric(name).unwrap();
    let handles = metric("process_open_fds");
    let clients: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    until("connections are open handles", PATIENCE, || metric("process_open_fds") >= handles + 20.0);
    // A connection is counted after its handle is open.
    until("all are counted", PATIENCE, || metric("gateway_connections_accepted_total") >= 20.0);
    assert_eq!(metric("gateway_connections_accepted_total").to_string(), clients.len().to_string());
    assert!(metric("process_max_fds") > metric("process_open_fds"));
    let memory = f64::from(u32::try_from(gateway.memory("VmRSS")).unwrap());
    assert!((metric("process_resident_memory_bytes") / memory - 1.0).abs() < 0.5, "{memory}");
    assert!(metric("process_virtual_memory_bytes") > memory);
    assert!(metric("process_threads") > 3.0);
    let age = harness::unix().as_secs_f64() - metric("process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age}");
    until("it has used a hundredth of a second", PATIENCE, || metric("process_cpu_seconds_total") > 0.0);
}
