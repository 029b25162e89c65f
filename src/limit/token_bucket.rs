//! The token bucket, as the generic cell rate algorithm computes it (ITU-T I.371): the state is not how many tokens there
//! are but how much of the bucket was used at some moment, and that drains at the rate.
//!
//! A request of cost 1 uses as many units as the window has microseconds, and in each microsecond as many units drain
//! as the quota has requests. All numbers are whole, so nothing is rounded, and a raised quota drains faster at once.

use super::bounds::{JITTER, MAX_COUNT, is_ahead};
use super::rate::Rate;
use crate::clock::Time;

/// How much of a bucket was used at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenBucket {
    /// In microseconds since 1970.
    moment: u64,
    /// The units, the higher half first. As a `u128` they would have to lie at a multiple of 16 bytes, which would make
    /// every state larger.
    used: [u64; 2],
}

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(now: Time) -> Self {
        Self { moment: now.micros(), used: [0; 2] }
    }

    /// A bucket of which so many units were used at `moment`, in microseconds since 1970. At most those of [`MAX_COUNT`]
    /// requests count.
    pub(super) fn with_used(rate: &Rate, moment: u64, used: u128) -> Self {
        let mut bucket = Self { moment, used: [0; 2] };
        bucket.set_used(used.min(units(rate, MAX_COUNT)));
        bucket
    }

    /// In microseconds since 1970.
    pub(super) fn moment(&self) -> u64 {
        self.moment
    }

    /// The units that were used at its moment.
    pub(super) fn used(&self) -> u128 {
        let [high, low] = self.used;
        u128::from(high) << 64 | u128::from(low)
    }

    /// The higher and the lower half of these units.
    pub(super) fn used_halves(&self) -> [u64; 2] {
        self.used
    }

    #[expect(clippy::cast_possible_truncation, reason = "these are the two halves")]
    fn set_used(&mut self, used: u128) {
        self.used = [(used >> 64) as u64, used as u64];
    }

    pub(super) fn set_back(&mut self, by: u64) {
        self.moment = self.moment.saturating_sub(by);
    }

    /// Whether the clock was set back, so that the moment of the state is earlier than before.
    pub(super) fn advance(&mut self, rate: &Rate, now: Time) -> bool {
        self.set_used(drained(rate, self.used(), now.micros().saturating_sub(self.moment)));
        let is_set_back = is_ahead(self.moment, now);
        if now.micros() > self.moment || is_set_back {
            self.moment = now.micros();
        }
        is_set_back
    }

    pub(super) fn charge(&mut self, rate: &Rate, cost: u64) {
        let used = self.used().saturating_add(units(rate, cost));
        self.set_used(used.min(units(rate, MAX_COUNT)));
    }

    /// Raises what is used to what is used of another bucket at about the same moment.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.used() < least.used() {
            *self = Self { moment: self.moment.max(least.moment), used: least.used };
        }
    }

    pub(super) fn take_back(&mut self, rate: &Rate, cost: u64) {
        self.take_units(units(rate, cost));
    }

    pub(super) fn take_units(&mut self, units: u128) {
        self.set_used(self.used().saturating_sub(units));
    }

    /// How many of the `units` that were used at `since` cannot have drained since then, because the rate does not drain as
    /// much. None are certain if the clock was set back in between.
    pub(super) fn certain(&self, rate: &Rate, units: u128, since: u64) -> u128 {
        if self.moment.saturating_add(JITTER) < since {
            return 0;
        }
        drained(rate, units, self.moment.saturating_sub(since))
    }

    /// Microseconds until a bucket is full of which `cost` more is used.
    pub(super) fn time_to_drain(&self, rate: &Rate, cost: u64) -> u64 {
        draining(rate, self.used().saturating_add(units(rate, cost)))
    }

    pub(super) fn is_spent(&self, rate: &Rate, now: Time) -> bool {
        drained(rate, self.used(), now.micros().saturating_sub(self.moment)) == 0
    }

    pub(super) fn usage<'a>(&self, rate: &'a Rate) -> Usage<'a> {
        Usage { rate, used: self.used() }
    }
}

/// The units that are used after `elapsed` microseconds of draining.
pub(super) fn drained(rate: &Rate, used: u128, elapsed: u64) -> u128 {
    used.saturating_sub(u128::from(rate.quota()) * u128::from(elapsed))
}

/// The units that `cost` requests use.
pub(super) fn units(rate: &Rate, cost: u64) -> u128 {
    u128::from(cost) * u128::from(rate.span())
}

/// Microseconds until so many units have drained.
pub(super) fn draining(rate: &Rate, used: u128) -> u64 {
    u64::try_from(used.div_ceil(u128::from(rate.quota()))).unwrap_or(u64::MAX)
}

/// What is used of a bucket now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage<'a> {
    rate: &'a Rate,
    used: u128,
}

impl Usage<'_> {
    /// The tokens that are not there in full.
    pub(super) fn missing(&self) -> u64 {
        u64::try_from(self.used.div_ceil(u128::from(self.rate.span()))).unwrap_or(u64::MAX)
    }

    pub(super) fn remaining(&self) -> u64 {
        let free = units(self.rate, self.rate.capacity()).saturating_sub(self.used) / u128::from(self.rate.span());
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    /// Microseconds until `need` tokens are there, which is when little enough of the bucket is used.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        let room = units(self.rate, self.rate.capacity().checked_sub(need)?);
        Some(draining(self.rate, self.used.saturating_sub(room)))
    }
}
