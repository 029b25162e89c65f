//! Exports spans of requests by OTLP (OpenTelemetry Protocol) over HTTP, to the collector of the configuration in force.

mod messages;
mod exporter;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::base::spans::SpanCounts;
use crate::config::Collector;

use exporter::ExportEnd;

pub use exporter::Exporter;

/// The exporter in force outlives a reload that does not change its collector.
#[derive(Debug, Default)]
pub struct Exporters {
    in_force: Mutex<Option<Arc<Exporter>>>,
    /// Exporters that were in force and may still export.
    earlier: Mutex<Vec<ExportEnd>>,
    pub counts: Arc<SpanCounts>,
}

impl Exporters {
    /// The exporter for this collector: the one in force, or a new one.
    pub fn get(&self, collector: &Arc<Collector>) -> Arc<Exporter> {
        let known = self.in_force.lock().clone().filter(|exporter| exporter.collector == *collector);
        known.unwrap_or_else(|| Arc::new(Exporter::new(collector.clone(), self.counts.clone())))
    }

    /// Puts this exporter in force, instead of the previous one, which ends when the requests that use it have ended.
    pub fn apply(&self, exporter: Option<Arc<Exporter>>) {
        if let Some(exporter) = &exporter {
            exporter.start();
        }
        let before = std::mem::replace(&mut *self.in_force.lock(), exporter.clone());
        if let Some(before) = before
            && exporter.is_none_or(|exporter| !Arc::ptr_eq(&exporter, &before))
        {
            let mut earlier = self.earlier.lock();
            earlier.retain(|end| !end.ended.is_closed());
            earlier.push(before.end.clone());
        }
    }

    /// Exports the waiting spans at the end of the process, for at most `limit`.
    pub async fn finish(&self, limit: Duration) {
        let last = self.in_force.lock().as_ref().map(|exporter| exporter.end.clone());
        let all: Vec<_> = self.earlier.lock().drain(..).chain(last).collect();
        all.iter().for_each(|end| _ = end.stop.send_replace(true));
        let _ = timeout(limit, async {
            for end in &all {
                end.ended.closed().await;
            }
        })
        .await;
    }
}
