//! The snapshot: everything that serves requests by one configuration. Immutable; a reload replaces it as a whole.

mod pools;
mod shared_state;

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::base::concurrency::ConcurrencyLimiter;
use crate::base::fingerprint::Fingerprint;
use crate::base::http::trace_context::{SampleShare, Sampling};
use crate::base::metrics::PerWorker;
use crate::config::{self, AccessLog, Config, OnError, Redirect, SentPath};
use crate::proxy::own_origins::OwnOrigins;
use crate::proxy::respond::cors::CorsPolicy;
use crate::proxy::respond::rate_limit_headers::RateLimitHeaders;
use crate::proxy::shed::{Meter, RouteShedding, Shedding};
use crate::proxy::telemetry::{RouteMetrics, UpstreamFailures};
use crate::request::decide::{
    BanRule, LimitMetrics, RateSelector, RateTable, RouteLimit, TemporaryOverrides, WaitQueues,
};
use crate::request::descriptors::DescriptorRules;
use crate::request::identify::ambiguity::SingleSources;
use crate::request::identify::body::BodyInspector;
use crate::request::identify::tokens::{JwtMetrics, TokenReader};
use crate::request::identify::{KeyCache, KeyExtractor, RequestAttributes};
use crate::request::resolve::Resolver;
use crate::request::route::{self, PreparedChanges};
use crate::sources::jwks::KeySource;
use crate::sources::notices::{self, Receivers};
use crate::sources::otlp::Exporter;
use crate::sources::quotas::LimitSource;
use crate::store::{LimitChanges, Store};
use crate::upstream::{Keeps, Upstream};

use pools::Pools;
pub use shared_state::SharedState;

/// The name under which requests without a route are counted.
pub const NO_ROUTE: &str = "none";

pub struct Snapshot {
    pub resolver: Resolver,
    /// The routes, by the index that the resolver finds, and then the compiled rules about descriptors.
    pub served: Vec<CompiledRoute>,
    pub descriptors: DescriptorRules,
    pub limits: Vec<Arc<RateTable>>,
    pub unrouted: Arc<RouteMetrics>,
    pub upstreams: Vec<Arc<Upstream>>,
    pub key_sources: Vec<Arc<KeySource>>,
    pub quota_sources: Vec<LimitSource>,
    pub notices: Receivers,
    pub forwarded: bool,
    /// The longest time for which a client may send nothing of an incomplete body.
    pub body_timeout: Option<Duration>,
    /// The most memory of one worker for bodies that it reads before decisions, in bytes.
    pub inspect_memory: usize,
    /// The status by which other proxies learn that a limit refuses a request.
    pub refused_status: StatusCode,
    pub access_log: AccessLog,
    pub store: Arc<Store>,
    pub on_error: OnError,
    pub concurrency: Arc<ConcurrencyLimiter>,
    pub wait_queues: Arc<WaitQueues>,
    /// `None` if requests are never shed.
    pub shedding: Option<Arc<Shedding>>,
    /// `None` if requests are not traced.
    pub tracing: Option<Tracing>,
}

#[derive(Clone, Debug)]
pub struct Tracing {
    pub share: SampleShare,
    pub exporter: Arc<Exporter>,
}

pub struct CompiledRoute {
    pub metrics: Arc<RouteMetrics>,
    pub path: String,
    /// The sources of its keys and costs, which a request may have only once.
    pub single: Arc<SingleSources>,
    /// The tokens that its limits or its upstream use.
    pub tokens: Vec<Arc<TokenReader>>,
    pub limits: RouteLimits,
    pub action: Action,
    /// In bytes.
    pub max_body_size: u64,
    /// Reads bodies before the decision. `None` if its limits need nothing from them.
    pub inspector: Option<Box<BodyInspector>>,
    /// The longest time in which a client sends no more of a body or reads nothing of a response; `None` is no limit.
    pub body_timeout: Option<Duration>,
    /// The longest time until the head of the response arrives, instead of that of its upstream.
    pub timeout: Option<Duration>,
    pub request_headers: Option<Box<PreparedChanges>>,
    pub response_headers: Option<Box<PreparedChanges>>,
    pub cors: Option<Box<CorsPolicy>>,
    /// The key by which its upstream chooses a server, if it does so by keys.
    pub balance_key: Option<KeyExtractor>,
    pub failures: Option<Arc<UpstreamFailures>>,
    /// `None` if its requests are never shed.
    pub shedding: Option<Box<RouteShedding>>,
}

/// The limits that decide about a request, and what they tell clients.
pub struct RouteLimits {
    limits: Vec<RouteLimit>,
    /// Whether one of them has a source of quotas.
    pub has_quotas: bool,
    pub headers: Arc<RateLimitHeaders>,
}

impl RouteLimits {
    pub fn new(limits: Vec<RouteLimit>, headers: RateLimitHeaders) -> Self {
        Self { has_quotas: limits.iter().any(|limit| limit.quotas.is_some()), limits, headers: Arc::new(headers) }
    }

    /// Limits that are asked as if they were those of one route. Each is told to clients as the one at a place among others.
    pub fn joined<'a>(asked: impl Iterator<Item = (&'a Self, usize, RouteLimit)>) -> Self {
        let (told, limits): (Vec<_>, _) = asked.map(|(of, place, limit)| ((&*of.headers, place), limit)).unzip();
        Self::new(limits, RateLimitHeaders::joined(told))
    }
}

impl Deref for RouteLimits {
    type Target = [RouteLimit];

    fn deref(&self) -> &[RouteLimit] {
        &self.limits
    }
}

impl CompiledRoute {
    /// The hash of the key by which the upstream chooses a server, if it does so by keys and the request has one.
    pub fn balanced_by(&self, attributes: &RequestAttributes<'_>, key_cache: &RefCell<KeyCache>) -> Option<u64> {
        let (key, mut key_cache) = (self.balance_key.as_ref()?, key_cache.borrow_mut());
        let key = key.extract_rare(attributes, &mut key_cache);
        key_cache.shrink();
        key.map(Fingerprint::high)
    }
}

pub enum Action {
    Forward(Forwarding),
    Respond { status: StatusCode, body: Bytes, content_type: HeaderValue },
    Redirect(Redirect),
}

pub struct Forwarding {
    pub upstream: Arc<Upstream>,
    pub path: SentPath,
    pub preserve_host: bool,
    /// The upstream's URLs, which are replaced in Location; `None` if they are not.
    pub own_origins: Option<OwnOrigins>,
}

impl Snapshot {
    /// Builds the snapshot, whose limits count in `store`. Opens nothing, so it cannot fail.
    pub fn build(config: &Config, shared: &SharedState, store: Arc<Store>) -> Self {
        let upstream = |upstream| Arc::new(Upstream::new(upstream, &shared.endpoints, &shared.names, shared.echo()));
        Self::assemble(
            config,
            shared,
            store,
            config.upstreams.iter().map(upstream).collect(),
            config.limits.iter().map(|limit| Arc::new(RateTable::new(limit))).collect(),
            config.jwts.iter().map(|jwt| KeySource::of(&shared.key_sources, jwt)).collect(),
            config.limits.iter().filter_map(|limit| LimitSource::of(&shared.quota_sources, limit)).collect(),
        )
    }

    /// The same snapshot with these overrides from the admin API. `config` is the configuration from which the snapshot was
    /// built, except that another number of gateways may share it.
    #[must_use]
    pub fn with_temporary(&self, config: &Config, shared: &SharedState, overrides: &TemporaryOverrides) -> Self {
        let limits = self.limits.iter().zip(&config.limits).map(|(rate_table, limit)| {
            let is_kept = rate_table.gateways == limit.gateways;
            let rate_table = if is_kept { rate_table.clone() } else { Arc::new(RateTable::new(limit)) };
            match overrides.of(&limit.name) {
                of_limit if rate_table.has_temporary(of_limit) => rate_table,
                of_limit => Arc::new(rate_table.with_temporary(of_limit)),
            }
        });
        let with_terms = |one: &LimitSource| {
            let limit = config.limits.iter().find(|limit| limit.name == one.limit.name).unwrap_or(&one.limit);
            LimitSource { source: one.source.clone(), limit: limit.clone() }
        };
        // The same upstreams, since they remember whose turn it is.
        let quota_sources = self.quota_sources.iter().map(with_terms).collect();
        let (upstreams, key_sources) = (self.upstreams.clone(), self.key_sources.clone());
        Self::assemble(config, shared, self.store.clone(), upstreams, limits.collect(), key_sources, quota_sources)
    }

    fn assemble(
        config: &Config,
        shared: &SharedState,
        store: Arc<Store>,
        upstreams: Vec<Arc<Upstream>>,
        rate_table: Vec<Arc<RateTable>>,
        key_sources: Vec<Arc<KeySource>>,
        quota_sources: Vec<LimitSource>,
    ) -> Self {
        let notices = shared.notices.get(config);
        let readers: Vec<_> = config
            .jwts
            .iter()
            .zip(&key_sources)
            .map(|(jwt, keys)| {
                let new = |name, workers| JwtMetrics { name, workers: PerWorker::new(workers) };
                let metrics = shared.tokens.get(&jwt.name, new);
                Arc::new(TokenReader::new(jwt, config.claims_of(&jwt.name), keys.clone(), metrics))
            })
            .collect();
        let new = |name, workers| RouteMetrics { name, workers: PerWorker::new(workers) };
        let route_metrics = |name: &str| shared.routes.get(name, new);
        let served = |(route, single): (&config::Route, Arc<SingleSources>)| {
            let indices = || route.limits.iter().chain(&route.pools);
            let limits_and_rates =
                || indices().filter_map(|index| config.limits.get(*index).zip(rate_table.get(*index)));
            let pools = Pools::new(config, route);
            let route_limit = |(place, (limit, rate_table)): (usize, (&config::Limit, &Arc<RateTable>))| RouteLimit {
                rates: RateSelector::new(rate_table.clone(), limit, &route.path),
                quotas: quota_sources.iter().find(|one| one.limit.name == limit.name).map(|one| one.source.clone()),
                max_in_flight: limit.max_in_flight,
                key: KeyExtractor::new(&limit.name, &limit.key, &route.path, limit.known_keys.as_ref()),
                cost: limit.cost.clone(),
                ban: BanRule::new(limit, rate_table.ban.as_ref(), &shared.strikes),
                slow: limit.slows(),
                on_limit: pools.on_limit(place),
                overflow: pools.of(place),
                is_of_route: pools.is_of_route(place),
                settles: pools.settles(place),
                missing: limit.missing,
                metrics: shared.limits.get(&limit.name, |name, workers| LimitMetrics::new(&name, workers)),
                // Only the admin listener shows frequent keys.
                counts_keys: config.admin.is_some(),
                notices: shared.notices.about(&notices, limit),
                stage: pools.stage(place),
            };
            let limits: Vec<_> = limits_and_rates().enumerate().map(route_limit).collect();
            let told =
                limits_and_rates().zip(&limits).map(|((limit, _), route_limit)| (limit, route_limit.rates.profiles()));
            let headers = RateLimitHeaders::new(told, config.server.partition_secret);
            let limits = RouteLimits::new(limits, headers);
            CompiledRoute {
                metrics: route_metrics(&route::label(route)),
                path: route.path.text.clone(),
                single,
                tokens: readers.iter().filter(|reader| config.uses_token(route, &reader.name)).cloned().collect(),
                action: action(config, &route.action, &upstreams),
                max_body_size: route.max_body_size,
                inspector: BodyInspector::new(config, route).map(Box::new),
                body_timeout: route.body_timeout,
                timeout: route.timeout,
                request_headers: PreparedChanges::new(&route.request_headers),
                response_headers: PreparedChanges::new(&route.response_headers),
                cors: route.cors.as_ref().map(|cors| Box::new(CorsPolicy::new(cors, &limits.headers))),
                limits,
                balance_key: config.upstream_of(route).and_then(|upstream| {
                    Some(KeyExtractor::new(&upstream.name, upstream.balance.key()?, &route.path, None))
                }),
                failures: config
                    .upstream_of(route)
                    .map(|upstream| shared.upstreams.get(&upstream.name, UpstreamFailures::new)),
                shedding: config.server.shed.as_ref().map(|_| {
                    let name = config.upstream_of(route).map_or("", |upstream| &upstream.name);
                    Box::new(RouteShedding::new(config, route, shared.meters.get(name, Meter::new)))
                }),
            }
        };
        let resolver = Resolver::new(config);
        let single = resolver.rules.iter().map(|rules| rules.single.clone());
        let of_descriptors = config.descriptors().iter().map(|rule| (&rule.route, Arc::default()));
        let mut served: Vec<_> = config.routes.iter().zip(single).chain(of_descriptors).map(served).collect();
        // Shedding a call costs as much as deciding, and lets its request pass.
        served.iter_mut().skip(config.routes.len()).for_each(|rule| rule.shedding = None);
        Self {
            resolver,
            shedding: config.server.shed.clone().map(|settings| {
                let routes = served.iter().filter_map(|route| route.shedding.as_deref());
                Arc::new(Shedding::new(settings, routes, &upstreams))
            }),
            served,
            descriptors: DescriptorRules(config.descriptors().to_vec()),
            limits: rate_table,
            unrouted: route_metrics(NO_ROUTE),
            upstreams,
            key_sources,
            quota_sources,
            notices,
            forwarded: config.server.forwarded,
            body_timeout: config.server.body_timeout,
            inspect_memory: config.server.inspect_memory / shared.workers.max(1),
            refused_status: config.refused_status(),
            access_log: config.log.access,
            store,
            on_error: config.store.on_error(),
            concurrency: shared.concurrency.clone(),
            wait_queues: shared.wait_queues.clone(),
            tracing: config.tracing.as_ref().map(|tracing| Tracing {
                share: SampleShare::new(tracing.sample),
                exporter: shared.exporters.get(&tracing.collector),
            }),
        }
    }

    pub fn rule(&self, index: usize) -> Option<&CompiledRoute> {
        self.served.get(self.rule_index(index))
    }

    pub fn rule_index(&self, index: usize) -> usize {
        self.resolver.rules.len() + index
    }

    /// Which traces are sampled. Only a trusted proxy decides by its flags, because anybody can send flags.
    pub fn sampling(&self, via_trusted: bool) -> Option<Sampling> {
        self.tracing.as_ref().map(|tracing| Sampling { share: tracing.share, follows_parent: via_trusted })
    }

    /// Uses the current addresses of server names: lookups may have ended since the snapshot was built.
    pub fn resolve(&self) {
        self.upstreams.iter().for_each(|upstream| upstream.resolved());
    }

    /// How long idle connections to the endpoints of its upstreams are kept.
    pub fn keeps(&self) -> Keeps {
        Keeps::new(self.upstreams.iter().flat_map(|upstream| upstream.keeps()))
    }
}

pub fn limit_changes(old: &Snapshot, new: &Snapshot) -> LimitChanges {
    let replaced = new.limits.iter().filter_map(|rate_table| {
        let before = old.limits.iter().find(|before| before.name() == rate_table.name())?;
        (!Arc::ptr_eq(before, rate_table)).then(|| rate_table.replaced(before))
    });
    // Proxies may send any rates for the limits of descriptors.
    let of_descriptors = new.served.iter().skip(new.resolver.rules.len()).flat_map(|rule| rule.limits.iter());
    let of_descriptors = of_descriptors.map(|limit| limit.metrics.name.clone());
    let in_store = new.limits.iter().flat_map(|rate_table| rate_table.in_store());
    LimitChanges {
        with_quotas: of_descriptors.chain(new.quota_sources.iter().map(|one| one.limit.name.clone())).collect(),
        in_use: in_store.chain(notices::remembered()).cloned().collect(),
        replaced: replaced.flatten().collect(),
    }
}

fn action(config: &Config, action: &config::Action, upstreams: &[Arc<Upstream>]) -> Action {
    match action {
        config::Action::Forward { upstream, path, preserve_host, rewrite_location } => {
            let own_origins = rewrite_location.then(|| OwnOrigins::new(&config.upstreams[*upstream]));
            let (upstream, path) = (upstreams[*upstream].clone(), path.clone());
            Action::Forward(Forwarding { upstream, path, preserve_host: *preserve_host, own_origins })
        }
        config::Action::Respond { status, body, content_type } => Action::Respond {
            status: *status,
            body: Bytes::copy_from_slice(body.as_bytes()),
            content_type: content_type.clone(),
        },
        config::Action::Redirect(redirect) => Action::Redirect(redirect.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn ids(gateway: &Snapshot) -> Vec<usize> {
        gateway.upstreams[0].status().iter().map(|(endpoint, ..)| endpoint.id).collect()
    }

    #[test]
    fn servers_that_reloads_have_removed_are_forgotten() {
        let shared = SharedState::new(1, 1);
        let build = |port: u16| {
            let text = format!(
                "[upstreams.a]\nservers = [\"http://stays:80\", \"http://goes:{port}\"]\n\
                 [[routes]]\npath = \"/*\"\nupstream = \"a\"\n"
            );
            let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
            Snapshot::build(&config, &shared, Arc::new(Store::open(&config.store, 1).unwrap()))
        };
        let mut gateway = build(1);
        let [stays, first] = ids(&gateway)[..] else { panic!("there are two servers") };
        for port in 2..1_000 {
            let next = build(port);
            shared.keep_only(&next);
            shared.endpoints.drop_unused();
            // A request of the earlier snapshot may still use its servers.
            assert_eq!(shared.endpoints.count(), 3);
            gateway = next;
            shared.endpoints.drop_unused();
            assert_eq!(shared.endpoints.count(), 2);
            assert_eq!(ids(&gateway)[0], stays, "its connections are kept");
        }
        assert!(ids(&build(1))[1] != first, "an id could still be in use");
    }

    #[tokio::test]
    async fn servers_that_a_lookup_finds_while_a_reload_is_read_stay() {
        let shared = SharedState::new(1, 1);
        let text = "[upstreams.a]\nservers = [\"http://localhost:80\"]\n[[routes]]\npath = \"/*\"\nupstream = \"a\"\n";
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        let build = || Snapshot::build(&config, &shared, Arc::new(Store::open(&config.store, 1).unwrap()));
        let (running, reloaded) = (build(), build());
        shared.names.look_up("localhost").await;
        running.resolve();
        let found = ids(&running);
        assert_ne!(found, ids(&reloaded));
        reloaded.resolve();
        shared.keep_only(&reloaded);
        drop(running);
        shared.endpoints.drop_unused();
        assert_eq!(ids(&reloaded), found, "they have their connections and counters");
        assert_eq!(shared.endpoints.count(), found.len());
        assert_eq!(ids(&build()), found);
    }
}
