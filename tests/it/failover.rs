//! Servers that fail: which requests go to another server, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream, closed_port, reply, until};

/// Everything goes to these servers in turns.
fn in_turns(addresses: &[std::net::SocketAddr], more: &str) -> String {
    let servers: Vec<_> = addresses.iter().map(|address| format!("\"http://{address}\"")).collect();
    let servers = servers.join(", ");
    format!(
        "[upstreams.up]\nservers = [{servers}]\nbalance = \"round-robin\"\n{more}\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
    )
}

/// Reads each request and closes the connection without a response.
fn closing() -> Upstream {
    Upstream::raw(|mut wire, _| _ = wire.head())
}

/// Never ejects a server, so the turns stay the same.
const NO_EJECTION: &str = "eject = false";

#[test]
fn a_connection_that_cannot_be_made_is_tried_at_another_server() {
    let up = Upstream::start(|received| reply(200, &String::from_utf8_lossy(&received.body)));
    let (_held, away) = closed_port();
    let gateway = Gateway::start(&in_turns(&[away, up.address()], &format!("retries = 0\n{NO_EJECTION}")));
    let mut client = gateway.client();
    for index in 0..20 {
        let body = format!("{index:03}");
        let response = client.call(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{body}"));
        assert_eq!((response.status, response.text()), (200, body.as_str()), "nothing was sent, so any method may be");
    }
    assert_eq!(up.received().len(), 20);
    let failures = gateway.metric("gateway_upstream_failures_total").unwrap();
    assert!((9.0..=11.0).contains(&failures), "{failures}: each failed attempt is counted");
    assert_eq!(gateway.metric("gateway_request_failures_total"), Some(0.0), "and no request");
}

#[test]
fn each_server_is_tried_once_if_all_are_away() {
    let held: Vec<_> = (0..3).map(|_| closed_port()).collect();
    let addresses: Vec<_> = held.iter().map(|(_, address)| *address).collect();
    let gateway = Gateway::start(&in_turns(&addresses, ""));
    gateway.client().get("/").expect_problem(502);
    assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(3.0));
}

#[test]
fn only_idempotent_requests_are_sent_again_after_a_server_may_have_got_them() {
    let (bad, good) =
        (closing(), Upstream::start(|received| reply(200, if received.method == "HEAD" { "" } else { "ok" })));
    let gateway = Gateway::start(&in_turns(&[bad.address(), good.address()], NO_EJECTION));
    let mut client = gateway.client();
    let mut statuses = |method| {
        // One request begins at the bad server, the other at the good one.
        let mut ask = || client.call(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")).status;
        let mut statuses = [ask(), ask()];
        statuses.sort_unstable();
        statuses
    };
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        assert_eq!(statuses(method), [200, 200], "{method}");
    }
    for method in ["POST", "PATCH", "SUBSCRIBE"] {
        assert_eq!(statuses(method), [200, 502], "{method}");
    }
    assert!(good.received().iter().all(|received| received.body == b"ab"), "the body is sent again as well");
}

#[test]
fn a_body_that_is_too_large_to_be_kept_is_not_sent_again() {
    let good = Upstream::start(|received| reply(200, &received.body.len().to_string()));
    let bad = Upstream::raw(|mut wire, _| {
        if let Ok(Some((_, headers))) = wire.head()
            && let Ok(framing) = headers.framing(crate::harness::Framing::Length(0))
        {
            let _ = wire.body(framing, &mut |_| {});
        }
    });
    let more = format!("{NO_EJECTION}\n[upstreams.up.retry]\nmax_body = \"1000B\"");
    for (size, is_chunked, expected) in
        [(1000, false, 200), (1001, false, 502), (1000, true, 200), (1001, true, 502), (200_000, true, 502)]
    {
        let gateway = Gateway::start(&in_turns(&[bad.address(), good.address()], &more));
        let body = "x".repeat(size);
        let request = if is_chunked {
            let pieces = body
                .as_bytes()
                .chunks(100)
                .map(|piece| format!("{:x}\r\n{}\r\n", piece.len(), "x".repeat(piece.len())));
            format!(
                "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
                pieces.collect::<String>()
            )
        } else {
            format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}")
        };
        let response = gateway.client().call(request);
        assert_eq!(response.status, expected, "{size} bytes, in chunks: {is_chunked}");
        if expected == 200 {
            assert_eq!(response.text(), size.to_string());
        }
    }
}

#[test]
fn a_request_is_sent_again_as_often_as_configured() {
    let servers: Vec<_> = (0..5).map(|_| closing()).collect();
    let addresses: Vec<_> = servers.iter().map(Upstream::address).collect();
    for (retries, attempts) in [(0, 1), (1, 2), (3, 4), (10, 5)] {
        let gateway = Gateway::start(&in_turns(&addresses, &format!("retries = {retries}")));
        gateway.client().get("/").expect_problem(502);
        assert_eq!(gateway.metric("gateway_upstream_failures_total"), Some(f64::from(attempts)));
    }
}

#[test]
fn garbage_and_silence_are_failures_too() {
    let good = Upstream::start(|_| reply(200, "ok"));
    let garbage = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"garbage\r\n\r\n");
        let _ = wire.rest();
    });
    let silent = Upstream::raw(|mut wire, _| _ = wire.rest());
    for bad in [garbage, silent] {
        let more = format!("timeout = \"4s\"\n{NO_EJECTION}");
        let gateway = Gateway::start(&in_turns(&[bad.address(), good.address()], &more));
        assert_eq!(gateway.client().get("/").text(), "ok");
        assert_eq!(gateway.metric("gateway_upstream_retries_total"), Some(1.0));
    }
}

#[test]
fn a_listed_status_is_a_reason_to_try_another_server() {
    let (bad, good) = (Upstream::start(|_| reply(503, "busy")), Upstream::start(|_| reply(200, "ok")));
    let retry = format!("{NO_EJECTION}\n[upstreams.up.retry]\nstatus = [\"502\", \"503\"]");
    let gateway = Gateway::start(&in_turns(&[bad.address(), good.address()], &retry));
    let mut client = gateway.client();
    for _ in 0..4 {
        assert_eq!(client.get("/").text(), "ok");
    }
    let response = client.call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let other = client.call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let mut bodies = [response.text(), other.text()];
    bodies.sort_unstable();
    assert_eq!(bodies, ["busy", "ok"], "the answer of the server passes if the request cannot be sent again");
    let gateway = Gateway::start(&in_turns(&[bad.address()], &retry));
    assert_eq!(
        (gateway.client().get("/").status, gateway.client().get("/").text()),
        (503, "busy"),
        "there is no other"
    );
}

#[test]
fn a_listed_response_is_given_up_only_for_another_one() {
    let busy = || Upstream::start(|_| b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy".to_vec());
    let expect_busy = |gateway: &Gateway| {
        let response = gateway.client().get("/");
        assert_eq!((response.status, response.text(), response.headers.must("retry-after")), (503, "busy", "7"));
    };
    let listed = "[upstreams.up.retry]\nstatus = [503]";
    let (_held, away) = closed_port();
    let server = busy();
    // First the gateway does not know that the other server is away, and then it does.
    let gateway =
        Gateway::start(&in_turns(&[server.address(), away], &format!("eject = {{ failures = 1 }}\n{listed}")));
    (0..6).for_each(|_| expect_busy(&gateway));
    assert_eq!(gateway.metric("gateway_upstream_server_ejections_total"), Some(1.0));
    assert!(gateway.metric("gateway_upstream_failures_total").is_some_and(|failures| failures <= 2.0));
    assert_eq!(server.received().len(), 6);
    // The other server closes the connection, or is busy, too.
    for other in [closing(), busy()] {
        let more = format!("retries = 3\n{NO_EJECTION}\n{listed}");
        let gateway = Gateway::start(&in_turns(&[server.address(), other.address()], &more));
        (0..4).for_each(|_| expect_busy(&gateway));
        assert_eq!(gateway.metric("gateway_request_failures_total"), Some(0.0));
    }
}

#[test]
fn what_the_application_answers_ejects_no_server() {
    let servers: Vec<_> = (0..3).map(|_| Upstream::start(|_| reply(503, "busy"))).collect();
    let addresses: Vec<_> = servers.iter().map(Upstream::address).collect();
    let gateway = Gateway::start(&in_turns(&addresses, "[upstreams.up.eject]\nfailures = 1"));
    let mut client = gateway.client();
    (0..30).for_each(|_| assert_eq!(client.get("/").status, 503));
    assert!(servers.iter().all(|server| server.received().len() >= 8));
    assert_eq!(gateway.metric("gateway_upstream_server_ejections_total"), Some(0.0));
}

#[test]
fn a_server_may_never_be_ejected() {
    let (good, (_held, away)) = (Upstream::start(|_| reply(200, "ok")), closed_port());
    let gateway = Gateway::start(&in_turns(&[good.address(), away], NO_EJECTION));
    let mut client = gateway.client();
    (0..40).for_each(|_| assert_eq!(client.get("/").status, 200));
    assert_eq!(gateway.metric("gateway_upstream_server_ejections_total"), Some(0.0));
    assert!(gateway.metric("gateway_upstream_failures_total").is_some_and(|failures| failures >= 19.0));
}

#[test]
fn the_budget_bounds_what_a_failing_upstream_gets_in_addition() {
    let deliveries = Arc::new(AtomicUsize::new(0));
    let servers: Vec<_> = (0..2)
        .map(|_| {
            let deliveries = deliveries.clone();
            Upstream::raw(move |mut wire, _| {
                if matches!(wire.head(), Ok(Some(_))) {
                    deliveries.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let addresses: Vec<_> = servers.iter().map(Upstream::address).collect();
    let more = format!("{NO_EJECTION}\n[upstreams.up.retry]\nbudget = 0.1");
    let gateway = Gateway::start(&in_turns(&addresses, &more));
    let mut client = gateway.client();
    (0..200).for_each(|_| client.get("/").expect_problem(502));
    // Thirty in ten seconds are always allowed, and a tenth of 200 is less.
    assert_eq!(deliveries.load(Ordering::SeqCst), 230);
    assert_eq!(gateway.metric("gateway_upstream_retries_total"), Some(30.0));
    assert_eq!(gateway.metric("gateway_upstream_retries_over_budget_total"), Some(170.0));
}

#[test]
fn one_client_with_requests_that_always_fail_leaves_a_part_of_the_budget_to_others() {
    let servers = [0, 1].map(|_| {
        Upstream::start(
            |request| if request.target == "/good" { reply(200, "ok") } else { b"no response\r\n\r\n".to_vec() },
        )
    });
    let more = format!("{NO_EJECTION}\n[upstreams.up.retry]\nbudget = 0.1");
    let config = in_turns(&servers.each_ref().map(Upstream::address), &more);
    // The gateway counts for ten seconds, and knows for two seconds whom it has answered.
    let is_in_time = |longest: Duration, all: Duration| longest.as_millis() < 1900 && all.as_secs() < 9;
    for attempt in 0..3 {
        let gateway = Gateway::start(&config);
        let retries = || gateway.metric("gateway_upstream_retries_total");
        let [mut bad, mut other] = [7, 8].map(|last| Client::connect_from([127, 0, 0, last].into(), gateway.http));
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        for _ in 0..60 {
            let asked = Instant::now();
            assert_eq!(other.get("/good").status, 200);
            bad.get("/bad").expect_problem(502);
            longest = longest.max(asked.elapsed());
        }
        let by_one = retries();
        (0..20).for_each(|_| other.get("/bad").expect_problem(502));
        if attempt == 2 || is_in_time(longest, begun.elapsed()) {
            assert_eq!(by_one, Some(15.0), "half of the thirty that are always allowed");
            assert_eq!(retries(), Some(30.0));
            return;
        }
    }
}

#[test]
fn a_retry_for_which_no_server_has_room_takes_none_of_the_budget() {
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let busy = Upstream::raw(move |mut wire, _| {
        if matches!(wire.head(), Ok(Some(_))) {
            let _ = held.lock().unwrap().recv();
            let _ = wire.write(&reply(200, "busy"));
        }
    });
    let closing = closing();
    let more = format!("max_in_flight = 1\n{NO_EJECTION}\n[upstreams.up.retry]\nbudget = 1.0");
    let gateway = Gateway::start(&in_turns(&[closing.address(), busy.address()], &more));
    let mut waiting = gateway.client();
    waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    busy.wait_connections(1);
    let retries = || {
        let of = |name: &str| gateway.metric(name).unwrap_or_default();
        of("gateway_upstream_retries_total") + of("gateway_upstream_retries_over_budget_total")
    };
    let before = retries();
    (0..5).for_each(|_| gateway.client().get("/").expect_problem(502));
    assert!((retries() - before).abs() < 0.5, "{} of the budget", retries() - before);
    go.send(()).unwrap();
    assert_eq!(waiting.response(false).text(), "busy");
}

#[test]
fn a_server_that_fails_again_and_again_is_ejected_for_a_time() {
    let fails = Arc::new(AtomicBool::new(true));
    let switch = fails.clone();
    let flaky = Upstream::start(move |_| reply(if switch.load(Ordering::SeqCst) { 503 } else { 200 }, "flaky"));
    let good = Upstream::start(|_| reply(200, "good"));
    let more = "[upstreams.up.eject]\nfailures = 3\nstatus = [503]\nfor = \"300ms\"\nmax_for = \"300ms\"";
    let gateway = Gateway::start(&in_turns(&[flaky.address(), good.address()], more));
    let mut client = gateway.client();
    (0..100).for_each(|_| _ = client.get("/"));
    let line = gateway.wait_message("a server is ejected: it gets no requests for a time");
    assert_eq!((line["server"].as_str(), line["failures"].as_u64()), (Some(&*flaky.address().to_string()), Some(3)));
    assert!(flaky.received().len() < 50, "{} requests", flaky.received().len());
    fails.store(false, Ordering::SeqCst);
    gateway.wait_message("a server gets requests");
    until("it gets requests again", Duration::from_secs(10), || client.get("/").text() == "flaky");
    assert!(gateway.metric("gateway_upstream_server_ejections_total").unwrap() >= 1.0);
}

#[test]
fn the_last_server_is_never_ejected() {
    let bad = Upstream::start(|_| reply(503, "busy"));
    let (_held, away) = closed_port();
    let more = "retries = 0\n[upstreams.up.eject]\nfailures = 1\nstatus = [\"5xx\"]\nfor = \"1h\"\nmax_for = \"1h\"";
    let gateway = Gateway::start(&in_turns(&[bad.address(), away], more));
    let mut client = gateway.client();
    let statuses: Vec<_> = (0..20).map(|_| client.get("/").status).collect();
    assert!(statuses.iter().filter(|status| **status == 503).count() >= 10, "{statuses:?}");
    assert_eq!(gateway.metric("gateway_upstream_server_ejections_total"), Some(1.0));
}

#[test]
fn two_servers_of_which_one_is_killed_under_load_fail_no_idempotent_request() {
    let servers: Vec<_> = ["one", "two"].map(|name| Upstream::start(move |_| reply(200, name))).into();
    let (addresses, stop) =
        (servers.iter().map(Upstream::address).collect::<Vec<_>>(), Arc::new(AtomicBool::new(false)));
    let gateway = Gateway::start(&in_turns(&addresses, ""));
    let http = gateway.http;
    let load: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(http);
                let mut counts = [0, 0];
                while !stop.load(Ordering::SeqCst) {
                    counts[usize::from(client.get("/").status != 200)] += 1;
                }
                counts
            })
        })
        .collect();
    let [first, _] = <[Upstream; 2]>::try_from(servers).ok().unwrap();
    until("the load has begun", Duration::from_secs(10), || first.received().len() > 200);
    first.end();
    until("its failures are seen", Duration::from_secs(10), || {
        gateway.metric("gateway_upstream_server_ejections_total") >= Some(1.0)
    });
    stop.store(true, Ordering::SeqCst);
    let counts = load
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .fold([0, 0], |all, some| [all[0] + some[0], all[1] + some[1]]);
    assert_eq!(counts[1], 0, "{counts:?}");
}
