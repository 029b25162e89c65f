//! What a store holds for one key: the state of every rate of a limit, as of some moment.

use smallvec::SmallVec;

use super::counting::{Charge, Context, Counting, StateView};
use super::extension::Extension;
use super::log::AdmissionLog;
use super::rate::Rate;
use super::state::{State, StateUsage};
use crate::base::clock::Time;

/// The states of all rates of a limit for one key.
///
/// A cell does not contain its rates, since millions of cells have the same ones. Every method takes the rates for which the
/// cell was created, or others of the same [shape](super::Limit::shape), whose quotas then apply at once.
///
/// ```
/// use std::time::Duration;
///
/// use gateway::base::clock::Time;
/// use gateway::limit::{Cell, Limit, Rate};
///
/// let now = Time::from_micros(1_800_000_000_000_000);
/// let limit = Limit::new("a", &[Rate::new(5, Duration::from_secs(60))?]);
/// let mut cell = Cell::new(limit.rates(), now);
/// limit.charge(&mut cell, now, 5);
/// assert!(!limit.admits(&cell, now, 1));
///
/// let raised = Limit::new("a", &[Rate::new(6, Duration::from_secs(60))?]);
/// assert!(raised.admits(&cell, now, 1));
///
/// let later = Time::from_micros(now.micros() + 120_000_000);
/// assert!(cell.is_spent(limit.rates(), later), "a store may drop it");
/// # Ok::<(), gateway::limit::RateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// In the order of the rates.
    pub(super) states: SmallVec<[State; 2]>,
    pub(super) extension: Option<Box<Extension>>,
}

const _: () = assert!(size_of::<Cell>() == 80, "a cell takes more memory than documented");

impl Cell {
    /// A cell for `rates` in which nothing has been counted at `now`.
    pub fn new(rates: &[Rate], now: Time) -> Self {
        Self { states: rates.iter().map(|rate| State::new(rate, now)).collect(), extension: None }
    }

    pub(super) fn rated<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (&'a Rate, &'a State)> {
        rates.iter().zip(&self.states)
    }

    pub(super) fn rated_mut<'a>(&'a mut self, rates: &'a [Rate]) -> impl Iterator<Item = (&'a Rate, &'a mut State)> {
        rates.iter().zip(&mut self.states)
    }

    pub(super) fn each(&mut self, rates: &[Rate], mut change: impl FnMut(&mut dyn Counting, &mut Context<'_>)) {
        let Self { states, extension } = self;
        for (place, (rate, state)) in rates.iter().zip(states).enumerate() {
            state.change(|state| change(state, &mut Context { rates, place, rate, extension }));
        }
    }

    /// Moves the state of every rate on to `now`.
    ///
    /// If the clock went back by less than a second, another thread has probably read it a moment earlier, and the state
    /// stays as it is. If it went back further, it was set, and the counts move back along: they leave later, never earlier.
    /// So no client can use its quota twice, and none has to wait until the clock shows the old time again.
    ///
    /// Returns whether another counter has become the newest.
    pub fn advance(&mut self, rates: &[Rate], now: Time) -> bool {
        let mut has_new_counter = false;
        self.each(rates, |state, context| has_new_counter |= state.advance(context, now));
        has_new_counter
    }

    /// What counts for each rate. The cell must be advanced to `now`.
    pub(super) fn usages<'a>(&'a self, rates: &'a [Rate], now: Time) -> impl Iterator<Item = StateUsage<'a>> {
        self.rated(rates).map(move |(rate, state)| StateUsage::new(state, StateView { rate, log: self.log(), now }))
    }

    /// What counts for the rate at this index. The cell must be advanced to `now`.
    pub(super) fn usage<'a>(&'a self, rates: &'a [Rate], at: usize, now: Time) -> Option<StateUsage<'a>> {
        let (rate, state) = (rates.get(at)?, self.states.get(at)?);
        Some(StateUsage::new(state, StateView { rate, log: self.log(), now }))
    }

    /// Counts `cost` against every rate. With `since`, when the charge first came, counts it only for rates whose state is
    /// kept as a whole. The cell must be advanced to `now`.
    pub(super) fn charge(&mut self, rates: &[Rate], now: Time, cost: u64, since: Option<Time>) {
        self.each(rates, |state, context| {
            if since.is_none() || !context.rate.uses_counters() {
                state.charge(context, Charge { now, cost, since });
            }
        });
    }

    /// Whether nothing in the cell can matter at `now` or later.
    pub fn is_spent(&self, rates: &[Rate], now: Time) -> bool {
        self.are_spent(rates, now, |_| true)
    }

    /// [`Self::is_spent`] for only some of the rates.
    pub(super) fn are_spent(&self, rates: &[Rate], now: Time, of: impl Fn(&Rate) -> bool) -> bool {
        let mut states = self.rated(rates).filter(|(rate, _)| of(rate));
        states.all(|(rate, state)| state.read(|state| state.is_spent(StateView { rate, log: self.log(), now })))
    }

    /// The sizes of all its heap allocations, in bytes.
    pub fn allocations(&self) -> impl Iterator<Item = usize> {
        let list = self.states.spilled().then(|| self.states.capacity() * size_of::<State>());
        let states = self.states.iter().map(State::allocation);
        let extension = self.extension.iter().flat_map(|extension| extension.allocations());
        list.into_iter().chain(states).chain(extension).filter(|bytes| *bytes > 0)
    }

    /// The latest moment, in microseconds since 1970, in any state that is kept as a whole, or in the log.
    pub(super) fn latest(&self) -> u64 {
        let states = self.states.iter().filter_map(|state| Some(state.whole()?.moment()));
        states.chain(self.log().and_then(AdmissionLog::newest)).max().unwrap_or(0)
    }

    pub(super) fn log(&self) -> Option<&AdmissionLog> {
        self.extension.as_deref().map(|extension| &extension.log)
    }
}
