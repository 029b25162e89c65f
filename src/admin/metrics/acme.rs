//! Metrics of certificates that an authority issues: how orders ended, whether one is overdue, and the challenges answered.

use prometheus::proto::{MetricFamily, MetricType};

use super::super::families::{counter, family, whole};
use crate::base::clock;
use crate::sources::acme::AcmeSources;

/// The families of the certificates in force.
pub(super) fn families(acme: &AcmeSources) -> [MetricFamily; 3] {
    let (succeeded, failed) = acme.orders();
    let failed = failed.map(|(kind, count)| counter(count, &[("result", kind.name())]));
    let (answered, unknown) = acme.challenges().counts();
    [
        family(
            "gateway_acme_orders_total",
            "Orders of certificates: ok, or why they failed.",
            MetricType::COUNTER,
            [counter(succeeded, &[("result", "ok")])].into_iter().chain(failed),
        ),
        family(
            "gateway_acme_overdue_seconds",
            "For how long there should have been a certificate, or a new one; 0 if there is.",
            MetricType::GAUGE,
            [whole(acme.overdue(clock::now()).as_secs())],
        ),
        family(
            "gateway_acme_challenges_total",
            "Challenges of authorities that were answered, and questions for answers that are not known.",
            MetricType::COUNTER,
            [counter(answered, &[("result", "answered")]), counter(unknown, &[("result", "unknown")])],
        ),
    ]
}
