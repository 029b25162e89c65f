//! The alert rules and the dashboard of the documentation: promtool accepts them, and they use only exported metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Gateway, limited};
use crate::metrics::{documented, promtool};

/// Labels that Prometheus adds, or that only a part of a histogram has.
const OF_PROMETHEUS: [&str; 3] = ["job", "instance", "le"];

fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(docs(file)).unwrap()
}

#[track_caller]
fn check(arguments: &[&str]) -> String {
    let output = promtool(arguments, "");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

/// The names of all samples of gateways that export everything, with the names of their families.
fn exported() -> BTreeMap<String, String> {
    let shed = "shed = { latency = \"60s\", status = 503 }";
    let away = |software: &str| format!("[store]\ntype = {software:?}\nservers = [\"127.0.0.1:9\"]\n");
    let alone = "[store]\nshare = 1\n".to_owned();
    let texts = [alone, away("memcached"), away("valkey")].map(|store| {
        let gateway = Gateway::with_server(shed, &(store + &limited("client-ip", "9/d", "")));
        gateway.admin("/metrics").text().to_owned()
    });
    let families = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("# TYPE "));
    let samples = families.flat_map(|family| {
        let (name, kind) = family.split_once(' ').unwrap();
        let suffixes: &[_] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        suffixes.iter().map(move |suffix| (format!("{name}{suffix}"), name.to_owned()))
    });
    samples.collect()
}

/// The metrics in some queries, with the labels that select each.
fn selected(queries: &str) -> BTreeSet<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = ["gateway_", "process_"].into_iter().flat_map(|prefix| queries.match_indices(prefix));
    let starts = starts.filter(|(at, _)| !queries[..*at].ends_with(is_name));
    let metrics = starts.map(|(at, _)| {
        let rest = &queries[at..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        let matchers = rest.strip_prefix('{').map_or("", |rest| rest.split('}').next().unwrap());
        let labels =
            matchers.split('"').step_by(2).map(|label| label.trim_matches([' ', ',', '=', '~', '!']).to_owned());
        (name.to_owned(), labels.filter(|label| !label.is_empty()).collect())
    });
    metrics.collect()
}

/// Fails unless gateways export all metrics of these queries, with the selected labels.
#[track_caller]
fn exists(queries: &str) {
    let (exported, documented) = (exported(), documented());
    let selected = selected(queries);
    assert!(selected.len() > 20, "{selected:?}");
    let anywhere: BTreeSet<_> =
        documented.values().flat_map(|metric| metric.labels.iter().map(String::as_str)).collect();
    let grouped = queries.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(", "));
    for label in grouped.filter(|label| !OF_PROMETHEUS.contains(label)) {
        assert!(anywhere.contains(label), "no metric has a label {label:?}");
    }
    for (name, labels) in selected {
        let family = exported.get(&name).unwrap_or_else(|| panic!("no gateway exports {name}"));
        for label in labels.iter().filter(|label| !OF_PROMETHEUS.contains(&label.as_str())) {
            assert!(documented[family].labels.contains(label), "{name} has no label {label:?}");
        }
    }
}

/// What follows `key: ` in the lines of a file.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).collect()
}

#[test]
#[ignore = "needs promtool"]
fn promtool_accepts_the_alert_rules_and_their_tests_pass() {
    let (rules, tests) = (read("alerts.yml"), read("alerts_test.yml"));
    let alerts = values(&rules, "alert");
    let said = check(&["check", "rules", docs("alerts.yml").to_str().unwrap()]);
    assert!(said.contains(&format!("{} rules found", alerts.len())) && alerts.len() > 10, "{said}");
    check(&["test", "rules", docs("alerts_test.yml").to_str().unwrap()]);
    for alert in alerts {
        // One test in which the alert is quiet, and one in which it fires.
        let evaluations: Vec<_> =
            tests.split("- eval_time: ").filter(|test| values(test, "alertname") == [alert]).collect();
        let quiet = evaluations.iter().filter(|test| test.contains("exp_alerts: []")).count();
        assert_eq!((quiet, evaluations.len()), (1, 2), "{alert}");
    }
}

#[test]
fn every_alert_has_a_section_that_says_what_to_do() {
    let (rules, page) = (read("alerts.yml"), read("runbook.md"));
    let alerts: BTreeSet<_> = values(&rules, "alert").into_iter().collect();
    let books: BTreeSet<_> = values(&rules, "runbook").into_iter().map(str::to_owned).collect();
    let expected = alerts.iter().map(|alert| format!("docs/runbook.md#{}", alert.to_lowercase()));
    assert_eq!(books, expected.collect());
    for alert in &alerts {
        let section = page.split("\n## ").find(|section| section.starts_with(&format!("{alert}\n")));
        let section = section.unwrap_or_else(|| panic!("no section {alert}"));
        for part in ["**Meaning.** ", "**Look at.** ", "**Do.** "] {
            assert!(section.contains(part), "{part} is missing in {alert}");
        }
    }
    for rule in rules.split("- alert: ").skip(1) {
        let (alert, severity) = (rule.lines().next().unwrap(), values(rule, "severity")[0]);
        let row = format!("| [{alert}](#{}) | {severity} | ", alert.to_lowercase());
        assert_eq!(page.matches(&row).count(), 1, "the overview has no row {row:?}");
    }
    let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let unknown: Vec<_> = sections.iter().filter(|name| !alerts.contains(*name)).collect();
    assert!(unknown.is_empty(), "no alert points to {unknown:?}");
}

#[test]
fn alert_rules_use_only_metrics_that_exist() {
    let (rules, tests) = (read("alerts.yml"), read("alerts_test.yml"));
    exists(&rules);
    exists(&tests);
}

#[test]
fn the_runbook_names_only_metrics_that_exist() {
    let (pages, exported) = (read("operating.md") + &read("runbook.md"), exported());
    let families: BTreeSet<_> = exported.values().map(String::as_str).collect();
    // Names in code that look like one of ours, with or without the prefix.
    let quoted = pages.split('`').skip(1).step_by(2);
    let names: BTreeSet<_> = quoted
        .map(|code| code.split('{').next().unwrap())
        .filter(|code| {
            let endings = ["_total", "_seconds", "_bytes", "_ratio", "_fds"];
            code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                && endings.iter().any(|end| code.ends_with(end))
        })
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(families.contains(name) || families.contains(&*format!("gateway_{name}")), "no metric {name}");
    }
}

#[test]
#[ignore = "needs promtool"]
fn the_dashboard_uses_only_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() > 20);
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: Vec<_> = variables.filter_map(|variable| variable["query"]["query"].as_str()).collect();
    exists(&[queries.join("\n"), variables.join("\n")].join("\n"));

    // As rules, because promtool parses rules.
    let rules = queries.iter().enumerate().map(|(number, query)| {
        let query = query.replace("$__rate_interval", "5m").replace('\'', "''");
        format!("  - record: panel:{number}\n    expr: '{query}'\n")
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("panels.yml");
    std::fs::write(&file, format!("groups:\n- name: panels\n  rules:\n{}", rules.collect::<String>())).unwrap();
    check(&["check", "rules", file.to_str().unwrap()]);

    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have the same id");
}
