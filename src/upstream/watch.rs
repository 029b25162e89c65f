//! What one thread does for the endpoints of all workers: it checks them, ends their ejections, and looks up the names of
//! servers again.
//!
//! One task in the control thread does this, so no work is done twice, and a check that hangs delays no request. A check uses a
//! connection of its own, so it also finds a server that accepts no more of them.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, Method, header};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::Upstream;
use super::delivery::{Connections, Delivery};
use super::endpoint::{Endpoint, Endpoints};
use super::error::{Failed, UpstreamError};
use super::exchange::BodySource;
use super::health::Availability;
use super::request::{ForwardedInfo, Progress, RequestHead, UpstreamRequest};
use crate::base::back_off::jittered;
use crate::base::clock;
use crate::config::HealthCheck;
use crate::net::Names;

const TICK: Duration = Duration::from_millis(100);

/// Must run on a thread's local runtime.
pub struct UpstreamWatch {
    names: Arc<Names>,
    endpoints: Arc<Endpoints>,
    /// When each endpoint is checked next, by its id; `None` while a check is in progress.
    checks: HashMap<usize, Option<Instant>>,
    /// When each name is looked up next; `None` while a lookup is in progress.
    lookups: HashMap<String, Option<Instant>>,
    in_progress: JoinSet<Ended>,
}

enum Ended {
    /// The check of the endpoint with this id, which is checked again after this time.
    Check(usize, Duration),
    Lookup(String),
}

impl UpstreamWatch {
    /// `names` and `endpoints` are those of all upstreams.
    pub fn new(names: Arc<Names>, endpoints: Arc<Endpoints>) -> Self {
        Self { names, endpoints, checks: HashMap::new(), lookups: HashMap::new(), in_progress: JoinSet::new() }
    }

    /// Watches the upstreams in force. Never returns.
    pub async fn run(mut self, in_force: impl Fn() -> Vec<Arc<Upstream>>) {
        let mut ticks = interval(TICK);
        loop {
            let upstreams = in_force();
            tokio::select! {
                _ = ticks.tick() => self.tick(&upstreams),
                Some(Ok(ended)) = self.in_progress.join_next() => self.take(ended, &upstreams),
            }
        }
    }

    fn tick(&mut self, upstreams: &[Arc<Upstream>]) {
        for upstream in upstreams {
            upstream.advance();
            self.check(upstream);
            self.look_up(upstream);
        }
        let ids: HashSet<_> = upstreams.iter().flat_map(|upstream| upstream.keeps()).map(|(id, _)| id).collect();
        self.checks.retain(|id, _| ids.contains(id));
        let wanted: HashSet<_> = upstreams.iter().flat_map(|upstream| upstream.servers.names()).collect();
        self.lookups.retain(|name, _| wanted.contains(name.as_str()));
        self.names.retain(|name| wanted.contains(name));
        self.endpoints.drop_unused();
    }

    fn check(&mut self, upstream: &Arc<Upstream>) {
        let Some(rules) = &upstream.config.health else { return };
        for weighted in upstream.balancer.endpoints() {
            let id = weighted.endpoint.id;
            if !begins(self.checks.entry(id).or_insert_with(|| Some(Instant::now()))) {
                continue;
            }
            let (upstream, rules) = (upstream.clone(), rules.clone());
            self.in_progress.spawn_local(async move {
                let checked = check(&upstream, &weighted.endpoint, &rules).await;
                checked.iter().for_each(|checked| upstream.checked(&weighted.endpoint, checked));
                Ended::Check(id, rules.interval)
            });
        }
    }

    fn look_up(&mut self, upstream: &Upstream) {
        for name in upstream.servers.names() {
            if begins(self.lookups.entry(name.to_owned()).or_insert_with(|| Some(Instant::now()))) {
                let (name, names) = (name.to_owned(), self.names.clone());
                self.in_progress.spawn_local(async move {
                    names.look_up(&name).await;
                    Ended::Lookup(name)
                });
            }
        }
    }

    fn take(&mut self, ended: Ended, upstreams: &[Arc<Upstream>]) {
        let now = Instant::now();
        match ended {
            Ended::Check(id, interval) => {
                // Checks of many endpoints that began together do not stay together.
                self.checks.insert(id, Some(now + jittered(interval, 0.1)));
            }
            Ended::Lookup(name) => {
                let of = upstreams.iter().filter(|upstream| upstream.servers.names().any(|other| other == name));
                let used = |upstream: &Arc<Upstream>| {
                    upstream.resolved();
                    upstream.config.resolve_every
                };
                if let Some(every) = of.map(used).min() {
                    self.lookups.insert(name, Some(now + every));
                }
            }
        }
    }
}

/// Whether something begins that is `due`; it has no such time while it is in progress.
fn begins(due: &mut Option<Instant>) -> bool {
    due.take_if(|due| *due <= Instant::now()).is_some()
}

impl Upstream {
    fn advance(&self) {
        let now = clock::monotonic();
        self.state.observe(now);
        let served = self.balancer.served_lately(now);
        for weighted in self.balancer.endpoints() {
            if let Some(bounds) = self.config.overload.adaptive {
                let state = &weighted.endpoint.state;
                state.adaptive.advance(&state.load, bounds, now);
            }
            self.change(&weighted.endpoint, "its ejection has ended", |endpoint| {
                endpoint.state.advance(self.config.health.is_some(), served, now);
            });
        }
        // Another snapshot with the same endpoints may have changed them.
        self.balancer.refresh();
        // A server may have room now although no request has ended.
        self.state.has_room();
    }

    fn checked(&self, endpoint: &Arc<Endpoint>, result: &Result<(), String>) {
        let Some(rules) = &self.config.health else { return };
        if let Err(why) = result {
            tracing::debug!(upstream = self.config.name, server = %endpoint, why, "a check has failed");
        }
        let why = result.as_ref().err().map_or("its check succeeds", String::as_str);
        self.change(endpoint, why, |endpoint| endpoint.state.checked(result.is_ok(), rules, clock::monotonic()));
        self.balancer.refresh();
    }

    /// Changes the state of an endpoint, and logs if it begins or ceases to get requests.
    fn change(&self, endpoint: &Endpoint, why: &str, change: impl FnOnce(&Endpoint)) {
        let before = endpoint.state.availability();
        change(endpoint);
        let after = endpoint.state.availability();
        if before == after {
            return;
        }
        // Whoever reads the line can rely on it.
        self.balancer.refresh();
        if after == Availability::Available {
            tracing::info!(upstream = self.config.name, server = %endpoint, was = before.name(), why, "a server gets requests");
        } else {
            tracing::warn!(upstream = self.config.name, server = %endpoint, is = after.name(), why, "a server gets no requests");
        }
    }

    /// Uses the known addresses of its servers' names.
    pub fn resolved(&self) {
        let endpoints = self.servers.endpoints();
        let ids =
            |all: &[super::balancer::Weighted]| all.iter().map(|weighted| weighted.endpoint.id).collect::<Vec<_>>();
        if ids(&endpoints) != ids(&self.balancer.endpoints()) {
            self.balancer.set(endpoints);
        }
    }
}

const USER_AGENT: HeaderValue = HeaderValue::from_static("gateway-health-check");

/// Sends the request of a check. `None` if this machine cannot, which says nothing about the endpoint. The error says why the
/// endpoint is not healthy.
async fn check(upstream: &Upstream, endpoint: &Arc<Endpoint>, rules: &HealthCheck) -> Option<Result<(), String>> {
    let mut headers = HeaderMap::new();
    headers.insert(header::USER_AGENT, USER_AGENT);
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    let head = RequestHead {
        method: &Method::GET,
        target: &rules.path,
        headers: &headers,
        preserve_host: false,
        forwarded: ForwardedInfo::OWN,
        changes: None,
        asks_for_websocket: false,
    };
    let progress = Progress::default();
    let request =
        UpstreamRequest { head, body: None, timeout: None, client: None, response_changes: None, progress: &progress };
    // No connection of other requests is used, and none is kept.
    let connections = Connections { pools: &Rc::default(), bound: &Rc::default() };
    let delivery = Delivery { upstream, connections, request: &request };
    let (mut response, mut body) = (HeaderMap::new(), BodySource::new(None, None));
    let sent = async {
        let connection = delivery.open(endpoint).await?;
        delivery.exchange(connection, endpoint, None, &[], &mut body, &mut response).await
    };
    Some(match timeout(rules.timeout, sent).await {
        Ok(Ok((status, _))) if rules.statuses.iter().any(|good| good.contains(&status.as_u16())) => Ok(()),
        Ok(Ok((status, _))) => Err(format!("its status is {}", status.as_u16())),
        Ok(Err(Failed { error: UpstreamError::Exhausted(error), .. })) => {
            tracing::debug!(server = %endpoint, %error, "a server cannot be checked");
            return None;
        }
        Ok(Err(failed)) => Err(failed.error.to_string()),
        Err(_) => Err(format!("no answer within {:?}", rules.timeout)),
    })
}
