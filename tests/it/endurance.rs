//! Good clients lose nothing while others flood, leave, break off and read slowly, servers close connections and break off
//! responses, and reloads happen. The gateway keeps nothing of all this.
//!
//! The test takes some seconds; `ENDURANCE=1200 scripts/test endurance` goes on for twenty minutes.

use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use http::Request;
use rustix::process::Signal;

use crate::harness::http2::{CANCEL, RawHttp2, frame, get, kind};
use crate::harness::{Client, Gateway, Upstream, over_http2, receive, reply, until};

const LARGE: usize = 256 << 10;
const POSTED: usize = 100 << 10;
/// How much the memory of the gateway may grow after a quarter of the time.
const MOST_GROWTH: u64 = 16 << 20;
/// After so many requests a server closes a connection without notice.
const MOST_REQUESTS: usize = 20;
const GOOD: usize = 5;
const BAD: usize = 5;

/// Connections to `/hello` are closed after a few requests.
fn server() -> Upstream {
    Upstream::raw(|mut wire, _| {
        let mut count = 0;
        while let Ok(Some(request)) = receive(&mut wire) {
            let written = match &*request.target {
                "/large" => wire.write(&reply(200, &"x".repeat(LARGE))),
                "/breaks" => {
                    let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                    break;
                }
                "/length" => wire.write(&reply(200, &request.body.len().to_string())),
                _ => wire.write(&reply(200, "hello")),
            };
            count += usize::from(request.target == "/hello");
            if written.is_err() || count == MOST_REQUESTS {
                break;
            }
        }
    })
}

fn good(number: usize, gateway: SocketAddr, kept: &mut Client) {
    match number {
        0 => {
            let response = kept.get("/hello");
            assert_eq!((response.status, response.text()), (200, "hello"));
        }
        1 => {
            let request = format!("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: {POSTED}\r\n\r\n");
            let response = kept.call(request + &"x".repeat(POSTED));
            assert_eq!((response.status, response.text()), (200, &*POSTED.to_string()));
        }
        2 => {
            kept.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            let (response, framing) = kept.try_head().unwrap();
            let mut length = 0;
            let read = kept.wire.body(framing, &mut |piece| {
                length += piece.len();
                sleep(Duration::from_millis(1));
            });
            assert_eq!((response.status, length), (200, LARGE), "{read:?}");
        }
        3 => {
            let ask = || Request::get("http://test.example/hello").body(()).unwrap();
            let responses = over_http2(gateway, (0..8).map(|_| ask()).collect());
            assert_eq!(responses.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200; 8]);
        }
        _ => {
            let mut client = Client::connect(gateway);
            client.send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            client.wire.stream().shutdown(Shutdown::Write).unwrap();
            let response = client.response(false);
            assert_eq!((response.status, response.body.len()), (200, LARGE));
        }
    }
}

fn bad(number: usize, gateway: SocketAddr) {
    // Leaves a part of the machine to the good clients.
    sleep(Duration::from_millis(10));
    match number {
        0 => {
            let mut client = Client::connect_from([127, 0, 0, 9].into(), gateway);
            client.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50));
            let statuses = (0..50).map(|_| client.response(false).status);
            assert!(statuses.into_iter().all(|status| matches!(status, 200 | 429)));
        }
        1 => {
            let mut client = Client::connect(gateway);
            client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            let _ = client.wire.read_exact(&mut [0; 1000]);
        }
        2 => Client::connect(gateway).send("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf"),
        3 => {
            let mut client = Client::connect(gateway);
            client.send("GET /breaks HTTP/1.1\r\nHost: a\r\n\r\n");
            match client.try_response(false) {
                Ok(response) => assert_eq!(response.status, 502),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
            }
        }
        _ => {
            let mut client = RawHttp2::connect(gateway, &[]);
            for stream in (1..100).step_by(2) {
                let asked = [get(stream, "/large"), frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat();
                if client.send(&asked).is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_kept() {
    let seconds = std::env::var("ENDURANCE").map_or(4, |seconds| seconds.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let (up, closing) = (server(), server());
    let route = |name: &str, path: &str, up: &Upstream| {
        format!(
            "[upstreams.{name}]\nservers = [\"http://{}\"]\n[[routes]]\npath = \"{path}\"\nupstream = \"{name}\"\n\
             limits = [\"l\"]\n",
            up.address()
        )
    };
    let limit = "[limits.l]\nkey = \"client-ip\"\nrates = [\"50/s\"]\n\
                 [[limits.l.overrides]]\nkeys = [\"127.0.0.1\"]\nexempt = true\n";
    let config = limit.to_owned() + &route("closing", "/hello", &closing) + &route("up", "/*", &up);
    let gateway = Gateway::with_log("access = false", &config);
    let text = std::fs::read_to_string(gateway.config_path()).unwrap();
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let (over, http) = (&over, gateway.http);
    let (counts, quarter) = scope(|scope| {
        let good = |number| {
            scope.spawn(move || {
                let mut kept = Client::connect(http);
                go_on(over, || good(number, http, &mut kept))
            })
        };
        let good: Vec<_> = (0..GOOD).map(good).collect();
        (0..BAD).for_each(|number| _ = scope.spawn(move || go_on(over, || bad(number, http))));
        let mut quarter = None;
        while (begun.elapsed() < time || quarter.is_none()) && !over.load(Ordering::SeqCst) {
            let reloads = gateway.reloads();
            std::fs::write(gateway.config_path(), text.replace("50/s", ["50/s", "60/s"][reloads % 2])).unwrap();
            gateway.signal(Signal::HUP);
            until("it reloads", Duration::from_secs(20), || gateway.reloads() > reloads);
            sleep(time.min(Duration::from_secs(2)) / 4);
            if begun.elapsed() > time / 4 {
                quarter.get_or_insert_with(|| gateway.memory("VmRSS"));
            }
        }
        over.store(true, Ordering::SeqCst);
        (good.into_iter().map(|good| good.join().unwrap()).collect::<Vec<usize>>(), quarter.unwrap())
    });
    let (end, failures) = (gateway.memory("VmRSS"), gateway.metric("gateway_request_failures_total"));
    println!("{counts:?} requests, {} MiB then and {} MiB now, {failures:?} failures", quarter >> 20, end >> 20);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert!(end < quarter + MOST_GROWTH, "{} MiB became {} MiB", quarter >> 20, end >> 20);
}

/// Repeats something and counts. All end with the first that ends, so a failure shows at once.
fn go_on(over: &AtomicBool, mut once: impl FnMut()) -> usize {
    let _ended = Ends(over);
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        once();
        count += 1;
    }
    count
}

/// Ends all clients when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
