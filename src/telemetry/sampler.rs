//! Which refusals the access log leaves out when it is sampled: a flood must not write as much as it sends.
//!
//! Of each client the first few refusals of a second are written, and one line afterwards says how many more there were.
//! Clients that are too many to be told apart are counted together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use foldhash::fast::RandomState;

/// The refusals of a client that are written each second.
const WRITTEN: u64 = 5;
/// The clients that are told apart each second.
const CLIENTS: usize = 256;

/// The refusals of this second that one worker has seen.
#[derive(Debug, Default)]
pub struct Sampler {
    /// By client; by none those that came when there was no more room.
    seen: RefCell<HashMap<Option<Client>, u64, RandomState>>,
}

/// An IPv4 address, or the network of 64 bits that somebody with an IPv6 address mostly has for himself.
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
    /// Counts a refusal of this client; whether it is written.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let mut seen = self.seen.borrow_mut();
        let client = Some(Client::of(client));
        let is_told_apart = seen.len() < CLIENTS || seen.contains_key(&client);
        let count = seen.entry(client.filter(|_| is_told_apart)).or_default();
        *count += 1;
        *count <= WRITTEN
    }

    /// Begins a new second: logs how many refusals of the last one were left out.
    pub fn turn(&self) {
        for (client, refusals) in self.left_out() {
            let client = client.map_or("others".to_owned(), |client| client.to_string());
            tracing::info!(client, refusals, "refused requests that have no line of their own");
        }
    }

    fn left_out(&self) -> Vec<(Option<Client>, u64)> {
        let mut seen = self.seen.borrow_mut();
        let left_out = seen.drain().filter(|(_, count)| *count > WRITTEN);
        left_out.map(|(client, count)| (client, count - WRITTEN)).collect()
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
        assert_eq!(written, (CLIENTS as u64 + 1) * WRITTEN);
        let left_out = sampler.left_out();
        assert_eq!(left_out.len(), CLIENTS + 1);
        assert_eq!(left_out.iter().map(|(_, count)| count).sum::<u64>() + written, 100_000);
    }
}
