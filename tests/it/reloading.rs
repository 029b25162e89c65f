//! During a reload everything else goes on, however large the files are.

use std::fmt::Write as _;
use std::fs;

use rustix::process::Signal;

use crate::harness::{Gateway, limited};

#[test]
fn a_reload_of_many_overrides_delays_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let quotas = folder.path().join("quotas.csv");
    fs::write(&quotas, "key,rates\nnobody,exempt\n").unwrap();
    let config = limited("header:a", "1/d", &format!("overrides_file = {:?}", quotas.to_str().unwrap()));
    let mut gateway = Gateway::start(&config);

    let mut text = "key,rates\n".to_owned();
    for key in 0..300_000 {
        writeln!(text, "client-{key},{}/d", 2 + key % 3).unwrap();
    }
    fs::write(&quotas, text).unwrap();
    gateway.signal(Signal::HUP);
    let is_over = || gateway.log().iter().any(|line| line.contains("\"reloaded\""));
    let mut answered = 0;
    while !is_over() {
        assert_eq!(gateway.admin("/healthz").status, 200);
        answered += 1;
    }
    // If one thread did both, it would answer one or two.
    assert!(answered > 20, "only {answered} answers while it reloaded");
    let mut client = gateway.client();
    let mut ask = || client.get_with("/", "A: client-299999\r\n").status;
    assert_eq!([(); 5].map(|()| ask()), [200, 200, 200, 200, 429], "the last line says 4/d");

    // It stops at once in the middle of the next reload.
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
