//! A log that nobody reads: requests do not wait for it, lines without room are counted, and the process can end.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Client, Process, signal, until};

/// A gateway whose log only the test reads, on demand.
struct Unread {
    child: Process,
    stderr: BufReader<ChildStderr>,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Unread {
    fn start(log: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("gateway.toml");
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\n{log}\n\
             [[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
        command.arg("--config").arg(&config).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = Process(command.spawn().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let unknown = SocketAddr::from(([0; 4], 0));
        let mut gateway = Self { child, stderr, http: unknown, admin: unknown };
        gateway.http = gateway.listening();
        gateway.admin = gateway.listening();
        gateway
    }

    fn listening(&mut self) -> SocketAddr {
        self.find("listening")["address"].as_str().unwrap().parse().unwrap()
    }

    fn find(&mut self, message: &str) -> Value {
        loop {
            let line = self.line();
            if line["message"] == message {
                return line;
            }
        }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.stderr.read_line(&mut line).unwrap() > 0, "the log has ended");
        serde_json::from_str(&line).unwrap()
    }

    fn dropped(&self) -> u64 {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", self.admin);
        let text = Client::connect(self.admin).call(request);
        let line = text.text().lines().find_map(|line| line.strip_prefix("gateway_log_dropped_total "));
        line.unwrap().parse().unwrap()
    }

    fn wait_exit(&mut self) -> Option<i32> {
        let mut code = None;
        until("it ends", Duration::from_secs(20), || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }
}

fn long_path() -> String {
    format!("/{}", "a".repeat(16_000))
}

#[test]
fn requests_do_not_wait_for_a_reader_of_the_log() {
    let mut gateway = Unread::start("");
    let mut clients = [(); 4].map(|()| Client::connect(gateway.http));
    let path = long_path();
    // A pipe has room for four lines, and the gateway for some hundreds.
    for _ in 0..250 {
        for client in &mut clients {
            assert_eq!(client.get(&path).status, 200);
        }
    }
    let dropped = gateway.dropped();
    assert!((500..1000).contains(&dropped), "{dropped} lines were dropped");

    // Then the reader finds the stored lines, the number of dropped ones, and again every line.
    let (mut found, mut told) = (0, 0);
    loop {
        let line = gateway.line();
        if line["message"] == "log lines were dropped: standard error was not read fast enough" {
            assert_eq!(line["level"], "WARN");
            told += line["lines"].as_u64().unwrap();
            assert_eq!(clients[0].get("/afterwards").status, 200);
        } else if line["path"] == "/afterwards" {
            break;
        }
        found += u64::from(line["message"] == "request");
    }
    assert_eq!((found + told, gateway.dropped()), (1000, told));
}

#[test]
fn a_log_without_a_reader_does_not_delay_the_stop() {
    let mut gateway = Unread::start("");
    let mut client = Client::connect(gateway.http);
    let path = long_path();
    (0..20).for_each(|_| assert_eq!(client.get(&path).status, 200));
    let asked = Instant::now();
    signal(&gateway.child, Signal::TERM);
    assert_eq!(gateway.wait_exit(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
}

#[test]
fn lines_are_counted_as_dropped_if_the_reader_has_gone() {
    let mut gateway = Unread::start("");
    // Closes the other end of the pipe.
    gateway.stderr = BufReader::new(Command::new("true").stderr(Stdio::piped()).spawn().unwrap().stderr.unwrap());
    let mut client = Client::connect(gateway.http);
    // A process of another test may inherit the other end for a moment. Then a line is lost without being counted.
    until("they are counted", Duration::from_secs(10), || {
        assert_eq!(client.get("/").status, 200);
        gateway.dropped() >= 20
    });
    signal(&gateway.child, Signal::TERM);
    assert_eq!(gateway.wait_exit(), Some(0));
}
