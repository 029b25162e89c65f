//! The last answers of the gateway, and rates computed from their differences.

use std::collections::VecDeque;
use std::time::Instant;

use super::feed::Update;
use crate::admin::dashboard::{Limits, Numbers};

/// In milliseconds: rates compare answers that are at most this far apart. One comes about each second.
const SPAN: u64 = 5_500;

#[derive(Debug)]
pub(super) struct Model {
    pub(super) numbers: Numbers,
    pub(super) received: Instant,
    /// Why no newer numbers came; `None` if they came.
    pub(super) away: Option<String>,
    /// With their rates and keys, or why these are not known.
    pub(super) limits: Result<Limits, String>,
    /// Earlier numbers of the same process, the oldest first.
    earlier: VecDeque<Numbers>,
}

impl Model {
    pub(super) fn new(numbers: Numbers, now: Instant) -> Self {
        Self { numbers, received: now, away: None, limits: Ok(Limits::default()), earlier: VecDeque::new() }
    }

    pub(super) fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::Numbers(Ok(numbers)) => {
                self.earlier.push_back(std::mem::replace(&mut self.numbers, *numbers));
                let (started, time) = (self.numbers.started, self.numbers.time_ms);
                let recent = time.saturating_sub(SPAN)..time;
                // Another process counts from 0, and a clock may be set back.
                self.earlier.retain(|numbers| numbers.started == started && recent.contains(&numbers.time_ms));
                (self.received, self.away) = (now, None);
            }
            Update::Numbers(Err(why)) => self.away = Some(why),
            Update::Limits(limits) => self.limits = limits,
        }
    }

    /// The growth per second of the counter that `read` finds; `None` if there is nothing to compare.
    #[expect(clippy::cast_precision_loss, reason = "only the first digits are shown")]
    pub(super) fn per_second(&self, read: impl Fn(&Numbers) -> Option<u64>) -> Option<f64> {
        let (before, now) = (self.earlier.front()?, &self.numbers);
        let growth = read(now)?.saturating_sub(read(before)?);
        Some(growth as f64 * 1000.0 / (now.time_ms - before.time_ms) as f64)
    }
}
