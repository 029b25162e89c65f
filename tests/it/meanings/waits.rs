//! Default times of up to 75 seconds. All tests wait side by side.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::plans::{Plans, field};
use crate::harness::{Client, Collector, Fault, Gateway, Mode, Software, Upstream, Wire, limited, reply, until};

const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = {}\n";
const ASK: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
/// Longer than all of them.
const LONG: Duration = Duration::from_secs(120);
/// How late something may happen on a busy machine.
const MARGIN: Duration = Duration::from_secs(15);
/// Between repeated questions of a test.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn all() {
    let waits: [fn(); 15] = [
        body_timeout,
        idle_timeout,
        drain_delay_and_drain_timeout,
        timeout,
        read_timeout,
        max_idle,
        resolve_every,
        tunnel_idle_timeout,
        eject_for,
        health_interval,
        health_timeout,
        store_timeout,
        quotas_timeout,
        cache_for,
        export_timeout,
    ];
    thread::scope(|scope| waits.into_iter().for_each(|wait| _ = scope.spawn(wait)));
}

/// Fails unless about so many milliseconds have passed since then.
#[track_caller]
fn over(begun: Instant, millis: u64) {
    let (took, least) = (begun.elapsed(), Duration::from_millis(millis));
    assert!((least..least + MARGIN).contains(&took), "{took:?}");
}

fn patient(gateway: &Gateway) -> Client {
    let client = gateway.client();
    client.wire.stream().set_read_timeout(Some(LONG)).unwrap();
    client
}

/// Sends `bytes` after each head, and keeps the connection open.
fn sending(bytes: &'static [u8]) -> Upstream {
    Upstream::raw(move |mut wire, _| {
        wire.stream().set_read_timeout(Some(LONG)).unwrap();
        while let Ok(Some(_)) = wire.head() {
            let _ = wire.write(bytes);
        }
    })
}

fn body_timeout() {
    let gateway = Gateway::start(&limited("json:/model", "9/d", ""));
    let mut client = patient(&gateway);
    let begun = Instant::now();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{");
    assert_eq!(client.response(false).status, 408);
    over(begun, 60_000);
}

fn idle_timeout() {
    let gateway = Gateway::start(FIXED);
    let mut client = patient(&gateway);
    let begun = Instant::now();
    assert_eq!(client.get("/").status, 200);
    assert!(client.closed().is_empty());
    over(begun, 75_000);
}

fn drain_delay_and_drain_timeout() {
    let up = sending(b"");
    let mut gateway = Gateway::start(&(up.section() + "timeout = \"5m\"\n" + ROUTE));
    let mut client = patient(&gateway);
    client.send(ASK);
    up.wait_connections(1);
    let begun = Instant::now();
    gateway.signal(Signal::TERM);
    until("the listeners are closed at once", MARGIN, || TcpStream::connect(gateway.http).is_err());
    assert!(!client.closed().starts_with(b"HTTP/1.1 200"));
    over(begun, 30_000);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

fn timeout() {
    let up = sending(b"");
    let gateway = Gateway::start(&up.everything());
    let mut client = patient(&gateway);
    let begun = Instant::now();
    assert_eq!(client.get("/").status, 504);
    over(begun, 30_000);
}

fn read_timeout() {
    let up = sending(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na");
    let gateway = Gateway::start(&up.everything());
    let mut client = patient(&gateway);
    let begun = Instant::now();
    client.send(ASK);
    assert_eq!(client.try_head().unwrap().0.status, 200);
    assert_eq!(client.closed(), b"a");
    over(begun, 60_000);
}

/// Connections are looked at once a second, and closed when they would be too old the next time.
fn max_idle() {
    let (tell, closed): (Sender<()>, Receiver<()>) = channel();
    let tell = Mutex::new(tell);
    let up = Upstream::raw(move |mut wire: Wire, _| {
        wire.stream().set_read_timeout(Some(LONG)).unwrap();
        while let Ok(Some(_)) = wire.head() {
            let _ = wire.write(&reply(200, ""));
        }
        let _ = tell.lock().unwrap().send(());
    });
    let gateway = Gateway::start(&up.everything());
    let begun = Instant::now();
    assert_eq!(gateway.client().get("/").status, 200);
    closed.recv_timeout(LONG).unwrap();
    over(begun, 58_500);
}

/// Only where the system permits another /etc/hosts.
fn resolve_every() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let write = |address: &str| std::fs::write(&hosts, format!("{address} app.test\n")).unwrap();
    write("127.0.0.8");
    let begun = Instant::now();
    let rest = format!("[upstreams.up]\nservers = [\"http://app.test:9\"]\n{ROUTE}");
    let Some(gateway) = Gateway::with_hosts(&hosts, &rest) else { return };
    let has = |server: &str| {
        let upstreams = gateway.admin("/api/upstreams").json()["upstreams"][0]["servers"].clone();
        upstreams.as_array().unwrap().iter().any(|one| one["server"] == server)
    };
    until("the name is found", MARGIN, || has("127.0.0.8:9"));
    write("127.0.0.9");
    until("the change is seen", LONG, || {
        thread::sleep(PAUSE);
        has("127.0.0.9:9")
    });
    over(begun, 30_000);
}

/// There is no default: the tunnel outlives all others.
fn tunnel_idle_timeout() {
    let up = Upstream::raw(|mut wire, _| {
        wire.stream().set_read_timeout(Some(LONG)).unwrap();
        let _ = wire.head();
        let _ = wire.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        let mut byte = [0];
        while wire.read_exact(&mut byte).is_ok() && wire.write(&byte).is_ok() {}
    });
    let gateway = Gateway::start(&up.everything());
    let mut client = patient(&gateway);
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(client.get_with("/", fields).status, 101);
    thread::sleep(Duration::from_secs(80));
    client.send("a");
    let mut byte = [0];
    client.wire.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"a");
}

fn eject_for() {
    let (broken, up) = (sending(b"nonsense\r\n\r\n"), Upstream::start(|_| reply(200, "")));
    let servers = format!("servers = [\"http://{}\", \"http://{}\"]", broken.address(), up.address());
    let gateway = Gateway::start(&format!("[upstreams.up]\nbalance = \"round-robin\"\n{servers}\n{ROUTE}"));
    let begun = Instant::now();
    (0..40).for_each(|_| drop(gateway.client().get("/")));
    gateway.wait_message("a server is ejected: it gets no requests for a time");
    gateway.wait_message("a server gets requests");
    over(begun, 10_000);
}

/// Each may be a tenth earlier, so that checks of many servers do not come together.
fn health_interval() {
    let up = Upstream::start(|_| reply(200, ""));
    let begun = Instant::now();
    let _gateway = Gateway::start(&(up.section() + "[upstreams.up.health]\npath = \"/health\"\n" + ROUTE));
    until("there are three checks", LONG, || up.received().len() >= 3);
    over(begun, 2 * 4_500);
}

fn health_timeout() {
    let up = sending(b"");
    let health = "[upstreams.up.health]\npath = \"/health\"\ninterval = \"100ms\"\n";
    let begun = Instant::now();
    let gateway = Gateway::start(&(up.section() + health + ROUTE));
    let line = gateway.wait_message("a server gets no requests");
    assert_eq!(line["why"], "no answer within 1s", "{line}");
    over(begun, 3_000);
}

fn store_timeout() {
    let memcached = Software::Memcached.start();
    let fault = Fault::start(memcached.address, Mode::Pass);
    let store = format!("[store]\ntype = \"memcached\"\nservers = [\"{}\"]\non_error = \"reject\"\n", fault.address);
    let gateway = Gateway::with_server("workers = 1", &(store + &limited("header:x-api-key", "9/d", "")));
    let (limit, mut number) = (Duration::from_millis(25), 0);
    // On a busy machine the server is often known to be away, and then nobody waits for it.
    until("a request waits for all of the time limit", LONG, || {
        number += 1;
        let counted = memcached.counted();
        let status = |name: &str| gateway.client().get_with("/", field(&format!("{name}-{number}"))).status;
        until("it is there", MARGIN, || status("one") == 200);
        until("it is counted", MARGIN, || memcached.counted() > counted);
        // Nothing shows that the gateway knows this.
        thread::sleep(PAUSE);
        fault.set(Mode::Hold);
        let begun = Instant::now();
        assert_eq!(status("other"), 503);
        let took = begun.elapsed();
        fault.set(Mode::Pass);
        assert!(took < limit + MARGIN, "{took:?}");
        took >= limit
    });
    assert_eq!(gateway.admin("/api/config").json()["store"]["timeout"], "25ms");
}

/// A limit with a source of quotas and no further settings.
fn asking(plans: &Plans) -> Gateway {
    let plain = limited("header:x-api-key", "1000/d", "");
    let (limit, route) = plain.split_once("[[routes]]").unwrap();
    Gateway::start(&format!("{limit}[limits.l.quotas]\nsource = {:?}\n[[routes]]{route}", plans.url()))
}

fn quotas_timeout() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"block": true}"#);
    plans.gate.close();
    let gateway = asking(&plans);
    let mut client = gateway.client();
    let begun = Instant::now();
    assert_eq!(client.get_with("/", field("k")).status, 200, "the rates of the limit hold");
    over(begun, 20);
    assert_eq!(gateway.metric("gateway_quota_waits_timed_out_total"), Some(1.0));
    assert_eq!(gateway.admin("/api/config").json()["limits"]["l"]["quotas"]["timeout"], "20ms");
    plans.gate.open();
}

/// Each may be a tenth earlier, like the checks.
fn cache_for() {
    let plans = Plans::start();
    plans.set("*", 200, r#"{"exempt": true}"#);
    let gateway = asking(&plans);
    let mut client = gateway.client();
    let begun = Instant::now();
    until("it is asked about again", LONG, || {
        thread::sleep(PAUSE);
        assert_eq!(client.get_with("/", field("k")).status, 200);
        plans.asked("/v1/k") == 2
    });
    over(begun, 54_000);
}

fn export_timeout() {
    let collector = Fault::start(Collector::start().0.address(), Mode::Freeze);
    let tracing = format!("[tracing]\nendpoint = \"http://{}\"\nsample = 1\n", collector.address);
    let gateway = Gateway::start(&(tracing + FIXED));
    let begun = Instant::now();
    assert_eq!(gateway.client().get("/").status, 200);
    let line = gateway.wait_message("spans cannot be exported");
    assert_eq!(line["error"], "not done within 5s", "{line}");
    over(begun, 5_000);
}
