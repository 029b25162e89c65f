//! How many requests a server should have in flight, learnt from the time until its responses.
//!
//! The formula is that of gradient2 in Netflix's concurrency-limits (<https://github.com/Netflix/concurrency-limits>): the limit
//! is multiplied by the ratio of the response time without a queue to the one now, and grows by its own square root, which is
//! how much may queue. In gradient2, the time without a queue is a long-term mean, which also grows if an overload lasts.
//! Here it is measured from time to time at two fifths of the limit, as in Envoy's filter for adaptive concurrency.
//!
//! A response time is the mean of the times of each group of clients, and of these the mean without the highest and the lowest
//! quarter. So one client does not decide, however many fast or slow requests it sends. Except during a measurement without a
//! queue, times are cut off where more of them would not lower the limit faster. So a few requests that take very long, of all
//! clients to one path, do not look like a queue, in which all requests wait.

use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::config::AdaptiveBounds;

/// How many times as long as without a queue a response may take.
const TOLERANCE: f64 = 1.5;
/// The smallest ratio by which the limit is multiplied at once.
const LOWEST: f64 = 0.5;
/// The limit at the beginning, as in gradient2.
const FIRST: f64 = 20.0;
/// How many responses a measurement needs, and after how long fewer are enough.
const ENOUGH: u64 = 20;
const LONG_ENOUGH: Duration = Duration::from_secs(1);
/// How often the time without a queue is measured again.
const PROBED_EVERY: Duration = Duration::from_secs(30);
/// The earliest probe if the limit has fallen to less than half since the last one, or as far as it can: a server may have got
/// slower without a queue.
const PROBED_AFTER_FALL: Duration = Duration::from_secs(2);
/// The share of the limit during a probe.
const PROBED_AT: f64 = 0.4;
/// If responses take at most so many times as long as without a queue, or as short, there is nothing to measure.
const NO_QUEUE: f64 = 1.2;
/// How many responses a probe takes.
const PROBED: u64 = 50;
/// A probe is given up after this time.
const LONGEST_PROBE: Duration = Duration::from_secs(5);
/// In less use than this share, the limit does not grow.
const USED: f64 = 0.5;

/// Responses, and the sum of the times until each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub responses: u64,
    pub micros: u64,
}

/// For each group of clients. No time counts as more than [`GradientLimit::longest`].
pub type Samples = [Sample; 64];

impl Sample {
    /// The sum of both, which wraps.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { responses: self.responses.wrapping_add(other.responses), micros: self.micros.wrapping_add(other.micros) }
    }

    /// The difference, which wraps.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            responses: self.responses.wrapping_sub(before.responses),
            micros: self.micros.wrapping_sub(before.micros),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct GradientLimit {
    limit: f64,
    /// The time until a response without a queue, in microseconds.
    unloaded: Option<f64>,
    /// What was measured since the last change of the limit.
    samples: Samples,
    since: Option<Monotonic>,
    probe: Probe,
    probed_limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Probe {
    /// When the last probe ended.
    Last(Monotonic),
    /// The limit is lowered until the queue is empty, at the latest until this time.
    Emptying(Monotonic),
    /// Responses are measured, at the latest until this time.
    Measuring(Monotonic),
}

impl Default for GradientLimit {
    fn default() -> Self {
        Self {
            limit: FIRST,
            unloaded: None,
            samples: [Sample::default(); 64],
            since: None,
            probe: Probe::Last(Monotonic::from_micros(0)),
            probed_limit: FIRST,
        }
    }
}

impl GradientLimit {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between the bounds")]
    pub fn limit(&self, bounds: AdaptiveBounds) -> usize {
        let limit = match self.probe {
            Probe::Last(_) => self.limit,
            Probe::Emptying(_) | Probe::Measuring(_) => self.limit * PROBED_AT,
        };
        (limit as usize).clamp(bounds.min, bounds.max)
    }

    /// In microseconds, at least 1. If all responses take so long, the limit falls as fast as it can.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is positive, and saturates")]
    pub fn longest(&self) -> u64 {
        match (self.probe, self.unloaded) {
            (Probe::Last(_), Some(unloaded)) => ((unloaded * TOLERANCE / LOWEST) as u64).max(1),
            _ => u64::MAX,
        }
    }

    /// `new` has the responses since the last call.
    #[expect(clippy::cast_precision_loss, reason = "times are short, and bounds small")]
    pub fn observe(&mut self, new: &Samples, in_flight: usize, bounds: AdaptiveBounds, now: Monotonic) {
        let since = *self.since.get_or_insert(now);
        self.samples.iter_mut().zip(new).for_each(|(sample, new)| *sample = sample.and(*new));
        let responses = self.samples.iter().map(|sample| sample.responses).sum::<u64>();
        let age = Duration::from_micros(now.micros_since(since));
        match self.probe {
            Probe::Emptying(until) => {
                // Earlier requests have waited in the queue.
                if in_flight <= self.limit(bounds) && age.as_micros() as f64 >= self.measured() || now >= until {
                    self.probe = Probe::Measuring(now.after(LONGEST_PROBE));
                    self.restart(now);
                }
            }
            Probe::Measuring(until) => {
                if responses >= PROBED || now >= until {
                    self.probed_limit = self.limit;
                    if responses > 0 {
                        self.unloaded = Some(self.measured());
                    }
                    self.probe = Probe::Last(now);
                    self.restart(now);
                }
            }
            Probe::Last(last) => {
                let is_enough = responses >= ENOUGH || age >= LONG_ENOUGH;
                if responses == 0 || !is_enough {
                    return;
                }
                let is_new = self.update(age, bounds);
                let has_fallen = self.limit < self.probed_limit / 2.0 || self.limit <= bounds.min as f64;
                let pause = if has_fallen { PROBED_AFTER_FALL } else { PROBED_EVERY };
                if is_new && now >= last.after(pause) {
                    self.probe = Probe::Emptying(now.after(LONGEST_PROBE));
                }
                self.restart(now);
            }
        }
    }

    /// Returns whether the time without a queue is probably another one than known.
    #[expect(clippy::cast_precision_loss, reason = "limits are small, and times short")]
    fn update(&mut self, age: Duration, bounds: AdaptiveBounds) -> bool {
        let measured = self.measured();
        let unloaded = *self.unloaded.get_or_insert(measured);
        // By Little's law, the sum of the times by the length of the window is how many were in flight. What is cut off is left
        // out: a queue of the few requests to a slow path must not let the limit grow.
        let micros = self.samples.iter().map(|sample| sample.micros as f64).sum::<f64>();
        let in_flight = micros / (age.as_micros() as f64).max(1.0);
        let gradient = (TOLERANCE * unloaded / measured.max(1.0)).clamp(LOWEST, 1.0);
        let is_used = in_flight >= self.limit * USED;
        if gradient < 1.0 || is_used {
            let next = self.limit * gradient + self.limit.sqrt();
            self.limit =
                (if is_used { next } else { next.min(self.limit) }).clamp(bounds.min as f64, bounds.max as f64);
        }
        !(unloaded / NO_QUEUE..=unloaded * NO_QUEUE).contains(&measured)
    }

    /// The mean of the means of the groups of clients, without the highest and the lowest quarter of these.
    #[expect(clippy::cast_precision_loss, reason = "a sum beyond 2^53 microseconds would take centuries")]
    fn measured(&self) -> f64 {
        let mean = |sample: &Sample| (sample.responses > 0).then(|| sample.micros as f64 / sample.responses as f64);
        let mut means: Vec<_> = self.samples.iter().filter_map(mean).collect();
        means.sort_by(f64::total_cmp);
        let left_out = means.len().div_ceil(4).min(means.len().saturating_sub(1) / 2);
        let kept = &means[left_out..means.len() - left_out];
        kept.iter().sum::<f64>() / kept.len().max(1) as f64
    }

    fn restart(&mut self, now: Monotonic) {
        (self.samples, self.since) = ([Sample::default(); 64], Some(now));
    }
}
