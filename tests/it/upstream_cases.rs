//! Runs each line of the table in docs/upstreams.md: what happens to a request when a server fails.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::Socket;

use crate::harness::{Authority, Client, Gateway, TlsServer, Upstream, closed_port, full_queue, reply, until};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";

/// A server that fails, by the words of the table.
struct Failing {
    address: SocketAddr,
    scheme: &'static str,
    /// More keys of the upstream.
    more: String,
    /// Must live as long as the server.
    _held: Vec<Held>,
}

#[expect(dead_code, reason = "they are only held")]
enum Held {
    Port(Socket),
    Listener(TcpListener),
    Server(Upstream),
    Tls(TlsServer),
    Authority(Authority),
}

impl Failing {
    fn new(what: &str) -> Self {
        let raw = |serve: fn(crate::harness::Wire)| Upstream::raw(move |wire, _| serve(wire));
        let (address, scheme, more, held) = match what {
            "refuses connections" => {
                let (socket, address) = closed_port();
                (address, "http", String::new(), vec![Held::Port(socket)])
            }
            "accepts no connection within `connect_timeout`" => {
                let (listener, waiting) = full_queue(([127, 0, 0, 1], 0).into()).unwrap();
                let address = listener.local_addr().unwrap();
                let held = std::iter::once(Held::Listener(listener)).chain(waiting.into_iter().map(Held::Port));
                (address, "http", "connect_timeout = \"1s\"".to_owned(), held.collect())
            }
            "has a certificate that is not valid" => {
                let (theirs, trusted) = (Authority::new(), Authority::new());
                let server = TlsServer::start(theirs.server(&theirs.issue("server", "server", &["127.0.0.1"]), false));
                let more = format!("[upstreams.up.tls]\nca = \"{}\"", trusted.ca().display());
                (server.address, "https", more, vec![Held::Tls(server), Held::Authority(trusted)])
            }
            other => {
                let (server, more) = match other {
                    "closes the connection without a response" => (raw(|mut wire| _ = wire.head()), ""),
                    "sends what is not HTTP" => {
                        let serve = |mut wire: crate::harness::Wire| {
                            let _ = wire.head();
                            let _ = wire.write(b"\x15\x03\x01");
                            let _ = wire.write(b"garbage\r\n\r\n");
                            let _ = wire.rest();
                        };
                        (raw(serve), "")
                    }
                    "sends no head of a response within `timeout`" => {
                        (raw(|mut wire| _ = wire.rest()), "timeout = \"3s\"")
                    }
                    "answers 503" => (Upstream::start(|_| reply(503, "busy")), ""),
                    "answers 503, which `retry.status` lists" => {
                        (Upstream::start(|_| reply(503, "busy")), "[upstreams.up.retry]\nstatus = [503]")
                    }
                    "breaks off in the middle of a response" => {
                        let serve = |mut wire: crate::harness::Wire| {
                            let _ = wire.head();
                            let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                        };
                        (raw(serve), "")
                    }
                    "sends nothing of a body for `read_timeout`" => {
                        let serve = |mut wire: crate::harness::Wire| {
                            let _ = wire.head();
                            let _ = wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                            let _ = wire.rest();
                        };
                        (raw(serve), "read_timeout = \"1s\"")
                    }
                    "has `max_in_flight` requests" => (raw(|mut wire| _ = wire.rest()), "max_in_flight = 1"),
                    unknown => panic!("the table has a line that no test knows: {unknown}"),
                };
                (server.address(), "http", more.to_owned(), vec![Held::Server(server)])
            }
        };
        Self { address, scheme, more, _held: held }
    }

    /// The word of the table for what happens to this request.
    fn outcome(&self, what: &str, request: &str, other: Option<SocketAddr>) -> String {
        let other = other.map_or(String::new(), |address| format!(", \"{}://{address}\"", "http"));
        let servers = format!("servers = [\"{}://{}\"{other}]\nbalance = \"round-robin\"", self.scheme, self.address);
        let sections = format!("[upstreams.up]\n{servers}\n{}\n", self.more);
        let gateway = Gateway::start(&format!("{sections}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n"));
        let mut busy = gateway.client();
        if what == "has `max_in_flight` requests" {
            busy.send(GET);
            let in_flight = || gateway.metric("gateway_upstream_server_in_flight") == Some(1.0);
            until("it is in flight", Duration::from_secs(10), in_flight);
        }
        asked(&mut gateway.client(), request)
    }
}

fn asked(client: &mut Client, request: &str) -> String {
    client.send(request);
    match client.try_response(false) {
        Ok(response) if response.status == 200 && response.text() == "other" => "other".to_owned(),
        Ok(response) => response.status.to_string(),
        Err(_) => "cut off".to_owned(),
    }
}

#[test]
fn the_table_says_what_happens() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/upstreams.md");
    let text = std::fs::read_to_string(page).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| what the first server does")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 11, "{rows:?}");
    let good = Upstream::start(|_| reply(200, "other"));
    let mut threads = Vec::new();
    for row in rows {
        let (what, other) = (row[0].to_owned(), good.address());
        let expected: Vec<_> = row[1..].iter().map(|&word| word.to_owned()).collect();
        threads.push(std::thread::spawn(move || {
            let failing = Failing::new(&what);
            let found = [(GET, Some(other)), (POST, Some(other)), (GET, None), (POST, None)]
                .map(|(request, other)| failing.outcome(&what, request, other));
            let [get, post, alone, alone_post] = found;
            assert_eq!(alone, alone_post, "{what}");
            assert_eq!(vec![get, post, alone], expected, "{what}");
        }));
    }
    let failed: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().err()).collect();
    assert!(failed.is_empty(), "{} lines of the table are wrong", failed.len());
}
