//! What outlives a reload: the counters of routes, limits and upstreams, and the connections in their pools.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Snapshot;
use crate::base::concurrency::ConcurrencyLimiter;
use crate::base::fingerprint::Fingerprint;
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
    pub routes: ByName<RouteMetrics>,
    pub limits: ByName<LimitMetrics>,
    pub upstreams: ByName<UpstreamFailures>,
    pub tokens: ByName<JwtMetrics>,
    pub key_sources: Arc<KeySources>,
    pub quota_sources: Arc<QuotaSources>,
    pub exporters: Exporters,
    pub notices: Notices,
    /// By the name of the upstream; empty for the routes without.
    pub(super) meters: ByName<Meter>,
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

/// What is counted for routes, limits and others, by their names.
pub struct ByName<T> {
    workers: usize,
    known: Mutex<BTreeMap<String, Arc<T>>>,
}

impl<T> ByName<T> {
    fn new(workers: usize) -> Self {
        Self { workers, known: Mutex::default() }
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.known.lock().values().cloned().collect()
    }

    /// The one with this name, or a `new` one for all workers.
    pub(super) fn get(&self, name: &str, new: impl FnOnce(String, usize) -> T) -> Arc<T> {
        let new = || Arc::new(new(name.to_owned(), self.workers));
        self.known.lock().entry(name.to_owned()).or_insert_with(new).clone()
    }

    fn retain(&self, is_used: impl Fn(&str) -> bool) {
        self.known.lock().retain(|name, _| is_used(name));
    }
}

impl SharedState {
    pub fn new(workers: usize, upstream_connections: usize) -> Self {
        Self {
            workers,
            routes: ByName::new(workers),
            limits: ByName::new(workers),
            upstreams: ByName::new(workers),
            meters: ByName::new(workers),
            tokens: ByName::new(workers),
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
        let limit = self.limits.known.lock().get(name).cloned();
        limit.iter().for_each(|limit| limit.bans.iter().for_each(|known| known.forget(key)));
    }

    pub fn echo(&self) -> Option<SocketAddr> {
        self.echo.get().copied()
    }

    /// Records where the built-in echo server listens. It is started only once.
    pub fn set_echo(&self, address: SocketAddr) {
        let _ = self.echo.set(address);
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
        self.routes.retain(|name| routes.contains(name));
        self.limits.retain(|name| limits.contains(name));
        self.upstreams.retain(|name| upstreams.contains(name));
        self.tokens.retain(|name| gateway.key_sources.iter().any(|source| source.name == name));
        self.apply_sources(gateway);
        let meters = gateway.shedding.as_ref().map_or(&[][..], |shedding| &shedding.meters);
        self.meters.retain(|name| meters.iter().any(|meter| meter.name == name));
    }
}
