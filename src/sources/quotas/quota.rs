//! A quota: what a source grants a key, read by the terms of the limit that asks. A million customers may have the same plan,
//! so equal rates are stored once, together with the texts about them for responses.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::QuotaAnswer;
use crate::config::{self, quota_rates};
use crate::limit::Limit;

/// In bytes, for a rate or the name of a tier.
const MAX_TEXT: usize = 256;

#[derive(Clone, Debug)]
pub struct Quota {
    /// As the source has sent it.
    pub answer: QuotaAnswer,
    /// What the answer means.
    pub granted: GrantedQuota,
    /// The version of the terms by which the answer was read.
    pub(super) version: u64,
}

#[derive(Clone, Debug)]
pub enum GrantedQuota {
    Rates(Arc<QuotaRates>),
    /// The key has the rates of this tier of the limit.
    Tier(String),
    /// Requests pass without being counted.
    Exempt,
    /// Requests do not pass.
    Block,
}

/// Rates that a source has named, shared by all keys that have them.
#[derive(Debug)]
pub struct QuotaRates {
    /// Equal rates have the same number, as long as the configuration of their limit is the same.
    pub id: u64,
    pub limit: Arc<Limit>,
    texts: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl QuotaRates {
    pub fn new(id: u64, limit: Arc<Limit>) -> Self {
        Self { id, limit, texts: OnceLock::new() }
    }

    /// The texts about the rates for responses, composed at the first use and kept as long as the rates. All callers must use
    /// the same type `T`: `None` if the stored type differs.
    pub fn texts<T: Send + Sync + 'static>(&self, compose: impl FnOnce() -> T) -> Option<&T> {
        self.texts.get_or_init(|| Box::new(compose())).downcast_ref()
    }
}

/// The terms by which answers are read: those of one configuration of a limit.
pub(super) struct Terms {
    pub(super) limit: config::Limit,
    /// Later terms have a higher number.
    pub(super) version: u64,
    shared: Mutex<Shared>,
}

/// The rates that keys have now.
#[derive(Default)]
struct Shared {
    /// By their texts, as the source has written them.
    rates: HashMap<Vec<String>, Weak<QuotaRates>, RandomState>,
    /// At this size, rates that no key has any longer are removed.
    most: usize,
    next: u64,
}

impl Terms {
    pub(super) fn new(limit: config::Limit, version: u64) -> Self {
        Self { limit, version, shared: Mutex::default() }
    }

    /// `None` if the answer grants nothing. The error says why it cannot be used.
    pub(super) fn read(&self, answer: QuotaAnswer) -> Result<Option<Quota>, String> {
        let QuotaAnswer { rates, tier, exempt, block } = &answer;
        let said = [!rates.is_empty(), tier.is_some(), *exempt, *block];
        match said.iter().filter(|said| **said).count() {
            0 => return Ok(None),
            1 => {}
            _ => return Err("it has more than one of rates, tier, exempt and block".to_owned()),
        }
        if rates.iter().chain(tier).any(|text| text.len() > MAX_TEXT) {
            return Err(format!("a text has more than {MAX_TEXT} bytes"));
        }
        let granted = match tier {
            _ if *exempt => GrantedQuota::Exempt,
            _ if *block => GrantedQuota::Block,
            Some(tier) if self.has_tier(tier) => GrantedQuota::Tier(tier.clone()),
            Some(tier) => return Err(format!("the limit has no tier {tier:?}")),
            None => GrantedQuota::Rates(self.rates(rates)?),
        };
        Ok(Some(Quota { answer, granted, version: self.version }))
    }

    fn has_tier(&self, name: &str) -> bool {
        self.limit.tiers.iter().flat_map(|tiers| &tiers.rates).any(|(tier, _)| tier == name)
    }

    fn rates(&self, texts: &[String]) -> Result<Arc<QuotaRates>, String> {
        let mut shared = self.shared.lock();
        if let Some(known) = shared.rates.get(texts).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let read = quota_rates(texts, &self.limit)?;
        if shared.rates.len() >= shared.most {
            shared.rates.retain(|_, rates| rates.strong_count() > 0);
            shared.most = 2 * shared.rates.len() + 16;
        }
        shared.next += 1;
        let limit = Arc::new(self.limit.counted(&read));
        // The id includes the version, so that rates of different configurations differ.
        let id = self.version << 32 | (shared.next & u64::from(u32::MAX));
        let rates = Arc::new(QuotaRates::new(id, limit));
        shared.rates.insert(texts.to_vec(), Arc::downgrade(&rates));
        Ok(rates)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;

    pub(in crate::sources::quotas) fn terms(limit: &str, version: u64) -> Terms {
        let text = format!(
            "[limits.l]\nkey = \"header:k\"\nrates = [\"10/s\"]\n{limit}\n[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n"
        );
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        Terms::new(config.limits[0].clone(), version)
    }

    pub(in crate::sources::quotas) fn rates(texts: &[&str]) -> QuotaAnswer {
        QuotaAnswer { rates: texts.iter().map(|text| (*text).to_owned()).collect(), ..QuotaAnswer::default() }
    }

    #[test]
    fn equal_rates_are_stored_once() {
        let terms = terms("", 1);
        let read = |text: &str| match terms.read(rates(&[text])).unwrap().unwrap().granted {
            GrantedQuota::Rates(rates) => rates,
            other => panic!("{other:?}"),
        };
        let (one, again, other) = (read("100/s"), read("100/s"), read("200/s"));
        assert!(Arc::ptr_eq(&one, &again) && one.id != other.id);
        assert_eq!(one.limit.rates()[0].to_string(), "100/s");
        drop((one, again, other));
        for number in 1..1000 {
            read(&format!("{number}/s"));
        }
        assert!(terms.shared.lock().rates.len() <= 17, "rates that no key has are removed");
    }

    #[test]
    fn what_a_source_says_is_shared_by_the_gateways() {
        let Terms { mut limit, .. } = terms("", 1);
        limit.gateways = Some(4);
        match Terms::new(limit, 2).read(rates(&["100/s", "2/d"])).unwrap().unwrap().granted {
            GrantedQuota::Rates(rates) => {
                let parts = rates.limit.rates().iter().map(ToString::to_string).collect::<Vec<_>>();
                assert_eq!(parts, ["25/s", "1/d"]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_limit_cannot_have_is_refused() {
        let terms = terms("tier = \"header:t\"\n[limits.l.tiers.gold]\nrates = [\"50/s\"]", 1);
        let tier = |name: &str| QuotaAnswer { tier: Some(name.to_owned()), ..QuotaAnswer::default() };
        assert!(matches!(terms.read(tier("gold")).unwrap().unwrap().granted, GrantedQuota::Tier(_)));
        assert_eq!(terms.read(tier("golden")).unwrap_err(), "the limit has no tier \"golden\"");
        assert!(terms.read(QuotaAnswer::default()).unwrap().is_none());
        for answer in [
            rates(&["10"]),
            rates(&["10/s burst 5"]),
            rates(&["10/s", "20/s"]),
            rates(&["1/s"; 100]),
            QuotaAnswer { exempt: true, block: true, ..QuotaAnswer::default() },
            QuotaAnswer { exempt: true, ..rates(&["1/s"]) },
            tier(&"x".repeat(1000)),
        ] {
            assert!(terms.read(answer.clone()).is_err(), "{answer:?}");
        }
    }
}
