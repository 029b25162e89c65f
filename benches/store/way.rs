//! The compared ways to decide.

use std::net::SocketAddr;
use std::sync::Arc;

use memcache::exp::AsyncMetaClient;
use tokio::task::JoinHandle;

use gateway::base::clock;
use gateway::config;
use gateway::store::{Answer, Ask, Counters, Store};

use super::plain;
use super::question::{PREFIX, Question};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Store,
    /// Every request for itself.
    Plain,
    /// Reads one counter and decides nothing.
    Bare,
}

pub(crate) enum Way {
    Store(Served),
    Plain(AsyncMetaClient),
    Bare(AsyncMetaClient),
}

pub(crate) struct Served {
    store: Arc<Store>,
    carrying: Option<JoinHandle<()>>,
}

impl Served {
    fn new(store: Store) -> Self {
        let store = Arc::new(store);
        let carrying = store.carry(0).map(tokio::task::spawn_local);
        Self { store, carrying }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.carrying.iter().for_each(JoinHandle::abort);
    }
}

impl Way {
    /// `connections` is for requests that connect for themselves.
    pub(crate) async fn open(kind: Kind, config: &config::Store, server: SocketAddr, connections: usize) -> Self {
        match kind {
            Kind::Store => Self::Store(Served::new(Store::open(config, 1).unwrap())),
            Kind::Plain => Self::Plain(client(server, connections).await),
            Kind::Bare => Self::Bare(client(server, connections).await),
        }
    }

    pub(crate) async fn decide(&self, question: &Question) -> bool {
        let key = question.key();
        match self {
            Self::Store(Served { store, .. }) => {
                let ask = Ask::new(&question.limit, key, 1);
                let reply = match store.decide(&[ask], clock::now(), 0) {
                    Answer::Now(reply) => {
                        tokio::task::yield_now().await;
                        reply
                    }
                    Answer::Later(reply) => reply.await.unwrap(),
                    Answer::Away => panic!("the store is away"),
                };
                reply.verdicts.iter().all(|(_, verdict)| verdict.admitted)
            }
            Self::Plain(client) => plain::decide(client, question, key).await.admitted,
            Self::Bare(client) => client.get(PREFIX).send().await.is_ok(),
        }
    }

    /// As far as the way counts them.
    pub(crate) fn round_trips(&self) -> u64 {
        match self {
            Self::Store(Served { store, .. }) => match &store.counters {
                Counters::Shared(shared) => shared.health().round_trips.get(),
                Counters::Memory(_) => 0,
            },
            Self::Plain(_) | Self::Bare(_) => 0,
        }
    }
}

/// The client keeps its connections, so none is made twice.
pub(crate) async fn client(server: SocketAddr, connections: usize) -> AsyncMetaClient {
    let builder = AsyncMetaClient::builder().max_idle(connections).max_connections(Some(connections));
    builder.connect_async(server).await.unwrap()
}
