//! The identifier of a request: kept if it is harmless, made otherwise; the same for the client, the upstream and the log,
//! however the request is answered.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{Gateway, Response, Upstream, closed_port, curl, limited, reply};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

#[track_caller]
fn id(response: &Response) -> String {
    let all: Vec<_> = response.headers.0.iter().filter(|(name, _)| name == "x-request-id").collect();
    assert_eq!(all.len(), 1, "{response:?}");
    response.headers.must("x-request-id").to_owned()
}

fn is_made(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[track_caller]
fn line(gateway: &Gateway, id: &str) -> Value {
    gateway.wait_log(id, |line| line["message"] == "request" && line["request_id"] == id)
}

#[test]
fn the_client_the_upstream_and_the_log_have_the_same() {
    // The upstream sends its own identifier, which is not this request's.
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nX-Request-ID: up\r\nX-Request-Id: up\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let (long, longer) = ("x".repeat(128), "x".repeat(129));
    for (lines, is_kept) in [
        (&["mine-1"][..], true),
        (&["0199f3a1-7c3e-7b54-8a0e-2f4f5d3c1b2a"], true),
        (&[&*long], true),
        (&[], false),
        (&[""], false),
        (&[&*longer], false),
        (&["a b"], false),
        (&["a\",\"outcome\":\"forwarded"], false),
        (&["<script>"], false),
        (&["caf\u{e9}"], false),
        (&["a", "a"], false),
    ] {
        let fields: Vec<_> = lines.iter().map(|line| format!("X-Request-ID: {line}\r\n")).collect();
        let response = client.get_with("/", fields.concat());
        assert_eq!(response.status, 200);
        let id = id(&response);
        assert_eq!(lines.first() == Some(&&*id), is_kept, "{lines:?}: {id}");
        assert!(is_kept || is_made(&id), "{lines:?}: {id}");
        assert_eq!(up.received().pop().unwrap().headers.joined("x-request-id"), id);
        line(&gateway, &id);
    }
}

#[test]
fn no_other_spelling_reaches_the_upstream() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.1\"]", &up.everything());
    let fields = "X_Request_ID: evil\r\nX-Request_Id: evil\r\nX.Request.ID: evil\r\nConnection: X-Request-ID\r\n";
    let response = gateway.client().get_with("/", fields);
    let received = up.received().pop().unwrap();
    assert!(received.headers.0.iter().all(|(_, value)| value != b"evil"), "{received:?}");
    assert_eq!(received.headers.joined("x-request-id"), id(&response));
}

#[test]
fn every_way_to_answer_has_it() {
    let (_socket, closed) = closed_port();
    let up = Upstream::start(|_| reply(200, ""));
    let limit = |name: &str, more: &str| format!("[limits.{name}]\nkey = \"global\"\nrates = [\"1/d\"]\n{more}\n");
    let limits = [
        limit("few", ""),
        limit("own", "body = \"no\""),
        limit("silent", "on_limit = \"silent\""),
        limit("keyed", "").replace("\"global\"", "\"header:x-key\"\nmissing = \"reject\""),
        limit("costly", "cost = { request_header = \"x-cost\" }"),
    ];
    let route = |path: &str, rest: &str| format!("[[routes]]\npath = \"{path}\"\n{rest}\n");
    let limited =
        |path: &str, limit: &str| route(path, &format!("limits = [\"{limit}\"]\nrespond = {{ status = 200 }}"));
    let routes = [
        limited("/few", "few"),
        limited("/own", "own"),
        limited("/silent", "silent"),
        limited("/keyed", "keyed"),
        limited("/costly", "costly"),
        route("/small", "max_body_size = \"1B\"\nrespond = { status = 200 }"),
        route("/redirect", "redirect = { to = \"https://{host}/\", status = 308 }"),
        route("/forward", "upstream = \"up\""),
        route("/down", "upstream = \"down\""),
        route("/get", "methods = [\"GET\"]\nrespond = { status = 200 }"),
    ];
    let down = format!("[upstreams.down]\nservers = [\"http://{closed}\"]\n");
    let gateway =
        Gateway::start(&[&limits.concat(), &up.section(), &down, &routes.concat()].map(String::as_str).concat());
    let mut seen = BTreeSet::new();
    for (request, expected, has_document) in [
        ("GET /few", 200, false),
        ("GET /few", 429, true),
        ("GET /few", 429, true),
        ("GET /own", 200, false),
        ("GET /own", 429, false),
        ("GET /own", 429, false),
        ("GET /silent", 200, false),
        ("GET /silent", 200, false),
        ("GET /keyed", 400, true),
        ("GET /costly HTTP/1.1\r\nX-Cost: 2", 413, true),
        ("POST /small HTTP/1.1\r\nContent-Length: 2", 413, true),
        ("GET /redirect", 308, false),
        ("GET /forward", 200, false),
        ("GET /down", 502, true),
        ("GET /nowhere", 404, true),
        ("PUT /get", 405, true),
        ("GET /%zz", 400, true),
        ("get /few", 400, true),
        ("CONNECT a:1", 501, true),
    ] {
        let version = if request.contains("HTTP/") { "" } else { " HTTP/1.1" };
        let mut client = gateway.client();
        let response = client.call(format!("{request}{version}\r\nHost: test.example\r\n\r\n"));
        assert_eq!(response.status, expected, "{request}");
        let id = id(&response);
        assert!(is_made(&id) && seen.insert(id.clone()), "{request}: {id}");
        if has_document {
            response.expect_problem(expected);
        } else {
            assert!(!response.text().contains("request_id"), "{request}: {}", response.text());
        }
        assert_eq!(line(&gateway, &id)["status"], expected, "{request}");
    }
    let failed = gateway.wait_message("upstream failed");
    assert!(seen.contains(failed["request_id"].as_str().unwrap()), "{failed}");
}

#[test]
fn what_is_no_request_has_one_too() {
    let gateway = Gateway::start(FIXED);
    let mut client = gateway.client();
    client.send("garbage\r\nX-Request-ID: mine\r\n\r\n");
    let response = client.response(false);
    response.expect_problem(400);
    assert!(is_made(&id(&response)));
    let line = line(&gateway, &id(&response));
    assert_eq!((&line["reason"], line.get("trace_id")), (&"bad_head".into(), None));
}

#[test]
fn a_route_can_change_it_and_a_document_of_a_user_is_left_alone() {
    let document = r#"{\"type\":\"about:blank\",\"detail\":\"mine\"}"#;
    let kind = "content_type = \"application/problem+json\"";
    let rest = format!(
        "{}[[routes]]\npath = \"/off\"\nrespond = {{ status = 200 }}\nresponse_headers = {{ remove = [\"x-request-id\"] }}\n\
         [[routes]]\npath = \"/own\"\nrespond = {{ status = 400, body = \"{document}\", {kind} }}\n",
        limited("client-ip", "1/d", &format!("body = \"{document}\"\n{kind}"))
    );
    let gateway = Gateway::start(&rest);
    let mut client = gateway.client();
    assert_eq!(client.get("/off").headers.get("x-request-id"), None);
    assert_eq!(client.get("/").status, 200);
    for (path, status) in [("/own", 400), ("/", 429), ("/", 429)] {
        let response = client.get(path);
        assert_eq!((response.status, response.text()), (status, r#"{"type":"about:blank","detail":"mine"}"#));
        id(&response);
    }
}

#[test]
fn headers_of_a_route_can_contain_it() {
    let up = Upstream::start(|_| reply(200, ""));
    let changes = "request_headers = { set = { x-order = \"no {request_id}\" } }\n\
                   response_headers = { set = { x-answer = \"to {request_id}\" } }\n";
    let gateway = Gateway::start(&(up.everything() + changes));
    let response = gateway.client().get_with("/", "X-Request-ID: mine\r\n");
    assert_eq!(response.headers.must("x-answer"), "to mine");
    assert_eq!(up.received().pop().unwrap().headers.joined("x-order"), "no mine");
}

#[test]
fn workers_make_different_ones() {
    let gateway = Gateway::with_server("workers = 4", FIXED);
    let ids: BTreeSet<_> = (0..64).map(|_| id(&gateway.client().get("/"))).collect();
    assert_eq!(ids.len(), 64);
    let again = Gateway::with_server("workers = 4", FIXED);
    assert!(!ids.contains(&id(&again.client().get("/"))));
}

#[test]
fn repeated_refusals_differ_in_nothing_else() {
    let gateway = Gateway::start(&limited("client-ip", "1/d", ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let refused: Vec<_> = (0..5).map(|_| client.get_with("/", "X-Request-ID: mine\r\n")).collect();
    let made: Vec<_> = (0..5).map(|_| client.get("/")).collect();
    for response in refused.iter().chain(&made) {
        response.expect_problem(429);
        let names = |response: &Response| response.headers.0.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!((response.anonymous(), names(response)), (made[0].anonymous(), names(&made[0])));
    }
    assert!(refused.iter().all(|response| id(response) == "mine"));
    assert_eq!(made.iter().map(id).collect::<BTreeSet<_>>().len(), 5);
}

#[test]
#[ignore = "needs curl"]
fn grpc_and_http2_have_it_too() {
    let gateway = Gateway::start(&limited("client-ip", "1/d", ""));
    let url = format!("http://{}/", gateway.http);
    let ask = |more: &[&str]| {
        let all = ["--include", "--http2-prior-knowledge", "--header", "X-Request-ID: mine"];
        let output = curl(all.into_iter().chain(more.iter().copied()).chain([&*url]));
        String::from_utf8(output.stdout).unwrap()
    };
    let answer = ask(&[]);
    assert!(answer.starts_with("HTTP/2 200") && answer.contains("x-request-id: mine\r\n"), "{answer}");
    let refused = ask(&[]);
    assert!(refused.starts_with("HTTP/2 429") && refused.contains("x-request-id: mine\r\n"), "{refused}");
    assert!(refused.ends_with(",\"request_id\":\"mine\"}"), "{refused}");
    let call = ask(&["--header", "Content-Type: application/grpc", "--request", "POST"]);
    assert!(call.starts_with("HTTP/2 200") && call.contains("grpc-status: 8\r\n"), "{call}");
    assert!(call.contains("x-request-id: mine\r\n") && !call.contains("request_id"), "{call}");
}

#[test]
fn only_a_valid_trace_goes_on() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let mut ask = |fields: &str| {
        let response = client.get_with("/", fields);
        let received = up.received().pop().unwrap();
        let line = line(&gateway, &id(&response));
        let [parent, state] = ["traceparent", "tracestate"].map(|name| received.headers.joined(name));
        (parent, state, line["trace_id"].as_str().map(str::to_owned))
    };
    let (parent, state, trace) = ask(&format!("traceparent: {PARENT}\r\ntracestate: a=1\r\ntracestate: b=2\r\n"));
    assert_eq!((&*parent, &*state, trace.as_deref()), (PARENT, "a=1, b=2", Some("4bf92f3577b34da6a3ce929d0e0e4736")));
    let later = PARENT.replacen("00", "01", 1) + "-more";
    assert_eq!(ask(&format!("Traceparent: {later}\r\n")).0, later);
    for fields in [
        String::new(),
        "tracestate: a=1\r\n".to_owned(),
        format!("traceparent: {}\r\ntracestate: a=1\r\n", PARENT.to_uppercase()),
        format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\ntracestate: a=1\r\n"),
        format!("traceparent: {PARENT}-more\r\ntracestate: a=1\r\n"),
        "traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01\r\n".to_owned(),
    ] {
        assert_eq!(ask(&fields), (String::new(), String::new(), None), "{fields}");
    }
}
