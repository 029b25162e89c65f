//! The export of spans: a collector that does not take them, and the beginning and end of the export.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{
    Authority, Collector, Fault, Gateway, Mode, TlsServer, Upstream, closed_port, decode, limited, read_request, reply,
    until,
};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
const FAILS: &str = "spans cannot be exported";
const BOUND: Duration = Duration::from_secs(20);

/// A gateway whose requests are one span each, for a collector at this endpoint.
fn start(endpoint: &str) -> Gateway {
    Gateway::start(&format!("[tracing]\nendpoint = \"{endpoint}\"\nsample = 1\n{FIXED}"))
}

fn counted(gateway: &Gateway, result: &str) -> usize {
    let text = gateway.admin("/metrics").text().to_owned();
    let series = format!("gateway_spans_total{{result=\"{result}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

#[track_caller]
fn wait_counted(gateway: &Gateway, result: &str, count: usize) {
    until(&format!("{count} spans are {result}"), BOUND, || counted(gateway, result) >= count);
    assert_eq!(counted(gateway, result), count);
}

fn logged(gateway: &Gateway, message: &str) -> usize {
    gateway.log().iter().filter(|line| line.contains(&format!("\"{message}\""))).count()
}

fn ask(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    (0..requests).for_each(|_| assert_eq!(client.get("/").status, 200));
}

/// Two requests whose spans are exported together.
fn ask_together(gateway: &Gateway) {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
    (0..2).for_each(|_| assert_eq!(client.response(false).status, 200));
}

#[track_caller]
fn stop(mut gateway: Gateway) -> Duration {
    let begun = Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
    gateway.wait_message("stopped");
    begun.elapsed()
}

#[test]
#[ignore = "needs Python"]
fn what_waits_at_the_end_is_exported() {
    for round in 0..5 {
        let collector = Collector::start();
        let gateway = start(&format!("http://{}/", collector.0.address()));
        ask(&gateway, 1000);
        let took = stop(gateway);
        let (spans, exports) = (collector.spans().len(), collector.0.received().len());
        // The end waits two seconds for exports, which may be too short when the machine stalls.
        if spans == 1000 || took < Duration::from_millis(1_500) || round == 4 {
            assert_eq!(spans, 1000);
            assert!(exports <= 20, "they leave in batches");
            break;
        }
    }
}

#[test]
#[ignore = "needs Python"]
fn a_collector_that_is_away_is_found_again() {
    let collector = Collector::start();
    let fault = Fault::start(collector.0.address(), Mode::Refuse);
    let gateway = start(&format!("http://{}", fault.address));
    ask(&gateway, 3);
    let line = gateway.wait_message(FAILS);
    assert!(line["error"].as_str().unwrap().starts_with("cannot connect to the server"), "{line}");
    fault.set(Mode::Pass);
    gateway.wait_message("spans are exported again");
    // The failed batch is not lost.
    wait_counted(&gateway, "exported", 3);
    ask(&gateway, 2);
    wait_counted(&gateway, "exported", 5);
    assert_eq!((collector.spans().len(), logged(&gateway, FAILS)), (5, 1));
    assert_eq!(counted(&gateway, "failed") + counted(&gateway, "no_room") + counted(&gateway, "refused"), 0);
}

#[test]
fn a_collector_may_ask_for_time() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asking = asked.clone();
    let collector = Collector::answering(move |_| {
        let mut asked = asking.lock().unwrap();
        asked.push(Instant::now());
        match asked.len() {
            1 => b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n".to_vec(),
            2 => reply(429, "slow down"),
            _ => reply(200, ""),
        }
    });
    let gateway = start(&format!("http://{}", collector.0.address()));
    ask(&gateway, 1);
    assert_eq!(gateway.wait_message(FAILS)["error"], "the server answers 503");
    wait_counted(&gateway, "exported", 1);
    let asked = asked.lock().unwrap();
    let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect();
    assert!(
        pauses.len() == 2 && pauses[0] >= Duration::from_secs(3) && pauses[1] >= Duration::from_secs(2),
        "{pauses:?}"
    );
    let received = collector.0.received();
    assert!(received.iter().all(|export| export.body == received[0].body));
    assert_eq!(logged(&gateway, FAILS), 1);
}

#[test]
fn spans_that_a_collector_refuses_are_counted() {
    // One rejected span, and why: ExportTraceServiceResponse with an ExportTracePartialSuccess.
    let partly = "\x0a\x08\x08\x01\x12\x04odd!";
    let answers = AtomicUsize::new(0);
    let collector = Collector::answering(move |_| match answers.fetch_add(1, Ordering::SeqCst) {
        0 => reply(400, "what is this?"),
        1 => reply(200, partly),
        2 => reply(200, "<html>\x0a\x7f garbage"),
        _ => reply(301, ""),
    });
    let gateway = start(&format!("http://{}", collector.0.address()));
    ask_together(&gateway);
    wait_counted(&gateway, "refused", 2);
    assert_eq!(gateway.wait_message(FAILS)["error"], "the server answers 400");
    ask_together(&gateway);
    wait_counted(&gateway, "refused", 3);
    assert_eq!(counted(&gateway, "exported"), 1);
    ask(&gateway, 1);
    wait_counted(&gateway, "exported", 2);
    gateway.wait_message("spans are exported again");
    ask(&gateway, 1);
    wait_counted(&gateway, "refused", 4);
    until("the second failure is logged", Duration::from_secs(10), || logged(&gateway, FAILS) == 2);
    assert_eq!(collector.0.received().len(), 4, "what is refused is not sent again");
}

#[test]
fn answers_that_are_no_http_are_failures() {
    let garbage = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"\0\xff\x16\x03 no HTTP\r\n\r\n");
    });
    // An endless head, which must not fill the memory.
    let (held, holding) = channel::<()>();
    let holding = Mutex::new(holding);
    let endless = Upstream::raw(move |mut wire, _| {
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = [&b"10000\r\n"[..], &vec![b'x'; 1 << 16], b"\r\n"].concat();
        while wire.write(&chunk).is_ok() {}
        let _ = holding.lock().unwrap().recv();
    });
    for (server, error) in [(&garbage, "the server does not answer"), (&endless, "the answer has more than 64 KiB")] {
        let gateway = start(&format!("http://{}", server.address()));
        ask(&gateway, 1);
        let line = gateway.wait_message(FAILS);
        assert!(line["error"].as_str().unwrap().starts_with(error), "{line}");
        assert!(stop(gateway) < Duration::from_secs(10));
    }
    drop(held);
}

#[test]
fn without_a_collector_the_process_stops_as_ever() {
    let (_held, away) = closed_port();
    let gateway = start(&format!("http://{away}"));
    ask(&gateway, 5);
    assert!(stop(gateway) < Duration::from_secs(10));
}

#[test]
fn spans_that_cannot_be_exported_are_counted() {
    let (_held, away) = closed_port();
    let rest = format!("[tracing]\nendpoint = \"http://{away}\"\nsample = 1\n{FIXED}");
    let gateway = Gateway::with_server("workers = 1", &rest);
    let mut client = gateway.client();
    (0..3).for_each(|_| assert_eq!(client.get("/").status, 200));
    gateway.wait_message(FAILS);
    gateway.reload("workers = 1", FIXED);
    gateway.wait_message("reloaded");
    // The worker then uses the new configuration, and nothing more comes for the exporter.
    assert_eq!(client.get("/").status, 200);
    wait_counted(&gateway, "failed", 3);
    until("its thread has ended", BOUND, || threads(&gateway, "otlp") == 0);
}

#[test]
#[ignore = "needs Python"]
fn a_reload_begins_changes_and_ends_it() {
    let (up, first, second) = (Upstream::start(|_| reply(200, "")), Collector::start(), Collector::start());
    let gateway = Gateway::start(&up.everything());
    let mut client = gateway.client();
    let mut flag = || {
        assert_eq!(client.get("/").status, 200);
        let parent = up.received().pop().unwrap().headers.joined("traceparent");
        parent.rsplit('-').next().unwrap().to_owned()
    };
    let reload = |section: &str| {
        let reloads = logged(&gateway, "reloaded");
        gateway.reload("", &(up.everything() + section));
        until("it is reloaded", BOUND, || logged(&gateway, "reloaded") > reloads);
    };
    assert_eq!(flag(), "", "no trace begins");
    reload(&first.section("sample = 1"));
    assert_eq!(flag(), "01");
    first.wait_spans(2);
    // Spans that wait for the previous exporter still go to the previous collector.
    assert_eq!(flag(), "01");
    reload(&second.section("sample = 1"));
    assert_eq!(flag(), "01");
    assert_eq!((first.wait_spans(4).len(), second.wait_spans(2).len()), (4, 2));
    // The same collector keeps its exporter.
    reload(&second.section("sample = 0"));
    assert_eq!(flag(), "00");
    reload("");
    assert_eq!(flag(), "");
    wait_counted(&gateway, "exported", 6);
    until("its threads have ended", BOUND, || threads(&gateway, "otlp") == 0);
}

fn threads(gateway: &Gateway, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", gateway.pid())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
#[ignore = "needs Python"]
fn a_collector_with_tls_needs_a_certificate_that_the_system_trusts() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificate = authority.issue("collector", "collector", &["localhost"]);
    let (sender, exports) = channel();
    let sender = Mutex::new(sender);
    let collector = TlsServer::raw(authority.server(&certificate, false), move |mut stream, _| {
        if let Some(export) = read_request(&mut stream) {
            let _ = stream.write_all(&reply(200, ""));
            let _ = sender.lock().unwrap().send(export);
        }
    });
    let rest = format!(
        "[tracing]\nendpoint = \"https://localhost:{}/otlp\"\nsample = 1\n{}",
        collector.address.port(),
        limited("client-ip", "9/h", "")
    );
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &authority.ca(), &rest);
    ask(&gateway, 1);
    let (path, body) = exports.recv_timeout(BOUND).unwrap();
    assert_eq!((&*path, decode([&*body].into_iter()).len()), ("/otlp/v1/traces", 2));
    wait_counted(&gateway, "exported", 2);
    let gateway = Gateway::with_variable("SSL_CERT_FILE", &other.ca(), &rest);
    ask(&gateway, 1);
    let line = gateway.wait_message(FAILS);
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
}

/// These tests load the machine, or measure what load disturbs, so they take turns.
mod alone {
    use super::*;

    #[test]
    fn a_collector_that_hangs_delays_nobody() {
        let fault = Fault::start(Collector::start().0.address(), Mode::Freeze);
        let gateway = start(&format!("http://{}", fault.address));
        // The first export hangs from now on.
        ask(&gateway, 1);
        until("it exports", BOUND, || fault.open() == 1);
        let begun = Instant::now();
        ask(&gateway, 3000);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        // There is room for 1024 traces besides those of an export.
        let dropped = counted(&gateway, "no_room");
        assert!((1..=3000 - 1024).contains(&dropped), "{dropped}");
        gateway.wait_log("time-out", |line| line["message"] == FAILS && line["error"] == "not done within 5s");
        assert!(stop(gateway) < Duration::from_secs(10), "far less than the exports would take");
    }
}
