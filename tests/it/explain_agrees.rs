//! `gateway explain` agrees with a running gateway about odd requests: route, key, status and reason.

use std::fs;
use std::net::IpAddr;

use jsonwebtoken::Algorithm;

use crate::harness::{Client, Gateway, Signer, claims, key_set, run};

const SERVER: &str = "trusted_proxies = [\"127.0.0.2\"]\n";

/// Every route reports in a header what it has read.
const ROUTES: &str = r#"
[upstreams.away]
servers = ["http://127.0.0.1:9"]

[limits.l]
key = ["header:x-key | client-ip", "host", "path", "header:host"]
rates = ["1000/d"]

[limits.by-token]
key = "jwt:site:sub"
rates = ["1000/d"]

[limits.ok-only]
key = "client-ip"
rates = ["100000/d"]
count = { status = ["5xx"] }

[[routes]]
path = "/*"
methods = ["GET", "POST"]
limits = ["l"]
max_body_size = "10B"
respond = { status = 200 }
response_headers = { set = { x-seen = "{client_ip} {host} {rest}", server = "s" } }

[[routes]]
host = "api.test"
path = "/only/{id}"
methods = ["GET", "PUT"]
ignore_case = true
limits = ["l"]
respond = { status = 201 }

[[routes]]
host = "api.test"
path = "/only"
methods = ["GET"]
respond = { status = 202 }

[[routes]]
host = "other.test"
path = "/*"
methods = ["POST"]
respond = { status = 203 }

[[routes]]
path = "/host"
headers = { host = "a.test:80" }
limits = ["l"]
respond = { status = 204 }

[[routes]]
path = "/pages"
limits = ["l"]
respond = { status = 200 }
cors = { origins = ["https://app.test"] }
response_headers = { set = { x-seen = "{host}" } }

[[routes]]
path = "/moved/*"
redirect = { to = "https://{host}/new" }

[[routes]]
path = "/up/*"
upstream = "away"
rewrite = "/{rest}.."

[[routes]]
path = "/token"
limits = ["by-token"]
respond = { status = 200 }

[[routes]]
path = "/back"
limits = ["ok-only"]
respond = { status = 200 }
"#;

#[derive(Debug, PartialEq, Eq)]
struct Fate {
    status: u16,
    route: String,
    /// Why the request is refused without a limit.
    detail: Option<String>,
    /// What the response says by a header of the route, about methods, CORS and limits, and where to go.
    headers: Vec<String>,
}

const COMPARED: [&str; 5] = ["x-seen", "allow", "access-control-allow-origin", "ratelimit", "location"];

/// The method, the target, the fields and the client address.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a str);

#[track_caller]
fn sent(gateway: &Gateway, (method, target, fields, from): Case<'_>) -> Fate {
    let has_host = fields.iter().any(|field| field.to_lowercase().starts_with("host:"));
    // Only HTTP/1.0 needs no host.
    let version = if has_host { "HTTP/1.1" } else { "HTTP/1.0" };
    let fields = fields.iter().flat_map(|field| [field, "\r\n"]).collect::<String>();
    let mut client = Client::connect_from(from.parse::<IpAddr>().unwrap(), gateway.http);
    let response = client.call(format!("{method} {target} {version}\r\n{fields}\r\n"));
    let id = response.headers.must("x-request-id");
    let line = gateway.wait_log(id, |line| line["message"] == "request" && line["request_id"] == id);
    let is_problem = response.headers.get("content-type") == Some("application/problem+json");
    let headers = COMPARED.iter().filter_map(|name| Some(format!("{name}: {}", response.headers.get(name)?)));
    Fate {
        status: response.status,
        route: line["route"].as_str().unwrap().to_owned(),
        detail: is_problem.then(|| response.json()["detail"].as_str().unwrap().to_owned()),
        headers: headers.collect(),
    }
}

#[track_caller]
fn explained(gateway: &Gateway, (method, target, fields, from): Case<'_>) -> (Fate, String) {
    let config = gateway.config_path().to_str().unwrap();
    let fields = fields.iter().flat_map(|field| ["-H", *field]);
    let arguments = ["explain", "--config", config, "--show-keys", "-X", method, "--from", from];
    let output = run(&arguments.into_iter().chain(fields).chain([target]).collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
    let error = after("error: ").and_then(|line| Some(line.split_once(" would be answered ")?.1.to_owned()));
    let answered = ["no route matches: answered ", "answered ", "with empty counters: answered "];
    let answered = error.or_else(|| answered.into_iter().find_map(after)).unwrap_or(format!("000: {text}"));
    let headers = COMPARED.iter().filter_map(|name| Some(format!("{name}: {}", after(&format!("  {name}: "))?)));
    let fate = Fate {
        status: answered[..3].parse().unwrap(),
        route: after("route ").unwrap_or("none".to_owned()),
        detail: answered.split_once(": ").map(|(_, detail)| detail.to_owned()),
        headers: headers.collect(),
    };
    (fate, text)
}

/// The explained key of the limit `l`, as the admin API takes it.
fn key(text: &str) -> Option<String> {
    let list = text.split("\n  l\n    key      ").nth(1)?.lines().next()?.to_owned();
    let part = |part: &str| {
        let value = part.split_once(" from ").map_or("", |(value, _)| value).trim_matches('"');
        value.replace('%', "%25").replace('/', "%2F")
    };
    Some(list.split(", ").map(part).collect::<Vec<_>>().join("%7C"))
}

/// Takes the seconds until the limit has room out of a header.
fn end(header: &mut String) -> Option<i64> {
    let (told, seconds) = header.rsplit_once(";t=")?;
    let (told, seconds) = (told.to_owned(), seconds.parse().ok()?);
    *header = told;
    Some(seconds)
}

#[test]
fn what_is_explained_happens() {
    let folder = tempfile::tempdir().unwrap();
    let (signer, stranger) = (Signer::new(Algorithm::ES256, "k"), Signer::new(Algorithm::ES256, "k"));
    let keys = folder.path().join("jwks.json");
    fs::write(&keys, key_set(&[&signer])).unwrap();
    let issuer = format!(
        "[jwt.site]\nissuer = \"https://login.test/\"\naudience = [\"api\"]\nalgorithms = [\"ES256\"]\n\
         required = true\njwks = {:?}\n",
        keys.display().to_string()
    );
    let gateway = Gateway::with_server(SERVER, &(issuer + ROUTES));
    let valid = format!("Authorization: Bearer {}", signer.sign(&claims("alice")));
    let wrong = format!("Authorization: Bearer {}", stranger.sign(&claims("alice")));
    let (host, api, near, proxy) = ("Host: a.test", "Host: api.test", "127.0.0.1", "127.0.0.2");
    let preflight = [host, "Origin: https://app.test", "Access-Control-Request-Method: GET"];
    let cases: &[Case<'_>] = &[
        ("GET", "/", &[host], near),
        // Targets in absolute form, and hosts.
        ("GET", "http://a.test/x", &[host], near),
        ("GET", "http://A.test/x", &[host], near),
        ("GET", "http://a.test:80/x", &[host], near),
        ("GET", "http://b.test/x", &[host], near),
        ("GET", "http://b.test/x", &["Host: "], near),
        ("GET", "http://u@a.test/x", &["Host: u@a.test"], near),
        ("GET", "/only/7", &["Host: API.Test:8080"], near),
        ("GET", "/only/7", &["Host: api.test."], near),
        ("GET", "/host", &["Host: a.test:80"], near),
        ("GET", "/host", &["Host: A.test:80"], near),
        ("GET", "/x", &["Host: a b"], near),
        ("GET", "/x", &["Host: a/b"], near),
        ("GET", "/x", &[host, host], near),
        ("GET", "/x", &[host, "Host: b.test"], near),
        ("GET", "/x", &["Host: "], near),
        ("GET", "/x", &[], near),
        ("GET", "/on%6Cy/7/", &[api], near),
        ("GET", "//only///ABC;x=1", &[api], near),
        ("GET", "/OnLy/AbC", &[api], near),
        ("GET", "/a%2Fb", &[host], near),
        ("GET", "/a%20b?x=/../", &[host], near),
        ("GET", "/a/../b", &[host], near),
        ("GET", "/a/%2e%2E/b", &[host], near),
        ("GET", "/a%", &[host], near),
        ("GET", "/a%00", &[host], near),
        ("GET", "/a%252Fb", &[host], near),
        ("GET", "/up", &[host], near),
        ("POST", "/only", &["Host: other.test"], near),
        ("GET", "/only", &["Host: other.test"], near),
        ("DELETE", "/only/7", &["Host: api.test", "X-Key: k"], near),
        ("HEAD", "/only/7", &[api], near),
        ("post", "/x", &[host], near),
        ("Get", "/x", &[host], near),
        ("PURGE", "/x", &[host], near),
        ("CONNECT", "a.test:443", &["Host: a.test:443"], near),
        ("GET", "/x", &[host, "X-Key: k"], near),
        ("GET", "/x", &[host, "X-Key: k", "X-Key: k"], near),
        ("GET", "/x", &[host, "X-Key: k", "X_Key: j"], near),
        ("GET", "/x", &[host, "X_Key: j"], near),
        ("POST", "/x", &[host, "Transfer-Encoding: gzip, chunked"], near),
        ("POST", "/x", &[host, "Content-Length: 11"], near),
        ("POST", "/x", &[host, "Content-Length: 11", "X-Key: k", "X-Key: k"], near),
        ("GET", "/x", &[host, "X-Forwarded-For: 192.0.2.1"], near),
        ("GET", "/x", &[host, "X-Forwarded-For: 192.0.2.1"], proxy),
        ("GET", "/x", &[host, "X-Forwarded-For: 192.0.2.1, 127.0.0.2"], proxy),
        ("GET", "/x", &[host, "X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 192.0.2.2"], proxy),
        ("GET", "/x", &[host, "X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.2"], proxy),
        ("GET", "/x", &[host, "X-Forwarded-For: nobody"], proxy),
        // Preflights, redirects, tokens and costs.
        ("OPTIONS", "/pages", &preflight, near),
        ("OPTIONS", "/pages", &preflight[..2], near),
        ("GET", "/pages", &preflight[..2], near),
        ("GET", "/moved/a", &[host], near),
        ("GET", "/moved/a", &[], near),
        ("GET", "/token", &[host, &valid], near),
        ("GET", "/token", &[host, &wrong], near),
        ("GET", "/token", &[host], near),
        ("GET", "/token", &[host, &valid, &wrong], near),
        ("GET", "/back", &[host], near),
    ];
    let mut wrong = Vec::new();
    for case in cases {
        let (mut fate, text) = explained(&gateway, *case);
        let key = key(&text);
        let before = key.as_ref().map(|key| gateway.used("l", key));
        let mut happened = sent(&gateway, *case);
        if fate.detail.is_none() {
            happened.detail = None;
        }
        let mut ends = Vec::new();
        for headers in [&mut fate.headers, &mut happened.headers] {
            // The counters are not empty.
            headers.retain(|header| !header.starts_with("ratelimit: \"l\""));
            ends.push(headers.iter_mut().filter_map(end).collect::<Vec<_>>());
        }
        let after = key.as_ref().map(|key| gateway.used("l", key));
        let is_same_end = ends[0].iter().zip(&ends[1]).all(|(told, later)| (0..=5).contains(&(told - later)));
        if fate != happened || !is_same_end || after != before.map(|used| used + 1) {
            wrong.push(format!("{case:?}: explained {fate:?}, but {happened:?}; {key:?} {before:?} {after:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
