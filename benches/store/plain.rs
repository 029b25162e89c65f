//! The plain way: every request reads its counters and then adds to them, for itself.

use memcache::exp::{Arithmetic, AsyncMetaClient, Get, GetResult};

use gateway::base::clock;
use gateway::base::fingerprint::Fingerprint;
use gateway::limit::{Cell, Verdict};

use super::question::{Question, lifetime};

/// One multi-get, then one increment after the other.
pub(crate) async fn decide(client: &AsyncMetaClient, question: &Question, key: Fingerprint) -> Verdict {
    let (limit, now) = (&question.limit, clock::now());
    let rates = limit.rates();
    let mut cell = Cell::new(rates, now);
    let counters = question.counters(key, &mut cell);
    let results = client.run_many(counters.iter().map(|(_, name)| Get::new(name))).await.unwrap();
    let mut sums = results.iter().map(|result| sum(result.as_ref().unwrap()));
    cell.fill(|_, _| sums.next().unwrap_or(0));
    let admitted = limit.admits(&cell, now, 1);
    if admitted {
        limit.charge(&mut cell, now, 1);
        for (place, rate) in rates.iter().enumerate() {
            // The first counter of a rate is the current one.
            let (_, name) = counters.iter().find(|(at, _)| *at == place).unwrap();
            client.run(Arithmetic::new(name).delta(1).initial(1, lifetime(rate))).await.unwrap();
        }
    }
    limit.judge(&cell, now, 1, admitted)
}

/// A missing counter is 0.
pub(crate) fn sum(read: &GetResult) -> u64 {
    let text = read.value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
