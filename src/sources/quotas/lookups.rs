//! Makes the lookups of one source: a bounded number at the same time, each in bounded time. While the source is unavailable,
//! only one at a time probes whether it is back.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::future::OptionFuture;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::announced::{Announced, Changed};
use super::availability::LOOKUP_LIMIT;
use super::origin::QuotaOrigin;
use super::source::{Inbox, Lookup, QuotaSource};
use super::{LookupError, QuotaAnswer};
use crate::base::back_off::BackOff;
use crate::base::clock;
use crate::base::fingerprint::Fingerprint;

/// The maximum number of concurrent lookups, for new keys and for renewals each. So invented keys cannot prevent renewals.
const MOST_AT_ONCE: usize = 64;

/// Pauses before an unavailable source is asked again.
const PAUSES: BackOff = BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };

/// The pause after following changes, as a multiple of the time that it took, so that a source that keeps announcing changes
/// takes at most a fifth of the thread's time.
const REST: u32 = 4;

/// The longest pause between following changes, which must take effect within a second.
const MAX_REST: Duration = Duration::from_millis(400);

struct Ended {
    lookup: Lookup,
    is_probe: bool,
    begun: Instant,
    result: Result<Option<QuotaAnswer>, LookupError>,
}

struct Driver {
    source: Arc<QuotaSource>,
    origin: Rc<QuotaOrigin>,
    under_way: UnderWay,
    /// The keys that are being looked up.
    asking: HashMap<Fingerprint, Asking, RandomState>,
    /// Set while the source is unavailable.
    probe: Option<Probe>,
}

#[derive(Default)]
struct UnderWay {
    new: JoinSet<Ended>,
    renewals: JoinSet<Ended>,
    probe: JoinSet<Ended>,
}

/// A key that is being looked up.
struct Asking {
    /// A hash of the key in the form in which it is sent.
    sent: Fingerprint,
    /// Whether the source has announced a change of the key meanwhile.
    has_changed: bool,
}

/// The next lookup at an unavailable source, for another key than the last one if a request needs one: the source may answer
/// all keys except one.
struct Probe {
    /// The lookup that has failed; `None` while a probe is under way.
    failed: Option<Lookup>,
    /// The key of the last probe.
    key: Fingerprint,
    /// The lookup of another key that a request has needed since.
    other: Option<Lookup>,
    at: Instant,
    /// Failed probes in a row.
    failures: u32,
}

/// Runs as long as the source is in force.
pub(super) async fn run(source: Arc<QuotaSource>) {
    let owner = source.clone();
    let mut inbox = owner.inbox().await;
    let Inbox { new, renewals } = &mut *inbox;
    // An earlier task may have ended while the source was unavailable, without a probe to come.
    source.availability.forget();
    let announced = Rc::new(Announced::default());
    let told = announced.clone();
    let origin = Rc::new(QuotaOrigin::new(&source.settings.server, move |change| told.add(change)));
    let (mut background, mut following) = (JoinSet::new(), JoinSet::new());
    let connected = origin.clone();
    background.spawn_local(async move { connected.run().await });
    let mut driver = Driver { source, origin, under_way: UnderWay::default(), asking: HashMap::default(), probe: None };
    loop {
        let is_away = driver.source.availability.is_away();
        let may_begin = |set: &JoinSet<Ended>| is_away || set.len() < MOST_AT_ONCE;
        let (may_ask, may_renew) = (may_begin(&driver.under_way.new), may_begin(&driver.under_way.renewals));
        let probe_at = driver.probe.as_ref().and_then(|probe| probe.failed.as_ref().map(|_| probe.at));
        tokio::select! {
            Some(ended) = driver.under_way.new.join_next() => driver.end(ended.ok()),
            Some(ended) = driver.under_way.renewals.join_next() => driver.end(ended.ok()),
            Some(ended) = driver.under_way.probe.join_next() => driver.end(ended.ok()),
            Some(lookup) = new.recv(), if may_ask => driver.begin(lookup, false),
            Some(lookup) = renewals.recv(), if may_renew => driver.begin(lookup, true),
            changed = announced.next(), if following.is_empty() => {
                driver.changed(&changed);
                following.spawn_local(follow(driver.source.clone(), changed));
            }
            Some(_) = following.join_next() => {}
            Some(()) = OptionFuture::from(probe_at.map(sleep_until)) => driver.probe(),
            // The task has panicked.
            Some(_) = background.join_next() => return,
        }
    }
}

/// Makes changed keys due for renewal, then pauses.
async fn follow(source: Arc<QuotaSource>, changed: Changed) {
    let begun = Instant::now();
    source.cache.expire(&changed).await;
    sleep((begun.elapsed() * REST).min(MAX_REST)).await;
}

async fn make(origin: Rc<QuotaOrigin>, lookup: Lookup, is_probe: bool) -> Ended {
    let begun = Instant::now();
    let (mut asked, sent) = (JoinSet::new(), lookup.sent.clone());
    asked.spawn_local(async move { origin.look_up(&sent).await });
    let result = match timeout(LOOKUP_LIMIT, asked.join_next()).await {
        Ok(Some(Ok(result))) => result,
        // Other lookups may be answered.
        Ok(_) => Err(LookupError::Unusable("the lookup has panicked".to_owned())),
        Err(_) => {
            Err(LookupError::Unanswered(format!("no answer within {}", humantime::format_duration(LOOKUP_LIMIT))))
        }
    };
    Ended { lookup, is_probe, begun, result }
}

impl Driver {
    fn begin(&mut self, lookup: Lookup, is_renewal: bool) {
        if self.source.availability.is_away() {
            return self.offer(lookup);
        }
        let made = self.ask(lookup, false);
        let set = if is_renewal { &mut self.under_way.renewals } else { &mut self.under_way.new };
        set.spawn_local(made);
    }

    fn ask(&mut self, lookup: Lookup, is_probe: bool) -> impl Future<Output = Ended> + use<> {
        let asking = Asking { sent: Fingerprint::of(lookup.sent.as_bytes()), has_changed: false };
        self.asking.insert(lookup.key, asking);
        make(self.origin.clone(), lookup, is_probe)
    }

    /// Keeps a lookup for the next probe, if that has none yet.
    fn offer(&mut self, lookup: Lookup) {
        let is_other = match &mut self.probe {
            Some(probe) if probe.other.is_none() && probe.key != lookup.key => {
                probe.other = Some(lookup);
                return;
            }
            probe => probe.as_ref().is_some_and(|probe| probe.other.is_some()),
        };
        self.source.end(&lookup, Err(LookupError::Away(String::new())), clock::now());
        if !is_other {
            self.source.availability.open();
        }
    }

    /// Probes an unavailable source.
    fn probe(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        // A probe is under way.
        let Some(failed) = probe.failed.take() else { return };
        let lookup = probe.other.take().unwrap_or(failed);
        probe.key = lookup.key;
        let made = self.ask(lookup, true);
        self.under_way.probe.spawn_local(made);
    }

    /// Records the end of a lookup, and wakes all who wait for it.
    fn end(&mut self, ended: Option<Ended>) {
        // If the lookup has panicked, dropping it has woken all who wait.
        let Some(Ended { lookup, is_probe, begun, result }) = ended else { return };
        let has_changed = self.asking.remove(&lookup.key).is_some_and(|asking| asking.has_changed);
        let now = Instant::now();
        let availability = &self.source.availability;
        let failed = match &result {
            Err(LookupError::Away(why)) => Some((why, availability.failed(begun))),
            Err(LookupError::Unanswered(why)) => Some((why, availability.unanswered(lookup.key, begun, now))),
            Ok(_) | Err(LookupError::Unusable(_)) => None,
        };
        if let Some((why, is_new)) = failed {
            if is_new {
                tracing::warn!(
                    limit = self.source.limit(),
                    why,
                    "a source of quotas is away: cached answers stay in use"
                );
            }
            self.source.end(&lookup, result, clock::now());
            return self.failed(lookup, is_probe);
        }
        let is_back = availability.answered(now);
        self.source.counters.duration.observe(clock::micros(now.saturating_duration_since(begun)));
        self.source.end(&lookup, result, clock::now());
        if has_changed {
            // The answer may be older than the change.
            self.source.cache.expire_key(lookup.key);
        }
        if is_back {
            tracing::info!(limit = self.source.limit(), "a source of quotas is back");
            if let Some(other) = self.probe.take().and_then(|probe| probe.other) {
                self.begin(other, false);
            }
        }
    }

    /// Prepares the next probe if the source is unavailable.
    fn failed(&mut self, lookup: Lookup, is_probe: bool) {
        if !self.source.availability.is_away() {
            return;
        }
        let (failures, other) = match &mut self.probe {
            None => (1, None),
            Some(probe) if is_probe => (probe.failures.saturating_add(1), probe.other.take()),
            Some(_) => return,
        };
        self.source.availability.open();
        let (key, at) = (lookup.key, Instant::now() + PAUSES.pause(failures));
        self.probe = Some(Probe { failed: Some(lookup), key, other, at, failures });
    }

    /// Marks lookups under way whose answers may be older than these changes.
    fn changed(&mut self, changed: &Changed) {
        self.asking.values_mut().for_each(|asking| asking.has_changed |= changed.has(asking.sent));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::task::yield_now;

    use super::*;
    use crate::base::threads::local_runtime;
    use crate::config;
    use crate::sources::quotas::{LimitSource, QuotaSources};

    fn source() -> Arc<QuotaSource> {
        // Nothing listens there, so each lookup fails at once.
        let text = "[limits.l]\nkey = \"header:k\"\nrates = [\"1/s\"]\nquotas = { source = \"http://127.0.0.1:9/{key}\" }\n\
                    [[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        LimitSource::of(&QuotaSources::default(), &config.limits[0]).unwrap().source
    }

    #[test]
    fn a_source_is_asked_again_after_its_task_has_ended() {
        let source = source();
        local_runtime().unwrap().block_on(async {
            for key in ["a", "b"] {
                let mut task = JoinSet::new();
                task.spawn_local(run(source.clone()));
                // Lets the task begin.
                yield_now().await;
                let (fingerprint, text) = (Fingerprint::of(key.as_bytes()), key.as_bytes().to_vec());
                let mut wait = source.get(fingerprint, clock::now(), || Some(text)).wait.unwrap();
                timeout(Duration::from_secs(30), wait.changed()).await.unwrap().unwrap();
                assert!(source.availability.is_away());
            }
        });
    }

    #[test]
    fn a_key_that_cannot_be_sent_does_not_take_the_one_lookup_of_a_source_that_is_away() {
        let source = source();
        local_runtime().unwrap().block_on(async {
            let mut task = JoinSet::new();
            task.spawn_local(run(source.clone()));
            // Lets the task begin.
            yield_now().await;
            let mut wait = source.get(Fingerprint::of(b"a"), clock::now(), || Some(vec![b'a'])).wait.unwrap();
            timeout(Duration::from_secs(30), wait.changed()).await.unwrap().unwrap();
            source.availability.open();
            source.get(Fingerprint::of(b"b"), clock::now(), || Some(vec![b'b'; 2000]));
            assert!(source.availability.is_away() && source.availability.admits());
        });
    }
}
