//! The keys of the issuers of tokens, for all workers. One thread fetches them from their servers.
//!
//! No request waits for a fetch: requests use the last keys that were fetched, which stay in use while a server does not answer.
//! Fetches use hyper's client, since the gateway's client for upstreams is made for requests of clients.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::base::back_off::BackOff;
use crate::base::clock;
use crate::base::in_force::{BackgroundTask, InForce};
use crate::base::jwt::{KeyOrigin, KeySet, MAX_BYTES};
use crate::base::metrics::Counter;
use crate::base::threads::block_on;
use crate::config::{Jwks, Jwt};
use crate::net::fetch::{self, Url};
use crate::net::tls::ConnectorTls;

/// The interval of fetches. A key that its issuer has withdrawn may be used for this long.
pub const FETCH_EVERY: Duration = Duration::from_secs(300);

/// Pauses before a failed fetch is repeated.
const REPEATS: BackOff = BackOff { first: Duration::from_secs(5), longest: FETCH_EVERY };

/// How often tokens with unknown keys can cause a fetch, so that clients cannot make the gateway flood an issuer.
pub const FETCH_FOR_CLIENTS_EVERY: Duration = Duration::from_secs(30);

/// The keys of one `[jwt.*]`.
pub struct KeySource {
    pub name: String,
    keys: ArcSwap<KeySet>,
    /// `None` if the keys are from a file.
    pub server: Option<KeyServer>,
}

/// Where keys are fetched from, and the results of fetches.
pub struct KeyServer {
    url: Url,
    tls: Option<ConnectorTls>,
    /// Notified if a token has an unknown key.
    wanted: Notify,
    pub fetched: Counter,
    pub failed: Counter,
    /// Failures in a row.
    failures: AtomicU32,
    /// In seconds since 1970; 0 means never.
    pub last_success: AtomicU64,
    /// Why the last fetch failed; `None` if it succeeded.
    pub last_error: Mutex<Option<String>>,
}

impl KeySource {
    fn new(jwt: &Jwt) -> Self {
        let (keys, server) = match &jwt.jwks {
            Jwks::File { keys, .. } => (keys.clone(), None),
            Jwks::Server { url, tls } => (Arc::new(KeySet::empty()), Some(KeyServer::new(url.clone(), tls.clone()))),
        };
        Self { name: jwt.name.clone(), keys: ArcSwap::new(keys), server }
    }

    /// The source for this configuration: one in force, or a new one.
    pub fn of(in_force: &KeySources, jwt: &Jwt) -> Arc<Self> {
        in_force.find(|source| source.is_for(jwt)).unwrap_or_else(|| Arc::new(Self::new(jwt)))
    }

    pub fn keys(&self) -> Guard<Arc<KeySet>> {
        self.keys.load()
    }

    /// Reports a token with an unknown key: the keys are fetched soon, unless they were fetched just before.
    pub fn is_outdated(&self) {
        if let Some(server) = &self.server {
            server.wanted.notify_one();
        }
    }

    /// Whether the source fetches from the server of this configuration.
    fn is_for(&self, jwt: &Jwt) -> bool {
        match (&self.server, &jwt.jwks) {
            (Some(server), Jwks::Server { url, tls }) => {
                self.name == jwt.name && server.url == *url && server.tls == *tls
            }
            _ => false,
        }
    }

    /// If the fetch fails, the previous keys stay in use.
    async fn fetch(&self) {
        let Some(server) = &self.server else { return };
        let name = &self.name;
        let fetched =
            fetch::fetch(&server.url, server.tls.as_ref(), MAX_BYTES).await.map_err(|error| error.to_string());
        let read = fetched.and_then(|json| KeySet::parse(&json, KeyOrigin::Server));
        match read {
            Ok(keys) => {
                server.fetched.one();
                server.last_success.store(clock::now().seconds(), Ordering::Relaxed);
                let (count, is_again) = (keys.count(), server.failures.swap(0, Ordering::Relaxed) > 0);
                if is_again || *self.keys() != Arc::new(keys.clone()) {
                    tracing::info!(jwt = name, keys = count, "fetched the keys of an issuer");
                }
                self.keys.store(Arc::new(keys));
                *server.last_error.lock() = None;
            }
            Err(error) => {
                server.failed.one();
                server.failures.fetch_add(1, Ordering::Relaxed);
                let keys = self.keys().count();
                *server.last_error.lock() = Some(error.clone());
                tracing::warn!(
                    jwt = name,
                    error,
                    keys,
                    "cannot fetch the keys of an issuer: the previous ones stay in use"
                );
            }
        }
    }
}

impl BackgroundTask for KeySource {
    const THREAD: &'static str = "jwks";
    const REFUSED: &'static str = "cannot fetch the keys of issuers again";

    fn has_task(&self) -> bool {
        self.server.is_some()
    }

    async fn run(self: Arc<Self>) {
        let Some(server) = &self.server else { return };
        // When tokens may cause the next fetch.
        let mut allowed = Instant::now();
        loop {
            let wanted = async {
                sleep_until(allowed).await;
                server.wanted.notified().await;
            };
            tokio::select! {
                () = sleep_until(Instant::now() + server.pause()) => {}
                () = wanted => allowed = Instant::now() + FETCH_FOR_CLIENTS_EVERY,
            }
            self.fetch().await;
        }
    }
}

impl KeyServer {
    fn new(url: Url, tls: Option<ConnectorTls>) -> Self {
        Self {
            url,
            tls,
            wanted: Notify::new(),
            fetched: Counter::default(),
            failed: Counter::default(),
            failures: AtomicU32::new(0),
            last_success: AtomicU64::new(0),
            last_error: Mutex::default(),
        }
    }

    fn is_tried(&self) -> bool {
        self.fetched.get() + self.failed.get() > 0
    }

    fn pause(&self) -> Duration {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures == 0 { FETCH_EVERY } else { REPEATS.pause(failures) }
    }
}

/// The sources in force. They outlive a reload that does not change them.
pub type KeySources = InForce<KeySource>;

/// Fetches the keys of new sources, all at the same time, before they are in force. Blocks for at most [`fetch::LIMIT`]. Fails
/// when the system refuses a timer.
pub fn fetch_first(sources: &[Arc<KeySource>]) -> io::Result<()> {
    let is_new = |source: &&Arc<KeySource>| source.server.as_ref().is_some_and(|server| !server.is_tried());
    let new: Vec<_> = sources.iter().filter(is_new).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    block_on(async {
        let mut fetches = JoinSet::new();
        for source in new {
            fetches.spawn(async move { source.fetch().await });
        }
        while fetches.join_next().await.is_some() {}
    })
}
