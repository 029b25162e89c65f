//! Writes metrics in the text format of OpenMetrics, version 1.0.0.
//!
//! It differs from Prometheus' text format in that a counter's family is named without `_total`, a family may have a unit,
//! numbers are written as floats where they are floats, and a last line says that nothing is missing.
//!
//! It writes the families that the crate `prometheus` writes as text. The crate `prometheus-client` writes OpenMetrics
//! only, and no crate writes both formats. Tests read both with promtool and with Prometheus' library for Python, and
//! compare the samples.

use std::borrow::Cow;
use std::fmt::{self, Write};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// The units with which names of families end.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

/// The text of these families.
pub(super) fn write(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a string does not fail.
        let _ = write_family(&mut text, family);
    }
    text.push_str("# EOF\n");
    text
}

fn write_family(text: &mut String, family: &MetricFamily) -> fmt::Result {
    let (sample, kind) = (family.name(), family.get_field_type());
    let (name, kind) = match kind {
        MetricType::COUNTER => (sample.strip_suffix("_total").unwrap_or(sample), "counter"),
        MetricType::HISTOGRAM => (sample, "histogram"),
        _ => match sample.strip_suffix("_info") {
            Some(name) => (name, "info"),
            None => (sample, "gauge"),
        },
    };
    writeln!(text, "# TYPE {name} {kind}")?;
    if let Some(unit) = unit(name) {
        writeln!(text, "# UNIT {name} {unit}")?;
    }
    writeln!(text, "# HELP {name} {}", escape(family.help()))?;
    for metric in family.get_metric() {
        match kind {
            "counter" => write_sample(text, sample, metric, None, metric.get_counter().get_value())?,
            "histogram" => write_histogram(text, name, metric)?,
            _ => write_sample(text, sample, metric, None, metric.get_gauge().get_value())?,
        }
    }
    Ok(())
}

/// The unit of a family with this name, if it has one.
fn unit(name: &str) -> Option<&'static str> {
    UNITS.into_iter().find(|unit| name.strip_suffix(unit).is_some_and(|before| before.ends_with('_')))
}

#[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 would take centuries")]
fn write_histogram(text: &mut String, name: &str, metric: &Metric) -> fmt::Result {
    let (histogram, bucket) = (metric.get_histogram(), format!("{name}_bucket"));
    let count = histogram.get_sample_count() as f64;
    for bound in histogram.get_bucket() {
        // A bound is a float, also where it is a whole number: 1.0.
        let bound_text = format!("{:?}", bound.upper_bound());
        write_sample(text, &bucket, metric, Some(&bound_text), bound.cumulative_count() as f64)?;
    }
    write_sample(text, &bucket, metric, Some("+Inf"), count)?;
    write_sample(text, &format!("{name}_count"), metric, None, count)?;
    write_sample(text, &format!("{name}_sum"), metric, None, histogram.get_sample_sum())
}

/// Writes one line. `bound` is the value of the label `le`.
fn write_sample(text: &mut String, name: &str, metric: &Metric, bound: Option<&str>, value: f64) -> fmt::Result {
    text.push_str(name);
    let labels = metric.get_label().iter().map(|label: &LabelPair| (label.name(), label.value()));
    let mut separator = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        write!(text, "{separator}{name}=\"{}\"", escape(value))?;
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    writeln!(text, " {value}")
}

/// The text with the characters escaped that would end it.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::super::families::{counter, family, gauge, histogram, real};
    use super::*;
    use crate::base::metrics::{Histogram, HistogramSnapshot};

    #[test]
    fn each_type_is_written_as_the_specification_says() {
        let latency = Histogram::default();
        [50, 2_000_000, 60_000_000].into_iter().for_each(|micros| latency.observe(micros));
        let snapshot = HistogramSnapshot::from_iter([&latency]);
        let text = write(&[
            family("a_total", "Counts \"a\".", MetricType::COUNTER, [counter(3, &[("b", "\"\\\n")])]),
            family("a_seconds_total", "Time.", MetricType::COUNTER, [counter(3, &[])]),
            family("a_ratio", "A share.", MetricType::GAUGE, [real(0.25, &[])]),
            family("seconds", "No unit.", MetricType::GAUGE, [gauge(1, &[])]),
            family("a_info", "What it is.", MetricType::GAUGE, [gauge(1, &[("version", "1")])]),
            family("l_seconds", "Latency.", MetricType::HISTOGRAM, [histogram(&snapshot, &[("x", "y")])]),
        ]);
        let (begin, buckets) = text.split_once("l_seconds_bucket").unwrap();
        let lines = [
            "# TYPE a counter",
            "# HELP a Counts \\\"a\\\".",
            "a_total{b=\"\\\"\\\\\\n\"} 3",
            "# TYPE a_seconds counter",
            "# UNIT a_seconds seconds",
            "# HELP a_seconds Time.",
            "a_seconds_total 3",
            "# TYPE a_ratio gauge",
            "# UNIT a_ratio ratio",
            "# HELP a_ratio A share.",
            "a_ratio 0.25",
            "# TYPE seconds gauge",
            "# HELP seconds No unit.",
            "seconds 1",
            "# TYPE a info",
            "# HELP a What it is.",
            "a_info{version=\"1\"} 1",
            "# TYPE l_seconds histogram",
            "# UNIT l_seconds seconds",
            "# HELP l_seconds Latency.",
            "",
        ];
        assert_eq!(begin, lines.join("\n"));
        assert!(buckets.starts_with("{x=\"y\",le=\"0.0001\"} 1\n"), "{buckets}");
        for line in ["_bucket{x=\"y\",le=\"1.0\"} 1", "_bucket{x=\"y\",le=\"2.5\"} 2", "_bucket{x=\"y\",le=\"+Inf\"} 3"]
        {
            assert!(buckets.contains(&format!("l_seconds{line}\n")), "{line} in {buckets}");
        }
        assert!(buckets.ends_with("l_seconds_count{x=\"y\"} 3\nl_seconds_sum{x=\"y\"} 62.00005\n# EOF\n"), "{buckets}");
    }
}
