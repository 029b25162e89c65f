//! A reload changes overrides: the log says how many, but not which, and requests go on however many there are.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Gateway, every_store, limited, until};

fn config(file: &str, overrides: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"header:x-api-key\"\nrates = [\"1/h\"]\noverrides_file = {file:?}\n");
    let other = "[limits.other]\nkey = \"client-ip\"\nrates = [\"9/h\"]\n";
    format!(
        "{limit}{overrides}{other}[[routes]]\npath = \"/*\"\nlimits = [\"l\", \"other\"]\nrespond = {{ status = 200 }}\n"
    )
}

#[test]
fn a_line_says_how_many_overrides_have_changed() {
    let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    let path = file.path().to_str().unwrap();
    fs::write(path, "key,rates\nsecret-1,2/h\nsecret-2,2/h\nsecret-3,2/h\n").unwrap();
    let exempt = "[[limits.l.overrides]]\nkeys = [\"partner-*\"]\nexempt = true\n";
    let gateway = Gateway::start(&config(path, exempt));
    fs::write(path, "key,rates\nsecret-1,2/h\nsecret-2,3/h\nsecret-4,2/h\nsecret-5,2/h\n").unwrap();
    gateway.reload("", &config(path, &exempt.replace("exempt", "block")));
    let line = gateway.wait_message("the overrides of a limit changed");
    assert_eq!((&line["limit"], &line["level"]), (&"l".into(), &"INFO".into()), "{line}");
    assert_eq!([&line["added"], &line["removed"], &line["changed"]], [2, 1, 2], "{line}");
    gateway.wait_message("reloaded");

    // Limits without a change are not logged, and keys never are.
    gateway.reload("", &config(path, &exempt.replace("exempt", "block")));
    until("it has reloaded", Duration::from_secs(10), || gateway.metric("gateway_config_reloads_total") == Some(2.0));
    let lines = gateway.log();
    assert_eq!(lines.iter().filter(|line| line.contains("the overrides of a limit changed")).count(), 1);
    assert!(!lines.iter().any(|line| line.contains("secret") || line.contains("partner")), "{lines:?}");
}

/// A key gets an override, or loses it.
struct Exchange {
    more: &'static str,
    own: &'static str,
    /// The rates of its tier, if it has one.
    tier: Option<&'static str>,
    granted: &'static str,
    /// Whether its counts go on in memory, and on a server.
    is_kept: [bool; 2],
}

const EXCHANGES: [Exchange; 5] = [
    Exchange { more: "", own: "'3/d'", tier: None, granted: "'3/d', '9/m'", is_kept: [true; 2] },
    Exchange { more: "", own: "'3/d'", tier: Some("'3/d'"), granted: "'3/d', '9/m'", is_kept: [true; 2] },
    Exchange { more: "", own: "'9/h'", tier: Some("'3/d'"), granted: "'3/d'", is_kept: [true; 2] },
    // Neither the limit's own rates nor the override have exactly the periods of the tier.
    Exchange { more: "", own: "'9/h'", tier: Some("'3/d'"), granted: "'3/d', '9/m'", is_kept: [false, true] },
    Exchange { more: BUCKET, own: "'9/h'", tier: Some("'3/d'"), granted: "'3/d', '9/m'", is_kept: [false; 2] },
];
const BUCKET: &str = "strategy = 'token-bucket'";

fn exchange(store: &str, Exchange { more, own, tier, granted, is_kept }: &Exchange) {
    let tiers = tier.map_or(String::new(), |rates| {
        format!("tier = \"header:x-plan\"\ntiers = {{ gold = {{ rates = [{rates}] }} }}\n")
    });
    let file = |overrides: &str| {
        let limit = format!("[limits.l]\nkey = \"header:x-api-key\"\nrates = [{own}]\n{more}\n{overrides}\n{tiers}");
        format!("{store}{limit}[[routes]]\npath = \"/*\"\nlimits = [\"l\"]\nrespond = {{ status = 200 }}\n")
    };
    let is_kept = is_kept[usize::from(!store.contains("memory"))];
    for (key, gets_it) in [("a", true), ("b", false)] {
        let with = file(&format!("overrides = [{{ keys = [{key:?}], rates = [{granted}] }}]"));
        let (before, after) = if gets_it { (file(""), with) } else { (with, file("")) };
        let gateway = Gateway::start(&before);
        let mut client = gateway.client();
        let head = format!("X-Api-Key: {key}\r\nX-Plan: gold\r\n");
        let mut ask = || client.get_with("/", &head).status == 200;
        assert_eq!([(); 4].map(|()| ask()), [true, true, true, false]);
        gateway.reload_and_wait("", &after);
        assert_eq!([(); 3].map(|()| ask()), [!is_kept; 3], "{before} to {after}");
    }
}

#[test]
fn a_key_keeps_its_counts_when_it_gets_or_loses_an_override_unless_only_its_tier_has_its_periods() {
    EXCHANGES.iter().for_each(|one| every_store(|store| exchange(store, one)));
}

/// A limit with four plans, each with a further period, after so many changes.
fn plans(store: &str, changes: usize) -> String {
    let plan = |(name, more)| format!("[[limits.l.overrides]]\nkeys = ['{name}-*']\nrates = ['3/d', '900/{more}']\n");
    let plans = [("gold", "m"), ("silver", "2h"), ("bronze", "10m"), ("free", "30m")];
    let mut overrides: String = plans.into_iter().map(plan).collect();
    // Only the first change leaves every key its override.
    let others: Vec<_> = (1..changes).map(|number| format!("other-{number}")).collect();
    if !others.is_empty() {
        write!(overrides, "[[limits.l.overrides]]\nkeys = {others:?}\nexempt = true\n").unwrap();
    }
    let limit = format!("[limits.l]\nkey = 'header:a'\nrates = ['3/d']\nprecision = {}\n{overrides}", changes + 1);
    format!("{store}{limit}[[routes]]\npath = '/*'\nlimits = ['l']\nrespond = {{ status = 200 }}\n")
}

#[test]
fn no_plan_of_a_limit_loses_its_counts_by_several_changes() {
    every_store(|store| {
        let gateway = Gateway::start(&plans(store, 0));
        let mut client = gateway.client();
        let mut passed =
            |key: &str| (0..4).filter(|_| client.get_with("/", format!("A: {key}\r\n")).status == 200).count();
        let keys = ["nobody", "gold-1", "silver-1", "bronze-1", "free-1"];
        assert_eq!(keys.map(&mut passed), [3; 5]);
        for changes in 1..=3 {
            gateway.reload_and_wait("", &plans(store, changes));
        }
        assert_eq!(keys.map(passed), [0; 5], "{store}");
    });
}

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
    // The test itself may stand still during a reload.
    let answers = (0..5).map(|reloads| {
        gateway.signal(Signal::HUP);
        let mut answered = 0;
        while gateway.reloads() == reloads {
            assert_eq!(gateway.admin("/healthz").status, 200);
            answered += 1;
        }
        answered
    });
    let mut counts = Vec::new();
    // If one thread did both, it would answer one or two.
    let is_enough = answers.inspect(|answered| counts.push(*answered)).any(|answered| answered > 20);
    assert!(is_enough, "only {counts:?} answers while it reloaded");
    let mut client = gateway.client();
    let mut ask = || client.get_with("/", "A: client-299999\r\n").status;
    assert_eq!([(); 5].map(|()| ask()), [200, 200, 200, 200, 429], "the last line says 4/d");

    // The gateway stops at once in the middle of the next reload.
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait_exit().code(), Some(0));
}
