//! Servers as processes that are killed and stopped while clients count each failed request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Client, Gateway, Response, until};

const PATIENCE: Duration = Duration::from_secs(30);
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";

/// A gateway with the built-in server, which reads requests and says its name.
fn server(name: &str) -> Gateway {
    let name = format!("response_headers = {{ set = {{ x-server = \"{name}\" }} }}");
    let upstream = "[upstreams.echo]\nservers = [\"builtin:echo\"]\n";
    Gateway::start(&format!("{upstream}[[routes]]\npath = \"/*\"\nupstream = \"echo\"\n{name}\n"))
}

fn name(response: &Response) -> &str {
    response.headers.get("x-server").unwrap_or("none")
}

fn front(servers: &[Gateway; 2], more: &str) -> Gateway {
    let list = servers.each_ref().map(|server| format!("\"http://{}\"", server.http)).join(", ");
    let section = format!("[upstreams.up]\nservers = [{list}]\nbalance = \"round-robin\"\n{more}\n");
    Gateway::start(&format!("{section}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"))
}

struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Answer>>>,
}

struct Answer {
    /// When it was asked for.
    at: Instant,
    status: u16,
    server: String,
}

impl Load {
    fn start(gateway: &Gateway, request: &'static str, clients: usize) -> Self {
        let (stop, http) = (Arc::new(AtomicBool::new(false)), gateway.http);
        let client = |stop: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                let (mut client, mut answers) = (Client::connect(http), Vec::new());
                while !stop.load(Ordering::SeqCst) {
                    let at = Instant::now();
                    let response = client.call(request);
                    answers.push(Answer { at, status: response.status, server: name(&response).to_owned() });
                }
                answers
            })
        };
        Self { clients: (0..clients).map(|_| client(stop.clone())).collect(), stop }
    }

    fn end(self) -> Vec<Answer> {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}

fn statuses(answers: &[Answer], from: Instant) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    let later = answers.iter().filter(|answer| answer.at >= from);
    later.for_each(|answer| *counts.entry(answer.status).or_default() += 1);
    counts
}

fn has_ejected(gateway: &Gateway) -> bool {
    gateway.metric("gateway_upstream_server_ejections_total").is_some_and(|count| count >= 1.0)
}

#[test]
fn a_server_that_is_killed_costs_no_request_that_may_be_sent_again() {
    let servers = [server("one"), server("two")];
    let gateway = front(&servers, "");
    let load = [Load::start(&gateway, GET, 3), Load::start(&gateway, POST, 3)];
    until("both serve", PATIENCE, || gateway.metric("gateway_upstream_server_requests_total") > Some(500.0));
    servers[0].signal(Signal::KILL);
    until("it is ejected", PATIENCE, || has_ejected(&gateway));
    let ejected = Instant::now();
    let requests = gateway.metric("gateway_upstream_server_requests_total").unwrap();
    until("the other serves", PATIENCE, || {
        gateway.metric("gateway_upstream_server_requests_total") > Some(requests + 500.0)
    });
    let [gets, posts] = load.map(Load::end);
    assert_eq!(statuses(&gets, gets[0].at).keys().collect::<Vec<_>>(), [&200]);
    assert_eq!(statuses(&posts, ejected).keys().collect::<Vec<_>>(), [&200]);
    let failed: usize =
        statuses(&posts, posts[0].at).iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum();
    // The system closes the connections of a killed server in sequence, so each of the three clients may also lose the
    // next request.
    assert!(failed <= 6, "only those that were in flight when it was killed: {failed}");
    assert!(
        gets.iter().any(|answer| answer.server == "one") && gets.last().is_some_and(|answer| answer.server == "two")
    );
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn a_server_that_is_stopped_is_ejected_and_returns() {
        let servers = [server("one"), server("two")];
        let gateway =
            front(&servers, "timeout = \"5s\"\n[upstreams.up.eject]\nfailures = 3\nfor = \"1s\"\nmax_for = \"1s\"");
        let load = Load::start(&gateway, GET, 4);
        let served = || gateway.metric("gateway_upstream_server_requests_total").unwrap_or(0.0);
        until("both serve", PATIENCE, || served() > 300.0);
        servers[0].signal(Signal::STOP);
        until("it is ejected", PATIENCE, || has_ejected(&gateway));
        servers[0].signal(Signal::CONT);
        gateway.wait_message("a server gets requests");
        let returned = Instant::now();
        let mut client = gateway.client();
        until("it serves again", PATIENCE, || name(&client.get("/")) == "one");
        let before = served();
        until("the load goes on", PATIENCE, || served() > before + 20.0);
        let answers = load.end();
        assert_eq!(
            statuses(&answers, answers[0].at).keys().collect::<Vec<_>>(),
            [&200],
            "each is answered by the other server"
        );
        assert!(answers.iter().any(|answer| answer.at > returned));
    }

    #[test]
    fn a_server_that_hangs_is_found_by_its_checks_although_it_accepts_connections() {
        let servers = [server("one"), server("two")];
        let health = "[upstreams.up.health]\npath = \"/\"\ninterval = \"200ms\"\ntimeout = \"2s\"\nunhealthy_after = 2";
        let gateway = front(&servers, &format!("timeout = \"20s\"\n{health}"));
        gateway.wait_log("both are healthy", |line| line["message"] == "a server gets requests");
        servers[0].signal(Signal::STOP);
        let line = gateway.wait_message("a server gets no requests");
        assert_eq!(line["server"], servers[0].http.to_string());
        let mut client = gateway.client();
        (0..50).for_each(|_| assert_eq!(name(&client.get("/")), "two"));
        servers[0].signal(Signal::CONT);
        until("it serves again", PATIENCE, || name(&client.get("/")) == "one");
    }
}
