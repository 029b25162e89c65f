//! What a route changes in a forwarded request: headers, path and time limit. And header values with placeholders,
//! whatever clients send.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request};

use crate::harness::http2_server::{Http2Server, read};
use crate::harness::{Client, Gateway, Headers, Upstream, reply};

fn below_v1(up: &Upstream, keys: &str) -> String {
    format!("{}\n[[routes]]\npath = \"/v1/{{tenant}}/*\"\nupstream = \"up\"\n{keys}\n", up.section())
}

fn lines(headers: &Headers, name: &str) -> Vec<String> {
    let lines = headers.0.iter().filter(|(other, _)| other == name);
    lines.map(|(_, value)| String::from_utf8(value.clone()).unwrap()).collect()
}

const CHANGES: &str = r#"
[routes.request_headers]
set = { x-team = "a", X-Real-IP = "{client_ip}", x-tenant = "{tenant}", x-where = "{host} {rest}", x-brace = "{{{tenant}}}" }
add = { x-more = "2", cookie = "c=3" }
remove = ["x-debug", "x-forwarded-proto", "via", "X_Old"]
"#;

const SENT: &str = "X-Team: mine\r\nx_team: mine\r\nX-TEAM: again\r\nx.real.ip: 1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\n\
    X-More: 1\r\nCookie: a=1\r\nX-Debug: 1\r\nx_debug: 1\r\nX~Debug: 1\r\nx-debugs: stays\r\nx-old: 1\r\n\
    Connection: x-team, x-tenant\r\nX-Tenant: other\r\n";

#[test]
fn headers_are_removed_set_and_added_after_those_of_the_gateway() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&below_v1(&up, CHANGES));
    assert_eq!(gateway.client().get_with("/v1/acme/x/y?q", SENT).status, 200);
    let headers = &up.received()[0].headers;
    let mut all: Vec<_> =
        headers.0.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect();
    all.sort();
    all.retain(|line| !differs_each_time(line));
    let expected = [
        "cookie: a=1".to_owned(),
        "cookie: c=3".to_owned(),
        format!("host: {}", up.address()),
        "x-brace: {acme}".to_owned(),
        "x-debugs: stays".to_owned(),
        "x-forwarded-for: 127.0.0.1".to_owned(),
        "x-forwarded-host: test.example".to_owned(),
        "x-more: 1".to_owned(),
        "x-more: 2".to_owned(),
        "x-real-ip: 127.0.0.1".to_owned(),
        "x-team: a".to_owned(),
        "x-tenant: acme".to_owned(),
        "x-where: test.example x/y".to_owned(),
    ];
    assert_eq!(all, expected);
}

fn differs_each_time(line: &str) -> bool {
    line.starts_with("x-request-id: ") || line.starts_with("via: ")
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time") })
}

async fn send_over_http2(gateway: &Gateway, request: Request<()>, trailers: HeaderMap) -> u16 {
    let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let (response, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    body.send_data(Bytes::from("hello"), false).unwrap();
    body.send_trailers(trailers).unwrap();
    let response = response.await.unwrap();
    let status = response.status().as_u16();
    read(response.into_body()).await.unwrap();
    status
}

#[test]
fn the_same_holds_in_http_2_and_for_trailers() {
    let up = Http2Server::echo(None);
    let changes = CHANGES.replace("x-team = \"a\"", "x-team = \"a\", host = \"{host}:81\"");
    let gateway = Gateway::start(&format!(
        "[upstreams.up]\nservers = [\"http://{}\"]\nhttp2 = true\nconnect_timeout = \"10s\"\n[[routes]]\n\
         path = \"/v1/{{tenant}}/*\"\nupstream = \"up\"\nrewrite = \"/in/{{tenant}}/{{rest}}\"\n{changes}",
        up.address
    ));
    let request = Request::post("http://test.example/v1/acme/x?q=%2F")
        .header("x_team", "mine")
        .header("x-debug", "1")
        .header("x_debug", "1")
        .header("x-more", "1")
        .body(())
        .unwrap();
    let trailers = ["x-sum", "x-team", "x_team", "x_debug"].map(|name| (name.parse().unwrap(), "1".parse().unwrap()));
    assert_eq!(run(send_over_http2(&gateway, request, HeaderMap::from_iter(trailers))), 200);
    let head = &up.requests()[0];
    assert_eq!(head.uri, "http://test.example:81/in/acme/x?q=%2F");
    let mut all: Vec<_> =
        head.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    all.sort();
    all.retain(|line| !differs_each_time(line));
    let expected = [
        "cookie: c=3",
        "x-brace: {acme}",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-host: test.example",
        "x-more: 1",
        "x-more: 2",
        "x-real-ip: 127.0.0.1",
        "x-team: a",
        "x-tenant: acme",
        "x-where: test.example x",
    ];
    assert_eq!(all, expected);

    // A trailer can stand for a header that the route removes or sets.
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&below_v1(&up, CHANGES));
    let request = "POST /v1/acme/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\nX-Team: b\r\nx_debug: 1\r\n\r\n";
    assert_eq!(gateway.client().call(request).status, 200);
    let names: Vec<_> = up.received()[0].trailers.0.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, ["x-sum"]);
}

#[test]
fn the_host_and_the_framing_stay_those_of_one_request() {
    let up = Upstream::start(|request| reply(200, &request.headers.joined("host")));
    let changes = "request_headers = { set = { host = \"www.{host}\", x-a = \"1\" } }";
    let gateway = Gateway::start(&below_v1(&up, changes));
    let mut client = gateway.client();
    assert_eq!(client.get("/v1/acme/x").text(), "www.test.example");
    // No valid name contains an address, so the upstream's own name is sent.
    let ipv6 = client.call("GET /v1/acme/x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n");
    assert_eq!(ipv6.text(), up.address().to_string());
    let mut old = gateway.client();
    assert_eq!(old.call("GET /v1/acme/x HTTP/1.0\r\n\r\n").text(), up.address().to_string());
    let request = "POST /v1/a/x HTTP/1.1\r\nHost: b\r\nX-A: 2\r\nContent-Length: 5\r\ncontent_length: 9\r\n\r\nhello";
    assert_eq!(client.call(request).text(), "www.b");
    let received = up.received();
    let last = received.last().unwrap();
    assert_eq!((last.body.as_slice(), lines(&last.headers, "content-length")), (&b"hello"[..], vec!["5".to_owned()]));
    assert_eq!(lines(&last.headers, "content_length"), Vec::<String>::new());
    assert!(received.iter().all(|request| lines(&request.headers, "host").len() == 1));
}

#[test]
fn nothing_in_a_path_becomes_a_line_or_a_parameter_of_a_header() {
    let up = Upstream::start(|_| reply(200, ""));
    let keys = "request_headers = { set = { forwarded = \"for={client_ip};by={tenant}\", x-rest = \"{rest}\" } }\n\
                response_headers = { set = { x-tenant = \"{tenant}\", x-rest = \"{rest}\" } }";
    let gateway = Gateway::with_server(
        "path_matching = \"exact\"\nescaped_slashes = \"keep\"\ntrusted_proxies = [\"127.0.0.1\"]",
        &below_v1(&up, keys),
    );
    let mut client = gateway.client();
    for (target, tenant, rest) in [
        ("/v1/acme/x", "acme", "x"),
        ("/v1/a,for=1.1.1.1;b/x", "a%2Cfor%3D1.1.1.1%3Bb", "x"),
        ("/v1/a%2Cfor%3d1/%20%22", "a%2Cfor%3D1", "%20%22"),
        ("/v1/%C3%A9\"{}/é", "%C3%A9%22%7B%7D", "%C3%A9"),
        ("/v1/a%2Fb/c%5cd", "a%2Fb", "c%5Cd"),
        ("/v1/a", "a", ""),
    ] {
        let response = client.get_with(target, "X-Rest: 1\r\nX_Rest: 1\r\nForwarded: for=2.2.2.2\r\n");
        assert_eq!(response.status, 200, "{target}");
        assert_eq!(response.headers.joined("x-tenant"), tenant);
        assert_eq!(response.headers.joined("x-rest"), rest);
        let received = up.received();
        let headers = &received.last().unwrap().headers;
        assert_eq!(lines(headers, "forwarded"), [format!("for=2.2.2.2;by={tenant}")]);
        let expected: Vec<_> = Some(rest.to_owned()).filter(|rest| !rest.is_empty()).into_iter().collect();
        assert_eq!((lines(headers, "x-rest"), lines(headers, "x_rest").len()), (expected, 0), "{target}");
    }
    let count = up.received().len();
    for target in ["/v1/a%0d%0aX-Evil:%201/x", "/v1/a%00/x", "/v1/a/x%0A", "/v1/a\tb/x", "/v1/a\rX-Evil: 1/x"] {
        let mut client = gateway.client();
        assert_eq!(client.get(target).status, 400, "{target:?}");
    }
    assert_eq!(up.received().len(), count, "none of these is forwarded");
}

#[test]
fn values_hold_for_answers_of_the_gateway_too() {
    let gateway = Gateway::start(
        "[limits.l]\nkey = \"global\"\nrates = [\"1/h\"]\n[[routes]]\npath = \"/v1/{tenant}\"\nlimits = [\"l\"]\n\
         respond = { status = 200 }\n\
         response_headers = { set = { x-tenant = \"{tenant} {{of}} {host}\", ratelimit = \"{tenant}\" } }\n",
    );
    let mut client = gateway.client();
    for (status, tenant) in [(200, "a"), (429, "b")] {
        let response = client.get(&format!("/v1/{tenant}"));
        assert_eq!((response.status, response.headers.must("ratelimit")), (status, tenant));
        assert_eq!(response.headers.must("x-tenant"), format!("{tenant} {{of}} test.example"));
    }
}

#[test]
fn a_rewritten_path_has_captures_in_their_place() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let keys = "rewrite = \"/in/{tenant}-x/{rest}\"";
    for (server, cases) in [
        (
            "",
            &[
                ("/v1/acme/a/b?q=1&r=%2F", "/in/acme-x/a/b?q=1&r=%2F"),
                ("/v1/acme", "/in/acme-x/"),
                ("/v1/acme?", "/in/acme-x/?"),
                ("//v1///acme;p=1///a;q//", "/in/acme-x/a;q//"),
                ("/v1/ac%6De%3Bp/%C3%a9", "/in/ac%6De-x/%C3%a9"),
                ("/v1/a%3Fb%23c/x%3F", "/in/a%3Fb%23c-x/x%3F"),
                ("/v1/%25/x", "/in/%25-x/x"),
                ("/v1/.../..x", "/in/...-x/..x"),
                ("http://test.example/v1/a/b", "/in/a-x/b"),
            ][..],
        ),
        ("escaped_slashes = \"keep\"", &[("/v1/a%2fb/c%5Cd", "/in/a%2fb-x/c%5Cd")]),
        ("escaped_slashes = \"decode\"", &[("/v1%2Facme/a%5Cb", "/in/acme-x/a/b")]),
    ] {
        let gateway = Gateway::with_server(server, &below_v1(&up, keys));
        let mut client = gateway.client();
        for (target, sent) in cases {
            let response = client.get(target);
            assert_eq!((response.status, response.text()), (200, *sent), "{target}");
        }
        for target in ["/v1/../x", "/v1/%2e%2e/x", "/v1/a/..", "/v1/a/%2E%2e/b", "/v1/..;/x", "/v1/a/%zz"] {
            assert_eq!(gateway.client().get(target).status, 400, "{target}");
        }
    }
}

#[test]
fn a_path_that_a_capture_makes_ambiguous_is_refused() {
    let up = Upstream::start(|request| reply(200, &request.target));
    let gateway = Gateway::start(&below_v1(&up, "rewrite = \"/{rest}..\""));
    let mut client = gateway.client();
    assert_eq!(client.get("/v1/a/b").text(), "/b..");
    client.get("/v1/a").expect_problem(400);
    assert_eq!(gateway.client().get("/v1/a/b/").status, 400);
    assert_eq!(up.received().len(), 1);
    // An empty rest leaves no two slashes, which servers would read as the beginning of a host.
    let gateway = Gateway::start(&below_v1(&up, "rewrite = \"/{rest}/{tenant}\""));
    let mut client = gateway.client();
    assert_eq!(client.get("/v1/evil.example").text(), "/evil.example");
    assert_eq!(client.get("/v1/evil.example//x//").text(), "/x//evil.example");
}

#[test]
fn a_route_has_its_own_time_for_the_head_of_the_response() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.rest();
    });
    let server = Http2Server::start(None, h2::server::Builder::new(), |_request, respond| async move {
        let _held = respond;
        std::future::pending::<()>().await;
    });
    let http2 = format!("[upstreams.h2]\nservers = [\"http://{}\"]\nhttp2 = true\ntimeout = \"60s\"\n", server.address);
    let route = "[[routes]]\npath = \"/h2\"\nupstream = \"h2\"\ntimeout = \"300ms\"\n";
    let gateway = Gateway::start(&format!(
        "{}timeout = \"60s\"\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\ntimeout = \"300ms\"\n{http2}{route}",
        up.section()
    ));
    for path in ["/", "/h2"] {
        let begun = Instant::now();
        gateway.client().get(path).expect_problem(504);
        assert!((Duration::from_millis(300)..Duration::from_secs(20)).contains(&begun.elapsed()), "{path}");
    }
    // A longer time limit holds, too.
    let slow = Upstream::start(|request| {
        std::thread::sleep(Duration::from_millis(if request.target == "/slow" { 400 } else { 10_000 }));
        reply(200, "late")
    });
    let gateway = Gateway::start(&format!(
        "{}timeout = \"100ms\"\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n\
         [[routes]]\npath = \"/slow\"\nupstream = \"up\"\ntimeout = \"30s\"\n",
        slow.section()
    ));
    assert_eq!(gateway.client().get("/slow").text(), "late");
    gateway.client().get("/").expect_problem(504);
}

#[test]
fn a_reload_changes_them() {
    let up = Upstream::start(|request| reply(200, &format!("{} {}", request.target, request.headers.joined("x-team"))));
    let keys = "rewrite = \"/in/{rest}\"\nrequest_headers = { set = { x-team = \"{tenant}\" } }";
    let gateway = Gateway::start(&below_v1(&up, keys));
    let mut client: Client = gateway.client();
    assert_eq!(client.get("/v1/acme/x").text(), "/in/x acme");
    gateway.reload("", &below_v1(&up, &keys.replace("/in/", "/out/").replace("\"{tenant}\"", "\"b\"")));
    gateway.wait_message("reloaded");
    assert_eq!(client.get("/v1/acme/x").text(), "/out/x b");
    gateway.reload("", &below_v1(&up, "rewrite = \"/{tenan}\""));
    gateway.wait_log("the refusal", |line| line["message"].as_str().is_some_and(|text| text.contains("refused")));
    assert_eq!(client.get("/v1/acme/x").text(), "/out/x b");
}
