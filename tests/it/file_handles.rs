//! When file handles are short, nobody takes them from others, and no server gets the blame.

use std::sync::Arc;
use std::time::Duration;

use h2::server::Builder;
use http::Response;
use tokio::sync::Barrier;

use crate::harness::http2::{RawHttp2, get};
use crate::harness::http2_server::Http2Server;
use crate::harness::{Client, Gateway, Upstream, reply, until};

const PATIENCE: Duration = Duration::from_secs(20);

/// `/held` goes to `slow`, everything else to `fast`.
fn routes(slow: &Upstream, fast: &Upstream) -> String {
    let (slow, fast) = (slow.address(), fast.address());
    format!(
        "[upstreams.slow]\nservers = [\"http://{slow}\"]\n[upstreams.fast]\nservers = [\"http://{fast}\"]\n\
         [[routes]]\npath = \"/held\"\nupstream = \"slow\"\n[[routes]]\npath = \"/*\"\nupstream = \"fast\"\n"
    )
}

fn in_flight(gateway: &Gateway) -> Option<f64> {
    gateway.metric("gateway_upstream_server_in_flight")
}

#[test]
fn a_client_with_many_streams_leaves_handles_for_others() {
    const STREAMS: u32 = 200;
    let (slow, go) = Upstream::holding();
    let fast = Upstream::start(|_| reply(200, "fast"));
    let gateway = Gateway::with_handles(600, "workers = 1", &routes(&slow, &fast));
    let connect = |_| {
        let mut client = RawHttp2::connect(gateway.http, &[]);
        client.send(&(0..STREAMS).flat_map(|number| get(2 * number + 1, "/held")).collect::<Vec<_>>()).unwrap();
        client
    };
    let mut clients: Vec<_> = (0..5).map(connect).collect();
    // 600 handles less 74 for other things: half for clients, half for servers, and half of that for one client.
    let is_refused = |line: &String| line.contains("\"status\":503") && line.contains("\"exhausted\"");
    let refused = || gateway.log().iter().filter(|line| is_refused(line)).count();
    until("the others are refused", PATIENCE, || refused() == 1000 - 132);
    assert_eq!(in_flight(&gateway), Some(132.0));
    clients[0].send(&get(2 * STREAMS + 1, "/")).unwrap();
    let line = gateway.wait_log("its next stream", |line| line["path"] == "/" && line["message"] == "request");
    assert_eq!((line["status"].as_u64(), line["reason"].as_str()), (Some(503), Some("exhausted")));
    // A client with one request at a time has its own place.
    assert_eq!(gateway.client().get("/").text(), "fast");
    let mut other = Client::connect_from([127, 0, 0, 2].into(), gateway.http);
    assert_eq!(other.get("/").text(), "fast");
    drop(go);
    until("all are answered", PATIENCE, || in_flight(&gateway) == Some(0.0));
    clients[0].send(&get(2 * STREAMS + 3, "/")).unwrap();
    let is_next = |line: &serde_json::Value| line["path"] == "/" && line["status"] == 200;
    gateway.wait_log("its share is free again", is_next);
}

#[test]
fn idle_connections_to_a_server_make_room_for_those_to_another() {
    let (slow, go) = Upstream::holding();
    let fast = Upstream::start(|_| reply(200, "fast"));
    // 110 handles less 74: 18 for clients, and 18 for servers.
    let gateway = Gateway::with_handles(110, "workers = 1", &routes(&slow, &fast));
    let mut clients: Vec<_> = (0..18).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n"));
    until("all are in flight", PATIENCE, || in_flight(&gateway) == Some(18.0));
    drop(go);
    clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "hello"));
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").text(), "fast"));
}

/// Each connection carries one request. `/held` gets answers by the dozen, and `/never` gets none.
fn of_one_stream() -> Http2Server {
    let (mut settings, dozen) = (Builder::new(), Arc::new(Barrier::new(12)));
    settings.max_concurrent_streams(1);
    Http2Server::start(None, settings, move |request, mut respond| {
        let dozen = dozen.clone();
        async move {
            match request.uri().path() {
                "/held" => _ = dozen.wait().await,
                "/never" => std::future::pending().await,
                _ => {}
            }
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            let _ = sender.send_data("fast".into(), true);
        }
    })
}

#[test]
fn a_client_with_many_streams_leaves_connections_over_http_2_for_others() {
    let up = of_one_stream();
    // 110 handles less 74: 18 for servers, and half of that for one client, besides the first ones.
    let gateway = Gateway::with_handles(110, "workers = 1", &up.everything("http", ""));
    let mut client = RawHttp2::connect(gateway.http, &[]);
    client.send(&(0..40).flat_map(|number| get(2 * number + 1, "/never")).collect::<Vec<_>>()).unwrap();
    let is_refused = |line: &String| line.contains("\"status\":503") && line.contains("\"exhausted\"");
    until("some are refused", PATIENCE, || gateway.log().iter().any(is_refused));
    let mut other = Client::connect_from([127, 0, 0, 2].into(), gateway.http);
    assert_eq!(other.get("/").text(), "fast");
}

#[test]
fn idle_connections_over_http_2_make_room_too() {
    let (up, (slow, go)) = (of_one_stream(), Upstream::holding());
    let (first, second) = (up.address, slow.address());
    let gateway = Gateway::with_handles(
        110,
        "workers = 1",
        &format!(
            "[upstreams.first]\nservers = [\"http://{first}\"]\nhttp2 = true\n\
             [upstreams.second]\nservers = [\"http://{second}\"]\n\
             [[routes]]\nhost = \"first\"\npath = \"/*\"\nupstream = \"first\"\n\
             [[routes]]\npath = \"/*\"\nupstream = \"second\"\n"
        ),
    );
    let mut clients: Vec<_> = (0..12).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: first\r\n\r\n"));
    clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "fast"));
    assert_eq!(up.connections(), 12);
    clients.iter_mut().for_each(|client| client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n"));
    until("all are in flight", PATIENCE, || in_flight(&gateway) == Some(12.0));
    drop(go);
    clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "hello"));
}

#[test]
fn no_server_is_blamed_for_what_this_machine_lacks() {
    let closing = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let servers = [(); 2].map(|()| Upstream::start(|_| closing.into()));
    let [one, other] = servers.each_ref().map(Upstream::address);
    let gateway = Gateway::with_handles(
        1000,
        "workers = 1\nheader_timeout = \"60s\"",
        &format!(
            "[upstreams.up]\nservers = [\"http://{one}\", \"http://{other}\"]\neject = {{ failures = 1, for = \"60s\" }}\n\
             health = {{ path = \"/\", interval = \"1s\", timeout = \"20s\", unhealthy_after = 1 }}\n\
             [[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        ),
    );
    let body = "{\"level\": \"debug\"}";
    let more = format!("PUT /api/log-level HTTP/1.1\r\nHost: {}\r\nContent-Length: 18\r\n\r\n{body}", gateway.admin);
    assert_eq!(Client::connect(gateway.admin).call(more).status, 200);
    gateway.lower_handles(110);
    // Idle connections would make room.
    let connect = |_| {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\n");
        client
    };
    let mut clients: Vec<_> = (0..150).map(connect).collect();
    gateway.wait_message("cannot accept connections");
    // The connections that are answered below become idle, so they make room.
    gateway.wait_message("a server cannot be checked");
    let mut statuses = clients.iter_mut().filter_map(|client| {
        client.send("Host: a\r\n\r\n");
        client.try_response(false).ok().map(|response| response.status)
    });
    assert!(statuses.any(|status| status == 503), "no handle is left for one of them");
    gateway.wait_log("the request", |line| line["reason"] == "exhausted" && line["message"] == "request");
    let log = gateway.log().join("\n");
    assert!(!log.contains("a server is ejected") && !log.contains("a server gets no requests"), "{log}");
    drop(clients);
    until("the servers are reached", PATIENCE, || gateway.client().try_get() == Some(200));
}
