//! gRPC through the gateway, with clients and servers of grpcio and grpc-js, which `scripts/test --all` installs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, Process, Upstream, closed_port, reply};

/// The programs of clients and servers, with their interpreters.
const PEERS: [Peer; 2] = [PYTHON, ("node", "grpc_peer.js")];
const PYTHON: Peer = ("python3", "grpc_peer.py");

type Peer = (&'static str, &'static str);

fn command((interpreter, program): Peer) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(interpreter);
    command.env("PYTHONPATH", root.join("target/grpcio")).env("NODE_PATH", root.join("target/grpc-js/node_modules"));
    command.arg(root.join("tests/it").join(program));
    command
}

struct Server {
    _process: Process,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(peer: Peer) -> Self {
        let mut process = Process(command(peer).arg("serve").stdout(Stdio::piped()).spawn().unwrap());
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let port = line.trim().parse().expect("the library is there: scripts/test --all installs it");
        Self { _process: process, output, port }
    }

    /// This server as an upstream, and a route to it with these keys.
    fn routed(&self, more: &str) -> String {
        routed(SocketAddr::from(([127, 0, 0, 1], self.port)), more)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

fn routed(address: SocketAddr, more: &str) -> String {
    let upstream = format!("[upstreams.up]\nservers = [\"http://{address}\"]\nhttp2 = true\ntimeout = \"4s\"\n");
    format!("{upstream}[[routes]]\npath = \"/*\"\nupstream = \"up\"\n{more}\n")
}

fn call(gateway: &Gateway, arguments: &[&str]) -> Value {
    call_with(PYTHON, gateway, arguments)
}

fn call_with(client: Peer, gateway: &Gateway, arguments: &[&str]) -> Value {
    let output = command(client).args(["call", &gateway.http.to_string()]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs the gRPC libraries of Python and JavaScript"]
fn calls_of_all_four_kinds_pass() {
    for server in PEERS.map(Server::start) {
        let gateway = Gateway::start(&server.routed(""));
        for client in PEERS {
            all_kinds(|arguments| call_with(client, &gateway, arguments));
        }
    }
}

fn all_kinds(call: impl Fn(&[&str]) -> Value) {
    let unary = call(&["Unary", "1"]);
    assert_eq!((&unary["code"], &unary["messages"]), (&json!("OK"), &json!(["hello!"])), "{unary}");
    assert_eq!(unary["initial"]["x-initial"], "value");
    assert_eq!((&unary["trailing"]["x-trailing"], &unary["trailing"]["x-bytes-bin"]), (&json!("end"), &json!("\0ÿ")));
    let failed = call(&["Fail", "1"]);
    assert_eq!((&failed["code"], &failed["details"]), (&json!("NOT_FOUND"), &json!("no such é%")), "{failed}");
    let collected = call(&["ClientStream", "100"]);
    let all: Vec<_> = (0..100).map(|index| format!("m{index}")).collect();
    assert_eq!(collected["messages"], json!([all.join(",")]), "{collected}");
    let listed = call(&["ServerStream", "100"]);
    assert_eq!(listed["messages"], json!((0..100).map(|index| index.to_string()).collect::<Vec<_>>()), "{listed}");
    // Each message waits for the answer to the previous one, so nothing may buffer them.
    let echoed = call(&["Bidirectional", "50"]);
    assert_eq!(echoed["messages"], json!((0..50).map(|index| format!("m{index}!")).collect::<Vec<_>>()), "{echoed}");
}

#[test]
#[ignore = "needs the gRPC libraries of Python and JavaScript"]
fn a_call_over_a_limit_is_told_when_to_try_again() {
    let server = Server::start(PYTHON);
    let limit = "[limits.l]\nkey = \"global\"\nrates = [\"1/h\"]\n";
    let gateway = Gateway::start(&format!("{limit}{}", server.routed("limits = [\"l\"]")));
    assert_eq!(call(&gateway, &["Unary", "1"])["code"], "OK");
    let methods = ["Unary", "ServerStream", "Bidirectional"];
    for (client, method) in PEERS.into_iter().flat_map(|client| methods.map(|method| (client, method))) {
        let refused = call_with(client, &gateway, &[method, "1"]);
        assert_eq!(refused["code"], "RESOURCE_EXHAUSTED", "{refused}");
        let details = refused["details"].as_str().unwrap();
        assert!(details.contains("The limit \"l\" allows 1/h"), "{refused}");
        // Another test checks the whole google.rpc.Status.
        let status = refused["trailing"]["grpc-status-details-bin"].as_str().unwrap();
        let retry_info = "type.googleapis.com/google.rpc.RetryInfo";
        assert!(status.starts_with("\x08\x08") && status.contains(retry_info), "{refused}");
    }
    // The answer to other clients stays the same.
    gateway.client().call("POST /test.Echo/Unary HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").expect_problem(429);
}

#[test]
#[ignore = "needs the gRPC libraries of Python and JavaScript"]
fn other_failures_have_their_codes() {
    let (_socket, away) = closed_port();
    let gateway = Gateway::start(&routed(away, ""));
    let failed = call(&gateway, &["Unary", "1"]);
    assert_eq!(
        (&failed["code"], &failed["details"]),
        (&json!("UNAVAILABLE"), &json!("The upstream server cannot be reached."))
    );
    let gateway = Gateway::start("[[routes]]\npath = \"/other\"\nrespond = { status = 200 }\n");
    assert_eq!(call(&gateway, &["Unary", "1"])["code"], "UNIMPLEMENTED");
    let limit = "[limits.l]\nkey = \"header:x-key\"\nmissing = \"reject\"\nrates = [\"1/h\"]\n";
    let gateway = Gateway::start(&format!("{limit}{}", routed(away, "limits = [\"l\"]")));
    assert_eq!(call(&gateway, &["Unary", "1"])["code"], "INVALID_ARGUMENT");
    let silent = Upstream::raw(|wire, _| {
        std::thread::sleep(Duration::from_secs(30));
        drop(wire);
    });
    let gateway = Gateway::start(&routed(silent.address(), ""));
    assert_eq!(call(&gateway, &["Unary", "1"])["code"], "DEADLINE_EXCEEDED");
}

#[test]
#[ignore = "needs the gRPC libraries of Python and JavaScript"]
fn a_deadline_cuts_the_call_of_the_upstream() {
    let mut server = Server::start(PYTHON);
    let gateway = Gateway::start(&server.routed(""));
    // This client does not enforce its deadline itself.
    let begun = Instant::now();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--http2-prior-knowledge", "--max-time", "20", "--output", "-", "--include"]);
    curl.args([
        "--header",
        "content-type: application/grpc",
        "--header",
        "te: trailers",
        "--header",
        "grpc-timeout: 2S",
    ]);
    curl.args(["--data-binary", "@-", &format!("http://{}/test.Echo/Late", gateway.http)]);
    let mut child = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &[0; 5]).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("HTTP/2 200") && text.contains("first"), "{text}");
    assert!((Duration::from_secs(2)..Duration::from_secs(15)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(server.line(), "cancelled");
    let line = gateway.wait_log("the end", |line| line["reason"] == "grpc_timeout");
    assert_eq!(line["outcome"], "abandoned");
    // Before the response begins, the gateway itself reports the timeout.
    let silent = Upstream::raw(|wire, _| {
        std::thread::sleep(Duration::from_secs(30));
        drop(wire);
    });
    let upstream = routed(silent.address(), "").replace("\"4s\"", "\"1h\"");
    let gateway = Gateway::start(&upstream);
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nGrpc-Timeout: 100m\r\nContent-Length: 0\r\n\r\n";
    let response = gateway.client().call(request);
    assert_eq!((response.status, response.headers.must("grpc-status")), (200, "4"), "{response:?}");
    // The upstream is not to blame.
    assert!(gateway.metric("gateway_upstream_failures_total").is_none_or(|failures| failures < 1.0));
}

#[test]
fn a_body_that_is_not_grpc_has_no_deadline() {
    let up = Upstream::start(|_| {
        std::thread::sleep(Duration::from_millis(300));
        reply(200, "late")
    });
    let gateway = Gateway::start(&up.everything());
    assert_eq!(gateway.client().get_with("/", "Grpc-Timeout: 1m\r\n").text(), "late");
}
