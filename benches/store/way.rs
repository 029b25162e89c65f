//! The ways to decide that are compared.

use std::net::SocketAddr;

use memcache::exp::AsyncMetaClient;

use gateway::clock;
use gateway::config;
use gateway::store::{Answer, Ask, Store};

use super::plain;
use super::question::{PREFIX, Question};

/// Which way.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// The gateway's store.
    Store,
    /// Every request for itself.
    Plain,
    /// Nothing is decided: one counter is read.
    Bare,
}

/// A way, connected.
pub(crate) enum Way {
    Store(Box<Store>),
    Plain(AsyncMetaClient),
    Bare(AsyncMetaClient),
}

impl Way {
    /// The way to this memcached, for so many requests at once.
    pub(crate) async fn open(kind: Kind, config: &config::Store, server: SocketAddr, waiting: usize) -> Self {
        match kind {
            Kind::Store => Self::Store(Box::new(Store::open(config).unwrap())),
            Kind::Plain => Self::Plain(client(server, waiting).await),
            Kind::Bare => Self::Bare(client(server, waiting).await),
        }
    }

    /// Decides for the next key.
    pub(crate) async fn decide(&self, question: &Question) {
        let key = question.key();
        let admitted = match self {
            Self::Store(store) => {
                let ask = Ask { limit: &question.limit, key, need: 1, cost: 1, advisory: false, place: 0 };
                let verdicts = match store.decide(&[ask], clock::now()) {
                    Answer::Now(verdicts) => {
                        tokio::task::yield_now().await;
                        verdicts
                    }
                    Answer::Later(verdicts) => verdicts.await.unwrap(),
                    Answer::Away => panic!("the store is away"),
                };
                verdicts.iter().all(|(_, verdict)| verdict.admitted)
            }
            Self::Plain(client) => plain::decide(client, question, key).await.admitted,
            Self::Bare(client) => client.get(PREFIX).send().await.is_ok(),
        };
        assert!(admitted, "refused: the quotas of --rate are too small for this machine");
    }

    /// Exchanges so far, as far as they are counted.
    pub(crate) fn round_trips(&self) -> u64 {
        match self {
            Self::Store(store) => match &**store {
                Store::Memcached(memcached) => memcached.health().round_trips.get(),
                Store::Memory(_) => 0,
            },
            Self::Plain(_) | Self::Bare(_) => 0,
        }
    }
}

/// A client that keeps a connection for every request that waits: nobody dials twice.
pub(crate) async fn client(server: SocketAddr, connections: usize) -> AsyncMetaClient {
    AsyncMetaClient::builder().max_idle(connections).connect_async(server).await.unwrap()
}
