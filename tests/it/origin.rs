//! What the upstream is told about the client and the target: only the gateway and trusted proxies decide that.

use crate::harness::{Gateway, Headers, Upstream, reply};

/// Headers from which libraries and servers read a client's address or the "real" target.
const TOLD: &[&str] = &[
    "x-real-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded-port",
    "x-forwarded-server",
    "x-forwarded-prefix",
    "x-forwarded-ssl",
    "x-forwarded-user",
    "x-original-url",
    "x-rewrite-url",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
];

/// All of them with this value.
fn forged(value: &str) -> String {
    TOLD.iter().flat_map(|name| [name, ": ", value, "\r\n"]).collect()
}

/// The names of the fields that contain this value.
fn saying(headers: &Headers, value: &str) -> Vec<String> {
    let says = |found: &[u8]| String::from_utf8_lossy(found).contains(value);
    headers.0.iter().filter(|(_, found)| says(found)).map(|(name, _)| name.clone()).collect()
}

/// What the upstream gets for a GET with these fields.
fn seen(server: &str, fields: &str) -> Headers {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server(server, &up.everything());
    assert_eq!(gateway.client().get_with("/", fields).status, 200);
    up.received().remove(0).headers
}

const TRUSTING: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

#[test]
fn clients_cannot_set_their_address() {
    let headers = seen("", &forged("6.6.6.6"));
    for (name, value) in [("x-real-ip", "127.0.0.1"), ("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http")] {
        assert_eq!(headers.joined(name), value, "{headers:?}");
    }
    assert_eq!(headers.joined("x-forwarded-host"), "test.example", "{headers:?}");
    assert_eq!(saying(&headers, "6.6.6.6"), [""; 0]);
}

#[test]
fn other_spellings_of_such_headers_are_dropped_too() {
    let spelled = |sign: &str| forged("6.6.6.6").replace('-', sign) + &format!("Content{sign}Length: 6.6.6.6\r\n");
    for sign in ["_", ".", "~"] {
        let headers = seen("", &spelled(sign));
        assert_eq!(saying(&headers, "6.6.6.6"), [""; 0], "{sign}");
        // No header contradicts what the gateway writes.
        let headers = seen(TRUSTING, &spelled(sign));
        for name in ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "content-length"] {
            assert_eq!(headers.get(&name.replace('-', sign)), None, "{headers:?}");
        }
    }
    let headers = seen("", "X_Other: 6.6.6.6\r\nX-Real-Ips: 6.6.6.6\r\n");
    assert_eq!(saying(&headers, "6.6.6.6"), ["x_other", "x-real-ips"]);
}

#[test]
fn connection_removes_nothing_that_the_gateway_sends() {
    let fields = "Connection: X-Real-IP, x-forwarded-for, x-forwarded-proto, x-forwarded-host, host, via\r\n";
    let headers = seen("", fields);
    for name in ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "host", "via"] {
        assert!(headers.get(name).is_some_and(|value| !value.is_empty()), "{name}: {headers:?}");
    }
}

#[test]
fn trusted_proxies_set_the_address_and_the_gateway_adds_their_own() {
    let fields = forged("192.0.2.7").replace("x-forwarded-for: 192.0.2.7", "x-forwarded-for: 6.6.6.6, 192.0.2.7");
    let fields = fields.replace("forwarded: 192.0.2.7", "forwarded: for=192.0.2.7");
    let headers = seen(TRUSTING, &fields);
    for name in TOLD {
        let expected = match *name {
            "x-forwarded-for" => "6.6.6.6, 192.0.2.7, 127.0.0.1",
            "forwarded" => "for=192.0.2.7",
            _ => "192.0.2.7",
        };
        assert_eq!(headers.joined(name), expected, "{name}: {headers:?}");
    }
    // The proxy itself is the client, and headers that it has forwarded from its own client are not used.
    let headers = seen(TRUSTING, "X-Real-IP: 6.6.6.6\r\n");
    assert_eq!(headers.joined("x-real-ip"), "127.0.0.1", "{headers:?}");
}

#[test]
fn trailers_cannot_set_it_either() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server(TRUSTING, &up.everything());
    let trailers = forged("6.6.6.6") + &forged("6.6.6.6").replace('-', "_");
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n";
    assert_eq!(gateway.client().call(format!("{request}{trailers}X-Sum: 6\r\n\r\n")).status, 200);
    let trailers = &up.received()[0].trailers;
    assert_eq!(trailers.get("x-sum"), Some("6"));
    assert_eq!(saying(trailers, "6.6.6.6"), [""; 0]);
}

#[test]
fn the_upstream_gets_the_host_of_an_absolute_target() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&(up.everything() + "preserve_host = true\n"));
    let mut client = gateway.client();
    let own = up.address().to_string();
    for (request, host, forwarded_host) in [
        ("GET http://api.example/x HTTP/1.1\r\nHost:\r\n", "api.example", Some("api.example")),
        ("GET http://api.example/x HTTP/1.1\r\nHost: API.example\r\n", "api.example", Some("api.example")),
        ("GET http://api.example:81/x HTTP/1.1\r\nHost: api.example:81\r\n", "api.example:81", Some("api.example:81")),
        ("GET /x HTTP/1.1\r\nHost: b.example\r\n", "b.example", Some("b.example")),
        // The request has no host.
        ("GET /x HTTP/1.1\r\nHost:\r\n", own.as_str(), None),
    ] {
        assert_eq!(client.call(format!("{request}\r\n")).status, 200, "{request}");
        let received = up.received().pop().unwrap();
        assert_eq!((received.target.as_str(), received.headers.joined("host").as_str()), ("/x", host), "{request}");
        assert_eq!(received.headers.get("x-forwarded-host"), forwarded_host, "{request}");
    }
}

#[test]
fn connect_is_not_implemented() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    for start in ["CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n", "CONNECT a:80 HTTP/1.1\r\nHost: b\r\n"] {
        let mut client = gateway.client();
        let response = client.call(format!("{start}\r\n"));
        response.expect_problem(501);
        // The following bytes are for the other end of a tunnel that does not exist.
        assert_eq!(response.headers.must("connection"), "close");
        assert_eq!(client.closed(), b"");
    }
}
