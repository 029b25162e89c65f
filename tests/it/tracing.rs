//! The spans of requests: which there are, what they say, and which requests have any.

use std::collections::BTreeSet;
use std::net::{Shutdown, SocketAddr};

use http::Request;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::http2_server::Http2Server;
use crate::harness::{
    Collector, Gateway, Software, Span, Upstream, closed_port, limited, over_http2, reply, run, run_json,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.text("name") == name).collect()
}

#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

/// Fails unless `part` is a part of `whole`, in time, too.
#[track_caller]
fn expect_part(part: &Span, whole: &Span) {
    assert_eq!((part.text("parent"), part.text("trace")), (whole.text("id"), whole.text("trace")), "{part:#?}");
    let ((begun, ended), (first, last)) = (part.times(), whole.times());
    assert!(first <= begun && begun <= ended && ended <= last, "{part:#?} {whole:#?}");
}

/// The `traceparent` that makes the upstream's spans parts of this one.
fn parent_of(span: &Span) -> String {
    format!("00-{}-{}-01", span.text("trace"), span.text("id"))
}

fn sent(up: &Upstream) -> String {
    up.received().pop().unwrap().headers.joined("traceparent")
}

fn flagged(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: a=1\r\n")
}

/// Waits for so many spans, and ends the gateway, which then exports others.
#[track_caller]
fn all_spans(mut gateway: Gateway, collector: &Collector, count: usize) -> Vec<Span> {
    collector.wait_spans(count);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    collector.spans()
}

#[test]
#[ignore = "needs Python"]
fn a_forwarded_request_is_a_span_with_parts() {
    let (collector, up) = (Collector::start(), Upstream::start(|_| reply(201, "")));
    let limit = "[limits.per-key]\nkey = \"header:x-api-key\"\nrates = [\"9/h\"]\n";
    let route = "[[routes]]\npath = \"/v1/{tenant}/*\"\nupstream = \"up\"\nlimits = [\"per-key\"]\n";
    let keys = "sample = 1\nservice_name = \"edge\"\nheaders = { authorization = \"Basic secret\" }";
    let gateway = Gateway::start(&[limit, &up.section(), route, &collector.section(keys)].concat());
    let response = gateway.client().get_with("/v1/acme/users?token=hidden-1", "X-Api-Key: hidden-2\r\n");
    assert_eq!(response.status, 201);

    let spans = collector.wait_spans(3);
    let [whole, decide, forward] = ["GET /v1/{tenant}/*", "decide", "forward"].map(|name| one(&spans, name));
    expect_part(decide, whole);
    expect_part(forward, whole);
    assert!(decide.times().1 <= forward.times().0);
    assert_eq!((whole.text("parent"), spans.len()), ("", 3));
    assert_eq!([whole, decide, forward].map(|span| span.text("kind")), ["server", "internal", "client"]);
    assert!(spans.iter().all(|span| span.text("status") == "unset" && span.0["flags"] == 0x101), "{spans:#?}");
    assert!(spans.iter().all(|span| span.0["resource"]["service.name"] == "edge" && span.text("scope") == "gateway"));
    let expected = json!({
        "http.request.method": "GET", "http.route": "/v1/{tenant}/*", "http.response.status_code": 201,
        "url.path": "/v1/acme/users", "url.scheme": "http", "network.protocol.version": "1.1",
        "client.address": "127.0.0.1", "server.address": "test.example", "gateway.outcome": "forwarded",
        "gateway.request_id": response.headers.must("x-request-id"),
    });
    assert_eq!(whole.0["attributes"], expected);
    assert_eq!(decide.0["attributes"], json!({ "gateway.limits": ["per-key"], "gateway.decision": "admitted" }));
    let expected = json!({
        "http.request.method": "GET", "http.response.status_code": 201, "server.address": "127.0.0.1",
        "server.port": up.address().port(),
    });
    assert_eq!(forward.0["attributes"], expected);
    assert!(spans.iter().all(|span| !span.0.to_string().contains("hidden")), "no key and no query: {spans:#?}");

    assert_eq!(sent(&up), parent_of(forward));
    let line = gateway.wait_message("request");
    assert_eq!(line["trace_id"], whole.text("trace"));
    let export = collector.0.received().remove(0);
    assert_eq!((&*export.method, &*export.target), ("POST", "/v1/traces"));
    let fields = ["content-type", "authorization"].map(|name| export.headers.must(name));
    assert_eq!(fields, ["application/x-protobuf", "Basic secret"]);
}

#[test]
#[ignore = "needs Python"]
fn requests_that_are_not_forwarded_have_spans_too() {
    let collector = Collector::start();
    let extra = "[[routes]]\npath = \"/fixed\"\nrespond = { status = 503 }\n";
    let gateway = Gateway::start(&[&limited("client-ip", "1/h", ""), extra, &collector.section("sample = 1")].concat());
    let mut client = gateway.client();
    for (path, status) in [("/a", 200), ("/a", 429), ("/fixed", 503), ("/%zz", 400)] {
        assert_eq!(client.get(path).status, status, "{path}");
    }
    assert_eq!(gateway.client().call("INVENTED /fixed HTTP/1.0\r\nHost: a\r\n\r\n").status, 503);
    let spans = all_spans(gateway, &collector, 7);
    assert_eq!(spans.len(), 7, "{spans:#?}");
    let with_status =
        |status: u16| spans.iter().filter(move |span| *span.attribute("http.response.status_code") == status);
    let decided = named(&spans, "decide");
    let [admitted, refused] = decided[..] else { panic!("{decided:?}") };
    let whole = with_status(200).next().unwrap();
    expect_part(admitted, whole);
    assert_eq!((whole.text("name"), whole.attribute("gateway.outcome")), ("GET /*", &json!("responded")));
    assert_eq!(
        (admitted.attribute("gateway.decision"), admitted.attribute("gateway.limit")),
        (&json!("admitted"), &Value::Null)
    );
    let whole = with_status(429).next().unwrap();
    expect_part(refused, whole);
    assert_eq!(
        (refused.attribute("gateway.decision"), refused.attribute("gateway.limit")),
        (&json!("rejected"), &json!("l"))
    );
    // A client over its limit is no failure of the gateway.
    assert_eq!((whole.text("status"), whole.attribute("gateway.outcome")), ("unset", &json!("limited")));
    assert_eq!(whole.attribute("error.type"), &Value::Null);
    let [failed, invented] = with_status(503).collect::<Vec<_>>()[..] else { panic!("{spans:#?}") };
    assert_eq!((failed.text("status"), failed.attribute("error.type")), ("error", &json!("503")));
    // Clients must not be able to create names of spans.
    assert_eq!((invented.text("name"), invented.attribute("http.request.method")), ("HTTP /fixed", &json!("_OTHER")));
    assert_eq!(invented.attribute("http.request.method_original"), "INVENTED");
    assert_eq!(invented.attribute("network.protocol.version"), "1.0");
    let unreadable = with_status(400).next().unwrap();
    assert_eq!((unreadable.text("name"), unreadable.attribute("http.route")), ("GET", &Value::Null));
}

#[test]
#[ignore = "needs Python"]
fn each_attempt_is_a_span() {
    const COUNT: &str = "http.request.resend_count";
    let collector = Collector::start();
    let (busy, good) = (Upstream::start(|_| reply(503, "")), Upstream::start(|_| reply(200, "")));
    let held = [(); 3].map(|()| closed_port());
    let upstream = |name: &str, servers: &[SocketAddr]| {
        let servers: Vec<_> = servers.iter().map(|address| format!("\"http://{address}\"")).collect();
        let keys = "balance = \"round-robin\"\nretry = { status = [\"503\"], budget = 1.0 }\n";
        let route = format!("[[routes]]\npath = \"/{name}\"\nupstream = \"{name}\"\n");
        format!("[upstreams.{name}]\nservers = [{}]\n{keys}{route}", servers.join(", "))
    };
    let (up, gone) = ([busy.address(), good.address()], held.each_ref().map(|(_, address)| *address));
    let rest = [upstream("up", &up), upstream("gone", &gone), collector.section("sample = 1")].concat();
    let gateway = Gateway::with_server("workers = 1", &rest);
    let mut client = gateway.client();
    // One request begins at the first server, the other at the second.
    assert_eq!([client.get("/up").status, client.get("/up").status], [200; 2]);
    client.get("/gone").expect_problem(502);

    let spans = all_spans(gateway, &collector, 9);
    let attempts = |whole: &Span| -> Vec<&Span> {
        named(&spans, "forward").into_iter().filter(|span| span.text("parent") == whole.text("id")).collect()
    };
    let mut both: Vec<_> = named(&spans, "GET /up").into_iter().map(attempts).collect();
    both.sort_by_key(Vec::len);
    let [[only], [first, second]] = [&*both[0], &*both[1]] else { panic!("{both:#?}") };
    assert_eq!([only, first, second].map(|span| span.attribute(COUNT)), [&Value::Null, &Value::Null, &json!(1)]);
    assert_eq!([only, first, second].map(|span| span.text("status")), ["unset", "error", "unset"]);
    assert_eq!((first.attribute("error.type"), first.attribute("server.port")), (&json!("503"), &json!(up[0].port())));
    assert!(first.times().1 <= second.times().0);
    let parents = |up: &Upstream| -> BTreeSet<_> {
        up.received().iter().map(|received| received.headers.joined("traceparent")).collect()
    };
    assert_eq!(parents(&busy), BTreeSet::from([parent_of(first)]));
    assert_eq!(parents(&good), BTreeSet::from([only, second].map(|span| parent_of(span))));

    let whole = one(&spans, "GET /gone");
    let tried = attempts(whole);
    assert_eq!((tried.len(), whole.attribute("gateway.outcome")), (3, &json!("failed")));
    for (count, span) in tried.iter().enumerate() {
        assert_eq!(span.attribute(COUNT).as_u64().unwrap_or(0), count as u64);
    }
    for span in tried.into_iter().chain([whole]) {
        assert_eq!((span.text("status"), span.attribute("error.type")), ("error", &json!("connect")));
    }
}

#[test]
#[ignore = "needs Python"]
fn a_client_that_goes_away_leaves_whole_spans() {
    let (collector, silent) = (
        Collector::start(),
        Upstream::raw(|mut wire, _| {
            let _ = wire.head();
            let _ = wire.rest();
        }),
    );
    let gateway = Gateway::start(&[silent.everything(), collector.section("sample = 1")].concat());
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    silent.wait_connections(1);
    drop(client);
    let spans = collector.wait_spans(2);
    let (whole, forward) = (one(&spans, "GET /*"), one(&spans, "forward"));
    expect_part(forward, whole);
    for span in [whole, forward] {
        assert_eq!((span.text("status"), span.attribute("error.type")), ("error", &json!("abandoned")), "{span:#?}");
    }
}

#[test]
#[ignore = "needs Python"]
fn a_tunnel_is_a_span_until_its_end() {
    let accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let (collector, up) = (
        Collector::start(),
        Upstream::raw(move |mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(accepted.as_bytes());
            let _ = wire.rest();
        }),
    );
    let gateway = Gateway::start(&[up.everything(), collector.section("sample = 1")].concat());
    let mut client = gateway.client();
    let handshake = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    assert_eq!(client.call(handshake).status, 101);
    client.wire.stream().shutdown(Shutdown::Write).unwrap();
    assert!(client.closed().is_empty());
    let spans = collector.wait_spans(2);
    let (whole, forward) = (one(&spans, "GET /*"), one(&spans, "forward"));
    expect_part(forward, whole);
    for span in [whole, forward] {
        assert_eq!((span.text("status"), span.attribute("http.response.status_code")), ("unset", &json!(101)));
    }
    assert_eq!(whole.attribute("gateway.outcome"), "tunneled");
}

#[test]
#[ignore = "needs Python"]
fn the_store_is_asked_in_a_span_of_its_own() {
    let (collector, memcached) = (Collector::start(), Software::Memcached.start());
    let section = collector.section("sample = 1");
    let gateway = Gateway::start(
        &[&memcached.store_with("timeout = \"5s\""), &*limited("client-ip", "9/h", ""), &section].concat(),
    );
    assert_eq!(gateway.client().get("/").status, 200);
    let spans = collector.wait_spans(3);
    let [whole, decide, exchange] = ["GET /*", "decide", "store exchange"].map(|name| one(&spans, name));
    expect_part(decide, whole);
    expect_part(exchange, decide);
    assert_eq!((exchange.text("kind"), exchange.attribute("db.system.name")), ("client", &json!("memcached")));
    drop(gateway);

    // The memory store needs no exchange, so there are two spans more.
    let gateway = Gateway::start(&[limited("client-ip", "9/h", ""), section].concat());
    assert_eq!(gateway.client().get("/").status, 200);
    assert_eq!(named(&all_spans(gateway, &collector, 5), "store exchange").len(), 1);
}

#[test]
#[ignore = "needs Python"]
fn http2_is_traced_on_both_sides() {
    let (collector, up) = (Collector::start(), Http2Server::echo(None));
    let gateway = Gateway::start(&[up.everything("http", ""), collector.section("sample = 1")].concat());
    let uri = format!("http://{}", gateway.http);
    let requests = (0..3).map(|number| Request::get(format!("{uri}/{number}")).body(()).unwrap());
    assert!(over_http2(gateway.http, requests.collect()).iter().all(|(status, _)| *status == 200));
    let spans = all_spans(gateway, &collector, 6);
    let whole = named(&spans, "GET /*");
    assert_eq!(whole.len(), 3);
    assert!(whole.iter().all(|span| span.attribute("network.protocol.version") == "2"), "{whole:#?}");
    let expected: BTreeSet<_> = named(&spans, "forward").into_iter().map(parent_of).collect();
    let got: BTreeSet<_> =
        up.requests().iter().map(|head| head.headers["traceparent"].to_str().unwrap().to_owned()).collect();
    assert_eq!((got.len(), got), (3, expected));
}

#[test]
#[ignore = "needs Python"]
fn a_call_of_grpc_that_fails_is_an_error() {
    let (collector, (_held, away)) = (Collector::start(), closed_port());
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let upstream = format!("[upstreams.up]\nservers = [\"http://{away}\"]\nhttp2 = true\n");
    let gateway = Gateway::start(&[&upstream, route, &collector.section("sample = 1")].concat());
    let uri = format!("http://{}/a.B/C", gateway.http);
    let call = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    let answers = over_http2(gateway.http, vec![call.body(()).unwrap()]);
    assert_eq!((answers[0].0, &answers[0].1["grpc-status"]), (200, &"14".parse().unwrap()));
    let spans = all_spans(gateway, &collector, 1);
    let whole = one(&spans, "POST /*");
    assert_eq!((whole.text("status"), whole.attribute("error.type")), ("error", &json!("connect")));
    assert_eq!(whole.attribute("http.response.status_code"), 200);
}

#[test]
#[ignore = "needs Python"]
fn the_flag_of_a_trusted_proxy_decides() {
    let up = Upstream::start(|_| reply(200, ""));
    // Whatever the share is, it is for requests without a parent.
    for sample in [0, 1] {
        let collector = Collector::start();
        let rest = [up.everything(), collector.section(&format!("sample = {sample}"))].concat();
        let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.1\"]", &rest);
        let mut client = gateway.client();
        client.get_with("/not", flagged("00"));
        assert_eq!(sent(&up), format!("00-{TRACE}-{PARENT}-00"));
        client.get_with("/sampled", flagged("01"));
        let received = up.received().pop().unwrap();
        let spans = all_spans(gateway, &collector, 2);
        let (whole, forward) = (one(&spans, "GET /*"), one(&spans, "forward"));
        assert_eq!((whole.text("trace"), whole.text("parent")), (TRACE, PARENT));
        assert_eq!((whole.attribute("url.path"), &whole.0["flags"]), (&json!("/sampled"), &json!(0x301)));
        expect_part(forward, whole);
        let fields = ["traceparent", "tracestate"].map(|name| received.headers.joined(name));
        assert_eq!(fields, [parent_of(forward), "a=1".to_owned()]);
    }
}

#[test]
#[ignore = "needs Python"]
fn the_flags_of_other_clients_are_not_believed() {
    let up = Upstream::start(|_| reply(200, ""));
    let collector = Collector::start();
    let start = |sample| Gateway::start(&[up.everything(), collector.section(sample)].concat());
    let gateway = start("sample = 0");
    let mut client = gateway.client();
    for flags in ["01", "03", "ff"] {
        client.get_with("/", flagged(flags));
        let received = up.received().pop().unwrap();
        let [parent, state] = ["traceparent", "tracestate"].map(|name| received.headers.joined(name));
        // The trace goes on, but the upstream must not believe the flag either.
        assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-00"), "{parent}");
        assert!(!parent.contains(PARENT) && state == "a=1", "{parent} {state}");
    }
    client.get_with("/", flagged("00"));
    assert_eq!(sent(&up), format!("00-{TRACE}-{PARENT}-00"));
    assert!(all_spans(gateway, &collector, 0).is_empty());

    let gateway = start("sample = 1");
    gateway.client().get_with("/", flagged("00"));
    let spans = all_spans(gateway, &collector, 2);
    let whole = one(&spans, "GET /*");
    assert_eq!((whole.text("trace"), whole.text("parent")), (TRACE, PARENT));
    assert_eq!(sent(&up), parent_of(one(&spans, "forward")));
}

#[test]
#[ignore = "needs Python"]
fn a_share_is_sampled_and_upstreams_are_told_which() {
    const ALL: usize = 400;
    let (collector, up) = (Collector::start(), Upstream::start(|_| reply(200, "")));
    let gateway = Gateway::start(&[up.everything(), collector.section("sample = 0.5")].concat());
    let mut client = gateway.client();
    (0..ALL).for_each(|_| assert_eq!(client.get("/").status, 200));
    let received = up.received();
    let parents = received.iter().map(|received| received.headers.joined("traceparent"));
    let sampled: BTreeSet<_> = parents.filter(|parent| parent.ends_with("-01")).collect();
    let spans = all_spans(gateway, &collector, 2 * sampled.len());
    let exported: BTreeSet<_> = named(&spans, "forward").into_iter().map(parent_of).collect();
    // Ten standard deviations are 100.
    assert!((ALL / 4..ALL * 3 / 4).contains(&sampled.len()), "{}", sampled.len());
    assert_eq!(sampled, exported);
}

#[test]
#[ignore = "needs Python"]
fn texts_of_clients_are_cut() {
    let collector = Collector::start();
    let gateway = Gateway::start(&[limited("client-ip", "9/h", ""), collector.section("sample = 1")].concat());
    let path = format!("/{}", "x".repeat(30_000));
    assert_eq!(gateway.client().get(&path).status, 200);
    let spans = all_spans(gateway, &collector, 2);
    let shown = one(&spans, "GET /*").attribute("url.path").as_str().unwrap().to_owned();
    assert_eq!((shown.len(), path.starts_with(&shown)), (1024, true));
}

#[test]
fn secrets_are_masked() {
    let collector = Collector::start();
    let section = collector.section("headers = { x-tenant = \"hidden\", authorization = \"hidden\" }");
    let gateway = Gateway::start(&[limited("client-ip", "9/h", ""), section].concat());
    let path = gateway.config_path().to_str().unwrap();
    let checked = run_json(&["check", "--json", "--config", path]);
    let expected = json!({
        "endpoint": format!("http://{}", collector.0.address()), "sample": 0.01,
        "headers": { "x-tenant": "***", "authorization": "***" }, "service_name": "gateway", "timeout": "5s",
    });
    assert_eq!(checked["tracing"], expected);
    assert_eq!(gateway.admin("/api/config").json()["tracing"], expected);
    let described = String::from_utf8(run(&["check", "--config", path]).stdout).unwrap();
    assert!(described.contains("traces 1 % of requests") && !described.contains("hidden"), "{described}");
}
