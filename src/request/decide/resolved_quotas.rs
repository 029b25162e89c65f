//! Finds what sources of quotas grant the keys of a request, before the decision.
//!
//! A route whose limits have no source pays one branch. The cache is looked up by the fingerprint that is computed anyway.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{RouteLimit, SelectedRates, StageRange};
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::config::Role;
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::sources::quotas::{CacheAnswer, Quota, QuotaSource};

/// By the place of the limit; `None` if no source is asked. Places at the end may be missing. Boxed, because most routes have
/// no source, and their requests would pay for an empty list.
#[derive(Debug, Default)]
pub struct ResolvedQuotas(Option<Box<SmallVec<[Option<ResolvedQuota>; 2]>>>);

impl Deref for ResolvedQuotas {
    type Target = [Option<ResolvedQuota>];

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().map_or(&[], |resolved| resolved)
    }
}

/// Found for a key that has no override.
#[derive(Clone, Debug)]
pub struct ResolvedQuota {
    /// The key by which the limit counts the request, kept because reading it again would cost more.
    pub key: Fingerprint,
    /// `None` if the source grants nothing, or its answer is not known.
    pub quota: Option<Arc<Quota>>,
}

pub struct QuotaWaits<'a>(Vec<QuotaWait<'a>>);

struct QuotaWait<'a> {
    place: usize,
    source: &'a QuotaSource,
    key: Fingerprint,
    end: watch::Receiver<()>,
}

/// Looks up the keys of a request in the caches of limits of `part`. Requests the others, and returns those worth a wait.
pub fn resolve_quotas<'a>(
    limits: &'a [RouteLimit],
    part: StageRange,
    attributes: &RequestAttributes<'_>,
    key_cache: &mut KeyCache,
    now: Time,
    resolved: &mut ResolvedQuotas,
) -> Option<QuotaWaits<'a>> {
    let mut waits = Vec::new();
    for (place, limit) in limits.iter().enumerate().filter(|(_, limit)| part.has(limit)) {
        let Some(source) = &limit.quotas else { continue };
        let Some(counted) = limit.key.extract(attributes, place, key_cache) else { continue };
        if limit.rates.overridden(&limit.key, counted, true, attributes, key_cache).is_some() {
            continue;
        }
        let Some(key) = limit.quota_key(counted, attributes, key_cache) else { continue };
        let CacheAnswer { quota, wait } = source.get(key, now, || limit.key.quota_key(attributes, key_cache));
        if let Some(end) = wait {
            waits.push(QuotaWait { place, source, key, end });
        }
        let resolved = resolved.0.get_or_insert_default();
        while resolved.len() < place {
            resolved.push(None);
        }
        resolved.push(Some(ResolvedQuota { key: counted, quota }));
    }
    (!waits.is_empty()).then_some(QuotaWaits(waits))
}

impl RouteLimit {
    /// Selects what applies to a request whose `key` is counted. `has_key` says whether the request has one.
    #[expect(clippy::inline_always, reason = "every decision does this, and a call would copy the result")]
    #[inline(always)]
    pub(super) fn select<'a>(
        &'a self,
        key: Fingerprint,
        has_key: bool,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
        resolved: Option<&'a ResolvedQuota>,
    ) -> SelectedRates<'a> {
        let selected = match resolved {
            // The source is asked only if there is no override.
            Some(ResolvedQuota { quota, .. }) => {
                self.rates.select_without_override(attributes, key_cache, quota.as_deref())
            }
            None => self.rates.select(&self.key, key, has_key, attributes, key_cache, None),
        };
        self.rates.or_sent(selected)
    }

    /// Whether the limit blocks one of the two clients that the headers of the request name, by an override. Otherwise a client
    /// could escape a block by a header that contradicts its proxy.
    pub fn blocks_either(&self, attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> bool {
        let refuses = self.is_of_route && self.on_limit.role() != Role::Reports;
        refuses
            && attributes.contradictory.iter().any(|client| {
                let attributes = attributes.from_client(*client);
                let key = self.key.extract_rare(&attributes, key_cache);
                let granted = key.and_then(|key| self.rates.overridden(&self.key, key, true, &attributes, key_cache));
                matches!(granted, Some(SelectedRates::Block))
            })
    }

    /// The key in the cache of the source: `counted`, the key of the request, unless that has further parts.
    pub fn quota_key(
        &self,
        counted: Fingerprint,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
    ) -> Option<Fingerprint> {
        if self.key.part_count() == 1 {
            return Some(counted);
        }
        self.key.first(attributes, key_cache).map(|(_, bytes)| Fingerprint::of(bytes))
    }
}

impl QuotaWaits<'_> {
    /// Waits until all lookups have ended, each for as long as its source allows and at most for `longest`, and adds their
    /// results.
    pub async fn finish(self, resolved: &mut ResolvedQuotas, longest: Duration) {
        let begun = Instant::now();
        for QuotaWait { place, source, key, mut end } in self.0 {
            // An error means that the lookup was abandoned.
            let own = source.settings.timeout;
            if timeout_at(begun + own.min(longest), end.changed()).await.is_err() && own <= longest {
                source.counters.timed_out.one();
            }
            let quota = source.cached(key, clock::now());
            if let Some(Some(resolved)) = resolved.0.as_mut().and_then(|resolved| resolved.get_mut(place)) {
                resolved.quota = quota;
            }
        }
    }
}
