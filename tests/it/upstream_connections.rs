//! Connections to upstreams: which requests are sent twice, and how long connections are kept.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Client, Gateway, Upstream, reply, until};

const BOUND: Duration = Duration::from_secs(10);
const RESTING: usize = 10;

fn everything(up: &Upstream, keys: &str) -> String {
    format!("{}{keys}\n[[routes]]\npath = \"/*\"\nupstream = \"up\"\n", up.section())
}

/// Answers until the test says otherwise. Then it sends only `last` and closes the connection at each request.
struct Closing {
    up: Upstream,
    closes: Arc<AtomicBool>,
    /// Requests since then.
    deliveries: Arc<AtomicUsize>,
}

impl Closing {
    fn start(last: &'static str) -> Self {
        let (closes, deliveries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (told, count) = (closes.clone(), deliveries.clone());
        // All are in flight at the same time, so each has a connection.
        let together = Barrier::new(RESTING);
        let up = Upstream::raw(move |mut wire, _| {
            while let Ok(Some(_)) = wire.head() {
                if told.load(Ordering::SeqCst) {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = wire.write(last.as_bytes());
                    return;
                }
                together.wait();
                let _ = wire.write(&reply(200, "well"));
            }
        });
        Self { up, closes, deliveries }
    }

    /// A gateway with idle connections to it. From now on every request closes one.
    fn gateway(&self) -> Gateway {
        let gateway = Gateway::with_server("workers = 1", &everything(&self.up, ""));
        let mut clients: Vec<Client> = (0..RESTING).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "well"));
        assert_eq!(self.up.connections(), RESTING);
        self.closes.store(true, Ordering::SeqCst);
        gateway
    }

    /// How often the next request came.
    fn deliveries(&self) -> usize {
        self.deliveries.swap(0, Ordering::SeqCst)
    }
}

#[test]
fn a_request_that_makes_the_upstream_close_is_sent_at_most_twice() {
    let up = Closing::start("");
    let gateway = up.gateway();
    let mut client = gateway.client();
    client.get("/").expect_problem(502);
    assert_eq!(up.deliveries(), 2, "once more, on a new connection");
    client.call("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").expect_problem(502);
    assert_eq!(up.deliveries(), 1, "not every POST may be sent twice");
    client.call("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx").expect_problem(502);
    assert_eq!(up.deliveries(), 2, "its body was kept");
    let large = "x".repeat(100_000);
    client.call(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{large}")).expect_problem(502);
    assert_eq!(up.deliveries(), 1, "its body is too large to be kept");
}

#[test]
fn connections_that_have_ended_are_replaced_once_for_a_request() {
    let requests = ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"];
    for (retries, most) in [(0, 2), (1, 3), (2, 4)] {
        let servers = [Closing::start(""), Closing::start(""), Closing::start("")];
        let list = servers.each_ref().map(|server| format!("\"http://{}\"", server.up.address())).join(", ");
        let upstream = format!("[upstreams.up]\nservers = [{list}]\nbalance = \"round-robin\"\nretries = {retries}\n");
        let more = "[upstreams.up.eject]\nfailures = 1000\n[upstreams.up.retry]\nbudget = 1.0\n";
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
        let gateway = Gateway::with_server("workers = 1", &[&upstream, more, route].concat());
        let mut clients: Vec<Client> = (0..RESTING * servers.len()).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send(requests[0]));
        clients.iter_mut().for_each(|client| assert_eq!(client.response(false).text(), "well"));
        servers.iter().for_each(|server| server.closes.store(true, Ordering::SeqCst));
        // Without retries, bodies are not kept.
        for request in &requests[..if retries == 0 { 1 } else { 2 }] {
            gateway.client().call(request).expect_problem(502);
            let deliveries: usize = servers.iter().map(Closing::deliveries).sum();
            assert_eq!(deliveries, most, "{retries} retries, {request}");
        }
    }
}

#[test]
fn a_request_that_was_answered_in_part_is_not_sent_again() {
    for last in ["H", "HTTP/1.1 200 OK\r\nContent-", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let up = Closing::start(last);
        let gateway = up.gateway();
        gateway.client().get("/").expect_problem(502);
        assert_eq!(up.deliveries(), 1, "{last:?}");
    }
}

#[test]
fn a_request_that_closes_a_new_connection_is_not_sent_again() {
    let up = Closing::start("");
    up.closes.store(true, Ordering::SeqCst);
    let gateway = Gateway::start(&everything(&up.up, ""));
    gateway.client().get("/").expect_problem(502);
    assert_eq!(up.deliveries(), 1);
}

#[test]
fn interim_responses_without_end_are_502() {
    let up = Upstream::raw(|mut wire, _| {
        let _ = wire.head();
        while wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {}
    });
    let gateway = Gateway::start(&everything(&up, ""));
    gateway.client().get("/").expect_problem(502);
}

#[test]
fn a_connection_is_used_no_longer_than_its_server_says() {
    let up = Upstream::start(|request| {
        let seconds = if request.target == "/short" { 2 } else { 600 };
        format!("HTTP/1.1 200 OK\r\nKeep-Alive: timeout={seconds}, max=100\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let gateway = Gateway::with_server("workers = 1", &everything(&up, ""));
    let mut client = gateway.client();
    for (path, connections) in [("/long", 1), ("/short", 1), ("/long", 2), ("/long", 2)] {
        assert_eq!(client.get(path).status, 200);
        assert_eq!(up.connections(), connections, "{path}");
        thread::sleep(Duration::from_millis(1200));
    }
}

/// For each closed connection: how long it was open, and how long ago its last request was.
type Ended = Arc<Mutex<Vec<(Duration, Duration)>>>;

fn timed() -> (Upstream, Ended) {
    let ended = Ended::default();
    let record = ended.clone();
    let up = Upstream::raw(move |mut wire, _| {
        let (opened, mut asked) = (Instant::now(), Instant::now());
        while let Ok(Some(_)) = wire.head() {
            asked = Instant::now();
            let _ = wire.write(&reply(200, "well"));
        }
        record.lock().unwrap().push((opened.elapsed(), asked.elapsed()));
    });
    (up, ended)
}

#[test]
fn an_unused_connection_is_kept_for_max_idle() {
    let (up, ended) = timed();
    let gateway = Gateway::with_server("workers = 1", &everything(&up, "max_idle = \"3500ms\""));
    let mut client = gateway.client();
    // In total longer than `max_idle`.
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(650));
        assert_eq!(client.get("/").text(), "well");
    }
    assert_eq!(up.connections(), 1, "it was never unused for so long");
    until("it is closed", 2 * BOUND, || ended.lock().unwrap().len() == 1);
    // The time counts from the last request.
    let (_, kept) = ended.lock().unwrap()[0];
    assert!((Duration::from_millis(2_400)..Duration::from_secs(18)).contains(&kept), "{kept:?}");
    assert_eq!(client.get("/").text(), "well");
    assert_eq!(up.connections(), 2);
}

#[test]
fn a_connection_is_used_for_max_age_however_busy_it_is() {
    const AGE: Duration = Duration::from_secs(1);
    let (up, ended) = timed();
    let gateway = Gateway::with_server("workers = 1", &everything(&up, "max_age = \"1s\""));
    let mut client = gateway.client();
    let begun = Instant::now();
    until("three were used", 3 * BOUND, || {
        assert_eq!(client.get("/").text(), "well");
        up.connections() > 3
    });
    assert!(begun.elapsed() >= 2 * AGE, "the first three were used for {:?}", begun.elapsed());
    let ended = ended.lock().unwrap();
    assert!(ended.iter().all(|(age, _)| (AGE * 7 / 10..AGE * 15).contains(age)), "{ended:?}");
}

#[test]
fn connections_to_a_server_that_a_reload_removes_are_closed() {
    let (old, ended) = timed();
    let (new, _) = timed();
    let gateway = Gateway::with_server("workers = 2", &everything(&old, ""));
    assert_eq!(gateway.client().get("/").text(), "well");
    gateway.reload("workers = 2", &everything(&new, ""));
    gateway.wait_message("reloaded");
    until("it is closed", BOUND, || ended.lock().unwrap().len() == 1);
    assert_eq!(gateway.client().get("/").text(), "well");
    assert_eq!(new.connections(), 1);
}

#[test]
fn keep_alive_probes_are_sent_to_quiet_upstreams() {
    let (up, _) = timed();
    let gateway = Gateway::start(&everything(&up, ""));
    assert_eq!(gateway.client().get("/").text(), "well");
    // The gateway's end of the connection. The timer: 2 is keep-alive, and its time is in hundredths of a second.
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!("0100007F:{:04X}", up.address().port());
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let timers: Vec<_> = fields.filter(|fields| fields[2] == remote && fields[3] == "01").map(|f| f[5]).collect();
    let [timer] = timers[..] else { panic!("{timers:?}") };
    let (kind, when) = timer.split_once(':').unwrap();
    assert_eq!(kind, "02", "{timer}");
    assert!(u64::from_str_radix(when, 16).unwrap() <= 6000, "{timer}");
}
