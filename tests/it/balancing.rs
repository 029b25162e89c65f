//! How requests are shared among servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::harness::http2_server::Http2Server;
use crate::harness::{Gateway, Upstream, closed_port, full_queue, reply, until};

const ROUTE: &str = "[[routes]]\npath = \"/{tenant}/*\"\nupstream = \"up\"\n";
const PATIENCE: Duration = Duration::from_secs(10);

fn named(names: [&'static str; 3]) -> [Upstream; 3] {
    names.map(|name| Upstream::start(move |_| reply(200, name)))
}

fn urls(servers: &[Upstream]) -> String {
    servers.iter().map(|server| format!("\"http://{}\"", server.address())).collect::<Vec<_>>().join(", ")
}

fn shares(gateway: &Gateway, requests: usize) -> BTreeMap<String, usize> {
    let mut client = gateway.client();
    let mut shares = BTreeMap::new();
    (0..requests).for_each(|_| *shares.entry(client.get("/a/").text().to_owned()).or_default() += 1);
    shares
}

#[test]
fn weights_hold_with_each_strategy() {
    let servers = named(["a", "b", "c"]);
    let [a, b, c] = [&servers[0], &servers[1], &servers[2]].map(Upstream::address);
    let list =
        format!("\"http://{a}\", {{ url = \"http://{b}\", weight = 2 }}, {{ url = \"http://{c}\", weight = 5 }}");
    for balance in ["round-robin", "least-requests"] {
        let gateway = Gateway::start(&format!("[upstreams.up]\nservers = [{list}]\nbalance = \"{balance}\"\n{ROUTE}"));
        let shares = shares(&gateway, 800);
        for (name, expected) in [("a", 100), ("b", 200), ("c", 500)] {
            assert!(shares[name].abs_diff(expected) < 80, "{balance}: {shares:?}");
        }
    }
}

#[test]
fn requests_with_the_same_key_go_to_the_same_server() {
    let servers = named(["a", "b", "c"]);
    let section = format!("[upstreams.up]\nservers = [{}]\nbalance = \"hash\"\n", urls(&servers));
    let gateway = Gateway::start(&format!("{section}hash_key = \"path:tenant | client-ip\"\n{ROUTE}"));
    let mut client = gateway.client();
    let mut chosen = |tenant: usize| client.get(&format!("/{tenant}/x")).text().to_owned();
    let first: Vec<_> = (0..60).map(&mut chosen).collect();
    assert_eq!((0..60).map(&mut chosen).collect::<Vec<_>>(), first);
    for name in ["a", "b", "c"] {
        let count = first.iter().filter(|chosen| *chosen == name).count();
        assert!((4..=40).contains(&count), "{name}: {count} of 60");
    }
    // Another gateway chooses alike, whatever the order in its file.
    let [a, b, c] = [&servers[2], &servers[0], &servers[1]].map(Upstream::address);
    let list = format!("\"http://{a}\", \"http://{b}\", \"http://{c}\"");
    let section = format!("[upstreams.up]\nservers = [{list}]\nbalance = \"hash\"\nhash_key = \"path:tenant\"\n");
    let other = Gateway::start(&format!("{section}{ROUTE}"));
    let mut client = other.client();
    let chosen: Vec<_> = (0..60).map(|tenant| client.get(&format!("/{tenant}/x")).text().to_owned()).collect();
    assert!(chosen == first, "{chosen:?} {first:?}");
}

#[test]
fn a_server_that_hangs_gets_few_requests() {
    let (hanging, good) = (Upstream::raw(|mut wire, _| _ = wire.rest()), Upstream::start(|_| reply(200, "good")));
    let list = format!("\"http://{}\", \"http://{}\"", hanging.address(), good.address());
    let gateway = Gateway::start(&format!("[upstreams.up]\nservers = [{list}]\n{ROUTE}"));
    for _ in 0..100 {
        let before = hanging.connections();
        let mut client = gateway.client();
        client.send("GET /a/ HTTP/1.1\r\nHost: a\r\n\r\n");
        let answered = std::sync::mpsc::channel();
        let (tell, told) = answered;
        std::thread::spawn(move || {
            let _ = tell.send(client.try_response(false).is_ok());
        });
        until("it is answered, or with the server that hangs", PATIENCE, || {
            told.try_recv().is_ok() || hanging.connections() > before
        });
    }
    let stuck = hanging.connections();
    assert!((1..=10).contains(&stuck), "{stuck} of 100 went to the server that hangs");
}

#[test]
fn a_server_can_be_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                while let Some(Ok(first)) = lines.next() {
                    let head: Vec<_> =
                        lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    let host = head.iter().find(|line| line.starts_with("host: ")).cloned().unwrap_or_default();
                    let _ = stream.write_all(&reply(200, &format!("{first} {host}")));
                }
            });
        }
    });
    let socket = path.display();
    let gateway = Gateway::start(&format!("[upstreams.up]\nservers = [\"unix:{socket}\"]\n{ROUTE}"));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/a/b").text(), "GET /a/b HTTP/1.1 host: localhost");
    }
    let status = gateway.admin("/api/upstreams").json();
    assert_eq!(status["upstreams"][0]["servers"][0]["server"], format!("unix:{socket}"));
    drop(gateway);
    let missing = folder.path().join("missing.sock");
    let gateway = Gateway::start(&format!("[upstreams.up]\nservers = [\"unix:{}\"]\n{ROUTE}", missing.display()));
    gateway.client().get("/a/b").expect_problem(502);
}

/// Binds a file over /etc/hosts; `None` where this is not possible.
fn with_name(addresses: &[&str], port: u16, more: &str) -> Option<(Gateway, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    write_hosts(&folder, addresses);
    let section = format!("[upstreams.up]\nservers = [\"http://app.test:{port}\"]\n{more}\n");
    let gateway = Gateway::with_hosts(&folder.path().join("hosts"), &format!("{section}{ROUTE}"))?;
    Some((gateway, folder))
}

/// Writes the file in place, because it is bound.
fn write_hosts(folder: &tempfile::TempDir, addresses: &[&str]) {
    let lines: Vec<_> = addresses.iter().map(|address| format!("{address} app.test\n")).collect();
    std::fs::write(folder.path().join("hosts"), lines.concat()).unwrap();
}

fn endpoints(gateway: &Gateway) -> Vec<String> {
    let servers = gateway.admin("/api/upstreams").json()["upstreams"][0]["servers"].clone();
    servers.as_array().unwrap().iter().map(|server| server["server"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn all_addresses_of_a_name_are_servers_and_changes_are_followed() {
    let up = Upstream::start(|_| reply(200, "ok"));
    let port = up.address().port();
    let Some((gateway, folder)) = with_name(&["127.0.0.1", "127.0.0.9"], port, "resolve_every = \"1s\"") else {
        return eprintln!("skipped: no namespaces for users here");
    };
    until("the name is found", PATIENCE, || {
        endpoints(&gateway) == [format!("127.0.0.1:{port}"), format!("127.0.0.9:{port}")]
    });
    let mut client = gateway.client();
    (0..20).for_each(|_| assert_eq!(client.get("/a/").status, 200, "nobody listens on the second address"));
    write_hosts(&folder, &["127.0.0.1", "127.0.0.8"]);
    until("the change is seen", PATIENCE, || {
        endpoints(&gateway) == [format!("127.0.0.1:{port}"), format!("127.0.0.8:{port}")]
    });
    write_hosts(&folder, &[]);
    gateway.wait_message("the name of a server is not found: its known addresses stay in use");
    assert_eq!(endpoints(&gateway).len(), 2);
    assert_eq!(client.get("/a/").status, 200);
    assert!(gateway.metric("gateway_upstream_failed_lookups_total").unwrap() >= 1.0);
    write_hosts(&folder, &["127.0.0.1"]);
    gateway.wait_message("the name of a server is found again");
    until("the answer is used", PATIENCE, || endpoints(&gateway) == [format!("127.0.0.1:{port}")]);
}

#[test]
fn a_name_with_a_family_that_does_not_work_fails_no_request() {
    let up = Upstream::start(|_| reply(200, "ok"));
    // The server listens only on IPv4, so the other address refuses connections.
    let Some((gateway, _folder)) = with_name(&["127.0.0.1", "::1"], up.address().port(), "retries = 0") else {
        return eprintln!("skipped: no namespaces for users here");
    };
    let mut client = gateway.client();
    for _ in 0..30 {
        let response = client.call("POST /a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(response.text(), "ok");
    }
}

#[test]
fn a_request_that_closes_the_connection_that_a_race_has_made_is_sent_once() {
    let up = Upstream::raw(|mut wire, _| _ = wire.head());
    let more = "retries = 0\n[upstreams.up.eject]\nfailures = 1000";
    let Some((gateway, _folder)) = with_name(&["127.0.0.1", "::1"], up.address().port(), more) else {
        return eprintln!("skipped: no namespaces for users here");
    };
    until("both are known", PATIENCE, || endpoints(&gateway).len() == 2);
    for count in 1..=5 {
        gateway.client().get("/a/").expect_problem(502);
        assert_eq!(up.connections(), count);
    }
}

#[test]
fn each_family_is_tried_once_if_none_works() {
    let Some((_held, address, _queue)) = one_family_swallows(closed_port) else {
        return eprintln!("skipped: no IPv6");
    };
    let more = "connect_timeout = \"1s\"\n[upstreams.up.eject]\nfailures = 1000";
    for _ in 0..4 {
        let Some((gateway, _folder)) = with_name(&["127.0.0.1", "::1"], address.port(), more) else {
            return eprintln!("skipped: no namespaces for users here");
        };
        until("both are known", PATIENCE, || endpoints(&gateway).len() == 2);
        assert!(gateway.client().get("/a/").status >= 502);
        assert_eq!(gateway.metric("gateway_upstream_server_failures_total"), Some(2.0));
    }
}

/// A server on IPv4, and on the same port of IPv6 one that neither accepts nor refuses connections; `None` without
/// IPv6.
fn one_family_swallows<S>(start: impl Fn() -> (S, SocketAddr)) -> Option<(S, SocketAddr, impl Sized)> {
    (0..20).find_map(|_| {
        let (up, address) = start();
        let queue = full_queue((std::net::Ipv6Addr::LOCALHOST, address.port()).into()).ok()?;
        Some((up, address, queue))
    })
}

/// Sends requests to a server of which one family swallows connections. `None` without user namespaces.
fn assert_no_request_waits(port: u16, more: &str) -> Option<()> {
    let more = format!(
        "{more}connect_timeout = \"10s\"\nretries = 0\nbalance = \"round-robin\"\n[upstreams.up.eject]\nfailures = 3"
    );
    let (gateway, _folder) = with_name(&["127.0.0.1", "::1"], port, &more)?;
    until("both are known", PATIENCE, || endpoints(&gateway).len() == 2);
    let begun = std::time::Instant::now();
    for _ in 0..12 {
        let response = gateway.client().call("POST /a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(response.text(), "ok");
    }
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    let line = gateway.wait_message("a server is ejected: it gets no requests for a time");
    assert_eq!(line["server"], format!("[::1]:{port}"));
    Some(())
}

#[test]
fn requests_do_not_wait_for_a_family_that_swallows_connections() {
    let start = || {
        let up = Upstream::start(|_| reply(200, "ok"));
        let address = up.address();
        (up, address)
    };
    let found = one_family_swallows(start);
    if found.and_then(|(_up, address, _queue)| assert_no_request_waits(address.port(), "")).is_none() {
        eprintln!("skipped: no IPv6, or no namespaces for users here");
    }
}

#[test]
fn requests_over_http_2_do_not_wait_for_it_either() {
    let start = || {
        let up = Http2Server::echo(None);
        let address = up.address;
        (up, address)
    };
    let found = one_family_swallows(start);
    if found.and_then(|(_up, address, _queue)| assert_no_request_waits(address.port(), "http2 = true\n")).is_none() {
        eprintln!("skipped: no IPv6, or no namespaces for users here");
    }
}

/// A server that answers each request with the first line of its connection, which is a preamble.
fn echoing_preambles() -> Upstream {
    Upstream::raw(|mut wire, _| {
        let Ok(Some(preamble)) = wire.first_line() else { return };
        while let Ok(Some(_)) = wire.head() {
            if wire.write(&reply(200, &preamble)).is_err() {
                return;
            }
        }
    })
}

#[test]
fn servers_are_told_who_the_client_is_and_no_connection_is_used_for_another() {
    let up = echoing_preambles();
    let section = format!("[upstreams.up]\nservers = [\"http://{}\"]\nproxy_protocol = \"v1\"\n", up.address());
    let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.9\"]", &format!("{section}{ROUTE}"));
    let (ip, port) = (up.address().ip(), up.address().port());
    let told = |client: &mut crate::harness::Client, fields: &str| client.get_with("/a/b", fields).text().to_owned();
    let mut clients: Vec<_> = (0..2).map(|_| gateway.client()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            let own = client.local_address();
            assert_eq!(told(client, ""), format!("PROXY TCP4 127.0.0.1 {ip} {} {port}", own.port()));
        }
    }
    assert_eq!(up.connections(), 2, "each client has a connection of its own, which is used again");
    let mut proxied = crate::harness::Client::connect_from([127, 0, 0, 9].into(), gateway.http);
    let for_client = |address: &str| format!("X-Forwarded-For: {address}\r\n");
    assert_eq!(told(&mut proxied, &for_client("192.0.2.1")), format!("PROXY TCP4 192.0.2.1 {ip} 0 {port}"));
    assert_eq!(told(&mut proxied, &for_client("2001:db8::1")), format!("PROXY TCP6 2001:db8::1 ::ffff:{ip} 0 {port}"));
    assert_eq!(told(&mut proxied, &for_client("192.0.2.1")), format!("PROXY TCP4 192.0.2.1 {ip} 0 {port}"));
    assert_eq!(up.connections(), 4);
    let contradictory = for_client("192.0.2.1") + "Forwarded: for=192.0.2.2\r\n";
    assert_eq!(told(&mut proxied, &contradictory), format!("PROXY TCP4 0.0.0.0 {ip} 0 {port}"));
}

#[test]
fn a_gateway_behind_a_gateway_knows_the_client() {
    let inner = Gateway::with_server(
        "proxy_protocol = true",
        "[[routes]]\npath = \"/*\"\nrespond = { body = \"ok\" }\nresponse_headers = { set = { x-client = \"{client_ip}\" } }\n",
    );
    for version in ["v1", "v2"] {
        let health = "[upstreams.up.health]\npath = \"/\"\ninterval = \"100ms\"\n";
        let section =
            format!("[upstreams.up]\nservers = [\"http://{}\"]\nproxy_protocol = \"{version}\"\n{health}", inner.http);
        let gateway = Gateway::start(&format!("{section}{ROUTE}"));
        let mut client = crate::harness::Client::connect_from([127, 0, 0, 7].into(), gateway.http);
        assert_eq!(client.get("/a/b").headers.must("x-client"), "127.0.0.7", "{version}");
        gateway.wait_log("the check succeeds", |line| line["message"] == "a server gets requests");
    }
}
