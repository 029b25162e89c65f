//! What outlives a reload: the counters of routes, limits and upstreams, and the connections in their pools.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Snapshot;
use crate::base::concurrency::ConcurrencyLimiter;
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::PerWorker;
use crate::net::Names;
use crate::proxy::shed::Meter;
use crate::proxy::telemetry::{RouteMetrics, UpstreamFailures};
use crate::request::decide::{BanLimits, LimitMetrics, Strikes, WaitQueues};
use crate::request::identify::tokens::JwtMetrics;
use crate::sources::gateways::Gateways;
use crate::sources::jwks::KeySources;
use crate::sources::notices::Notices;
use crate::sources::otlp::Exporters;
use crate::sources::quotas::{LimitSource, QuotaSources};
use crate::upstream::{Endpoints, UpstreamWatch};

pub struct SharedState {
    pub workers: usize,
    pub(super) routes: Mutex<BTreeMap<String, Arc<RouteMetrics>>>,
    pub(super) limits: Mutex<BTreeMap<String, Arc<LimitMetrics>>>,
    pub(super) upstreams: Mutex<BTreeMap<String, Arc<UpstreamFailures>>>,
    pub(super) tokens: Mutex<BTreeMap<String, Arc<JwtMetrics>>>,
    pub key_sources: Arc<KeySources>,
    pub quota_sources: Arc<QuotaSources>,
    pub exporters: Exporters,
    pub notices: Notices,
    /// By the name of the upstream; empty for the routes without.
    pub(super) meters: Mutex<BTreeMap<String, Arc<Meter>>>,
    pub(super) endpoints: Arc<Endpoints>,
    echo: OnceLock<SocketAddr>,
    /// The file with saved counters that could not be read at the start, if any.
    pub unread_counters: Mutex<Option<PathBuf>>,
    pub names: Arc<Names>,
    /// What is known about the gateways that share the limits.
    pub gateways: Arc<Gateways>,
    pub(super) concurrency: Arc<ConcurrencyLimiter>,
    pub wait_queues: Arc<WaitQueues>,
    pub(super) strikes: Arc<Strikes>,
}

impl SharedState {
    pub fn new(workers: usize, upstream_connections: usize) -> Self {
        Self {
            workers,
            routes: Mutex::default(),
            limits: Mutex::default(),
            upstreams: Mutex::default(),
            meters: Mutex::default(),
            tokens: Mutex::default(),
            key_sources: Arc::default(),
            quota_sources: Arc::default(),
            exporters: Exporters::default(),
            notices: Notices::default(),
            endpoints: Arc::new(Endpoints::new(workers, upstream_connections)),
            echo: OnceLock::new(),
            unread_counters: Mutex::default(),
            names: Arc::new(Names::new("a server")),
            gateways: Arc::default(),
            concurrency: Arc::default(),
            wait_queues: Arc::default(),
            strikes: Arc::default(),
        }
    }

    /// Makes this process forget the ban of a key of the limit with this name, and its refusals.
    pub fn forget_ban(&self, name: &str, ban: &BanLimits, key: Fingerprint) {
        self.strikes.forget(&ban.strikes, key);
        let limit = self.limits.lock().get(name).cloned();
        limit.iter().for_each(|limit| limit.bans.iter().for_each(|known| known.forget(key)));
    }

    pub fn echo(&self) -> Option<SocketAddr> {
        self.echo.get().copied()
    }

    /// Records where the built-in echo server listens. It is started only once.
    pub fn set_echo(&self, address: SocketAddr) {
        let _ = self.echo.set(address);
    }

    pub fn routes(&self) -> Vec<Arc<RouteMetrics>> {
        self.routes.lock().values().cloned().collect()
    }

    pub fn limits(&self) -> Vec<Arc<LimitMetrics>> {
        self.limits.lock().values().cloned().collect()
    }

    pub fn upstreams(&self) -> Vec<Arc<UpstreamFailures>> {
        self.upstreams.lock().values().cloned().collect()
    }

    pub fn tokens(&self) -> Vec<Arc<JwtMetrics>> {
        self.tokens.lock().values().cloned().collect()
    }

    pub(super) fn token(&self, name: &str) -> Arc<JwtMetrics> {
        let new = || Arc::new(JwtMetrics { name: name.to_owned(), workers: PerWorker::new(self.workers) });
        self.tokens.lock().entry(name.to_owned()).or_insert_with(new).clone()
    }

    pub(super) fn route(&self, name: &str) -> Arc<RouteMetrics> {
        let new = || Arc::new(RouteMetrics { name: name.to_owned(), workers: PerWorker::new(self.workers) });
        self.routes.lock().entry(name.to_owned()).or_insert_with(new).clone()
    }

    pub(super) fn limit(&self, name: &str) -> Arc<LimitMetrics> {
        let new = || Arc::new(LimitMetrics::new(name, self.workers));
        self.limits.lock().entry(name.to_owned()).or_insert_with(new).clone()
    }

    pub(super) fn failures(&self, name: &str) -> Arc<UpstreamFailures> {
        let new = || Arc::new(UpstreamFailures::new(name.to_owned(), self.workers));
        self.upstreams.lock().entry(name.to_owned()).or_insert_with(new).clone()
    }

    pub(super) fn meter(&self, upstream: &str) -> Arc<Meter> {
        let new = || Arc::new(Meter::new(upstream.to_owned(), self.workers));
        self.meters.lock().entry(upstream.to_owned()).or_insert_with(new).clone()
    }

    pub fn upstream_watch(&self) -> UpstreamWatch {
        UpstreamWatch::new(self.names.clone(), self.endpoints.clone())
    }

    /// Puts the sources of this snapshot in force, instead of the previous ones, except those of notices.
    pub fn apply_sources(&self, gateway: &Snapshot) {
        self.key_sources.replace(gateway.key_sources.clone());
        LimitSource::apply(&self.quota_sources, &gateway.quota_sources);
        self.exporters.apply(gateway.tracing.as_ref().map(|tracing| tracing.exporter.clone()));
    }

    /// Drops what the snapshot in force does not have: counters of routes, limits, upstreams and tokens, and the keys of
    /// issuers. Servers are dropped when they are no longer used.
    pub fn keep_only(&self, gateway: &Snapshot) {
        let limits = || gateway.served.iter().flat_map(|route| route.limits.iter());
        let routes = gateway.served.iter().map(|route| &route.metrics).chain([&gateway.unrouted]);
        let routes: BTreeSet<_> = routes.map(|metrics| metrics.name.as_str()).collect();
        let limits: BTreeSet<_> = limits().map(|route_limit| route_limit.metrics.name.as_str()).collect();
        let failures = gateway.served.iter().filter_map(|route| route.failures.as_ref());
        let upstreams: BTreeSet<_> = failures.map(|failures| failures.name.as_str()).collect();
        self.routes.lock().retain(|name, _| routes.contains(name.as_str()));
        self.limits.lock().retain(|name, _| limits.contains(name.as_str()));
        self.upstreams.lock().retain(|name, _| upstreams.contains(name.as_str()));
        self.tokens.lock().retain(|name, _| gateway.key_sources.iter().any(|source| source.name == *name));
        self.apply_sources(gateway);
        let meters = gateway.shedding.as_ref().map_or(&[][..], |shedding| &shedding.meters);
        self.meters.lock().retain(|name, _| meters.iter().any(|meter| meter.name == *name));
    }
}
