//! Decisions about requests that other proxies forward: the questions and the answers.

use std::time::Duration;

use http::Request;

use crate::harness::{Client, Gateway, Response, every_store, over_http2, until};

/// A gateway that only decides, and trusts 127.0.0.1.
pub(crate) fn deciding(decisions: &str, rest: &str) -> Gateway {
    let server = "listen = []\ntrusted_proxies = [\"127.0.0.1/32\"]";
    Gateway::with_server(server, &format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{decisions}\n{rest}"))
}

fn limit(rate: &str, more: &str) -> String {
    crate::harness::limited("header:x-key | client-ip", rate, more)
}

/// The fields with which Traefik and Caddy name a request.
fn forwarded(method: &str, uri: &str) -> String {
    format!("X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {uri}\r\nX-Forwarded-Host: test.example\r\n")
}

/// The fields with which nginx names a request.
fn original(method: &str, uri: &str) -> String {
    format!("X-Original-Method: {method}\r\nX-Original-URI: {uri}\r\n")
}

fn asker(gateway: &Gateway) -> Client {
    Client::connect(gateway.decisions())
}

fn remaining(response: &Response) -> &str {
    response.headers.must("ratelimit").split("r=").nth(1).unwrap().split(';').next().unwrap()
}

#[test]
fn both_ways_to_ask_share_counters_and_refusals_are_those_of_the_proxy() {
    every_store(|store| {
        let gateway = deciding("", &format!("{store}{}", limit("2/d", "headers = \"both\"")));
        let mut asker = asker(&gateway);
        let first = asker.get_with("/any", forwarded("GET", "/a?b=c"));
        assert_eq!((first.status, first.text(), remaining(&first)), (200, "", "1"), "{store}");
        assert_eq!(first.headers.must("x-ratelimit-remaining"), "1");
        assert!(first.headers.get("content-type").is_none(), "{first:?}");
        let second = asker.get_with("/any", original("POST", "/b"));
        assert_eq!((second.status, remaining(&second)), (200, "0"));
        let third = asker.get_with("/any", original("GET", "/c"));
        third.expect_problem(429);
        assert!(third.headers.must("retry-after").parse::<u64>().unwrap() > 0);
        assert!(third.text().contains("2/d"), "{}", third.text());
        let line = gateway.wait_log("the refusal", |line| line["outcome"] == "limited");
        let said = ["via", "method", "path", "route", "limit"].map(|name| line[name].as_str().unwrap().to_owned());
        assert_eq!(said, ["http", "GET", "/c", "/*", "l"]);
        let line = gateway.wait_log("an admission", |line| line["path"] == "/b");
        assert_eq!((line["outcome"].as_str(), line["status"].as_u64()), (Some("responded"), Some(200)));
    });
}

#[test]
fn whatever_a_limit_refuses_has_the_configured_status() {
    let limits = r#"
[limits.open]
key = "header:x-key"
rates = ["1/d"]
missing = "reject"
body = "slow down"
[[limits.open.overrides]]
keys = ["thief"]
block = true
[limits.hidden]
key = "header:x-hidden"
rates = ["1/d"]
on_limit = "silent"
[[routes]]
path = "/open"
respond = { status = 204 }
limits = ["open"]
response_headers = { set = { x-frame-options = "DENY" } }
[[routes]]
path = "/hidden"
respond = { status = 204 }
limits = ["hidden"]
"#;
    let gateway = deciding("refused_status = 403", limits);
    let mut asker = asker(&gateway);
    let mut ask = |path: &str, fields: &str| asker.get_with("/", original("GET", path) + fields);
    assert_eq!(ask("/open", "X-Key: a\r\n").status, 200);
    let refused = ask("/open", "X-Key: a\r\n");
    assert_eq!((refused.status, refused.text()), (403, "slow down"));
    assert!(refused.headers.get("retry-after").is_some() && refused.headers.get("ratelimit").is_some());
    assert_eq!(refused.headers.must("x-frame-options"), "DENY");
    assert_eq!(ask("/open", "X-Key: thief\r\n").status, 403);
    // The asking proxy would take 200 for an admission.
    assert_eq!(ask("/hidden", "X-Hidden: a\r\n").status, 200);
    let silent = ask("/hidden", "X-Hidden: a\r\n");
    assert_eq!((silent.status, silent.text()), (403, ""));
    assert!(silent.headers.get("retry-after").is_none() && silent.headers.get("ratelimit").is_none(), "{silent:?}");
    // The limit's rates do not decide these, and waiting does not help the client.
    assert_eq!(ask("/open", "").status, 400);
    assert_eq!(ask("/nowhere", "").status, 404);
    assert_eq!(ask("/a/%2e%2e/b", "").status, 400);
    assert_eq!(ask("/open", "X-Key: a\r\nX-Key: b\r\n").status, 400);
}

#[test]
fn a_ban_that_answers_nothing_to_clients_answers_the_proxy() {
    let ban = "ban = { after = 1, within = \"1m\", for = \"10m\", respond = \"close\" }";
    let gateway = deciding("refused_status = 403", &limit("1/d", ban));
    let mut asker = asker(&gateway);
    let answers = [(); 5].map(|()| asker.get_with("/", original("GET", "/")));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 403, 403, 403, 403]);
    assert!(answers[1].text().contains("1/d"), "{:?}", answers[1]);
    assert_eq!((answers[2].text(), answers[4].text()), ("", ""));
    assert!(answers[4].headers.get("retry-after").is_none(), "{:?}", answers[4]);
}

#[test]
fn a_refused_grpc_call_is_not_answered_as_grpc_clients_want_it() {
    let gateway = deciding("", &limit("1/d", ""));
    let mut asker = asker(&gateway);
    let fields = forwarded("POST", "/pkg.Service/Call") + "Content-Type: application/grpc\r\n";
    let statuses = [(); 2].map(|()| asker.get_with("/", &fields).status);
    assert_eq!(statuses, [200, 429]);
    let unread = forwarded("POST", "/a#b") + "Content-Type: application/grpc\r\n";
    assert_eq!(asker.get_with("/", unread).status, 400);
}

#[test]
fn nothing_that_a_client_writes_changes_what_counts() {
    let routes = r#"
[limits.l]
key = ["host", "method", "path"]
rates = ["2/d"]
[[routes]]
path = "/*"
respond = { status = 200 }
limits = ["l"]
"#;
    let gateway = deciding("", routes);
    let mut asker = asker(&gateway);
    // Fields of other proxies come from the client, and nginx passes them on.
    let by_client = "X-Forwarded-Method: DELETE\r\nX-Forwarded-Host: other.example\r\nX-Forwarded-Proto: https\r\n";
    let mut nginx = |more: &str| asker.get_with("/", original("GET", "/a") + more);
    assert_eq!(remaining(&nginx("")), "1");
    assert_eq!(remaining(&nginx(by_client)), "0");
    for (more, word) in [
        ("X-Forwarded-Uri: /b\r\n", "both"),
        ("X-Original-URI: /b\r\n", "more than one"),
        ("X-Original-Method: PUT\r\n", "more than one"),
    ] {
        let response = nginx(more);
        response.expect_problem(400);
        assert!(response.text().contains(word), "{more}: {}", response.text());
    }
    assert!(asker.get_with("/", forwarded("GET", "/a") + &original("GET", "/b")).text().contains("both"));
    let neither = asker.get_with("/", "X-Original-Method: GET\r\n");
    neither.expect_problem(400);
    assert!(neither.text().contains("neither"), "{}", neither.text());
    let line = gateway.wait_log("a question", |line| line["reason"] == "asked_request");
    assert_eq!((line["route"].as_str(), line["via"].as_str()), (Some("none"), Some("http")));
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(5.0));
    // Another method, host or path has its own counter, that of the table.
    let other = asker.get_with("/", forwarded("GET", "/a") + "X-Original-Method: PUT\r\n");
    assert_eq!(other.status, 429, "the same host, method and path by the other way");
}

#[test]
fn only_trusted_askers_say_who_the_client_is() {
    let gateway = deciding("", &limit("1/d", ""));
    let address = gateway.decisions();
    let ask = |from: &str, client: &str| {
        let fields = original("GET", "/") + &format!("X-Forwarded-For: {client}\r\n");
        Client::connect_from(from.parse().unwrap(), address).get_with("/", fields).status
    };
    assert_eq!(["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(|client| ask("127.0.0.1", client)), [200, 200, 429]);
    assert_eq!(["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|client| ask("127.0.0.2", client)), [200, 429, 429]);
}

#[test]
fn what_only_a_response_tells_stays_charged() {
    let limits = r#"
[limits.failures]
key = "global"
rates = ["3/d"]
count = { status = ["5xx"] }
[limits.costs]
key = "global"
rates = ["30/d"]
cost = { response_header = "x-cost", reserve = 10 }
[limits.tokens]
key = "json:/model"
rates = ["300/d"]
cost = { tokens = "auto", max_output = 100 }
[[routes]]
path = "/*"
respond = { status = 200 }
limits = ["failures", "costs", "tokens"]
"#;
    every_store(|store| {
        let gateway = deciding("", &format!("{store}{limits}"));
        let mut asker = asker(&gateway);
        let statuses = [(); 4].map(|()| asker.get_with("/", original("POST", "/")).status);
        assert_eq!(statuses, [200, 200, 200, 429], "{store}");
        let refused = asker.get_with("/", original("POST", "/"));
        // All three are used up.
        assert_eq!(refused.headers.must("ratelimit-policy").matches("q=").count(), 3, "{refused:?}");
        assert_eq!(remaining(&refused), "0");
    });
}

#[test]
fn the_number_in_flight_is_that_of_the_questions() {
    let limits = r#"
[limits.l]
key = "global"
max_in_flight = 1
[[routes]]
path = "/*"
respond = { status = 200 }
limits = ["l"]
"#;
    let gateway = deciding("", limits);
    let mut asker = asker(&gateway);
    assert_eq!([(); 5].map(|()| asker.get_with("/", original("GET", "/")).status), [200; 5]);
}

#[test]
fn preflights_upgrades_and_redirects_are_charged_and_answered_200() {
    let routes = r#"
[limits.l]
key = "global"
rates = ["4/d"]
[[routes]]
path = "/pages"
methods = ["GET"]
respond = { status = 500 }
limits = ["l"]
cors = { origins = ["https://app.test"] }
[[routes]]
path = "/*"
redirect = { to = "https://{host}{path}" }
limits = ["l"]
"#;
    let gateway = deciding("", routes);
    let mut asker = asker(&gateway);
    let preflight =
        forwarded("OPTIONS", "/pages") + "Origin: https://app.test\r\nAccess-Control-Request-Method: GET\r\n";
    assert_eq!(remaining(&asker.get_with("/", &preflight)), "3");
    // Caddy passes on what a WebSocket client sends.
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let upgraded = asker.get_with("/", forwarded("GET", "/ws") + upgrade);
    assert_eq!((upgraded.status, remaining(&upgraded)), (200, "2"));
    assert!(upgraded.headers.get("location").is_none(), "{upgraded:?}");
    assert_eq!(remaining(&asker.get_with("/", &preflight)), "1");
    assert_eq!([(); 2].map(|()| asker.get_with("/", &preflight).status), [200, 429]);
}

#[test]
fn the_question_decides_whether_the_answer_has_a_body() {
    let gateway = deciding("", &limit("1/d", ""));
    let mut client = asker(&gateway);
    let line = |method: &str, fields: &str| format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    assert_eq!(client.call(line("GET", &original("HEAD", "/"))).status, 200);
    let refused = client.call(line("GET", &original("HEAD", "/")));
    refused.expect_problem(429);
    let refused = client.call(line("HEAD", &original("GET", "/")));
    assert_eq!((refused.status, refused.text()), (429, ""));
    refused.headers.must("retry-after");
    // The body of a question is not that of the request, and the bytes after it are the next question.
    let with_body = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n{}\r\nabc", original("GET", "/"));
    assert_eq!([(); 2].map(|()| client.call(&with_body).status), [429; 2]);
    let question = |method: &str, asked: &str| {
        let uri = "http://a/decide";
        let request = Request::builder().method(method).uri(uri).header("x-original-uri", "/");
        request.header("x-original-method", asked).body(()).unwrap()
    };
    let answers = over_http2(gateway.decisions(), vec![question("GET", "HEAD"), question("HEAD", "GET")]);
    for (status, headers) in &answers {
        assert_eq!(*status, 429, "{headers:?}");
        assert!(headers.contains_key("retry-after") && headers["content-length"] != "0", "{headers:?}");
    }
    let refusals = || gateway.log().iter().filter(|line| line.contains("\"outcome\":\"limited\"")).count();
    until("each refusal has its line", Duration::from_secs(10), || refusals() == 6);
    assert!(!gateway.log().iter().any(|line| line.contains("\"abandoned\"")), "{:?}", gateway.log());
}

#[test]
fn a_delayed_request_is_answered_late() {
    let gateway = deciding("", &limit("1/s", "on_limit = \"delay\"\nmax_delay = \"10s\""));
    let mut asker = asker(&gateway);
    let statuses = [(); 3].map(|()| asker.get_with("/", original("GET", "/")).status);
    assert_eq!(statuses, [200; 3]);
    gateway.wait_log("a request that was held", |line| line["held_micros"].as_u64().is_some_and(|held| held > 0));
}
