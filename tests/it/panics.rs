//! Each panic is logged in one line, and a panicking thread does not wait for a reader of the log.
//!
//! No input makes a gateway panic. So these tests start themselves again as a process that opens the log like a gateway
//! and panics.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use gateway::config::{AccessLog, Log, LogFormat};
use serde_json::Value;

use crate::harness::Process;

const PANICS: &str = "GATEWAY_TEST_PANICS";
const DONE: &str = "all have panicked";

/// Runs in the other process: threads panic one after the other.
#[test]
#[ignore = "the other tests run it"]
fn panicking() {
    let Some(panics) = env::var(PANICS).ok().and_then(|panics| panics.parse().ok()) else { return };
    let (level, format, access) = (tracing::Level::INFO, LogFormat::Json, AccessLog::On);
    let config = Log { level, format, access, access_file: None, access_format: None };
    let logging = gateway::proxy::log::start(&config).unwrap();
    for _ in 0..panics {
        let worker = thread::Builder::new().name("worker-7".to_owned());
        worker.spawn(|| panic!("a bug in {}", "this test")).unwrap().join().unwrap_err();
    }
    println!("{DONE}");
    drop(logging);
}

/// Kills the process when the test ends.
struct Panicking(Process);

impl Panicking {
    fn start(panics: u32) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "panics::panicking", "--ignored", "--nocapture"]).env(PANICS, panics.to_string());
        command.env_remove("RUST_BACKTRACE").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Process(command.spawn().unwrap()))
    }
}

#[test]
fn a_panic_is_logged_in_one_line() {
    let mut process = Panicking::start(2);
    let lines: Vec<_> = BufReader::new(process.0.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"panicked".into()), "{line}");
        assert_eq!((&line["thread"], &line["error"]), (&"worker-7".into(), &"a bug in this test".into()), "{line}");
        assert!(line["place"].as_str().unwrap().starts_with("tests/it/panics.rs:"), "{line}");
        assert!(line.get("backtrace").is_none(), "{line}");
    }
}

#[test]
fn a_panic_does_not_wait_for_a_reader_of_the_log() {
    // A pipe holds some hundreds of lines.
    let mut process = Panicking::start(2000);
    let (tell, told) = channel();
    let stdout = BufReader::new(process.0.stdout.take().unwrap());
    thread::spawn(move || {
        let mut lines = stdout.lines().map_while(Result::ok);
        let _ = tell.send(lines.any(|line| line.ends_with(DONE)));
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true), "they wait for ever");
}
