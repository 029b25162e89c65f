//! The configurations in docs/migrating.md: each of ours is valid, and admits the same as the one beside it. The tests run the
//! real nginx and HAProxy.

mod others;
mod page;
mod servers;
mod traffic;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Client, Gate, Response, Upstream, reply, run, until};

use page::{block, blocks};
use servers::{gateway, haproxy, nginx};
use traffic::{Bucket, Exchange, SlidingWindow, burst_then, connect, last_multiple, passed, request, send};

const PATIENCE: Duration = Duration::from_secs(20);
const CLIENT: &str = "198.51.100.7";
const OTHER: &str = "203.0.113.9";
/// An address of a network in the examples of allow lists.
const LISTED: &str = "10.1.2.3";

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn answering() -> Upstream {
    Upstream::start(|_| reply(200, "app"))
}

/// Sends the same traffic to a peer and to the gateway at the same time. Returns for each server what each client has sent.
#[track_caller]
fn both<const N: usize>(
    servers: [SocketAddr; 2],
    begun: Instant,
    traffic: [(&str, &[Duration]); N],
) -> [[Vec<Exchange>; N]; 2] {
    thread::scope(|scope| {
        let threads = servers
            .map(|server| traffic.map(|(client, schedule)| scope.spawn(move || send(server, client, begun, schedule))));
        threads.map(|threads| threads.map(|thread| thread.join().unwrap()))
    })
}

#[test]
fn our_configurations_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(folder.path().join("keys.txt"), "a\n").unwrap();
    let ours: Vec<_> = blocks().into_iter().filter(|block| block.language == "toml").collect();
    assert!(ours.len() > 10, "{} blocks", ours.len());
    let frame = block("toml", "frame");
    for page::Block { name, text, .. } in ours.into_iter().filter(|block| block.name != "frame") {
        std::fs::write(&file, format!("{frame}\n{text}")).unwrap();
        let checked = run(&["check", "--config", file.to_str().unwrap()]);
        let said = [checked.stdout, checked.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(checked.status.success() && !said.contains("warning"), "{name}: {said}");
    }
}

#[test]
fn each_configuration_of_another_project_has_one_of_ours() {
    let of = |is_ours: bool| {
        let some = blocks().into_iter().filter(|block| (block.language == "toml") == is_ours && block.name != "frame");
        let mut names: Vec<_> = some.map(|block| block.name).collect();
        names.sort();
        names
    };
    assert_eq!(of(true), of(false));
}

#[test]
#[ignore = "needs nginx"]
fn nginx_with_a_burst_and_without_a_queue_is_a_token_bucket() {
    let upstream = answering();
    let (peer, ours) = (nginx("nginx-burst", &upstream), gateway("nginx-burst", &upstream));
    let floods = burst_then(30, millis(50), millis(3000));
    let behaves = burst_then(1, millis(150), millis(3000));
    let traffic = [(CLIENT, floods.as_slice()), (OTHER, behaves.as_slice())];
    let [peers, ours] = both([peer.address, ours.http], Instant::now(), traffic);
    let bucket = Bucket { rate: 10.0, capacity: 21.0 };
    for (who, exchanges) in [("nginx", &peers), ("gateway", &ours)] {
        exchanges.iter().for_each(|exchanges| bucket.expect(who, exchanges));
        let burst = &exchanges[0][..30];
        // The next token comes after 100 ms.
        if burst[29].received - burst[0].sent < 0.09 {
            assert_eq!(passed(burst), 21, "{who}");
        }
        assert_eq!(passed(&exchanges[1]), behaves.len(), "{who}: this client stays below the rate");
    }
    bucket.expect_alike(&peers[0], &ours[0]);
}

#[test]
#[ignore = "needs nginx"]
fn nginx_with_a_queue_is_a_limit_that_delays() {
    let upstream = answering();
    let (peer, ours) = (nginx("nginx-delay", &upstream), gateway("nginx-delay", &upstream));
    let [peers, ours] = [peer.address, ours.http].map(|server| thread::spawn(move || at_once(server, 15)));
    for (who, (last_sent, mut responses)) in [("nginx", peers.join().unwrap()), ("gateway", ours.join().unwrap())] {
        responses.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (admitted, refused): (Vec<_>, Vec<_>) = responses.into_iter().partition(|(status, _)| *status == 200);
        assert!(refused.iter().all(|(status, _)| *status == 429), "{who}: {refused:?}");
        // The sixth response is not held. If this response and the refusals came before there was room for one more, all requests
        // were decided before.
        let decided = refused.iter().map(|(_, received)| *received).fold(last_sent.max(admitted[5].1), f64::max);
        if decided < 0.19 {
            assert_eq!((admitted.len(), refused.len()), (11, 4), "{who}");
        }
        assert!((11..=15).contains(&admitted.len()), "{who}: {admitted:?}");
        for (number, (_, received)) in (1..).map(f64::from).zip(&admitted[6..]) {
            // One in 200 ms.
            let due = number * 0.2;
            assert!((due - 0.005..due + 5.0).contains(received), "{who}: held request {number}: {received:.3} s");
        }
    }
}

/// Sends requests of one client at the same time. Returns when the last one was sent, and for each its status and the time of its
/// answer, in seconds since before the first one.
fn at_once(server: SocketAddr, count: usize) -> (f64, Vec<(u16, f64)>) {
    let mut connections: Vec<_> = (0..count).map(|_| connect(server, CLIENT)).collect();
    let begun = Instant::now();
    connections.iter_mut().for_each(|connection| connection.send(request("GET", "/", "")));
    let sent = begun.elapsed().as_secs_f64();
    let threads = connections.into_iter().map(|mut connection| {
        thread::spawn(move || (connection.response(false).status, begun.elapsed().as_secs_f64()))
    });
    let threads: Vec<_> = threads.collect();
    (sent, threads.into_iter().map(|thread| thread.join().unwrap()).collect())
}

#[test]
#[ignore = "needs nginx"]
fn nginx_and_we_exempt_the_same_networks() {
    let upstream = answering();
    let (peer, ours) = (nginx("nginx-allow", &upstream), gateway("nginx-allow", &upstream));
    let schedule = burst_then(20, millis(100), millis(1500));
    let traffic = [(CLIENT, schedule.as_slice()), (LISTED, schedule.as_slice())];
    let [peers, ours] = both([peer.address, ours.http], Instant::now(), traffic);
    let bucket = Bucket { rate: 2.0, capacity: 6.0 };
    for (who, exchanges) in [("nginx", &peers), ("gateway", &ours)] {
        bucket.expect(who, &exchanges[0]);
        assert_eq!(passed(&exchanges[1]), schedule.len(), "{who}: it is listed");
    }
    bucket.expect_alike(&peers[0], &ours[0]);
}

#[test]
#[ignore = "needs nginx"]
fn nginx_and_we_charge_several_limits_together() {
    let upstream = answering();
    let (peer, ours) = (nginx("nginx-several", &upstream), gateway("nginx-several", &upstream));
    let ten = [Duration::ZERO; 10];
    for (who, server) in [("nginx", peer.address), ("gateway", ours.http)] {
        let begun = Instant::now();
        let counts = [CLIENT, OTHER].map(|client| passed(&send(server, client, begun, &ten)));
        // The first client has 6 of the 11 of all clients. Its four refused requests have taken none of the other five. In half a
        // second there is room for one more.
        if begun.elapsed() < millis(480) {
            assert_eq!(counts, [6, 5], "{who}");
        }
        assert!(counts[0] >= 6 && counts[1] >= 5, "{who}: {counts:?}");
    }
}

#[test]
#[ignore = "needs nginx"]
fn a_trial_in_nginx_reports_what_ours_reports() {
    let upstream = answering();
    let (peer, ours) = (nginx("nginx-dry-run", &upstream), gateway("nginx-dry-run", &upstream));
    let schedule = burst_then(10, millis(200), millis(2000));
    let [[mut peers], [mut ours]] = both([peer.address, ours.http], Instant::now(), [(CLIENT, schedule.as_slice())]);
    assert_eq!([passed(&peers), passed(&ours)], [schedule.len(); 2], "nothing is refused");
    for exchange in &mut peers {
        let status = exchange.response.headers.must("x-limit-req-status");
        assert!(["PASSED", "REJECTED_DRY_RUN"].contains(&status), "{status}");
        exchange.passed = status == "PASSED";
    }
    for exchange in &mut ours {
        let shadow = exchange.response.headers.get("ratelimit-shadow");
        assert!([None, Some("\"per-client\"")].contains(&shadow), "{shadow:?}");
        exchange.passed = shadow.is_none();
    }
    let bucket = Bucket { rate: 1.0, capacity: 5.0 };
    bucket.expect("nginx", &peers);
    bucket.expect("gateway", &ours);
    bucket.expect_alike(&peers, &ours);
}

/// An upstream that answers nothing until its gate is open.
struct GatedUpstream {
    upstream: Upstream,
    gate: Gate,
}

impl GatedUpstream {
    /// After the gate opens, it answers with this status.
    fn new(status: u16) -> Self {
        let gate = Gate::default();
        let passed = gate.clone();
        let upstream = Upstream::start(move |_| {
            passed.pass();
            reply(status, "app")
        });
        Self { upstream, gate }
    }

    #[track_caller]
    fn wait(&self, requests: usize) {
        // It records a request before it waits.
        until("the upstream has the requests", PATIENCE, || self.upstream.received().len() >= requests);
    }
}

/// Sends a request, whose response may be read later.
#[track_caller]
fn begin_with(server: SocketAddr, client: &str, request: &str) -> Client {
    let mut connection = connect(server, client);
    connection.send(request);
    connection
}

#[track_caller]
fn begin(server: SocketAddr, client: &str, method: &str, path: &str) -> Client {
    begin_with(server, client, &request(method, path, ""))
}

#[track_caller]
fn ask(server: SocketAddr, client: &str, method: &str, path: &str) -> Response {
    begin(server, client, method, path).response(false)
}

/// Ten requests of a client are in flight, the next are refused, and others are served.
#[track_caller]
fn expect_ten_in_flight(who: &str, server: SocketAddr, gated: &GatedUpstream) {
    let mut in_flight: Vec<_> = (0..10).map(|_| begin(server, CLIENT, "GET", "/")).collect();
    gated.wait(10);
    let refused: Vec<_> = (0..3).map(|_| ask(server, CLIENT, "GET", "/").status).collect();
    assert_eq!(refused, [429; 3], "{who}");
    in_flight.push(begin(server, OTHER, "GET", "/"));
    gated.wait(11);
    gated.gate.open();
    assert!(in_flight.iter_mut().all(|connection| connection.response(false).status == 200), "{who}");
    until("there is room again", PATIENCE, || ask(server, CLIENT, "GET", "/").status == 200);
}

#[test]
#[ignore = "needs nginx"]
fn nginx_limits_as_many_requests_in_flight() {
    let gates = [GatedUpstream::new(200), GatedUpstream::new(200)];
    let (peer, ours) = (nginx("nginx-conn", &gates[0].upstream), gateway("nginx-conn", &gates[1].upstream));
    expect_ten_in_flight("nginx", peer.address, &gates[0]);
    expect_ten_in_flight("gateway", ours.http, &gates[1]);
}

#[test]
#[ignore = "needs HAProxy"]
fn haproxy_limits_as_many_requests_in_flight() {
    let gates = [GatedUpstream::new(200), GatedUpstream::new(200)];
    let (peer, ours) = (haproxy("haproxy-conn", &gates[0].upstream), gateway("haproxy-conn", &gates[1].upstream));
    expect_ten_in_flight("haproxy", peer.address, &gates[0]);
    expect_ten_in_flight("gateway", ours.http, &gates[1]);
}

#[test]
#[ignore = "needs HAProxy"]
fn haproxy_counts_in_a_sliding_window_too_but_with_what_it_refuses() {
    let upstream = answering();
    let (peer, ours) = (haproxy("haproxy-rate", &upstream), gateway("haproxy-rate", &upstream));
    // After the burst of 110 come 15 requests a second, half as many again as the limit allows.
    let floods = burst_then(110, Duration::from_secs(1) / 15, millis(12_500));
    let behaves = burst_then(1, millis(200), millis(12_500));
    let (begun, multiple) = (Instant::now(), last_multiple(10.0));
    let traffic = [(CLIENT, floods.as_slice()), (OTHER, behaves.as_slice())];
    let [peers, ours] = both([peer.address, ours.http], begun, traffic);
    for (who, exchanges, counts_refused) in [("haproxy", &peers, true), ("gateway", &ours, false)] {
        for exchanges in exchanges {
            let first = [exchanges[0].sent, exchanges[0].received];
            let origin = if counts_refused { first } else { [multiple, multiple] };
            SlidingWindow { period: 10.0, quota: 100.0, origin, counts_refused }.expect(who, exchanges);
        }
        assert_eq!(passed(&exchanges[1]), behaves.len(), "{who}: this client stays below the rate");
    }
    assert_eq!(passed(&peers[0][..110]), 100);
    assert_eq!(passed(&peers[0]), 100, "HAProxy admits nothing while the client goes on");
    assert!(passed(&ours[0]) > 110, "we admit what the rate allows: {}", passed(&ours[0]));
}

#[test]
#[ignore = "needs HAProxy"]
fn haproxy_counts_as_many_failed_logins() {
    let upstream = Upstream::start(|request| {
        let fails = request.headers.get("x-password").is_some_and(|password| password == "wrong");
        reply(if fails { 401 } else { 200 }, "app")
    });
    let (peer, ours) = (haproxy("haproxy-logins", &upstream), gateway("haproxy-logins", &upstream));
    for (who, server) in [("haproxy", peer.address), ("gateway", ours.http)] {
        let login = |client: &str, password: &str| {
            let head =
                format!("POST /login HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Password: {password}\r\n\r\n");
            connect(server, client).call(head).status
        };
        let statuses: Vec<_> =
            ["wrong", "right", "wrong", "right", "right", "wrong", "wrong", "right", "wrong", "right", "wrong"]
                .map(|password| login(CLIENT, password))
                .into();
        assert_eq!(statuses, [401, 200, 401, 200, 200, 401, 401, 200, 401, 429, 429], "{who}");
        assert_eq!(login(OTHER, "wrong"), 401, "{who}");
        assert_eq!(ask(server, CLIENT, "GET", "/other").status, 200, "{who}: only logins are limited");
    }
}

#[test]
#[ignore = "needs HAProxy"]
fn haproxy_lets_failing_logins_pass_that_come_together_and_we_do_not() {
    let gates = [GatedUpstream::new(401), GatedUpstream::new(401)];
    let (peer, ours) = (haproxy("haproxy-logins", &gates[0].upstream), gateway("haproxy-logins", &gates[1].upstream));
    let attempts = |server| -> Vec<_> { (0..20).map(|_| begin(server, CLIENT, "POST", "/login")).collect() };
    let statuses = |attempts: Vec<Client>| {
        let statuses: Vec<_> = attempts.into_iter().map(|mut attempt| attempt.response(false).status).collect();
        [401, 429].map(|status| statuses.iter().filter(|one| **one == status).count())
    };
    let there = attempts(peer.address);
    gates[0].wait(20);
    gates[0].gate.open();
    assert_eq!(statuses(there), [20, 0], "HAProxy");
    assert_eq!(ask(peer.address, CLIENT, "POST", "/login").status, 429, "HAProxy");

    let here = attempts(ours.http);
    gates[1].wait(5);
    until("the others are refused", PATIENCE, || {
        ours.metric("gateway_limit_decisions_total{limit=\"failed-logins\",decision=\"rejected\"}") == Some(15.0)
    });
    gates[1].gate.open();
    assert_eq!(statuses(here), [5, 15]);
    assert_eq!(gates[1].upstream.received().len(), 5);
}
