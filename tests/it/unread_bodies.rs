//! The gateway responds without reading the body of a request: the client can use its connection again, or learns that
//! it cannot.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Client, Gateway, Response, Upstream, until};

const REFUSED: &str = "[limits.l]\nkey = \"global\"\nrates = [\"1/h\"]\n[[routes]]\npath = \"/post\"\nlimits = [\"l\"]\n\
                       respond = { status = 200 }\n[[routes]]\npath = \"/waits\"\nlimits = [\"l\"]\n\
                       respond = { status = 200 }\n[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

fn gateway() -> Gateway {
    let gateway = Gateway::start(REFUSED);
    assert_eq!(gateway.client().get("/post").status, 200);
    gateway
}

fn head(fields: &str) -> String {
    format!("POST /post HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn goes_on(client: &mut Client, response: &Response) {
    assert_eq!((response.status, response.headers.get("connection")), (429, None));
    assert_eq!(client.get("/").status, 200);
}

fn ends(client: &mut Client, response: &Response) {
    assert_eq!(response.headers.must("connection"), "close");
    assert!(client.closed().is_empty());
}

/// Asks again on a new connection if this took long: the gateway waits for the rest of a body for a second, and a busy
/// machine may send it later.
fn in_time<T>(gateway: &Gateway, client: &mut Client, ask: impl Fn(&mut Client) -> Result<T>) -> T {
    for _ in 0..4 {
        let begun = Instant::now();
        let answer = ask(client);
        if begun.elapsed() < Duration::from_millis(500) {
            return answer.unwrap();
        }
        *client = gateway.client();
    }
    ask(client).unwrap()
}

#[test]
fn a_connection_goes_on_after_a_small_body() {
    let gateway = gateway();
    let large = "x".repeat(64 << 10);
    for (fields, body) in [
        ("Content-Length: 5\r\n", "hello"),
        ("Content-Length: 65536\r\n", &*large),
        ("Transfer-Encoding: chunked\r\n", "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"),
    ] {
        let mut client = gateway.client();
        // In one piece, in two, and in many.
        let response = client.call(head(fields) + body);
        goes_on(&mut client, &response);
        let response = in_time(&gateway, &mut client, |client| {
            client.wire.write(head(fields).as_bytes())?;
            std::thread::sleep(Duration::from_millis(50));
            client.wire.write(body.as_bytes())?;
            client.try_response(false)
        });
        goes_on(&mut client, &response);
        let (first, rest) = body.split_at(4);
        let response = in_time(&gateway, &mut client, |client| {
            client.wire.write(head(fields).as_bytes())?;
            first.split_inclusive(|_| true).try_for_each(|piece| client.wire.write(piece.as_bytes()))?;
            client.wire.write(rest.as_bytes())?;
            client.try_response(false)
        });
        goes_on(&mut client, &response);
    }
}

#[test]
fn requests_behind_a_body_that_is_not_read_are_served() {
    let gateway = gateway();
    let behind = "helloGET /a HTTP/1.1\r\nHost: a\r\n\r\nPOST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab";
    let statuses = in_time(&gateway, &mut gateway.client(), |client| {
        client.wire.write(head("Content-Length: 5\r\n").as_bytes())?;
        client.wire.write(behind.as_bytes())?;
        let first = [client.try_response(false)?.status, client.try_response(false)?.status];
        client.wire.write(b"cGET /b HTTP/1.1\r\nHost: a\r\n\r\n")?;
        Ok([first, [client.try_response(false)?.status, client.try_response(false)?.status]])
    });
    assert_eq!(statuses, [[429, 200]; 2]);
}

#[test]
fn a_client_whose_body_is_not_read_is_told_that_the_connection_ends() {
    let gateway = gateway();
    let refused = || {
        let log = gateway.log().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let paths = log.filter(|line| line["status"] == 429).map(|line| line["path"].as_str().unwrap().to_owned());
        paths.collect::<Vec<_>>()
    };
    for (fields, body) in [
        // Longer than what the gateway reads.
        ("Content-Length: 65537\r\n", String::new()),
        ("Transfer-Encoding: chunked\r\n", format!("10001\r\n{}", "x".repeat(65_537))),
        // The client waits until the gateway asks for its body.
        ("Content-Length: 5\r\nExpect: 100-continue\r\n", String::new()),
    ] {
        for round in 0..5 {
            let logged = refused().len();
            // The response to this one waits a second for a body that does not come.
            let (mut waiting, mut client) = (gateway.client(), gateway.client());
            let begun = Instant::now();
            waiting.send(head("Content-Length: 5\r\n").replace("/post", "/waits"));
            client.send(head(fields) + &body);
            let is_sent_in_time = begun.elapsed() < Duration::from_millis(500);
            let response = client.response(false);
            assert_eq!(response.status, 429, "{fields}");
            assert_eq!(waiting.response(false).status, 429, "{fields}");
            // Without a stall of the machine, this takes a second whichever comes first.
            let is_in_time = is_sent_in_time && begun.elapsed() < Duration::from_millis(1_500);
            ends(&mut client, &response);
            until("both are logged", Duration::from_secs(10), || refused().len() == logged + 2);
            if is_in_time || round == 4 {
                assert_eq!(refused()[logged..], ["/post", "/waits"], "{fields}: it waits for nothing");
                break;
            }
        }
    }
}

#[test]
fn nothing_waits_long_for_a_body_that_does_not_come() {
    let gateway = gateway();
    for (fields, body) in [
        ("Content-Length: 5\r\n", ""),
        ("Content-Length: 5\r\n", "hell"),
        ("Transfer-Encoding: chunked\r\n", ""),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n"),
    ] {
        let mut client = gateway.client();
        let begun = Instant::now();
        let response = client.call(head(fields) + body);
        assert_eq!(response.status, 429, "{fields}{body}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{fields}{body}");
        ends(&mut client, &response);
    }
}

#[test]
fn a_body_for_an_upstream_that_is_away_is_no_exception() {
    let away = "[upstreams.up]\nservers = [\"http://127.0.0.1:1\"]\n[[routes]]\npath = \"/post\"\nupstream = \"up\"\n\
                [[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(away);
    let mut client = gateway.client();
    let response = client.call(head("Content-Length: 5\r\n") + "hello");
    assert_eq!((response.status, response.headers.get("connection")), (502, None));
    assert_eq!(client.get("/").status, 200);
    let response = client.call(head("Content-Length: 5\r\n") + "hell");
    assert_eq!(response.status, 502);
    ends(&mut client, &response);
}

#[test]
fn a_response_that_comes_before_the_body_is_sent_ends_nothing() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        wire.rest();
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    let (response, _) = client.try_head().unwrap();
    assert_eq!((response.status, response.headers.get("connection")), (200, None));
}

#[test]
fn an_upload_that_the_upstream_answers_early_without_a_body_ends_the_connection() {
    for status in ["200 OK\r\nContent-Length: 0", "204 No Content", "413 Content Too Large\r\nContent-Length: 0"] {
        let up = Upstream::raw(move |mut wire, _| {
            let _ = wire.head();
            let _ = wire.write(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes());
            // The connection stays open, as if the rest of the body might be read.
            wire.rest();
        });
        let gateway = Gateway::start(&up.everything());
        for fields in ["Content-Length: 1000000\r\n", "Transfer-Encoding: chunked\r\n"] {
            let mut client = gateway.client();
            client.send(head(fields) + "5\r\nhello\r\n");
            let response = client.response(false);
            ends(&mut client, &response);
        }
    }
}

#[test]
fn a_response_without_a_body_to_an_upload_that_has_come_ends_nothing() {
    let up = Upstream::start(|_| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec());
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for rest in ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"]
    {
        for _ in 0..3 {
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}"));
            let (response, _) = client.try_head().unwrap();
            assert_eq!((response.status, response.headers.get("connection")), (204, None));
        }
    }
}
