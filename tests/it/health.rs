//! Checks of servers: which servers get requests, and what the API says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Gateway, Upstream, reply, until};

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const PATIENCE: Duration = Duration::from_secs(10);

struct Server {
    up: Upstream,
    is_healthy: Arc<AtomicBool>,
}

impl Server {
    fn start(name: &'static str, is_healthy: bool) -> Self {
        let is_healthy = Arc::new(AtomicBool::new(is_healthy));
        let state = is_healthy.clone();
        let up = Upstream::start(move |received| match received.target.as_str() {
            "/healthz?full" => reply(if state.load(Ordering::SeqCst) { 204 } else { 500 }, ""),
            _ => reply(200, name),
        });
        Self { up, is_healthy }
    }

    fn set(&self, is_healthy: bool) {
        self.is_healthy.store(is_healthy, Ordering::SeqCst);
    }

    fn checks(&self) -> usize {
        self.up.received().iter().filter(|received| received.target.starts_with("/healthz")).count()
    }
}

fn checked(servers: &[&Server], more: &str) -> String {
    let urls: Vec<_> = servers.iter().map(|server| format!("\"http://{}\"", server.up.address())).collect();
    let health = "[upstreams.up.health]\npath = \"/healthz?full\"\ninterval = \"100ms\"\ntimeout = \"5s\"\n";
    format!("[upstreams.up]\nservers = [{}]\n{more}\n{health}\n{ROUTE}", urls.join(", "))
}

fn answering(gateway: &Gateway, requests: usize) -> Vec<String> {
    let mut client = gateway.client();
    let mut names: Vec<_> = (0..requests).map(|_| client.get("/").text().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn health(gateway: &Gateway) -> Vec<String> {
    let servers = gateway.admin("/api/upstreams").json()["upstreams"][0]["servers"].clone();
    servers.as_array().unwrap().iter().map(|server| server["health"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_server_whose_checks_fail_gets_no_requests_until_they_succeed() {
    let (good, bad) = (Server::start("good", true), Server::start("bad", true));
    let gateway = Gateway::start(&checked(&[&good, &bad], ""));
    until("both are healthy", PATIENCE, || health(&gateway) == ["healthy", "healthy"]);
    until("both get requests", PATIENCE, || answering(&gateway, 50) == ["bad", "good"]);
    bad.set(false);
    let line = gateway.wait_message("a server gets no requests");
    assert_eq!(line["server"], bad.up.address().to_string());
    assert_eq!((line["is"].as_str(), line["why"].as_str()), (Some("unhealthy"), Some("its status is 500")));
    assert_eq!(health(&gateway), ["healthy", "unhealthy"]);
    assert_eq!(answering(&gateway, 50), ["good"]);
    assert_eq!(gateway.metric("gateway_upstream_server_healthy"), Some(1.0));
    assert!(gateway.metric("gateway_upstream_server_failed_checks_total").unwrap() >= 3.0);
    bad.set(true);
    until("it is healthy again", PATIENCE, || health(&gateway) == ["healthy", "healthy"]);
    until("it gets requests again", PATIENCE, || answering(&gateway, 20).len() == 2);
    let check = bad.up.received().into_iter().find(|received| received.target.starts_with("/healthz")).unwrap();
    assert_eq!((check.method.as_str(), check.headers.must("host")), ("GET", &*bad.up.address().to_string()));
    assert_eq!(check.headers.must("user-agent"), "gateway-health-check");
}

#[test]
fn a_new_server_gets_requests_after_its_first_good_check() {
    let (old, new) = (Server::start("old", true), Server::start("new", false));
    let gateway = Gateway::start(&checked(&[&old], ""));
    until("it is healthy", PATIENCE, || health(&gateway) == ["healthy"]);
    gateway.reload("", &checked(&[&old, &new], ""));
    until("it is checked", PATIENCE, || new.checks() > 0);
    assert_eq!(answering(&gateway, 50), ["old"]);
    new.set(true);
    until("it gets requests", PATIENCE, || answering(&gateway, 20).len() == 2);
}

#[test]
fn if_no_server_is_healthy_all_get_requests() {
    let servers = [Server::start("one", false), Server::start("two", false)];
    let gateway = Gateway::start(&checked(&[&servers[0], &servers[1]], ""));
    until("both are unhealthy", PATIENCE, || {
        let (before, names, states) = (health(&gateway), answering(&gateway, 50), health(&gateway));
        // One that is not checked yet gets all requests if the other is unhealthy.
        if before == states && states[0] == states[1] {
            assert_eq!(names, ["one", "two"], "{states:?}");
        }
        states == ["unhealthy", "unhealthy"]
    });
    until("both get requests", PATIENCE, || answering(&gateway, 50) == ["one", "two"]);
}

#[test]
fn a_check_that_is_not_answered_fails_in_time() {
    let good = Server::start("good", true);
    let silent = Upstream::raw(|mut wire, _| _ = wire.rest());
    let urls = format!("\"http://{}\", \"http://{}\"", good.up.address(), silent.address());
    let health = "[upstreams.up.health]\npath = \"/healthz?full\"\ninterval = \"100ms\"\n";
    let health = format!("{health}timeout = \"2s\"\nunhealthy_after = 2\n");
    let gateway = Gateway::start(&format!("[upstreams.up]\nservers = [{urls}]\n{health}\n{ROUTE}"));
    let line = gateway.wait_message("a server gets no requests");
    assert_eq!(
        (line["server"].as_str(), line["why"].as_str()),
        (Some(&*silent.address().to_string()), Some("no answer within 2s"))
    );
    assert_eq!(answering(&gateway, 20), ["good"]);
}

#[test]
fn a_reload_keeps_what_is_known_and_can_end_the_checks() {
    let (good, bad) = (Server::start("good", true), Server::start("bad", false));
    let gateway = Gateway::start(&checked(&[&good, &bad], ""));
    until("it is unhealthy", PATIENCE, || health(&gateway) == ["healthy", "unhealthy"]);
    gateway.reload("", &checked(&[&good, &bad], "timeout = \"20s\""));
    gateway.wait_message("reloaded");
    assert_eq!(answering(&gateway, 50), ["good"]);
    let without: String = checked(&[&good, &bad], "")
        .lines()
        .filter(|line| !["health", "interval", "timeout"].iter().any(|word| line.contains(word)))
        .fold(String::new(), |text, line| text + line + "\n");
    gateway.reload("", &without);
    until("it gets requests", PATIENCE, || answering(&gateway, 20).len() == 2);
    let checks = good.checks();
    std::thread::sleep(Duration::from_millis(400));
    assert!(good.checks() <= checks + 1, "one may have been in progress");
}
