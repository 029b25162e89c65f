//! The token bucket, as the generic cell rate algorithm keeps it (ITU-T I.371): not tokens that drip in, but how much
//! of the bucket is used as of a moment, which drains at the rate.
//!
//! A request of cost 1 uses as many units as the window has microseconds, and in each microsecond as many units drain
//! as the quota has requests: whole numbers, nothing rounded. In these units a raised quota drains faster at once.

use super::rate::Rate;

/// The use of a bucket at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket<'a> {
    rate: &'a Rate,
    burst: u64,
    used: u128,
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

impl<'a> Bucket<'a> {
    pub(super) fn new(rate: &'a Rate, burst: u64, used: u128) -> Self {
        Self { rate, burst, used }
    }

    /// The tokens that are not there in full.
    pub(super) fn missing(&self) -> u64 {
        u64::try_from(self.used.div_ceil(u128::from(self.rate.span()))).unwrap_or(u64::MAX)
    }

    pub(super) fn remaining(&self) -> u64 {
        let free = units(self.rate, self.burst).saturating_sub(self.used) / u128::from(self.rate.span());
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    /// Microseconds until `need` tokens are there: until the bucket is used little enough.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        let room = units(self.rate, self.burst.checked_sub(need)?);
        Some(draining(self.rate, self.used.saturating_sub(room)))
    }
}
