//! The result of a simulation.

use std::time::Duration;

use super::exact::Excess;
use super::server::Work;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Decided by `on_error`.
    pub(crate) unknown: u64,
    /// Answered from a remembered refusal, and from the last known counts without Memcached.
    pub(crate) remembered: u64,
    pub(crate) local: u64,
    /// For each server.
    pub(crate) work: Vec<Work>,
    /// CPU seconds of each server.
    pub(crate) cpu: Vec<f64>,
    /// For each key, when admitted requests asked, in nanoseconds.
    pub(crate) admissions: Vec<Vec<u64>>,
    /// How long requests waited, in seconds: the mean, and the 99th percentile.
    pub(crate) wait: (f64, f64),
}

impl Outcome {
    pub(crate) fn excess(&mut self, quota: u64, window: Duration) -> Excess {
        let window = u64::try_from(window.as_nanos()).unwrap();
        let excesses = self.admissions.iter_mut().map(|times| Excess::of(times, quota, window));
        excesses.fold(Excess::default(), Excess::with)
    }
}
