//! Requests that wait at once. Each asks again as soon as it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Bench;
use super::cpu;
use super::memcached::Memcached;
use super::question::Question;
use super::totals::CounterTotals;
use super::way::{Kind, Way};

const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) struct Load {
    pub(crate) question: Arc<Question>,
    pub(crate) waiting: usize,
}

pub(crate) struct Measured {
    /// Decisions per second.
    pub(crate) speed: f64,
    /// Microseconds of this process per decision.
    pub(crate) cpu: f64,
    /// Microseconds of memcached per decision.
    pub(crate) memcached: f64,
    /// Exchanges per decision.
    pub(crate) round_trips: f64,
    /// The share of the decisions that memcached has counted.
    pub(crate) counted: f64,
}

struct Clients {
    way: Way,
    question: Arc<Question>,
    made: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
}

struct Standing {
    at: Instant,
    made: u64,
    cpu: f64,
    memcached: f64,
    round_trips: u64,
}

impl Clients {
    async fn ask(self: Arc<Self>) {
        while !self.over.load(Ordering::Relaxed) {
            if !self.way.decide(&self.question).await {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            self.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn standing(&self, memcached: &Memcached) -> Standing {
        Standing {
            at: Instant::now(),
            made: self.made.load(Ordering::Relaxed),
            cpu: cpu::own(),
            memcached: memcached.cpu(),
            round_trips: self.way.round_trips(),
        }
    }
}

pub(crate) async fn measure(kind: Kind, bench: &Bench, load: &Load) -> Measured {
    let server = bench.memcached.address;
    let totals = CounterTotals::open(server, &load.question).await;
    let clients = Arc::new(Clients {
        way: Way::open(kind, &bench.store, server, bench.connections.unwrap_or(load.waiting)).await,
        question: load.question.clone(),
        made: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let requests: Vec<_> = (0..load.waiting).map(|_| tokio::spawn(clients.clone().ask())).collect();
    sleep(WARM_UP).await;
    let begin = clients.standing(&bench.memcached);
    sleep(bench.length).await;
    let end = clients.standing(&bench.memcached);
    clients.over.store(true, Ordering::Relaxed);
    for request in requests {
        request.await.unwrap();
    }
    let refused = clients.refused.load(Ordering::Relaxed);
    assert!(refused == 0, "{refused} decisions were refused: give --rate larger quotas");
    let made = clients.made.load(Ordering::Relaxed);
    let counted = totals.counted(made).await as f64 / made as f64;

    let decisions = (end.made - begin.made) as f64;
    Measured {
        speed: decisions / (end.at - begin.at).as_secs_f64(),
        cpu: (end.cpu - begin.cpu) * 1e6 / decisions,
        memcached: (end.memcached - begin.memcached) * 1e6 / decisions,
        round_trips: (end.round_trips - begin.round_trips) as f64 / decisions,
        counted,
    }
}
