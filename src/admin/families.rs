//! Builds the families and samples of the metrics.

use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};

use crate::base::metrics::{BOUNDS, HistogramSnapshot};

pub(super) type Label<'a> = (&'a str, &'a str);

/// Its first line says what the others are.
const HELP: &str = include_str!("metrics/help.txt");

fn family(name: &str, kind: MetricType, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    let help = HELP.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    family.set_help(help.unwrap_or_default().to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics.into_iter().collect());
    family
}

pub(super) fn counters(name: &str, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    family(name, MetricType::COUNTER, metrics)
}

/// One counter for each value of this label.
pub(super) fn counted_by<'a>(
    name: &str,
    label: &str,
    counts: impl IntoIterator<Item = (&'a str, u64)>,
) -> MetricFamily {
    counters(name, counts.into_iter().map(|(value, count)| counter(count, &[(label, value)])))
}

pub(super) fn gauges(name: &str, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    family(name, MetricType::GAUGE, metrics)
}

pub(super) fn histograms(name: &str, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    family(name, MetricType::HISTOGRAM, metrics)
}

pub(super) fn counted(name: &str, count: u64) -> MetricFamily {
    counters(name, [counter(count, &[])])
}

pub(super) fn gauged(name: &str, count: usize) -> MetricFamily {
    gauges(name, [gauge(count, &[])])
}

fn metric(labels: &[Label<'_>]) -> Metric {
    let pair = |(name, value): &Label<'_>| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

/// The format has only floats, which are exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 would take centuries")]
pub(super) fn counter(count: u64, labels: &[Label<'_>]) -> Metric {
    sum(count as f64, labels)
}

pub(super) fn sum(number: f64, labels: &[Label<'_>]) -> Metric {
    let mut value = proto::Counter::default();
    value.set_value(number);
    let mut metric = metric(labels);
    metric.set_counter(value);
    metric
}

#[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 would take centuries")]
pub(super) fn gauge(count: usize, labels: &[Label<'_>]) -> Metric {
    real(count as f64, labels)
}

#[expect(clippy::cast_precision_loss, reason = "seconds since 1970 and bytes stay below 2^53")]
pub(super) fn whole(number: u64) -> Metric {
    real(number as f64, &[])
}

pub(super) fn real(number: f64, labels: &[Label<'_>]) -> Metric {
    let mut value = proto::Gauge::default();
    value.set_value(number);
    let mut metric = metric(labels);
    metric.set_gauge(value);
    metric
}

#[expect(clippy::cast_precision_loss, reason = "a sum beyond 2^53 microseconds would take centuries")]
pub(super) fn histogram(snapshot: &HistogramSnapshot, labels: &[Label<'_>]) -> Metric {
    let mut value = proto::Histogram::default();
    let mut cumulative = 0;
    let mut buckets = Vec::with_capacity(BOUNDS.len());
    for (bound, count) in BOUNDS.iter().zip(&snapshot.buckets) {
        cumulative += count;
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound as f64 / 1e6);
        bucket.set_cumulative_count(cumulative);
        buckets.push(bucket);
    }
    value.set_bucket(buckets);
    value.set_sample_count(snapshot.buckets.iter().sum());
    value.set_sample_sum(snapshot.micros as f64 / 1e6);
    let mut metric = metric(labels);
    metric.set_histogram(value);
    metric
}
