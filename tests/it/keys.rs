//! Every source of a key, requests without a key, and values that try to collide.

use std::time::Duration;

use http::Request;

use crate::harness::{Client, Gateway, Software, over_http2, until, with_each_server};

const ROUTE: &str = "respond = { status = 200 }\n";

fn limited(name: &str, path: &str, key: &str, more: &str) -> String {
    format!(
        "[limits.{name}]\nkey = {key}\nrates = [\"2/d\"]\n{more}\n[[routes]]\npath = \"{path}\"\nlimits = [\"{name}\"]\n{ROUTE}"
    )
}

fn request(method: &str, target: &str, fields: &str) -> Vec<u8> {
    format!("{method} {target} HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n{fields}\r\n").into_bytes()
}

fn statuses(client: &mut Client, request: &[u8], count: usize) -> Vec<u16> {
    (0..count).map(|_| client.call(request).status).collect()
}

#[track_caller]
fn apart(key: &str, path: &str, one: &[u8], other: &[u8]) {
    let gateway = Gateway::start(&limited("l", path, key, ""));
    let mut client = gateway.client();
    for request in [one, other] {
        assert_eq!(statuses(&mut client, request, 3), [200, 200, 429], "{}", String::from_utf8_lossy(request));
    }
    // Neither has reset the count of the other.
    assert_eq!(client.call(one).status, 429);
}

#[track_caller]
fn together(key: &str, path: &str, one: &[u8], other: &[u8]) {
    let gateway = Gateway::start(&limited("l", path, key, ""));
    let mut client = gateway.client();
    assert_eq!([one, other, one, other].map(|request| client.call(request).status), [200, 200, 429, 429]);
}

#[test]
fn a_header() {
    let ask = |value| request("GET", "/", &format!("X-Api-Key: {value}\r\n"));
    apart("\"header:x-api-key\"", "/", &ask("one"), &ask("two"));
    together("\"header:X-API-Key\"", "/", &ask("one"), &request("GET", "/", "x-api-key:one\r\n"));
}

#[test]
fn a_header_or_else_the_client_address() {
    let key = "\"header:x-api-key | client-ip\"";
    apart(key, "/", &request("GET", "/", "X-Api-Key: one\r\n"), &request("GET", "/", ""));
    // A key that looks like the address is still a key.
    apart(key, "/", &request("GET", "/", "X-Api-Key: 127.0.0.1\r\n"), &request("GET", "/", ""));
    together(key, "/", &request("GET", "/", "X-Other: one\r\n"), &request("GET", "/", ""));
}

#[test]
fn a_cookie() {
    let ask = |cookies: &str| request("GET", "/", &format!("Cookie: {cookies}\r\n"));
    apart("\"cookie:sid\"", "/", &ask("a=1; sid=one"), &ask("sid=two; a=1"));
    together("\"cookie:sid\"", "/", &ask("a=1; sid=one"), &ask("sid=one; a=2"));
}

#[test]
fn a_query_parameter() {
    let ask = |query: &str| request("GET", &format!("/?{query}"), "");
    apart("\"query:k\"", "/", &ask("k=one"), &ask("a=1&k=two"));
    together("\"query:k\"", "/", &ask("k=one"), &ask("a=1&k=%6Fne"));
}

#[test]
fn a_bearer_token() {
    let ask = |value: &str| request("GET", "/", &format!("Authorization: {value}\r\n"));
    apart("\"bearer\"", "/", &ask("Bearer one"), &ask("Bearer two"));
    together("\"bearer\"", "/", &ask("Bearer one"), &ask("bearer one"));
}

#[test]
fn a_captured_segment() {
    let ask = |path: &str| request("GET", path, "");
    apart("\"path:tenant\"", "/v1/{tenant}/*", &ask("/v1/one/x"), &ask("/v1/two/x"));
    together("\"path:tenant\"", "/v1/{tenant}/*", &ask("/v1/one/x"), &ask("/v1/%6Fne/y"));
}

#[test]
fn the_path() {
    apart("\"path\"", "/*", &request("GET", "/one?q=1", ""), &request("GET", "/two?q=1", ""));
    together("\"path\"", "/*", &request("GET", "/one?q=1", ""), &request("GET", "//%6Fne?q=2", ""));
}

#[test]
fn the_method() {
    apart("\"method\"", "/", &request("GET", "/", ""), &request("POST", "/", ""));
}

#[test]
fn the_host() {
    let ask = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    apart("\"host\"", "/", &ask("a.example"), &ask("b.example"));
    together("\"host\"", "/", &ask("a.example"), &ask("A.Example:8080"));
}

#[test]
fn all_clients_together() {
    let ask = |value| request("GET", "/", &format!("X-Api-Key: {value}\r\n"));
    together("\"global\"", "/", &ask("one"), &ask("two"));
}

#[test]
fn routes_share_a_limit_unless_they_are_its_key() {
    for (key, second) in [("[\"client-ip\"]", 429), ("[\"client-ip\", \"route\"]", 200)] {
        let other = "[[routes]]\npath = \"/two\"\nlimits = [\"l\"]\n".to_owned() + ROUTE;
        let gateway = Gateway::start(&(limited("l", "/one", key, "") + &other));
        let mut client = gateway.client();
        assert_eq!(statuses(&mut client, &request("GET", "/one", ""), 3), [200, 200, 429]);
        assert_eq!(client.call(request("GET", "/two", "")).status, second, "{key}");
    }
}

#[test]
fn several_parts_are_not_confused_at_their_boundary() {
    let ask = |a: &str, b: &str| request("GET", "/", &format!("X-A: {a}\r\nX-B: {b}\r\n"));
    let key = "[\"header:x-a\", \"header:x-b\"]";
    apart(key, "/", &ask("one", "x"), &ask("one", "y"));
    apart(key, "/", &ask("on", "e"), &ask("o", "ne"));
    apart(key, "/", &ask("a|b", "c"), &ask("a", "b|c"));
    apart("[\"header:x-a\", \"method\"]", "/", &ask("one", ""), &request("POST", "/", "X-A: one\r\n"));
}

#[test]
fn limits_with_different_names_count_apart() {
    let config = limited("one", "/one", "\"client-ip\"", "") + &limited("two", "/two", "\"client-ip\"", "");
    let gateway = Gateway::start(&config);
    let mut client = gateway.client();
    for path in ["/one", "/two"] {
        assert_eq!(statuses(&mut client, &request("GET", path, ""), 3), [200, 200, 429]);
    }
}

#[test]
fn requests_without_the_key_share_a_counter_or_skip_or_are_rejected() {
    let config = ["shared", "skip", "reject"].map(|missing| {
        limited(missing, &format!("/{missing}"), "\"header:x-api-key\"", &format!("missing = \"{missing}\""))
    });
    let gateway = Gateway::start(&config.concat());
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, &request("GET", "/shared", ""), 3), [200, 200, 429]);
    assert_eq!(statuses(&mut client, &request("GET", "/skip", ""), 4), [200; 4]);
    client.call(request("GET", "/reject", "")).expect_problem(400);
    for path in ["/shared", "/skip", "/reject"] {
        let with_key = request("GET", path, "X-Api-Key: k\r\n");
        assert_eq!(statuses(&mut client, &with_key, 3), [200, 200, 429], "{path}");
    }
}

#[test]
fn shared_is_the_default_without_a_key() {
    let gateway = Gateway::start(&limited("l", "/", "\"header:x-api-key\"", ""));
    assert_eq!(statuses(&mut gateway.client(), &request("GET", "/", ""), 3), [200, 200, 429]);
}

/// Values that would collide if keys were joined or truncated texts.
fn odd_values() -> Vec<Vec<u8>> {
    let long = |last: u8| [vec![b'k'; 8191], vec![last]].concat();
    let mut values: Vec<Vec<u8>> =
        vec![long(b'a'), long(b'b'), vec![b'k'; 8191], b"\xff\xfe".to_vec(), b"\xff\xfd".to_vec()];
    let texts = [
        "\u{e9}",
        "e\u{301}",
        "a b",
        "a  b",
        "a%20b",
        "a+b",
        "%0d%0aset k 0 0 1%0d%0a",
        "%0D%0A",
        "%00",
        "k 0 0 1",
        "noreply",
    ];
    values.extend(texts.map(|text| text.as_bytes().to_vec()));
    values.extend(
        [&b"a\tb"[..], b"a:b", b"a#0.1", b"a#0", b"gw:l:a", b"|", b"\"", b"{}", b"*", b"global", b"k"]
            .map(<[u8]>::to_vec),
    );
    values
}

fn odd_values_count_apart(store: &str) {
    let gateway = Gateway::start(&format!("{store}{}", limited("l", "/", "\"header:x-api-key\"", "")));
    let mut client = gateway.client();
    for value in odd_values() {
        let ask = [b"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: ", &value[..], b"\r\n\r\n"].concat();
        assert_eq!(statuses(&mut client, &ask, 3), [200, 200, 429], "{:?}", String::from_utf8_lossy(&value));
    }
}

#[test]
fn odd_values_count_apart_in_memory() {
    odd_values_count_apart("");
}

fn odd_values_count_apart_in_a_shared_store(software: Software) {
    let server = software.start();
    odd_values_count_apart(&server.store_with("on_error = \"reject\"\ntimeout = \"5s\""));
    // Admissions are written a moment later.
    let all = odd_values().len() as u64;
    until("all are counted", Duration::from_secs(20), || server.items() >= all);
}

with_each_server! {
    odd_values_count_apart_in_a_shared_store
}

/// In HTTP/2, and in absolute form in HTTP/1.0, only the target names the host.
#[test]
fn a_host_header_is_read_in_every_protocol() {
    let gateway = Gateway::start(
        "[limits.by-host]\nkey = \"header:host\"\nrates = [\"2/d\"]\nmissing = \"skip\"\n\
         [[routes]]\npath = \"/*\"\nlimits = [\"by-host\"]\nrespond = { status = 200 }\n\
         [[routes]]\npath = \"/*\"\nheaders = { host = \"closed.test:80\" }\nrespond = { status = 403 }\n",
    );
    let request = |host: &str| Request::get(format!("http://{host}/")).body(()).unwrap();
    let hosts = ["a.test", "a.test", "a.test", "closed.test:80"].map(request);
    let statuses: Vec<_> = over_http2(gateway.http, hosts.into()).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [200, 200, 429, 403]);
    let ask = |head: &str| gateway.client().call(format!("{head}\r\n\r\n")).status;
    assert_eq!(ask("GET http://a.test/ HTTP/1.0"), 429);
    assert_eq!(ask("GET http://a.test/ HTTP/1.1\r\nHost:"), 429);
    assert_eq!(ask("GET http://a.test/ HTTP/1.1\r\nHost: A.test"), 429);
    assert_eq!(ask("GET http://closed.test:80/ HTTP/1.0"), 403);
    assert_eq!(ask("GET http://a.test/ HTTP/1.1"), 400, "HTTP/1.1 has to have the header");
    assert_eq!(ask("GET http://a.test/ HTTP/1.1\r\nHost: b.test"), 400);
}

#[test]
fn parameters_that_are_not_utf_8_are_told_apart() {
    let ask = |value: &str| request("GET", &format!("/?k={value}"), "");
    apart("\"query:k\"", "/", &ask("%ff"), &ask("%FE"));
    apart("\"query:k\"", "/", &ask("a+%c3"), &ask("a+%EF%BF%BD"));
    together("\"query:k\"", "/", &ask("a+%c3"), &request("GET", "/?%6B=%61%20%C3", ""));
    let gateway = Gateway::start(&limited("l", "/", "\"query:k\"", ""));
    assert_eq!(statuses(&mut gateway.client(), &ask("%ff"), 1), [200]);
    let used = |key: &str| gateway.admin(&format!("/api/limits/l/keys/{key}")).json()["rates"][0]["used"].clone();
    assert_eq!([used("%ff"), used("%fe"), used("%EF%BF%BD")], [1, 0, 0]);
}
