//! Quotas of keys that are read from a store, through a cache that all workers share. One thread asks all sources.
//!
//! A request waits for an answer only if nothing is known of its key or the known answer is outdated, and only briefly. A known
//! quota stays in use while it is renewed in time, and while its source is unavailable.

mod postgres;
mod quota;
mod announced;
mod cache;
mod availability;
mod origin;
mod source;
mod lookups;

use std::sync::Arc;

use crate::base::in_force::{BackgroundTask, InForce};
use crate::config;

pub use cache::{CacheAnswer, CachedQuota};
pub use postgres::Postgres;
pub use quota::{GrantedQuota, Quota, QuotaRates};
pub use source::QuotaSource;

use quota::Terms;

/// An answer of a source, before it is checked against a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// Written like in a file, such as "100/s"; empty if the source names none.
    pub rates: Vec<String>,
    pub tier: Option<String>,
    /// Requests pass without being counted.
    pub exempt: bool,
    /// Requests do not pass.
    pub block: bool,
}

/// Why a lookup has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The source cannot be reached, or asks for fewer lookups. That says nothing about the key.
    Away(String),
    /// The source breaks or is silent at this key. Other keys may get answers.
    Unanswered(String),
    /// The source has answered this key in an unusable way. Other keys are not affected.
    Unusable(String),
}

/// What a source announces without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// The quota of this key has changed; the key is in the form in which it is sent.
    Key(String),
    /// Changes may have been missed, so everything in the cache must be renewed.
    Any,
}

/// The source of a limit, and the limit by whose terms its answers are read.
#[derive(Clone)]
pub struct LimitSource {
    pub source: Arc<QuotaSource>,
    pub limit: config::Limit,
}

/// The sources in force. A reload that does not change the section of a source keeps the source and its cache.
pub type QuotaSources = InForce<QuotaSource>;

impl LimitSource {
    /// The source for this limit, if it has one: one in force, or a new one.
    pub fn of(in_force: &QuotaSources, limit: &config::Limit) -> Option<Self> {
        let settings = limit.quotas.as_ref()?;
        let known = in_force.find(|source| source.is_for(limit));
        let source = known.unwrap_or_else(|| Arc::new(QuotaSource::new(settings, Terms::new(limit.clone(), 1))));
        Some(Self { source, limit: limit.clone() })
    }

    /// Puts these sources in force, instead of the previous ones.
    pub fn apply(in_force: &Arc<QuotaSources>, sources: &[Self]) {
        sources.iter().for_each(|Self { source, limit }| source.set_terms(limit));
        in_force.replace(sources.iter().map(|one| one.source.clone()).collect());
    }
}

impl BackgroundTask for QuotaSource {
    const THREAD: &'static str = "quotas";
    const REFUSED: &'static str = "cannot ask for quotas: limits have their own rates";

    fn run(self: Arc<Self>) -> impl Future<Output = ()> {
        lookups::run(self)
    }
}
