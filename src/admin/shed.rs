//! What is shed, as metrics.

use prometheus::proto::{MetricFamily, MetricType};

use super::View;
use super::families::{counter, family, real};

/// The metrics; none if requests are not shed.
pub(super) fn metrics(view: &View) -> Vec<MetricFamily> {
    let Some(shedding) = view.snapshot.load().shedding.clone() else { return Vec::new() };
    let level = shedding.meters.iter().map(|meter| real(meter.level().in_priorities(), &[("upstream", &meter.name)]));
    let shed = shedding.meters.iter().flat_map(|meter| {
        let labelled = meter.shed().into_iter().enumerate().map(|(priority, count)| {
            counter(count, &[("upstream", meter.name.as_str()), ("priority", priority.to_string().as_str())])
        });
        labelled.collect::<Vec<_>>()
    });
    vec![
        family(
            "gateway_shed_level",
            "What is shed, by upstream (empty for routes without): 0 is nothing, 5.5 all priorities below 5 and half of \
             the clients of 5.",
            MetricType::GAUGE,
            level,
        ),
        family("gateway_shed_requests_total", "Requests that were shed.", MetricType::COUNTER, shed),
    ]
}
