//! The route for a method: HEAD takes the routes of GET, a method without a route on the path gets 405, and `"*"` is
//! any method.

use crate::harness::{Client, Gateway, Response};

fn answering(routes: &[&str]) -> String {
    let route =
        |(at, lines): (usize, &&str)| format!("[[routes]]\n{lines}\nrespond = {{ status = 200, body = \"{at}\" }}\n");
    routes.iter().enumerate().map(route).collect()
}

fn ask(client: &mut Client, method: &str, path: &str, fields: &str) -> Response {
    client.call(format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{fields}\r\n"))
}

#[track_caller]
fn taken(client: &mut Client, method: &str, path: &str, fields: &str) -> String {
    let response = ask(client, method, path, fields);
    assert_eq!(response.status, 200, "{response:?}");
    response.text().to_owned()
}

#[test]
fn head_meets_the_limit_of_get() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let routes = "[[routes]]\npath = \"/a\"\nmethods = [\"GET\"]\nlimits = [\"l\"]\nrespond = { status = 200 }\n
        [[routes]]\npath = \"/*\"\nrespond = { status = 204 }\n
        [[routes]]\npath = \"/*\"\nmethods = [\"HEAD\"]\nrespond = { status = 204 }\n";
    let gateway = Gateway::start(&format!("{limit}{routes}"));
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, "GET", "/a", "").status, 200);
    assert_eq!(ask(&mut client, "HEAD", "/a", "").status, 429);
    assert_eq!(ask(&mut client, "POST", "/a", "").status, 204);
}

#[test]
fn a_route_that_names_head_takes_it() {
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/d\"]\n";
    let routes =
        "[[routes]]\npath = \"/a\"\nmethods = [\"GET\", \"POST\"]\nlimits = [\"l\"]\nrespond = { status = 200 }\n
        [[routes]]\npath = \"/a\"\nmethods = [\"HEAD\"]\nrespond = { status = 204 }\n";
    let gateway = Gateway::start(&format!("{limit}{routes}"));
    let mut client = gateway.client();
    assert_eq!([0; 3].map(|_| ask(&mut client, "HEAD", "/a", "").status), [204; 3]);
    assert_eq!(["GET", "POST"].map(|method| ask(&mut client, method, "/a", "").status), [200, 429]);
}

#[test]
fn a_method_that_no_route_of_the_path_takes_is_405() {
    let gateway = Gateway::start(&answering(&[
        "path = \"/a\"\nmethods = [\"GET\"]",
        "path = \"/{any}\"\nmethods = [\"PUT\", \"GET\"]",
        "host = \"b.test\"\npath = \"/a\"\nmethods = [\"PATCH\"]",
        "path = \"/beta\"\nheaders = { x-beta = \"1\" }\nmethods = [\"POST\"]",
        "path = \"/head/*\"\nmethods = [\"HEAD\"]",
    ]));
    let mut client = gateway.client();
    for (method, path, fields, allow) in [
        ("DELETE", "/a", "", "GET, HEAD, PUT"),
        ("OPTIONS", "/a", "", "GET, HEAD, PUT"),
        ("purge", "/a", "", "GET, HEAD, PUT"),
        ("DELETE", "/b", "", "GET, HEAD, PUT"),
        ("DELETE", "/beta", "X-Beta: 1\r\n", "GET, HEAD, POST, PUT"),
        ("GET", "/head/x", "", "HEAD"),
    ] {
        let response = ask(&mut client, method, path, fields);
        response.expect_problem(405);
        assert_eq!(response.headers.must("allow"), allow, "{method} {path}");
    }
    let elsewhere = client.call("DELETE /a HTTP/1.1\r\nHost: b.test\r\n\r\n");
    assert_eq!(elsewhere.headers.must("allow"), "GET, HEAD, PATCH, PUT");
    // Another value of the header would match, but another method would not; and no route has the other path.
    for (method, path) in [("DELETE", "/x/y"), ("GET", "/")] {
        let response = ask(&mut client, method, path, "");
        response.expect_problem(404);
        assert!(response.headers.get("allow").is_none(), "{response:?}");
    }
    let unrouted = gateway.admin("/metrics");
    assert!(unrouted.text().contains("outcome=\"unrouted\""), "{}", unrouted.text());
}

#[test]
fn another_header_is_404_and_not_405() {
    let gateway = Gateway::start(&answering(&["path = \"/a\"\nheaders = { x-beta = \"1\" }\nmethods = [\"POST\"]"]));
    let mut client = gateway.client();
    ask(&mut client, "GET", "/a", "").expect_problem(404);
    ask(&mut client, "POST", "/a", "").expect_problem(404);
    ask(&mut client, "GET", "/a", "X-Beta: 1\r\n").expect_problem(405);
}

#[test]
fn a_star_is_any_method_and_any_value() {
    let gateway = Gateway::start(&answering(&[
        "path = \"/a\"\nmethods = [\"*\"]",
        "path = \"/b\"\nheaders = { x-beta = \"*\" }",
        "path = \"/b\"\nheaders = { x-beta = \"1\" }",
        "path = \"/b\"",
    ]));
    let mut client = gateway.client();
    for method in ["GET", "POST", "BREW"] {
        assert_eq!(taken(&mut client, method, "/a", ""), "0");
    }
    for (fields, route) in [("X-Beta: 2\r\n", "1"), ("X-Beta:\r\n", "1"), ("X-Beta: 1\r\n", "2"), ("", "3")] {
        assert_eq!(taken(&mut client, "GET", "/b", fields), route, "{fields}");
    }
}

#[test]
fn a_final_star_matches_the_path_before_it_too() {
    let gateway =
        Gateway::start(&answering(&["path = \"/v1/*\"", "path = \"/v2/*\"", "path = \"/v2\"", "path = \"/*\""]));
    let mut client = gateway.client();
    for (path, route) in [
        ("/v1", "0"),
        ("/v1/", "0"),
        ("/v1?x", "0"),
        ("/v1/a/b", "0"),
        ("/v10", "3"),
        ("/v2", "2"),
        ("/v2/a", "1"),
        ("/", "3"),
    ] {
        assert_eq!(taken(&mut client, "GET", path, ""), route, "{path}");
    }
}

#[test]
fn a_method_in_another_case_is_refused() {
    let gateway = Gateway::start(&answering(&["path = \"/a\"\nmethods = [\"POST\"]", "path = \"/*\""]));
    for method in ["post", "Post", "pOST", "get", "Head", "connect"] {
        assert_eq!(ask(&mut gateway.client(), method, "/a", "").status, 400, "{method}");
    }
    let mut client = gateway.client();
    assert_eq!(taken(&mut client, "POST", "/a", ""), "0");
    assert_eq!(taken(&mut client, "purge", "/a", ""), "1", "no method of HTTP's");
}
