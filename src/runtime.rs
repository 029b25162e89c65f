//! The life of the process: open what is needed, run the workers, reload, drain with a deadline.

mod apply;
mod certificates;
mod listeners;
mod reload;
mod signals;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use crate::admin::{self, RecentReloads, ReloadAnswer, View};
use crate::clock;
use crate::config::{self, Config, ConfigSource, Tls};
use crate::jwks;
use crate::log::{Logging, panic_text};
use crate::proxy::{ConnectionContext, Worker, WorkerSnapshots};
use crate::random::Random;
use crate::server::{self, ConnectedClient, ConnectionLimits, Listener, Stage};
use crate::shed::ShedWatch;
use crate::snapshot::{SharedState, Snapshot};
use crate::store::Store;
use crate::tls::ListenerTls;
use crate::upstream::ConnectionPools;

use apply::{Candidate, InForce, start_echo, warn};
use certificates::{CertificateWatch, LOOK_EVERY, warn_of_expiry};
use listeners::Listeners;
use reload::{Ended, Reloads, Waiters};
use signals::{Signals, Told};

/// How often the memory store is swept for keys without effect, and in how many sweeps all of it is covered.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_STEPS: usize = 30;
/// How long workers may take to report how many requests they have cut off.
const OVER_LIMIT: Duration = Duration::from_secs(1);

/// Why the gateway did not start, or has ended by itself.
#[derive(Debug)]
pub enum StartError {
    /// The gateway cannot listen on this address.
    Bind(String, io::Error),
    /// The system refuses a thread, a timer or a signal handler.
    System(io::Error),
    /// A worker has ended although the gateway was not told to stop.
    Worker(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "cannot listen on {address}: another process listens on it")
            }
            Self::Bind(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::System(error) => write!(f, "cannot start: {error}"),
            Self::Worker(error) => write!(f, "a worker ended: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// How the gateway stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// After the last request, or at the end of `drain_timeout`.
    Drained,
    /// It was told to stop a second time and did not wait for requests.
    AtOnce,
}

/// Runs the gateway until it is told to stop and has drained, or is told to stop a second time.
///
/// # Errors
/// When it cannot start, or one of its workers fails.
pub fn run(source: ConfigSource, config: Config, logging: &Logging) -> Result<Stopped, StartError> {
    let workers = match config.server.workers {
        0 => available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let runtime = local_runtime()?;
    // As early as possible, because a signal without a handler would end the process.
    let signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    warn(&config);
    let limits = Arc::new(connection_limits(&config.server, workers));
    let tls = Arc::new(ListenerTls::new(config.server.tls.as_ref().map(|tls| &tls.settings))?);
    let listeners = Listeners::open(&config, workers)?;
    let shared = Arc::new(SharedState::new(workers));
    start_echo(&config, &shared)?;
    let store = Arc::new(Store::open(&config.store, workers)?);
    let gateway = Snapshot::build(&config, &shared);
    // Clients that connect meanwhile wait. Without the keys their tokens would not be valid.
    jwks::fetch_first(&gateway.key_sources)?;
    shared.key_sources().apply(gateway.key_sources.clone());
    let gateway = Arc::new(ArcSwap::from_pointee(gateway));
    let (stage, staged) = watch::channel(Stage::Running);

    let (done, finished) = mpsc::channel(workers);
    for (index, listeners) in listeners.http.into_iter().enumerate() {
        let plan = Plan { index, listeners, tls: tls.clone(), limits: limits.clone(), stage: staged.clone() };
        let (gateway, store, done) = (gateway.clone(), store.clone(), done.clone());
        let runtime = local_runtime;
        thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            let ended = whole(|| runtime()?.block_on(work(plan, gateway, store)));
            // The channel has room for one result of each worker. If the receiver is gone, the process ends.
            let _ = done.try_send(ended);
        })?;
    }
    drop(done);

    let certificates = CertificateWatch::new(config.server.tls.as_ref());
    let (reload_requests, requested) = admin::reload_channel();
    let view = Arc::new(View {
        config: ArcSwap::from_pointee(config),
        shared,
        snapshot: gateway.clone(),
        store,
        dropped_lines: logging.dropped(),
        log_level: logging.level(),
        connections: limits,
        tls,
        reloads: reload_requests,
        draining: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        reloads_so_far: RecentReloads::default(),
        started: clock::now(),
    });
    if let Some(listener) = listeners.admin {
        admin::start(listener, view.clone())?;
    }
    let in_force = InForce { snapshot: gateway, view };
    let reloads = Reloads::new(reload::LIMIT);
    let tls_reloads = Reloads::new(reload::LIMIT);
    let waiters = Waiters::default();
    let control =
        Control { source, in_force, reloads, requested, waiters, certificates, tls_reloads, stage, finished, signals };
    runtime.block_on(control.run())
}

fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// How many connections there may be, for which the limit of file handles is raised.
fn connection_limits(server: &config::Server, workers: usize) -> ConnectionLimits {
    let file_handles = server::raise_handles();
    let auto = server::connections_for(file_handles, workers, server.listen.len());
    let limits = ConnectionLimits::new(server.clone(), auto);
    let max_connections = limits.counts().most;
    tracing::info!(max_connections, file_handles, "limits");
    if max_connections > auto {
        let help = "raise the limit of file handles, or lower max_connections: a client may need two handles";
        tracing::warn!(max_connections, enough_for = auto, help, "there are too few file handles for max_connections");
    }
    limits
}

/// The result of a worker's thread. A panic becomes an error.
fn whole<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // Nothing that the thread leaves behind is used again.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(io::Error::other(format!("it panicked: {}", panic_text(&*panic)))))
}

/// What one worker needs to start.
struct Plan {
    index: usize,
    listeners: Vec<Listener>,
    tls: Arc<ListenerTls>,
    limits: Arc<ConnectionLimits>,
    stage: watch::Receiver<Stage>,
}

/// Serves requests until the process is told to stop. Returns how many requests were cut off.
async fn work(plan: Plan, gateway: Arc<ArcSwap<Snapshot>>, store: Arc<Store>) -> io::Result<usize> {
    let pools = Rc::new(ConnectionPools::default());
    let mut background = JoinSet::new();
    let (watched, in_force) = (pools.clone(), gateway.clone());
    background.spawn_local(async move { watched.watch(move || in_force.load().keeps()).await });
    let (carrying, index) = (store.clone(), plan.index);
    background.spawn_local(async move { carrying.carry(index).await });
    let finishing = store.clone();
    let snapshots = WorkerSnapshots::new(gateway, plan.index);
    let sampler = snapshots.sampler().clone();
    let sampling = sampler.clone();
    background.spawn_local(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            sampling.next_second();
        }
    });
    let (tokens, random) = (RefCell::default(), Random::seeded()?);
    let worker = Rc::new(Worker { index: plan.index, snapshots, store, pools, tokens, random });
    let connected = move |client: &ConnectedClient| ConnectionContext::new(worker.clone(), client);
    let served = tokio::select! {
        served = server::run(plan.listeners, plan.tls, plan.limits, plan.stage, connected) => served,
        error = server::panicked(&mut background) => Err(error),
    };
    sampler.next_second();
    finishing.finish().await;
    served
}

/// What the control thread does: signals, reloads, the sweep and the drain.
struct Control {
    source: ConfigSource,
    in_force: InForce,
    reloads: Reloads<Candidate>,
    /// Requests of the admin listener for a reload.
    requested: mpsc::Receiver<ReloadAnswer>,
    waiters: Waiters,
    certificates: CertificateWatch,
    /// What the files of certificates have now.
    tls_reloads: Reloads<Tls>,
    stage: watch::Sender<Stage>,
    /// For each worker that has ended, how many requests it has cut off, or its error. It closes after the last worker.
    finished: mpsc::Receiver<io::Result<usize>>,
    signals: Signals,
}

impl Control {
    async fn run(mut self) -> Result<Stopped, StartError> {
        let (watch, snapshot) = (self.in_force.view.shared.upstream_watch(), self.in_force.snapshot.clone());
        spawn_local(watch.run(move || snapshot.load().upstreams.clone()));
        let (workers, snapshot) = (self.in_force.view.shared.workers(), self.in_force.snapshot.clone());
        spawn_local(ShedWatch::new(workers).run(move || snapshot.load().shedding.clone()));
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        // A configuration that is read warns of them already.
        let mut expiry = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        loop {
            tokio::select! {
                told = self.signals.next() => match told {
                    Told::Reload => self.reload(),
                    Told::Stop => break,
                },
                Some(answer) = self.requested.recv() => {
                    self.waiters.add(answer, self.reloads.is_running());
                    self.reload();
                }
                ended = self.reloads.ended() => self.take_over(ended),
                () = self.certificates.changed() => self.reload_certificates(),
                ended = self.tls_reloads.ended() => self.take_over_certificates(ended),
                _ = expiry.tick() => {
                    self.in_force.config().server.tls.iter().for_each(|tls| warn_of_expiry(tls, clock::now()));
                }
                _ = sweep.tick() => self.sweep(),
                Some(ended) = self.finished.recv() => {
                    let error = ended.err().unwrap_or_else(|| io::Error::other("it was not told to stop"));
                    tracing::error!(%error, "a worker ended");
                    return Err(StartError::Worker(error));
                }
            }
        }
        let Control { in_force, stage, mut finished, mut signals, requested, waiters, .. } = self;
        // Who waits for a reload learns that there will be none.
        drop((requested, waiters));
        in_force.view.stopping.store(true, Ordering::Relaxed);
        let config = in_force.config();
        let drained = tokio::select! {
            drained = drain(&config.server, &stage, &mut finished) => Some(drained.map_err(StartError::Worker)?),
            () = told_to_stop(&mut signals) => None,
        };
        if drained == Some(true) {
            tracing::info!("stopped");
            return Ok(Stopped::Drained);
        }
        let _ = stage.send(Stage::Over);
        // A worker that hangs does not stop the process from ending.
        let mut requests = 0;
        let _ = timeout(OVER_LIMIT, all_ended(&mut finished, &mut requests)).await;
        if drained.is_some() {
            tracing::warn!(requests, "stopped: drain_timeout is over, requests in flight were cut off");
            return Ok(Stopped::Drained);
        }
        tracing::warn!(requests, "stopped at once by a second signal: requests in flight were cut off");
        Ok(Stopped::AtOnce)
    }

    fn sweep(&self) {
        // Failures of upstreams that are not logged yet.
        self.in_force.view.shared.upstreams().iter().for_each(|upstream| upstream.report(clock::now()));
        if let Store::Memory(memory) = &*self.in_force.view.store {
            memory.sweep(SWEEP_STEPS, clock::now());
        }
    }

    /// Begins to load the configuration in another thread.
    fn reload(&mut self) {
        let (source, running) = (self.source.clone(), self.in_force.config());
        let shared = self.in_force.view.shared.clone();
        let begun = self.reloads.begin(move |is_wanted| Candidate::load(&source, &running, &shared, is_wanted));
        if let Err(why) = begun {
            self.in_force.refuse(&why);
            self.waiters.answer(&Err(why));
        }
    }

    /// Applies the configuration that was loaded, or reports why there is none.
    fn take_over(&mut self, ended: Ended<Candidate>) {
        let result = ended.result.map(|candidate| {
            self.in_force.apply(candidate);
            let config = self.in_force.config();
            self.certificates.set(config.server.tls.as_ref());
            config
        });
        if let Err(why) = &result {
            self.in_force.refuse(why);
        }
        self.waiters.answer(&result);
        if ended.is_due {
            self.waiters.advance();
            self.reload();
        }
    }

    /// Begins to read the files of the certificates in force again, and no other file: what else has changed in the
    /// configuration waits until a reload is asked for.
    fn reload_certificates(&mut self) {
        let Some(tls) = self.in_force.config().server.tls.clone() else { return };
        let begun = self.tls_reloads.begin(move |_| tls.read_again().map_err(|error| error.to_string().into()));
        if let Err(why) = begun {
            self.in_force.refuse(&why);
        }
    }

    fn take_over_certificates(&mut self, ended: Ended<Tls>) {
        match ended.result {
            Ok(tls) => self.in_force.apply_certificates(tls),
            Err(why) => self.in_force.refuse(&why),
        }
        if ended.is_due {
            self.reload_certificates();
        }
    }
}

/// Stops to accept connections and waits for the requests in flight. Returns whether all of them have ended in time.
async fn drain(
    server: &config::Server,
    stage: &watch::Sender<Stage>,
    finished: &mut mpsc::Receiver<io::Result<usize>>,
) -> io::Result<bool> {
    let (delay, deadline) = (server.drain_delay, server.drain_timeout);
    if !delay.is_zero() {
        // Load balancers notice that the gateway is not ready before connections are refused.
        tracing::info!(?delay, "not ready");
        sleep(delay).await;
    }
    tracing::info!(?deadline, "draining");
    let _ = stage.send(Stage::Draining);
    match timeout(deadline, all_ended(finished, &mut 0)).await {
        Ok(ended) => ended.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Waits for all workers and adds up how many requests they have cut off. If one fails, the others still finish theirs.
async fn all_ended(finished: &mut mpsc::Receiver<io::Result<usize>>, cut_off: &mut usize) -> io::Result<()> {
    let mut all = Ok(());
    while let Some(ended) = finished.recv().await {
        all = all.and(ended.map(|requests| *cut_off += requests));
    }
    all
}

/// Waits until the process is told to stop. A reload is ignored, because it is too late for it.
async fn told_to_stop(signals: &mut Signals) {
    while signals.next().await == Told::Reload {
        tracing::warn!("not reloaded: the gateway is about to stop");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_what_happened() {
        assert!(whole(|| Ok(())).is_ok());
        assert_eq!(whole::<()>(|| Err(io::Error::other("no timer"))).unwrap_err().to_string(), "no timer");
        let panics: [fn() -> io::Result<()>; 2] = [|| panic!("a bug"), || panic!("a bug in {}", "here")];
        let texts = panics.map(|panic| whole(panic).unwrap_err().to_string());
        assert_eq!(texts, ["it panicked: a bug", "it panicked: a bug in here"]);
    }
}
