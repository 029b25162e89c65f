//! The findings for people and for programs, and the page about all behaviours.

use std::fmt::Write;

use serde_json::{Value, json};

use super::behaviour::{Group, Verdict};
use super::suite::{Finding, behaviours};
use super::target::Target;

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "pass",
        Verdict::Failed => "FAIL",
        Verdict::Suspect | Verdict::Undecided => "undecided",
        Verdict::NotApplicable => "not applicable",
    }
}

fn counts(findings: &[Finding]) -> [usize; 4] {
    [Verdict::Passed, Verdict::Failed, Verdict::Undecided, Verdict::NotApplicable]
        .map(|verdict| findings.iter().filter(|finding| finding.outcome.verdict == verdict).count())
}

pub(crate) fn text(target: &Target, findings: &[Finding]) -> String {
    let mut text = String::new();
    let hosts: Vec<_> = target.instances.iter().map(|instance| instance.host.as_str()).collect();
    let _ = writeln!(text, "{} at {}, by {}", target.rate, hosts.join(" and "), target.key_header);
    for group in Group::ALL {
        let some: Vec<_> = findings.iter().filter(|finding| finding.behaviour.group == group).collect();
        if some.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{}", group.names().1);
        for Finding { behaviour, outcome } in some {
            let _ = writeln!(text, "  {:<18} {:<15} {}", behaviour.id, word(outcome.verdict), outcome.figure);
            if [Verdict::Failed, Verdict::Undecided].contains(&outcome.verdict) {
                let _ = writeln!(text, "{:37}{}", "", behaviour.sentence);
                let _ = writeln!(text, "{:37}{}.", "", behaviour.why);
            }
        }
    }
    let [passed, failed, undecided, other] = counts(findings);
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {undecided} undecided, {other} not applicable");
    text
}

pub(crate) fn json(target: &Target, findings: &[Finding]) -> Value {
    let [passed, failed, undecided, other] = counts(findings);
    let each = findings.iter().map(|Finding { behaviour, outcome }| {
        json!({
            "id": behaviour.id,
            "group": behaviour.group.names().0,
            "verdict": word(outcome.verdict).to_lowercase(),
            "figure": outcome.figure,
            "sentence": behaviour.sentence,
            "source": behaviour.source,
            "why": behaviour.why,
        })
    });
    json!({
        "quota": target.rate.quota,
        "window_seconds": target.rate.window.as_secs_f64(),
        "passed": passed,
        "failed": failed,
        "undecided": undecided,
        "not_applicable": other,
        "behaviours": each.collect::<Vec<_>>(),
    })
}

/// A sentence as it goes on after a colon.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// What each behaviour means, as Markdown.
pub(crate) fn page() -> String {
    let mut page = String::new();
    for group in Group::ALL {
        let (name, title) = group.names();
        let _ = writeln!(page, "## {title}\n\nThe group `{name}`.");
        for behaviour in behaviours().filter(|behaviour| behaviour.group == group) {
            let _ = writeln!(page, "\n### {}\n\n**{}**\n", behaviour.id, behaviour.sentence);
            let _ = writeln!(page, "- Measured: {}", behaviour.measure);
            let _ = writeln!(page, "- Why: {}", lower(behaviour.why));
            let _ = writeln!(page, "- Source: {}", behaviour.source);
            for need in behaviour.needs {
                let _ = match need.names() {
                    (name, None) => writeln!(page, "- Left out by: `--without {name}`"),
                    (_, Some(option)) => writeln!(page, "- Needs: {option}"),
                };
            }
        }
        page.push('\n');
    }
    page.trim_end().to_owned() + "\n"
}
