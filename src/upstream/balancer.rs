//! Chooses an endpoint for each request: the endpoints of an upstream share the requests by their weights.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::endpoint::Endpoint;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Balancer {
    endpoints: Vec<Endpoint>,
    /// Indices of endpoints, each as often as its weight, and spread evenly.
    schedule: Vec<usize>,
    next: AtomicUsize,
}

impl Balancer {
    /// A balancer over these endpoints with their weights.
    pub(super) fn new(weighted: Vec<(Endpoint, u32)>) -> Self {
        let weights: Vec<u32> = weighted.iter().map(|(_, weight)| *weight).collect();
        let endpoints = weighted.into_iter().map(|(endpoint, _)| endpoint).collect();
        Self { endpoints, schedule: schedule(&weights), next: AtomicUsize::new(0) }
    }

    /// All endpoints.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The endpoint for the next request; `None` if there are none.
    pub(super) fn choose(&self) -> Option<&Endpoint> {
        let turns = self.schedule.len();
        let turn = if turns > 1 { self.next.fetch_add(1, Ordering::Relaxed) % turns } else { 0 };
        self.endpoints.get(*self.schedule.get(turn)?)
    }
}

/// Spreads indices evenly (smooth weighted round-robin): the next one is that whose share is furthest behind.
fn schedule(weights: &[u32]) -> Vec<usize> {
    let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    let mut owed = vec![0i64; weights.len()];
    let mut turn = || {
        owed.iter_mut().zip(weights).for_each(|(owed, weight)| *owed += i64::from(*weight));
        let chosen = (0..owed.len()).max_by_key(|index| (owed[*index], std::cmp::Reverse(*index)))?;
        owed[chosen] -= total;
        Some(chosen)
    };
    (0..total).map_while(|_| turn()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_by_weight() {
        assert_eq!(schedule(&[1]), [0]);
        assert_eq!(schedule(&[1, 1]), [0, 1]);
        assert_eq!(schedule(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(schedule(&[]), Vec::<usize>::new());
        assert_eq!(schedule(&[100, 50, 1]).len(), 151);
    }
}
