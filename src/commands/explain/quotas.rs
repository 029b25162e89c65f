//! Asks the sources of quotas about the keys of a request, without a cache.

use std::sync::Arc;

use crate::request::decide::{ResolvedQuota, ResolvedQuotas, RouteLimit};
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::sources::quotas::{GrantedQuota, Quota};

/// `None` if the source was not asked.
pub(super) type AskedQuota = Option<Result<Option<Arc<Quota>>, String>>;

/// Asks the sources of all limits, except about keys with an override.
pub(super) fn ask(limits: &[RouteLimit], attributes: &RequestAttributes<'_>) -> Vec<AskedQuota> {
    let ask = |limit: &RouteLimit| {
        let (source, key_cache) = (limit.quotas.as_ref()?, &mut KeyCache::default());
        let counted = limit.key.extract(attributes, 0, key_cache)?;
        if limit.rates.overridden(&limit.key, counted, true, attributes, key_cache).is_some() {
            return None;
        }
        let key = limit.key.quota_key(attributes, key_cache)?;
        Some(source.ask(&key).map(|quota| quota.map(Arc::new)))
    };
    limits.iter().map(ask).collect()
}

/// In the form that a decision needs.
pub(super) fn resolved(
    limits: &[RouteLimit],
    attributes: &RequestAttributes<'_>,
    asked: Vec<AskedQuota>,
) -> ResolvedQuotas {
    let resolve = |(limit, asked): (&RouteLimit, AskedQuota)| {
        let key = limit.key.extract(attributes, 0, &mut KeyCache::default())?;
        Some(ResolvedQuota { key, quota: asked?.ok().flatten() })
    };
    limits.iter().zip(asked).map(resolve).collect()
}

/// For people.
pub(super) fn answer(asked: &AskedQuota) -> String {
    match asked {
        None => "not asked about this key".to_owned(),
        Some(Ok(None)) => "asked just now, and does not know the key".to_owned(),
        Some(Err(why)) => format!("asked just now, without a usable answer: {why}"),
        Some(Ok(Some(quota))) => {
            let granted = match &quota.granted {
                GrantedQuota::Rates(_) => "names these rates".to_owned(),
                GrantedQuota::Tier(name) => format!("names the tier {name}"),
                GrantedQuota::Exempt => "exempts the key".to_owned(),
                GrantedQuota::Block => "blocks the key".to_owned(),
            };
            format!("asked just now, and {granted}")
        }
    }
}
