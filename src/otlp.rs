//! Exports the spans of requests by OTLP, the OpenTelemetry Protocol, over HTTP: to the collector of the configuration in
//! force.

mod messages;
mod answer;
mod exporter;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Collector;
use crate::spans::SpanCounts;

pub use exporter::Exporter;

/// The exporter in force. It outlives a reload that does not change its collector.
#[derive(Debug, Default)]
pub struct Exporters {
    in_force: Mutex<Option<Arc<Exporter>>>,
    counts: Arc<SpanCounts>,
}

impl Exporters {
    /// The exporter for this collector: the one in force, or a new one.
    pub fn get(&self, collector: &Arc<Collector>) -> Arc<Exporter> {
        let known = self.in_force.lock().clone().filter(|exporter| exporter.is_for(collector));
        known.unwrap_or_else(|| Arc::new(Exporter::new(collector.clone(), self.counts.clone())))
    }

    /// Puts this exporter in force, in place of the one before. That one ends when the requests that use it have ended.
    pub fn apply(&self, exporter: Option<Arc<Exporter>>) {
        if let Some(exporter) = &exporter {
            exporter.start();
        }
        *self.in_force.lock() = exporter;
    }

    /// Exports what waits at the end of the process, for at most `limit`.
    pub async fn finish(&self, limit: Duration) {
        let exporter = self.in_force.lock().clone();
        if let Some(exporter) = exporter {
            exporter.finish(limit).await;
        }
    }

    /// What became of all spans.
    pub fn counts(&self) -> &SpanCounts {
        &self.counts
    }
}
