//! Bans: a key that was refused too often is refused altogether for a while, and twice as long each next time.
//!
//! A limit of its own counts the bans of a key that follow each other, but only while one is running. A request asks for its
//! whole capacity, so it is refused while anything counts. Beginning a ban asks for the same, and charges 1. So if several
//! gateways begin one at the same time, only the first succeeds, and the others do not make the ban longer.

use std::time::Duration;

use super::Limit;
use super::counting::{Charge, Context, Counting, GivenBack, StateView, Whole, pull, push};
use super::rate::{MAX_QUOTA, Rate, RateError, Strategy};
use crate::base::clock::{Time, micros};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LastBan {
    /// In microseconds since 1970; meaningless if there was no ban.
    began: u64,
    /// How many bans have followed each other; 0 if there was none, or all are forgiven.
    times: u64,
}

impl LastBan {
    /// In microseconds since 1970.
    fn until(&self, rate: &Rate) -> u64 {
        let Strategy::Ban { first } = rate.strategy() else { return self.began };
        let doublings = u32::try_from(self.times.saturating_sub(1)).unwrap_or(u32::MAX);
        let length = first.saturating_mul(1_u64.checked_shl(doublings).unwrap_or(u64::MAX));
        self.began.saturating_add(length.min(rate.span()))
    }

    fn is_running(&self, rate: &Rate, now: Time) -> bool {
        self.times > 0 && now.micros() < self.until(rate)
    }
}

impl Counting for LastBan {
    fn advance(&mut self, context: &mut Context<'_>, now: Time) -> bool {
        if now.is_set_back_from(Time::from_micros(self.began)) {
            self.began = now.micros();
        } else if self.is_spent(StateView { rate: context.rate, log: None, now }) {
            *self = Self::default();
        }
        false
    }

    /// Bans are forgiven after as long without one as the longest ban lasts.
    fn is_spent(&self, StateView { rate, now, .. }: StateView<'_>) -> bool {
        self.times == 0 || now.micros() > self.until(rate).saturating_add(rate.span())
    }

    fn charge(&mut self, Context { rate, .. }: &mut Context<'_>, Charge { now, cost, .. }: Charge) {
        if cost > 0 && !self.is_running(rate, now) {
            *self = Self { began: now.micros(), times: self.times.saturating_add(1) };
        }
    }

    fn used(&self, StateView { rate, now, .. }: StateView<'_>) -> u64 {
        if self.is_running(rate, now) { self.times } else { 0 }
    }

    fn wait(&self, StateView { rate, now, .. }: StateView<'_>, _need: u64) -> u64 {
        self.until(rate).saturating_sub(now.micros())
    }

    /// A ban is never reserved.
    fn give_back(&mut self, _context: &mut Context<'_>, _given: GivenBack) {}

    /// Limits that count requests have no bans to continue from.
    fn begin(&mut self, _rate: &Rate, _sum: u64, _at: Time) {}
}

impl Whole for LastBan {
    fn moment(&self) -> u64 {
        self.began
    }

    fn set_back(&mut self, by: u64) {
        self.began = self.began.saturating_sub(by);
    }

    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>) {
        push(self.began.saturating_add(ahead), bytes);
        push(self.times, bytes);
    }

    fn decode(&mut self, _rate: &Rate, rest: &mut &[u8]) -> Option<()> {
        let (began, times) = (pull(rest)?, pull(rest)?);
        *self = Self { began, times: times.min(MAX_QUOTA) };
        Some(())
    }
}

impl Limit {
    /// The limit that counts the bans of the limit `name`. The first ban lasts `first`. A ban that begins within `longest`
    /// after the end of the previous one lasts twice as long as that one, but no ban is longer than `longest`. Fails with
    /// [`RateError::Window`] if `longest` is out of range or shorter than `first`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit};
    ///
    /// let bans = Limit::bans("per-client", Duration::from_secs(600), Duration::from_secs(86_400))?;
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(bans.rates(), now);
    /// assert!(bans.admits(&cell, now, bans.capacity()));
    ///
    /// bans.charge(&mut cell, now, 1);
    /// let banned = bans.judge(&cell, now, bans.capacity(), false);
    /// assert_eq!((banned.wait, bans.times(&banned)), (Some(600_000_000), 1));
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn bans(name: &str, first: Duration, longest: Duration) -> Result<Self, RateError> {
        let first = if first <= longest { micros(first) } else { return Err(RateError::Window) };
        let rate = Rate::new(MAX_QUOTA, longest)?.with_strategy(Strategy::Ban { first })?;
        Ok(Self::new(name, &[rate]))
    }

    /// Whether it counts bans.
    pub fn counts_bans(&self) -> bool {
        matches!(self.rates(), [rate] if matches!(rate.strategy(), Strategy::Ban { .. }))
    }

    /// How many bans have followed each other, from the verdict of a limit that counts bans; 0 if none is running.
    pub fn times(&self, verdict: &super::Verdict) -> u64 {
        self.capacity().saturating_sub(verdict.remaining)
    }
}
