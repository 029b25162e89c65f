//! The process from start to end: listening addresses, reports, and what ends it.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::harness::{Client, Gateway, Upstream, reply, run_with_handles};

const FIXED: &str = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";

/// A port of both families, which no other process gets while the socket is open; `None` without IPv6.
fn reserved_port() -> Option<(Socket, u16)> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).ok()?;
    socket.set_only_v6(false).unwrap();
    // The gateway has this option, too, so it can listen on the port.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()).ok()?;
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    Some((socket, address.port()))
}

#[test]
fn the_gateway_can_listen_on_both_wildcards_of_a_port() {
    let Some((_held, port)) = reserved_port() else { return };
    let listen = format!("listen = [\"0.0.0.0:{port}\", \"[::]:{port}\"]");
    let _gateway = Gateway::with_server(&listen, FIXED);
    for address in [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        assert_eq!(Client::connect(address).get("/").status, 200, "{address}");
    }
}

#[test]
fn the_wildcard_of_ipv6_alone_accepts_ipv4_too() {
    let Some((_held, port)) = reserved_port() else { return };
    let _gateway = Gateway::with_server(&format!("listen = \"[::]:{port}\""), FIXED);
    for address in [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        assert_eq!(Client::connect(address).get("/").status, 200, "{address}");
    }
}

#[test]
fn requests_are_served_while_it_reports_not_ready() {
    const DELAY: Duration = Duration::from_secs(8);
    let up = Upstream::start(|_| reply(200, ""));
    let mut gateway = Gateway::with_server("drain_delay = \"8s\"", &up.everything());
    let mut known = gateway.client();
    assert_eq!(known.get("/").status, 200);
    assert_eq!(gateway.admin("/readyz").status, 200);
    let told = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.wait_message("not ready");
    assert_eq!(gateway.admin("/readyz").status, 503);
    assert_eq!(known.get("/").status, 200);
    assert_eq!(gateway.client().get("/").status, 200, "a new connection");
    assert!(told.elapsed() < DELAY, "too slow to tell: {:?}", told.elapsed());
    gateway.wait_message("draining");
    assert!(told.elapsed() >= DELAY, "listeners closed after {:?}", told.elapsed());
    assert_eq!(gateway.wait_exit().code(), Some(0));
}

#[test]
fn a_worker_that_cannot_serve_ends_the_process() {
    // Enough for the listening sockets, but not for the runtimes of six workers.
    let output = run_with_handles(26, "workers = 6", FIXED);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("error: a worker ended: Too many open files"), "{err}");
}
