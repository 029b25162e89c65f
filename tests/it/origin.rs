//! What the upstream gets to know about the client and the target: only the gateway and trusted proxies decide this.

use crate::harness::http2_server::Http2Server;
use crate::harness::{Gateway, Headers, Upstream, reply, run};

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

fn forged(value: &str) -> String {
    TOLD.iter().flat_map(|name| [name, ": ", value, "\r\n"]).collect()
}

fn saying(headers: &Headers, value: &str) -> Vec<String> {
    let says = |found: &[u8]| String::from_utf8_lossy(found).contains(value);
    headers.0.iter().filter(|(_, found)| says(found)).map(|(name, _)| name.clone()).collect()
}

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
            // Beside X-Forwarded-For, Forwarded may be the client's own.
            "forwarded" => "",
            _ => "192.0.2.7",
        };
        assert_eq!(headers.joined(name), expected, "{name}: {headers:?}");
    }
    // The proxy itself is the client, and headers from its own client are not used.
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

/// The header Forwarded that HTTP/1.1 and HTTP/2 servers get for a GET with these fields.
fn standard(server: &str, fields: &str) -> Option<String> {
    let (up, other) = (Upstream::start(|_| reply(200, "")), Http2Server::echo(None));
    let http2 = format!("[upstreams.h2]\nservers = [\"http://{}\"]\nhttp2 = true\n", other.address);
    let route = "[[routes]]\npath = \"/h2\"\nupstream = \"h2\"\n";
    let gateway = Gateway::with_server(server, &format!("{}{http2}{route}", up.everything()));
    let mut client = gateway.client();
    assert_eq!([client.get_with("/", fields).status, client.get_with("/h2", fields).status], [200, 200]);
    let lines = |headers: Vec<String>| {
        assert!(headers.len() < 2, "{headers:?}");
        headers.into_iter().next()
    };
    let received = up.received().remove(0).headers.0;
    let in_one = received.iter().filter(|(name, _)| name == "forwarded");
    let in_one = lines(in_one.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect());
    let in_two = other.requests()[0].headers.clone();
    let in_two = lines(in_two.get_all("forwarded").iter().map(|value| value.to_str().unwrap().to_owned()).collect());
    assert_eq!(in_one, in_two);
    in_one
}

#[test]
fn forwarded_is_written_if_it_is_wanted() {
    let own = "for=127.0.0.1;host=test.example;proto=http";
    let by_proxy = "Forwarded: for=1.1.1.1;proto=https\r\nForwarded: for=\"[2001:db8::1]\"\r\n";
    // The client may have written what comes before the element that names it.
    let kept = format!("for=\"[2001:db8::1]\", {own}");
    let by_two = "Forwarded: for=1.1.1.1;proto=https\r\nForwarded: for=127.0.0.5\r\n";
    let whole = format!("for=1.1.1.1;proto=https, for=127.0.0.5, {own}");
    let listed = "X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a.test:81\r\n";
    let written = format!("for=\"[2001:db8::1]\";host=\"a.test:81\";proto=https, {own}");
    let wanted = "forwarded = true\n";
    let trusting = &format!("{wanted}{TRUSTING}");
    for (server, fields, expected) in [
        ("", by_proxy, None),
        (wanted, "", Some(own)),
        (wanted, by_proxy, Some(own)),
        (wanted, listed, Some(own)),
        (wanted, "Connection: forwarded\r\n", Some(own)),
        (TRUSTING, "", None),
        (TRUSTING, listed, None),
        (TRUSTING, &format!("{listed}Forwarded: for=1.1.1.1;host=evil.test\r\n"), None),
        (TRUSTING, "Forwarded: for=\"1.1.1.1;host=evil.test\r\n", None),
        (TRUSTING, "Forwarded: for=1.1.1.1\r\n", Some("for=1.1.1.1")),
        (trusting, "", Some(own)),
        (trusting, by_proxy, Some(kept.as_str())),
        (trusting, by_two, Some(&whole)),
        (trusting, listed, Some(written.as_str())),
        // A proxy that writes X-Forwarded-For passes on Forwarded from its client.
        (trusting, &format!("{listed}Forwarded: for=\"[2001:db8::1]\";host=evil.test\r\n"), Some(&written)),
        (trusting, "Forwarded: for=\"1.1.1.1;host=evil.test\r\n", Some(own)),
    ] {
        assert_eq!(standard(server, fields).as_deref(), expected, "{server:?} {fields:?}");
    }
}

#[test]
fn a_reload_turns_forwarded_on_and_a_route_can_remove_it() {
    let up = Upstream::start(|_| reply(200, ""));
    let removed = "[[routes]]\npath = \"/no\"\nupstream = \"up\"\nrequest_headers = { remove = [\"forwarded\"] }\n";
    let rest = up.everything() + removed;
    let gateway = Gateway::start(&rest);
    let mut client = gateway.client();
    let mut is_told = |path| {
        assert_eq!(client.get(path).status, 200);
        up.received().pop().unwrap().headers.get("forwarded").is_some()
    };
    assert!(!is_told("/"));
    gateway.reload("forwarded = true", &rest);
    gateway.wait_message("reloaded");
    assert!(is_told("/") && !is_told("/no"));
}

#[test]
fn check_says_that_forwarded_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let said = |server: &str| {
        let text = format!("[server]\n{server}\n[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n");
        std::fs::write(&file, text).unwrap();
        String::from_utf8(run(&["check", file.to_str().unwrap()]).stdout).unwrap()
    };
    let line = "tells upstreams about the client in X-Forwarded-For, and in Forwarded too\n";
    assert!(said("forwarded = true").contains(line) && !said("").contains(line));
}
