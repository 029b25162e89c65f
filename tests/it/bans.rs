//! Keys that are refused too often are banned: when, how long, with which answer, and how a ban is lifted.

use std::future::Future;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::Reason;
use h2::client::SendRequest;
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio_rustls::TlsConnector;

use crate::harness::{
    Authority, Client, Gateway, Response, Server, Software, TlsClient, Upstream, every_store, limited, reply, run,
    until, with_each_server,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A limit of one request a day for each key, which bans after three refusals.
fn banning(more: &str) -> String {
    limited("header:x-api-key", "1/d", &format!("strategy = \"moving-window\"\nban = {{ after = 3{more} }}"))
}

fn ask(client: &mut Client, key: &str) -> Response {
    client.get_with("/", format!("x-api-key: {key}\r\n"))
}

fn statuses<const N: usize>(client: &mut Client, key: &str) -> [u16; N] {
    std::array::from_fn(|_| ask(client, key).status)
}

fn call(gateway: &Gateway, method: &str, path: &str) -> Response {
    Client::connect(gateway.admin).call(format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin))
}

fn bans(gateway: &Gateway) -> Vec<Value> {
    let response = call(gateway, "GET", "/api/limits/l/bans");
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["bans"].as_array().unwrap().clone()
}

/// The seconds until the ban in this response ends; `None` if it is not the response of a ban.
fn ban(response: &Response) -> Option<u64> {
    let is_ban = response.text().contains("refuses all of its requests for a while");
    is_ban.then(|| response.headers.must("retry-after").parse().unwrap())
}

#[test]
fn the_refusal_that_is_one_too_many_begins_a_ban() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &banning(", for = \"1h\"")));
        let mut client = gateway.client();
        assert_eq!(ask(&mut client, "a").status, 200);
        for _ in 0..3 {
            let refused = ask(&mut client, "a");
            assert_eq!((refused.status, ban(&refused)), (429, None), "{store}");
        }
        for _ in 0..3 {
            let banned = ask(&mut client, "a");
            banned.expect_problem(429);
            // The rate has room again after a day, and the response tells the later of both times.
            assert!(ban(&banned).is_some_and(|wait| wait > 80_000), "{store}: {banned:?}");
            assert!(banned.headers.must("ratelimit").starts_with("\"l\";r=0;t="), "{store}: {banned:?}");
        }
        assert_eq!(ask(&mut client, "b").status, 200, "other keys are not banned");
    });
}

#[test]
fn a_banned_key_is_refused_whatever_its_rates_have_room_for_and_charged_to_no_limit() {
    every_store(|store| {
        let text = store.to_owned()
            + "[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"2/s\"]\nban = { after = 1, for = \"3s\", within = \"10s\" }\n\
               [limits.all]\nkey = \"global\"\nrates = [\"1000/d\"]\n\
               [[routes]]\npath = \"/*\"\nlimits = [\"l\", \"all\"]\nrespond = { status = 200 }\n";
        let gateway = Gateway::start(&text);
        let mut client = gateway.client();
        until("the key is banned", PATIENCE, || ban(&ask(&mut client, "a")).is_some());
        let charged =
            |gateway: &Gateway| call(gateway, "GET", "/api/limits/all/keys/*").json()["rates"][0]["used"].clone();
        let (before, mut banned) = (charged(&gateway), 0);
        let begun = Instant::now();
        until("the ban ends", PATIENCE, || {
            let has_room = begun.elapsed() > Duration::from_secs(1);
            let response = ask(&mut client, "a");
            banned += u32::from(has_room && ban(&response).is_some());
            std::thread::sleep(Duration::from_millis(20));
            response.status == 200
        });
        assert!(banned > 0, "{store}: two requests a second have room");
        until("the last one is counted", PATIENCE, || charged(&gateway) == json!(before.as_u64().unwrap() + 1));
    });
}

#[test]
fn each_ban_that_follows_another_lasts_twice_as_long() {
    every_store(|store| {
        let gateway = Gateway::start(
            &(store.to_owned() + &limited("client-ip", "1/s", "ban = { after = 1, for = \"2s\", max_for = \"4s\" }")),
        );
        let mut client = gateway.client();
        for times in [1, 2, 3] {
            let mut until_end = None;
            until("the key is banned", PATIENCE, || {
                until_end = ban(&client.get("/"));
                until_end.is_some()
            });
            assert!(until_end.unwrap() <= (2 * times).min(4), "{store}: {until_end:?}");
            let shown = bans(&gateway);
            assert_eq!(shown.len(), 1, "{store}: {shown:?}");
            assert_eq!(shown[0]["times"], times, "{store}");
            if times < 3 {
                until("it ends", PATIENCE, || client.get("/").status == 200);
            }
        }
        assert_eq!(gateway.metric("gateway_bans_total{limit=\"l\"}"), Some(3.0));
    });
}

#[test]
fn a_limit_may_forbid() {
    let gateway = Gateway::start(&banning(", respond = \"forbid\""));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, "a"), [200, 429, 429, 429, 403, 403]);
    ask(&mut client, "a").expect_problem(403);
    let line = gateway.wait_log("a refusal by the ban", |line| line["reason"] == "banned");
    assert_eq!((&line["limit"], &line["outcome"], &line["status"]), (&json!("l"), &json!("blocked"), &json!(403)));
}

#[test]
fn what_the_operator_sees_of_a_ban() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &banning("")));
        let mut client = gateway.client();
        assert_eq!(bans(&gateway), Vec::<Value>::new());
        assert_eq!(call(&gateway, "GET", "/api/limits/l/keys/a-client-1").json()["banned_until"], Value::Null);
        assert_eq!(statuses(&mut client, "a-client-1"), [200, 429, 429, 429, 429, 429, 429]);
        let shown = bans(&gateway);
        assert_eq!((shown.len(), &shown[0]["times"]), (1, &json!(1)), "{store}: {shown:?}");
        let masked = shown[0]["key"].as_str().unwrap();
        assert!(masked.starts_with("a-\u{2026}-1#"), "{masked}");
        let key = call(&gateway, "GET", "/api/limits/l/keys/a-client-1").json();
        let ends = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second();
        assert!((ends(&key["banned_until"]) - ends(&shown[0]["until"])).abs() <= 1, "{store}: {key}, {shown:?}");
        assert_eq!(key["admitted"], false, "{store}");
        let metric = |name: &str| gateway.metric(&format!("{name}{{limit=\"l\"}}"));
        assert_eq!((metric("gateway_bans_total"), metric("gateway_banned_keys")), (Some(1.0), Some(1.0)), "{store}");
        let decisions = call(&gateway, "GET", "/api/limits").json()["limits"][0]["decisions"].clone();
        assert_eq!((&decisions["rejected"], &decisions["banned"]), (&json!(4), &json!(2)), "{store}");
        let described = call(&gateway, "GET", "/api/limits").json()["limits"][0].clone();
        assert_eq!(described["bans"][0]["key"], masked, "{store}");
        assert!(described["ban"].as_str().unwrap().contains("more than 3 refusals within 1m"), "{described}");
        // A masked key can be named by its mask.
        let path = format!("/api/limits/l/keys/{}", masked.replace('#', "%23").replace('\u{2026}', "%E2%80%A6"));
        let lifted = call(&gateway, "DELETE", &path);
        assert_eq!((lifted.status, &lifted.json()["banned_until"]), (200, &Value::Null), "{store}: {lifted:?}");
        assert_eq!(bans(&gateway), Vec::<Value>::new(), "{store}");
        until("the ban is lifted", PATIENCE, || ask(&mut client, "a-client-1").status == 200);
        assert_eq!(metric("gateway_banned_keys"), Some(0.0), "{store}");
        assert_eq!(call(&gateway, "DELETE", &path).status, 200, "it is a key like any other now");
    });
}

#[test]
fn lifting_a_ban_forgets_the_refusals_and_the_doubling() {
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &banning("")));
        let mut client = gateway.client();
        for _ in 0..2 {
            assert_eq!(statuses(&mut client, "a"), [200, 429, 429, 429], "{store}");
            let banned = ask(&mut client, "a");
            assert!(ban(&banned).is_some(), "{store}");
            assert_eq!(bans(&gateway)[0]["times"], 1, "{store}");
            assert_eq!(call(&gateway, "DELETE", "/api/limits/l/keys/a").status, 200, "{store}");
        }
        // The refusals before a ban are forgotten, too.
        assert_eq!(statuses(&mut client, "b"), [200, 429, 429, 429], "{store}");
        assert_eq!(call(&gateway, "DELETE", "/api/limits/l/keys/b").status, 200, "{store}");
        assert_eq!(statuses(&mut client, "b"), [200, 429, 429, 429], "{store}");
        assert_eq!(ban(&ask(&mut client, "b")).map(|_| ()), Some(()), "{store}");
    });
}

#[test]
fn an_exemption_beats_a_ban_and_blocks_are_no_refusals() {
    every_store(|store| {
        let overrides = "[[limits.l.overrides]]\nkeys = [\"friend\"]\nexempt = true\n\
                         [[limits.l.overrides]]\nkeys = [\"foe\"]\nblock = true\n";
        let text = banning("").replace("[[routes]]", &format!("{overrides}[[routes]]"));
        let gateway = Gateway::start(&(store.to_owned() + &text));
        let mut client = gateway.client();
        assert_eq!(statuses(&mut client, "friend"), [200; 9], "{store}");
        assert_eq!(statuses(&mut client, "foe"), [403; 9], "{store}");
        assert_eq!(statuses(&mut client, "a"), [200, 429, 429, 429, 429], "{store}");
        assert_eq!(bans(&gateway).len(), 1, "{store}");
        let body = r#"{"exempt": true, "for": "1h"}"#;
        let request = format!(
            "PUT /api/limits/l/keys/a HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
            gateway.admin,
            body.len()
        );
        assert_eq!(Client::connect(gateway.admin).call(request).status, 200);
        until("the exemption holds", PATIENCE, || ask(&mut client, "a").status == 200);
        assert_eq!(statuses(&mut client, "a"), [200; 9], "{store}");
    });
}

#[test]
fn limits_that_only_report_ban_nobody() {
    let gateway = Gateway::start(&limited(
        "client-ip",
        "1/d",
        "strategy = \"moving-window\"\non_limit = \"shadow\"\nban = { after = 1 }",
    ));
    let mut client = gateway.client();
    assert!((0..9).all(|_| client.get("/").status == 200));
    assert_eq!(bans(&gateway), Vec::<Value>::new());
}

#[test]
fn refusals_of_other_kinds_count_too() {
    let held = limited(
        "client-ip",
        "1/d",
        "strategy = \"moving-window\"\non_limit = \"delay\"\nmax_delay = \"1ms\"\nban = { after = 2 }",
    );
    let silent =
        limited("client-ip", "1/d", "strategy = \"moving-window\"\non_limit = \"silent\"\nban = { after = 2 }");
    let costly = limited("client-ip", "9/d", "cost = { request_header = \"x-cost\" }\nban = { after = 2 }");
    for (text, expected) in
        [(held, [200, 429, 429, 429]), (silent, [200, 200, 200, 429]), (costly, [413, 413, 429, 429])]
    {
        let gateway = Gateway::start(&text);
        let mut client = gateway.client();
        let statuses: [_; 4] = std::array::from_fn(|_| client.get_with("/", "x-cost: 10\r\n").status);
        assert_eq!(statuses, expected, "{text}");
        assert_eq!(bans(&gateway).len(), 1, "{text}");
        assert!(ban(&client.get("/")).is_some(), "{text}");
    }
}

/// Gateways that share a server, with a client each.
fn fleet(server: &Server, more: &str) -> [(Gateway, Client); 2] {
    [(); 2].map(|()| {
        let gateway = Gateway::start(&(server.store_with(more) + &banning("")));
        let client = gateway.client();
        (gateway, client)
    })
}

fn all_gateways_know_of_a_ban_and_of_its_end(software: Software) {
    let server = software.start();
    let [(first, mut one), (second, mut other)] = fleet(&server, "on_error = \"reject\"");
    assert_eq!(ask(&mut other, "a").status, 200);
    assert_eq!(statuses(&mut one, "a"), [429; 4]);
    assert_eq!(bans(&first).len(), 1);
    let began = Instant::now();
    until("the other gateway knows", PATIENCE, || ban(&ask(&mut other, "a")).is_some());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(bans(&second).len(), 1);
    assert_eq!(second.metric("gateway_bans_total{limit=\"l\"}"), Some(0.0), "it was the first one that has begun it");
    // One gateway lifts the ban of the other one, while the key floods that.
    assert_eq!(call(&second, "DELETE", "/api/limits/l/keys/a").status, 200);
    let lifted = Instant::now();
    until("it is lifted everywhere", PATIENCE, || ask(&mut one, "a").status == 200);
    assert!(lifted.elapsed() < Duration::from_secs(15), "{:?}", lifted.elapsed());
    until("it is not shown any more", PATIENCE, || {
        ask(&mut one, "b");
        ask(&mut one, "a");
        bans(&first).is_empty()
    });
}

#[test]
fn of_many_requests_at_once_one_begins_a_ban() {
    const CLIENTS: usize = 8;
    every_store(|store| {
        let gateway = Gateway::start(&(store.to_owned() + &banning("")));
        let ask_often = || {
            let mut client = gateway.client();
            let timed = (0..20).map(|_| (Instant::now(), ask(&mut client, "a"), Instant::now()));
            timed.collect::<Vec<_>>()
        };
        let responses = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask_often)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let admitted = responses.iter().filter(|(_, response, _)| response.status == 200);
        assert_eq!(admitted.count(), 1, "{store}");
        let known = responses.iter().filter(|(_, response, _)| ban(response).is_some()).map(|(_, _, end)| *end).min();
        let known = known.expect("a ban begins");
        let plain: Vec<_> = responses.iter().filter(|(_, r, _)| r.status == 429 && ban(r).is_none()).collect();
        // Requests that are decided while the ban begins are refused without it: at most one of each other client.
        assert!((3..=3 + CLIENTS - 1).contains(&plain.len()), "{store}: {}", plain.len());
        assert!(plain.iter().all(|(start, ..)| *start < known), "{store}: refused without the ban after it was known");
        assert_eq!(gateway.metric("gateway_bans_total{limit=\"l\"}"), Some(1.0), "{store}");
        assert_eq!(bans(&gateway).len(), 1, "{store}");
    });
}

fn a_flood_of_a_banned_key_asks_the_store_almost_nothing(software: Software) {
    let server = software.start();
    let gateway = Gateway::start(&(server.store() + &banning("")));
    let mut client = gateway.client();
    assert_eq!(statuses(&mut client, "a"), [200, 429, 429, 429, 429, 429]);
    let before = server.commands();
    let flood = Instant::now();
    for _ in 0..3_000 {
        assert_eq!(ask(&mut client, "a").status, 429);
    }
    let seconds = flood.elapsed().as_secs();
    let asked = server.commands() - before;
    assert!(asked <= 4 * (2 + seconds / 4), "{asked} commands for 3000 requests in {seconds} s");
}

fn bans_survive(software: Software) {
    // With a shared store the gateway is killed, in memory it stops in order.
    let server = software.start();
    let start = || Gateway::start(&(server.store() + &banning("")));
    let gateway = start();
    assert_eq!(statuses(&mut gateway.client(), "a"), [200, 429, 429, 429, 429]);
    drop(gateway);
    let gateway = start();
    assert!(ban(&ask(&mut gateway.client(), "a")).is_some());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters");
    let text = format!("[store]\nsnapshot = \"{}\"\n{}", file.display(), banning(""));
    let mut gateway = Gateway::start(&text);
    assert_eq!(statuses(&mut gateway.client(), "a"), [200, 429, 429, 429, 429]);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    let gateway = Gateway::start(&text);
    assert!(ban(&ask(&mut gateway.client(), "a")).is_some());
    assert_eq!(bans(&gateway)[0]["times"], 1);
    // A reload that changes the duration of bans keeps them, too.
    let with = |rest: &str| format!("[store]\nsnapshot = \"{}\"\n{rest}", file.display());
    gateway.reload_and_wait("", &with(&banning(", for = \"2h\"")));
    assert!(ban(&ask(&mut gateway.client(), "a")).is_some());
    // A reload that removes `ban` ends them.
    gateway.reload_and_wait("", &with(&limited("header:x-api-key", "2/d", "strategy = \"moving-window\"")));
    assert_eq!(statuses(&mut gateway.client(), "a"), [200, 429]);
    assert_eq!(bans(&gateway), Vec::<Value>::new());
}

fn bans_go_on_while_the_store_is_away(software: Software) {
    let mut server = software.start();
    let [(gateway, mut one), (_second, mut other)] = fleet(&server, "on_error = \"local\"");
    assert_eq!(ask(&mut one, "a").status, 200);
    server.kill();
    until("the key is banned", PATIENCE, || ban(&ask(&mut one, "a")).is_some());
    assert_eq!(bans(&gateway).len(), 1);
    assert_eq!(statuses(&mut one, "a"), [429; 3]);
    server.restart();
    until("the other gateway is told", PATIENCE, || ban(&ask(&mut other, "a")).is_some());
}

#[test]
fn invented_keys_are_forgotten() {
    let gateway =
        Gateway::start(&limited("header:x-api-key", "1/d", "strategy = \"fixed-window\"\nban = { after = 1 }"));
    let mut client = gateway.client();
    for number in 0..1_500 {
        let key = format!("{number}-{}", "k".repeat(200));
        assert_eq!(statuses(&mut client, &key), [200, 429, 429]);
    }
    let shown = bans(&gateway);
    // Each worker remembers up to 1000 bans.
    let workers = std::thread::available_parallelism().unwrap().get();
    assert!(shown.len() <= 1_000 * workers && shown.len() >= 1_000, "{}", shown.len());
    assert!(ban(&ask(&mut client, &format!("0-{}", "k".repeat(200)))).is_some(), "the ban itself is in the store");
}

/// A recipe of docs/limits.md for the limit with this name, on a route to this upstream.
fn recipe(limit: &str, upstream: &Upstream) -> String {
    let page = include_str!("../../docs/limits.md");
    let begin = page.find(&format!("    [limits.{limit}]\n")).unwrap();
    let lines = page[begin..].lines().map_while(|line| line.strip_prefix("    "));
    lines.collect::<Vec<_>>().join("\n") + "\n" + &upstream.everything() + &format!("limits = [{limit:?}]\n")
}

#[test]
fn logins_that_fail_again_and_again_lead_to_a_ban() {
    let upstream = Upstream::start(|request| {
        let is_right = request.headers.get("authorization").is_some_and(|password| password == "right");
        reply(if is_right { 200 } else { 401 }, "")
    });
    let gateway = Gateway::start(&recipe("logins", &upstream));
    let mut client = gateway.client();
    let mut log_in = |password: &str| client.get_with("/login", format!("authorization: {password}\r\n"));
    assert!((0..20).all(|_| log_in("right").status == 200), "only failures count");
    let begun = Instant::now();
    assert!((0..5).all(|_| log_in("wrong").status == 401));
    // With three of five used, it waits a third of two seconds, with four two thirds.
    assert!(begun.elapsed() >= Duration::from_millis(1_900), "{:?}", begun.elapsed());
    let refused: Vec<_> = (0..10).map(|_| log_in("wrong")).collect();
    assert!(refused.iter().all(|response| response.status == 429 && ban(response).is_none()));
    for password in ["wrong", "right"] {
        let banned = log_in(password);
        assert!(ban(&banned).is_some_and(|wait| (890..=900).contains(&wait)), "{banned:?}");
    }
}

#[test]
fn the_connections_of_scrapers_are_closed() {
    let upstream = Upstream::start(|_| reply(200, "a page"));
    let gateway = Gateway::start(&recipe("pages", &upstream));
    let mut client = gateway.client();
    let mut passed = 0;
    // Five more have room in each second that passes.
    until("the client is banned", PATIENCE, || {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        match client.try_response(false) {
            Ok(response) => passed += u32::from(response.status == 200),
            Err(_) => return true,
        }
        false
    });
    assert!(passed >= 30, "{passed}");
    for _ in 0..3 {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.closed(), b"", "not a byte is sent");
    }
    let line = gateway.wait_log("a refusal by the ban", |line| line["reason"] == "banned");
    assert_eq!((&line["outcome"], &line["limit"]), (&json!("blocked"), &json!("pages")));
    assert_eq!(line["status"], 0, "{line}");
}

#[test]
fn streams_of_a_banned_key_are_reset() {
    let gateway = Gateway::start(&limited(
        "client-ip",
        "1/d",
        "strategy = \"fixed-window\"\nban = { after = 1, respond = \"close\" }",
    ));
    let mut client = gateway.client();
    assert_eq!([client.get("/").status, client.get("/").status], [200, 429]);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.closed(), b"");
    run_in_time(async {
        let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let error = stream_of(&mut client, "a").await.unwrap_err();
        assert!(error.is_reset() && error.is_remote(), "{error:?}");
    });
}

#[test]
fn a_trusted_proxy_is_answered_403_because_it_speaks_for_others_too() {
    let banning = limited("client-ip", "1/d", "strategy = \"moving-window\"\nban = { after = 1, respond = \"close\" }");
    let trusted = "listen = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.0/8\"]\n";
    let gateway = Gateway::with_server(trusted, &banning);
    let mut client = gateway.client();
    let mut ask = |of: &str| client.get_with("/", format!("X-Forwarded-For: {of}\r\n"));
    assert_eq!([200, 429].map(|_| ask("192.0.2.1").status), [200, 429]);
    for other in ["192.0.2.2", "192.0.2.3", "192.0.2.4"] {
        let banned = ask("192.0.2.1");
        assert_eq!((banned.status, banned.text()), (403, ""));
        assert_eq!(banned.headers.get("connection"), None, "{banned:?}");
        assert_eq!(ask(other).status, 200, "others share the connection");
    }
    // The proxy's own requests come from a hop that it shares with others.
    assert_eq!([(); 3].map(|()| client.get("/").status), [200, 429, 403]);
    let line = gateway.wait_log("a refusal by the ban", |line| line["reason"] == "banned");
    assert_eq!((&line["outcome"], &line["status"]), (&json!("blocked"), &json!(403)));
    run_in_time(async {
        let stream = tokio::net::TcpStream::connect(gateway.http).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(stream_of(&mut client, "a").await.unwrap(), 403);
    });
}

#[test]
fn no_contradictory_header_of_a_proxy_helps_a_banned_client() {
    every_store(|store| {
        let banning = limited("client-ip", "2/d", "strategy = \"moving-window\"\nban = { after = 2 }");
        let gateway = Gateway::with_server("trusted_proxies = [\"127.0.0.0/8\"]", &format!("{store}{banning}"));
        let mut client = gateway.client();
        let mut ask = |listed: &str, forwarded: &str| {
            let response = client.get_with("/", format!("X-Forwarded-For: {listed}\r\nForwarded: for={forwarded}\r\n"));
            (response.status, ban(&response).is_some())
        };
        let banned = "192.0.2.1";
        let own = [200, 200, 429, 429].map(|_| ask(banned, banned).0);
        assert_eq!((own, ask(banned, banned)), ([200, 200, 429, 429], (429, true)), "{store}");
        for other in ["198.51.100.1", "198.51.100.2", "unknown"] {
            assert_eq!([ask(banned, other), ask(other, banned)], [(429, true); 2], "{other}, {store}");
        }
        assert_eq!(bans(&gateway).len(), 1, "{store}");
        assert!(bans(&gateway)[0]["key"].as_str().unwrap().starts_with("19….1#"), "{store}");
        // Nobody else pays, also not the clients whose headers contradict each other.
        assert_eq!(ask("192.0.2.2", "192.0.2.3"), (200, false), "{store}");
        assert_eq!(ask("192.0.2.2", "192.0.2.2"), (200, false), "{store}");
        assert_eq!((gateway.used("l", "0.0.0.0"), gateway.used("l", "192.0.2.2")), (1, 1), "{store}");
        let decisions = |decision: &str| {
            gateway.metric(&format!("gateway_limit_decisions_total{{limit=\"l\",decision=\"{decision}\"}}"))
        };
        assert_eq!(decisions("banned"), Some(6.0), "{store}");
        assert_eq!(call(&gateway, "DELETE", "/api/limits/l/keys/192.0.2.1").status, 200);
        until("it is lifted", PATIENCE, || ask(banned, banned).0 == 200);
    });
}

#[test]
fn the_client_that_the_proxy_protocol_names_is_not_a_trusted_proxy() {
    let banning = limited("client-ip", "1/d", "strategy = \"moving-window\"\nban = { after = 1, respond = \"close\" }");
    let trusted = "listen = \"127.0.0.1:0\"\nproxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\"]\n";
    let gateway = Gateway::with_server(trusted, &banning);
    let mut client = gateway.client();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.9 1000 80\r\n");
    assert_eq!([client.get("/").status, client.get("/").status], [200, 429]);
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.closed(), b"", "the connection is that of one client");
}

fn run_in_time(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await }).unwrap();
}

async fn stream_of(client: &mut SendRequest<bytes::Bytes>, key: &str) -> Result<u16, h2::Error> {
    *client = client.clone().ready().await?;
    let request = http::Request::get("http://h/").header("x-api-key", key).body(()).unwrap();
    Ok(client.send_request(request, true)?.0.await?.status().as_u16())
}

#[test]
fn connections_in_tls_are_closed_and_streams_in_them_are_reset() {
    let authority = Authority::new();
    let site = authority.issue("site", "site", &["site.test"]);
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = false }, { address = \"127.0.0.1:0\" }]";
    let server = format!("{listen}\n[server.tls]\ncertificates = [{}]\n", site.toml());
    let gateway = Gateway::with_server(&server, &banning(", respond = \"close\""));
    let connect = || TlsClient::connect(gateway.https(), &authority.client(None), "site.test").unwrap();
    let send = |client: &mut TlsClient| {
        client.stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Api-Key: a\r\n\r\n").unwrap();
    };
    let mut client = connect();
    for status in ["200", "429", "429", "429"] {
        send(&mut client);
        assert_eq!(client.response().unwrap().0.split(' ').nth(1), Some(status));
    }
    for mut client in [client, connect()] {
        send(&mut client);
        let mut received = Vec::new();
        // The end may come with or without a notice of TLS.
        let _ = client.stream.read_to_end(&mut received);
        assert_eq!(received, b"", "not a byte is sent");
    }

    let mut config = (*authority.client(None)).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    run_in_time(async {
        let stream = tokio::net::TcpStream::connect(gateway.https()).await.unwrap();
        let name = ServerName::try_from("site.test").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for other in ["b", "c", "d", "e"] {
            let error = stream_of(&mut client, "a").await.unwrap_err();
            assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::ENHANCE_YOUR_CALM)));
            assert_eq!(stream_of(&mut client, other).await.unwrap(), 200, "others share the connection");
        }
    });
}

#[test]
fn what_is_said_of_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, banning(", within = \"2m\", respond = \"close\"")).unwrap();
    let said = |arguments: &[&str]| {
        let output = run(&[arguments, &["--config", file.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let words = "keys with more than 3 refusals within 2m for 10m, then up to 1d: their connections are closed";
    assert!(said(&["check"]).contains(&format!("    bans {words}")), "{}", said(&["check"]));
    let json: Value = serde_json::from_str(&said(&["check", "--json"])).unwrap();
    let ban = json!({ "after": 3, "within": "2m", "for": "10m", "max_for": "1day", "respond": "close" });
    assert_eq!(json["limits"]["l"]["ban"], ban);
    let explained = said(&["explain", "-H", "x-api-key: a", "http://h/"]);
    assert!(explained.contains(&format!("    bans     {words}")), "{explained}");
}

with_each_server! {
    all_gateways_know_of_a_ban_and_of_its_end
    a_flood_of_a_banned_key_asks_the_store_almost_nothing
    bans_survive
    bans_go_on_while_the_store_is_away
}
