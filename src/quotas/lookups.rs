//! Makes the lookups of one source: so many at the same time, each in bounded time, and none while the source is away,
//! except for one that finds out whether it is back.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::iter;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{LookupError, QuotaAnswer, QuotaChange};
use super::origin::QuotaOrigin;
use super::source::{Inbox, LOOKUP_LIMIT, Lookup, QuotaSource};
use crate::clock;
use crate::fingerprint::Fingerprint;

/// The most lookups that are made at the same time: of keys of which nothing is known, and of others, each. So invented
/// keys do not keep known ones from being renewed.
const MOST_AT_ONCE: usize = 64;

/// How soon a source that is away is asked again. It doubles with each failure, up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);

/// The longest time between two questions to a source that is away.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The most changes that wait to be followed.
const MOST_CHANGES: usize = 1024;

/// What one lookup has come to.
struct Ended {
    lookup: Lookup,
    is_probe: bool,
    begun: Instant,
    result: Result<Option<QuotaAnswer>, LookupError>,
}

/// What makes the lookups.
struct Driver {
    source: Arc<QuotaSource>,
    origin: Rc<QuotaOrigin>,
    under_way: UnderWay,
    /// A hash of each key that is asked about, and whether the source has said meanwhile that it has changed.
    asking: HashMap<Fingerprint, bool>,
    /// There while the source is away.
    probe: Option<Probe>,
}

/// The lookups under way.
#[derive(Default)]
struct UnderWay {
    new: JoinSet<Ended>,
    renewals: JoinSet<Ended>,
    probe: JoinSet<Ended>,
}

/// The next question to a source that is away.
struct Probe {
    /// `None` while it is asked.
    lookup: Option<Lookup>,
    at: Instant,
    pause: Duration,
}

/// Makes lookups as long as the source is in force.
pub(super) async fn run(source: Arc<QuotaSource>) {
    let Some(Inbox { mut new, mut renewals }) = source.take_inbox() else { return };
    let (tell, mut changes) = mpsc::channel(MOST_CHANGES);
    let missed = Rc::new(Cell::new(false));
    let has_missed = missed.clone();
    let origin = QuotaOrigin::new(&source.settings().server, move |change| {
        // Too many at once are the same as those that nobody has heard.
        if tell.try_send(change).is_err() {
            missed.set(true);
        }
    });
    let origin = Rc::new(origin);
    let mut background = JoinSet::new();
    let connected = origin.clone();
    background.spawn_local(async move { connected.run().await });
    let mut driver = Driver { source, origin, under_way: UnderWay::default(), asking: HashMap::new(), probe: None };
    loop {
        let is_away = driver.source.availability.is_away();
        let may_begin = |set: &JoinSet<Ended>| is_away || set.len() < MOST_AT_ONCE;
        let (may_ask, may_renew) = (may_begin(&driver.under_way.new), may_begin(&driver.under_way.renewals));
        let probe_at = driver.probe.as_ref().and_then(|probe| probe.lookup.as_ref().map(|_| probe.at));
        tokio::select! {
            Some(ended) = driver.under_way.new.join_next() => driver.end(ended.ok()),
            Some(ended) = driver.under_way.renewals.join_next() => driver.end(ended.ok()),
            Some(ended) = driver.under_way.probe.join_next() => driver.end(ended.ok()),
            Some(lookup) = new.recv(), if may_ask => driver.begin(lookup, false),
            Some(lookup) = renewals.recv(), if may_renew => driver.begin(lookup, true),
            Some(change) = changes.recv() => {
                let all = iter::once(change).chain(iter::from_fn(|| changes.try_recv().ok()));
                driver.follow(&all.collect::<Vec<_>>(), has_missed.take());
            }
            () = due(probe_at) => driver.probe(),
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

async fn make(origin: Rc<QuotaOrigin>, lookup: Lookup, is_probe: bool) -> Ended {
    let begun = Instant::now();
    let result = timeout(LOOKUP_LIMIT, origin.look_up(&lookup.sent)).await.unwrap_or_else(|_| {
        Err(LookupError::Away(format!("no answer within {}", humantime::format_duration(LOOKUP_LIMIT))))
    });
    Ended { lookup, is_probe, begun, result }
}

impl Driver {
    fn begin(&mut self, lookup: Lookup, is_renewal: bool) {
        if self.source.availability.is_away() {
            // It was asked for before that was known.
            self.source.end(&lookup, Err(LookupError::Away(String::new())), clock::now());
            return;
        }
        self.asking.insert(Fingerprint::of(lookup.sent.as_bytes()), false);
        let set = if is_renewal { &mut self.under_way.renewals } else { &mut self.under_way.new };
        set.spawn_local(make(self.origin.clone(), lookup, false));
    }

    /// Asks a source that is away.
    fn probe(&mut self) {
        if let Some(lookup) = self.probe.as_mut().and_then(|probe| probe.lookup.take()) {
            self.under_way.probe.spawn_local(make(self.origin.clone(), lookup, true));
        }
    }

    /// Records the end of a lookup, and wakes those who wait for it.
    fn end(&mut self, ended: Option<Ended>) {
        // If it has panicked, those who wait for it were woken because it was dropped.
        let Some(Ended { lookup, is_probe, begun, result }) = ended else { return };
        let (source, now) = (&self.source, Instant::now());
        let sent = Fingerprint::of(lookup.sent.as_bytes());
        let has_changed = self.asking.remove(&sent).unwrap_or(false);
        if let Err(LookupError::Away(why)) = &result {
            if source.availability.failed(begun, why) {
                tracing::warn!(
                    limit = source.limit(),
                    why,
                    "a source of quotas is away: what is cached goes on holding"
                );
            }
            source.end(&lookup, result, clock::now());
            let pause = match &self.probe {
                _ if !source.availability.is_away() => return,
                Some(probe) if is_probe => (probe.pause * 2).min(MAX_PAUSE),
                Some(_) => return,
                None => PAUSE,
            };
            self.probe = Some(Probe { lookup: Some(lookup), at: now + pause, pause });
            return;
        }
        if source.availability.answered(now) {
            tracing::info!(limit = source.limit(), "a source of quotas is back");
        }
        self.probe = None;
        source.counters.duration.observe(clock::micros(now.saturating_duration_since(begun)));
        source.end(&lookup, result, clock::now());
        if has_changed {
            // The answer may be older than the change.
            source.expire(Some(&HashSet::from([sent])));
        }
    }

    /// Renews what the source says has changed. `has_missed` is whether there were more changes than could be told.
    fn follow(&mut self, changes: &[QuotaChange], has_missed: bool) {
        if has_missed || changes.contains(&QuotaChange::Any) {
            self.asking.values_mut().for_each(|has_changed| *has_changed = true);
            return self.source.expire(None);
        }
        let sent: HashSet<_> = changes
            .iter()
            .filter_map(|change| match change {
                QuotaChange::Key(key) => Some(Fingerprint::of(key.as_bytes())),
                QuotaChange::Any => None,
            })
            .collect();
        self.asking.iter_mut().filter(|(key, _)| sent.contains(key)).for_each(|(_, has_changed)| *has_changed = true);
        self.source.expire(Some(&sent));
    }
}
