//! Reads Memcached's counts back: a store that admits requests without counting them would only seem fast.

use std::net::SocketAddr;
use std::time::Duration;

use memcache::exp::{AsyncMetaClient, Get};
use tokio::time::sleep;

use gateway::base::clock;

use super::plain::sum;
use super::question::Question;
use super::way::client;

const CHUNK: usize = 1_000;

/// The counters of one rate, with their first values.
pub(crate) struct CounterTotals {
    client: AsyncMetaClient,
    counters: Vec<String>,
    first: u64,
}

impl CounterTotals {
    pub(crate) async fn open(server: SocketAddr, question: &Question) -> Self {
        let mut totals =
            Self { client: client(server, 1).await, counters: question.counter_names(clock::now()), first: 0 };
        totals.first = totals.sum().await;
        totals
    }

    /// The counts since the start, once they reach `made` or a while has passed.
    pub(crate) async fn counted(&self, made: u64) -> u64 {
        let mut counted = 0;
        for _ in 0..5 {
            counted = self.sum().await - self.first;
            if counted >= made {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        counted
    }

    async fn sum(&self) -> u64 {
        let mut total = 0;
        for names in self.counters.chunks(CHUNK) {
            let results = self.client.run_many(names.iter().map(Get::new)).await.unwrap();
            total += results.iter().map(|result| sum(result.as_ref().unwrap())).sum::<u64>();
        }
        total
    }
}
