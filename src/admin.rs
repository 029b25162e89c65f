//! The admin listener: liveness, readiness, metrics, the dashboard, and the API.
//!
//! Its own thread serves it, so requests to routes do not wait for it. The thread waits for no other one: the control thread
//! sends results through a channel. Each answer, except to a probe, is one turn of the thread, so all clients get equal turns.

pub mod describe;
pub mod dashboard;
mod families;
mod guesses;
mod access;
mod body;
mod history;
mod keys;
mod limits;
mod overrides;
mod certificates;
mod page;
mod reload;
mod upstreams;
mod source;
mod metrics;
pub mod numbers;
mod events;
mod connections;

use std::convert::identity;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::{io, thread};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{spawn_local, yield_now};

use crate::base::clock::{self, Time};
use crate::base::key_mask::KeyMask;
use crate::base::readiness::Readiness;
use crate::base::threads::local_runtime;
use crate::config::{Config, LOG_LEVELS};
use crate::net::tls::ListenerTls;
use crate::proxy::log::{DroppedLines, LogLevel};
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::{SharedState, Snapshot};
use crate::request::decide::TemporaryOverrides;
use crate::server::TrafficLimits;
use crate::sources::acme::AcmeSources;
use crate::store::{Counters, Store};

use connections::AdminBody;
use dashboard::State;
use events::Events;
use guesses::Peer;
use keys::KeyPath;
use limits::LimitPath;

pub use access::Gatekeeper;
pub use connections::{AdminChange, AdminListener};
pub use overrides::{OverrideChange, OverrideRequest};
pub use reload::{RecentReloads, ReloadAnswer, ReloadResult};
pub use source::RemoteStatus;

/// The most requests of one kind that wait for the control thread.
pub const MAX_WAITING: usize = 32;

/// What the admin listener shows and changes.
pub struct View {
    /// Where the configuration comes from, without secrets.
    pub source: String,
    /// `None` if the source is no server.
    pub remote: Option<Arc<Mutex<RemoteStatus>>>,
    pub config: ArcSwap<Config>,
    /// The metrics of routes, limits and upstreams.
    pub shared: Arc<SharedState>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub dropped_lines: DroppedLines,
    pub log_level: LogLevel,
    pub connections: TrafficLimits,
    /// What TLS listeners use, and the handshakes of clients.
    pub tls: Arc<ListenerTls>,
    pub acme: Arc<AcmeSources>,
    /// Asks the control thread to reload.
    pub reloads: mpsc::Sender<ReloadAnswer>,
    /// Asks the control thread to change overrides.
    pub overrides: mpsc::Sender<OverrideRequest>,
    /// Overrides of the admin API. The control thread changes them.
    pub temporary: Mutex<TemporaryOverrides>,
    /// How keys are shown, unless they are shown in full.
    pub key_mask: Arc<KeyMask>,
    pub readiness: Arc<Readiness>,
    pub reloads_so_far: RecentReloads,
    pub certificate_reloads: RecentReloads,
    pub gatekeeper: Gatekeeper,
    pub started: Time,
}

impl View {
    fn store(&self) -> Arc<Store> {
        self.snapshot.load().store.clone()
    }

    fn state(&self) -> State {
        if self.readiness.stopping.load(Ordering::Relaxed) {
            State::Stopping
        } else if self.readiness.draining.load(Ordering::Relaxed) {
            State::Draining
        } else {
            State::Ready
        }
    }

    /// Why load balancers should not send requests. A gateway that a server of the store refuses from the start is not ready:
    /// most likely its configuration is wrong.
    fn unready(&self) -> Option<Bytes> {
        if self.state() != State::Ready {
            return Some(Bytes::from_static(b"draining\n"));
        }
        let store = self.store();
        let Counters::Shared(shared) = &store.counters else { return None };
        let refusal = shared.health().refusal().filter(|_| !self.readiness.was_ready.load(Ordering::Relaxed))?;
        Some(format!("the store at {refusal}\n").into())
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An OpenAPI document, version 3.1.
const OPENAPI: &[u8] = include_bytes!("../docs/openapi.json");

/// Forbids pages of other origins to load a response.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Serves on the newest of the `listeners`, in a thread of its own, until the process ends. Fails when the system cannot start
/// a thread, or refuses what its runtime needs.
pub fn start(listeners: mpsc::UnboundedReceiver<AdminChange>, view: Arc<View>) -> io::Result<()> {
    let (sender, started) = channel();
    thread::Builder::new().name("admin".to_owned()).spawn(move || {
        let runtime = match local_runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                _ = sender.send(Err(error));
                return;
            }
        };
        _ = sender.send(Ok(()));
        runtime.block_on(async {
            let events = Rc::new(Events::new(view.clone()));
            let running = events.clone();
            spawn_local(async move { running.run().await });
            let tls = view.tls.clone();
            connections::serve(listeners, tls, move |peer, request| {
                answer(view.clone(), events.clone(), peer, request)
            })
            .await;
        });
    })?;
    started.recv().map_err(io::Error::other)?
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource<'a> {
    Page,
    Health,
    Readiness,
    Metrics,
    OpenApi,
    Events,
    Upstreams,
    Config,
    Source,
    Limits,
    Key(KeyPath<'a>),
    Bans(LimitPath<'a>),
    Overrides(LimitPath<'a>),
    Reload,
    Drain,
    LogLevel,
}

impl<'a> Resource<'a> {
    fn at(path: &'a str) -> Option<Self> {
        match path {
            "/" => Some(Self::Page),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Readiness),
            "/metrics" => Some(Self::Metrics),
            "/api/openapi.json" => Some(Self::OpenApi),
            "/api/events" => Some(Self::Events),
            "/api/upstreams" => Some(Self::Upstreams),
            "/api/config" => Some(Self::Config),
            "/api/source" => Some(Self::Source),
            "/api/limits" => Some(Self::Limits),
            "/api/reload" => Some(Self::Reload),
            "/api/drain" => Some(Self::Drain),
            "/api/log-level" => Some(Self::LogLevel),
            _ => {
                let (limit, list) = path.strip_prefix("/api/limits/")?.split_once('/')?;
                let limit = LimitPath(limit);
                Some(match list {
                    "bans" => Self::Bans(limit),
                    "overrides" => Self::Overrides(limit),
                    _ => Self::Key(KeyPath { limit, key: list.strip_prefix("keys/")? }),
                })
            }
        }
    }

    fn is_probe(self) -> bool {
        matches!(self, Self::Health | Self::Readiness)
    }

    /// Needs no token, because it shows nothing secret. A browser cannot send a token when it loads a page, and load
    /// balancers often cannot.
    fn is_open(self) -> bool {
        self.is_probe() || self == Self::Page
    }

    fn methods(self) -> &'static str {
        match self {
            Self::Key(_) => "GET, HEAD, PUT, DELETE",
            Self::Reload => "POST",
            Self::Drain => "POST, DELETE",
            Self::LogLevel => "PUT",
            _ => "GET, HEAD",
        }
    }

    fn takes(self, method: &Method) -> bool {
        self.methods().split(", ").any(|taken| taken == method.as_str())
    }
}

async fn answer(view: Arc<View>, events: Rc<Events>, peer: Peer, request: Request<Incoming>) -> Response<AdminBody> {
    let path = request.uri().path().to_owned();
    let mut response = match admit(&view, peer, &request, &path).await {
        Ok(resource) => respond(&view, &events, resource, request).await,
        Err(refusal) => whole(refusal),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Checks whether the request may be answered, and finds what it asks for. The error is the answer to a request that is
/// refused.
async fn admit<'a>(
    view: &View,
    peer: Peer,
    request: &Request<Incoming>,
    path: &'a str,
) -> Result<Resource<'a>, LocalResponse> {
    let resource = Resource::at(path);
    let config = view.config.load_full();
    let Some(admin) = &config.admin else {
        // A reload has removed the section, and with it the token. The connection is older.
        let why = "This gateway no longer has an admin listener.";
        return Err(respond::closing(respond::problem(StatusCode::SERVICE_UNAVAILABLE, why)));
    };
    let is_open = resource.is_some_and(Resource::is_open);
    view.gatekeeper.admit(admin, peer, request, is_open).await?;
    if resource == Some(Resource::Events)
        && let Some(refusal) = access::refusal_of_foreign(request)
    {
        return Err(refusal);
    }
    if !resource.is_some_and(Resource::is_probe) {
        // The other connections get their turns before a client that has sent many requests at once gets its next answer.
        yield_now().await;
    }
    let Some(resource) = resource else {
        return Err(respond::problem(StatusCode::NOT_FOUND, "There is nothing at this path."));
    };
    if !resource.takes(request.method()) {
        let why = format!("This path takes {}.", resource.methods());
        let mut response = respond::problem(StatusCode::METHOD_NOT_ALLOWED, &why);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(resource.methods()));
        return Err(response);
    }
    Ok(resource)
}

async fn respond(
    view: &View,
    events: &Events,
    resource: Resource<'_>,
    request: Request<Incoming>,
) -> Response<AdminBody> {
    let shown = match resource {
        Resource::Events => match events.open() {
            Some(stream) => return stream.map(Either::Right),
            None => Err(events::too_many()),
        },
        Resource::Page => return whole(page::respond()),
        Resource::Health => return whole(respond::text(StatusCode::OK, Bytes::from_static(b"ok\n"))),
        Resource::Readiness => return whole(readiness(view)),
        Resource::Metrics => return whole(metrics::respond(view)),
        Resource::OpenApi => return whole(respond::with_body(StatusCode::OK, JSON, Bytes::from_static(OPENAPI))),
        Resource::Upstreams => Ok(json!({ "upstreams": upstreams::list(view) })),
        Resource::Config => Ok(describe::json(&view.config.load())),
        Resource::Source => Ok(source::describe(view, clock::now())),
        Resource::Limits => Ok(json!(limits::describe_all(view, &events.history()))),
        Resource::Bans(path) => limits::show_bans(view, path).ok_or_else(|| path.unknown()),
        Resource::Overrides(path) => limits::show_overrides(view, path).ok_or_else(|| path.unknown()),
        Resource::Key(path) if request.method() == Method::DELETE => keys::forget(view, path).await,
        Resource::Key(path) if request.method() == Method::PUT => {
            keys::set_override(view, path, request.into_body()).await
        }
        Resource::Key(path) => keys::show(view, path).await,
        Resource::Reload => reload::reload(&view.reloads).await,
        Resource::Drain => drain(view, request.method() == Method::POST)
            .ok_or_else(|| respond::problem(StatusCode::CONFLICT, "The gateway is stopping.")),
        Resource::LogLevel => set_log_level(view, request.into_body()).await,
    };
    let as_json = |shown| respond::with_body(StatusCode::OK, JSON, Bytes::from(format!("{shown}\n")));
    whole(shown.map_or_else(identity, as_json))
}

fn whole(response: LocalResponse) -> Response<AdminBody> {
    response.map(|body| Either::Left(Full::new(body.into_bytes())))
}

fn readiness(view: &View) -> LocalResponse {
    if let Some(why) = view.unready() {
        return respond::text(StatusCode::SERVICE_UNAVAILABLE, why);
    }
    // Before a server of the store has answered, it may still refuse this gateway.
    let is_known =
        if let Counters::Shared(shared) = &view.store().counters { shared.health().has_answered() } else { true };
    view.readiness.was_ready.fetch_or(is_known, Ordering::Relaxed);
    respond::text(StatusCode::OK, Bytes::from_static(b"ready\n"))
}

/// Sets what `/readyz` answers. `None` if the gateway is stopping: then it stays unready.
fn drain(view: &View, draining: bool) -> Option<Value> {
    if !draining && view.readiness.stopping.load(Ordering::Relaxed) {
        return None;
    }
    if view.readiness.draining.swap(draining, Ordering::Relaxed) != draining {
        tracing::info!(draining, "the admin API has changed whether the gateway is ready");
    }
    Some(json!({ "draining": draining }))
}

/// The body of `PUT /api/log-level`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedLevel {
    level: String,
}

async fn set_log_level(view: &View, body: Incoming) -> Result<Value, LocalResponse> {
    let wanted: WantedLevel = body::read(body).await?;
    let Some((name, level)) = LOG_LEVELS.iter().find(|(name, _)| *name == wanted.level) else {
        let names = LOG_LEVELS.map(|(name, _)| name).join(", ");
        let why = format!("{:?} is not a level. Levels are {names}.", wanted.level);
        return Err(respond::problem(StatusCode::UNPROCESSABLE_ENTITY, &why));
    };
    // The log is there as long as the process.
    let _ = view.log_level.reload(*level);
    tracing::info!(level = name, "the admin API has changed the log level");
    Ok(json!({ "level": name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_limit_and_what_is_asked_of_it() {
        let at = |of_limit: &str| Resource::at(&format!("/api/limits/{of_limit}")).map(|found| format!("{found:?}"));
        let shown = |found: Resource<'_>| Some(format!("{found:?}"));
        assert_eq!(at("a%2Fb/bans"), shown(Resource::Bans(LimitPath("a%2Fb"))));
        assert_eq!(at("l/overrides"), shown(Resource::Overrides(LimitPath("l"))));
        let key = KeyPath { limit: LimitPath("l"), key: "a/keys/bans" };
        assert_eq!(at("l/keys/a/keys/bans"), shown(Resource::Key(key)));
        assert_eq!(["l/ban", "l/bans/", "l/x/bans", "bans", "l/keys"].map(at), [const { None }; 5]);
    }
}
