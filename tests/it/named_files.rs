//! Files of the command line and the configuration may be anything, such as a pipe without a writer or an endless
//! device. The gateway does not wait for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::harness::{Gateway, limited};

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// The output of `gateway check` for this file, which must come soon.
fn check(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.arg("check").arg("--config").arg(path);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("check waits for {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[track_caller]
fn refused(path: &Path, why: &str) {
    let output = check(path);
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains(why), "{err}");
}

#[test]
fn check_does_not_wait_for_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    pipe(&config);
    refused(&config, "nobody writes into this pipe");
    fs::remove_file(&config).unwrap();
    for name in ["quotas.csv", "quotas.toml"] {
        pipe(&folder.path().join(name));
        fs::write(&config, limited("header:a", "5/d", &format!("overrides_file = {name:?}"))).unwrap();
        refused(&config, "it is a named pipe, not a file");
    }
}

#[test]
fn check_does_not_read_a_device() {
    refused(Path::new("/dev/zero"), "it is a device, not a file");
}

#[test]
fn a_reload_that_finds_a_pipe_is_refused_and_the_next_one_works() {
    let folder = tempfile::tempdir().unwrap();
    let quotas = folder.path().join("quotas.csv");
    fs::write(&quotas, "key,rates\nfirst,exempt\n").unwrap();
    let config = limited("header:a", "1/d", &format!("overrides_file = {:?}", quotas.to_str().unwrap()));
    let mut gateway = Gateway::start(&config);

    fs::remove_file(&quotas).unwrap();
    pipe(&quotas);
    gateway.signal(Signal::HUP);
    let line = gateway.wait_message("reload refused");
    assert!(line["problems"].to_string().contains("named pipe"), "{line}");

    fs::remove_file(&quotas).unwrap();
    fs::write(&quotas, "key,rates\nsecond,exempt\n").unwrap();
    gateway.signal(Signal::HUP);
    gateway.wait_message("reloaded");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
