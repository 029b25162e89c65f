//! Samples refusals for the access log, so that a flood of requests does not cause a flood of lines.
//!
//! The first few refusals of each client in a second are logged, and one line afterwards says how many were not. If there are
//! too many clients in a second, the remaining ones are counted together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;

use crate::net::network_of;

const LOGGED: u64 = 5;
/// How many clients are counted separately each second.
const MAX_CLIENTS: usize = 256;

/// The refusals of this second on one worker.
#[derive(Debug, Default)]
pub struct Sampler {
    /// By the network of the client; `None` counts all clients beyond the first [`MAX_CLIENTS`].
    seen: RefCell<HashMap<Option<IpAddr>, u64, RandomState>>,
}

impl Sampler {
    /// Counts a refusal of this client. Returns whether it is logged.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let mut seen = self.seen.borrow_mut();
        let client = Some(network_of(client));
        let has_own_count = seen.len() < MAX_CLIENTS || seen.contains_key(&client);
        let count = seen.entry(client.filter(|_| has_own_count)).or_default();
        *count += 1;
        *count <= LOGGED
    }

    /// Begins a new second, and logs how many refusals of the last one were left out.
    pub fn next_second(&self) {
        for (client, refusals) in self.left_out() {
            let client = match client {
                None => "others".to_owned(),
                Some(IpAddr::V4(address)) => address.to_string(),
                Some(IpAddr::V6(network)) => format!("{network}/64"),
            };
            tracing::info!(client, refusals, "further refusals, which are not logged one by one");
        }
    }

    fn left_out(&self) -> Vec<(Option<IpAddr>, u64)> {
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
        assert_eq!(left_out, [("192.0.2.1".to_owned(), 2), ("2001:db8::".to_owned(), 5)]);
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
