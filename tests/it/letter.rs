//! The letter of the standards about heads: statuses, reasons, lengths, hops and trailers.

use bytes::Bytes;
use h2::server::Builder;
use http::{HeaderMap, Request, Response};

use crate::harness::http2_server::{Http2Server, read};
use crate::harness::{Gateway, Upstream, over_http2, reply};

fn status_line(gateway: &Gateway, request: &str) -> String {
    let mut client = gateway.client();
    client.send(request);
    client.wire.first_line().unwrap().unwrap()
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn reasons_of_servers_pass() {
    for (sent, got) in [
        ("401 Token expired", "401 Token expired"),
        ("999 Request denied", "999 Request denied"),
        ("999 ", "999 "),
        ("999", "999 "),
        ("200 ", "200 OK"),
        ("404 Not Found", "404 Not Found"),
        ("200 Tr\u{e8}s bien", "200 Tr\u{e8}s bien"),
    ] {
        let up = Upstream::start(move |_| format!("HTTP/1.1 {sent}\r\nContent-Length: 0\r\n\r\n").into_bytes());
        let gateway = Gateway::start(&up.everything());
        let line = status_line(&gateway, GET);
        assert!(line == format!("HTTP/1.1 {got}") || !got.is_ascii(), "{sent:?}: {line:?}");
    }
    let up = Http2Server::start(None, Builder::new(), |_, mut respond| async move {
        let response = Response::builder().status(999).body(()).unwrap();
        let _ = respond.send_response(response, true);
    });
    assert_eq!(status_line(&Gateway::start(&up.everything("http", "")), GET), "HTTP/1.1 999 ");
    let own = "[[routes]]\npath = \"/*\"\nrespond = { status = 299 }\n";
    assert_eq!(status_line(&Gateway::start(own), GET), "HTTP/1.1 299 ");
}

#[test]
fn a_target_that_is_too_long_is_414() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    for length in [70_000, 300_000] {
        let request = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length));
        assert!(status_line(&gateway, &request).starts_with("HTTP/1.1 414 "), "{length}");
    }
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    assert!(status_line(&gateway, &request).starts_with("HTTP/1.1 431 "));
}

#[test]
fn requests_for_this_hop_are_answered_here() {
    let up = Upstream::start(|request| reply(200, request.headers.get("max-forwards").unwrap_or("none")));
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    for (method, hops, got) in [("OPTIONS", "2", "1"), ("OPTIONS", "x", "x"), ("TRACE", "1", "0"), ("GET", "0", "0")] {
        let request = format!("{method} /p HTTP/1.1\r\nHost: a\r\nMax-Forwards: {hops}\r\n\r\n");
        assert_eq!(client.call(request).text(), got, "{method} {hops}");
    }
    let asked = up.received().len();
    assert_eq!(client.call("OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n").status, 204);
    let trace = "TRACE /p HTTP/1.1\r\nHost: a\r\nX-Mine: 1\r\nCookie: secret\r\nAuthorization: secret\r\nMax-Forwards: 0\r\n\r\n";
    let traced = client.call(trace);
    assert_eq!((traced.status, traced.headers.must("content-type")), (200, "message/http"));
    assert_eq!(traced.text(), "TRACE /p HTTP/1.1\r\nhost: a\r\nx-mine: 1\r\nmax-forwards: 0\r\n\r\n");
    assert_eq!(up.received().len(), asked, "no server was asked");
}

#[test]
fn servers_learn_that_a_request_with_a_meaning_for_a_body_has_none() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    for method in ["GET", "DELETE", "POST", "PUT", "PATCH"] {
        let request = Request::builder().method(method).uri("http://test.example/").body(()).unwrap();
        assert_eq!(over_http2(gateway.http, vec![request])[0].0, 200);
        assert_eq!(gateway.client().call(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")).status, 200);
    }
    let lengths: Vec<_> = up.received().iter().map(|request| request.headers.get("content-length").is_some()).collect();
    let expected = [false, false, true, true, true].map(|is_stated| [is_stated; 2]).concat();
    assert_eq!(lengths, expected);
}

#[test]
fn te_belongs_to_the_connection_to_the_server() {
    let up = Upstream::start(|_| reply(200, ""));
    let gateway = Gateway::start(&up.everything());
    for (fields, te, connection) in [
        ("TE: trailers\r\nConnection: TE\r\n", Some("trailers"), Some("te")),
        ("TE: gzip\r\n", None, None),
        ("", None, None),
    ] {
        gateway.client().get_with("/", fields);
        let received = up.received().pop().unwrap();
        assert_eq!((received.headers.get("te"), received.headers.get("connection")), (te, connection), "{fields}");
    }
}

#[test]
fn more_than_100_fields_are_431_in_each_protocol() {
    let gateway = Gateway::start("[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n");
    for (fields, status) in [(99, 200), (100, 431)] {
        let lines = "x-field: 1\r\n".repeat(fields);
        assert_eq!(gateway.client().call(format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).status, status);
    }
    for (fields, cookies, status) in [(100, 0, 200), (101, 0, 431), (700, 0, 431), (10, 150, 200)] {
        let mut request = Request::builder().uri("http://test.example/");
        for field in 0..fields {
            request = request.header(format!("x-{field}"), "1");
        }
        for cookie in 0..cookies {
            request = request.header("cookie", format!("c{cookie}=1"));
        }
        let answers = over_http2(gateway.http, vec![request.body(()).unwrap()]);
        assert_eq!(answers[0].0, status, "{fields} fields, {cookies} cookies");
    }
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(3.0));
}

#[test]
fn no_trailer_brings_back_what_a_route_hides_or_what_the_gateway_writes() {
    const TRAILERS: [&str; 5] = ["x-secret", "x-set", "ratelimit", "x-request-id", "x-sum"];
    let sent = TRAILERS.map(|name| format!("{name}: upstream\r\n")).concat();
    let http1 = Upstream::start(move |_| {
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n1\r\na\r\n0\r\n{sent}\r\n")
            .into_bytes()
    });
    let http2 = Http2Server::start(None, Builder::new(), |_, mut respond| async move {
        let mut sender = respond.send_response(Response::new(()), false).unwrap();
        let _ = sender.send_data(Bytes::from_static(b"a"), false);
        let trailers = TRAILERS.iter().map(|name| (name.parse().unwrap(), "upstream".parse().unwrap()));
        let _ = sender.send_trailers(trailers.collect());
    });
    for config in [http1.everything(), http2.everything("http", "")] {
        let hides = "response_headers = { remove = [\"X-Secret\"], set = { x-set = \"a\" } }";
        let gateway = Gateway::start(&config.replace("upstream = \"up\"", &format!("upstream = \"up\"\n{hides}")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let got: HeaderMap = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let request = Request::get("http://test.example/").body(()).unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            read(response.await.unwrap().into_body()).await.unwrap().1.unwrap()
        });
        assert_eq!(got.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
    }
}

#[test]
fn a_websocket_that_a_trusted_proxy_calls_wss_was_sent_over_tls() {
    let route = "[[routes]]\npath = \"/*\"\nscheme = \"http\"\nredirect = { to = \"https://{host}{path}\", status = 308 }\n\
                 [[routes]]\npath = \"/*\"\nscheme = \"https\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.1\"]", route);
    for (field, status) in [
        ("X-Forwarded-Proto: wss", 200),
        ("X-Forwarded-Proto: WSS", 200),
        ("X-Forwarded-Proto: ws", 308),
        ("Forwarded: for=1.1.1.1;proto=wss", 200),
        ("Forwarded: for=1.1.1.1;proto=ws", 308),
    ] {
        assert_eq!(gateway.client().get_with("/", format!("{field}\r\n")).status, status, "{field}");
    }
}
