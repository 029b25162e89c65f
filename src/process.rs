//! The life of the process: open what is needed, run the workers, reload, drain with a deadline.

pub mod echo;
mod apply;
mod control;
mod counters_file;
mod file_watch;
mod listeners;
mod overrides;
mod reload;
mod service_manager;
mod signals;
mod source;
mod stores;
mod workers;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::LocalRuntime;
use tokio::sync::{mpsc, watch};

use crate::admin::{self, Gatekeeper, RecentReloads, View};
use crate::base::clock::{self, Time};
use crate::base::key_mask::KeyMask;
use crate::base::metrics::PerWorker;
use crate::base::threads::local_runtime;
use crate::config::{Config, Limit, ReloadError, Upstream};
use crate::net::Traffic;
use crate::net::tls::ListenerTls;
use crate::proxy::log::Logging;
use crate::proxy::snapshot::{SharedState, Snapshot};
use crate::proxy::telemetry::AccessLogOutput;
use crate::server::{self, Stage, TrafficLimits};
use crate::sources::acme::AcmeSources;
use crate::sources::jwks;
use crate::store::Store;

use apply::{InForce, share_first, start_echo, warn, warn_of_source};
use control::Control;
use file_watch::Watches;
use listeners::Listeners;
use reload::{Polls, Reloads, Waiters};
use service_manager::{InheritedSockets, Watchdog};
use signals::{EarlySignals, Signals};
pub use source::{ConfigSource, Loaded, NoStart, ReadOnce, Remote};
use stores::Stores;
use workers::Plan;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {0}: another process listens on it")]
    InUse(String),
    #[error("cannot listen on {0}: {1}")]
    Bind(String, io::Error),
    #[error("cannot start: {0}")]
    System(io::Error),
    #[error("a worker ended: {0}")]
    Worker(io::Error),
}

impl StartError {
    fn bind(address: &impl ToString, error: io::Error) -> Self {
        let address = address.to_string();
        if error.kind() == io::ErrorKind::AddrInUse { Self::InUse(address) } else { Self::Bind(address, error) }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// After the last request, or at the end of `drain_timeout`.
    Drained,
    /// Without waiting for requests, because the process was told to stop a second time.
    AtOnce,
}

/// What must exist before the configuration is read, because reading may take a while.
pub struct Prepared {
    runtime: LocalRuntime,
    signals: EarlySignals,
}

impl Prepared {
    /// Handles signals that would end the process. Fails when the system refuses that.
    pub fn new() -> io::Result<Self> {
        let runtime = local_runtime()?;
        let signals = {
            let _entered = runtime.enter();
            EarlySignals::listen()?
        };
        Ok(Self { runtime, signals })
    }
}

pub struct Start {
    pub source: ConfigSource,
    /// What the source has, or the copy of what it had before.
    pub loaded: Loaded,
    /// When reading the configuration began.
    pub read_since: Time,
    /// Whether to read the configuration again when its files change.
    pub watch: bool,
    /// For what outlives the process.
    pub state: Option<PathBuf>,
}

/// Runs the gateway until it is told to stop and has drained, or is told to stop a second time. Fails when it cannot start, or
/// one of its workers fails.
pub fn run(prepared: Prepared, start: Start, logging: &Logging) -> Result<Stopped, StartError> {
    let Prepared { runtime, signals } = prepared;
    let Start { source, loaded: Loaded { mut config, instead_of }, read_since, watch, state } = start;
    let workers = match config.server.workers {
        0 => available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let signals = {
        let _entered = runtime.enter();
        Signals::listen(signals)?
    };
    warn(&config);
    warn_of_source(&source, instead_of.as_ref());
    let (limits, upstream_connections) = connection_limits(&config, workers);
    let acme = Arc::new(AcmeSources::new(state));
    let certificate = acme.get(&config).map_err(io::Error::other)?;
    config = config.with_issued(certificate.as_ref().and_then(|source| source.identity()).as_deref());
    let tls = Arc::new(ListenerTls::new(config.tls_settings())?);
    let (mut listeners, changes) = Listeners::new(workers, InheritedSockets::of_process()?);
    let plan = listeners.open.plan(None, &config)?;
    listeners.apply(plan);
    log_summary(&config);
    let shared = Arc::new(SharedState::new(workers, upstream_connections));
    let key_mask = Arc::new(KeyMask::new().map_err(io::Error::other)?);
    shared.notices.mask_by(key_mask.clone());
    start_echo(&config, &shared)?;
    let store = Arc::new(Store::open(&config.store, workers)?);
    let (stores, opened) = Stores::new(workers);
    share_first(&mut config, &shared)?;
    let gateway = Snapshot::build(&config, &shared, store);
    // Clients that connect meanwhile wait. Without the keys, their tokens would be refused.
    jwks::fetch_first(&gateway.key_sources)?;
    counters_file::restore(&config.store, &gateway, &shared);
    // What is remembered about notices is restored by now.
    shared.apply_sources(&gateway);
    shared.notices.apply(&gateway.notices, &gateway.store);
    acme.apply(certificate, &config.store);
    let gateway = Arc::new(ArcSwap::from_pointee(gateway));
    let (stage, staged) = watch::channel(Stage::Running);

    let access_log = AccessLogOutput { writer: logging.access.clone(), format: config.log.access_format };
    let (reload_requests, requested) = mpsc::channel(admin::MAX_WAITING);
    let (override_requests, overrides_requested) = mpsc::channel(admin::MAX_WAITING);
    if let (Some(remote), None) = (source.remote(), &instead_of) {
        remote.keep();
        remote.applied();
    }
    let polls = Polls::new(instead_of.map(ReloadError::from));
    let view = Arc::new(View {
        source: source.to_string(),
        remote: source.remote().map(|remote| remote.status.clone()),
        config: ArcSwap::from_pointee(config),
        shared,
        snapshot: gateway,
        dropped_lines: logging.dropped(),
        log_level: logging.level.clone(),
        connections: limits,
        tls,
        acme,
        reloads: reload_requests,
        overrides: override_requests,
        temporary: Mutex::default(),
        key_mask,
        readiness: Arc::default(),
        reloads_so_far: RecentReloads::new(clock::now()),
        certificate_reloads: RecentReloads::new(clock::now()),
        gatekeeper: Gatekeeper::default(),
        started: clock::now(),
    });
    if let Some(why) = &polls.last_refusal {
        view.reloads_so_far.refused(clock::now(), why);
    }
    admin::start(changes.admin, view.clone())?;
    let in_force = InForce { source, view, listeners, stores };
    let reloads = Reloads::new(reload::LIMIT);
    let tls_reloads = Reloads::new(reload::LIMIT);
    let waiters = Waiters::default();
    let watches = Watches::new(watch, &in_force.config(), read_since);

    // The workers start last: clients could take all file handles before everything else has its own.
    let heartbeats = Arc::new(PerWorker::new(workers));
    let (done, finished) = mpsc::unbounded_channel();
    for (index, (listeners, stores)) in changes.workers.into_iter().zip(opened).enumerate() {
        let (stage, access_log, heartbeats) = (staged.clone(), access_log.clone(), heartbeats.clone());
        let view = in_force.view.clone();
        workers::start(Plan { index, listeners, stores, stage, access_log, heartbeats, view }, done.clone())?;
    }
    drop(done);

    let control = Control {
        in_force,
        reloads,
        polls,
        requested,
        waiters,
        overrides: overrides_requested,
        watches,
        reloading_since: read_since,
        access_log: logging.access.clone(),
        watchdog: Watchdog::new(workers),
        heartbeats,
        tls_reloads,
        stage,
        finished,
        signals,
    };
    runtime.block_on(control.run())
}

/// The limits of connections with clients, and the number of those to upstreams. Raises the limit of file handles first.
fn connection_limits(config: &Config, workers: usize) -> (TrafficLimits, usize) {
    let file_handles = server::raise_handles();
    let all = server::connections_for(file_handles, workers, config.listeners().count(), config.store.servers().len());
    // A client may need a connection to an upstream besides its own. Other proxies that ask for decisions may have as many
    // connections as clients.
    let has_both = config.decisions.is_some() && !config.server.listen.is_empty();
    let kinds = 1 + usize::from(has_both);
    let auto = (all / (kinds + 1)).max(1);
    let limits = TrafficLimits::new(&config.server, auto);
    let max_connections = limits.of(Traffic::Requests).counts().most;
    let upstream_connections = all.saturating_sub(kinds * max_connections);
    tracing::info!(max_connections, upstream_connections, file_handles, "connection limits");
    (limits, upstream_connections)
}

/// Further upstreams and limits are only counted.
const MOST_NAMED: usize = 5;

/// Logs what the gateway forwards to, and which limits hold.
fn log_summary(config: &Config) {
    let upstreams = listed(&config.upstreams, upstream);
    tracing::info!(routes = config.routes.len(), upstreams, "forwarding");
    let (limits, warnings) = (listed(&config.limits, limit), config.warnings.located().count());
    tracing::info!(limits, store = config.store.kind(), warnings, "limiting");
}

/// The texts of the first items, and how many more there are.
fn listed<T>(all: &[T], text: fn(&T) -> String) -> String {
    let mut texts: Vec<_> = all.iter().take(MOST_NAMED).map(text).collect();
    if all.len() > MOST_NAMED {
        texts.push(format!("{} more", all.len() - MOST_NAMED));
    }
    if texts.is_empty() { "none".to_owned() } else { texts.join("; ") }
}

fn upstream(Upstream { name, servers, .. }: &Upstream) -> String {
    match &servers[..] {
        [] => name.clone(),
        [one] => format!("{name} ({})", one.address),
        [first, others @ ..] => format!("{name} ({} and {} more)", first.address, others.len()),
    }
}

fn limit(limit: &Limit) -> String {
    let rates: Vec<_> = limit.rates.iter().map(ToString::to_string).collect();
    let concurrency = limit.max_in_flight.map(|most| format!("{most} in flight"));
    let what: Vec<_> = rates.into_iter().chain(concurrency).collect();
    format!("{}: {} by {}", limit.name, what.join(", "), limit.key)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn texts(text: &str) -> [String; 2] {
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        [listed(&config.upstreams, upstream), listed(&config.limits, limit)]
    }

    #[test]
    fn it_names_upstreams_and_limits() {
        let one = "[upstreams.up]\nservers = [\"http://10.0.0.1:9000\", \"http://10.0.0.2:9000\"]\n\
                   [limits.l]\nkey = \"client-ip\"\nrates = [\"10/s\", \"3000/10m\"]\nmax_in_flight = 3\n\
                   [[routes]]\npath = \"/*\"\nupstream = \"up\"\nlimits = [\"l\"]\n";
        let expected = ["up (http://10.0.0.1:9000 and 1 more)", "l: 10/s, 3000/10m, 3 in flight by client-ip"];
        assert_eq!(texts(one), expected);
        let route = "[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        assert_eq!(texts(route), ["none", "none"]);
        let many = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| format!("[limits.l{n}]\nkey = \"client-ip\"\nrates = [\"1/s\"]\n"));
        assert!(texts(&(many.concat() + route))[1].ends_with("l4: 1/s by client-ip; 3 more"));
    }
}
