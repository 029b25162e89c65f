//! The listener for other proxies: its TLS, its bounds, and how reloads open and close it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rustix::process::Signal;

use crate::harness::{Authority, Client, Gateway, TlsClient, align, over_http2, run, until};

const ROUTE: &str = "[limits.l]\nkey = \"global\"\nrates = [\"100/d\"]\n[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\n\
                     respond = { status = 200 }\n";
const QUESTION: &str = "GET / HTTP/1.1\r\nHost: a\r\nX-Original-URI: /\r\n\r\n";

fn file(decisions: &str) -> String {
    format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{decisions}\n{ROUTE}")
}

/// A proxy that opens a connection during a burst does not know a bound yet, and lets pass what gets no answer.
#[test]
fn every_question_of_a_burst_is_answered_on_a_new_connection() {
    let gateway = Gateway::with_server("listen = []\nhttp2 = { max_streams = 10 }", &file(""));
    assert_burst_is_answered(gateway.decisions());
}

#[test]
fn every_request_of_a_burst_of_a_trusted_proxy_is_answered_on_a_new_connection() {
    let server = "trusted_proxies = [\"127.0.0.1\"]\nhttp2 = { max_streams = 10 }";
    assert_burst_is_answered(Gateway::with_server(server, ROUTE).http);
}

/// Sends more requests than `max_streams` before the gateway can say how many there may be.
#[track_caller]
fn assert_burst_is_answered(address: SocketAddr) {
    const ASKED: usize = 2_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let statuses = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        let handshake = builder.initial_max_send_streams(ASKED).handshake::<_, Bytes>(stream);
        let (mut client, connection) = handshake.await.unwrap();
        let responses: Vec<_> = (0..ASKED)
            .map(|_| {
                let question = Request::get("http://a/").header("x-original-uri", "/").body(()).unwrap();
                client.send_request(question, true).unwrap().0
            })
            .collect();
        tokio::spawn(connection);
        let mut statuses = BTreeMap::<_, usize>::new();
        for response in responses {
            *statuses.entry(response.await.unwrap().status().as_u16()).or_default() += 1;
        }
        statuses
    });
    assert_eq!(statuses, [(200, 100), (429, ASKED - 100)].into());
}

#[test]
fn it_has_the_bounds_of_the_listeners_for_clients() {
    let impatient = Gateway::with_server("listen = []\nheader_timeout = \"3s\"", &file(""));
    let mut slow = Client::connect(impatient.decisions());
    slow.send("GET / HTTP/1.1\r\nHost: a\r\nX-Original-");
    assert_eq!(slow.response(false).status, 408);
    let line = impatient.wait_log("a bad head", |line| line["reason"] == "header_timeout");
    assert_eq!(line["via"], "http");
    let gateway = Gateway::with_server("listen = []\nmax_header_size = \"8KiB\"", &file(""));
    let address = gateway.decisions();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Original-URI: /{}\r\n\r\n", "a".repeat(9000));
    assert_eq!(Client::connect(address).call(long).status, 431);
    assert_eq!(Client::connect(address).call("nonsense\r\n\r\n").status, 400);
    let twice = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Original-URI: /\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{QUESTION}"
    );
    let mut smuggler = Client::connect(address);
    assert_eq!(smuggler.call(twice).status, 400);
    assert!(smuggler.closed().is_empty(), "what follows is no question");
    let question = Request::get("http://a/").header("x-original-uri", "/").body(()).unwrap();
    assert_eq!(over_http2(address, vec![question])[0].0, 200);
}

#[test]
fn proxies_do_not_speak_the_proxy_protocol() {
    let gateway = Gateway::with_server("proxy_protocol = true", &file(""));
    assert_eq!(Client::connect(gateway.decisions()).call(QUESTION).status, 200);
    assert!(gateway.client().try_get().is_none());
}

#[test]
fn clients_cannot_take_the_places_of_proxies_that_ask() {
    let server = "max_connections = 8\nheader_timeout = \"60s\"\nworkers = 2";
    let gateway = Gateway::with_server(server, &file(""));
    let unfinished = || {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: ");
        client
    };
    let mut clients: Vec<_> = (0..8).map(|_| unfinished()).collect();
    until("they have all places", Duration::from_secs(20), || gateway.metric("gateway_connections") == Some(8.0));
    clients.extend((0..8).map(|_| unfinished()));
    // More than there are places: idle ones make room, but not those of clients.
    for _ in 0..20 {
        assert_eq!(Client::connect(gateway.decisions()).call(QUESTION).status, 200);
    }
    let nobody_asks = || gateway.metric("gateway_decision_connections") == Some(0.0);
    until("those are closed", Duration::from_secs(20), nobody_asks);
    let mut askers: Vec<_> = (0..8).map(|_| Client::connect(gateway.decisions())).collect();
    assert_eq!(askers.iter_mut().map(|asker| asker.call(QUESTION).status).collect::<Vec<_>>(), [200; 8]);
    assert_eq!(Client::connect(gateway.decisions()).call(QUESTION).status, 200);
    let open = |name: &str| gateway.metric(name).unwrap();
    assert!(open("gateway_connections") <= 8.0 && open("gateway_decision_connections") <= 8.0);
    assert_eq!(gateway.metric("gateway_decision_connections_max"), Some(8.0));
    clients[0].send("a\r\n\r\n");
    assert_eq!(clients[0].response(false).status, 200, "nobody has ended it");
}

#[test]
fn a_reload_opens_and_closes_it() {
    let gateway = Gateway::start(ROUTE);
    gateway.reload_and_wait("", &file(""));
    let address = gateway.decisions();
    let mut asker = Client::connect(address);
    assert_eq!(asker.call(QUESTION).status, 200);
    // Without a target it is no request for the routes.
    assert_eq!(asker.get("/").status, 400);
    assert_eq!(gateway.client().get("/").status, 200);
    gateway.reload_and_wait("", &file("refused_status = 403"));
    assert_eq!(asker.call(QUESTION).status, 200, "its connections stay");
    gateway.reload_and_wait("", ROUTE);
    assert!(asker.closed().is_empty());
    until("nobody listens", Duration::from_secs(10), || TcpStream::connect(address).is_err());
    assert_eq!(gateway.client().get("/").status, 200);
}

#[test]
fn a_drain_answers_the_question_that_waits() {
    let delayed = "[limits.l]\nkey = \"global\"\nrates = [\"1/6s\"]\non_limit = \"delay\"\nmax_delay = \"20s\"\n[[routes]]\n\
                   path = \"/*\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n";
    let decisions = "[decisions]\nlisten = \"127.0.0.1:0\"\n";
    let mut gateway = Gateway::with_server("listen = []", &format!("{decisions}{delayed}"));
    align(Duration::from_secs(6), Duration::from_secs(4));
    let mut asker = Client::connect(gateway.decisions());
    assert_eq!(asker.call(QUESTION).status, 200);
    asker.send(QUESTION);
    until("it is held", Duration::from_secs(10), || gateway.metric("gateway_requests_held") == Some(1.0));
    gateway.signal(Signal::TERM);
    assert_eq!(asker.response(false).status, 200);
    assert!(asker.closed().is_empty());
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn check_warns_where_strangers_can_ask() {
    let authority = Authority::new();
    let issued = authority.issue("decide", "decide", &["decide.test"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let with_ca = format!("tls = {{ certificates = [{}], client_ca = {:?}", issued.toml(), authority.ca());
    let without = format!("tls = {{ certificates = [{}] }}", issued.toml());
    let (required, optional) = (format!("{with_ca} }}"), format!("{with_ca}, client_auth = \"optional\" }}"));
    for (listen, tls, warns) in [
        ("0.0.0.0:9902", "", true),
        ("[2001:db8::1]:9902", &*without, true),
        ("192.0.2.1:9902", &*optional, true),
        ("0.0.0.0:9902", &*required, false),
        ("10.0.0.1:9902", "", false),
    ] {
        fs::write(&path, format!("[decisions]\nlisten = {listen:?}\n{tls}\n{ROUTE}")).unwrap();
        let output = run(&["check", "--config", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        let warning = format!("warning: whoever can reach {listen} can use up the limits of others\n");
        assert_eq!(
            (output.status.code(), said.starts_with(&warning), said.is_empty()),
            (Some(0), warns, !warns),
            "{said}"
        );
    }
}

#[test]
fn its_certificates_and_authorities_are_its_own() {
    let (site, inside) = (Authority::new(), Authority::new());
    let of_clients = site.issue("site", "site", &["site.test"]);
    let of_askers = inside.issue("decide", "decide", &["decide.test"]);
    let asker = inside.issue("asker", "asker", &["asker.test"]);
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", of_clients.toml());
    let decisions = format!("tls = {{ certificates = [{}], client_ca = {:?} }}", of_askers.toml(), inside.ca());
    let by_certificate = "[limits.l]\nkey = \"client-cert\"\nrates = [\"100/d\"]\nmissing = \"reject\"\n[[routes]]\n\
                          path = \"/cert\"\nlimits = [\"l\"]\nrespond = { status = 200 }\n\
                          [[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
    let rest = format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{decisions}\n{by_certificate}");
    let gateway = Gateway::with_server(&server, &rest);
    let (clients, askers) = (gateway.https(), gateway.decisions());
    let fields = |uri: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nX-Original-URI: {uri}\r\n\r\n");
    let ask = |address, authority: &Authority, own, name: &str, uri: &str| {
        let mut client = TlsClient::connect(address, &authority.client(own), name).ok()?;
        client.stream.write_all(fields(uri).as_bytes()).ok()?;
        Some(client.response().ok()?.0)
    };
    assert!(ask(clients, &site, None, "site.test", "/").is_some_and(|head| head.starts_with("HTTP/1.1 200")));
    assert!(
        ask(askers, &inside, Some(&asker), "decide.test", "/").is_some_and(|head| head.starts_with("HTTP/1.1 200"))
    );
    assert_eq!(ask(askers, &inside, None, "decide.test", "/"), None, "it has no certificate");
    assert_eq!(ask(askers, &site, None, "site.test", "/"), None, "that is the other listener's certificate");
    // The certificate is that of the proxy, not of its client.
    let refused = ask(askers, &inside, Some(&asker), "decide.test", "/cert").unwrap();
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    let expiries = gateway.admin("/metrics");
    assert_eq!(expiries.text().matches("gateway_tls_certificate_expiry_timestamp_seconds{").count(), 2);
    // A new certificate is used without a reload.
    let next = inside.issue("next", "next", &["next.test"]);
    fs::rename(&next.cert, &of_askers.cert).unwrap();
    fs::rename(&next.key, &of_askers.key).unwrap();
    gateway.wait_message("the certificates were read again");
    assert!(ask(askers, &inside, Some(&asker), "next.test", "/").is_some_and(|head| head.starts_with("HTTP/1.1 200")));
}
