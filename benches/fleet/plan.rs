//! The parts of a fleet.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::{OnError, Software};
use gateway::limit::Rate;

use super::network::{Network, ZONE};
use super::traffic::Traffic;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) gateways: usize,
    pub(crate) servers: usize,
    pub(crate) software: Software,
    /// Of each server.
    pub(crate) threads: usize,
    pub(crate) rates: Vec<Rate>,
    pub(crate) strict: bool,
    pub(crate) on_error: OnError,
    pub(crate) timeout: Duration,
    pub(crate) network: Network,
    /// The last gateways are in another region, at this distance from the servers.
    pub(crate) far: (usize, Network),
    pub(crate) traffic: Traffic,
    /// A log instead of `traffic`, unless it is empty: when each key is asked for, at a gateway by chance.
    pub(crate) log: Arc<[(Duration, usize)]>,
    /// Requests come only at multiples of this, unless it is 0.
    pub(crate) tick: Duration,
    pub(crate) length: Duration,
    /// The largest difference between two clocks of gateways.
    pub(crate) skew: Duration,
    pub(crate) cut: Cut,
    /// When each server restarts, with nothing in its memory.
    pub(crate) restarts: Vec<Duration>,
    pub(crate) change: Option<Change>,
    pub(crate) seed: u64,
}

/// These gateways do not reach these servers: nothing arrives, and nobody gets an error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) gateways: Range<usize>,
    pub(crate) servers: Range<usize>,
    pub(crate) during: Range<Duration>,
}

/// Another number of servers: one gateway after the other reloads, evenly spread over a time.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) servers: usize,
    pub(crate) from: Duration,
    pub(crate) over: Duration,
}

impl Plan {
    /// Gateways in one zone, with one server, whose clients ask for `load` times what the limit allows for the hottest
    /// of `keys` keys.
    pub(crate) fn new(gateways: usize, rate: Rate, load: f64, keys: usize) -> Self {
        let allowed = rate.quota() as f64 / rate.window().as_secs_f64();
        let hottest: f64 = (1..=keys).map(|rank| 1.0 / rank as f64).sum();
        Self {
            gateways,
            servers: 1,
            software: Software::Memcached,
            threads: 4,
            rates: vec![rate],
            strict: false,
            on_error: OnError::Local,
            timeout: Duration::from_millis(25),
            network: ZONE,
            far: (0, ZONE),
            traffic: Traffic::new(allowed * load * hottest / gateways as f64, keys, 1.0),
            log: Arc::default(),
            tick: Duration::ZERO,
            length: Duration::from_secs(5),
            skew: Duration::ZERO,
            cut: Cut::default(),
            restarts: Vec::new(),
            change: None,
            seed: 1,
        }
    }

    /// The larger number of servers: before or after a change.
    pub(crate) fn all_servers(&self) -> usize {
        self.servers.max(self.change.as_ref().map_or(0, |change| change.servers))
    }
}

impl Cut {
    /// The first `gateways` reach no server.
    pub(crate) fn off(gateways: usize, during: Range<Duration>) -> Self {
        Self { gateways: 0..gateways, servers: 0..usize::MAX, during }
    }

    pub(crate) fn lost(server: usize, during: Range<Duration>) -> Self {
        Self { gateways: 0..usize::MAX, servers: server..server + 1, during }
    }

    pub(crate) fn is_between(&self, gateway: usize, server: usize, now: Duration) -> bool {
        self.gateways.contains(&gateway) && self.servers.contains(&server) && self.during.contains(&now)
    }
}
