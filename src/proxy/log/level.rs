//! The least severe level that is logged, which can change while the process runs.
//!
//! After a change, the log library asks again which places are logged, so lines cost no more than with a fixed level.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::callsite::rebuild_interest_cache;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::Context;

use crate::config::LOG_LEVELS;

/// The level of the log, shared by its readers and writers.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicU8>);

impl LogLevel {
    pub fn new(level: Level) -> Self {
        Self(Arc::new(AtomicU8::new(place(level))))
    }

    pub fn get(&self) -> Level {
        LOG_LEVELS.get(usize::from(self.0.load(Ordering::Relaxed))).map_or(Level::INFO, |(_, level)| *level)
    }

    /// From now on logs lines of this level and of all more severe levels.
    pub fn set(&self, level: Level) {
        self.0.store(place(level), Ordering::Relaxed);
        rebuild_interest_cache();
    }
}

fn place(level: Level) -> u8 {
    LOG_LEVELS.iter().zip(0..).find(|((_, one), _)| *one == level).map_or(0, |(_, place)| place)
}

impl<S: Subscriber> Layer<S> for LogLevel {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() <= self.get() { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.get()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.get()))
    }
}
