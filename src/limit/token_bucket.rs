//! The token bucket, as the generic cell rate algorithm computes it (ITU-T I.371): the state is not how many tokens there
//! are but how much of the bucket was used at some moment, and that drains at the rate.
//!
//! A request of cost 1 uses as many units as the window has microseconds, and in each microsecond as many units drain
//! as the quota has requests. All numbers are whole, so nothing is rounded, and a raised quota drains faster at once.

use super::bounds::{JITTER, MAX_COUNT, is_ahead};
use super::counting::{Advanced, Charge, Counting, GivenBack};
use super::rate::Rate;
use super::varint::{pull, push};
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
    fn with_used(rate: &Rate, moment: u64, used: u128) -> Self {
        let mut bucket = Self { moment, used: [0; 2] };
        bucket.set_used(used.min(units(rate, MAX_COUNT)));
        bucket
    }

    /// The units that were used at its moment.
    fn used(&self) -> u128 {
        let [high, low] = self.used;
        u128::from(high) << 64 | u128::from(low)
    }

    #[expect(clippy::cast_possible_truncation, reason = "these are the two halves")]
    fn set_used(&mut self, used: u128) {
        self.used = [(used >> 64) as u64, used as u64];
    }

    /// How many of the `units` that were used at `since` cannot have drained since then, because the rate does not drain as
    /// much. None are certain if the clock was set back in between.
    fn certain(&self, rate: &Rate, units: u128, since: u64) -> u128 {
        if self.moment.saturating_add(JITTER) < since {
            return 0;
        }
        drained(rate, units, self.moment.saturating_sub(since))
    }

    /// Raises what is used to what is used of another bucket at about the same moment.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.used() < least.used() {
            *self = Self { moment: self.moment.max(least.moment), used: least.used };
        }
    }

    pub(super) fn usage<'a>(&self, rate: &'a Rate) -> Usage<'a> {
        Usage { rate, used: self.used() }
    }
}

impl Counting for TokenBucket {
    fn advance(&mut self, rate: &Rate, now: Time) -> Advanced {
        self.set_used(drained(rate, self.used(), now.micros().saturating_sub(self.moment)));
        let is_set_back = is_ahead(self.moment, now);
        if now.micros() > self.moment || is_set_back {
            self.moment = now.micros();
        }
        Advanced { has_new_counter: false, is_set_back }
    }

    fn is_spent(&self, rate: &Rate, now: Time) -> bool {
        drained(rate, self.used(), now.micros().saturating_sub(self.moment)) == 0
    }

    fn charge(&mut self, rate: &Rate, Charge { cost, since, low_water, .. }: Charge<'_>) {
        // What is charged again was in the bucket all the while.
        if let Some(low_water) = low_water.filter(|_| since.is_none()) {
            low_water.note(self.moment, self.used());
        }
        let used = self.used().saturating_add(units(rate, cost));
        self.set_used(used.min(units(rate, MAX_COUNT)));
    }

    fn mark(&self, _now: Time) -> u64 {
        self.moment
    }

    /// In the state that was charged, a reservation that is not followed any more has drained. In another one, what cannot
    /// have drained is still certain.
    fn give_back(&mut self, rate: &Rate, GivenBack { mark, cost, lag, is_elsewhere, low_water }: GivenBack<'_>) {
        let units = drained(rate, units(rate, cost), lag);
        let certain = if is_elsewhere { self.certain(rate, units, mark) } else { 0 };
        let left = match low_water {
            Some(low_water) => low_water.close(mark, (units, certain), self.moment, self.used()),
            None => certain,
        };
        self.set_used(self.used().saturating_sub(left));
    }

    fn certain_at(&self, rate: &Rate, cost: u64, mark: u64, at: Time) -> u64 {
        let left = drained(rate, units(rate, cost), at.micros().saturating_sub(mark));
        u64::try_from(left / u128::from(rate.span())).unwrap_or(0)
    }

    /// More than drains in a period would refuse for longer than another strategy could.
    fn begin(&mut self, rate: &Rate, sum: u64, at: Time) {
        let sum = sum.min(rate.quota().max(rate.capacity()));
        *self = Self::with_used(rate, at.micros(), units(rate, sum));
    }

    fn take_back(&mut self, rate: &Rate, cost: u64) {
        self.set_used(self.used().saturating_sub(units(rate, cost)));
    }

    fn moment(&self) -> Option<u64> {
        Some(self.moment)
    }

    fn followed(&self) -> Option<u64> {
        Some(self.moment)
    }

    fn set_back(&mut self, by: u64) {
        self.moment = self.moment.saturating_sub(by);
    }

    fn excess_memory(&self, rate: &Rate) -> u64 {
        draining(rate, self.used())
    }

    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>) {
        push(self.moment.saturating_add(ahead), bytes);
        self.used.into_iter().for_each(|half| push(half, bytes));
    }

    fn decode(&mut self, rate: &Rate, rest: &mut &[u8]) -> Option<()> {
        let (moment, high, low) = (pull(rest)?, pull(rest)?, pull(rest)?);
        *self = Self::with_used(rate, moment, u128::from(high) << 64 | u128::from(low));
        Some(())
    }
}

/// The units that are used after `elapsed` microseconds of draining.
fn drained(rate: &Rate, used: u128, elapsed: u64) -> u128 {
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
        self.room_in(self.rate.capacity())
    }

    pub(super) fn room_in(&self, capacity: u64) -> u64 {
        let free = units(self.rate, capacity).saturating_sub(self.used) / u128::from(self.rate.span());
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    /// Microseconds until `need` tokens are there, which is when little enough of the bucket is used.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        let room = units(self.rate, self.rate.capacity().checked_sub(need)?);
        Some(draining(self.rate, self.used.saturating_sub(room)))
    }
}
