//! A request to the upstream and its response: connections, versions, headers, and responses without bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::harness::{Gateway, Upstream, reply};

const ECHO: &str = "[upstreams.up]\nservers = [\"builtin:echo\"]\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";

fn seen(gateway: &Gateway, fields: &str) -> Value {
    gateway.client().get_with("/x", fields).json()["headers"].clone()
}

fn listed(headers: &Value, name: &str) -> Vec<String> {
    let values = headers[name].as_array().cloned().unwrap_or_default();
    let texts = values.iter().map(|value| value.as_str().unwrap().to_owned()).collect::<Vec<_>>().join(",");
    texts.split(',').map(|entry| entry.trim().to_owned()).filter(|entry| !entry.is_empty()).collect()
}

#[test]
fn connections_are_kept_on_both_sides() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&up.everything());
    let mut clients = [gateway.client(), gateway.client()];
    for at in 0..100 {
        let path = format!("/{at}");
        assert_eq!(clients[at % 2].get(&path).text(), path);
    }
    // At most one for each worker, because there are never two requests in flight.
    assert!((1..=2).contains(&up.connections()), "{} connections", up.connections());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let ask = |at: usize| format!("GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n");
    let with_body = "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
    client.send((0..5).map(ask).chain([with_body.to_owned()]).chain((5..10).map(ask)).collect::<String>());
    let answers: Vec<_> = (0..11).map(|_| client.response(false).text().to_owned()).collect();
    assert_eq!(answers, ["/0", "/1", "/2", "/3", "/4", "/body", "/5", "/6", "/7", "/8", "/9"]);
}

#[test]
fn http_1_0_closes_the_connection_without_keep_alive() {
    let up =
        Upstream::start(|_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec());
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let response = client.call("GET / HTTP/1.0\r\n\r\n");
    // HTTP/1.0 has no chunks, so the end of the connection is the end of the body.
    assert_eq!((response.headers.get("transfer-encoding"), response.text()), (None, "hello"));
    assert!(client.closed().is_empty());

    let fixed = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"hello\" }\n");
    let mut client = fixed.client();
    for _ in 0..2 {
        let response = client.call("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((response.status, response.text()), (200, "hello"));
        assert!(response.version.starts_with("HTTP/1."), "{response:?}");
        assert_eq!(response.headers.joined("connection").to_lowercase(), "keep-alive");
    }
    assert_eq!(client.call("GET / HTTP/1.0\r\n\r\n").text(), "hello");
    assert!(client.closed().is_empty());
}

#[test]
fn a_request_without_a_host_is_forwarded_with_one() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&format!("{}preserve_host = true\n", up.everything()));
    assert_eq!(gateway.client().call("GET / HTTP/1.0\r\n\r\n").status, 200);
    assert_eq!(gateway.client().get("/").status, 200);
    let hosts: Vec<_> = up.received().iter().map(|request| request.headers.joined("host")).collect();
    assert_eq!(hosts, [up.address().to_string(), "test.example".to_owned()]);
}

#[test]
fn connection_close_closes() {
    let gateway = Gateway::start(ECHO);
    let mut client = gateway.client();
    let response = client.get_with("/", "Connection: close\r\n");
    assert_eq!(response.headers.joined("connection").to_lowercase(), "close");
    assert!(client.closed().is_empty());
}

#[test]
fn an_upstream_that_closes_does_not_close_the_client() {
    let up = Upstream::raw(|mut wire, _| {
        if let Ok(Some(_)) = wire.head() {
            let _ = wire.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
        }
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for _ in 0..3 {
        let response = client.get("/");
        assert_eq!((response.status, response.text()), (200, "until the end"));
    }
    assert_eq!(up.connections(), 3);
}

#[test]
fn responses_without_bodies_pass_and_the_connection_stays_open() {
    let up = Upstream::start(|request| match request.target.as_str() {
        "/204" => b"HTTP/1.1 204 No Content\r\nX-Mark: yes\r\n\r\n".to_vec(),
        "/304" => b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 5\r\n\r\n".to_vec(),
        _ if request.method == "HEAD" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Mark: yes\r\n\r\n".to_vec(),
        _ => reply(200, "after"),
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let head = client.call("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.headers.must("content-length"), head.headers.must("x-mark")), (200, "5", "yes"));
    assert_eq!(client.get("/").text(), "after");
    let empty = client.get("/204");
    assert_eq!(
        (empty.status, empty.headers.must("x-mark"), empty.headers.get("transfer-encoding")),
        (204, "yes", None)
    );
    assert_eq!(client.get("/").text(), "after");
    let unchanged = client.get("/304");
    assert_eq!((unchanged.status, unchanged.headers.must("etag")), (304, "\"x\""));
    assert_eq!(client.get("/").text(), "after");
    assert!(up.connections() <= 2, "an upstream connection was lost: {}", up.connections());
}

#[test]
fn a_target_in_absolute_form_is_sent_as_a_path() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&up.everything());
    for (target, path) in
        [("http://a", "/"), ("http://a/", "/"), ("http://a?x=1", "/?x=1"), ("http://a/b//c?x", "/b//c?x")]
    {
        let response = gateway.client().call(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(response.text(), path, "{target}");
    }
}

#[test]
fn a_repeated_length_is_forwarded_once() {
    let up = Upstream::start(|request| {
        let body = if request.method == "HEAD" { "" } else { "ok" };
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{body}").into_bytes()
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for method in ["GET", "HEAD"] {
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.response(method == "HEAD");
        assert_eq!((response.status, response.headers.joined("content-length")), (200, "2".to_owned()), "{method}");
    }
}

#[test]
fn headers_of_the_clients_connection_are_not_forwarded() {
    let gateway = Gateway::start(ECHO);
    let fields = "Connection: keep-alive, X-Hop\r\nConnection: x-other-hop\r\nX-Hop: 1\r\nX-Other-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
        Proxy-Connection: keep-alive\r\nTE: gzip\r\nTrailer: x-sum\r\nX-End: 1\r\n";
    let headers = seen(&gateway, fields);
    for gone in ["x-hop", "x-other-hop", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(headers[gone], Value::Null, "{headers}");
    }
    assert!(!listed(&headers, "te").contains(&"gzip".to_owned()), "{headers}");
    assert!(!listed(&headers, "connection").iter().any(|name| name.contains("hop")), "{headers}");
    assert_eq!(listed(&headers, "x-end"), ["1"]);
}

#[test]
fn connection_cannot_remove_headers_that_the_gateway_relies_on() {
    // Otherwise a client could remove the Host header, its address, or the framing of the body.
    let gateway = Gateway::start(ECHO);
    let request = "POST / HTTP/1.1\r\nHost: a\r\nConnection: host, x-forwarded-for, via, content-length\r\nContent-Length: 3\r\n\r\nabc";
    let response = gateway.client().call(request);
    if response.status == 400 {
        return;
    }
    let echo = response.json();
    assert_eq!(listed(&echo["headers"], "host").len(), 1, "{echo}");
    assert_eq!(listed(&echo["headers"], "x-forwarded-for"), ["127.0.0.1"], "{echo}");
    assert_eq!(echo["body_bytes"], 3, "{echo}");
}

#[test]
fn headers_of_the_upstreams_connection_are_not_forwarded() {
    let up = Upstream::start(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
            Proxy-Connection: keep-alive\r\nX-End: 1\r\nX-End: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\nok"
            .to_vec()
    });
    let gateway = Gateway::start(&up.everything());
    let response = gateway.client().get("/");
    for gone in ["x-hop", "keep-alive", "proxy-connection"] {
        assert_eq!(response.headers.get(gone), None, "{response:?}");
    }
    assert_eq!(response.headers.joined("x-end"), "1, 2");
    assert_eq!(response.headers.joined("set-cookie"), "a=1, b=2");
}

#[test]
fn the_upstream_gets_the_clients_address() {
    let gateway = Gateway::start(ECHO);
    let forged = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: forged.test\r\n";
    for fields in ["", forged] {
        let headers = seen(&gateway, fields);
        assert_eq!(listed(&headers, "x-forwarded-for"), ["127.0.0.1"], "{headers}");
        assert_eq!(listed(&headers, "x-forwarded-proto"), ["http"], "{headers}");
        assert_eq!(listed(&headers, "x-forwarded-host"), ["test.example"], "{headers}");
        assert!(listed(&headers, "via").iter().any(|via| via.starts_with("1.1 ")), "{headers}");
    }
}

#[test]
fn the_upstream_gets_the_address_from_a_trusted_proxy() {
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.0/8\"]", ECHO);
    let fields = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outside.test\r\nVia: 1.1 front\r\n";
    let headers = seen(&gateway, fields);
    assert_eq!(listed(&headers, "x-forwarded-for"), ["192.0.2.1", "127.0.0.1"], "{headers}");
    assert_eq!(listed(&headers, "x-forwarded-proto"), ["https"], "{headers}");
    assert_eq!(listed(&headers, "x-forwarded-host"), ["outside.test"], "{headers}");
    let via = listed(&headers, "via");
    assert!(via.len() == 2 && via[0] == "1.1 front", "{headers}");
}

#[test]
fn header_fields_pass_unchanged() {
    let up =
        Upstream::start(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Odd: \xff \xe9\r\nX-Empty:\r\n\r\n".to_vec());
    let gateway = Gateway::start(&up.everything());
    let response = gateway
        .client()
        .get_with("/a%20%C3%A9;x=1,2/!$&'()*+@:?b=%ff&c=[]&d=a/b?c", b"X-Odd: \xfe\tx  y\r\nX-Empty:\r\n");
    let of = |headers: &crate::harness::Headers, name: &str| {
        headers.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    assert_eq!(of(&response.headers, "x-odd").unwrap(), b"\xff \xe9");
    assert_eq!(of(&response.headers, "x-empty").unwrap(), b"");
    let received = &up.received()[0];
    assert_eq!(received.target, "/a%20%C3%A9;x=1,2/!$&'()*+@:?b=%ff&c=[]&d=a/b?c");
    assert_eq!(of(&received.headers, "x-odd").unwrap(), b"\xfe\tx  y");
    assert_eq!(of(&received.headers, "x-empty").unwrap(), b"");
}

#[test]
fn an_idle_connection_that_the_upstream_closed_costs_no_request() {
    // The upstream closes the connection after every response without notice.
    let up = Upstream::raw(|mut wire, _| {
        if let Ok(Some(_)) = wire.head() {
            let _ = wire.write(&reply(200, "ok"));
        }
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for at in 0..50 {
        assert_eq!(client.get("/").status, 200, "request {at}");
    }
}

/// Answers the first request of a connection and closes when the second comes. This makes the race between the end of a
/// keep-alive and a new request certain.
fn closes_on_the_second(asked: &Arc<AtomicUsize>) -> Upstream {
    let asked = Arc::clone(asked);
    Upstream::raw(move |mut wire, _| {
        for request in 0..2 {
            let Ok(Some((_, headers))) = wire.head() else { return };
            let framing = headers.framing(crate::harness::Framing::Length(0)).unwrap();
            let _ = wire.body(framing, &mut |_| ());
            asked.fetch_add(1, Ordering::SeqCst);
            if request == 0 {
                let _ = wire.write(&reply(200, "ok"));
            }
        }
    })
}

#[test]
fn a_get_that_meets_a_closing_connection_is_sent_again() {
    let up = closes_on_the_second(&Arc::default());
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for at in 0..6 {
        assert_eq!(client.get("/").status, 200, "request {at}");
    }
}

#[test]
fn a_post_is_never_sent_twice() {
    for body in ["", "ab"] {
        let asked = Arc::default();
        let up = closes_on_the_second(&asked);
        let gateway = Gateway::start(&up.everything());
        let mut client = gateway.client();
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answers: Vec<_> = (0..4).map(|_| client.call(&request).status).collect();
        assert_eq!(asked.load(Ordering::SeqCst), answers.len(), "{answers:?}");
        assert!(answers.iter().all(|status| [200, 502].contains(status)), "{answers:?}");
    }
}

#[test]
fn servers_get_requests_by_their_weight() {
    let light = Upstream::start(|_| reply(200, "light"));
    let heavy = Upstream::start(|_| reply(200, "heavy"));
    let (light, heavy) = (light.address(), heavy.address());
    let servers = format!("[\"http://{light}\", {{ url = \"http://{heavy}\", weight = 3 }}]");
    let config = format!("[upstreams.up]\nservers = {servers}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n");
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    let count = (0..800).filter(|_| client.get("/").text() == "heavy").count();
    // Servers are chosen at random: this is five standard deviations.
    assert!((540..=660).contains(&count), "{count} of 800 went to the server that has three quarters of the weight");
}
