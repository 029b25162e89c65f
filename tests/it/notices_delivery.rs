//! Notices on their way: receivers that are slow, away or wrong, reloads, and the end of the gateway.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Authority, Gateway, Received, TlsServer, Upstream, limited, read_request, reply, until};
use crate::notices::{FULL, Hook, PATIENCE, ask, short};

const ONCE: &str = "at = [1.0]\nfull_keys = true";

/// One request of a key reaches the whole rate.
fn limit() -> String {
    limited("header:x-api-key", "1/31d", "")
}

/// Takes every notice once `takes` is set.
fn switched() -> (Hook, Arc<AtomicBool>) {
    let takes = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&takes);
    let hook = Hook::answering(move |_| reply(if is_open.load(Ordering::SeqCst) { 200 } else { 500 }, ""));
    (hook, takes)
}

/// Accepts connections, and never answers.
fn silent() -> Hook {
    Hook(Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        loop {
            thread::park();
        }
    }))
}

fn dropped(gateway: &Gateway, reason: &str) -> Option<f64> {
    gateway.metric(&format!("gateway_notices_dropped_total{{reason=\"{reason}\"}}"))
}

fn waiting(gateway: &Gateway) -> Option<f64> {
    gateway.metric("gateway_notices_waiting")
}

#[test]
fn a_notice_is_tried_until_the_receiver_takes_it() {
    let other = Hook::start();
    let (tried, elsewhere) = (AtomicUsize::new(0), other.0.address());
    let hook = Hook::answering(move |_| match tried.fetch_add(1, Ordering::SeqCst) {
        0 => reply(500, "no"),
        1 => format!("HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/\r\nContent-Length: 0\r\n\r\n").into(),
        // What the receiver says beside its status does not matter, however long it is.
        _ => reply(202, &"x".repeat(4 << 20)),
    });
    let gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    ask(&gateway, "alice", 3);
    let told = hook.wait(3);
    assert_eq!(told.iter().map(short).collect::<Vec<_>>(), ["l 1/31d alice 1.0 1/1"; 3]);
    until("it is delivered", PATIENCE, || gateway.metric("gateway_notices_total{result=\"delivered\"}") == Some(1.0));
    assert_eq!(gateway.metric("gateway_notices_total{result=\"failed\"}"), Some(2.0));
    until("none waits", PATIENCE, || waiting(&gateway) == Some(0.0));
    assert_eq!(other.notices().len(), 0);
    let lines = gateway.log().iter().filter(|line| line.contains("notices cannot be delivered")).count();
    assert_eq!(lines, 1, "one line for an outage");
    assert!(!gateway.log().join("").contains("token=1"), "the query is secret");
}

#[test]
fn a_receiver_needs_a_certificate_that_is_trusted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let own = authority.issue("hook", "hook", &["localhost"]);
    let (sender, received) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = TlsServer::raw(authority.server(&own, false), move |mut stream, _| {
        if let Some((_, body)) = read_request(&mut stream) {
            let _ = stream.write_all(&reply(200, ""));
            let _ = sender.lock().unwrap().send(String::from_utf8(body).unwrap());
        }
    });
    let text = format!("[[notices]]\nurl = \"https://localhost:{}/\"\n{ONCE}\n{}", server.address.port(), limit());
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &other.ca(), &text);
    ask(&gateway, "alice", 1);
    let line = gateway.wait_message("notices cannot be delivered");
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &authority.ca(), &text);
    ask(&gateway, "bob", 1);
    let body = received.recv_timeout(PATIENCE).unwrap();
    assert!(body.contains("\"bob\""), "{body}");
}

#[test]
fn one_notice_that_is_never_taken_holds_up_no_other() {
    let is_poison = |request: &Received| String::from_utf8_lossy(&request.body).contains("poison");
    let hook = Hook::answering(move |request| reply(if is_poison(request) { 400 } else { 200 }, ""));
    let gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    ask(&gateway, "poison", 1);
    hook.wait(1);
    (0..5).for_each(|number| drop(ask(&gateway, &format!("good-{number}"), 1)));
    until("all others are delivered", PATIENCE, || {
        gateway.metric("gateway_notices_total{result=\"delivered\"}") == Some(5.0)
    });
    until("one waits", PATIENCE, || waiting(&gateway) == Some(1.0));
}

#[test]
fn a_slow_receiver_holds_up_neither_requests_nor_other_receivers() {
    let (slow, hook) = (silent(), Hook::start());
    let gateway = Gateway::start(&(slow.section(ONCE) + &hook.section(ONCE) + &limit()));
    for number in 0..50 {
        assert_eq!(ask(&gateway, &format!("client-{number}"), 2), [200, 429]);
    }
    hook.wait(50);
    // The slow one has not answered yet, so everything waits for it.
    until("50 wait", PATIENCE, || waiting(&gateway) == Some(50.0));
    assert_eq!(slow.0.connections(), 1);
}

#[test]
fn invented_keys_fill_a_bounded_queue() {
    const MOST: usize = 10_000;
    let slow = silent();
    let gateway = Gateway::start(&(slow.section(ONCE) + &limit()));
    ask(&gateway, "first", 1);
    slow.0.wait_connections(1);
    let before = gateway.memory("VmRSS");
    let pad = "k".repeat(4_000);
    let mut client = gateway.client();
    for first in (0..MOST + 100).step_by(100) {
        let request = |number| format!("GET / HTTP/1.1\r\nHost: h\r\nX-Api-Key: {number}-{pad}\r\n\r\n");
        client.send((first..first + 100).map(request).collect::<String>());
        (0..100).for_each(|_| assert_eq!(client.response(false).status, 200));
    }
    assert_eq!((waiting(&gateway), dropped(&gateway, "full")), (Some(10_000.0), Some(101.0)));
    let grown = gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes, though the keys alone have 40 MB");
}

#[test]
fn a_reload_takes_over_what_waits_for_a_receiver_that_stays() {
    let (hook, takes) = switched();
    let gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    (0..3).for_each(|number| drop(ask(&gateway, &format!("client-{number}"), 1)));
    hook.wait(1);
    gateway.reload_and_wait("", &(hook.section(&format!("at = [0.5]\n{FULL}")) + &limit()));
    assert_eq!((waiting(&gateway), dropped(&gateway, "ended")), (Some(3.0), Some(0.0)));
    takes.store(true, Ordering::SeqCst);
    until("all are delivered", PATIENCE, || gateway.metric("gateway_notices_total{result=\"delivered\"}") == Some(3.0));
    ask(&gateway, "later", 1);
    until("the new share is told", PATIENCE, || hook.notices().iter().any(|notice| notice["share"] == 0.5));
}

#[test]
fn what_waits_for_a_receiver_that_a_reload_removes_is_counted() {
    let (hook, _) = switched();
    let gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    (0..3).for_each(|number| drop(ask(&gateway, &format!("client-{number}"), 1)));
    hook.wait(1);
    gateway.reload_and_wait("", &limit());
    let line = gateway.wait_message("notices were not delivered");
    assert_eq!((&line["notices"], &line["why"]), (&3.into(), &"a reload has removed the receiver".into()));
    assert_eq!((waiting(&gateway), dropped(&gateway, "ended")), (Some(0.0), Some(3.0)));
    assert_eq!(ask(&gateway, "later", 2), [200, 429]);
    // It comes back, with nothing from before.
    gateway.reload_and_wait("", &(hook.section(ONCE) + &limit()));
    ask(&gateway, "last", 1);
    until("it is told", PATIENCE, || hook.notices().iter().any(|notice| notice["key"] == "last"));
}

#[test]
fn the_end_of_a_gateway_delivers_what_waits() {
    let hook = Hook::start();
    let mut gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    (0..20).for_each(|number| drop(ask(&gateway, &format!("client-{number}"), 1)));
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    assert_eq!(hook.notices().len(), 20);
}

#[test]
fn what_was_not_delivered_before_the_end_is_told_after_it() {
    let (hook, takes) = switched();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("[store]\nsnapshot = \"{}\"\n", folder.path().join("counters").display());
    let text = store + &hook.section(ONCE) + &limit();
    let mut gateway = Gateway::start(&text);
    ["alice", "bob"].iter().for_each(|key| drop(ask(&gateway, key, 1)));
    hook.wait(1);
    gateway.signal(Signal::TERM);
    gateway.wait_exit();
    let line = gateway.wait_message("notices were not delivered");
    assert_eq!((&line["notices"], &line["why"]), (&2.into(), &"the gateway ends".into()));
    takes.store(true, Ordering::SeqCst);
    let gateway = Gateway::start(&text);
    ["alice", "bob"].iter().for_each(|key| assert_eq!(ask(&gateway, key, 1), [429], "the counters were saved"));
    until("both are told", PATIENCE, || gateway.metric("gateway_notices_total{result=\"delivered\"}") == Some(2.0));
}

#[test]
fn the_program_in_the_documentation_verifies_signatures() {
    let page = std::fs::read_to_string("docs/notices.md").unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let hook = Hook::start();
    let gateway = Gateway::start(&(hook.section(ONCE) + &limit()));
    ask(&gateway, "alice", 1);
    hook.wait(1);
    let received = &hook.0.received()[0];
    let verify = |body: &[u8]| {
        let mut python = Command::new("python3");
        python.args([
            "-c",
            &format!("{program}\nimport sys\nprint(is_from_gateway(sys.stdin.buffer.read(), sys.argv[1]))"),
        ]);
        python.arg(received.headers.must("x-gateway-signature")).env("NOTICE_SECRET", "sixteen-letters-and-more");
        let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        python.stdin.take().unwrap().write_all(body).unwrap();
        String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(verify(&received.body).trim(), "True");
    assert_eq!(verify(&[&received.body[..], b" "].concat()).trim(), "False");
}

#[test]
fn tries_end_quickly_when_the_gateway_ends() {
    let slow = silent();
    let mut gateway = Gateway::start(&(slow.section(ONCE) + &limit()));
    ask(&gateway, "alice", 1);
    slow.0.wait_connections(1);
    gateway.signal(Signal::TERM);
    // Much less than the time limit of the attempt, which is under way.
    let mut code = None;
    until("it ends", Duration::from_secs(8), || {
        code = code.or_else(|| gateway.wait_exit().code());
        code.is_some()
    });
    gateway.wait_message("notices were not delivered");
}
