//! Servers that fail for some clients only: which of them are ejected.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream, reply, until};

const PATIENCE: Duration = Duration::from_secs(40);
/// The gateway knows for two seconds at least whom a server has answered.
const KNOWN_FOR: Duration = Duration::from_millis(1900);

/// Two servers at which requests to `/held` fail once nothing holds them any more, and others are answered.
struct Victims {
    servers: [Upstream; 2],
    go: Option<Sender<()>>,
    gateway: Gateway,
    others: Vec<Client>,
    served_at: Instant,
    /// The longest time in which no others were served.
    longest_pause: Duration,
}

impl Victims {
    fn start(server: &str, more: &str) -> Self {
        let (go, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let servers = [0, 1].map(|_| {
            let held = held.clone();
            Upstream::start(move |request| {
                if request.target == "/held" {
                    let _ = held.lock().unwrap().recv();
                }
                if request.target == "/good" { reply(200, "ok") } else { b"no response\r\n\r\n".to_vec() }
            })
        });
        let [one, other] = servers.each_ref().map(Upstream::address);
        let text = format!(
            "[upstreams.up]\nservers = [\"http://{one}\", \"http://{other}\"]\nretries = 0\n{more}\n\
             [[routes]]\npath = \"/*\"\nupstream = \"up\"\n"
        );
        let gateway = Gateway::with_server(server, &text);
        let others = (2..6).map(|last| Client::connect_from([127, 0, 0, last].into(), gateway.http)).collect();
        Self { servers, go: Some(go), gateway, others, served_at: Instant::now(), longest_pause: Duration::ZERO }
    }

    /// Each server works for others.
    fn serve_others(&mut self) {
        for client in &mut self.others {
            for _ in 0..4 {
                assert_eq!(client.get("/good").status, 200);
                self.longest_pause = self.longest_pause.max(self.served_at.elapsed());
                self.served_at = Instant::now();
            }
        }
    }

    /// There were so many ejections. After a stall of the machine there may be one more, as if there were no others.
    #[track_caller]
    fn expect_ejections(&self, count: f64) {
        let has_stalled = self.longest_pause.max(self.served_at.elapsed()) > KNOWN_FOR;
        let ejections = self.gateway.metric("gateway_upstream_server_ejections_total");
        assert!(ejections == Some(count) || has_stalled && ejections == Some(count + 1.0), "{ejections:?}");
    }

    fn failures(&self) -> f64 {
        self.gateway.metric("gateway_upstream_server_failures_total").unwrap()
    }

    /// One client has requests that fail side by side, while others are served.
    fn fail_side_by_side(mut self, until_timeout: bool, status: u16) {
        const REQUESTS: u8 = 24;
        let mut bad: Vec<_> = (0..REQUESTS).map(|_| self.gateway.client()).collect();
        bad.iter_mut().for_each(|client| client.send("POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        let held = |up: &Upstream| up.received().iter().filter(|received| received.target == "/held").count();
        until("they have all", PATIENCE, || self.servers.iter().map(held).sum::<usize>() == usize::from(REQUESTS));
        self.serve_others();
        if !until_timeout {
            self.go = None;
        }
        until("they have failed", PATIENCE, || {
            self.serve_others();
            self.failures() >= f64::from(REQUESTS)
        });
        bad.iter_mut().for_each(|client| assert_eq!(client.response(false).status, status));
        self.expect_ejections(0.0);
    }
}

#[test]
fn one_client_with_requests_that_take_too_long_ejects_no_server_that_answers_others() {
    for (workers, balance) in [(1, "round-robin"), (2, "round-robin"), (2, "least-requests")] {
        let server = format!("workers = {workers}");
        Victims::start(&server, &format!("timeout = \"3s\"\nbalance = \"{balance}\"")).fail_side_by_side(true, 504);
    }
}

#[test]
fn one_client_with_requests_that_fail_side_by_side_ejects_no_server() {
    Victims::start("", "").fail_side_by_side(false, 502);
}

#[test]
fn one_client_with_requests_that_fail_one_after_the_other_ejects_no_server() {
    let mut victims = Victims::start("", "");
    victims.serve_others();
    let mut bad = victims.gateway.client();
    for _ in 0..10 {
        (0..6).for_each(|_| bad.get("/bad").expect_problem(502));
        victims.serve_others();
    }
    victims.expect_ejections(0.0);
}

#[test]
fn one_client_that_has_ejected_a_server_does_not_keep_it_away_from_others() {
    let mut victims = Victims::start("", "eject = { for = \"1h\", max_for = \"1h\" }");
    let mut bad = victims.gateway.client();
    let ejections = || victims.gateway.metric("gateway_upstream_server_ejections_total");
    // No others are there.
    until("a server is ejected", PATIENCE, || {
        bad.get("/bad").expect_problem(502);
        ejections() == Some(1.0)
    });
    victims.serve_others();
    victims.gateway.wait_message("a server gets requests");
    for _ in 0..10 {
        victims.serve_others();
        (0..6).for_each(|_| bad.get("/bad").expect_problem(502));
    }
    victims.expect_ejections(1.0);
}

#[test]
fn a_server_that_fails_for_many_clients_is_ejected_although_it_answers_a_few() {
    let victims = Victims::start("", "balance = \"round-robin\"");
    let ejections = || victims.gateway.metric("gateway_upstream_server_ejections_total").unwrap();
    until("one is ejected", PATIENCE, || {
        for last in 10..30 {
            let mut client = Client::connect_from([127, 0, 1, last].into(), victims.gateway.http);
            let path = if last == 29 { "/good" } else { "/bad" };
            client.get(path);
        }
        ejections() > 0.0
    });
}
