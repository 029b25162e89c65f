//! What has come of a fleet.

use std::time::Duration;

use super::exact::Excess;
use super::server::Work;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Decided by `on_error`.
    pub(crate) unknown: u64,
    /// Answered from a remembered refusal, and from what was known last without Memcached.
    pub(crate) remembered: u64,
    pub(crate) local: u64,
    /// Of each server.
    pub(crate) work: Vec<Work>,
    /// Seconds of the processor, of each server.
    pub(crate) cpu: Vec<f64>,
    /// The times in nanoseconds at which admitted requests of each key asked.
    pub(crate) admissions: Vec<Vec<u64>>,
    /// How long requests waited, in seconds: the mean, and one in a hundred longer than.
    pub(crate) wait: (f64, f64),
}

impl Outcome {
    /// By how much the admissions of any key have exceeded the limit.
    pub(crate) fn excess(&mut self, quota: u64, window: Duration) -> Excess {
        let window = u64::try_from(window.as_nanos()).unwrap();
        let excesses = self.admissions.iter_mut().map(|times| Excess::of(times, quota, window));
        excesses.fold(Excess::default(), Excess::with)
    }
}
