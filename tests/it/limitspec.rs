//! The suite for rate limiters (scripts/conformance): each of its behaviours is what one faulty limiter lacks, and the gateway has
//! all of them.

#[allow(dead_code, reason = "the program has a `main`")]
#[path = "../../scripts/conformance/main.rs"]
mod conformance;
mod faults;
mod limiter;
mod server;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use conformance::behaviour::{Group, Verdict};
use conformance::policy::{Algorithm, Rate};
use conformance::suite::{self, Finding, Selection};
use conformance::target::{Instance, Target, Tolerance};
use faults::Fault;
use limiter::{QUOTA, WINDOW};
use server::Server;

/// Suites that run side by side begin one after the other.
const STAGGER: Duration = Duration::from_millis(400);

/// A client that sends a request every 20th of a window, for five windows.
fn log() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..100).map(|number| format!("192.0.2.1 {}\n", f64::from(number) * 0.1)).collect();
    std::fs::write(file.path(), lines).unwrap();
    file
}

fn target(server: &Server, log: &Path) -> Arc<Target> {
    let limiter = Arc::clone(&server.limiter);
    let instances = server.instances.iter().map(|address| Instance {
        address: *address,
        host: address.to_string(),
        path: "/".to_owned(),
    });
    Arc::new(Target {
        instances: instances.collect(),
        rate: Rate { quota: QUOTA, window: WINDOW },
        algorithm: Algorithm::Log,
        key_header: "x-api-key".to_owned(),
        failing_path: Some("/failing".to_owned()),
        free_path: Some("/free".to_owned()),
        log: Some(log.to_owned()),
        memory: Some(Arc::new(move || Ok(limiter.lock().unwrap().memory()))),
        keys: 96,
        most_bytes: 200_000,
        most_cost: Duration::from_millis(5),
        tolerance: Tolerance { mean: 0.0, worst: 0.0 },
        run: 0xabc,
        used_keys: AtomicUsize::new(0),
    })
}

/// Many connections are open at the same time, on both sides.
fn allow_handles() {
    let limit = getrlimit(Resource::Nofile);
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Measures limiters with these faults, all at the same time on one thread. Returns what was wrong with each.
fn measure(faults: Vec<Option<Fault>>) {
    allow_handles();
    let log = log();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let wrong: Vec<String> = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (number, fault) in (0..).zip(faults) {
            let log = log.path().to_owned();
            tasks.spawn(async move {
                tokio::time::sleep(STAGGER * number).await;
                let server = Server::start(fault).await;
                let findings = suite::run(&target(&server, &log), &Selection::default()).await;
                judge(fault, &findings)
            });
        }
        tasks.join_all().await.into_iter().flatten().collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every behaviour must have been measured, and only that of the fault may be missing.
fn judge(fault: Option<Fault>, findings: &[Finding]) -> Vec<String> {
    let broken = fault.map(Fault::breaks);
    let wrong = findings.iter().filter(|finding| {
        let expected = if broken == Some(finding.behaviour.id) { Verdict::Failed } else { Verdict::Passed };
        finding.outcome.verdict != expected
    });
    wrong.map(|finding| format!("{fault:?}: {} is {:?}", finding.behaviour.id, finding.outcome)).collect()
}

fn measure_group(group: Group) {
    let of_group =
        |fault: &Fault| suite::behaviours().any(|behaviour| behaviour.id == fault.breaks() && behaviour.group == group);
    let faults: Vec<_> = Fault::ALL.iter().copied().filter(of_group).map(Some).collect();
    assert!(!faults.is_empty());
    measure(faults);
}

#[test]
fn a_limiter_without_a_fault_passes() {
    measure(vec![None]);
}

#[test]
fn each_behaviour_has_its_fault() {
    let behaviours: Vec<_> = suite::behaviours().map(|behaviour| behaviour.id).collect();
    let broken: Vec<_> = Fault::ALL.iter().map(|fault| fault.breaks()).collect();
    assert_eq!(behaviours.iter().collect::<BTreeSet<_>>(), broken.iter().collect());
    assert_eq!((broken.len(), behaviours.len()), (behaviours.len(), behaviours.iter().collect::<BTreeSet<_>>().len()));
}

mod each_fault_breaks_one_behaviour {
    use super::*;

    #[test]
    fn never_more() {
        measure_group(Group::Never);
    }

    #[test]
    fn keys() {
        measure_group(Group::Keys);
    }

    #[test]
    fn never_fewer() {
        measure_group(Group::Fair);
    }

    #[test]
    fn truth() {
        measure_group(Group::Truth);
    }

    #[test]
    fn forgetting() {
        measure_group(Group::Forget);
    }

    #[test]
    fn accuracy() {
        measure_group(Group::Accuracy);
    }

    #[test]
    fn cost() {
        measure_group(Group::Cost);
    }
}

fn asked(arguments: &[&str]) -> Result<(String, u8), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let arguments = ["limitspec"].iter().chain(arguments).map(OsString::from);
    runtime.block_on(conformance::run(arguments))
}

#[test]
fn a_wrong_command_line_is_explained() {
    for (arguments, expected) in [
        (&["--rate", "5/2s"][..], "--url"),
        (&["--url", "http://127.0.0.1:1", "--rate", "5"], "write N/TIME"),
        (&["--url", "https://127.0.0.1", "--rate", "5/s"], "does not begin with http://"),
        (
            &["--url", "http://127.0.0.1:1", "--rate", "5/s", "--without", "bursts,http3"],
            "there is no `http3`: choose of",
        ),
    ] {
        let error = asked(arguments).unwrap_err();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
