//! A new gateway takes over the listening socket of the previous one, and both report to the service manager.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Client, Gateway, Upstream, limited, reply, until};

const PATIENCE: Duration = Duration::from_secs(20);

/// Takes the messages of gateways to the service manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path, _folder: folder }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn wait(&self, beginning: &str) -> String {
        let mut text = [0; 1024];
        loop {
            let length = self.socket.recv(&mut text).unwrap_or_else(|error| panic!("no {beginning}: {error}"));
            let message = String::from_utf8_lossy(&text[..length]).into_owned();
            if message.starts_with(beginning) {
                return message;
            }
        }
    }
}

#[test]
fn a_new_gateway_takes_over_without_a_failed_connection() {
    let up = Upstream::start(|_| {
        thread::sleep(Duration::from_millis(2));
        reply(200, "body")
    });
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let manager = Manager::new();
    let mut running = Gateway::with_socket(&socket, manager.path(), &up.everything());
    assert_eq!(running.http, address);
    manager.wait("READY=1");
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    // Each request has its own connection.
                    let response = Client::connect(address).get_with("/", "Connection: close\r\n");
                    assert_eq!((response.status, response.text()), (200, "body"));
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..5 {
            let next = Gateway::with_socket(&socket, manager.path(), &up.everything());
            manager.wait("READY=1");
            let mut last = std::mem::replace(&mut running, next);
            let before = served.load(Ordering::SeqCst);
            until("both serve", PATIENCE, || served.load(Ordering::SeqCst) > before + 20);
            last.signal(Signal::TERM);
            manager.wait("STOPPING=1");
            assert_eq!(last.wait_exit().code(), Some(0));
        }
        // Without a gateway, connections wait.
        running.signal(Signal::TERM);
        assert_eq!(running.wait_exit().code(), Some(0));
        let before = served.load(Ordering::SeqCst);
        running = Gateway::with_socket(&socket, manager.path(), &up.everything());
        until("it goes on", PATIENCE, || served.load(Ordering::SeqCst) > before + 20);
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn the_service_manager_is_told_of_reloads_and_that_all_is_well() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let manager = Manager::new();
    let rest = limited("client-ip", "1/d", "");
    let gateway = Gateway::with_socket(&socket, manager.path(), &rest);
    manager.wait("READY=1");
    manager.wait("WATCHDOG=1");
    manager.wait("WATCHDOG=1");
    gateway.signal(Signal::HUP);
    assert!(manager.wait("RELOADING=1").contains("MONOTONIC_USEC="));
    manager.wait("READY=1");
    // A refused reload ends, too.
    gateway.write_config("this is no toml");
    gateway.signal(Signal::HUP);
    manager.wait("RELOADING=1");
    manager.wait("READY=1");
}

#[test]
fn a_socket_that_no_listener_uses_is_reported() {
    let socket = TcpListener::bind("127.0.0.2:0").unwrap();
    let manager = Manager::new();
    let gateway = Gateway::with_socket(&socket, manager.path(), &limited("client-ip", "1/d", ""));
    assert_eq!(gateway.http, socket.local_addr().unwrap(), "this one is used");
    drop(gateway);
    let gateway = Gateway::with_unused_socket(&socket, &limited("client-ip", "1/d", ""));
    let line = gateway.wait_log("a warning", |line| line["level"] == "WARN");
    assert_eq!(line["address"], socket.local_addr().unwrap().to_string());
}

#[test]
fn a_reload_takes_a_passed_socket_for_the_first_time_or_again() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let rest = limited("client-ip", "100/d", "");
    let gateway = Gateway::with_unused_socket(&socket, &rest);
    let warning = "connections wait in a socket that was passed to the gateway: no listener has its address";
    gateway.wait_message(warning);
    let warnings = || gateway.log().iter().filter(|line| line.contains(warning)).count();
    let listen = format!("listen = \"{address}\"");
    for round in 1..3 {
        let mut waiting = Client::connect(address);
        waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        gateway.reload_and_wait(&listen, &rest);
        assert_eq!(waiting.response(false).status, 200);
        assert_eq!(Client::connect(address).get("/").status, 200);
        // A reload that keeps the listener changes nothing.
        gateway.reload_and_wait(&listen, &rest);
        assert_eq!(Client::connect(address).get("/").status, 200);
        assert_eq!(warnings(), round);
        gateway.reload_and_wait("", &rest);
        assert_eq!(warnings(), round + 1);
    }
}

#[test]
fn a_passed_socket_that_only_the_gateway_has_is_closed_when_it_stops() {
    let (up, release) = Upstream::holding();
    let manager = Manager::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut gateway = Gateway::with_socket(&socket, manager.path(), &up.everything());
    drop(socket);
    let mut client = Client::connect(address);
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    up.wait_connections(1);
    gateway.signal(Signal::TERM);
    until("connections are refused", PATIENCE, || TcpStream::connect(address).is_err());
    drop(release);
    assert_eq!(client.response(false).status, 200);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
