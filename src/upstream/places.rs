//! The places of connections to servers: as many as the file handles of this process allow, besides those of clients.
//!
//! A client of HTTP/1.1 has one request at a time, so `max_connections` bounds what it needs. A client of HTTP/2 may send
//! hundreds, each of which may need a connection to a server. So it gets no more than a share of the places.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::UpstreamError;
use crate::base::fingerprint::Fingerprint;
use crate::net::network_of;
use crate::request::decide::{ConcurrencyLimiter, ConcurrencyPermit};

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

    /// # Errors
    /// [`UpstreamError::Exhausted`] if all are taken.
    pub(super) fn take(&self) -> Result<Place, UpstreamError> {
        self.all.clone().try_acquire_owned().map_err(|_| exhausted("it has its maximum of connections to servers"))
    }

    pub(super) fn are_taken(&self) -> bool {
        are_taken(&self.all)
    }

    /// Counts a request of HTTP/2 as one of this client's until the result is dropped. A client with an IPv6 address has a whole
    /// network.
    ///
    /// # Errors
    /// [`UpstreamError::Exhausted`] if the client has as many as it may.
    pub(super) fn share(&self, client: IpAddr) -> Result<ConcurrencyPermit, UpstreamError> {
        let bits = match network_of(client) {
            IpAddr::V4(client) => client.to_ipv6_mapped().octets(),
            IpAddr::V6(client) => client.octets(),
        };
        let acquired = self.in_flight.acquire(Fingerprint::from_bytes(bits), self.share);
        acquired.map(|(permit, _)| permit).ok_or_else(|| exhausted("the client has its maximum of requests at servers"))
    }
}

pub(super) fn are_taken(places: &Semaphore) -> bool {
    places.available_permits() == 0
}

fn exhausted(why: &str) -> UpstreamError {
    UpstreamError::Exhausted(io::Error::other(why))
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
}
