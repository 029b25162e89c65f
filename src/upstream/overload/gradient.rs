//! How many requests a server should have in flight, learnt from the time until its responses.
//!
//! The formula is that of gradient2 in Netflix's concurrency-limits (<https://github.com/Netflix/concurrency-limits>): the limit
//! is multiplied by the ratio of the response time without a queue to the one now, and grows by its own square root, which is
//! how much may queue. In gradient2, the time without a queue is a long-term mean, which also grows if an overload lasts.
//! Here it is measured from time to time at two fifths of the limit, as in Envoy's filter for adaptive concurrency.
//!
//! The mean is one of times that are cut off where more of them would not lower the limit faster. So a few requests that take very
//! long, of one client or to one path, do not look like a queue, in which all requests wait.

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
/// The earliest probe if the limit has fallen to less than half since the last one: a server may have got slower without a
/// queue.
const PROBED_AFTER_FALL: Duration = Duration::from_secs(2);
/// The share of the limit during a probe.
const PROBED_AT: f64 = 0.4;
/// If responses take at most so many times as long as without a queue, there is nothing to measure.
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
    /// The sum of the same times, of which none counts as more than [`GradientLimit::longest`].
    pub cut: u64,
}

impl Sample {
    /// The sum of both, which wraps.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            responses: self.responses.wrapping_add(other.responses),
            micros: self.micros.wrapping_add(other.micros),
            cut: self.cut.wrapping_add(other.cut),
        }
    }

    /// The difference, which wraps.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            responses: self.responses.wrapping_sub(before.responses),
            micros: self.micros.wrapping_sub(before.micros),
            cut: self.cut.wrapping_sub(before.cut),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct GradientLimit {
    limit: f64,
    /// The time until a response without a queue, in microseconds.
    unloaded: Option<f64>,
    /// What was measured since the last change of the limit.
    sample: Sample,
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
            sample: Sample::default(),
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
        self.unloaded.map_or(u64::MAX, |unloaded| (unloaded * TOLERANCE / LOWEST) as u64).max(1)
    }

    /// `new` has the responses since the last call.
    #[expect(clippy::cast_precision_loss, reason = "a sum beyond 2^53 microseconds would take centuries")]
    pub fn observe(&mut self, new: Sample, in_flight: usize, bounds: AdaptiveBounds, now: Monotonic) {
        let since = *self.since.get_or_insert(now);
        self.sample.responses += new.responses;
        self.sample.micros = self.sample.micros.saturating_add(new.micros);
        self.sample.cut = self.sample.cut.saturating_add(new.cut);
        let age = Duration::from_micros(now.micros_since(since));
        match self.probe {
            Probe::Emptying(until) => {
                // Earlier requests have waited in the queue.
                if in_flight <= self.limit(bounds) && age >= self.mean() || now >= until {
                    self.probe = Probe::Measuring(now.after(LONGEST_PROBE));
                    self.restart(now);
                }
            }
            Probe::Measuring(until) => {
                if self.sample.responses >= PROBED || now >= until {
                    self.probed_limit = self.limit;
                    if self.sample.responses >= ENOUGH {
                        self.unloaded = Some(self.sample.cut as f64 / self.sample.responses as f64);
                    }
                    self.probe = Probe::Last(now);
                    self.restart(now);
                }
            }
            Probe::Last(last) => {
                let is_enough = self.sample.responses >= ENOUGH || age >= LONG_ENOUGH;
                if self.sample.responses == 0 || !is_enough {
                    return;
                }
                let has_queue = self.update(age, bounds);
                let pause = if self.limit < self.probed_limit / 2.0 { PROBED_AFTER_FALL } else { PROBED_EVERY };
                if has_queue && now >= last.after(pause) {
                    self.probe = Probe::Emptying(now.after(LONGEST_PROBE));
                }
                self.restart(now);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "limits are small, and times short")]
    fn update(&mut self, age: Duration, bounds: AdaptiveBounds) -> bool {
        let measured = self.sample.cut as f64 / self.sample.responses as f64;
        let unloaded = self.unloaded.map_or(measured, |unloaded| unloaded.min(measured.max(unloaded * 0.9)));
        self.unloaded = Some(unloaded);
        // By Little's law, the sum of the times by the length of the window is how many were in flight. What is cut off is left
        // out: a queue of the few requests to a slow path must not let the limit grow.
        let in_flight = self.sample.cut as f64 / (age.as_micros() as f64).max(1.0);
        let gradient = (TOLERANCE * unloaded / measured.max(1.0)).clamp(LOWEST, 1.0);
        let is_used = in_flight >= self.limit * USED;
        if gradient < 1.0 || is_used {
            let next = self.limit * gradient + self.limit.sqrt();
            self.limit =
                (if is_used { next } else { next.min(self.limit) }).clamp(bounds.min as f64, bounds.max as f64);
        }
        measured > unloaded * NO_QUEUE
    }

    fn mean(&self) -> Duration {
        Duration::from_micros(self.sample.micros.checked_div(self.sample.responses).unwrap_or(0))
    }

    fn restart(&mut self, now: Monotonic) {
        (self.sample, self.since) = (Sample::default(), Some(now));
    }
}
