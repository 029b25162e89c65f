//! The control thread: signals, reloads, the sweep of the store, and the drain at the end.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep, timeout};

use super::apply::{Candidate, InForce, tell_of_gateways};
use super::counters_file;
use super::file_watch::Watches;
use super::overrides;
use super::reload::{Cause, Ended, Polls, Reloads, Waiters};
use super::service_manager::{self, Watchdog};
use super::signals::{SignalAction, Signals};
use super::workers::{Finished, Workers};
use super::{StartError, Stopped};
use crate::admin::{OverrideRequest, ReloadAnswer};
use crate::base::clock::{self, Time};
use crate::base::metrics::{Counter, PerWorker};
use crate::config::{self, Config, ReloadError, Tls};
use crate::proxy::log::LineWriter;
use crate::proxy::shed::ShedWatch;
use crate::server::Stage;
use crate::store::Counters;

/// For certificates that expire soon.
const LOOK_EVERY: Duration = Duration::from_secs(86_400);

/// The memory store is swept for keys without effect, all of it in so many steps.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_STEPS: usize = 30;
/// How long workers may take to report how many requests they have cut off.
const OVER_LIMIT: Duration = Duration::from_secs(1);
/// How long the process sends notices at its end.
const NOTICES_LIMIT: Duration = Duration::from_secs(2);
/// How long the process waits at its end for spans that are not exported yet.
const EXPORT_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Control {
    pub(super) in_force: InForce,
    pub(super) reloads: Reloads<Option<Candidate>>,
    pub(super) polls: Polls,
    /// Reloads that the admin API requests.
    pub(super) requested: mpsc::Receiver<ReloadAnswer>,
    pub(super) waiters: Waiters,
    /// Changes of overrides that the admin API requests.
    pub(super) overrides: mpsc::Receiver<OverrideRequest>,
    pub(super) watches: Watches,
    pub(super) watchdog: Watchdog,
    /// Each worker adds one every second.
    pub(super) heartbeats: Arc<PerWorker<Counter>>,
    /// `None` if the access log goes where the log goes.
    pub(super) access_log: Option<LineWriter>,
    pub(super) reloading_since: Time,
    pub(super) tls_reloads: Reloads<[Option<Tls>; 3]>,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) finished: Finished,
    pub(super) signals: Signals,
}

impl Control {
    pub(super) async fn run(mut self) -> Result<Stopped, StartError> {
        self.in_force.stores.open(&self.in_force.view.snapshot.load().store);
        let (watch, snapshot) = (self.in_force.view.shared.upstream_watch(), self.in_force.view.snapshot.clone());
        spawn_local(watch.run(move || snapshot.load().upstreams.clone()));
        let (workers, snapshot) = (self.in_force.view.shared.workers, self.in_force.view.snapshot.clone());
        spawn_local(ShedWatch::new(workers).run(move || snapshot.load().shedding.clone()));
        let acme = self.in_force.view.acme.clone();
        let (view, looked_up) = (self.in_force.view.clone(), Rc::new(Notify::new()));
        tell_of_gateways(1, &view.config.load(), &view.shared);
        let (gateways, tell) = (view.shared.gateways.clone(), looked_up.clone());
        spawn_local(async move {
            gateways.watch(|| view.config.load().store.share().cloned(), || tell.notify_one()).await;
        });
        let mut sweep = interval(SWEEP_EVERY);
        // Reading a configuration warns of them already.
        let mut expiry = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        let mut check = self.watchdog.check_every().map(interval);
        let mut poll =
            self.in_force.source.remote().map(|remote| interval_at(Instant::now() + remote.every, remote.every));
        poll.iter_mut().for_each(|poll| poll.set_missed_tick_behavior(MissedTickBehavior::Delay));
        service_manager::ready();
        let ended = loop {
            tokio::select! {
                told = self.signals.next() => match told {
                    SignalAction::Reload => self.reload(),
                    SignalAction::Reopen => reopen(self.access_log.as_ref()),
                    SignalAction::Stop => break None,
                },
                Some(answer) = self.requested.recv() => {
                    self.waiters.add(answer, self.reloads.is_running());
                    self.reload();
                }
                ended = self.reloads.ended() => self.take_over(ended),
                requests = overrides::due(&mut self.overrides, &self.in_force.view.temporary) => {
                    overrides::apply(requests, &self.in_force);
                }
                () = looked_up.notified() => self.in_force.share_again(),
                () = acme.changed() => self.in_force.use_issued(),
                () = self.watches.certificates.changed() => self.reload_certificates(),
                () = self.watches.config.changed() => self.reload(),
                Some(_) = OptionFuture::from(poll.as_mut().map(Interval::tick)) => self.poll(),
                ended = self.tls_reloads.ended() => self.take_over_certificates(ended),
                _ = expiry.tick() => warn_of_expiry(&self.in_force.config(), clock::now()),
                _ = sweep.tick() => self.sweep(),
                Some(_) = OptionFuture::from(check.as_mut().map(Interval::tick)) => self.watchdog.check(&self.heartbeats),
                Some(ended) = self.finished.recv() => break Some(ended),
            }
        };
        self.stop(ended).await
    }

    /// Drains, and writes what has to be written before the process ends. If a worker has ended already, the others still
    /// finish their requests.
    async fn stop(self, ended: Option<(usize, io::Result<usize>)>) -> Result<Stopped, StartError> {
        let Control { mut in_force, stage, finished, mut signals, requested, waiters, overrides, access_log, .. } =
            self;
        service_manager::stopping();
        // Callers that wait for a reload or an override learn that there will be none.
        drop((requested, waiters, overrides));
        // No reload needs these sockets any more. They must not keep connections that no worker will accept.
        in_force.listeners.open.inherited = Arc::default();
        let InForce { view, stores, .. } = in_force;
        view.readiness.stopping.store(true, Ordering::Relaxed);
        let config = view.config.load_full();
        let mut workers = Workers::new(view.shared.workers, finished);
        if let Some((worker, ended)) = ended {
            workers.end(worker, ended.and_then(|_| Err(io::Error::other("it was not told to stop"))));
        }
        let drained = tokio::select! {
            drained = drain(&config.server, &stage, &mut workers) => Some(drained),
            () = told_to_stop(&mut signals, access_log.as_ref()) => None,
        };
        if drained != Some(true) {
            let _ = stage.send(Stage::Over);
            // A worker that hangs must not keep the process from ending.
            let _ = timeout(OVER_LIMIT, workers.all_served()).await;
        }
        let write = async {
            // The store remembers which of them were sent.
            view.shared.notices.finish(NOTICES_LIMIT).await;
            stores.close().await;
            let _ = timeout(OVER_LIMIT, workers.all_ended()).await;
            counters_file::save(&config.store, &view.snapshot.load_full(), &view.shared).await;
            view.shared.exporters.finish(EXPORT_LIMIT).await;
        };
        let is_written = tokio::select! {
            () = write => true,
            () = told_to_stop(&mut signals, access_log.as_ref()) => false,
            () = sleep(OVER_LIMIT), if drained.is_none() => false,
        };
        let requests = workers.cut_off;
        match drained {
            Some(_) if !is_written => tracing::warn!("stopped at once by a second signal: not everything is written"),
            Some(true) => tracing::info!("stopped"),
            Some(false) => tracing::warn!(requests, "stopped: drain_timeout is over, requests in flight were cut off"),
            None => tracing::warn!(requests, "stopped at once by a second signal: requests in flight were cut off"),
        }
        let stopped = if drained.is_some() && is_written { Stopped::Drained } else { Stopped::AtOnce };
        workers.failed.map_or(Ok(stopped), |error| Err(StartError::Worker(error)))
    }

    fn sweep(&self) {
        // Log the failures of upstreams that are not logged yet.
        self.in_force.view.shared.upstreams.all().iter().for_each(|upstream| upstream.report(clock::now()));
        if let Counters::Memory(memory) = &self.in_force.view.snapshot.load().store.counters {
            memory.sweep(SWEEP_STEPS, clock::now());
        }
    }

    fn reload(&mut self) {
        service_manager::reloading();
        self.load(Cause::Asked);
    }

    fn poll(&mut self) {
        // The current reload asks the source, too.
        if !self.reloads.is_running() {
            self.load(Cause::Poll);
        }
    }

    /// In another thread.
    fn load(&mut self, cause: Cause) {
        self.reloading_since = clock::now();
        let (source, running) = (self.in_force.source.clone(), self.in_force.config());
        let (view, listeners) = (self.in_force.view.clone(), self.in_force.listeners.open.clone());
        let load =
            move |is_wanted: &dyn Fn() -> bool| Candidate::load(&source, cause, &running, &listeners, &view, is_wanted);
        let was_running = self.reloads.is_running();
        match self.reloads.begin(load) {
            Ok(()) if was_running => {}
            Ok(()) => self.polls.cause = cause,
            Err(why) => {
                self.refuse(cause, &why);
                if cause == Cause::Asked {
                    service_manager::ready();
                }
                self.waiters.answer(&Err(why));
            }
        }
    }

    fn take_over(&mut self, ended: Ended<Option<Candidate>>) {
        let result = ended.result.map(|candidate| {
            match candidate {
                Some(candidate) => {
                    self.in_force.apply(candidate);
                    // The certificates that are being read may belong to the previous configuration.
                    if self.tls_reloads.is_running() {
                        self.reload_certificates();
                    }
                }
                None => self.in_force.recover(),
            }
            self.polls.last_refusal = None;
            self.in_force.config()
        });
        self.watches.set(&self.in_force.config(), result.as_ref().err(), self.reloading_since);
        if let Err(why) = &result {
            self.refuse(self.polls.cause, why);
        }
        if self.polls.cause == Cause::Asked {
            service_manager::ready();
        }
        self.waiters.answer(&result);
        if ended.is_due {
            self.waiters.advance();
            self.reload();
        }
    }

    /// Records a refusal, unless the last poll has reported the same.
    fn refuse(&mut self, cause: Cause, why: &ReloadError) {
        if let Some(remote) = self.in_force.source.remote() {
            remote.refused();
        }
        if self.polls.is_new(cause, why) {
            self.in_force.refuse(why);
        }
    }

    /// Begins to read the files of the certificates in force again, and no other file: other changes wait for a reload.
    fn reload_certificates(&mut self) {
        let config = self.in_force.config();
        let begun = self.tls_reloads.begin(move |_| {
            let [server, decisions, admin] = config.tls().map(|tls| tls.map(Tls::read_again).transpose());
            let all = server.and_then(|server| Ok([server, decisions?, admin?]));
            all.map_err(|error| error.to_string().into())
        });
        if let Err(why) = begun {
            self.in_force.refuse_certificates(&why);
        }
    }

    fn take_over_certificates(&mut self, ended: Ended<[Option<Tls>; 3]>) {
        match ended.result {
            Ok(tls) => self.in_force.apply_certificates(tls),
            // Certificates that are no longer in force do not matter.
            Err(_) if ended.is_due || self.in_force.config().tls() == [None; 3] => {}
            Err(why) => self.in_force.refuse_certificates(&why),
        }
        if ended.is_due {
            self.reload_certificates();
        }
    }
}

/// Stops accepting connections and waits for the requests in flight. Returns whether all of them have ended in time.
async fn drain(server: &config::Server, stage: &watch::Sender<Stage>, workers: &mut Workers) -> bool {
    let (delay, deadline) = (server.drain_delay, server.drain_timeout);
    if !delay.is_zero() {
        // Load balancers must notice that the gateway is not ready before connections are refused.
        tracing::info!(?delay, "not ready");
        sleep(delay).await;
    }
    tracing::info!(?deadline, "draining");
    let _ = stage.send(Stage::Draining);
    timeout(deadline, workers.all_served()).await.is_ok()
}

/// It is too late for a reload.
async fn told_to_stop(signals: &mut Signals, access_log: Option<&LineWriter>) {
    loop {
        match signals.next().await {
            SignalAction::Reload => tracing::warn!("not reloaded: the gateway is about to stop"),
            SignalAction::Reopen => reopen(access_log),
            SignalAction::Stop => return,
        }
    }
}

fn reopen(access_log: Option<&LineWriter>) {
    if access_log.is_some_and(LineWriter::reopen) {
        tracing::info!("the access log is opened again for its next line");
    } else {
        tracing::info!(signal = "SIGUSR1", "the signal is ignored: there is no log.access_file");
    }
}

fn warn_of_expiry(config: &Config, now: Time) {
    // A certificate that an authority issues renews itself, and a failure of that is logged elsewhere.
    let issued = config.server.tls.as_ref().and_then(Tls::issued);
    for identity in config.identities().into_iter().filter(|identity| Some(*identity) != issued) {
        let left = identity.not_after.seconds().saturating_sub(now.seconds());
        if identity.expires_soon(now) {
            let certificate = identity.file.as_str();
            tracing::warn!(certificate, days_left = left / 86_400, "a certificate expires soon");
        }
    }
}
