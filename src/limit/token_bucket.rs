//! The token bucket, as the generic cell rate algorithm computes it (ITU-T I.371): the state is how much of the bucket was
//! used at some moment, and that drains at the rate.
//!
//! A request of cost 1 uses as many units as the window has microseconds, and in each microsecond as many units drain as the
//! quota has requests. All numbers are whole, so nothing is rounded, and a raised quota drains faster at once.

use super::counting::{Charge, Context, Counting, GivenBack, MAX_COUNT, StateView, Whole, pull, push};
use super::extension::{Extension, LowWater};
use super::rate::Rate;
use crate::base::clock::Time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenBucket {
    /// In microseconds since 1970.
    moment: u64,
    /// In units, the higher half first. A `u128` would be aligned to 16 bytes, which would make every state larger.
    used: [u64; 2],
}

impl TokenBucket {
    pub(super) fn new(now: Time) -> Self {
        Self { moment: now.micros(), used: [0; 2] }
    }

    /// `moment` is in microseconds since 1970; the units are cut to those of [`MAX_COUNT`] requests.
    fn with_used(rate: &Rate, moment: u64, used: u128) -> Self {
        let mut bucket = Self { moment, used: [0; 2] };
        bucket.set_used(used.min(units(rate, MAX_COUNT)));
        bucket
    }

    fn units(&self) -> u128 {
        let [high, low] = self.used;
        u128::from(high) << 64 | u128::from(low)
    }

    #[expect(clippy::cast_possible_truncation, reason = "these are the two halves")]
    fn set_used(&mut self, used: u128) {
        self.used = [(used >> 64) as u64, used as u64];
    }

    /// How many of the `units` that were used at `since` cannot have drained since, because the rate drains less than that.
    /// None are certain if the clock was set back in between.
    fn certain(&self, rate: &Rate, units: u128, since: u64) -> u128 {
        if Time::from_micros(self.moment).is_set_back_from(Time::from_micros(since)) {
            return 0;
        }
        drained(rate, units, self.moment.saturating_sub(since))
    }

    /// `least` is a bucket at about the same moment.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.units() < least.units() {
            *self = Self { moment: self.moment.max(least.moment), used: least.used };
        }
    }

    /// Tracks a reservation that was just charged to the bucket of the rate at index `place`. Returns since which moment.
    pub(super) fn follow(&self, extension: &mut Extension, place: usize) -> u64 {
        extension.low_water_or_new(place).open(self.moment);
        self.moment
    }

    /// For how many microseconds the state matters if more was charged to it than the rate admits.
    pub(super) fn excess_memory(&self, rate: &Rate) -> u64 {
        draining(rate, self.units())
    }
}

impl Counting for TokenBucket {
    fn advance(&mut self, context: &mut Context<'_>, now: Time) -> bool {
        self.set_used(drained(context.rate, self.units(), now.micros().saturating_sub(self.moment)));
        if now.is_set_back_from(Time::from_micros(self.moment)) {
            self.moment = now.micros();
            // It is unknown now how long the reservations have been open.
            context.extension.as_deref_mut().into_iter().for_each(|extension| extension.low_water.clear());
        }
        self.moment = self.moment.max(now.micros());
        false
    }

    fn is_spent(&self, StateView { rate, now, .. }: StateView<'_>) -> bool {
        drained(rate, self.units(), now.micros().saturating_sub(self.moment)) == 0
    }

    /// A sum of charges since some moment was admitted by a bucket of its own. What that one had no room for at once may have
    /// drained since. Otherwise gateways that could not count together for a while would refuse for as long after that.
    fn charge(&mut self, context: &mut Context<'_>, Charge { now, cost, since }: Charge) {
        // A charge that is made again was in the bucket all the time.
        if since.is_none()
            && let Some(low_water) = low_water(context)
        {
            low_water.note(self.moment, self.units());
        }
        let (rate, charged) = (context.rate, units(context.rate, cost));
        let left = since.map_or(charged, |since| {
            drained(rate, charged, now.micros_since(since)).max(charged.min(units(rate, rate.capacity())))
        });
        self.set_used(self.units().saturating_add(left).min(units(rate, MAX_COUNT)));
    }

    fn used(&self, StateView { rate, .. }: StateView<'_>) -> u64 {
        u64::try_from(self.units().div_ceil(u128::from(rate.span()))).unwrap_or(u64::MAX)
    }

    fn wait(&self, StateView { rate, .. }: StateView<'_>, need: u64) -> u64 {
        draining(rate, self.units().saturating_sub(units(rate, rate.capacity() - need)))
    }

    fn mark(&self, _now: Time) -> u64 {
        self.moment
    }

    /// In the state that was charged, a reservation that is not tracked any more has drained. In another state, what cannot
    /// have drained is still certain.
    fn give_back(&mut self, context: &mut Context<'_>, given: GivenBack) {
        let GivenBack { mark, cost, lag, is_elsewhere, .. } = given;
        let units = drained(context.rate, units(context.rate, cost), lag);
        let certain = is_elsewhere.then(|| self.certain(context.rate, units, mark));
        let left = match low_water(context) {
            Some(low_water) => low_water.close(mark, units, certain, self.moment, self.units()),
            None => certain.unwrap_or(0),
        };
        self.set_used(self.units().saturating_sub(left));
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
}

impl Whole for TokenBucket {
    fn moment(&self) -> u64 {
        self.moment
    }

    fn set_back(&mut self, by: u64) {
        self.moment = self.moment.saturating_sub(by);
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

fn low_water<'a>(context: &'a mut Context<'_>) -> Option<&'a mut LowWater> {
    context.extension.as_deref_mut()?.low_water(context.place)
}

fn drained(rate: &Rate, used: u128, elapsed: u64) -> u128 {
    used.saturating_sub(u128::from(rate.quota()) * u128::from(elapsed))
}

fn units(rate: &Rate, cost: u64) -> u128 {
    u128::from(cost) * u128::from(rate.span())
}

/// Microseconds until so many units have drained.
fn draining(rate: &Rate, used: u128) -> u64 {
    u64::try_from(used.div_ceil(u128::from(rate.quota()))).unwrap_or(u64::MAX)
}
