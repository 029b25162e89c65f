//! Where a request comes from and goes to, as the upstream is told: only the gateway and proxies that are trusted say it.

use crate::harness::{Gateway, Headers, Upstream, reply};

/// What libraries and servers look for a client's address or for the "real" target in.
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

/// The names of the fields with this value in them.
fn saying(headers: &Headers, value: &str) -> Vec<String> {
    let says = |found: &[u8]| String::from_utf8_lossy(found).contains(value);
    headers.0.iter().filter(|(_, found)| says(found)).map(|(name, _)| name.clone()).collect()
}

/// What the upstream sees of a GET with these fields.
fn seen(server: &str, fields: &str) -> Headers {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::with_server(server, &up.everything());
    assert_eq!(gateway.client().get_with("/", fields).status, 200);
    up.received().remove(0).headers
}

const TRUSTING: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

#[test]
fn strangers_do_not_say_who_they_are() {
    let headers = seen("", &forged("6.6.6.6"));
    for (name, value) in [("x-real-ip", "127.0.0.1"), ("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http")] {
        assert_eq!(headers.joined(name), value, "{headers:?}");
    }
    assert_eq!(headers.joined("x-forwarded-host"), "test.example", "{headers:?}");
    assert_eq!(saying(&headers, "6.6.6.6"), [""; 0]);
}

#[test]
fn another_spelling_of_what_strangers_must_not_say_is_dropped_too() {
    let spelled = |sign: &str| forged("6.6.6.6").replace('-', sign) + &format!("Content{sign}Length: 6.6.6.6\r\n");
    for sign in ["_", ".", "~"] {
        let headers = seen("", &spelled(sign));
        assert_eq!(saying(&headers, "6.6.6.6"), [""; 0], "{sign}");
        // What the gateway writes is not contradicted by anybody.
        let headers = seen(TRUSTING, &spelled(sign));
        for name in ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "content-length"] {
            assert_eq!(headers.get(&name.replace('-', sign)), None, "{headers:?}");
        }
    }
    let headers = seen("", "X_Other: 6.6.6.6\r\nX-Real-Ips: 6.6.6.6\r\n");
    assert_eq!(saying(&headers, "6.6.6.6"), ["x_other", "x-real-ips"]);
}

#[test]
fn connection_takes_nothing_away_that_the_gateway_says() {
    let fields = "Connection: X-Real-IP, x-forwarded-for, x-forwarded-proto, x-forwarded-host, host, via\r\n";
    let headers = seen("", fields);
    for name in ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "host", "via"] {
        assert!(headers.get(name).is_some_and(|value| !value.is_empty()), "{name}: {headers:?}");
    }
}

#[test]
fn trusted_proxies_say_who_the_client_is_and_the_gateway_sums_it_up() {
    let fields = forged("192.0.2.7").replace("x-forwarded-for: 192.0.2.7", "x-forwarded-for: 6.6.6.6, 192.0.2.7");
    let headers = seen(TRUSTING, &fields);
    for name in TOLD {
        let expected = match *name {
            "x-forwarded-for" => "6.6.6.6, 192.0.2.7, 127.0.0.1",
            _ => "192.0.2.7",
        };
        assert_eq!(headers.joined(name), expected, "{name}: {headers:?}");
    }
    // The proxy itself asks, and what it took over from its client is not believed.
    let headers = seen(TRUSTING, "X-Real-IP: 6.6.6.6\r\n");
    assert_eq!(headers.joined("x-real-ip"), "127.0.0.1", "{headers:?}");
}

#[test]
fn trailers_do_not_say_it_either() {
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
fn an_absolute_target_names_the_host_that_is_sent_on() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&(up.everything() + "preserve_host = true\n"));
    let mut client = gateway.client();
    let own = up.address().to_string();
    for (request, host, forwarded_host) in [
        ("GET http://api.example/x HTTP/1.1\r\nHost:\r\n", "api.example", Some("api.example")),
        ("GET http://api.example/x HTTP/1.1\r\nHost: API.example\r\n", "api.example", Some("api.example")),
        ("GET http://api.example:81/x HTTP/1.1\r\nHost: api.example:81\r\n", "api.example:81", Some("api.example:81")),
        ("GET /x HTTP/1.1\r\nHost: b.example\r\n", "b.example", Some("b.example")),
        // Nobody has named one.
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
        // Whatever follows is meant for the other end of a tunnel that is not there.
        assert_eq!(response.headers.must("connection"), "close");
        assert_eq!(client.closed(), b"");
    }
}
