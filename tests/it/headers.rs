//! The headers of a limit in responses, in the styles of the draft and of GitHub, and the rejection itself.

use std::io::Write as _;
use std::time::Duration;

use sfv::{BareItem, List, ListEntry, Parser};

use crate::harness::{Gateway, Response, align, unix};

fn config(limit: &str) -> String {
    format!(
        "[limits.per-client]\nkey = \"client-ip\"\n{limit}\n
        [[routes]]\npath = \"/*\"\nlimits = [\"per-client\"]\nrespond = {{ status = 200 }}\n"
    )
}

/// The members of a structured list: names with their integer parameters.
#[track_caller]
fn members(response: &Response, header: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let field = response.headers.joined(header);
    assert!(!field.is_empty(), "no {header}: {response:?}");
    let list: List = Parser::new(&field).parse().unwrap_or_else(|error| panic!("{header}: {field}: {error}"));
    let member = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{header}: {field}: an inner list") };
        let BareItem::String(name) = &item.bare_item else { panic!("{header}: {field}: a name that is no string") };
        let integer = |value: &BareItem| i64::from(value.as_integer().unwrap());
        let numbers = item.params.iter().filter(|(key, _)| key.as_str() != "pk");
        let parameters = numbers.map(|(key, value)| (key.as_str().to_owned(), integer(value)));
        (name.as_str().to_owned(), parameters.collect())
    };
    list.iter().map(member).collect()
}

fn parameter(parameters: &[(String, i64)], name: &str) -> Option<i64> {
    parameters.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
}

/// Quota and window.
type Policy = (i64, i64);
/// The quota of its policy, the rest, and the time.
type State = (i64, i64, i64);

#[track_caller]
fn draft(response: &Response) -> (Vec<Policy>, Vec<State>) {
    let policies = members(response, "ratelimit-policy");
    let of = |parameters: &[(String, i64)], name| {
        parameter(parameters, name).unwrap_or_else(|| panic!("no {name}: {response:?}"))
    };
    let states = members(response, "ratelimit").into_iter().map(|(name, state)| {
        let policy = policies.iter().find(|(other, _)| *other == name);
        let (_, policy) = policy.unwrap_or_else(|| panic!("{name} has no policy: {response:?}"));
        (of(policy, "q"), of(&state, "r"), parameter(&state, "t").unwrap_or(-1))
    });
    let states = states.collect();
    (policies.iter().map(|(_, policy)| (of(policy, "q"), of(policy, "w"))).collect(), states)
}

fn names(response: &Response) -> Vec<&str> {
    response.headers.0.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_draft_headers_are_the_default_and_count_down() {
    let gateway = Gateway::start(&config("rates = [\"3/d\"]"));
    let mut client = gateway.client();
    for (status, remaining) in [(200, 2), (200, 1), (200, 0), (429, 0), (429, 0)] {
        let response = client.get("/");
        assert_eq!(response.status, status);
        let (policies, states) = draft(&response);
        assert_eq!(policies, [(3, 86_400)]);
        let [(3, left, time)] = states[..] else { panic!("{states:?}") };
        assert_eq!(left, remaining);
        assert!((0..=2 * 86_400).contains(&time), "{time}");
        assert!(!names(&response).iter().any(|name| name.starts_with("x-ratelimit")));
    }
}

#[test]
fn a_limit_of_one_rate_has_its_own_name() {
    let gateway = Gateway::start(&config("rates = [\"3/d\"]"));
    let response = gateway.client().get("/");
    assert_eq!(members(&response, "ratelimit-policy")[0].0, "per-client");
}

#[test]
fn every_rate_has_a_policy() {
    let gateway = Gateway::start(&config("rates = [\"2/10m\", \"30/h\", \"400/7d\"]"));
    let mut client = gateway.client();
    align(Duration::from_mins(10), Duration::from_secs(10));
    for status in [200, 200, 429] {
        let response = client.get("/");
        assert_eq!(response.status, status);
        let (mut policies, states) = draft(&response);
        policies.sort_unstable();
        assert_eq!(policies, [(2, 600), (30, 3600), (400, 604_800)]);
        assert!(states.iter().all(|(quota, left, _)| left < quota), "{states:?}");
        if status == 429 {
            assert!(states.iter().any(|(quota, left, _)| (*quota, *left) == (2, 0)), "{states:?}");
        }
    }
}

#[test]
fn several_limits_share_the_headers() {
    let limits =
        "[limits.a]\nkey = \"global\"\nrates = [\"5/d\"]\n[limits.b]\nkey = \"client-ip\"\nrates = [\"7/h\"]\n";
    let route = "[[routes]]\npath = \"/\"\nlimits = [\"a\", \"b\"]\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&format!("{limits}{route}"));
    let (mut policies, states) = draft(&gateway.client().get("/"));
    policies.sort_unstable();
    assert_eq!(policies, [(5, 86_400), (7, 3600)]);
    assert!(states.iter().all(|(quota, left, _)| *left == quota - 1), "{states:?}");
}

#[test]
fn github_headers() {
    let gateway = Gateway::start(&config("rates = [\"2/h\"]\nheaders = \"github\""));
    let mut client = gateway.client();
    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        let response = client.get("/");
        assert_eq!(response.status, status);
        assert_eq!(response.headers.must("x-ratelimit-limit"), "2");
        assert_eq!(response.headers.must("x-ratelimit-remaining"), remaining);
        // GitHub gives the moment in seconds since 1970.
        let reset: u64 = response.headers.must("x-ratelimit-reset").parse().unwrap();
        let now = unix().as_secs();
        assert!((now..=now + 2 * 3600 + 1).contains(&reset), "{reset} at {now}");
        assert!(!names(&response).iter().any(|name| name.starts_with("ratelimit")));
    }
}

#[test]
fn both_styles_or_none() {
    for (style, draft, github) in [("both", true, true), ("none", false, false), ("draft", true, false)] {
        let gateway = Gateway::start(&config(&format!("rates = [\"1/h\"]\nheaders = \"{style}\"")));
        let mut client = gateway.client();
        for status in [200, 429] {
            let response = client.get("/");
            assert_eq!(response.status, status);
            let has = |start: &str| names(&response).iter().any(|name| name.starts_with(start));
            assert_eq!((has("ratelimit"), has("x-ratelimit")), (draft, github), "{style}");
            // Retry-After does not depend on the style.
            assert_eq!(has("retry-after"), status == 429, "{style}");
        }
    }
}

#[test]
fn a_rejection_is_a_problem_document() {
    let gateway = Gateway::start(&config("rates = [\"1/h\"]"));
    let mut client = gateway.client();
    client.get("/");
    let rejected = client.get("/");
    rejected.expect_problem(429);
    let seconds: u64 = rejected.headers.must("retry-after").parse().unwrap();
    assert!((1..=7200).contains(&seconds), "{seconds}");
}

#[test]
fn a_rejection_can_have_its_own_status_and_body() {
    let gateway = Gateway::start(&config("rates = [\"1/h\"]\nstatus = 503\nbody = \"later, please\\n\""));
    let mut client = gateway.client();
    client.get("/");
    let rejected = client.get("/");
    assert_eq!((rejected.status, rejected.text()), (503, "later, please\n"));
    assert!(rejected.headers.get("retry-after").is_some());
}

#[test]
fn a_rejection_of_head_has_no_body() {
    let gateway = Gateway::start(&config("rates = [\"1/h\"]"));
    let mut client = gateway.client();
    client.get("/");
    let rejected = client.call("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((rejected.status, rejected.body.len()), (429, 0));
    // A body would be read as the beginning of this response.
    assert_eq!(client.get("/").status, 429);
}

#[test]
fn the_headers_are_on_forwarded_responses_too() {
    let up = crate::harness::Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nRateLimit: \"upstream\";r=7;t=1\r\n\r\n".to_vec()
    });
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"5/d\"]\n";
    let gateway = Gateway::start(&format!("{limit}{}limits = [\"l\"]\n", up.everything()));
    let response = gateway.client().get("/");
    let policies: Vec<_> = members(&response, "ratelimit-policy").into_iter().map(|(name, _)| name).collect();
    assert_eq!(policies, ["l"]);
    assert!(members(&response, "ratelimit").iter().any(|(name, _)| name == "l"));
}

/// Parses lists with another library for structured fields: it reads lines and prints their members with parameters.
const PARSE: &str = "
import json, sys
import http_sfv
for line in sys.stdin.buffer.read().splitlines():
    fields = http_sfv.List()
    fields.parse(line)
    print(json.dumps([[type(item.value).__name__, item.value, dict(item.params)] for item in fields], default=bytes.hex))
";

fn parsed_elsewhere(lines: &[String]) -> Vec<serde_json::Value> {
    let library = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/http-sfv");
    let mut python = std::process::Command::new("python3")
        .args(["-c", PARSE])
        .env("PYTHONPATH", library)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 is missing: scripts/test --all installs what the tests need");
    python.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "http_sfv does not parse {lines:?}, or is missing: scripts/test --all installs it"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "needs Python"]
fn an_independent_parser_reads_every_header() {
    let limits = r#"
[limits."a.b_C-1"]
key = "client-ip"
rates = ["10/s", "3000/10m", "4294967296/31d"]
[limits.bucket]
key = "client-ip"
rates = ["10/s burst 50", "5000/day", "9/month"]
strategy = "token-bucket"
[limits.flights]
key = "client-ip"
max_in_flight = 7
[limits.trial]
key = "client-ip"
rates = ["1/d"]
on_limit = "shadow"
[[routes]]
path = "/*"
limits = ["a.b_C-1", "bucket", "flights", "trial"]
respond = { status = 200 }
"#;
    let gateway = Gateway::with_server("partition_secret = \"one that nobody guesses\"", limits);
    let mut client = gateway.client();
    let answers = [client.get("/"), client.get("/")];
    let lines = ["ratelimit-policy", "ratelimit"].map(|name| answers[1].headers.joined(name)).to_vec();
    let lines = [lines, vec![answers[1].headers.joined("ratelimit-shadow")]].concat();
    let parsed = parsed_elsewhere(&lines);
    let policies = serde_json::json!([
        ["str", "a.b_C-1-s", {"q": 10, "w": 1}],
        ["str", "a.b_C-1-10m", {"q": 3000, "w": 600}],
        ["str", "a.b_C-1-31d", {"q": 4_294_967_296_u64, "w": 2_678_400}],
        ["str", "bucket-s", {"q": 10, "w": 1, "gateway-burst": 50}],
        ["str", "bucket-day", {"q": 5000, "w": 86_400}],
        ["str", "bucket-month", {"q": 9}],
        ["str", "flights", {"q": 7, "qu": "concurrent-requests"}],
    ]);
    assert_eq!(parsed[0], policies);
    // Six more may be in flight, and seven more may come this month.
    let pk = parsed[1][0][2]["pk"].as_str().unwrap();
    assert!(pk.len() == 18 && pk.bytes().all(|digit| digit.is_ascii_hexdigit()), "nine bytes: {pk}");
    assert_eq!(parsed[1], serde_json::json!([["str", "flights", {"r": 6, "pk": pk}]]));
    assert_eq!(parsed[2], serde_json::json!([["str", "trial", {}]]));
}
