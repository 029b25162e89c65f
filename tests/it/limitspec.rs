//! The suite for rate limiters (scripts/conformance): each of its behaviours is what one faulty limiter lacks, and the gateway has
//! all of them.

#[allow(dead_code, reason = "the program has a `main`")]
#[path = "../../scripts/conformance/main.rs"]
mod conformance;
mod faults;
mod gateway;
mod limiter;
mod server;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

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
/// How often limiters are measured again after the machine was too slow, and how much later than asked a task may go on.
const AGAIN: usize = 3;
const LATE: Duration = Duration::from_millis(30);
/// What is below it in the page is written by the program.
const BEHAVIOURS: &str = "<!-- `scripts/limitspec --page` writes the rest. -->\n";

/// A client that sends N + 1 requests at once every 0.6 windows, for 5 windows: what was admitted has left the window long before the
/// next one but one.
fn log() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<_> = (0..54).map(|number| format!("192.0.2.1 {}", f64::from(number / 6) * 1.2)).collect();
    fs::write(file.path(), lines.join("\n")).unwrap();
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
        idle: WINDOW.mul_f64(1.5),
        most_bytes: 200_000,
        most_cost: Duration::from_millis(5),
        tolerance: Tolerance { mean: 0.05, worst: 0.1 },
        run: 0xabc,
        used_keys: AtomicUsize::new(0),
    })
}

/// Many connections are open at the same time, on both sides.
fn allow_handles() {
    let limit = getrlimit(Resource::Nofile);
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What was wrong with the findings about limiters, and how late the thread that measured them was at most.
struct Measured {
    wrong: Vec<(Option<Fault>, String)>,
    latest: Duration,
}

/// Notes how much later than asked it goes on, for ever.
async fn watch(latest: &Cell<Duration>) -> Infallible {
    const PAUSE: Duration = Duration::from_millis(5);
    loop {
        let begun = Instant::now();
        tokio::time::sleep(PAUSE).await;
        latest.set(latest.get().max(begun.elapsed().saturating_sub(PAUSE)));
    }
}

/// Measures limiters with these faults, all at the same time on one thread.
fn measure(faults: &[Option<Fault>], log: &Path) -> Measured {
    allow_handles();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let latest = Cell::default();
    let wrong = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (number, fault) in (0..).zip(faults.iter().copied()) {
            let log = log.to_owned();
            tasks.spawn(async move {
                tokio::time::sleep(STAGGER * number).await;
                let server = Server::start(fault).await;
                let findings = suite::run(&target(&server, &log), &Selection::default()).await;
                judge(fault, &findings)
            });
        }
        tokio::select! {
            wrong = tasks.join_all() => wrong.into_iter().flatten().collect(),
            never = watch(&latest) => match never {},
        }
    });
    Measured { wrong, latest: latest.get() }
}

/// Every behaviour must have been measured, and only that of the fault may be missing.
fn judge(fault: Option<Fault>, findings: &[Finding]) -> Vec<(Option<Fault>, String)> {
    let broken = fault.map(Fault::breaks);
    let wrong = findings.iter().filter(|finding| {
        let expected = if broken == Some(finding.behaviour.id) { Verdict::Failed } else { Verdict::Passed };
        finding.outcome.verdict != expected
    });
    wrong.map(|finding| (fault, format!("{fault:?}: {} is {:?}", finding.behaviour.id, finding.outcome))).collect()
}

fn measure_groups(groups: &[Group]) {
    let of_groups = |fault: &Fault| {
        suite::behaviours().any(|behaviour| behaviour.id == fault.breaks() && groups.contains(&behaviour.group))
    };
    let faults: Vec<_> = Fault::ALL.iter().copied().filter(of_groups).map(Some).collect();
    assert!(!faults.is_empty());
    measure_all(&faults);
}

/// Limiters with these faults break one behaviour each.
#[track_caller]
fn measure_all(faults: &[Option<Fault>]) {
    let log = log();
    let mut measured = measure(faults, log.path());
    for _ in 0..AGAIN {
        // The faults of edge, quiet, recovers, poisson, bursts and replay show in requests at certain times. If requests are late, these
        // faults show in others, or in none.
        if measured.wrong.is_empty() || measured.latest < LATE {
            break;
        }
        let mut again: Vec<_> = measured.wrong.iter().map(|(fault, _)| *fault).collect();
        again.dedup();
        measured = measure(&again, log.path());
    }
    assert!(measured.wrong.is_empty(), "late by {:?} at most: {:#?}", measured.latest, measured.wrong);
}

#[test]
fn a_limiter_without_a_fault_passes() {
    measure_all(&[None]);
}

#[test]
fn each_behaviour_has_its_fault() {
    let behaviours: Vec<_> = suite::behaviours().map(|behaviour| behaviour.id).collect();
    let broken: Vec<_> = Fault::ALL.iter().map(|fault| fault.breaks()).collect();
    assert_eq!(behaviours.iter().collect::<BTreeSet<_>>(), broken.iter().collect());
    assert_eq!((broken.len(), behaviours.len()), (behaviours.len(), behaviours.iter().collect::<BTreeSet<_>>().len()));
}

#[test]
fn each_fault_that_admits_too_much_breaks_one_behaviour() {
    measure_groups(&[Group::Never, Group::Keys]);
}

#[test]
fn each_fault_that_refuses_too_much_or_lies_breaks_one_behaviour() {
    measure_groups(&[Group::Fair, Group::Truth]);
}

#[test]
fn each_fault_of_memory_accuracy_or_cost_breaks_one_behaviour() {
    measure_groups(&[Group::Forget, Group::Accuracy, Group::Cost]);
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

/// Runs the suite with these arguments. Every behaviour must pass or be left out by one of them.
#[track_caller]
fn passes(urls: &[String], arguments: &[&str]) {
    let urls = urls.iter().flat_map(|url| ["--url", url]);
    let arguments: Vec<_> = urls.chain(["--rate", "5/2s", "--json"]).chain(arguments.iter().copied()).collect();
    let (text, code) = asked(&arguments).unwrap();
    let findings: serde_json::Value = serde_json::from_str(&text).unwrap();
    let behaviours = findings["behaviours"].as_array().unwrap();
    let passed = |finding: &&serde_json::Value| finding["verdict"] == "pass" || finding["verdict"] == "not applicable";
    let wrong: Vec<_> = behaviours.iter().filter(|finding| !passed(finding)).collect();
    assert_eq!((wrong, code), (Vec::new(), 0));
}

#[test]
fn the_page_is_what_the_program_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/limitspec.md");
    let page = fs::read_to_string(path).unwrap();
    let (head, _) = page.split_once(BEHAVIOURS).unwrap();
    let written = format!("{head}{BEHAVIOURS}\n{}", asked(&["--page"]).unwrap().0);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, &written).unwrap();
    }
    assert!(
        page == written || std::env::var_os("UPDATE").is_some(),
        "UPDATE=1 cargo test --test it limitspec writes {path}"
    );
}

#[test]
fn the_comparison_has_all_behaviours() {
    let page = include_str!("../../docs/comparison.md");
    let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| [")?.split(']').next()).collect();
    let behaviours: Vec<_> = suite::behaviours().map(|behaviour| behaviour.id).collect();
    assert_eq!(rows, behaviours, "scripts/comparison writes the page");
}

#[test]
fn findings_name_what_is_wrong_and_what_was_left_out() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (text, code) = runtime.block_on(async {
        let server = Server::start(Some(Fault::Unavailable)).await;
        let url = format!("http://{}", server.instances[0]);
        let arguments =
            ["limitspec", "--url", &url, "--rate", "5/2s", "--only", "status,cache,memory", "--without", "cache"];
        conformance::run(arguments.map(OsString::from)).await.unwrap()
    });
    assert_eq!(code, 1);
    for expected in [
        "status             FAIL            the status is 503",
        "A refusal has the status 429, not 503.",
        "cache              not applicable  --without cache",
        "memory             not applicable  --pid is not given",
        "burst              not applicable  not in --only",
        "0 passed, 1 failed, 0 undecided, 51 not applicable",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn the_program_uses_nothing_of_the_gateway() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/conformance");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect();
    assert!(sources.len() > 15);
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! ") && text.lines().count() <= 400, "{}", path.display());
        assert!(!text.contains("gateway::") && !text.contains("extern crate"), "{}", path.display());
    }
}
