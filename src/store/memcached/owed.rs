//! What was admitted and is not in Memcached yet. It travels ahead of the next reads.
//!
//! Sums are added to. A state that is kept as one value is replaced if it is still the one that was read; if another
//! gateway was faster, what is owed is charged again to the state that it left.

use std::collections::HashMap;

use memcache::exp::{Arithmetic, MutationStatus, Op, OpResult, Set};

use super::Wish;
use super::keys;
use super::link::{Link, Outcome};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::Cell;

/// All that is owed, in the order in which it is sent.
#[derive(Default)]
pub(super) struct Owed {
    sums: HashMap<String, Sum>,
    states: Vec<State>,
}

/// An increment.
struct Sum {
    server: usize,
    amount: u64,
    lifetime: u32,
}

/// A state to write, if it has not changed since it was read.
pub(super) struct State {
    /// Whose it is; the cost in it is without meaning.
    pub(super) ask: Wish,
    pub(super) server: usize,
    /// What this process added to the state that was read.
    pub(super) cost: u64,
    pub(super) name: String,
    pub(super) value: Vec<u8>,
    pub(super) lifetime: u32,
    /// What stands for the state that was read; `None` if there was none.
    pub(super) read: Option<u64>,
}

/// States that another gateway changed first: the cost to charge again, by cell.
pub(super) type Lost = HashMap<Fingerprint, (Wish, u64)>;

impl Owed {
    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.states.is_empty()
    }

    /// Owes what an ask costs to every sum of the cell that is being added to, on this server.
    pub(super) fn add(&mut self, (server, base): (usize, &str), ask: &Wish, cell: &mut Cell, now: Time) {
        let rates = ask.limit.rates();
        let mut last = None;
        for (place, bucket, _) in cell.counts_mut(rates) {
            if last.replace(place) == Some(place) {
                continue;
            }
            let sum = || Sum { server, amount: 0, lifetime: keys::lifetime([&rates[place]], now) };
            self.sums.entry(keys::counter(base, &rates[place], bucket)).or_insert_with(sum).amount += ask.cost;
        }
    }

    pub(super) fn write(&mut self, state: State) {
        self.states.push(state);
    }

    /// Whose states are to be written.
    pub(super) fn writers(&self) -> impl Iterator<Item = &Wish> {
        self.states.iter().map(|state| &state.ask)
    }

    /// Gives up what is owed to servers that are away: there is nobody to count it.
    pub(super) fn forgive(&mut self, link: &Link, now: Time) {
        self.sums.retain(|_, sum| !link.is_away(sum.server, now));
        self.states.retain(|state| !link.is_away(state.server, now));
    }

    /// The operations that settle everything, each with its server.
    pub(super) fn ops(&self) -> Vec<(usize, Op)> {
        let sum = |(name, sum): (&String, &Sum)| {
            let add = Arithmetic::new(name).delta(sum.amount).initial(sum.amount, sum.lifetime);
            (sum.server, add.into())
        };
        let state = |state: &State| {
            let set = Set::new(&state.name, &state.value).ttl_raw(state.lifetime);
            let set = state.read.map_or(set.clone().add(), |read| set.compare_cas(read));
            (state.server, set.into())
        };
        self.sums.iter().map(sum).chain(self.states.iter().map(state)).collect()
    }

    /// What came of the operations, in their order: the states that were changed by another gateway. One whose write
    /// failed altogether is given up, as an increment is.
    pub(super) fn settle(self, outcomes: &[Outcome]) -> Lost {
        let outcomes = outcomes.get(self.sums.len()..).unwrap_or_default();
        let refused = |outcome: &Outcome| match outcome {
            Ok(OpResult::Mutation(result)) => result.status != MutationStatus::Applied,
            _ => false,
        };
        let lost = self.states.into_iter().zip(outcomes).filter(|(_, outcome)| refused(outcome));
        lost.map(|(state, _)| (state.ask.cell(), (state.ask, state.cost))).collect()
    }
}
