//! Other proxies that ask for decisions, with their lines in docs/decisions.md.

use std::net::SocketAddr;

use crate::decisions::deciding;
use crate::harness::{Client, Gateway, Peer, Response, Upstream, nginx_config, reply};

const PAGE: &str = include_str!("../../docs/decisions.md");

#[track_caller]
fn block(head: &str) -> &'static str {
    let fence = format!("```{head}\n");
    PAGE.split(&fence).nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_else(|| panic!("no block {head}"))
}

#[track_caller]
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
    text.replace(from, to)
}

const LIMITS: &str = r#"
[limits.per-client]
key = "header:x-api-key | client-ip"
rates = ["2/d"]
[[limits.per-client.overrides]]
keys = ["many"]
exempt = true
[[routes]]
path = "/*"
limits = ["per-client"]
respond = { status = 200 }
[[routes]]
host = "shop.test"
path = "/cart/*"
methods = ["POST"]
respond = { status = 200 }
"#;

/// Answers 403 to one path, and echoes bodies.
fn application() -> Upstream {
    Upstream::start(|request| match request.target.as_str() {
        "/forbidden" => reply(403, "the application forbids it"),
        _ => reply(200, &format!("{} {}", request.method, String::from_utf8_lossy(&request.body))),
    })
}

fn nginx(gateway: SocketAddr, upstream: &Upstream, more: impl Fn(&str) -> String) -> Peer {
    Peer::start(|folder, address| {
        let server = replaced(block("nginx nginx"), "server 127.0.0.1:9902;", &format!("server {gateway};"));
        let server = more(&replaced(&server, "listen 80;", &format!("listen {address};")));
        let http = format!("upstream app {{ server {}; }}\n{server}", upstream.address());
        (nginx_config(folder, &http), vec!["nginx", "-e", "stderr", "-c"])
    })
}

fn caddy(gateway: SocketAddr, upstream: &Upstream) -> Peer {
    Peer::start(|_, address| {
        let site = replaced(block("caddy caddy"), "127.0.0.1:9902", &gateway.to_string());
        let site = replaced(&site, "app:8080", &upstream.address().to_string());
        let site = replaced(&site, ":80 {", &format!("http://{address} {{\nbind 127.0.0.1"));
        (
            format!("{{\nadmin off\nauto_https off\n}}\n{site}"),
            vec!["caddy", "run", "--adapter", "caddyfile", "--config"],
        )
    })
}

fn post(client: &mut Client, host: &str, path: &str, fields: &str) -> Response {
    client.call(format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n{fields}\r\nabc"))
}

/// What holds behind each proxy. `host` is one of its names.
fn follow(proxy: &Peer, host: &str, gateway: &Gateway) {
    let mut client = Client::connect(proxy.address);
    let first = post(&mut client, host, "/a?b=c", "");
    assert_eq!((first.status, first.text()), (200, "POST abc"), "the body reaches the application");
    let line = gateway.wait_log("a decision", |line| line["message"] == "request");
    let said = ["via", "method", "path", "client"].map(|name| line[name].as_str().unwrap().to_owned());
    assert_eq!(said, ["http", "POST", "/a", "127.0.0.1"]);
    assert_eq!(post(&mut client, host, "/b", "X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.2\r\n").status, 200);
    let refused = post(&mut client, host, "/c", "");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.headers.must("retry-after").parse::<u64>().unwrap() > 0);
    assert!(refused.headers.must("ratelimit").starts_with("\"per-client\";r=0"), "{refused:?}");
    // Whatever a client writes, its own address counts.
    for fields in ["X-Forwarded-For: 192.0.2.1\r\n", "Forwarded: for=192.0.2.1\r\n", "X-Forwarded-Host: shop.test\r\n"]
    {
        assert_eq!(post(&mut client, host, "/cart/1", fields).status, 429, "{fields}");
    }
    assert_eq!(post(&mut client, host, "/d", "X-Api-Key: many\r\n").status, 200);
    assert_eq!(post(&mut client, host, "/forbidden", "X-Api-Key: many\r\n").status, 403, "the application's own");
}

#[test]
#[ignore = "needs nginx"]
fn nginx_asks_and_answers_429() {
    let (gateway, upstream) = (deciding("refused_status = 403", LIMITS), application());
    let proxy = nginx(gateway.decisions(), &upstream, str::to_owned);
    follow(&proxy, "shop.example", &gateway);
    let mut client = Client::connect(proxy.address);
    // Headers with which a client could choose another counter.
    for fields in ["X-Original-URI: /x\r\n", "X-Forwarded-Uri: /x\r\n", "X-Original-Method: GET\r\n"] {
        assert_eq!(post(&mut client, "shop.example", "/a", fields).status, 429, "{fields}");
    }
    let admitted = post(&mut client, "shop.example", "/a", "X-Api-Key: other\r\n");
    assert!(admitted.headers.must("ratelimit").starts_with("\"per-client\";r=1"), "{admitted:?}");
    assert_eq!(post(&mut client, "shop.test", "/cart/1", "").status, 200, "the host decides about the route");
    let forbidden = post(&mut client, "shop.example", "/forbidden", "X-Api-Key: other\r\n");
    assert_eq!((forbidden.status, forbidden.text()), (403, "the application forbids it"));
    assert_eq!(client.get_with("/a%2Fb", "X-Api-Key: many\r\n").status, 400, "it cannot be read in one way only");
}

#[test]
#[ignore = "needs nginx"]
fn nginx_serves_what_servers_read_in_one_way_and_answers_400_to_the_rest() {
    let (gateway, upstream) = (deciding("refused_status = 403", LIMITS), application());
    let proxy = nginx(gateway.decisions(), &upstream, str::to_owned);
    let many = "x-field: 1\r\n".repeat(120);
    let with_host = "Host: a\r\nX-Api-Key: many\r\n";
    for (line, fields, status) in [
        (&b"GET /a?q=\"x\" HTTP/1.1"[..], with_host, 200),
        (b"GET /\"a\"?<b> HTTP/1.1", with_host, 200),
        (b"GET /a<b> HTTP/1.1", with_host, 200),
        (b"GET /{a}|b^c`?{a}|b^c` HTTP/1.1", with_host, 200),
        // The application of this test reads only UTF-8.
        (b"GET /caf\xc3\xa9?caf\xc3\xa9 HTTP/1.1", with_host, 200),
        (b"GET /a HTTP/1.0", "X-Api-Key: many\r\n", 200),
        (b"GET /a#f HTTP/1.1", with_host, 400),
        (b"GET /a?b#f HTTP/1.1", with_host, 400),
        (b"GET /a HTTP/1.1", &[with_host, &many].concat(), 400),
    ] {
        let mut client = Client::connect(proxy.address);
        client.send([line, b"\r\n", fields.as_bytes(), b"Connection: close\r\n\r\n"].concat());
        let shown = String::from_utf8_lossy(line);
        assert_eq!(client.response(false).status, status, "{shown}");
    }
}

#[test]
#[ignore = "needs nginx"]
fn nginx_refuses_while_the_gateway_is_away_unless_it_is_told_otherwise() {
    let (_reserved, nobody) = crate::harness::closed_port();
    let upstream = application();
    let strict = nginx(nobody, &upstream, str::to_owned);
    assert_eq!(Client::connect(strict.address).get("/").status, 500);
    assert!(PAGE.contains(
        "add `error_page 502 504 = @away;` to `/decide`, and\n`location @away { return 200; }` to the server"
    ));
    let lenient = nginx(nobody, &upstream, |server| {
        let inside =
            replaced(server, "proxy_pass http://gateway;", "proxy_pass http://gateway; error_page 502 504 = @away;");
        replaced(&inside, "location @refused {", "location @away { return 200; }\nlocation @refused {")
    });
    assert_eq!(Client::connect(lenient.address).get("/").status, 200);
}

#[test]
#[ignore = "needs caddy"]
fn caddy_asks_and_passes_refusals_on() {
    let (gateway, upstream) = (deciding("", LIMITS), application());
    let proxy = caddy(gateway.decisions(), &upstream);
    let host = proxy.address.to_string();
    follow(&proxy, &host, &gateway);
    let mut client = Client::connect(proxy.address);
    assert_eq!(post(&mut client, &host, "/a", "X-Forwarded-Uri: /x\r\nX-Forwarded-Method: GET\r\n").status, 429);
    let both = post(&mut client, &host, "/a", "X-Original-Uri: /x\r\n");
    both.expect_problem(400);
    let refused = post(&mut client, &host, "/a", "");
    refused.expect_problem(429);
}

/// Traefik passes the client's fields, except those of the connection, and names the request in these fields.
#[test]
fn traefik_asks_by_its_fields() {
    let gateway = deciding("", LIMITS);
    let mut asker = Client::connect(gateway.decisions());
    let mut ask_with = |client: &str, method: &str, uri: &str, fields: &str| {
        asker.call(format!(
            "GET / HTTP/1.1\r\nHost: 127.0.0.1:9902\r\nUser-Agent: curl/8\r\nX-Forwarded-Method: {method}\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Uri: {uri}\r\n\
             X-Forwarded-For: {client}\r\nX-Forwarded-Port: 80\r\nX-Real-Ip: {client}\r\nAccept-Encoding: gzip\r\n{fields}\r\n"
        ))
    };
    // Fields of clients that Traefik does not set, unless the recipe removes them.
    for (address, fields) in [
        ("192.0.2.3", "Forwarded: for=192.0.2.9\r\n"),
        ("192.0.2.4", "Forwarded: for=127.0.0.1;proto=https, for=\"\r\n"),
        ("192.0.2.5", "X-Client-Ip: 192.0.2.9\r\nTrue-Client-Ip: 192.0.2.9\r\nX-Original-Method: GET\r\n"),
    ] {
        let statuses = ["", fields, fields].map(|fields| ask_with(address, "GET", "/a", fields).status);
        assert_eq!(statuses, [200, 200, 429], "{fields}");
    }
    let mut ask = |client: &str, method: &str, uri: &str| ask_with(client, method, uri, "");
    assert_eq!([(); 3].map(|()| ask("192.0.2.1", "POST", "/a?b").status), [200, 200, 429]);
    assert_eq!(ask("192.0.2.2", "GET", "/a").status, 200);
    let recipe = block("yaml traefik");
    assert!(
        recipe.contains("forwardAuth:") && recipe.contains("Forwarded: \"\"") && recipe.contains("[strip, limits]")
    );
}
