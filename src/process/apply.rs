//! Applies configurations: each is loaded, checked and built, and then replaces the one in force as a whole.
//!
//! Some settings are used only at the start: workers, the size of heads, the log format and the bounds of the memory
//! store. A configuration that changes one of them is refused, so that no change is applied only in part.

use std::io;
use std::sync::Arc;

use super::listeners::{ListenerPlan, Listeners, OpenListeners};
use super::reload::{self, Cause};
use super::source::ConfigSource;
use super::stores::Stores;
use crate::admin::View;
use crate::base::clock;
use crate::config::overrides::Changes;
use crate::config::{self, Address, Config, Problems, ReloadError, Tls};
use crate::net::tls::PreparedTls;
use crate::process::echo;
use crate::proxy::snapshot::{self, SharedState, Snapshot};
use crate::request::decide::TemporaryOverrides;
use crate::sources::acme::AcmeSource;
use crate::sources::jwks;
use crate::sources::quotas::LimitSource;
use crate::store::Store;

const TOO_LONG: &str = "it took too long";

pub(super) struct InForce {
    pub(super) source: ConfigSource,
    pub(super) view: Arc<View>,
    pub(super) listeners: Listeners,
    pub(super) stores: Stores,
}

/// A configuration that is checked and built but not in force yet.
pub(super) struct Candidate {
    config: Config,
    snapshot: Snapshot,
    /// How many overrides each limit has gained, lost or changed.
    overrides: Vec<(String, Changes)>,
    listeners: ListenerPlan,
    tls: PreparedTls,
    /// `None` unless an authority issues it.
    certificate: Option<Arc<AcmeSource>>,
}

impl Candidate {
    /// Loads the configuration that is to replace `running`, and builds its snapshot. Opens its store, if that is another one,
    /// and its additional listeners, which accept nothing before the configuration is in force. `None` if a poll finds nothing
    /// new. The error says why the configuration is refused: its problems, a listener that cannot be opened, or a change of a
    /// setting that is used only at the start.
    pub(super) fn load(
        source: &ConfigSource,
        cause: Cause,
        running: &Config,
        listeners: &OpenListeners,
        view: &View,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, ReloadError> {
        let shared = &*view.shared;
        let loaded = match cause {
            Cause::Asked => Some(source.load()?),
            Cause::Poll => source.poll()?,
        };
        let Some(mut config) = loaded else { return Ok(None) };
        if let Some(problems) = config::needs_restart(running, &config) {
            return Err(problems.into());
        }
        if !is_wanted() {
            return Err(TOO_LONG.to_owned().into());
        }
        start_echo(&config, shared).map_err(|error| format!("cannot start the built-in echo server: {error}"))?;
        let store = if running.store.is_same_place(&config.store) {
            view.snapshot.load().store.clone()
        } else {
            let opened = Store::open(&config.store, shared.workers);
            Arc::new(opened.map_err(|error| format!("cannot open the store: {error}"))?)
        };
        share_first(&mut config, shared)
            .map_err(|error| format!("cannot look up the gateways that share the limits: {error}"))?;
        let certificate = view.acme.get(&config)?;
        let tls =
            view.tls.prepare(config.tls_settings()).map_err(|error| format!("cannot use the TLS settings: {error}"))?;
        let snapshot = Snapshot::build(&config, shared, store);
        let overrides = config::changed_overrides(running, &config);
        jwks::fetch_first(&snapshot.key_sources)
            .map_err(|error| format!("cannot fetch the keys of issuers: {error}"))?;
        if !is_wanted() {
            return Err(TOO_LONG.to_owned().into());
        }
        let listeners = listeners.plan(Some(running), &config).map_err(|error| error.to_string())?;
        if let Some(remote) = source.remote() {
            remote.keep();
        }
        Ok(Some(Self { config, snapshot, overrides, listeners, tls, certificate }))
    }
}

impl InForce {
    pub(super) fn config(&self) -> Arc<Config> {
        self.view.config.load_full()
    }

    /// Puts a candidate in force. Requests in flight finish with the snapshot with which they began. The overrides of the
    /// admin API stay if their limits can still have them.
    pub(super) fn apply(&mut self, candidate: Candidate) {
        let Candidate { mut config, mut snapshot, overrides, listeners, tls, certificate } = candidate;
        config = config.with_issued(certificate.as_ref().and_then(|source| source.identity()).as_deref());
        // The number of gateways may have changed since the candidate was built.
        let is_divided = share(&mut config, &self.view.shared);
        let mut temporary = self.view.temporary.lock();
        for (limit, count) in temporary.reload(&config) {
            let why = "the limit no longer has such a key or such rates";
            tracing::warn!(limit, count, why, "overrides of the admin API are removed");
        }
        if is_divided || !temporary.is_empty() {
            snapshot = snapshot.with_temporary(&config, &self.view.shared, &temporary);
        }
        drop(temporary);
        snapshot.resolve();
        self.view.shared.keep_only(&snapshot);
        self.view.shared.gateways.keep_only(config.store.share());
        let (store, receivers) = (snapshot.store.clone(), snapshot.notices.clone());
        let before = self.replace(snapshot);
        self.view.shared.notices.apply(&receivers, &store);
        let has_other_store = !Arc::ptr_eq(&before.store, &store);
        if has_other_store {
            self.stores.open(&store);
            tracing::warn!("the store has changed: limits {}", config.store.first_counts());
        }
        self.view.connections.reload(&config.server);
        self.view.tls.apply(tls, config.tls_settings());
        // A certificate is ordered only for names that are already awaited.
        self.view.acme.apply(certificate, &config.store);
        warn(&config);
        let running = self.config();
        tell_of_gateways(running.gateways, &config, &self.view.shared);
        // A level that the admin API has set stays until the file has another one.
        if running.log.level != config.log.level {
            // The log is there as long as the process.
            let _ = self.view.log_level.reload(config.log.level);
            tracing::info!(level = %config.log.level, "a reload has changed the log level");
        }
        let recounted = if has_other_store { Vec::new() } else { config::recounted(&running, &config) };
        reload::tell(&recounted, &overrides);
        self.view.config.store(Arc::new(config));
        // Listeners come after routes, so that a new listener finds the new routes.
        self.listeners.apply(listeners);
        if let Some(remote) = self.source.remote() {
            remote.applied();
        }
        self.view.reloads_so_far.succeeded(clock::now());
        // The certificates were read with the configuration.
        self.view.certificate_reloads.recovered();
        tracing::info!("reloaded");
    }

    /// Puts these overrides of the admin API in force, and nothing else: no file is read. In the store, only keys whose
    /// counters differ now are touched.
    pub(super) fn apply_overrides(&self, temporary: &TemporaryOverrides) {
        let running = self.view.snapshot.load();
        if running.limits.iter().any(|rate_table| !rate_table.has_temporary(temporary.of(rate_table.name()))) {
            self.replace(running.with_temporary(&self.config(), &self.view.shared, temporary));
        }
    }

    /// Divides the limits among the gateways again, if their number has changed. Counts go on.
    pub(super) fn share_again(&self) {
        let (running, shared) = (self.config(), &self.view.shared);
        if shared.gateways.number(running.store.share()) == running.gateways {
            return;
        }
        let mut config = Config::clone(&running);
        share(&mut config, shared);
        tell_of_gateways(running.gateways, &config, shared);
        // The rates of overrides are divided, too.
        let mut temporary = self.view.temporary.lock();
        temporary.reload(&config);
        let snapshot = self.view.snapshot.load().with_temporary(&config, shared, &temporary);
        LimitSource::apply(&shared.quota_sources, &snapshot.quota_sources);
        self.replace(snapshot);
        self.view.config.store(Arc::new(config));
    }

    /// Keys that are counted in another way now keep their counts. Returns the previous snapshot.
    fn replace(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let changes = snapshot::limit_changes(&self.view.snapshot.load(), &snapshot);
        snapshot.store.reload(&changes, clock::now());
        self.view.snapshot.swap(Arc::new(snapshot))
    }

    /// Uses the certificates that were read again for new connections, if they differ.
    pub(super) fn apply_certificates(&self, tls: [Option<Tls>; 3]) {
        let files = |tls: Option<&Tls>| tls.map(|tls| (tls.certificates.clone(), tls.client_ca.clone()));
        let config = self.config();
        let tls = Config::clone(&config).with_tls(tls).with_issued(self.view.acme.identity().as_deref());
        let (running, read) = (config.tls(), tls.tls());
        // The configuration may have been reloaded meanwhile.
        if running.map(files) != read.map(files) {
            return;
        }
        if running == read {
            if self.view.certificate_reloads.recovered() {
                tracing::info!("the files of the certificates match those in use again");
            }
            return;
        }
        if let Err(error) = self.use_tls(tls) {
            return self.refuse_certificates(&error.to_string().into());
        }
        self.view.certificate_reloads.succeeded(clock::now());
        tracing::info!("the certificates were read again");
    }

    pub(super) fn use_issued(&self) {
        let config = Config::clone(&self.config()).with_issued(self.view.acme.identity().as_deref());
        if let Err(error) = self.use_tls(config) {
            tracing::error!(%error, "new connections use the previous certificates");
        }
    }

    /// Puts a configuration in force that differs only in its certificates.
    fn use_tls(&self, config: Config) -> io::Result<()> {
        let tls = self.view.tls.prepare(config.tls_settings())?;
        self.view.tls.apply(tls, config.tls_settings());
        self.view.connections.reload(&config.server);
        self.view.config.store(Arc::new(config));
        Ok(())
    }

    pub(super) fn refuse_certificates(&self, why: &ReloadError) {
        self.view.certificate_reloads.refused(clock::now(), why);
        tracing::error!(problems = %why, "the certificates are refused: the previous ones stay in use");
    }

    /// The source has again what is in force, after a poll that failed.
    pub(super) fn recover(&self) {
        if self.view.reloads_so_far.recovered() {
            tracing::info!("the source can be used again, and matches the configuration in force");
        }
    }

    pub(super) fn refuse(&self, why: &ReloadError) {
        self.view.reloads_so_far.refused(clock::now(), why);
        tracing::error!(problems = %why, "reload refused");
    }
}

/// Divides the limits of a configuration among the gateways. Blocks for up to 2 s if their number is not known.
pub(super) fn share_first(config: &mut Config, shared: &SharedState) -> io::Result<()> {
    shared.gateways.look_up_first(config.store.share())?;
    share(config, shared);
    Ok(())
}

/// Divides the limits of a configuration among the gateways that are known. Returns whether their number has changed.
fn share(config: &mut Config, shared: &SharedState) -> bool {
    config.share_among(shared.gateways.number(config.store.share()))
}

/// Logs if the number of gateways that share the limits has changed or is not known.
pub(super) fn tell_of_gateways(was: u64, config: &Config, shared: &SharedState) {
    let gateways = config.gateways;
    if let Some(name) = shared.gateways.unknown(config.store.share()) {
        tracing::warn!(name, "the number of gateways is not known: until it is, limits have their whole rates");
    } else if gateways != was {
        tracing::info!(gateways, was, "the number of gateways that share the limits has changed");
    }
}

pub(super) fn warn(config: &Config) {
    for (place, problem) in config.warnings.located() {
        tracing::warn!(place, help = problem.help, "{}", problem.message);
    }
}

/// Logs if the configuration in force is a copy, or if no copy can be kept.
pub(super) fn warn_of_source(source: &ConfigSource, instead_of: Option<&Problems>) {
    let Some(remote) = source.remote() else { return };
    if let Some(problems) = instead_of {
        let file = remote.copy_path().map(|path| path.display().to_string());
        let age_seconds = remote.status.lock().copy_saved.map(|saved| clock::now().micros_since(saved) / 1_000_000);
        tracing::warn!(%source, file, age_seconds, %problems, "the source cannot be used: the last good copy is in force");
    }
    if remote.copy_path().is_none() {
        let help = "add --state-dir, or set STATE_DIRECTORY, XDG_STATE_HOME or HOME";
        tracing::warn!(help, "no copy of the configuration is kept for a start while its source is away");
    }
}

pub(super) fn start_echo(config: &Config, shared: &SharedState) -> io::Result<()> {
    let mut servers = config.upstreams.iter().flat_map(|upstream| &upstream.servers);
    if servers.any(|server| server.address == Address::Echo) && shared.echo().is_none() {
        shared.set_echo(echo::start()?);
    }
    Ok(())
}
