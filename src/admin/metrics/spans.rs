//! Metrics of the spans that are recorded: what became of them.

use prometheus::proto::{MetricFamily, MetricType};

use super::super::families::{self, counter};
use crate::base::spans::SpanCounts;
use crate::proxy::snapshot::SharedState;

/// The family of spans.
pub(super) fn family(shared: &SharedState) -> MetricFamily {
    let SpanCounts { exported, no_room, refused, failed } = shared.exporters().counts();
    let results = [("exported", exported), ("no_room", no_room), ("refused", refused), ("failed", failed)];
    families::family(
        "gateway_spans_total",
        "Spans of requests: exported to the collector, or dropped, because there was no room for more to wait, the \
         collector has refused them, or it was not there.",
        MetricType::COUNTER,
        results.map(|(result, count)| counter(count.get(), &[("result", result)])),
    )
}
