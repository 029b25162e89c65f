//! The traits of the states of strategies: of all, of counters only, and of states that are kept as a whole only, and how
//! their numbers are encoded: in variable length (LEB128).

use integer_encoding::VarInt;

use super::extension::Extension;
use super::log::AdmissionLog;
use super::rate::Rate;
use crate::base::clock::Time;

/// The largest count. Admissions cannot reach it, and it can be summed. Larger counts that a store reads are cut to it.
pub(super) const MAX_COUNT: u64 = 1 << 56;

pub(super) fn add(count: &mut u64, cost: u64) {
    *count = count.saturating_add(cost).min(MAX_COUNT);
}

/// The state of one rate for one key.
///
/// A state does not contain its rate. Every method takes the rate for which the state was created, or one with another quota
/// or burst, which then applies at once to what has been counted. Moments of type `u64` are in microseconds since 1970.
pub(super) trait Counting {
    /// Moves the state on to `now`. Returns whether requests are counted in another counter than before.
    fn advance(&mut self, context: &mut Context<'_>, now: Time) -> bool;

    /// Whether nothing in the state can matter at that moment or later.
    fn is_spent(&self, view: StateView<'_>) -> bool;

    fn charge(&mut self, context: &mut Context<'_>, charge: Charge);

    /// How much counts: for a token bucket, the tokens that are missing in full or in part.
    fn used(&self, view: StateView<'_>) -> u64;

    /// Microseconds until `need` more fit. `need` is at most the capacity, and does not fit yet.
    fn wait(&self, view: StateView<'_>, need: u64) -> u64;

    /// Names the place where a request of `now` is counted: the bucket of a counter, else the moment.
    fn mark(&self, now: Time) -> u64 {
        now.micros()
    }

    /// Gives back an excess reservation where it was counted, as far as that still matters.
    fn give_back(&mut self, context: &mut Context<'_>, given: GivenBack);

    /// The state was created at `at`. How much of a charge of `cost` at `mark` is certain to count then: nothing, if it is
    /// unknown when the window or the ban began with which it counted.
    fn certain_at(&self, _rate: &Rate, _cost: u64, _mark: u64, _at: Time) -> u64 {
        0
    }

    /// Begins with the sum of what came until `at`, when the state was created.
    fn begin(&mut self, rate: &Rate, sum: u64, at: Time);
}

/// A state of counters, one for each bucket. Several gateways can add to them.
pub(super) trait Buckets {
    /// The name of the newest counter, to which requests are added, and all counts, newest first, with descending names.
    fn counters(&self) -> (u64, &[u64]);

    fn counters_mut(&mut self) -> (u64, &mut [u64]);

    fn counter_mut(&mut self, bucket: u64) -> Option<&mut u64> {
        let (newest, counts) = self.counters_mut();
        counts.get_mut(usize::try_from(newest.checked_sub(bucket)?).ok()?)
    }

    fn give_back_to(&mut self, bucket: u64, cost: u64) {
        if let Some(count) = self.counter_mut(bucket) {
            *count = count.saturating_sub(cost);
        }
    }
}

/// A state that is kept as a whole: its numbers mean something only together. (So is a log, but that belongs to the cell.)
pub(super) trait Whole {
    fn moment(&self) -> u64;

    /// Moves the state back in time by so many microseconds.
    fn set_back(&mut self, by: u64);

    /// Appends the state's numbers, with its moment moved by `ahead` microseconds.
    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>);

    /// Takes the state's numbers from the beginning of `rest`. `None` if they are not there.
    fn decode(&mut self, rate: &Rate, rest: &mut &[u8]) -> Option<()>;
}

/// What a state can use of its cell when it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateView<'a> {
    pub(super) rate: &'a Rate,
    pub(super) log: Option<&'a AdmissionLog>,
    /// The moment to which the state has been advanced.
    pub(super) now: Time,
}

/// What a state can use of its cell when it changes.
pub(super) struct Context<'a> {
    pub(super) rates: &'a [Rate],
    /// The index of the state's own rate.
    pub(super) place: usize,
    pub(super) rate: &'a Rate,
    pub(super) extension: &'a mut Option<Box<Extension>>,
}

/// A charge to a state that has been advanced to `now`.
#[derive(Clone, Copy)]
pub(super) struct Charge {
    pub(super) now: Time,
    pub(super) cost: u64,
    /// When it first came, if it is charged again because the state was read anew and does not contain it.
    pub(super) since: Option<Time>,
}

/// A part of a reservation that is given back to a state that has been advanced to `now`.
pub(super) struct GivenBack {
    pub(super) now: Time,
    /// Names the place where it was counted: [`Counting::mark`].
    pub(super) mark: u64,
    pub(super) cost: u64,
    pub(super) lag: u64,
    /// Whether the charge may have gone to another state, so that it is unknown how much of it has drained from this one.
    pub(super) is_elsewhere: bool,
}

pub(crate) fn push(number: u64, bytes: &mut Vec<u8>) {
    let mut digits = [0; 10];
    let length = number.encode_var(&mut digits);
    bytes.extend_from_slice(&digits[..length]);
}

/// Removes a number from the beginning of `rest`. `None` if there is none.
pub(crate) fn pull(rest: &mut &[u8]) -> Option<u64> {
    let (number, length) = u64::decode_var(rest)?;
    *rest = rest.get(length..)?;
    Some(number)
}
