//! Samples refusals for the access log, so that a flood of requests does not cause a flood of lines.
//!
//! The first few refusals of each client in a second are logged, and one line afterwards says how many were not. If
//! there are too many clients in a second, the remaining ones are counted together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use foldhash::fast::RandomState;

/// How many refusals of a client are logged each second.
const LOGGED: u64 = 5;
/// How many clients are counted one by one each second.
const MAX_CLIENTS: usize = 256;

/// The refusals of this second that one worker has seen.
#[derive(Debug, Default)]
pub struct Sampler {
    /// By client; `None` counts all clients beyond the first [`MAX_CLIENTS`].
    seen: RefCell<HashMap<Option<Client>, u64, RandomState>>,
}

/// An IPv4 address, or the /64 network of an IPv6 address, which mostly belongs to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client(IpAddr);

impl Client {
    fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

impl Sampler {
    /// Counts a refusal of this client. Returns whether it is logged.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let mut seen = self.seen.borrow_mut();
        let client = Some(Client::of(client));
        let has_own_count = seen.len() < MAX_CLIENTS || seen.contains_key(&client);
        let count = seen.entry(client.filter(|_| has_own_count)).or_default();
        *count += 1;
        *count <= LOGGED
    }

    /// Begins a new second, and logs how many refusals of the last one were left out.
    pub fn next_second(&self) {
        for (client, refusals) in self.left_out() {
            let client = client.map_or("others".to_owned(), |client| client.to_string());
            tracing::info!(client, refusals, "further refusals, which are not logged one by one");
        }
    }

    fn left_out(&self) -> Vec<(Option<Client>, u64)> {
        let mut seen = self.seen.borrow_mut();
        let left_out = seen.drain().filter(|(_, count)| *count > LOGGED);
        left_out.map(|(client, count)| (client, count - LOGGED)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_each_client_and_second_are_written() {
        let sampler = Sampler::default();
        let ask = |address: &str, count: u64| {
            let address = address.parse().unwrap();
            (0..count).filter(|_| sampler.admits(address)).count()
        };
        assert_eq!([ask("192.0.2.1", 3), ask("192.0.2.1", 4), ask("192.0.2.2", 5)], [3, 2, 5]);
        assert_eq!([ask("2001:db8::1", 5), ask("2001:db8::2", 5), ask("2001:db8:0:1::1", 5)], [5, 0, 5]);
        let mut left_out = sampler.left_out();
        left_out.sort_unstable_by_key(|(_, count)| *count);
        let left_out: Vec<_> = left_out.iter().map(|(client, count)| (client.unwrap().to_string(), *count)).collect();
        assert_eq!(left_out, [("192.0.2.1".to_owned(), 2), ("2001:db8::/64".to_owned(), 5)]);
        assert_eq!(ask("192.0.2.1", 9), 5, "another second");
    }

    #[test]
    fn however_many_clients_there_are_the_lines_are_bounded() {
        let sampler = Sampler::default();
        let mut written = 0;
        for _ in 0..10 {
            for client in 0..10_000_u32 {
                written += u64::from(sampler.admits(IpAddr::V4(client.into())));
            }
        }
        assert_eq!(written, (MAX_CLIENTS as u64 + 1) * LOGGED);
        let left_out = sampler.left_out();
        assert_eq!(left_out.len(), MAX_CLIENTS + 1);
        assert_eq!(left_out.iter().map(|(_, count)| count).sum::<u64>() + written, 100_000);
    }
}
