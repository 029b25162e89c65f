//! How long a single request waits.

use std::time::{Duration, Instant};

use super::Bench;
use super::question::Question;
use super::way::{Kind, Way};

/// Requests before the measurement.
const WARM_UP: usize = 200;

/// In microseconds.
pub(crate) struct Latency {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

pub(crate) async fn measure(kind: Kind, bench: &Bench, question: &Question) -> Latency {
    let way = Way::open(kind, &bench.store, bench.memcached.address, 1).await;
    for _ in 0..WARM_UP {
        assert!(way.decide(question).await);
    }
    let mut times: Vec<Duration> = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < bench.length {
        let asked = Instant::now();
        assert!(way.decide(question).await);
        times.push(asked.elapsed());
    }
    times.sort_unstable();
    let at = |per_cent: usize| times[times.len() * per_cent / 100].as_secs_f64() * 1e6;
    Latency { median: at(50), p99: at(99) }
}
