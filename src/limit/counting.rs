//! What the states of all strategies can do, and what only those of counters, or only those that are kept as a whole.
//! Each strategy says in its own file how it does that.

use super::extension::Extension;
use super::log::AdmissionLog;
use super::rate::Rate;
use crate::base::clock::Time;

/// The largest count. It exceeds everything that admitted requests can lead to, and sums of it do not overflow; what a
/// store reads beyond it is cut to it.
pub(super) const MAX_COUNT: u64 = 1 << 40;

/// Adds `cost` to a count.
pub(super) fn add(count: &mut u64, cost: u64) {
    *count = count.saturating_add(cost).min(MAX_COUNT);
}

/// The state of one rate for one key.
///
/// A state does not contain its rate. Every method takes the rate for which the state was created, or one with another
/// quota or burst: a changed quota then applies at once to what has been counted. Moments without a type are in microseconds
/// since 1970.
pub(super) trait Counting {
    /// Moves the state on to `now`. Returns whether requests are now counted in another counter than before.
    fn advance(&mut self, context: &mut Context<'_>, now: Time) -> bool;

    /// Whether nothing in it can matter at that moment or later.
    fn is_spent(&self, view: StateView<'_>) -> bool;

    /// Counts what is charged.
    fn charge(&mut self, context: &mut Context<'_>, charge: Charge);

    /// How much counts. For a token bucket, the tokens that are missing in full or in part.
    fn used(&self, view: StateView<'_>) -> u64;

    /// Microseconds until `need` more fit, which is at most the capacity and does not fit yet.
    fn wait(&self, view: StateView<'_>, need: u64) -> u64;

    /// What names the place where a request of `now` is counted: of a counter its bucket, else the moment.
    fn mark(&self, now: Time) -> u64;

    /// Gives back where it was counted what was reserved too much, as far as that still matters.
    fn give_back(&mut self, context: &mut Context<'_>, given: GivenBack);

    /// How much of what a request of this `cost` was charged at `mark` is certain to count at `at`, when the state was created.
    fn certain_at(&self, rate: &Rate, cost: u64, mark: u64, at: Time) -> u64;

    /// Begins with a sum of what came until `at`, when the state was created.
    fn begin(&mut self, rate: &Rate, sum: u64, at: Time);
}

/// A state of counters, one for each bucket, to which several gateways can add.
pub(super) trait Buckets {
    /// The name of the newest counter, to which requests are added, and all counters, the newest first. Each older one has the
    /// name before.
    fn counters(&self) -> (u64, &[u64]);

    /// The same counters, to be changed.
    fn counters_mut(&mut self) -> (u64, &mut [u64]);

    /// The counter that names `bucket`, to be changed, if the state still has it.
    fn counter_mut(&mut self, bucket: u64) -> Option<&mut u64> {
        let (newest, counts) = self.counters_mut();
        counts.get_mut(usize::try_from(newest.checked_sub(bucket)?).ok()?)
    }

    /// Gives back what was counted in the counter that names `bucket`.
    fn give_back_to(&mut self, bucket: u64, cost: u64) {
        if let Some(count) = self.counter_mut(bucket) {
            *count = count.saturating_sub(cost);
        }
    }
}

/// A state that is kept as a whole: its numbers mean something only together. (A log is as well, but belongs to the cell.)
pub(super) trait Whole {
    /// The moment to which the state belongs.
    fn moment(&self) -> u64;

    /// Moves the state back in time by so many microseconds.
    fn set_back(&mut self, by: u64);

    /// Appends its numbers, with its moment moved by `ahead` microseconds.
    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>);

    /// Replaces it by the numbers at the beginning of `rest`, and removes them from it. `None` if they are not there.
    fn decode(&mut self, rate: &Rate, rest: &mut &[u8]) -> Option<()>;
}

/// The moment from which a state is seen, and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateView<'a> {
    pub(super) rate: &'a Rate,
    /// The log of the cell.
    pub(super) log: Option<&'a AdmissionLog>,
    /// The moment to which the state has been advanced.
    pub(super) now: Time,
}

/// What a state can use of its cell when it changes.
pub(super) struct Context<'a> {
    /// All rates of the cell.
    pub(super) rates: &'a [Rate],
    /// The index of the state's own rate.
    pub(super) place: usize,
    pub(super) rate: &'a Rate,
    pub(super) extension: &'a mut Option<Box<Extension>>,
}

/// What is charged to a state that has been advanced to `now`.
#[derive(Clone, Copy)]
pub(super) struct Charge {
    pub(super) now: Time,
    pub(super) cost: u64,
    /// When its first part came, if it is charged again because the state was read anew and does not contain it.
    pub(super) since: Option<Time>,
}

/// What is given back of a reservation to a state that has been advanced to `now`.
pub(super) struct GivenBack {
    pub(super) now: Time,
    /// What names the place where it was counted.
    pub(super) mark: u64,
    pub(super) cost: u64,
    /// For how many microseconds after the charge it was not followed.
    pub(super) lag: u64,
    /// Whether the state may be another one than that which was charged, so that it is not known what has drained from it.
    pub(super) is_elsewhere: bool,
}
