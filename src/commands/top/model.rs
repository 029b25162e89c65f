//! What is known about the gateway: its last answers, of which two have the difference that a rate is.

use std::collections::VecDeque;
use std::time::Instant;

use super::feed::Update;
use crate::admin::dashboard::{Limits, Numbers};

/// Rates are differences of answers that are at most so many milliseconds apart. One comes about each second.
const SPAN: u64 = 5_500;

/// The last answers of the gateway.
#[derive(Debug)]
pub(super) struct Model {
    /// The last numbers.
    pub(super) numbers: Numbers,
    /// When they came.
    pub(super) received: Instant,
    /// Why there are no newer ones; `None` if there are.
    pub(super) away: Option<String>,
    /// The limits with their rates and keys, or why they are not known.
    pub(super) limits: Result<Limits, String>,
    /// The numbers of the same process before the last, the oldest first.
    earlier: VecDeque<Numbers>,
}

impl Model {
    /// The first numbers, which came at `now`.
    pub(super) fn new(numbers: Numbers, now: Instant) -> Self {
        Self { numbers, received: now, away: None, limits: Ok(Limits::default()), earlier: VecDeque::new() }
    }

    /// Takes over what has come at `now`.
    pub(super) fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::Numbers(Ok(numbers)) => {
                self.earlier.push_back(std::mem::replace(&mut self.numbers, *numbers));
                let (started, time) = (self.numbers.started, self.numbers.time_ms);
                let recent = time.saturating_sub(SPAN)..time;
                // Another process counts anew, and a clock may be set back.
                self.earlier.retain(|numbers| numbers.started == started && recent.contains(&numbers.time_ms));
                (self.received, self.away) = (now, None);
            }
            Update::Numbers(Err(why)) => self.away = Some(why),
            Update::Limits(limits) => self.limits = limits,
        }
    }

    /// By how much the counter that `read` finds grows in a second; `None` if there is nothing to compare.
    #[expect(clippy::cast_precision_loss, reason = "only the first digits are shown")]
    pub(super) fn per_second(&self, read: impl Fn(&Numbers) -> Option<u64>) -> Option<f64> {
        let (before, now) = (self.earlier.front()?, &self.numbers);
        let growth = read(now)?.saturating_sub(read(before)?);
        Some(growth as f64 * 1000.0 / (now.time_ms - before.time_ms) as f64)
    }
}
