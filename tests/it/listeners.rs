//! A reload may open and close listeners, without losing a request or a counter.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Authority, Client, Gateway, Upstream, limited, reply, until};

const PATIENCE: Duration = Duration::from_secs(20);

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

#[test]
fn new_listeners_open_and_old_ones_drain() {
    let (begun, goes_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let (begun, goes_on): (&'static AtomicBool, &'static AtomicBool) =
        (Box::leak(Box::new(begun)), Box::leak(Box::new(goes_on)));
    let up = Upstream::start(move |request| {
        if request.target == "/slow" {
            begun.store(true, Ordering::SeqCst);
            until("the test goes on", PATIENCE, || goes_on.load(Ordering::SeqCst));
        }
        reply(200, "body")
    });
    let rest = format!(
        "{}{}",
        up.section(),
        "[limits.l]\nkey = \"global\"\nrates = [\"4/d\"]\n\
        [[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nupstream = \"up\"\n"
    );
    let gateway = Gateway::start(&rest);
    let (old, mut idle, mut busy) = (gateway.http, gateway.client(), gateway.client());
    assert_eq!(idle.get("/").status, 200);
    busy.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    until("the request is in flight", PATIENCE, || begun.load(Ordering::SeqCst));

    gateway.reload_and_wait("listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]", &rest);
    let new = gateway.listening_at("http", "127.0.0.2");
    let mut other = Client::connect(new);
    assert_eq!(other.get("/").status, 200);
    assert_eq!(idle.get("/").status, 200, "the first listener and its connections stay");

    gateway.reload_and_wait("listen = \"127.0.0.2:0\"", &rest);
    until("nobody listens any more", PATIENCE, || is_refused(old));
    assert!(idle.closed().is_empty(), "a connection without a request ends");
    goes_on.store(true, Ordering::SeqCst);
    let response = busy.response(false);
    assert_eq!((response.status, response.text()), (200, "body"), "a request in flight is finished");
    assert!(busy.closed().is_empty());
    assert_eq!(other.get("/").status, 429, "the four that were counted before stay counted");
}

fn ask(mut stream: TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Ok(response)
}

#[test]
fn a_listener_may_move_to_another_address_with_its_port() {
    let rest = limited("client-ip", "1000/s", "");
    let gateway = Gateway::start(&rest);
    let port = gateway.http.port();
    assert_eq!(gateway.client().get("/").status, 200);
    gateway.reload_and_wait(&format!("listen = \"0.0.0.0:{port}\""), &rest);
    for address in ["127.0.0.1", "127.0.0.3"] {
        let mut client = Client::connect(format!("{address}:{port}").parse().unwrap());
        assert_eq!(client.get("/").status, 200, "{address}");
    }
    // And back, while a client comes all the time. If a socket closes at the moment of a connect, the system resets that
    // connection.
    let (done, broken) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                match TcpStream::connect(gateway.http).and_then(ask) {
                    Ok(response) => assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"), "{response:?}"),
                    Err(error) => {
                        assert!([ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused].contains(&error.kind()));
                        broken.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
        for address in ["127.0.0.1", "0.0.0.0", "127.0.0.1"] {
            gateway.reload_and_wait(&format!("listen = \"{address}:{port}\""), &rest);
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(broken.into_inner() <= 3, "at most one for each move");
    until("only one address is left", PATIENCE, || is_refused(SocketAddr::from(([127, 0, 0, 3], port))));
}

#[test]
fn an_address_that_cannot_be_had_refuses_the_reload() {
    let rest = limited("client-ip", "1000/s", "");
    let gateway = Gateway::start(&rest);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    gateway.reload(&format!("listen = [\"127.0.0.2:0\", \"{address}\"]"), &limited("client-ip", "1/d", ""));
    let line = gateway.wait_message("reload refused");
    let why = line["problems"].as_str().unwrap();
    assert!(why.contains(&format!("cannot listen on {address}: another process listens on it")), "{why}");
    let mut client = gateway.client();
    assert_eq!([client.get("/").status, client.get("/").status], [200, 200], "nothing has changed");
    assert!(!gateway.log().iter().any(|line| line.contains("127.0.0.2")), "no other listener is open");
}

#[test]
fn a_listener_may_begin_to_use_tls() {
    let authority = Authority::new();
    let issued = authority.issue("site", "site.test", &["site.test"]);
    let rest = limited("client-ip", "1000/s", "");
    let gateway = Gateway::start(&rest);
    let mut before = gateway.client();
    assert_eq!(before.get("/").status, 200);
    let tls = format!(
        "listen = {{ address = \"127.0.0.1:0\", tls = true }}\n[server.tls]\n\
         certificates = [{{ cert = {:?}, key = {:?} }}]\n",
        issued.cert, issued.key
    );
    gateway.reload_and_wait(&tls, &rest);
    assert!(before.closed().is_empty(), "it would go on without TLS");
    let mut plain = gateway.client();
    let response = plain.get("/");
    assert!(response.status == 400 && response.text().contains("TLS"), "{}", response.text());
}

#[test]
fn the_admin_listener_may_move_and_go_away() {
    let rest = limited("client-ip", "1000/s", "");
    let mut gateway = Gateway::start(&rest);
    let old = gateway.admin;
    gateway.reload_admin("listen = \"127.0.0.2:0\"", &rest);
    gateway.admin = gateway.listening_at("admin", "127.0.0.2");
    assert_eq!(gateway.admin("/healthz").status, 200);
    until("nobody listens any more", PATIENCE, || is_refused(old));

    let mut kept = Client::connect(gateway.admin);
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n");
    assert_eq!(kept.call(ask("/api/config")).status, 200);
    let path = gateway.config_path();
    let text = std::fs::read_to_string(path).unwrap();
    let (before, after) = text.split_once("[admin]").unwrap();
    std::fs::write(path, format!("{before}[log]{}", after.split_once("[log]").unwrap().1)).unwrap();
    let reloaded = gateway.reloads();
    gateway.signal(rustix::process::Signal::HUP);
    until("it reloads", PATIENCE, || gateway.reloads() > reloaded);
    until("nobody listens any more", PATIENCE, || is_refused(gateway.admin));
    // There is no token any more.
    assert_eq!(kept.call(ask("/api/config")).status, 503);
}

#[test]
fn a_thousand_reloads_fail_no_request_and_lose_no_count() {
    const RELOADS: usize = 1000;
    let up = Upstream::start(|_| reply(200, "body"));
    let rest = |quota: usize| {
        format!(
            "{}[limits.l]\nkey = \"header:x-key\"\nrates = [\"{quota}/d\"]\n\
            [[routes]]\npath = \"/{{name}}\"\nlimits = [\"l\"]\nupstream = \"up\"\n",
            up.section()
        )
    };
    let gateway = Gateway::start(&rest(1_000_000));
    let (done, admitted) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for reconnects in [false, true] {
            let (gateway, done, admitted) = (&gateway, &done, &admitted);
            scope.spawn(move || {
                let mut client = gateway.client();
                while !done.load(Ordering::SeqCst) {
                    if reconnects {
                        client = gateway.client();
                    }
                    assert_eq!(client.get_with("/a", "X-Key: k\r\n").status, 200);
                    admitted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 0..RELOADS {
            gateway.write_config(&rest(1_000_001 + round));
            let ask = format!("POST /api/reload HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", gateway.admin);
            assert_eq!(Client::connect(gateway.admin).call(ask).status, 200, "reload {round}");
        }
        done.store(true, Ordering::SeqCst);
    });
    let usage = gateway.admin("/api/limits/l/keys/k").json();
    let used = usage["rates"][0]["used"].as_u64().unwrap();
    assert_eq!(used, admitted.load(Ordering::SeqCst) as u64);
    assert_eq!(usage["rates"][0]["rate"], format!("{}/d", 1_000_000 + RELOADS));
    until("each has its line in the log", PATIENCE, || gateway.reloads() == RELOADS);
}
