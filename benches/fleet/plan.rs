//! What a fleet is made of.

use std::time::Duration;

use gateway::config::OnError;
use gateway::limit::Rate;

use super::network::{Network, ZONE};
use super::traffic::Traffic;

/// What a fleet is made of, and what happens to it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) gateways: usize,
    pub(crate) servers: usize,
    /// Threads of each Memcached.
    pub(crate) threads: usize,
    pub(crate) rate: Rate,
    pub(crate) strict: bool,
    pub(crate) on_error: OnError,
    pub(crate) timeout: Duration,
    pub(crate) network: Network,
    /// Of each gateway.
    pub(crate) traffic: Traffic,
    /// Requests come at multiples of this only, unless it is 0.
    pub(crate) tick: Duration,
    pub(crate) length: Duration,
    /// The most by which two clocks of gateways differ.
    pub(crate) skew: Duration,
    /// How many gateways are cut off, from when, and until when.
    pub(crate) cut: (usize, Duration, Duration),
    /// When each Memcached is restarted, with nothing in its memory.
    pub(crate) restarts: Vec<Duration>,
    pub(crate) seed: u64,
}

impl Plan {
    /// So many gateways in one zone, with one Memcached, whose clients ask for `load` times what the limit allows for the
    /// hottest of `keys` keys.
    pub(crate) fn new(gateways: usize, rate: Rate, load: f64, keys: usize) -> Self {
        let allowed = rate.quota() as f64 / rate.window().as_secs_f64();
        let hottest: f64 = (1..=keys).map(|rank| 1.0 / rank as f64).sum();
        Self {
            gateways,
            servers: 1,
            threads: 4,
            rate,
            strict: false,
            on_error: OnError::Local,
            timeout: Duration::from_millis(25),
            network: ZONE,
            traffic: Traffic::new(allowed * load * hottest / gateways as f64, keys, 1.0),
            tick: Duration::ZERO,
            length: Duration::from_secs(5),
            skew: Duration::ZERO,
            cut: (0, Duration::ZERO, Duration::ZERO),
            restarts: Vec::new(),
            seed: 1,
        }
    }
}
