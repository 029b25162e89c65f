//! How many connections to servers there may be, and how long they are kept.
//!
//! There are as many places for them as the file handles of this process allow, besides those of clients. A client of
//! HTTP/1.1 has one request at a time, so `max_connections` bounds what it needs. A client of HTTP/2 may send hundreds, each
//! of which may need a connection to a server. So it gets no more than a share of the places.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::UpstreamError;
use crate::base::concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
use crate::net::network_key;

/// The interval between two checks, and the shortest one if the limits of connections are short.
pub(super) const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// How many checks there are during the shortest limit.
const CHECKS_PER_LIMIT: u32 = 8;

pub(super) type Place = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// How many requests of HTTP/2 one client may have at servers.
    share: u64,
    in_flight: Arc<ConcurrencyLimiter>,
}

impl Places {
    /// One client of HTTP/2 gets at most half of them.
    pub(super) fn new(count: usize) -> Self {
        let count = count.clamp(1, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(count)), share: count.div_ceil(2) as u64, in_flight: Arc::default() }
    }

    /// The error is [`UpstreamError::Exhausted`] if all are taken.
    pub(super) fn take(&self) -> Result<Place, UpstreamError> {
        self.all.clone().try_acquire_owned().map_err(|_| exhausted("it has its maximum of connections to servers"))
    }

    pub(super) fn are_taken(&self) -> bool {
        are_taken(&self.all)
    }

    /// Counts a request of HTTP/2 as one of this client's until the result is dropped. A client with an IPv6 address has a
    /// whole network. The error is [`UpstreamError::Exhausted`] if the client has as many as it may.
    pub(super) fn share(&self, client: IpAddr) -> Result<ConcurrencyPermit, UpstreamError> {
        let acquired = self.in_flight.acquire(network_key(client), self.share);
        acquired.map(|(permit, _)| permit).ok_or_else(|| exhausted("the client has its maximum of requests at servers"))
    }
}

pub(super) fn are_taken(places: &Semaphore) -> bool {
    places.available_permits() == 0
}

fn exhausted(why: &str) -> UpstreamError {
    UpstreamError::Exhausted(io::Error::other(why))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Without a request.
    pub idle: Duration,
    /// Since the connection was made.
    pub age: Duration,
}

#[derive(Debug, Default)]
pub struct Keeps {
    /// By the id of the server.
    servers: HashMap<usize, Keep, RandomState>,
    /// Between two checks of connections.
    pub(super) interval: Duration,
}

impl Keeps {
    pub fn new(used: impl IntoIterator<Item = (usize, Keep)>) -> Self {
        let (mut servers, mut shortest): (HashMap<_, Keep, _>, _) = (HashMap::default(), Duration::MAX);
        for (server, keep) in used {
            servers.insert(server, keep);
            shortest = shortest.min(keep.idle).min(keep.age);
        }
        Self { servers, interval: (shortest / CHECKS_PER_LIMIT).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL) }
    }

    /// `None` if no upstream has the server with this id.
    pub(super) fn of(&self, server: usize) -> Option<Keep> {
        self.servers.get(&server).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_half_and_all_together_get_all() {
        let places = Places::new(5);
        let ask = |client: &str| places.share(client.parse().unwrap());
        let one: Vec<_> =
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(ask).into_iter().map(Result::unwrap).collect();
        assert!(ask("2001:db8::4").is_err(), "it is the same network");
        let other = ["192.0.2.1", "::ffff:192.0.2.1"].map(ask);
        assert!(other.iter().all(Result::is_ok));
        drop(one);
        assert!(ask("2001:db8::4").is_ok());
        let taken: Vec<_> = (0..5).map(|_| places.take().unwrap()).collect();
        assert!(places.are_taken() && places.take().is_err());
        drop(taken);
        assert!(!places.are_taken());
    }

    #[test]
    fn checks_are_as_frequent_as_the_shortest_limit_needs() {
        let keep = |idle, age| Keep { idle: Duration::from_millis(idle), age: Duration::from_millis(age) };
        let keeps = Keeps::new([(2, keep(60_000, 600_000)), (0, keep(800, 2_000)), (3, keep(90_000, 1_000))]);
        assert_eq!(
            [0, 1, 2].map(|server| keeps.of(server)),
            [Some(keep(800, 2_000)), None, Some(keep(60_000, 600_000))]
        );
        assert_eq!(keeps.interval, Duration::from_millis(100));
        assert_eq!(Keeps::new([(0, keep(1, 1))]).interval, SHORTEST_INTERVAL);
        assert_eq!(Keeps::new([]).interval, LONGEST_INTERVAL);
    }
}
