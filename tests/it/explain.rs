//! `gateway explain` shows what would happen to a request, without the store and the upstream.

use std::fs;

use crate::harness::{Gateway, Software, closed_port, run};

fn explain(config: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    fs::write(&file, config).unwrap();
    let output = run(&[&["explain", "--config", file.to_str().unwrap()], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text)
}

const CONFIG: &str = r#"
[upstreams.api]
servers = ["http://127.0.0.1:9"]

[limits.per-client]
key = ["header:x-api-key | client-ip", "method"]
rates = ["10/s", "3000/10m"]

[limits.per-tenant]
key = "path:tenant"
rates = ["100/s"]
headers = "none"

[[routes]]
path = "/*"
upstream = "api"

[[routes]]
host = "api.example.com"
path = "/v1/{tenant}/*"
upstream = "api"
limits = ["per-client", "per-tenant"]

[[routes]]
host = "api.example.com"
path = "/v1/{tenant}/admin"
methods = ["PUT"]
upstream = "api"
"#;

#[test]
fn it_shows_the_route_the_limits_and_the_response() {
    let asked = ["-H", "X-Api-Key: secret-7", "http://API.example.com/v1/acme/users?q=1"];
    let (code, text) = explain(CONFIG, &asked);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "GET api.example.com/v1/acme/users from 127.0.0.1",
        "route api.example.com/v1/{tenant}/*",
        "forwards to api",
        "*** from header:x-api-key, \"GET\" from method",
        "10/s and 3000/10m",
        "*** from path:tenant",
        "ratelimit-policy: \"per-client-s\";q=10;w=1, \"per-client-10m\";q=3000;w=600",
        "ratelimit: \"per-client-s\";r=9;t=1",
        "PUT api.example.com/v1/{tenant}/admin  is for other paths",
        "/*  matches too, but is less specific",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("secret-7"), "{text}");
}

#[test]
fn keys_are_shown_only_on_request() {
    let (_, text) = explain(CONFIG, &["--show-keys", "-H", "x-api-key: secret-7", "http://api.example.com/v1/acme/x"]);
    assert!(text.contains("\"secret-7\" from header:x-api-key"), "{text}");
    let (_, text) = explain(CONFIG, &["--show-keys", "--from", "2001:db8::1", "http://api.example.com/v1/acme/x"]);
    assert!(text.contains("2001:db8::/64 from client-ip"), "{text}");
}

#[test]
fn a_request_without_a_route_is_explained_too() {
    let routes = CONFIG.replace("path = \"/*\"", "path = \"/other\"");
    let (code, text) = explain(&routes, &["-H", "Host: other.example.com", "/v1/acme/users"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("no route matches: answered 404") && text.contains("is for another host"), "{text}");
}

#[test]
fn a_url_names_the_host_in_the_host_header_too() {
    let config = "[limits.l]\nkey = \"header:host\"\nrates = [\"1/d\"]\n\
                  [[routes]]\npath = \"/*\"\nheaders = { host = \"a.test:81\" }\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let (_, text) = explain(config, &["--show-keys", "http://a.test:81/x"]);
    assert!(text.contains("\"a.test:81\" from header:host"), "{text}");
    let (code, text) = explain(config, &["-H", "Host: b.test", "http://a.test:81/x"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("would be answered 400: The target and the Host header name different hosts."), "{text}");
}

#[test]
fn invalid_arguments_are_errors() {
    for bad in [
        &["http://h/a/../b"][..],
        &["http://h/a#b"],
        &["-H", "nothing", "/"],
        &["-X", "a b", "/"],
        &["-H", "a b: c", "/"],
        &[],
    ] {
        let (code, text) = explain(CONFIG, bad);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("error: "), "{text}");
    }
}

#[test]
fn what_should_be_escaped_counts_as_its_escape() {
    for url in ["/v1/<a>?u=http://b/c", "api.example.com/v1/<a>?q=\"", "http://api.example.com/v1/<a>/{b}"] {
        let (code, text) = explain(CONFIG, &["-H", "Host: api.example.com", url]);
        assert!(code == Some(0) && text.contains(" api.example.com/v1/%3Ca%3E"), "{url}: {text}");
    }
}

#[test]
fn the_store_is_not_asked() {
    let memcached = Software::Memcached.start();
    let (code, _) = explain(&format!("{}{CONFIG}", memcached.store()), &["http://api.example.com/v1/acme/users"]);
    assert_eq!(code, Some(0));
    assert_eq!(memcached.commands(), 0);
    let (_socket, nobody) = closed_port();
    let away = format!("[store]\ntype = \"memcached\"\nservers = [\"{nobody}\"]\n{CONFIG}");
    let (code, text) = explain(&away, &["http://api.example.com/v1/acme/users"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("ratelimit: "), "{text}");
}

#[test]
fn overrides_tiers_and_other_ends_are_explained() {
    let limits = r#"
[limits.api]
key = "header:x-key"
rates = ["10/s"]
missing = "reject"
tier = "header:x-plan"
cost = { request_header = "x-cost" }
[limits.api.tiers.gold]
rates = ["20/s"]
[[limits.api.overrides]]
keys = ["partner-*"]
rates = ["30/s"]
[[limits.api.overrides]]
keys = ["monitor"]
exempt = true
[[limits.api.overrides]]
keys = ["thief"]
block = true
[[routes]]
path = "/*"
limits = ["api"]
respond = { status = 204 }
"#;
    let said = |limits: &str, headers: &[&str]| {
        let headers = headers.iter().flat_map(|header| ["-H", header]);
        explain(limits, &headers.chain(["http://h/"]).collect::<Vec<_>>()).1
    };
    for (headers, parts) in [
        (&["x-key: a"][..], &["rates    10/s\n", "empty counters: answered 204", "q=10;w=1"][..]),
        (&["x-key: a", "x-plan: gold"], &["20/s (tier gold)", "q=20;w=1"]),
        (&["x-key: partner-1", "x-plan: gold"], &["30/s (an override for the key)", "q=30;w=1"]),
        (&["x-key: monitor"], &["an override exempts the key", "empty counters: answered 204"]),
        (&["x-key: thief"], &["an override blocks the key", "empty counters: answered 403"]),
        (&["x-key: a", "x-cost: 11"], &["request header x-cost", "empty counters: answered 413"]),
        (&[], &["none: answered 400", "empty counters: answered 400"]),
    ] {
        let text = said(limits, headers);
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }
    let slow = limits.replace("missing =", "slow = { from = 0.8, up_to = \"2s\" }\nmissing =");
    let text = said(&slow, &["x-key: a"]);
    assert!(
        text.contains("slows    held from 80 % of a rate on, for up to 2s at 100 %, at most 100 per key"),
        "{text}"
    );
    let reporting = limits.replace("missing =", "on_limit = \"shadow\"\nmissing =");
    let text = said(&reporting, &["x-key: thief"]);
    assert!(text.contains("blocks the key, forwarded and only reported"), "{text}");
    assert!(text.contains("empty counters: answered 204"), "{text}");
}

#[test]
fn it_shows_what_the_route_changes_for_this_request() {
    let config = r#"
[upstreams.api]
servers = ["http://127.0.0.1:9"]

[[routes]]
path = "/v1/{tenant}/*"
upstream = "api"
rewrite = "/in/{tenant}/{rest}"
timeout = "5s"
[routes.request_headers]
set = { x-tenant = "{tenant} from {client_ip}", authorization = "Bearer secret-7" }
add = { x-host = "{host}" }
remove = ["x-debug"]

[[routes]]
path = "/v2/*"
upstream = "api"
rewrite = "/{rest}.."
"#;
    let (code, text) = explain(config, &["-X", "PUT", "http://api.example.com/v1/ac%6De/users?q=1"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "sends PUT /in/ac%6De/users?q=1",
        "waits at most 5s for the head of the response",
        "sets the request header x-tenant: acme from 127.0.0.1",
        "sets the request header authorization: ***",
        "adds the request header x-host: api.example.com",
        "removes the request header x-debug",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    let (code, text) = explain(config, &["http://api.example.com/v2"]);
    assert!(code == Some(0) && text.contains("answers 400 instead of sending the rewritten path"), "{text}");
}

#[test]
fn the_scheme_is_what_a_trusted_proxy_reports_and_methods_are_in_capitals() {
    let config = "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n\
                  [[routes]]\npath = \"/*\"\nscheme = \"http\"\nredirect = { to = \"https://{host}{path}\" }\n\
                  [[routes]]\npath = \"/*\"\nscheme = \"https\"\nrespond = { status = 200 }\n";
    let with = |peer: &str, more: &[&str]| explain(config, &[&["--from", peer], more, &["http://a.test/x"]].concat()).1;
    let reported = ["-H", "X-Forwarded-Proto: https", "-H", "X-Forwarded-For: 192.0.2.1"];
    let text = with("10.0.0.1", &reported);
    assert!(text.contains("answers 200") && !text.contains("redirects"), "{text}");
    for (peer, more) in [("192.0.2.9", &reported[..]), ("10.0.0.1", &[])] {
        assert!(with(peer, more).contains("redirects to"), "{peer}");
    }
    let (code, text) = explain(config, &["-X", "post", "https://a.test/x"]);
    assert!(code != Some(0) && text.contains("would be answered 400: The method is a standard"), "{text}");
}

const MODELS: &str = r#"
[server]
inspect_body = "100B"
[limits.tokens]
key = "json:/user"
rates = ["2000/m"]
cost = { tokens = "auto", output = 4 }
[[limits.tokens.models]]
match = "big-*"
input = 2.5
[[routes]]
path = "/*"
limits = ["tokens"]
respond = { status = 200 }
"#;

#[test]
fn a_body_says_what_is_reserved() {
    let body = r#"{"user":"u-7","model":"big-1","max_tokens":50,"input":"four"}"#;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, body).unwrap();
    for data in [body.to_owned(), format!("@{}", file.path().display())] {
        let (code, text) = explain(MODELS, &["--show-keys", "-d", &data, "/v1/completions"]);
        assert_eq!(code, Some(0), "{text}");
        for part in [
            "POST ",
            "\"u-7\" from json:/user",
            "cost     225 reserved: 10 tokens of input by its size, 50 of output; weights of big-*: input 2.5, output 4\n",
            "with empty counters: answered 200",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let (_, text) = explain(MODELS, &["-X", "PUT", "--data", body, "/v1"]);
    assert!(text.contains("PUT ") && !text.contains("u-7"), "{text}");
    let (_, text) = explain(MODELS, &["/v1"]);
    let all = "cost     2000 reserved, the most that the limit allows: 0 tokens of input by its size, 4096 of output; \
               weights: input 1, output 4\n";
    assert!(text.contains("GET ") && text.contains("key      none: ") && text.contains(all), "{text}");
    let (code, text) = explain(MODELS, &["-d", "@/nowhere", "/v1"]);
    assert!(code == Some(2) && text.contains("/nowhere cannot be read: "), "{text}");
}

#[test]
fn a_body_has_a_length_unless_a_header_says_otherwise() {
    let config = "[limits.l]\nkey = \"client-ip\"\nrates = [\"10B/h\"]\ncost = { bytes = \"request\", reserve = \"1B\" }\n\
                  [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    for (more, status) in [
        (&["-d", "0123456789"][..], 200),
        (&["-d", "0123456789a"], 413),
        (&["-d", "0123456789a", "-H", "content-length: 3"], 200),
        (&["-d", "0123456789a", "-H", "transfer-encoding: chunked"], 200),
    ] {
        let (_, text) = explain(config, &[more, &["http://h/"]].concat());
        assert!(text.contains(&format!("answered {status}")), "{more:?}: {text}");
    }
}

#[test]
fn a_body_is_refused_as_the_gateway_refuses_it() {
    let gateway = Gateway::with_server("inspect_body = \"100B\"\n", MODELS.split_once("100B\"\n").unwrap().1);
    let file = tempfile::NamedTempFile::new().unwrap();
    let long = "x".repeat(101);
    for (header, body, status) in [
        ("x-a: b", r#"{"user":"a"}"#.as_bytes(), 200),
        ("x-a: b", long.as_bytes(), 413),
        ("x-a: b", r#"{"user":"a","user":"b"}"#.as_bytes(), 400),
        ("x-a: b", b"\xff\xfe{\0}\0", 415),
        ("content-encoding: gzip", b"x", 415),
        ("content-encoding: gzip", b"", 200),
    ] {
        fs::write(&file, body).unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{header}\r\nContent-Length: {}\r\n\r\n", body.len());
        let answer = gateway.client().call([head.as_bytes(), body].concat());
        let (_, text) = explain(MODELS, &["-H", header, "-d", &format!("@{}", file.path().display()), "http://h/"]);
        assert_eq!(answer.status, status, "{text}");
        let expected = match answer.status {
            200 => "with empty counters: answered 200\n".to_owned(),
            status => {
                let detail = answer.json()["detail"].as_str().unwrap().to_owned();
                format!("\nanswered {status} and counted by no limit: {detail}\n")
            }
        };
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}

/// Each limit says what it would say to a request that is served.
#[test]
fn limits_that_need_no_body_are_asked_about_one_that_cannot_be_used() {
    let limits = r#"
[limits.early]
key = "header:x-key"
rates = ["3/h"]
EARLY
[limits.model]
key = "json:/model"
rates = ["5/h"]
[[routes]]
path = "/*"
limits = ["early", "model"]
respond = { status = 200 }
"#;
    for (early, header, status) in [
        ("[[limits.early.overrides]]\nkeys = [\"a\"]\nblock = true", "x-key: a", 403),
        ("cost = { request_header = \"x-cost\" }", "x-key: a\r\nx-cost: 50", 413),
        ("missing = \"reject\"", "x-other: a", 400),
        ("missing = \"skip\"", "x-other: a", 400),
        ("", "x-other: a", 400),
        ("", "x-key: a", 400),
    ] {
        let header = format!("content-type: application/json\r\n{header}");
        let config = limits.replace("EARLY", early);
        let gateway = Gateway::start(&config);
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{header}\r\nContent-Length: 1\r\n\r\n");
        let answer = gateway.client().call(format!("{head}{{"));
        assert_eq!(answer.status, status, "{early}");
        let headers = header.split("\r\n").flat_map(|header| ["-H", header]);
        let (_, text) = explain(&config, &headers.chain(["-d", "{", "http://h/"]).collect::<Vec<_>>());
        assert!(text.contains(&format!("answered {status}")), "{early}: {text}");
        let told = answer.headers.get("ratelimit-policy");
        assert!(told.is_none_or(|policy| text.contains(policy)), "{told:?}: {text}");
        let is_charged = gateway.metric("gateway_limit_decisions_total{limit=\"early\",decision=\"admitted\"}");
        assert_eq!(is_charged == Some(1.0), status == 400 && text.contains("counted  early"), "{early}: {text}");
    }
}
