//! The state of an endpoint for all workers: what is in flight, what has failed, and whether it gets requests. A request
//! touches only atomics. What changes rarely is behind a lock.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::health::{Availability, Health};
use super::load::{ClientBit, Load};
use super::overload::gradient::{GradientLimit, Samples};
use crate::base::clock::Monotonic;
use crate::config::{AdaptiveBounds, Ejection, HealthCheck};

#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) load: Load,
    failures_in_row: AtomicU32,
    /// The clients of these, as bits.
    failing: AtomicU64,
    /// The number of an [`Availability`].
    availability: AtomicU8,
    failures: AtomicU64,
    ejections: AtomicU64,
    failed_checks: AtomicU64,
    health: Mutex<Health>,
    pub(super) adaptive: AdaptiveLimit,
}

/// For metrics and the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    pub availability: Availability,
    pub in_flight: usize,
    pub requests: u64,
    pub failures: u64,
    pub failures_in_row: u32,
    pub ejections: u64,
    pub failed_checks: u64,
    /// The smoothed time until the head of a response; `None` if there was none.
    pub latency: Option<Duration>,
}

impl EndpointState {
    pub(super) fn new(is_checked: bool, workers: usize) -> Self {
        let (load, health) = (Load::new(workers), Health::new(is_checked));
        let (availability, health) = (AtomicU8::new(health.availability() as u8), Mutex::new(health));
        let (failures_in_row, failing, failures, ejections, failed_checks, adaptive) = Default::default();
        Self { load, failures_in_row, failing, availability, failures, ejections, failed_checks, health, adaptive }
    }

    pub(super) fn succeeded(&self, worker: usize, client: ClientBit, now: Monotonic) {
        self.load.served(worker, client, now);
        // A request that only reads does not take the cache line from other cores.
        if self.failures_in_row.load(Ordering::Relaxed) != 0 {
            self.end_row();
        }
    }

    fn end_row(&self) {
        self.failures_in_row.store(0, Ordering::Relaxed);
        self.failing.store(0, Ordering::Relaxed);
    }

    /// Returns the failures in a row.
    pub(super) fn failed(&self, client: ClientBit) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.failing.fetch_or(client.0, Ordering::Relaxed);
        self.failures_in_row.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Whether the failures in a row have more clients than the server has lately answered besides. Otherwise one client, with
    /// requests that fail, could take a server away from all others.
    pub(super) fn fails_for_most(&self, now: Monotonic) -> bool {
        let failing = self.failing.load(Ordering::Relaxed);
        failing.count_ones() > (self.load.served_lately(now) & !failing).count_ones()
    }

    /// Whether the failures in a row may be the fault of their only client, because servers of the upstream have lately answered
    /// others, `served`.
    pub(super) fn is_doubted(&self, served: u64) -> bool {
        let failing = self.failing.load(Ordering::Relaxed);
        failing.count_ones() < 2 && served & !failing != 0
    }

    /// Records a response that counts as a failure, but shows that the server works.
    pub(super) fn answered_in_vain(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.end_row();
    }

    /// Returns for how long; `None` if it gets no requests already.
    pub(super) fn eject(&self, rules: &Ejection, now: Monotonic) -> Option<Duration> {
        if self.availability() != Availability::Available {
            return None;
        }
        let mut health = self.health.lock();
        if health.availability() != Availability::Available {
            return None;
        }
        let time = health.eject(rules, now);
        self.ejections.fetch_add(1, Ordering::Relaxed);
        self.publish(&health);
        Some(time)
    }

    pub(super) fn checked(&self, is_good: bool, rules: &HealthCheck, now: Monotonic) {
        if !is_good {
            self.failed_checks.fetch_add(1, Ordering::Relaxed);
        }
        let mut health = self.health.lock();
        health.checked(is_good, rules, now);
        self.publish(&health);
    }

    /// Ends an ejection that is over or is doubted, and records whether the endpoint `is_checked`. Servers of its upstream have
    /// lately answered the clients `served`.
    pub(super) fn advance(&self, is_checked: bool, served: u64, now: Monotonic) {
        let mut health = self.health.lock();
        health.set_checked(is_checked);
        if health.advance(self.is_doubted(served), now) {
            self.failing.store(0, Ordering::Relaxed);
        }
        self.publish(&health);
    }

    fn publish(&self, health: &Health) {
        self.availability.store(health.availability() as u8, Ordering::Relaxed);
    }

    pub(super) fn availability(&self) -> Availability {
        let number = usize::from(self.availability.load(Ordering::Relaxed));
        Availability::ALL.get(number).copied().unwrap_or(Availability::Available)
    }

    pub(super) fn status(&self) -> EndpointStatus {
        EndpointStatus {
            availability: self.availability(),
            in_flight: self.load.in_flight(),
            requests: self.load.requests(),
            failures: self.failures.load(Ordering::Relaxed),
            failures_in_row: self.failures_in_row.load(Ordering::Relaxed),
            ejections: self.ejections.load(Ordering::Relaxed),
            failed_checks: self.failed_checks.load(Ordering::Relaxed),
            latency: self.load.latency(),
        }
    }
}

/// How many requests should be in flight at an endpoint, derived from its load.
#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    limit: AtomicUsize,
    /// The rule, and what was measured when it was applied last.
    gradient: Mutex<(GradientLimit, Option<Samples>)>,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        let gradient = GradientLimit::default();
        let limit = AtomicUsize::new(gradient.limit(AdaptiveBounds { min: 1, max: usize::MAX }));
        Self { limit, gradient: Mutex::new((gradient, None)) }
    }
}

impl AdaptiveLimit {
    pub(super) fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn advance(&self, load: &Load, bounds: AdaptiveBounds, now: Monotonic) {
        let work = load.work_by_group();
        let (gradient, before) = &mut *self.gradient.lock();
        let mut new = work;
        let before = before.replace(work).unwrap_or(work);
        new.iter_mut().zip(before).for_each(|(new, before)| *new = new.since(before));
        gradient.observe(&new, load.in_flight(), bounds, now);
        load.cut_at(gradient.longest());
        self.limit.store(gradient.limit(bounds), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EJECTION: Ejection = Ejection {
        failures: 3,
        statuses: Vec::new(),
        first: Duration::from_secs(10),
        longest: Duration::from_secs(60),
    };

    #[test]
    fn an_answer_between_failures_counts_from_zero_again() {
        let state = EndpointState::new(false, 2);
        let failed = || state.failed(ClientBit::OWN);
        assert_eq!([failed(), failed()], [1, 2]);
        state.succeeded(0, ClientBit::OWN, Monotonic::from_micros(0));
        assert_eq!([failed(), failed()], [1, 2]);
        state.answered_in_vain();
        assert_eq!((failed(), state.status().failures), (1, 6));
        let now = Monotonic::from_micros(0);
        assert_eq!(state.eject(&EJECTION, now), Some(EJECTION.first));
        assert_eq!(state.eject(&EJECTION, now), None, "another worker was faster");
        assert_eq!(failed(), 2, "a request that was sent before");
        state.advance(false, 0, now.after(EJECTION.first));
        assert_eq!(failed(), 3, "the next failure after the return");
    }

    #[test]
    fn a_server_fails_for_most_if_more_clients_fail_than_are_answered_besides() {
        let state = EndpointState::new(false, 2);
        let [one, two, three] = [1, 2, 4].map(ClientBit);
        let at = |seconds: u64| Monotonic::from_micros(seconds * 1_000_000);
        state.failed(one);
        assert!(state.fails_for_most(at(9)), "nobody is answered");
        state.succeeded(0, one, at(10));
        state.succeeded(1, two, at(10));
        (0..9).for_each(|_| _ = state.failed(one));
        assert!(!state.fails_for_most(at(10)), "it answers another client");
        state.failed(three);
        assert!(state.fails_for_most(at(10)));
        state.succeeded(1, two, at(11));
        state.failed(one);
        assert!(!state.fails_for_most(at(11)));
        assert!(state.fails_for_most(at(20)), "that was long ago");
    }

    #[test]
    fn one_client_takes_no_server_away_once_others_are_answered() {
        let state = EndpointState::new(false, 2);
        let (now, [one, other]) = (Monotonic::from_micros(0), [1, 2].map(ClientBit));
        (0..3).for_each(|_| _ = state.failed(one));
        assert!(state.fails_for_most(now) && !state.is_doubted(0), "it is the only client");
        state.eject(&EJECTION, now);
        state.advance(false, one.0, now);
        assert_eq!(state.availability(), Availability::Ejected);
        state.advance(false, other.0, now);
        assert_eq!(state.availability(), Availability::Available, "another server answers another client");
        state.failed(one);
        assert!(state.is_doubted(other.0));
        state.failed(other);
        assert!(!state.is_doubted(4) && state.fails_for_most(now), "it fails for both");
        state.eject(&EJECTION, now);
        state.advance(false, 4, now);
        assert_eq!(state.availability(), Availability::Ejected);
        state.advance(false, 4, now.after(2 * EJECTION.first));
        state.failed(one);
        assert!(state.is_doubted(4), "after its return, it is judged anew");
    }
}
