//! Writes metrics in the text format of Prometheus, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::Write as _;

use http::HeaderValue;

use crate::base::metrics::{BOUNDS, HistogramSnapshot};

pub(super) const TEXT_FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

pub(super) type Label<'a> = (&'a str, &'a str);

/// The text of a family. A family without samples has its name, too, so that readers see which metrics exist.
pub(super) type Family = String;

/// What a family has for one set of labels. Each line has the end of its name, its labels and its value.
pub(super) struct Metric(Vec<(&'static str, String, f64)>);

fn family(name: &str, help: &str, kind: &str, metrics: impl IntoIterator<Item = Metric>) -> Family {
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (end, labels, value) in metrics.into_iter().flat_map(|metric| metric.0) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}{end}{labels} {value}");
    }
    text
}

pub(super) fn counters(name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) -> Family {
    family(name, help, "counter", metrics)
}

pub(super) fn gauges(name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) -> Family {
    family(name, help, "gauge", metrics)
}

pub(super) fn histograms(name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) -> Family {
    family(name, help, "histogram", metrics)
}

pub(super) fn counted(name: &str, help: &str, count: u64) -> Family {
    counters(name, help, [counter(count, &[])])
}

pub(super) fn gauged(name: &str, help: &str, count: usize) -> Family {
    gauges(name, help, [gauge(count, &[])])
}

/// The format has only floats, which are exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 would take centuries")]
pub(super) fn counter(count: u64, labels: &[Label<'_>]) -> Metric {
    real(count as f64, labels)
}

pub(super) fn gauge(count: usize, labels: &[Label<'_>]) -> Metric {
    counter(count as u64, labels)
}

pub(super) fn whole(number: u64) -> Metric {
    counter(number, &[])
}

pub(super) fn real(number: f64, labels: &[Label<'_>]) -> Metric {
    Metric(vec![("", written(labels), number)])
}

#[expect(clippy::cast_precision_loss, reason = "a sum beyond 2^53 microseconds would take centuries")]
pub(super) fn histogram(snapshot: &HistogramSnapshot, labels: &[Label<'_>]) -> Metric {
    let seconds = |micros: u64| micros as f64 / 1e6;
    let bounds = BOUNDS.iter().map(|bound| seconds(*bound).to_string()).chain(["+Inf".to_owned()]);
    let mut count = 0;
    let bucket = |(bound, added): (String, &u64)| {
        count += added;
        ("_bucket", written(&[labels, &[("le", &bound)]].concat()), count as f64)
    };
    let mut lines: Vec<_> = bounds.zip(&snapshot.buckets).map(bucket).collect();
    lines.extend([("_sum", written(labels), seconds(snapshot.micros)), ("_count", written(labels), count as f64)]);
    Metric(lines)
}

fn written(labels: &[Label<'_>]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    let pairs: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_text() {
        assert_eq!(counters("c", "Help.", []), "# HELP c Help.\n# TYPE c counter\n");
        let labels = [("a", "b"), ("text", "\"\\\n")];
        assert_eq!(
            gauges("g", "Help.", [gauge(7, &[]), real(0.5, &labels)]),
            "# HELP g Help.\n# TYPE g gauge\ng 7\ng{a=\"b\",text=\"\\\"\\\\\\n\"} 0.5\n"
        );
        let mut snapshot = HistogramSnapshot { micros: 1_500_000, ..HistogramSnapshot::default() };
        (snapshot.buckets[0], snapshot.buckets[BOUNDS.len()]) = (2, 1);
        let text = histograms("h", "Help.", [histogram(&snapshot, &[("a", "b")])]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), BOUNDS.len() + 3);
        let last = ["h_bucket{a=\"b\",le=\"+Inf\"} 3", "h_sum{a=\"b\"} 1.5", "h_count{a=\"b\"} 3"];
        assert_eq!(lines[BOUNDS.len()..], last);
        assert!(lines[..BOUNDS.len()].iter().all(|line| line.ends_with("} 2")), "{text}");
    }
}
