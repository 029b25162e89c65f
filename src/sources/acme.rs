//! Certificates that an authority issues and that are renewed automatically (ACME, RFC 8555). One thread asks the authority;
//! no handshake and no request waits for it. The previous certificate stays in use until there is a new one.
//!
//! State is kept in a folder, so a restart asks nobody. Gateways with the same folder lock it: one of them orders, all use
//! the result.

mod failure;
mod folder;
mod shared_answers;
mod challenges;
mod order;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::base::clock::{self, Time};
use crate::base::in_force::{BackgroundTask, InForce};
use crate::base::metrics::SharedCounter;
use crate::config::{Acme, Config, Store};
use crate::net::tls::Identity;

pub use challenges::Challenges;

use failure::{Kind, OrderFailure};
use folder::{Folder, covered};
use shared_answers::SharedAnswers;

/// How often the folder is read: another gateway may have written a file, and the clock may have been set.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon an order is tried again while another gateway orders.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(1);
/// How soon a new certificate is renewed that is due already, because its chain ends soon or the clock is wrong.
const AGAIN: Duration = Duration::from_secs(3600);
/// The longest time of an order.
const LIMIT: Duration = Duration::from_secs(300);

/// The certificate for one list of names.
pub struct AcmeSource {
    acme: Acme,
    folder: Folder,
    shared: Arc<Shared>,
    identity: ArcSwapOption<Identity>,
    /// Chooses when this gateway renews, so that not all renew at once; 0 to 1.
    jitter: f64,
    /// When the source was made; since then a certificate is due if there is none.
    began: Time,
    /// Whether another gateway that shares the store is ordering.
    waits_for_other: AtomicBool,
}

/// Outlives all sources.
#[derive(Default)]
struct Shared {
    challenges: Arc<Challenges>,
    /// The numbers of successful orders, and of failed ones by [`Kind`].
    succeeded: SharedCounter,
    failed: [SharedCounter; Kind::ALL.len()],
    changed: Notify,
}

impl AcmeSource {
    fn new(acme: &Acme, folder: Folder, shared: &Arc<Shared>) -> Self {
        let identity = ArcSwapOption::from_pointee(folder.certificates(&acme.names, clock::now()).best);
        let (acme, shared) = (acme.clone(), shared.clone());
        let (jitter, began, waits_for_other) = (fastrand::f64(), clock::now(), AtomicBool::new(false));
        Self { acme, folder, shared, identity, jitter, began, waits_for_other }
    }

    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.load_full()
    }

    /// When a new certificate is due.
    fn due(&self) -> Time {
        match &*self.identity.load() {
            Some(identity) if covered(identity, &self.acme.names) == self.acme.names.len() => {
                failure::renewal(identity.not_before, identity.not_after, self.jitter)
            }
            Some(_) | None => self.began,
        }
    }

    /// Uses the best certificate in the folder, if that is better than the one in use. Fails when something there cannot be
    /// read now, which may be better than what is in use.
    fn look(&self) -> io::Result<()> {
        let mut certificates = self.folder.certificates(&self.acme.names, clock::now());
        self.folder.tidy(&certificates);
        if let Some(found) = certificates.best.take() {
            self.use_if_better(found);
        }
        certificates.unread.map_or(Ok(()), Err)
    }

    fn use_if_better(&self, found: Identity) {
        let rank = |one: &Identity| folder::rank(one, &self.acme.names);
        if self.identity.load().as_deref().is_some_and(|known| rank(known) >= rank(&found)) {
            return;
        }
        let (names, valid_until) = (found.names.join(" "), found.not_after.timestamp().map(|time| time.to_string()));
        tracing::info!(names, valid_until, "a certificate of an authority is in use");
        self.identity.store(Some(Arc::new(found)));
        self.shared.changed.notify_one();
    }

    /// Gets a certificate: one that another gateway has put into the folder, or a new one. Returns how long to wait before the
    /// next attempt; `None` if none is needed.
    async fn get(&self) -> Result<Option<Duration>, OrderFailure> {
        let failed = |error: io::Error| self.folder.failed(&error);
        let until = Instant::now() + LIMIT;
        let names = self.acme.names.join(" ");
        let Some(lock) = self.folder.state.lock().map_err(failed)? else { return Ok(Some(WAIT_FOR_OTHERS)) };
        self.look().map_err(failed)?;
        if clock::now() < self.due() {
            return Ok(None);
        }
        let later = self.folder.paused_until(&self.acme).map_err(failed)?.micros_since(clock::now());
        let later = Duration::from_micros(later);
        // A longer pause was saved while the clock was wrong.
        if !later.is_zero() && later <= failure::LONGEST {
            tracing::warn!(
                names,
                again_in_seconds = later.as_secs(),
                "the authority has asked to wait before an order"
            );
            return Ok(Some(later));
        }
        self.folder.try_write().map_err(failed)?;
        let claim = self.shared.challenges.claim(&self.acme.names, &self.folder, lock).await.map_err(failed)?;
        let Some(claim) = claim else {
            if !self.waits_for_other.swap(true, Ordering::Relaxed) {
                tracing::info!(names, "another gateway that shares the store is ordering a certificate");
            }
            return Ok(Some(WAIT_FOR_OTHERS));
        };
        self.waits_for_other.store(false, Ordering::Relaxed);
        tracing::info!(names, directory = %self.acme.directory, "a certificate is ordered");
        let ordered = timeout_at(until, order::order(&self.acme, &self.folder, claim)).await;
        let limit = humantime::format_duration(LIMIT);
        ordered.unwrap_or_else(|_| Err(OrderFailure::new(Kind::Away, format!("not done within {limit}"))))?;
        self.shared.succeeded.one();
        self.look().map_err(failed)?;
        if clock::now() >= self.due() {
            tracing::warn!(names, again_after = ?AGAIN, "a new certificate is in the last third of its life already");
            return Ok(Some(AGAIN));
        }
        Ok(None)
    }

    /// Counts and logs a failure; returns how long to wait.
    fn fail(&self, failure: &OrderFailure, failures: u32) -> Duration {
        self.shared.failed[failure.kind as usize].one();
        let pause = failure::pause(failure.kind, failures, failure.retry_after, fastrand::f64());
        let (names, reason, again_in_seconds) = (self.acme.names.join(" "), failure.kind.name(), pause.as_secs());
        let valid_until = self.identity().and_then(|one| one.not_after.timestamp()).map(|time| time.to_string());
        let what = match valid_until {
            Some(_) => "cannot get a new certificate: the previous one stays in use",
            None => "cannot get a certificate: TLS handshakes for these names fail",
        };
        tracing::error!(names, reason, error = %failure, again_in_seconds, valid_until, "{what}");
        pause
    }
}

impl BackgroundTask for AcmeSource {
    const THREAD: &'static str = "acme";
    const REFUSED: &'static str = "cannot ask the authority for certificates";

    /// The files are small and few, so this thread reads and writes them itself.
    async fn run(self: Arc<Self>) {
        let (mut failures, mut allowed) = (0, Instant::now());
        loop {
            // An error of reading is reported by `get` if another certificate is due.
            let _ = self.look();
            if clock::now() >= self.due() && Instant::now() >= allowed {
                match self.get().await {
                    Ok(None) => failures = 0,
                    Ok(Some(wait)) => allowed = Instant::now() + wait,
                    Err(failure) => {
                        failures += 1;
                        allowed = Instant::now() + self.fail(&failure, failures);
                    }
                }
            }
            let until_due = Duration::from_micros(self.due().micros_since(clock::now()));
            let wait = until_due.max(allowed.saturating_duration_since(Instant::now()));
            sleep(wait.clamp(Duration::from_millis(100), LOOK_EVERY)).await;
        }
    }
}

/// At most one source is in force. It outlives a reload that does not change it.
pub struct AcmeSources {
    in_force: Arc<InForce<AcmeSource>>,
    shared: Arc<Shared>,
    /// The folder for all state.
    state: Option<PathBuf>,
}

impl AcmeSources {
    pub fn new(state: Option<PathBuf>) -> Self {
        Self { in_force: Arc::default(), shared: Arc::default(), state }
    }

    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.shared.challenges
    }

    /// The source for this configuration, if it needs one: the one in force, or a new one. Fails when there is no folder for
    /// its files.
    pub fn get(&self, config: &Config) -> Result<Option<Arc<AcmeSource>>, String> {
        let Some(acme) = config.acme() else { return Ok(None) };
        if let Some(known) = self.in_force.find(|source| source.acme == *acme) {
            return Ok(Some(known));
        }
        let folder = Folder::of(state(self.state.as_deref())?, &acme.directory);
        folder.state.create().map_err(|error| {
            let help = "name another folder with --state-dir";
            format!("cannot keep certificates in {}: {error}: {help}", folder.path().display())
        })?;
        Ok(Some(Arc::new(AcmeSource::new(acme, folder, &self.shared))))
    }

    /// Puts this source in force, instead of the previous one. Gateways that share a store answer challenges for each other.
    pub fn apply(&self, source: Option<Arc<AcmeSource>>, store: &Store) {
        let notes = match (store, &source) {
            (Store::Shared(config), Some(source)) => {
                let (secret, folder) = (source.acme.challenge_secret, source.folder.clone());
                Some(Arc::new(SharedAnswers::new(config, secret, folder)))
            }
            _ => None,
        };
        let acme = source.as_ref().map(|source| (source.acme.challenge, &source.acme.names[..]));
        self.shared.challenges.apply(acme, notes);
        self.in_force.replace(source.into_iter().collect());
    }

    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.in_force.all().first().and_then(|source| source.identity())
    }

    /// Waits until another certificate is in use.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// The numbers of orders by their results: `ok`, or why they failed.
    pub fn orders(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Shared { succeeded, failed, .. } = &*self.shared;
        let failed = Kind::ALL.into_iter().map(|kind| (kind.name(), failed[kind as usize].get()));
        [("ok", succeeded.get())].into_iter().chain(failed)
    }

    /// How long a certificate has been due; zero if none is due.
    pub fn overdue(&self, now: Time) -> Duration {
        let since = self.in_force.all().first().map_or(now, |source| source.due());
        Duration::from_micros(now.micros_since(since))
    }
}

/// The certificate that a gateway with this configuration would use at its start, and the error of a file that cannot be read
/// and may have a better one. Asks nobody, and changes nothing. Fails when there is no folder for its files.
pub fn stored(config: &Config, folder: Option<&Path>) -> Result<(Option<Identity>, Option<io::Error>), String> {
    let Some(acme) = config.acme() else { return Ok((None, None)) };
    let found = Folder::of(state(folder)?, &acme.directory).certificates(&acme.names, clock::now());
    Ok((found.best, found.unread))
}

fn state(folder: Option<&Path>) -> Result<&Path, String> {
    let missing = "[server.tls.acme] needs a folder for its key and certificates: add --state-dir, or set STATE_DIRECTORY, \
                   XDG_STATE_HOME or HOME";
    folder.ok_or_else(|| missing.to_owned())
}
