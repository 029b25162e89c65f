//! Raising a cell: whatever another cell of the same limit and key counts beyond it is added to it.
//!
//! Gateways that share counters change their configuration at different moments, and each of them carries over what was
//! counted before the change. So one of them may carry over what another one has carried over already. If the sum were
//! charged, it would then count twice. A cell that is raised to the sum twice is the same as one that is raised once.

use super::super::Limit;
use super::super::cell::Cell;
use super::super::counting::Context;
use crate::base::clock::Time;

/// For [stores that are shared](super).
impl Limit {
    /// Raises what each rate counts in `cell` to what it counts in `least`, if that is more. Both cells belong to this limit
    /// and have been advanced to `now`.
    ///
    /// If a rate has counted nothing in `cell`, its state is copied from `least`. Otherwise the difference is added as if it
    /// had come at `now`, so it may count for longer than in `least`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate};
    ///
    /// let limit = Limit::new("a", &[Rate::new(9, Duration::from_secs(60))?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let [mut cell, mut least] = [(); 2].map(|()| Cell::new(limit.rates(), now));
    /// limit.charge(&mut cell, now, 2);
    /// limit.charge(&mut least, now, 5);
    ///
    /// limit.raise(&mut cell, &least, now);
    /// assert_eq!(limit.judge(&cell, now, 1, true).remaining, 4);
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn raise(&self, cell: &mut Cell, least: &Cell, now: Time) {
        let Cell { states, extension } = cell;
        for (place, ((rate, state), of_least)) in self.rates.iter().zip(states).zip(&least.states).enumerate() {
            let mut context = Context { rates: &self.rates, place, rate, extension };
            state.raise(&mut context, of_least, least.log(), now);
        }
    }
}
