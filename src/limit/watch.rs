//! Watched limits: what somebody wants to be told about the rates of a key.
//!
//! A limit is watched from the smallest share that is wanted. Which shares are told, and to whom, is decided elsewhere.

use super::Limit;
use super::cell::Cell;
use super::rate::{Rate, Strategy};
use super::state::StateUsage;
use crate::base::clock::Time;
use crate::base::share::share;

/// A rate of which a key has used at least the share from which its limit is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The index of the rate.
    pub rate: usize,
    /// As in [`RateUsage`](super::RateUsage).
    pub used: u64,
    /// As in [`RateUsage`](super::RateUsage).
    pub capacity: u64,
    /// In millionths.
    pub share: u32,
    /// The end of the window. Windows that slide, and buckets, have none: for them it is the next multiple of their length
    /// since 1970.
    pub until: Time,
    /// Tells the window from others of the rate. A fixed window begins with the first request, of which several gateways learn
    /// one after the other, so its end may move a little. This does not, unless the end passes a multiple of its length.
    pub window: u64,
}

impl Reached {
    /// The same if so much of what is counted is not used.
    #[must_use]
    pub fn without(self, unused: u64) -> Self {
        let used = self.used.saturating_sub(unused);
        Self { used, share: share(used, self.capacity), ..self }
    }
}

impl Limit {
    /// The same limit, watched from a share on, in millionths; `None` if nobody watches it.
    #[must_use]
    pub fn watched_from(self, share: Option<u32>) -> Self {
        Self { watched: share, ..self }
    }

    /// The rates that have reached the share from which the limit is watched. `apart` is counted but set apart for others, and
    /// does not count as used. The cell must be advanced to `now`.
    pub fn reached<'a>(&'a self, cell: &'a Cell, now: Time, apart: u64) -> impl Iterator<Item = Reached> + 'a {
        let rates = cell.usages(&self.rates, now).zip(&self.rates).enumerate();
        let reached = move |(index, (usage, rate)): (usize, (StateUsage<'a>, &Rate))| {
            let (used, capacity) = (usage.used, rate.capacity());
            let until = until(rate, usage, now);
            let window = match rate.strategy() {
                Strategy::Calendar(_) => until.micros(),
                _ => until.micros() / rate.span(),
            };
            Reached { rate: index, used, capacity, share: 0, until, window }.without(apart)
        };
        rates.map(reached).filter(|reached| self.watched.is_some_and(|share| reached.share >= share))
    }
}

fn until(rate: &Rate, usage: StateUsage<'_>, now: Time) -> Time {
    match rate.strategy() {
        Strategy::Calendar(calendar) => Time::from_micros(calendar.window(now).1),
        Strategy::FixedWindow => {
            now.after_micros(usage.wait(usage.remaining().saturating_add(1)).unwrap_or(rate.span()))
        }
        _ => Time::from_micros((now.micros() / rate.span()).saturating_add(1).saturating_mul(rate.span())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: u64 = 86_400_000_000;
    /// 2027-01-15T08:00:00Z.
    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn watched(rates: &[Rate]) -> (Limit, Cell) {
        (Limit::new("l", rates).watched_from(Some(800_000)), Cell::new(rates, NOW))
    }

    #[test]
    fn only_rates_that_have_reached_the_share_are_told() {
        let (limit, mut cell) = watched(&[rate("10/s"), rate("3000/10m")]);
        limit.charge(&mut cell, NOW, 7);
        assert_eq!(limit.reached(&cell, NOW, 0).next(), None);
        limit.charge(&mut cell, NOW, 1);
        let until = NOW.after(Duration::from_secs(1));
        let window = until.micros() / 1_000_000;
        let eight = Reached { rate: 0, used: 8, capacity: 10, share: 800_000, until, window };
        assert_eq!(limit.reached(&cell, NOW, 0).collect::<Vec<_>>(), [eight]);
        assert_eq!(limit.reached(&cell, NOW, 1).next(), None, "what is set apart is not used");
        assert_eq!(eight.without(3), Reached { used: 5, share: 500_000, ..eight });
    }

    #[test]
    fn nobody_is_told_about_a_limit_that_is_not_watched() {
        let (limit, mut cell) = watched(&[rate("1/s")]);
        let limit = limit.watched_from(None);
        limit.charge(&mut cell, NOW, 1);
        assert!(limit.watched.is_none());
        assert_eq!(limit.reached(&cell, NOW, 0).next(), None);
    }

    /// Another gateway has begun the window a little earlier, or this one begins the next window.
    #[test]
    fn a_fixed_window_stays_the_same_while_its_begin_is_agreed_on() {
        let window = |begun: Time| {
            let (limit, mut cell) = watched(&[rate("1/d").with_strategy(Strategy::FixedWindow).unwrap()]);
            limit.charge(&mut cell, begun, 1);
            limit.reached(&cell, begun, 0).next().unwrap().window
        };
        let hour = Duration::from_secs(3600);
        let begun = NOW.after(hour);
        assert_eq!(window(begun), window(begun.after(Duration::from_millis(30))));
        for windows in 1..4 {
            assert_eq!(window(begun.after_micros(windows * DAY)), window(begun) + windows);
        }
    }

    #[test]
    fn a_window_has_one_end() {
        let end = |rate: Rate, charged: u64, now: u64| {
            let (limit, mut cell) = watched(&[rate]);
            let (charged, now) = (Time::from_micros(charged), Time::from_micros(now));
            cell.advance(limit.rates(), charged);
            limit.charge(&mut cell, charged, 1);
            cell.advance(limit.rates(), now);
            limit.reached(&cell, now, 0).next().map(|reached| reached.until.micros())
        };
        let midnight = NOW.micros() / DAY * DAY;
        let fixed = rate("1/d").with_strategy(Strategy::FixedWindow).unwrap();
        for (rate, first, last, until) in [
            (rate("1/day"), midnight, midnight + DAY - 1, midnight + DAY),
            (rate("1/d"), midnight, midnight + DAY - 1, midnight + DAY),
            (rate("1/d burst 1"), midnight, midnight + DAY - 1, midnight + DAY),
            (fixed, midnight + 7, midnight + 7 + DAY - 1, midnight + 7 + DAY),
        ] {
            assert_eq!(end(rate.clone(), first, first), Some(until), "{rate}");
            assert_eq!(end(rate.clone(), first, last), Some(until), "{rate}");
            assert_ne!(end(rate.clone(), last + 1, last + 1), Some(until), "{rate}");
        }
    }
}
