//! What operators see: health, metrics and the log, without any key of a client.

use std::time::Duration;

use crate::harness::{Gateway, Upstream, closed_port, reply, until};

const SECRET: &str = "secret-of-a-client";

fn busy() -> Gateway {
    let up = Upstream::start(|_| reply(200, "body"));
    let (_held, away) = closed_port();
    let rest = "[upstreams.away]\nservers = [\"http://AWAY\"]\n
        [limits.l]\nkey = \"header:x-api-key\"\nrates = [\"2/d\"]\n
        [[routes]]\npath = \"/limited/{name}\"\nlimits = [\"l\"]\nupstream = \"up\"\n
        [[routes]]\npath = \"/away\"\nupstream = \"away\"\n
        [[routes]]\npath = \"/fixed\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&format!("{}{}", up.section(), rest.replace("AWAY", &away.to_string())));
    let mut client = gateway.client();
    let key = format!("X-Api-Key: {SECRET}\r\n");
    let statuses = ["/limited/a", "/limited/b", "/limited/c", "/away", "/fixed", "/none"]
        .map(|path| client.get_with(path, &key).status);
    assert_eq!(statuses, [200, 200, 429, 502, 200, 404]);
    gateway
}

/// The metrics, once they contain all requests.
fn metrics(gateway: &Gateway) -> String {
    let mut text = String::new();
    until("six requests are in the metrics", Duration::from_secs(10), || {
        let response = gateway.admin("/metrics");
        assert_eq!(response.status, 200);
        assert!(response.headers.must("content-type").starts_with("text/plain"));
        response.text().clone_into(&mut text);
        let samples = text.lines().filter(|line| line.starts_with("gateway_requests_total{"));
        let values = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        values.sum::<f64>() > 5.9
    });
    text
}

#[test]
fn health() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 418 }\n");
    assert_eq!(gateway.admin("/healthz").status, 200);
    assert_eq!(gateway.admin("/readyz").status, 200);
    assert_eq!(gateway.admin("/other").status, 404);
    // The listener for clients does not serve these paths.
    assert_eq!(gateway.client().get("/metrics").status, 418);
}

#[test]
fn metrics_count_requests_by_route_and_outcome() {
    let text = metrics(&busy());
    let requests: Vec<_> = text.lines().filter(|line| line.starts_with("gateway_requests_total{")).collect();
    assert!(requests.iter().all(|line| line.contains("route=\"") && line.contains("outcome=\"")), "{requests:?}");
    let limited: Vec<_> =
        requests.iter().filter(|line| line.contains("/limited/{name}") && !line.ends_with(" 0")).collect();
    assert_eq!(limited.len(), 2, "two forwarded, one rejected: {limited:?}");
    assert!(
        limited.iter().any(|line| line.ends_with(" 2")) && limited.iter().any(|line| line.ends_with(" 1")),
        "{limited:?}"
    );
}

#[test]
fn metrics_are_well_formed() {
    let text = metrics(&busy());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            assert!(
                comment.starts_with("HELP gateway_")
                    || comment.starts_with("TYPE gateway_")
                    || !comment.contains("gateway"),
                "{line}"
            );
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let bare = name.split('{').next().unwrap();
        assert!(bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'), "{line}");
        assert_eq!(name.contains('{'), name.ends_with('}'), "{line}");
    }
}

#[test]
fn the_keys_of_clients_are_in_no_metric_and_no_log_line() {
    let gateway = busy();
    let text = metrics(&gateway);
    assert!(!text.contains(SECRET));
    until("six lines are written", Duration::from_secs(10), || requests(&gateway).len() == 6);
    assert!(gateway.log().iter().all(|line| !line.contains(SECRET)), "{:?}", gateway.log());
}

fn requests(gateway: &Gateway) -> Vec<serde_json::Value> {
    let lines = gateway.log();
    let values = lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    values.filter(|line: &serde_json::Value| line["message"] == "request").collect()
}

#[test]
fn every_request_has_one_line() {
    let gateway = busy();
    until("six lines are written", Duration::from_secs(10), || requests(&gateway).len() >= 6);
    let lines = requests(&gateway);
    let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/limited/a", "/limited/b", "/limited/c", "/away", "/fixed", "/none"]);
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 429, 502, 200, 404]);
    assert!(lines.iter().all(|line| line["method"] == "GET" && line["outcome"].is_string()), "{lines:?}");
    assert!(lines[0]["route"].as_str().unwrap().contains("/limited/{name}"), "{}", lines[0]);
    assert_ne!(lines[0]["outcome"], lines[2]["outcome"]);
    assert_ne!(lines[0]["outcome"], lines[3]["outcome"]);
}

#[test]
fn a_head_request_is_recorded_like_a_get() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let route = "[[routes]]\npath = \"/fixed\"\nlimits = [\"l\"]\nrespond = { status = 200, body = \"hello\" }\n";
    let gateway = Gateway::start(&format!("{limit}{route}"));
    let mut client = gateway.client();
    for (path, status, outcome) in [("/fixed", 200, "responded"), ("/fixed", 429, "limited"), ("/", 404, "unrouted")] {
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response(true).status, status);
        gateway.wait_log(outcome, |line| line["status"] == status && line["outcome"] == outcome);
    }
}

#[test]
fn a_query_is_not_in_the_log() {
    // Keys may be in queries, too.
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    gateway.client().get(&format!("/x?api_key={SECRET}"));
    let line = gateway.wait_message("request");
    assert!(!line.to_string().contains(SECRET), "{line}");
}

#[test]
fn a_line_cannot_be_forged() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    gateway.client().get("/x%0a{\"message\":\"stopped\"}\"");
    let line = gateway.wait_message("request");
    assert!(line["path"].as_str().unwrap().starts_with("/x%0a"), "{line}");
}

#[test]
fn the_access_log_can_be_left_out() {
    let quiet = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_log("access = false", quiet);
    gateway.client().get("/");
    until("the request is in the metrics", Duration::from_secs(10), || {
        gateway
            .admin("/metrics")
            .text()
            .lines()
            .any(|line| line.starts_with("gateway_requests_total{") && line.ends_with(" 1"))
    });
    assert!(requests(&gateway).is_empty());
}
