//! Quotas of keys that are read from a store, through a cache that all workers share. One thread asks all sources.
//!
//! A request waits for an answer only if nothing is known of its key, and only for a short time. What is known goes on
//! holding while it is renewed, and while a source is away.

mod answer;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
mod without_postgres;
mod quota;
mod announced;
mod cache;
mod availability;
mod http;
mod origin;
mod source;
mod lookups;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::config;

pub use answer::{LookupError, QuotaAnswer, QuotaChange};
pub use cache::CachedQuota;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
pub use quota::{GrantedQuota, Quota, QuotaRates};
pub use source::{CacheAnswer, LookupCounters, QuotaSource};
#[cfg(not(feature = "postgres"))]
pub use without_postgres::Postgres;

use quota::Terms;

/// The source of a limit, and the limit whose terms hold for what it says.
#[derive(Clone)]
pub struct LimitSource {
    /// The source.
    pub source: Arc<QuotaSource>,
    limit: config::Limit,
}

impl LimitSource {
    /// The name of the limit.
    pub fn limit_name(&self) -> &str {
        &self.limit.name
    }

    /// Whether it is the source of the limit with this name.
    pub fn is_of(&self, limit: &str) -> bool {
        self.limit.name == limit
    }
}

/// The sources in force. They and what they cache outlive a reload that does not change their section.
#[derive(Default)]
pub struct QuotaSources {
    in_force: Mutex<Vec<Arc<QuotaSource>>>,
    changed: Notify,
    /// Whether the thread was started.
    is_running: AtomicBool,
}

impl QuotaSources {
    /// The source for this limit, if it has one: one that is in force already, or a new one.
    pub fn get(&self, limit: &config::Limit) -> Option<LimitSource> {
        let settings = limit.quotas.as_ref()?;
        let known = self.in_force.lock().iter().find(|source| source.is_for(limit)).cloned();
        let source = known.unwrap_or_else(|| Arc::new(QuotaSource::new(settings, Terms::new(limit.clone(), 1))));
        Some(LimitSource { source, limit: limit.clone() })
    }

    /// Puts these sources in force, in place of those of before. The first ones start the thread that asks.
    pub fn apply(self: &Arc<Self>, sources: &[LimitSource]) {
        for LimitSource { source, limit } in sources {
            source.set_terms(limit);
        }
        *self.in_force.lock() = sources.iter().map(|one| one.source.clone()).collect();
        self.changed.notify_one();
        if !sources.is_empty() && !self.is_running.swap(true, Ordering::Relaxed) {
            let all = self.clone();
            let run = move || match runtime() {
                Ok(runtime) => runtime.block_on(all.ask_all()),
                Err(error) => tracing::error!(%error, "cannot ask for quotas: limits have their own rates"),
            };
            if let Err(error) = thread::Builder::new().name("quotas".to_owned()).spawn(run) {
                tracing::error!(%error, "cannot ask for quotas: limits have their own rates");
                self.is_running.store(false, Ordering::Relaxed);
            }
        }
    }

    /// The sources in force.
    pub fn in_force(&self) -> Vec<Arc<QuotaSource>> {
        self.in_force.lock().clone()
    }

    /// Makes the lookups of all sources in force. It never ends.
    async fn ask_all(&self) {
        let mut running: Vec<(Arc<QuotaSource>, JoinSet<()>)> = Vec::new();
        loop {
            let in_force = self.in_force();
            // To drop a task ends it.
            running.retain(|(source, _)| in_force.iter().any(|kept| Arc::ptr_eq(kept, source)));
            for source in in_force {
                if !running.iter().any(|(known, _)| Arc::ptr_eq(known, &source)) {
                    let mut task = JoinSet::new();
                    task.spawn_local(lookups::run(source.clone()));
                    running.push((source, task));
                }
            }
            self.changed.notified().await;
        }
    }
}

fn runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}
