//! A reload may change where the counters are. No request fails, and the previous stores close after their last
//! request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Gateway, Software, Upstream, limited, until, with_each_server};

const PATIENCE: Duration = Duration::from_secs(20);
const MEMORY: &str = "[store]\ntype = \"memory\"\n";

/// Requests arrive while counters are on one server, on another, and at last in the process.
fn under_load(software: Software, workers: usize) {
    let server = format!("workers = {workers}");
    let limit = limited("client-ip", "1000000/d", "");
    let (first, second) = (software.start(), software.start());
    let [in_first, in_second] = [&first, &second].map(|server| server.store_with("timeout = \"5s\"") + &limit);
    let in_memory = MEMORY.to_owned() + &limit;
    let mut gateway = Gateway::with_server(&server, &in_first);
    let (ends, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !ends.load(Ordering::SeqCst) {
                    assert_eq!(client.get("/").status, 200);
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let some_more = || {
            let before = sent.load(Ordering::SeqCst);
            until("requests go on", PATIENCE, || sent.load(Ordering::SeqCst) > before + 100);
        };
        some_more();
        for rest in [&in_second, &in_first, &in_second, &in_first, &in_memory] {
            gateway.reload_and_wait(&server, rest);
            some_more();
        }
        ends.store(true, Ordering::SeqCst);
    });
    for server in [&first, &second] {
        until("the store of before is closed", PATIENCE, || server.connections() == 0);
    }
    let sent = sent.into_inner() as u64;
    let counted = || [first.counted(), second.counted(), gateway.used("l", "127.0.0.1")];
    until("each request is counted in one store", PATIENCE, || counted().iter().sum::<u64>() == sent);
    assert!(counted().iter().all(|count| *count > 100), "{:?}", counted());
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

fn requests_go_on_with_one_worker(software: Software) {
    under_load(software, 1);
}

fn requests_go_on_with_several_workers(software: Software) {
    under_load(software, 3);
}

fn counts_stay_if_only_the_way_to_them_changes(software: Software) {
    let server = software.start();
    let limit = limited("global", "5/d", "");
    let gateway = Gateway::start(&(server.store_with("timeout = \"5s\"") + &limit));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
    }
    until("they are counted", PATIENCE, || server.counted() == 3);
    gateway.reload_and_wait("", &(server.store_with("timeout = \"6s\"\nstrict = true") + &limit));
    let statuses: Vec<_> = (0..3).map(|_| client.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

fn what_was_reserved_is_settled_where_it_was_reserved(software: Software) {
    let (begun, goes_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let (begun, goes_on): (&'static AtomicBool, &'static AtomicBool) =
        (Box::leak(Box::new(begun)), Box::leak(Box::new(goes_on)));
    let up = Upstream::start(move |_| {
        begun.store(true, Ordering::SeqCst);
        until("the test goes on", PATIENCE, || goes_on.load(Ordering::SeqCst));
        let mut response = b"HTTP/1.1 200 OK\r\nx-cost: 7\r\ncontent-length: 0\r\n".to_vec();
        response.extend_from_slice(b"\r\n");
        response
    });
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"100/d\"]\ncost = { response_header = \"x-cost\", reserve = 2 }\n\
                 [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n";
    let server = software.start();
    let old = up.section() + &server.store_with("timeout = \"5s\"") + limit;
    let gateway = Gateway::start(&old);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    until("the request is in flight", PATIENCE, || begun.load(Ordering::SeqCst));
    until("something is reserved", PATIENCE, || server.counted() == 2);
    gateway.reload_and_wait("", &(up.section() + MEMORY + limit));
    assert_eq!(server.counted(), 2, "the request is still in flight");
    goes_on.store(true, Ordering::SeqCst);
    assert_eq!(client.response(false).status, 200);
    until("it is settled", PATIENCE, || server.counted() == 7);
    until("the store of before is closed", PATIENCE, || server.connections() == 0);
    assert_eq!(gateway.used("l", "127.0.0.1"), 0, "the new store has none of it");
}

fn a_request_that_is_cut_off_holds_up_no_end(software: Software) {
    let begun: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let up = Upstream::start(move |_| {
        begun.store(true, Ordering::SeqCst);
        thread::park();
        Vec::new()
    });
    let shared = software.start();
    let limit = up.everything() + "limits = [\"l\"]\n[limits.l]\nkey = \"global\"\nrates = [\"100/d\"]\n";
    for workers in [1, 2] {
        begun.store(false, Ordering::SeqCst);
        let server = format!("workers = {workers}\ndrain_timeout = \"100ms\"");
        let mut gateway = Gateway::with_server(&server, &(shared.store_with("timeout = \"5s\"") + &limit));
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        until("the request is in flight", PATIENCE, || begun.load(Ordering::SeqCst));
        gateway.reload_and_wait(&server, &(MEMORY.to_owned() + &limit));
        let ending = Instant::now();
        gateway.signal(rustix::process::Signal::TERM);
        assert_eq!(gateway.wait_exit().code(), Some(0));
        assert!(ending.elapsed() < Duration::from_secs(8), "{:?}", ending.elapsed());
        let log = gateway.log().join("\n");
        assert!(log.contains("\"abandoned\"") && !log.contains("a store does not stop"), "{log}");
        assert!(log.contains("\"requests\":1"), "{log}");
    }
}

fn a_worker_without_requests_lets_go_of_the_old_store(software: Software) {
    let server = software.start();
    let limit = limited("global", "5/d", "");
    let gateway = Gateway::start(&(server.store_with("") + &limit));
    until("it is connected", PATIENCE, || server.connections() > 0);
    gateway.reload_and_wait("", &(MEMORY.to_owned() + &limit));
    until("the store of before is closed", PATIENCE, || server.connections() == 0);
    assert_eq!(gateway.metric("gateway_store_mode{mode=\"memory\"}"), Some(1.0));
}

#[test]
fn the_bounds_of_memory_need_a_restart() {
    let limit = limited("global", "5/d", "");
    let gateway = Gateway::start(&limit);
    gateway.reload("", &format!("{MEMORY}max_keys = 10\n{limit}"));
    let line = gateway.wait_message("reload refused");
    assert!(line["problems"].to_string().contains("store.max_keys"), "{line}");
}

with_each_server! {
    requests_go_on_with_one_worker
    requests_go_on_with_several_workers
    counts_stay_if_only_the_way_to_them_changes
    what_was_reserved_is_settled_where_it_was_reserved
    a_request_that_is_cut_off_holds_up_no_end
    a_worker_without_requests_lets_go_of_the_old_store
}
