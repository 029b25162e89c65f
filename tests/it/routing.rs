//! The route of a request is the most specific one, whatever the order of the file and the spelling of the request.

use serde_json::json;

use crate::harness::{Client, Gateway, Upstream, over_http2, reply};

/// The conditions of routes, each of which responds with its own text.
const ROUTES: &[&str] = &[
    "path = \"/*\"",
    "path = \"/v1/*\"",
    "path = \"/v1/{tenant}\"",
    "path = \"/v1/login\"",
    "path = \"/v1/login\"\nmethods = [\"POST\"]",
    "path = \"/v1/login\"\nmethods = [\"POST\"]\nheaders = { \"x-beta\" = \"1\" }",
    "path = \"/v1/{tenant}/users\"",
    "path = \"/v1/acme/*\"",
    "path = \"/v1/{tenant}/*\"",
    "host = \"*.example.com\"\npath = \"/*\"",
    "host = \"api.example.com\"\npath = \"/*\"",
    "host = \"post.example.com\"\npath = \"/*\"\nmethods = [\"POST\"]",
    "path = \"/flags\"\nheaders = { \"x-beta\" = \"1\" }",
    "path = \"/flags\"\nheaders = { \"x-beta\" = \"1\", \"x-gamma\" = \"2\" }",
];

/// A method, a host, a path, further fields, and the number of the matching route.
const CASES: &[(&str, &str, &str, &str, usize)] = &[
    ("GET", "a.test", "/", "", 0),
    ("GET", "a.test", "/other/thing", "", 0),
    ("GET", "a.test", "/v1/", "", 1),
    ("GET", "a.test", "/v1/other", "", 2),
    ("GET", "a.test", "/v1/acme", "", 7),
    ("GET", "a.test", "/v1/login", "", 3),
    ("GET", "a.test", "/v1/login?next=/v1/x", "", 3),
    ("POST", "a.test", "/v1/login", "", 4),
    ("POST", "a.test", "/v1/login", "X-Beta: 0\r\n", 4),
    ("POST", "a.test", "/v1/login", "X-Beta: 1\r\n", 5),
    ("GET", "a.test", "/v1/login", "X-Beta: 1\r\n", 3),
    ("GET", "a.test", "/v1/other/users", "", 6),
    ("GET", "a.test", "/v1/acme/users", "", 7),
    ("GET", "a.test", "/v1/other/users/7", "", 8),
    ("GET", "a.test", "/v1/login/more", "", 8),
    ("GET", "www.example.com", "/v1/login", "", 9),
    ("GET", "deep.www.example.com", "/", "", 9),
    ("GET", "api.example.com", "/v1/login", "", 10),
    ("GET", "API.Example.COM:8443", "/v1/login", "", 10),
    ("GET", "example.com", "/", "", 0),
    ("GET", "notexample.com", "/", "", 0),
    ("POST", "post.example.com", "/v1/login", "", 11),
    ("GET", "post.example.com", "/v1/login", "", 9),
    ("GET", "a.test", "/flags", "", 0),
    ("GET", "a.test", "/flags", "X-Beta: 1\r\n", 12),
    ("GET", "a.test", "/flags", "X-Beta: 1\r\nX-Gamma: 2\r\n", 13),
    ("GET", "a.test", "/flags", "X-Beta: 1\r\nX-Gamma: 3\r\n", 12),
    // Spellings of the same path find the same route, so clients cannot evade it.
    ("GET", "a.test", "/v1/l%6Fgin", "", 3),
    ("GET", "a.test", "/v1/l%6fgin", "", 3),
    ("POST", "a.test", "/%76%31/%6cogin", "", 4),
    ("GET", "a.test", "//v1//login", "", 3),
    ("GET", "a.test", "/v1///login", "", 3),
    ("GET", "a.test", "/v1/LOGIN", "", 2),
];

fn config(order: impl Iterator<Item = usize>) -> String {
    let route = |at: usize| format!("[[routes]]\n{}\nrespond = {{ status = 200, body = \"{at}\" }}\n", ROUTES[at]);
    order.map(route).collect()
}

#[test]
fn the_most_specific_route_wins_in_any_order() {
    let count = ROUTES.len();
    // In the written order, in reverse, and in steps of five, which visits all of them.
    let orders: [Box<dyn Iterator<Item = usize>>; 3] =
        [Box::new(0..count), Box::new((0..count).rev()), Box::new((0..count).map(|at| at * 5 % count))];
    for order in orders {
        let gateway = Gateway::start(&config(order));
        let mut client = gateway.client();
        for (method, host, path, fields, expected) in CASES {
            let ask = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{fields}\r\n");
            let response = client.call(&ask);
            assert_eq!(response.text(), expected.to_string(), "{ask}");
        }
    }
}

#[test]
fn without_a_route_it_is_404() {
    let gateway = Gateway::start("[[routes]]\npath = \"/a\"\nmethods = [\"GET\"]\nrespond = { status = 200 }\n");
    let mut client = gateway.client();
    client.get("/b").expect_problem(404);
    client.get("/a/b").expect_problem(404);
    client.get("/").expect_problem(404);
    assert_eq!(client.get("/a").status, 200);
}

#[test]
fn an_absolute_target_names_the_host() {
    let routes = ["a", "b"].map(|name| {
        format!("[[routes]]\nhost = \"{name}.test\"\npath = \"/*\"\nrespond = {{ status = 200, body = \"{name}\" }}\n")
    });
    let gateway = Gateway::start(&routes.concat());
    let mut client = gateway.client();
    let same = client.call("GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((same.status, same.text()), (200, "a"));
    // RFC 9112, 3.2.2: the target counts, not the Host header. A request in which they differ may be refused.
    let other = client.call("GET http://a.test/x HTTP/1.1\r\nHost: b.test\r\n\r\n");
    assert!(other.status == 400 || other.text() == "a", "{other:?}");
}

#[test]
fn dot_segments_are_refused() {
    let gateway = Gateway::start(&config(0..ROUTES.len()));
    let refused =
        ["/a/../b", "/a/%2e%2e/b", "/a/%2E%2e/b", "/a/.%2e/b", "/..", "/a/..", "/./a", "/a/.", "/a/%2e/b", "//../a"];
    for path in refused {
        gateway.client().get(path).expect_problem(400);
    }
    for path in ["/.well-known/x", "/a..b", "/a/...", "/a/..b", "/a?x=../b"] {
        assert_eq!(gateway.client().get(path).text(), "0", "{path}");
    }
}

#[test]
fn broken_escapes_are_refused() {
    let gateway = Gateway::start(&config(0..1));
    for path in ["/%", "/%4", "/%zz/a"] {
        gateway.client().get(path).expect_problem(400);
    }
}

#[test]
fn every_spelling_of_a_path_is_limited() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let routes = "[[routes]]\npath = \"/v1/login\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n
        [[routes]]\npath = \"/*\"\nrespond = { status = 204 }\n";
    let gateway = Gateway::start(&format!("{limit}{routes}"));
    let mut client = gateway.client();
    assert_eq!(client.get("/v1/login").status, 200);
    for path in ["/v1/login", "/v1/l%6Fgin", "//v1/login", "/v1//login", "/%76%31/login", "/v1/login?", "/v1/login?a=b"]
    {
        assert_eq!(client.get(path).status, 429, "{path}");
    }
}

const ECHO: &str = "[upstreams.up]\nservers = [\"builtin:echo\"]\n";

fn echoed_uri(client: &mut Client, path: &str) -> String {
    let echo = client.get(path).json();
    echo["uri"].as_str().unwrap().to_owned()
}

#[test]
fn the_echo_upstream_answers_with_the_request() {
    let gateway = Gateway::start(&format!("{ECHO}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
    let request = "POST /a%20b/c?x=1&y=%26 HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nX-One: 2\r\nContent-Length: 3\r\n\r\nabc";
    let response = gateway.client().call(request);
    assert_eq!(response.headers.must("content-type"), "application/json");
    let echo = response.json();
    assert_eq!(echo["method"], "POST");
    assert_eq!(echo["uri"], "/a%20b/c?x=1&y=%26");
    assert_eq!(echo["version"], "HTTP/1.1");
    assert_eq!(echo["headers"]["x-one"], json!(["1", "2"]));
    assert_eq!(echo["body_bytes"], 3);
}

#[test]
fn a_prefix_is_stripped() {
    let routes = "[[routes]]\npath = \"/v1/*\"\nupstream = \"up\"\nstrip_prefix = \"/v1\"\n
        [[routes]]\npath = \"/keep/*\"\nupstream = \"up\"\n";
    let gateway = Gateway::start(&format!("{ECHO}{routes}"));
    let mut client = gateway.client();
    for (asked, forwarded) in [
        ("/v1/users?x=1", "/users?x=1"),
        ("/v1/", "/"),
        ("/v1/v1/a", "/v1/a"),
        ("/%761/users", "/users"),
        ("/v1/a%20b/%C3%A9", "/a%20b/%C3%A9"),
        ("/keep/users", "/keep/users"),
    ] {
        assert_eq!(echoed_uri(&mut client, asked), forwarded, "{asked}");
    }
}

#[test]
fn the_upstream_gets_its_own_host_or_the_clients() {
    let up = Upstream::start(|_| reply(200, ""));
    let routes = "[[routes]]\npath = \"/own\"\nupstream = \"up\"\n
        [[routes]]\npath = \"/kept\"\nupstream = \"up\"\npreserve_host = true\n";
    let gateway = Gateway::start(&format!("{}{routes}", up.section()));
    let mut client = gateway.client();
    client.get("/own");
    client.get("/kept");
    let hosts: Vec<_> = up.received().iter().map(|request| request.headers.joined("host")).collect();
    assert_eq!(hosts, [up.address().to_string(), "test.example".to_owned()]);
}

#[test]
fn a_route_can_have_a_fixed_response() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 418, body = \"h\u{e9}llo\\n\" }\n");
    let mut client = gateway.client();
    let response = client.get("/x");
    assert_eq!((response.status, response.text()), (418, "h\u{e9}llo\n"));
    let head = client.call("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.headers.must("content-length"), head.body.len()), (418, "7", 0));
    // An unread body is not read as a request.
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response(false).status, 418);
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let rest = String::from_utf8(client.closed()).unwrap();
    assert!(rest.matches("HTTP/1.1 418").count() <= 1, "{rest}");
}

#[test]
fn a_host_has_no_characters_that_a_server_may_decode() {
    let up = Upstream::start(|_| reply(200, "default"));
    let route = "[[routes]]\nhost = \"api.test\"\npath = \"/*\"\nrespond = { status = 204 }\n";
    let gateway = Gateway::start(&format!("{}{route}", up.everything()));
    assert_eq!(gateway.client().call("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").status, 204);
    for host in ["api%2etest", "api%2Etest:80", "%61pi.test", "api.test!", "api'test", "a,api.test", "api=test"] {
        for target in [String::from("/"), format!("http://{host}/")] {
            let response = gateway.client().call(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(response.status, 400, "{host} {target}");
        }
        let uri = format!("http://{host}/").parse::<http::Uri>();
        // The library of this client sends no others.
        if let Ok(uri) = uri {
            let answers = over_http2(gateway.http, vec![http::Request::get(uri).body(()).unwrap()]);
            assert_eq!(answers[0].0, 400, "{host} in HTTP/2");
        }
    }
    assert!(up.received().is_empty());
}
