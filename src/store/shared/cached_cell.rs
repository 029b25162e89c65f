//! The state machine of a cell: what the server has of a key and a limit as far as is known here, and what it must be sent.
//!
//! # Progress
//! A cell is part of at most one exchange at a time, so its increments and reads reach the server in order. A charge while it
//! is in flight is noted, and sent with the next exchange.
//!
//! ```text
//!            a read is wanted, or a charge is pending              the exchange is written
//!   +------+ ---------------------------------------> +--------+ -------------------------> +----------+
//!   | Idle |                                          | Queued |                            | InFlight |
//!   +------+ <------------- the server is away ------ +--------+ <------------------------- +----------+
//!      ^                                                           answered, more is wanted      |
//!      +------------------------------------ answered, or the server is away --------------------+
//! ```
//!
//! # What is written
//! Each sum is clean, pending, in flight or unacknowledged: see `counters.rs`. So is the one value with the states of all
//! other rates, whose version is also known or unknown: see `versioned.rs`.
//!
//! An increment never creates a counter that this process knows to be on the server. So if the counter is missing, because it
//! was evicted or the server was restarted, the increment fails, and the next one restores all that is known.
//!
//! # What a decision does with a cell
//! ```text
//!   never read, or too long ago       waits until the next exchange is answered, and is decided then
//!   just read, and plenty of room     is decided at once; the charge is pending
//!   read before, and plenty of room   is charged provisionally; the exchange that writes it also reads, and confirms or rejects
//!   its server is away                is decided from what is known, or not at all, as `on_error` says
//! ```
//! Whether a key is banned is read without a charge, with whatever else the decision reads or writes, and only if it was not
//! read lately (`coordinator/confirmation.rs`).
//!
//! With `strict`, every admission is charged provisionally (`confirmation.rs`). So is, while the server answers, every charge
//! to a state that is kept as one value, read or not: the exchange that writes it says whether it fits.
//!
//! # Why a count that was just read is used again
//!
//! The increments of other gateways may arrive a millisecond late anyway, so a read of the last millisecond is good enough if
//! there is plenty of room, no bucket has begun since, and little was charged. A busy key with a large quota then costs one
//! exchange per millisecond instead of one per round trip, and most of its requests do not wait. Near the limit, with small
//! quotas, and with `strict`, every decision waits for a read.

mod confirmation;
mod exchange;
mod reset;
mod settlement;

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::OwnedAsk;
use super::counters::{CounterId, UnconfirmedCounters, signed};
use super::names::Names;
use super::versioned::{Number, VersionedState};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::reloads::Reloads;

use confirmation::Provisionals;
pub(super) use confirmation::{Confirmation, NO_DECISION, Provisional, Standing, Standings};
pub(super) use exchange::{Filled, Writes};
use reset::Resets;
#[cfg(test)]
pub(super) use settlement::{BUSY, most_leased};
pub(super) use settlement::{FAR, LEASE};
use settlement::{Lease, LeaseDemand};

/// How long one gateway may not know what another does. So long a pending charge may wait for an exchange that can carry it,
/// and, with plenty of room, a read is good enough for further decisions.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
/// How long a read without a ban is relied on. All gateways must know of a ban within a second, and a read takes a moment.
pub(super) const BAN_READ: Duration = Duration::from_millis(900);
/// Microseconds for which another gateway that has charged a key is assumed to charge it again.
const SHARED: u64 = 1_000_000;
/// One read is good enough for one part in so many of the quota. While a read and an exchange are in flight, each gateway may
/// admit twice as much. For seven gateways that is less than the room that has to be left (see `has_plenty`). With a smaller
/// quota, each request waits for its own read, or shares one with requests that wait.
const BY_ONE_READ: u64 = 128;
/// Microseconds in which other gateways are expected to give back what they have charged beyond the quota.
const GIVING_BACK: u64 = 1_000_000;
/// A charge is written at once if it exceeds one part in so many of what is left.
const UNWRITTEN: u64 = 32;
/// A decision that was asked for longer than this before another one, but comes after it, is made as of the other one.
pub(super) const OVERTAKEN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct CachedCell {
    /// Unique among all cells that were ever known; it wraps after 2^32.
    pub(super) number: u32,
    pub(super) names: Rc<Names>,
    pub(super) key: Fingerprint,
    pub(super) server: usize,
    pub(super) cell: Cell,
    /// The moment of the last decision, and when the latest request came.
    pub(super) now: Time,
    asked: Option<Instant>,
    pub(super) counters: UnconfirmedCounters,
    /// The state of the rates that are kept as a whole; `None` if there are none.
    pub(super) versioned: Option<Box<VersionedState>>,
    /// The number of the last reload that it knows of.
    pub(super) reload: u32,
    /// The decisions that wait for a read, by number.
    pub(super) waiting: SmallVec<[u64; 2]>,
    /// Charges to be confirmed, in the order in which they were charged.
    pub(super) provisional: Provisionals,
    /// What may be admitted without an exchange, and how much that should be.
    lease: Option<Box<Lease>>,
    demand: LeaseDemand,
    pub(super) stage: ExchangeStage,
    /// Whether it was used since the hand of `Cells` last passed.
    pub(super) used: bool,
    /// Whether the last exchange read all of it, and no bucket has begun since. Others add only to the newest counters.
    fresh: bool,
    was_read: bool,
    /// When the read was sent that gave the current counts, if these are good enough for a decision.
    read: Option<Instant>,
    /// What was charged since the last read.
    since_read: u64,
    /// When another gateway was last seen to charge it.
    shared: Option<Time>,
    /// With `strict`: since when other gateways are seen to have charged more than fits.
    overfull: Option<Time>,
    /// How many operators wait for its read or reset.
    pub(super) inspections: usize,
    resets: Resets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeStage {
    /// Nothing is to be read or written, or the last write has failed and is retried with the next request.
    Idle,
    Queued,
    InFlight,
}

impl CachedCell {
    pub(super) fn new(number: u32, names: Rc<Names>, key: Fingerprint, server: usize, now: Time) -> Self {
        let limit = &names.limit;
        let versioned = limit.is_whole().then(Box::default);
        let cell = Cell::new(limit.rates(), now);
        let (counters, waiting, stage) = (UnconfirmedCounters::default(), SmallVec::new(), ExchangeStage::Idle);
        Self {
            number,
            names,
            key,
            server,
            cell,
            now,
            asked: None,
            counters,
            versioned,
            reload: 0,
            waiting,
            provisional: Provisionals::new(),
            lease: None,
            demand: LeaseDemand::default(),
            stage,
            used: true,
            fresh: false,
            was_read: false,
            read: None,
            since_read: 0,
            shared: None,
            overfull: None,
            inspections: 0,
            resets: Resets::default(),
        }
    }

    pub(super) fn id(&self) -> Fingerprint {
        self.key.with(self.names.limit.shape())
    }

    /// Advances the cell to the moment of a job; returns that moment. A job that came before others but is decided after
    /// them, because it waited longer, is decided as of their moment if its own is far from it: otherwise the clock would
    /// seem to have been set.
    pub(super) fn advance_for(&mut self, limit: &Limit, now: Time, asked: Instant) -> Time {
        let is_last = self.asked.is_none_or(|last| asked >= last);
        if is_last {
            self.asked = Some(asked);
        }
        let is_far = now.after(OVERTAKEN) < self.now || self.now.after(OVERTAKEN) < now;
        let now = if !is_last && is_far { self.now } else { now };
        self.advance(limit, now);
        now
    }

    pub(super) fn advance(&mut self, limit: &Limit, now: Time) {
        self.now = now;
        if let Some(state) = &mut self.versioned {
            state.follow_clock(&mut self.cell, now);
        }
        if self.cell.advance(limit.rates(), now) {
            (self.read, self.fresh) = (None, false);
        }
    }

    /// Whether it was read at most a moment before `asking`, and no bucket has begun since. A request after others that wait,
    /// waits with them, since their charges come first. Only a little may be admitted before the next read: other gateways
    /// may begin to charge the key at any moment, and what they do not know of each other adds up.
    pub(super) fn was_just_read(&self, asking: Instant) -> bool {
        self.versioned.is_none()
            && self.waiting.is_empty()
            && self.read.is_some_and(|read| asking < read + MOMENT)
            && self.since_read < self.names.limit.capacity() / BY_ONE_READ
    }

    pub(super) fn was_read_for_bans(&self, asking: Instant) -> bool {
        self.read.is_some_and(|read| asking < read + BAN_READ)
    }

    pub(super) fn must_be_read(&mut self) {
        (self.fresh, self.was_read, self.read) = (false, false, None);
    }

    fn is_shared(&self) -> bool {
        self.shared.is_some_and(|shared| self.now.micros_since(shared) < SHARED)
    }

    /// The counts that matter for a verdict: gateways mostly give back in a moment what they have charged beyond the limit.
    pub(super) fn lasting(&self, limit: &Limit, at: Time) -> Cow<'_, Cell> {
        let mut cell = Cow::Borrowed(&self.cell);
        if self.overfull.is_some_and(|since| at.micros_since(since) < GIVING_BACK) {
            limit.trim_counters(cell.to_mut(), at);
        }
        cell
    }

    /// Whether to send pending charges at once: they are much of what is left, or other gateways charge the key as well and
    /// have little room left or replace the same value.
    pub(super) fn is_urgent(&self) -> bool {
        let limit = &self.names.limit;
        !limit.admits(&self.cell, self.now, self.since_read.saturating_mul(UNWRITTEN))
            || self.is_shared() && (self.versioned.is_some() || !self.has_plenty(limit, 1))
    }

    /// Charges `cost`, which is then pending. The cell must be advanced to `now`.
    pub(super) fn charge(&mut self, limit: &Limit, now: Time, cost: u64) {
        self.count(limit, now, cost);
        self.versioned.iter_mut().for_each(|state| state.charge(cost, now));
    }

    /// Charges an ask, to the state that is kept as a whole only if it fits there; returns the number of that attempt.
    pub(super) fn attempt(&mut self, ask: &OwnedAsk, now: Time) -> Option<Number> {
        self.count(&ask.limit, now, ask.cost);
        let state = self.versioned.as_mut()?;
        Some(state.attempt(ask.limit.attempt(now, ask.need, ask.cost)))
    }

    fn count(&mut self, limit: &Limit, now: Time, cost: u64) {
        limit.charge(&mut self.cell, now, cost);
        self.since_read = self.since_read.saturating_add(cost);
        let Self { cell, counters, .. } = self;
        for (rate, bucket) in cell.newest() {
            let id = CounterId { rate, bucket };
            if !counters.has(id) {
                counters.retain(|id| id.rate != rate || cell.count(rate, id.bucket).is_some());
            }
            counters.add(id, signed(cost));
        }
    }

    /// Whether somebody waits for it or for its charges, or it is part of an exchange.
    pub(super) fn is_needed(&self) -> bool {
        self.stage == ExchangeStage::InFlight
            || !self.waiting.is_empty()
            || !self.provisional.is_empty()
            || self.lease.is_some()
            || self.inspections > 0
    }

    /// Makes the next exchange read all of it.
    pub(super) fn read_in_full(&mut self) {
        self.fresh = false;
    }

    pub(super) fn has_pending(&self) -> bool {
        self.counters.is_open() || self.versioned.as_ref().is_some_and(|state| state.has_pending())
    }

    pub(super) fn is_spent(&self, reloads: &Reloads, now: Time) -> bool {
        reloads.is_spent(&self.names.limit, &self.cell, now)
    }

    /// The exchange was not answered, so what was sent may or may not have arrived.
    pub(super) fn lose_replies(&mut self) {
        self.counters.lose_replies();
        if let Some(state) = &mut self.versioned {
            state.lose_replies();
        }
    }
}

#[cfg(test)]
impl CachedCell {
    pub(super) fn check(&self) {
        let Self { stage, waiting, provisional, counters, versioned, cell, .. } = self;
        let has_sent = counters.has_sent() || versioned.as_ref().is_some_and(|state| state.has_sent());
        assert!(*stage == ExchangeStage::InFlight || !has_sent, "what was sent is in no exchange: {self:?}");
        assert!(
            *stage == ExchangeStage::InFlight || provisional.iter().all(|charge| !charge.sent),
            "it is in no exchange: {self:?}"
        );
        assert!(
            *stage != ExchangeStage::Idle || waiting.is_empty() && provisional.is_empty(),
            "it is in no queue: {self:?}"
        );
        for (id, open) in counters.open() {
            let count = cell.count(id.rate, id.bucket);
            assert!(count.is_none_or(|count| count >= open), "{id:?} does not count {open}: {self:?}");
        }
    }
}
