//! What each client has at one server: one with many requests in flight or cancelled gets connections of its own.
//!
//! A server that protects itself ends a connection on which too many streams are reset, with everything in flight there; and
//! bodies that it does not read hold up all others on their connection. Requests are counted by network. A client's own
//! connections belong to one of its connections of HTTP/2, or to all of its connections of HTTP/1.1.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::net::network_of;

/// How many requests a client may have, in flight or cancelled lately, before further ones go to connections of its own. Servers
/// of the library h2 end a connection with more than 20 streams that were reset before they were read.
const MOST_SHARED: usize = 16;
/// A request with a body counts as so many.
const WITH_BODY: usize = 4;
/// After this time, half of the cancelled requests are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Clients {
    known: HashMap<IpAddr, Rc<ClientCounts>, RandomState>,
    /// When some were forgotten last.
    halved_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct ClientCounts {
    in_flight: Cell<usize>,
    cancelled: Cell<usize>,
}

/// A request of a client, which is in flight until this is dropped.
pub(super) struct ClientRequest {
    client: Rc<ClientCounts>,
    /// The number of requests as which it counts.
    weight: usize,
    /// The client whose connections carry it; `None` if it shares one with other clients.
    pub(super) owner: Option<SocketAddr>,
}

impl Clients {
    /// A further request of the client with this address, whose port is that of a connection of HTTP/2.
    pub(super) fn begin(&mut self, address: SocketAddr, has_body: bool) -> ClientRequest {
        let (network, weight) = (network_of(address.ip()), if has_body { WITH_BODY } else { 1 });
        let client = self.known.entry(network).or_default().clone();
        let ClientCounts { in_flight, cancelled } = &*client;
        in_flight.set(in_flight.get() + weight);
        let has_many = in_flight.get() + cancelled.get() > MOST_SHARED;
        ClientRequest { client, weight, owner: has_many.then(|| SocketAddr::new(network, address.port())) }
    }

    /// Forgets old cancelled requests, and clients without requests.
    pub(super) fn check(&mut self, now: Instant) {
        let is_due = now - *self.halved_at.get_or_insert(now) >= HALF_LIFE;
        if is_due {
            self.halved_at = Some(now);
        }
        self.known.retain(|_, client| {
            let ClientCounts { in_flight, cancelled } = &**client;
            cancelled.set(cancelled.get() / if is_due { 2 } else { 1 });
            in_flight.get() + cancelled.get() > 0
        });
    }
}

impl ClientRequest {
    pub(super) fn is_cancelled(&self) {
        self.client.cancelled.set(self.client.cancelled.get() + 1);
    }
}

impl Drop for ClientRequest {
    fn drop(&mut self) {
        self.client.in_flight.set(self.client.in_flight.get() - self.weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_with_many_requests_has_connections_of_its_own() {
        let mut clients = Clients::default();
        for (many, has_body) in [(16, false), (4, true)] {
            let mut requests: Vec<_> = (0..many).map(|_| clients.begin(address("[2001:db8::1]:0"), has_body)).collect();
            assert!(requests.iter().all(|request| request.owner.is_none()));
            let own = clients.begin(address("[2001:db8::2]:7"), has_body);
            assert_eq!(own.owner, Some(address("[2001:db8::]:7")), "it is the same network");
            assert_eq!(clients.begin(address("192.0.2.1:7"), has_body).owner, None);
            drop(own);
            requests.pop();
            assert_eq!(clients.begin(address("[2001:db8::1]:0"), has_body).owner, None);
        }
    }

    #[test]
    fn cancelled_requests_are_forgotten_after_some_time() {
        let (mut clients, begin) = (Clients::default(), Instant::now());
        clients.check(begin);
        for _ in 0..16 {
            let request = clients.begin(address("192.0.2.1:0"), false);
            assert_eq!(request.owner, None);
            request.is_cancelled();
        }
        let mut is_shared_after = |seconds| {
            clients.check(begin + Duration::from_secs(seconds));
            clients.begin(address("192.0.2.1:0"), false).owner.is_none()
        };
        assert_eq!([9, 10, 19].map(&mut is_shared_after), [false, true, true]);
        (20..60).for_each(|second| assert!(is_shared_after(second)));
        clients.check(begin + Duration::from_secs(60));
        assert!(clients.known.is_empty());
    }
}
