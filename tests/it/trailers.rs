//! Trailers of requests: some servers read them as headers, so they must contain nothing that the gateway has not
//! counted.

use crate::harness::{Gateway, Upstream, reply};

const LIMIT: &str = "[limits.l]\nkey = [\"header:x-api-key\", \"client-ip\"]\nrates = [\"100/h\"]\n\
                     cost = { request_header = \"x-cost\" }\ntier = \"header:x-plan\"\n\
                     [limits.l.tiers.high]\nrates = [\"1000/h\"]\n";

fn passed(limits: &str, fields: &str, trailers: &str) -> Vec<String> {
    let up = Upstream::start(|_| reply(200, "ok"));
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
    let used = if limits.is_empty() { "" } else { "limits = [\"l\"]\n" };
    let gateway = Gateway::start(&format!("{limits}{}{route}{used}", up.section()));
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Api-Key: mine\r\n{fields}\r\n");
    let response = gateway.client().call(format!("{head}2\r\nab\r\n0\r\n{trailers}\r\n"));
    assert_eq!(response.text(), "ok");
    let received = up.received().remove(0);
    assert_eq!((&received.body[..], received.headers.joined("x-api-key")), (&b"ab"[..], "mine".to_owned()));
    received.trailers.0.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_source_of_a_key_is_not_forwarded_as_a_trailer() {
    let trailers =
        "X-Api-Key: other\r\nx_api_key: other\r\nX.Api.Key: other\r\nX-Cost: 0\r\nX-Plan: high\r\nX-Sum: 7\r\n";
    assert_eq!(passed(LIMIT, "", trailers), ["x-sum"]);
    let names = ["x-api-key", "x_api_key", "x.api.key", "x-cost", "x-plan", "x-sum"];
    assert_eq!(passed("", "", trailers), names, "no limit reads them");
}

#[test]
fn a_header_that_is_needed_before_the_content_is_not_forwarded_as_a_trailer() {
    let trailers = "Authorization: Bearer x\r\nCookie: a=b\r\nProxy-Authorization: x\r\nIf-Match: x\r\nRange: bytes=0-\r\n\
                    Content-Type: text/html\r\nContent_Type: text/html\r\nContent-Encoding: gzip\r\nCache-Control: x\r\n\
                    Trailer: x\r\nVia: 1.1 other\r\nExpect: 100-continue\r\nTE: gzip\r\nX-Forwarded-For: 1.1.1.1\r\n\
                    X-Real-IP: 1.1.1.1\r\nETag: x\r\n";
    assert_eq!(passed("", "", trailers), ["etag"]);
}

#[test]
fn a_header_that_connection_names_is_not_forwarded_as_a_trailer() {
    assert_eq!(passed("", "Connection: X-Hop\r\n", "X-Hop: 1\r\nX-Sum: 7\r\n"), ["x-sum"]);
}
