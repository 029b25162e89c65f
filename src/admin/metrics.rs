//! `/metrics`: all metrics, as families.
//!
//! Rules for a metric, most of which a test checks (`tests/it/metrics.rs`):
//!
//! - *Names* begin with `gateway_`, except those of the process, which all exporters call the same (`process_`). They end with a
//!   base unit: `_seconds`, `_bytes`, `_ratio` (0 to 1); moments are `_timestamp_seconds`. Only counters end with `_total`. A
//!   truth value is a gauge of 1 or 0.
//! - *Labels* have one meaning each, in all metrics: `route`, `limit`, `upstream`, `server`, `jwt` and `certificate` are names of
//!   the configuration; `result` says how something ended, and `reason` why it failed or was refused. No label has the values of
//!   another.
//! - *Values of labels* come from the configuration or from a fixed list, and are known at the start, so that neither clients nor
//!   time create series. So no label has keys, paths, messages, places in a file, ports that the system picks, or identifiers of
//!   a process. There are two exceptions: the `model` of tokens, with 64 values for each limit, and the `server` of an upstream,
//!   which is each present address of a name in the configuration.
//! - *Counters begin with 0*, also those with labels, because `increase()` does not see an event that creates its series.
//!   Combinations that cannot occur, or that nothing in the configuration makes likely, have no series at the start
//!   (`metrics/expected.rs`).
//! - *Series stay* until the process ends or their route, limit or upstream is removed. A state has a series for each value, or
//!   one of 1 and 0; its series do not come and go.
//! - *A peak is remembered* for 5 minutes, longer than anybody waits between two scrapes.
//! - *Help* is a sentence in `metrics/help.txt`, and docs/metrics.md has a row for each metric.

mod connections;
mod expected;
mod limits;
mod process;
mod requests;
mod sources;
mod store;

use std::fmt::Write;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use prometheus::TextEncoder;
use prometheus::proto::MetricFamily;

use super::View;
use super::families::{counter, counters, gauges, real};
use super::{source, upstreams};
use crate::proxy::respond::{self, LocalResponse};

/// In the text format of Prometheus, version 0.0.4.
pub(super) fn respond(view: &View) -> LocalResponse {
    let mut families = process::families(view);
    families.push(view.gatekeeper.family());
    families.extend(source::metrics(view));
    families.extend(requests::families(view));
    families.extend(limits::families(view));
    families.extend(upstreams::metrics(view));
    families.extend(shed(view));
    families.extend(connections::families(view));
    families.extend(sources::families(view));
    families.extend(store::families(view));
    let mut response = respond::text(StatusCode::OK, Bytes::from(written(&families)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(prometheus::TEXT_FORMAT));
    response
}

/// Names families without samples, too, so that readers see which metrics exist.
fn written(families: &[MetricFamily]) -> String {
    let (encoder, mut text) = (TextEncoder::new(), String::new());
    for family in families {
        if family.get_metric().is_empty() {
            // The encoder rejects families without samples.
            let (name, kind) = (family.name(), format!("{:?}", family.get_field_type()).to_lowercase());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help());
        } else if let Err(error) = encoder.encode_utf8(std::slice::from_ref(family), &mut text) {
            tracing::error!(%error, family = family.name(), "a metric cannot be written");
        }
    }
    text
}

/// Empty if requests are not shed.
fn shed(view: &View) -> Vec<MetricFamily> {
    let Some(shedding) = view.snapshot.load().shedding.clone() else { return Vec::new() };
    let level = shedding.meters.iter().map(|meter| real(meter.level().in_priorities(), &[("upstream", &meter.name)]));
    let shed = shedding.meters.iter().flat_map(|meter| {
        let labelled = meter.shed().into_iter().enumerate().map(|(priority, count)| {
            counter(count, &[("upstream", meter.name.as_str()), ("priority", priority.to_string().as_str())])
        });
        labelled.collect::<Vec<_>>()
    });
    vec![gauges("gateway_shed_level", level), counters("gateway_shed_requests_total", shed)]
}
