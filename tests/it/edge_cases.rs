//! Cases that are easy to get wrong, and that no other test covers.

use crate::harness::{Gateway, Response, Upstream, closed_port, limited, reply, run};

const PAGE: &str = include_str!("../../docs/limits.md");

fn remaining(response: &Response) -> &str {
    response.headers.must("ratelimit").split("r=").nth(1).unwrap().split(';').next().unwrap()
}

#[test]
fn an_empty_value_counts_as_a_missing_key() {
    let key = ["header:x-key", "query:k", "cookie:k", "bearer"];
    for key in key {
        let gateway = Gateway::start(&limited(&format!("{key} | client-ip"), "10/d", ""));
        let mut client = gateway.client();
        for (count, (path, fields)) in [
            ("/", ""),
            ("/", "X-Key:\r\n"),
            ("/", "X-Key:  \t \r\n"),
            ("/?k=", ""),
            ("/?k", ""),
            ("/", "Cookie: k=\r\n"),
        ]
        .into_iter()
        .chain([("/", "Authorization: Bearer \r\n")])
        .enumerate()
        {
            let response = client.get_with(path, fields);
            assert_eq!(remaining(&response), (9 - count).to_string(), "{key}: {path} {fields:?}");
        }
    }
}

#[test]
fn the_host_is_compared_before_the_path() {
    let fixed = |host: &str, path: &str, status| {
        format!("[[routes]]\n{host}\npath = \"{path}\"\nrespond = {{ status = {status} }}\n")
    };
    let routes = [fixed("", "/login", 201), fixed("host = \"test.example\"", "/*", 202)];
    let gateway = Gateway::start(&routes.concat());
    let mut client = gateway.client();
    assert_eq!(client.get("/login").status, 202);
    assert_eq!(client.call("GET /login HTTP/1.1\r\nHost: other.example\r\n\r\n").status, 201);
}

#[test]
fn a_request_that_ends_in_502_is_charged() {
    let (_closed, address) = closed_port();
    let upstream = format!("[upstreams.gone]\nservers = [\"http://{address}\"]\n");
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"2/d\"]\n";
    let gateway =
        Gateway::start(&format!("{upstream}{limit}[[routes]]\npath = \"/*\"\nupstream = \"gone\"\nlimits = [\"l\"]\n"));
    let mut client = gateway.client();
    assert_eq!([(); 3].map(|()| client.get("/").status), [502, 502, 429]);
}

#[test]
fn a_request_has_a_hundred_header_fields_at_most() {
    let upstream = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&upstream.everything());
    // Besides Host.
    let fields = |count: usize| (1..count).map(|number| format!("X-{number}: x\r\n")).collect::<Vec<_>>().concat();
    assert_eq!(gateway.client().get_with("/", fields(100)).status, 200);
    assert_eq!(gateway.client().get_with("/", fields(101)).status, 431);
}

#[test]
fn an_upgrade_other_than_websocket_is_forwarded_as_an_ordinary_request() {
    let upstream = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&upstream.everything());
    let response = gateway.client().get_with("/", "Connection: Upgrade\r\nUpgrade: h2c\r\n");
    assert_eq!(response.status, 200);
    let received = upstream.received();
    assert!(received[0].headers.get("upgrade").is_none(), "{received:?}");
}

/// The indented block of the page that begins so, as text.
fn example(first: &str) -> String {
    let from = PAGE.find(&format!("    {first}")).unwrap();
    let block = PAGE[from..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    block.map(|line| line.trim_start().to_owned() + "\n").collect()
}

#[test]
fn both_forms_of_a_file_of_overrides_are_read() {
    for (name, first) in [("overrides.csv", "key,rates"), ("overrides.toml", "[[overrides]]")] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), example(first)).unwrap();
        let file = folder.path().join("gateway.toml");
        let limit = limited("header:x-key", "10/s", &format!("overrides_file = \"{name}\""));
        std::fs::write(&file, limit).unwrap();
        let output = run(&["check", file.to_str().unwrap()]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("500/s and 50000000/month"), "{name}: {out}{err}");
        assert!(out.contains("blocked, answered 403: 1 key"), "{name}: {out}");
    }
}
