//! Costs in bytes: what passes of responses and of requests, and what is charged in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Client, Gate, Gateway, Received, Response, Software, Upstream, Wire, every_store, reply, until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The number at the end of a target.
fn number(request: &Received) -> usize {
    request.target.rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn chunked(pieces: &[usize], trailers: &str) -> Vec<u8> {
    let mut response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for size in pieces {
        response.extend_from_slice(format!("{size:x}\r\n{}\r\n", "x".repeat(*size)).as_bytes());
    }
    response.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    response
}

/// Answers `/N` with a body of N bytes.
pub(crate) fn files() -> Upstream {
    Upstream::start(|request| {
        let body = "x".repeat(number(request));
        let path = request.target.split('/').nth(1).unwrap_or_default();
        match path {
            "chunked" => chunked(&[number(request)], ""),
            "trailers" => chunked(&[number(request)], "X-Long: 0123456789\r\n"),
            "drip" => chunked(&vec![1000; number(request) / 1000], ""),
            "early" => format!(
                "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into(),
            "gzip" => {
                format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                    .into()
            }
            "unchanged" => format!("HTTP/1.1 304 Not Modified\r\nContent-Length: {}\r\n\r\n", body.len()).into(),
            "part" => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-{}/1000000\r\nContent-Length: {}\r\n\r\n{body}",
                body.len() - 1,
                body.len()
            )
            .into(),
            "failed" => reply(500, &body),
            _ if request.method == "HEAD" => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into()
            }
            _ => reply(200, &body),
        }
    })
}

/// A limit of the bytes of one client.
pub(crate) fn limit(quota: &str, cost: &str) -> String {
    format!("[limits.l]\nkey = \"client-ip\"\nrates = [\"{quota}/d\"]\ncost = {{ {cost} }}\n")
}

pub(crate) fn start(store: &str, quota: &str, cost: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&format!("{store}{}{}limits = [\"l\"]\n", limit(quota, cost), upstream.everything()))
}

fn state(response: &Response) -> u64 {
    let state = response.headers.must("ratelimit");
    state.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

/// How much is left, by a response without a body.
pub(crate) fn left(gateway: &Gateway) -> u64 {
    state(&gateway.client().get("/0"))
}

#[track_caller]
pub(crate) fn settles_at(gateway: &Gateway, expected: u64) {
    let mut last = 0;
    until(&format!("{expected} are left"), PATIENCE, || {
        last = left(gateway);
        last == expected
    });
}

#[test]
fn a_response_of_known_length_passes_if_there_is_room_for_all_of_it() {
    every_store(|store| {
        let upstream = files();
        let gateway = start(store, "10KiB", "bytes = \"response\"", &upstream);
        let mut client = gateway.client();
        for passed in 1..=3 {
            let response = client.get("/3000");
            assert_eq!((response.status, response.body.len(), state(&response)), (200, 3000, 10_240 - 3000 * passed));
        }
        let refused = client.get("/3000");
        refused.expect_problem(429);
        assert!(
            refused.text().contains("allows 10KiB/d, of which 1240B are left, and this request costs 3KB"),
            "{}",
            refused.text()
        );
        assert_eq!(state(&refused), 1240);
        assert!(refused.headers.must("retry-after").parse::<u64>().unwrap() > 0);
        assert_eq!(refused.headers.must("ratelimit-policy"), "\"l\";q=10240;w=86400;qu=\"content-bytes\"");
        assert_eq!(upstream.received().len(), 4, "the upstream was asked for the refused one, too");
        assert_eq!((client.get("/1240").status, left(&gateway)), (200, 0), "a smaller one has room");
        assert_eq!(client.get("/0").status, 429);
        assert_eq!(upstream.received().len(), 5, "without room nothing is asked for");
    });
}

#[test]
fn a_thousand_downloads_at_once_pass_what_they_would_one_after_the_other() {
    every_store(|store| {
        let gate = Gate::default();
        let (opened, waiting) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
        let count = waiting.clone();
        let upstream = Upstream::start(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            opened.pass();
            reply(200, &"x".repeat(1000))
        });
        let gateway = start(store, "25000B", "bytes = \"response\"", &upstream);
        let clients: Vec<_> = (0..1000)
            .map(|_| {
                let mut client = gateway.client();
                // The first one waits for all others.
                client.wire.stream().set_read_timeout(Some(Duration::from_secs(90))).unwrap();
                thread::spawn(move || client.get("/file").status)
            })
            .collect();
        until("all wait for their responses", Duration::from_secs(60), || waiting.load(Ordering::SeqCst) == 1000);
        gate.open();
        let statuses: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let of = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((of(200), of(429)), (25, 975), "{store}");
        assert_eq!(left(&gateway), 0);
    });
}

#[test]
fn a_response_that_never_fits_names_no_time_to_retry() {
    every_store(|store| {
        let gateway = start(store, "10000B", "bytes = \"response\"", &files());
        let refused = gateway.client().get("/10001");
        refused.expect_problem(429);
        assert_eq!(refused.headers.get("retry-after"), None);
        assert_eq!(gateway.client().get("/10000").status, 200);
    });
}

#[test]
fn what_has_no_body_costs_nothing() {
    every_store(|store| {
        let gateway = start(store, "10000B", "bytes = \"both\"", &files());
        let mut client = gateway.client();
        let head = client.call("HEAD /9999999 HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!((head.status, head.headers.must("content-length")), (200, "9999999"));
        assert_eq!(client.get("/unchanged/9999999").status, 304);
        assert_eq!(left(&gateway), 10_000);
    });
}

#[test]
fn bodies_cost_what_is_sent_of_them() {
    every_store(|store| {
        let gateway = start(store, "100000B", "bytes = \"response\"", &files());
        let mut expected = 100_000;
        for path in ["/part/700", "/gzip/700", "/failed/700", "/early/700", "/chunked/700", "/trailers/700"] {
            assert_eq!(gateway.client().get(path).body.len(), 700);
            expected -= 700;
            assert_eq!(left(&gateway), expected, "{path}, {store}");
        }
    });
}

/// Asks for 30 000 bytes without a length, of which a limit allows 10 000. Returns how many pass, and whether all do.
fn drip(store: &str, more: &str) -> (Gateway, Client, usize, bool) {
    let upstream = files();
    let gateway = start(store, "10000B", &format!("bytes = \"response\", reserve = \"4KiB\"{more}"), &upstream);
    let mut client = gateway.client();
    client.send("GET /drip/30000 HTTP/1.1\r\nHost: h\r\n\r\n");
    let (head, framing) = client.try_head().unwrap();
    assert_eq!(head.status, 200);
    let mut passed = 0;
    let is_whole = client.wire.body(framing, &mut |piece| passed += piece.len()).is_ok();
    (gateway, client, passed, is_whole)
}

#[test]
fn a_body_without_a_length_is_cut() {
    every_store(|store| {
        let (gateway, mut client, passed, is_whole) = drip(store, ", on_exhausted = \"cut\"");
        assert_eq!((passed, is_whole), (10_000, false), "{store}");
        assert!(client.closed().is_empty(), "the connection ends, so the client knows");
        let line = gateway.wait_log("the reason", |line| line["reason"] == "bytes_exhausted");
        assert_eq!((&line["outcome"], &line["bytes"]), (&"limited".into(), &10_000.into()));
        assert_eq!(left(&gateway), 0);
    });
}

#[test]
fn a_body_without_a_length_is_finished_and_charged_past_the_quota() {
    every_store(|store| {
        let (gateway, _, passed, is_whole) = drip(store, "");
        assert_eq!((passed, is_whole), (30_000, true), "{store}");
        assert_eq!(gateway.used("l", "127.0.0.1"), 30_000, "{store}");
    });
}

/// With `strict` too, what passes beyond the quota is charged while it passes, and refuses others meanwhile.
#[test]
fn strictly_a_body_beyond_the_quota_is_charged_while_it_passes() {
    for software in Software::ALL {
        let server = software.start();
        let store = server.store_with("on_error = \"reject\"\ntimeout = \"5s\"\nstrict = true");
        let gate = Gate::default();
        let opened = gate.clone();
        let upstream = Upstream::raw(move |mut wire: Wire, _| {
            while let Ok(Some((line, _))) = wire.head() {
                if line.contains("/0 ") {
                    wire.write(&reply(200, "")).unwrap();
                    continue;
                }
                let whole = chunked(&[1000; 30], "");
                let (first, rest) = whole.split_at(whole.len() - 100);
                wire.write(first).unwrap();
                opened.pass();
                wire.write(rest).unwrap();
            }
        });
        let gateway = start(&store, "10000B", "bytes = \"response\", reserve = \"4KiB\"", &upstream);
        let mut client = gateway.client();
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        let (_, framing) = client.try_head().unwrap();
        until("what has passed is charged", PATIENCE, || gateway.used("l", "127.0.0.1") >= 29_000);
        assert_eq!(gateway.client().get("/0").status, 429, "{software:?}");
        gate.open();
        client.wire.body(framing, &mut |_| ()).unwrap();
        until("all of it is charged", PATIENCE, || gateway.used("l", "127.0.0.1") == 30_000);
    }
}

#[test]
fn a_body_without_a_length_needs_room_for_a_step() {
    every_store(|store| {
        let upstream = files();
        let gateway = start(store, "10000B", "bytes = \"response\", reserve = \"4KB\"", &upstream);
        let mut client = gateway.client();
        assert_eq!(client.get("/7000").status, 200);
        let refused = client.get("/chunked/10");
        assert_eq!((refused.status, state(&refused)), (429, 3000));
        let said = "of which 3KB are left, and this request costs 4KB.";
        assert!(refused.text().contains(said), "{}", refused.text());
        assert_eq!(client.get("/3000").status, 200);
    });
}

#[test]
fn a_client_that_leaves_pays_for_what_was_sent() {
    every_store(|store| {
        let upstream = Upstream::raw(|mut wire: Wire, _| {
            while let Ok(Some((line, _))) = wire.head() {
                let response = if line.contains("/0 ") {
                    reply(200, "")
                } else {
                    format!("HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n{}", "x".repeat(1000)).into_bytes()
                };
                wire.write(&response).unwrap();
            }
        });
        let gateway = start(store, "100000B", "bytes = \"response\"", &upstream);
        let mut client = gateway.client();
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        client.try_head().unwrap();
        client.wire.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(left(&gateway), 50_000, "all of it is reserved");
        drop(client);
        settles_at(&gateway, 99_000);
    });
}

#[test]
fn an_upstream_that_breaks_its_length_costs_what_it_has_sent() {
    every_store(|store| {
        let upstream = Upstream::raw(|mut wire: Wire, _| {
            if let Ok(Some((line, _))) = wire.head() {
                let stated = if line.contains("/0 ") { 0 } else { 50_000 };
                let sent = "x".repeat(stated / 50);
                wire.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {stated}\r\n\r\n{sent}").as_bytes()).unwrap();
            }
        });
        let gateway = start(store, "100000B", "bytes = \"response\"", &upstream);
        let mut client = gateway.client();
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        let (_, framing) = client.try_head().unwrap();
        let mut passed = 0;
        assert!(client.wire.body(framing, &mut |piece| passed += piece.len()).is_err());
        assert_eq!(passed, 1000);
        settles_at(&gateway, 99_000);
    });
}

#[test]
fn answers_of_the_gateway_cost_nothing() {
    every_store(|store| {
        let upstream = Upstream::raw(|_, _| {});
        let gateway = start(store, "10000B", "bytes = \"both\"", &upstream);
        for _ in 0..3 {
            let answer = gateway.client().call("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
            assert_eq!((answer.status, state(&answer)), (502, 10_000));
        }
    });
}

#[test]
fn a_limit_that_only_reports_lets_pass_and_does_not_charge_what_has_no_room() {
    every_store(|store| {
        let upstream = files();
        let text = limit("10000B", "bytes = \"response\"") + "on_limit = \"shadow\"\n";
        let gateway = Gateway::start(&format!("{store}{text}{}limits = [\"l\"]\n", upstream.everything()));
        let mut client = gateway.client();
        assert_eq!(client.get("/7000").headers.get("ratelimit-shadow"), None);
        let over = client.get("/7000");
        assert_eq!((over.status, over.body.len(), over.headers.must("ratelimit-shadow")), (200, 7000, "\"l\""));
        assert_eq!(client.get("/3000").headers.get("ratelimit-shadow"), None);
        assert_eq!(client.get("/1").headers.must("ratelimit-shadow"), "\"l\"");
    });
}

#[test]
fn two_limits_are_charged_together_or_not_at_all() {
    every_store(|store| {
        let upstream = files();
        let second = limit("5000B", "bytes = \"response\"").replace("limits.l", "limits.m");
        let text = format!(
            "{store}{}{second}{}limits = [\"l\", \"m\"]\n",
            limit("10000B", "bytes = \"both\""),
            upstream.everything()
        );
        let gateway = Gateway::start(&text);
        let mut client: Client = gateway.client();
        assert_eq!(client.get("/4000").status, 200);
        assert_eq!(client.get("/4000").status, 429);
        let last = client.get("/1000");
        assert_eq!((last.status, state(&last)), (200, 0));
        let lines = gateway.wait_log("the last", |line| line["bytes"] == 1000);
        assert_eq!(lines["remaining"]["l"], 6000, "{lines}");
    });
}

#[test]
fn bodies_without_a_length_side_by_side_pass_no_more_than_there_is_room_for() {
    every_store(|store| {
        let upstream = files();
        let cost = "bytes = \"response\", reserve = \"700B\", on_exhausted = \"cut\"";
        let gateway = start(store, "50000B", cost, &upstream);
        let clients: Vec<_> = (0..40)
            .map(|_| {
                let mut client = gateway.client();
                thread::spawn(move || {
                    client.send("GET /drip/5000 HTTP/1.1\r\nHost: h\r\n\r\n");
                    let (head, framing) = client.try_head().unwrap();
                    let mut passed = 0;
                    let is_whole = client.wire.body(framing, &mut |piece| passed += piece.len()).is_ok();
                    if head.status == 200 { (passed, is_whole) } else { (0, false) }
                })
            })
            .collect();
        let all: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let passed: usize = all.iter().map(|(passed, _)| passed).sum();
        assert!((30_000..=50_000).contains(&passed), "{passed}: {all:?}");
        assert!(all.iter().any(|(_, is_whole)| !is_whole), "{all:?}");
        until("what has passed is charged", PATIENCE, || gateway.used("l", "127.0.0.1") == passed as u64);
    });
}

#[test]
fn a_thousand_downloads_over_http2_are_no_different() {
    let upstream = files();
    let gateway = start("", "25000B", "bytes = \"response\"", &upstream);
    let request = || http::Request::get("http://test.example/1000").body(()).unwrap();
    let all = crate::harness::over_http2(gateway.http, (0..200).map(|_| request()).collect());
    assert_eq!(all.iter().filter(|(status, _)| *status == 200).count(), 25);
}
