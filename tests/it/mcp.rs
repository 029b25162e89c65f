//! Tools by the Model Context Protocol: servers and clients of its official libraries, which `scripts/test --all` installs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Gateway, Process};

fn command(interpreter: &str, program: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(interpreter);
    command.env("PYTHONPATH", root.join("target/mcp")).env("NODE_PATH", root.join("target/mcp-client/node_modules"));
    command.arg(root.join("tests/it").join(program));
    command
}

fn served() -> (Process, u16) {
    let mut process = Process(command("python3", "mcp_peer.py").arg("serve").stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line.trim().parse().expect("the library is there: scripts/test --all installs it"))
}

/// The example of the documentation, with another server and another rate.
fn documented(port: u16, rates: &str) -> String {
    let page = include_str!("../../docs/mcp.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    example.replace("127.0.0.1:8000", &format!("127.0.0.1:{port}")).replace("\"30/m\", \"1000/d\"", rates)
}

fn calls(interpreter: &str, program: &str, gateway: &Gateway, tools: &[&str]) -> Value {
    let url = format!("http://{}/mcp", gateway.http);
    let output = command(interpreter, program).args(["call", &url]).args(tools).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs the libraries of the protocol"]
fn calls_of_a_tool_beyond_its_limit_are_errors_for_clients_in_python() {
    let (_server, port) = served();
    let gateway = Gateway::start(&documented(port, "\"5/d\""));
    let refused = json!({ "code": -32000, "message": "This tool was called too often. Try again later." });
    let tools = ["add", "add", "add", "add", "add", "add", "multiply", "add", "multiply"];
    let results = calls("python3", "mcp_peer.py", &gateway, &tools);
    assert_eq!(results, json!(["5", "5", "5", "5", "5", refused, "6", refused, "6"]));
}

#[test]
#[ignore = "needs the libraries of the protocol"]
fn calls_of_a_tool_beyond_its_limit_are_errors_for_clients_in_typescript() {
    let (_server, port) = served();
    let gateway = Gateway::start(&documented(port, "\"5/d\""));
    let results = calls("node", "mcp_client.js", &gateway, &["add", "add", "add", "add", "add", "add", "multiply"]);
    assert_eq!((&results[4], &results[6]), (&json!("5"), &json!("6")), "{results}");
    assert_eq!(results[5]["code"], 429);
    let message = results[5]["message"].as_str().unwrap();
    assert!(message.contains("This tool was called too often"), "{message}");
}
