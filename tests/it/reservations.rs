//! Requests whose cost only the response tells count before it, so simultaneous requests cannot exceed the limit.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::http2_server::Http2Server;
use crate::harness::{
    Client, Gate, Gateway, Response, Software, Upstream, Wire, closed_port, every_store, reply, until, with_each_server,
};

const PATIENCE: Duration = Duration::from_secs(10);
const FAILURES: &str = "count = { status = [\"401\"] }";

/// Answers when the gate is open: 200 if the request has a password, and an error otherwise.
fn logins(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |request| {
        gate.pass();
        reply(if request.headers.get("x-password").is_some() { 200 } else { 401 }, "said")
    })
}

/// A limit of five failures a day with this strategy, for all requests.
fn five(strategy: &str, more: &str) -> String {
    let rate = if strategy == "calendar" { "5/day" } else { "5/d" };
    let strategy = if strategy == "calendar" { String::new() } else { format!("strategy = \"{strategy}\"\n") };
    format!("[limits.l]\nkey = \"global\"\nrates = [\"{rate}\"]\n{strategy}{FAILURES}\n{more}\n")
}

fn on_everything(upstream: &Upstream) -> String {
    upstream.everything() + "limits = [\"l\"]\n"
}

fn fail(client: &mut Client) -> Response {
    client.get("/login")
}

fn succeed(client: &mut Client) -> Response {
    client.get_with("/login", "X-Password: right\r\n")
}

fn remaining(response: &Response) -> u64 {
    let state = response.headers.must("ratelimit");
    state.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

fn everywhere(test: impl Fn(&str, &str)) {
    const STRATEGIES: [&str; 5] = ["sliding-window", "fixed-window", "moving-window", "token-bucket", "calendar"];
    STRATEGIES.iter().for_each(|strategy| test("[store]\ntype = \"memory\"\n", strategy));
    for software in Software::ALL {
        let server = software.start();
        for strict in ["", "strict = true"] {
            let store = server.store_with(&format!("on_error = \"reject\"\ntimeout = \"5s\"\n{strict}"));
            for strategy in STRATEGIES {
                server.flush();
                test(&store, strategy);
            }
        }
        assert!(server.commands() > 0, "{software:?} was never asked");
    }
}

/// Sends requests at the same time: refused ones are answered at once, the others when the gate opens.
fn at_once(gateway: &Gateway, count: usize, gate: &Gate, refused: usize) -> Vec<u16> {
    let back = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let (mut client, back) = (gateway.client(), back.clone());
            thread::spawn(move || {
                let status = fail(&mut client).status;
                back.fetch_add(1, Ordering::SeqCst);
                status
            })
        })
        .collect();
    until("the others are refused", PATIENCE, || back.load(Ordering::SeqCst) >= refused);
    gate.open();
    clients.into_iter().map(|client| client.join().unwrap()).collect()
}

#[test]
fn thirty_failures_at_once_do_not_pass_a_limit_of_five() {
    everywhere(|store, strategy| {
        let gate = Gate::default();
        let upstream = logins(&gate);
        let gateway = Gateway::start(&format!("{store}{}{}", five(strategy, ""), on_everything(&upstream)));
        let statuses = at_once(&gateway, 30, &gate, 25);
        let of = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((of(401), of(429)), (5, 25), "{strategy}, {store}");
        assert_eq!(upstream.received().len(), 5, "{strategy}, {store}");
    });
}

#[test]
fn thirty_successes_leave_nothing_counted() {
    everywhere(|store, strategy| {
        let upstream = logins(&Gate::opened());
        let gateway = Gateway::start(&format!("{store}{}{}", five(strategy, ""), on_everything(&upstream)));
        let mut client = gateway.client();
        for at in 0..30 {
            let answer = succeed(&mut client);
            assert_eq!((answer.status, remaining(&answer)), (200, 5), "{at}, {strategy}, {store}");
        }
        let failed = fail(&mut client);
        assert_eq!((failed.status, remaining(&failed)), (401, 4), "{strategy}, {store}");
        for _ in 0..30 {
            assert_eq!(remaining(&succeed(&mut client)), 4, "{strategy}, {store}");
        }
        assert!((0..4).all(|_| fail(&mut client).status == 401), "{strategy}, {store}");
        let refused = succeed(&mut client);
        assert_eq!((refused.status, remaining(&refused)), (429, 0), "{strategy}, {store}");
        assert!(refused.headers.must("retry-after").parse::<u64>().unwrap() > 0);
    });
}

fn successful_requests_leave_no_trace_in_the_store(software: Software) {
    let server = software.start();
    let upstream = logins(&Gate::opened());
    let store = server.store_with("on_error = \"reject\"\ntimeout = \"5s\"");
    let gateway = Gateway::start(&format!("{store}{}{}", five("sliding-window", ""), on_everything(&upstream)));
    let mut client = gateway.client();
    assert!((0..30).all(|_| succeed(&mut client).status == 200));
    assert_eq!(fail(&mut client).status, 401);
    until("it counts the one that failed", PATIENCE, || server.counted() == 1);
}

#[test]
fn a_client_that_leaves_before_the_response_is_charged() {
    everywhere(|store, strategy| {
        let upstream = Upstream::raw(|mut wire, _| while wire.head().is_ok_and(|head| head.is_some()) {});
        let gateway = Gateway::start(&format!("{store}{}{}", five(strategy, ""), on_everything(&upstream)));
        for gone in 1..=5 {
            let mut client = gateway.client();
            client.send("GET /login HTTP/1.1\r\nHost: h\r\n\r\n");
            upstream.wait_connections(gone);
        }
        until("all are noticed to be gone", PATIENCE, || {
            gateway.log().iter().filter(|line| line.contains("\"message\":\"request\"")).count() == 5
        });
        assert_eq!(fail(&mut gateway.client()).status, 429, "{strategy}, {store}");
    });
}

#[test]
fn a_failed_upstream_is_counted_by_the_status_of_the_gateway() {
    everywhere(|store, strategy| {
        let (_held, address) = closed_port();
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
        let routes = format!("[upstreams.up]\nservers = [\"http://{address}\"]\n{route}");
        let gateway = Gateway::start(&format!("{store}{}{routes}", five(strategy, "")));
        let mut client = gateway.client();
        for _ in 0..7 {
            let answer = fail(&mut client);
            assert_eq!((answer.status, remaining(&answer)), (502, 5), "{strategy}, {store}");
        }
        let counted = five(strategy, "").replace("401", "502");
        let gateway = Gateway::start(
            &format!("{store}{}{routes}", counted.replace("limits.l", "limits.m")).replace("[\"l\"]", "[\"m\"]"),
        );
        let mut client = gateway.client();
        let statuses: Vec<_> = (0..7).map(|_| fail(&mut client).status).collect();
        assert_eq!(statuses, [502, 502, 502, 502, 502, 429, 429], "{strategy}, {store}");
    });
}

#[test]
fn a_request_that_another_limit_refuses_reserves_nothing() {
    everywhere(|store, strategy| {
        let upstream = logins(&Gate::opened());
        let other =
            "[limits.other]\nkey = \"header:x-other\"\nrates = [\"2/d\"]\nmissing = \"skip\"\nheaders = \"none\"\n";
        let routes = upstream.everything() + "limits = [\"l\", \"other\"]\n";
        let gateway = Gateway::start(&format!("{store}{}{other}{routes}", five(strategy, "")));
        let mut client = gateway.client();
        let statuses: Vec<_> =
            (0..9).map(|_| client.get_with("/", "X-Other: 1\r\nX-Password: right\r\n").status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{strategy}, {store}");
        assert_eq!(remaining(&succeed(&mut client)), 5, "{strategy}, {store}");
    });
}

#[test]
fn a_shadow_limit_reserves_but_refuses_no_request() {
    everywhere(|store, strategy| {
        let gate = Gate::default();
        let upstream = logins(&gate);
        let limit = five(strategy, "on_limit = \"shadow\"");
        let gateway = Gateway::start(&format!("{store}{limit}{}", on_everything(&upstream)));
        let clients: Vec<_> = (0..12)
            .map(|_| {
                let mut client = gateway.client();
                thread::spawn(move || fail(&mut client).headers.get("ratelimit-shadow").is_some())
            })
            .collect();
        until("all are there", PATIENCE, || upstream.received().len() == 12);
        gate.open();
        let shadowed = clients.into_iter().map(|client| client.join().unwrap()).filter(|said| *said).count();
        assert_eq!(shadowed, 7, "{strategy}, {store}");
    });
}

#[test]
fn a_held_request_passes_when_a_reservation_is_given_back() {
    everywhere(|store, strategy| {
        let gate = Gate::default();
        let upstream = logins(&gate);
        let limit = five(strategy, "on_limit = \"delay\"\nmax_delay = \"10s\"");
        let gateway = Gateway::start(&format!("{store}{limit}{}", on_everything(&upstream)));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let mut client = gateway.client();
                thread::spawn(move || succeed(&mut client).status)
            })
            .collect();
        until("five are there", PATIENCE, || upstream.received().len() == 5);
        until("three are held", PATIENCE, || gateway.metric("gateway_requests_held") == Some(3.0));
        gate.open();
        assert!(clients.into_iter().all(|client| client.join().unwrap() == 200), "{strategy}, {store}");
    });
}

#[test]
fn reserve_is_charged_until_the_cost_is_known() {
    everywhere(|store, strategy| {
        let gate = Gate::default();
        let behind = gate.clone();
        let upstream = Upstream::start(move |request| {
            behind.pass();
            let cost = request.target.trim_start_matches('/');
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Cost: {cost}\r\n\r\nok").into_bytes()
        });
        let limit = five(strategy, "").replace(FAILURES, "cost = { response_header = \"x-cost\", reserve = 2 }");
        let gateway = Gateway::start(&format!("{store}{limit}{}", on_everything(&upstream)));
        let clients = [0, 3].map(|cost: u64| {
            let mut client = gateway.client();
            thread::spawn(move || client.get(&format!("/{cost}")).status)
        });
        until("two are there", PATIENCE, || upstream.received().len() == 2);
        let refused = gateway.client().get("/0");
        assert_eq!((refused.status, remaining(&refused)), (429, 1), "{strategy}, {store}");
        gate.open();
        assert!(clients.into_iter().all(|client| client.join().unwrap() == 200));
        let mut client = gateway.client();
        let answer = client.get("/0");
        assert_eq!((answer.status, remaining(&answer)), (200, 2), "three of five are gone: {strategy}, {store}");
        let answer = client.get("/9");
        assert_eq!((answer.status, remaining(&answer)), (200, 0), "{strategy}, {store}");
        assert_eq!(client.get("/0").status, 429, "twelve of five are gone: {strategy}, {store}");
    });
}

fn another_gateway_can_use_what_one_gives_back(software: Software) {
    for strict in [false, true] {
        let server = software.start();
        let store = server.store_with(&format!("on_error = \"reject\"\ntimeout = \"5s\"\nstrict = {strict}"));
        for strategy in ["sliding-window", "fixed-window", "moving-window", "token-bucket", "calendar"] {
            server.flush();
            let gate = Gate::default();
            let upstream = logins(&gate);
            let look = "[[routes]]\npath = \"/look\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n";
            let config = format!("{store}{}{}{look}", five(strategy, ""), on_everything(&upstream));
            let gateways = [Gateway::start(&config), Gateway::start(&config)];
            let clients: Vec<_> = (0..5)
                .map(|_| {
                    let mut client = gateways[0].client();
                    thread::spawn(move || succeed(&mut client).status)
                })
                .collect();
            until("five are there", PATIENCE, || upstream.received().len() == 5);
            let mut client = gateways[1].client();
            // The gateway answers `/look` without the upstream, and it costs nothing.
            until("the other one knows", PATIENCE, || client.get("/look").status == 429);
            gate.open();
            assert!(clients.into_iter().all(|client| client.join().unwrap() == 200));
            // A token bucket may have drained a little in the meantime, and only whole tokens count.
            let least = if strategy == "token-bucket" { 4 } else { 5 };
            until("there is room again", PATIENCE, || remaining(&client.get("/look")) >= least);
        }
    }
}

fn decisions(gateway: &Gateway, decision: &str) -> u64 {
    let metrics = gateway.admin("/metrics");
    let lines = metrics.text().lines().filter(|line| line.starts_with("gateway_limit_decisions_total"));
    let of = lines.filter_map(|line| line.split(&format!("decision=\"{decision}\"}} ")).nth(1));
    of.map(|count| count.parse::<u64>().unwrap()).sum()
}

fn a_request_that_the_store_cannot_decide_is_neither_charged_nor_admitted(software: Software) {
    for strict in [false, true] {
        let mut servers = [software.start(), software.start()];
        let addresses = servers.each_ref().map(|server| server.address);
        let more = format!("on_error = \"reject\"\ntimeout = \"5s\"\nstrict = {strict}");
        let store = software.store(&addresses, &more);
        let limit =
            |name: &str, more: &str| format!("[limits.{name}]\nkey = \"header:x-key\"\nrates = [\"100/d\"]\n{more}\n");
        let limits = limit("plain", "")
            + &limit("costs", "cost = { response_header = \"x-cost\" }")
            + "[limits.flights]\nkey = \"header:x-key\"\nmax_in_flight = 9\n";
        let upstream = Upstream::start(|_| reply(200, "ok"));
        let routes = upstream.everything() + "limits = [\"plain\", \"costs\", \"flights\"]\n";
        let gateway = Gateway::start(&format!("{store}{limits}{routes}"));
        let mut client = gateway.client();
        until("both are there", PATIENCE, || client.get_with("/", "X-Key: warm\r\n").status == 200);
        servers[1].kill();
        // Some of these keys have a counter on the server that is away.
        let ask = |client: &mut Client, key: usize| client.get_with("/", format!("X-Key: {key}\r\n"));
        until("it is known to be away", PATIENCE, || (0..40).any(|key| ask(&mut client, key).status == 503));
        let counted = || servers[0].counted();
        let (mut before, mut since) = (counted(), Instant::now());
        until("what was admitted so far is counted, and what was not is given back", PATIENCE, || {
            if std::mem::replace(&mut before, counted()) != before {
                since = Instant::now();
            }
            since.elapsed() >= Duration::from_secs(1)
        });
        let (admitted, unknown) = (decisions(&gateway, "admitted"), decisions(&gateway, "unknown"));
        let passed = (0..40).filter(|key| ask(&mut client, *key).status == 200).count() as u64;
        assert!((1..40).contains(&passed), "{passed} of 40 have both counters on the server that is there");
        assert_eq!(decisions(&gateway, "admitted") - admitted, 3 * passed, "strict: {strict}");
        assert_eq!(decisions(&gateway, "unknown") - unknown, 2 * (40 - passed), "strict: {strict}");
        until("what passed is counted", PATIENCE, || counted() >= before + 2 * passed);
        // Any other charge would be written now.
        assert_eq!(ask(&mut client, 99).status, ask(&mut client, 99).status);
        assert!(counted() <= before + 2 * passed + 4, "strict: {strict}");
    }
}

#[test]
fn a_client_that_breaks_off_its_body_is_charged() {
    every_store(|store| {
        let upstream = logins(&Gate::opened());
        let gateway = Gateway::start(&format!("{store}{}{}", five("sliding-window", ""), on_everything(&upstream)));
        for tried in 1..=5 {
            let mut client = gateway.client();
            client.send("POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab");
            upstream.wait_connections(tried);
            client.wire.stream().shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.response(false).status, 400, "{store}");
        }
        assert_eq!(fail(&mut gateway.client()).status, 429, "{store}");
    });
}

/// How a request ends, and how many of seven reach the upstream with a limit of five failures.
struct Ending {
    name: &'static str,
    /// More lines of the request head, and what follows the head.
    request: (&'static str, &'static str),
    /// More keys of the upstream and of the server.
    keys: (&'static str, &'static str),
    /// What the upstream does after the request head.
    upstream: fn(&mut Wire),
}

#[test]
fn whatever_has_reached_an_upstream_and_got_no_answer_stays_charged() {
    const SILENT: fn(&mut Wire) = |wire| _ = wire.rest();
    const GRPC: &str = "Content-Type: application/grpc\r\nTE: trailers\r\n";
    let endings = [
        Ending {
            name: "the client's deadline has passed",
            request: ("Content-Type: application/grpc\r\nGrpc-Timeout: 100m\r\nContent-Length: 0\r\n", ""),
            keys: ("", ""),
            upstream: SILENT,
        },
        Ending {
            name: "the body of a call breaks off",
            request: ("Content-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n", "9\r\n12"),
            keys: ("", ""),
            upstream: SILENT,
        },
        Ending {
            name: "the body is too large",
            request: ("Transfer-Encoding: chunked\r\n", "9\r\n123456789\r\n"),
            keys: ("", "max_body_size = \"8B\"\n"),
            upstream: SILENT,
        },
        Ending {
            name: "the body of a call does not come",
            request: ("Content-Type: application/grpc\r\nContent-Length: 9\r\n", "1"),
            keys: ("", "body_timeout = \"100ms\"\n"),
            upstream: SILENT,
        },
        Ending {
            name: "the upstream is too slow",
            request: ("Content-Length: 0\r\n", ""),
            keys: ("timeout = \"100ms\"\n", ""),
            upstream: SILENT,
        },
        Ending {
            name: "the upstream closes",
            request: ("Content-Length: 0\r\n", ""),
            keys: ("", ""),
            upstream: |_| {},
        },
        Ending {
            name: "the upstream does not speak HTTP",
            request: (GRPC, ""),
            keys: ("", ""),
            upstream: |wire| _ = wire.write(b"220 mail.example ESMTP\r\n"),
        },
    ];
    for Ending { name, request: (fields, body), keys: (keys, server), upstream } in endings {
        every_store(|store| {
            let up = Upstream::raw(move |mut wire, _| {
                if let Ok(Some(_)) = wire.head() {
                    upstream(&mut wire);
                }
            });
            let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
            let rest = format!("{store}{}{}{keys}{route}", five("sliding-window", ""), up.section());
            let gateway = Gateway::with_server(server, &rest);
            let is_limited =
                |response: &Response| response.status == 429 || response.headers.get("grpc-status") == Some("8");
            let limited: Vec<_> = (0..7)
                .map(|tried| {
                    let mut client = gateway.client();
                    client.send(format!("POST /login HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"));
                    if name.contains("breaks off") {
                        up.wait_connections(tried.min(4) + 1);
                        client.wire.stream().shutdown(Shutdown::Write).unwrap();
                    }
                    is_limited(&client.response(false))
                })
                .collect();
            assert_eq!(limited, [false, false, false, false, false, true, true], "{name}, {store}");
        });
    }
}

#[test]
fn streams_of_http_2_are_charged_unless_the_server_has_refused_them() {
    let deadline = "Content-Type: application/grpc\r\nGrpc-Timeout: 100m\r\n";
    for (fields, keys, reset, charged) in [
        (deadline, "", None, true),
        ("", "timeout = \"100ms\"\n", None, true),
        ("", "", Some(h2::Reason::INTERNAL_ERROR), true),
        ("", "", Some(h2::Reason::REFUSED_STREAM), false),
    ] {
        let up = Http2Server::start(None, h2::server::Builder::new(), move |_, mut respond| async move {
            match reset {
                Some(reason) => respond.send_reset(reason),
                None => _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await,
            }
        });
        let route = up.everything("http", keys).replace("upstream = \"up\"\n", "upstream = \"up\"\nlimits = [\"l\"]\n");
        let gateway = Gateway::start(&format!("{}{route}", five("sliding-window", "")));
        let post = format!("POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{fields}\r\n");
        let limited = |response: Response| response.status == 429 || response.headers.get("grpc-status") == Some("8");
        let last: Vec<_> = (0..7).map(|_| limited(gateway.client().call(&post))).skip(4).collect();
        assert_eq!(last, [false, charged, charged], "{fields}{keys}{reset:?}");
    }
}

with_each_server! {
    successful_requests_leave_no_trace_in_the_store
    another_gateway_can_use_what_one_gives_back
    a_request_that_the_store_cannot_decide_is_neither_charged_nor_admitted
}
