//! One cell as this process knows it: what Memcached said last, and what was admitted since.
//!
//! A cell is part of one exchange at a time, so its increments and reads reach Memcached in order. Every increment
//! carries as its initial value all that is known: whatever has been lost, by eviction or by a restart, is there again
//! with the next request.

use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::claims::Claims;
use super::debts::{Debt, Debts, signed};
use super::keys::Names;
use super::shares::Shares;
use super::whole::{Owed, Whole};
use super::wire::{self, Answer};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};

/// For so long one gateway may know what another does not: what is owed may wait for a request that it can travel with,
/// and as long as there is plenty of room, what was read answers those who ask next.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
/// For so many microseconds after another gateway has charged a key, it is taken to go on.
const SHARED: u64 = 1_000_000;
/// As long as a key is shared, one part in so many of its quota may be admitted by one read. While a read and an exchange
/// are under way that is twice as much for each gateway, and for seven others less than what has to be left for it.
const BY_ONE_READ: u64 = 128;
/// A job that was asked longer than this before another, and comes after it, is decided as of the other.
pub(super) const OVERTAKEN: Duration = Duration::from_millis(500);

/// A cell and who waits for it.
#[derive(Debug)]
pub(super) struct Known {
    /// Its number among all that were ever known; they begin anew after 2^32.
    pub(super) number: u32,
    pub(super) names: Rc<Names>,
    pub(super) key: Fingerprint,
    pub(super) server: usize,
    pub(super) cell: Cell,
    /// When it was decided on last, by the clock of those who asked, and which of them asked last.
    pub(super) now: Time,
    asked: Option<Instant>,
    pub(super) debts: Debts,
    /// What this gateway has counted itself, if what is counted here is ever given back.
    pub(super) shares: Option<Shares>,
    /// The state of the rates that are kept as a whole, if there are any.
    pub(super) whole: Option<Box<Whole>>,
    /// The jobs that wait for it to be read.
    pub(super) waiting: SmallVec<[u64; 2]>,
    /// What was charged and is to be confirmed, in the order in which it was charged.
    pub(super) claims: Claims,
    pub(super) stage: Stage,
    /// Whether it was used since it was last looked at.
    pub(super) used: bool,
    /// Whether all of it was read in the last exchange.
    fresh: bool,
    /// Whether all of it was ever read.
    pub(super) was_read: bool,
    /// When Memcached was asked for what is known now, if that is what a decision needs.
    read: Option<Instant>,
    /// What was charged since something was read.
    since_read: u64,
    /// When it was last seen that another gateway has charged it.
    shared: Option<Time>,
}

/// Where a cell is on its way to Memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing is wanted of Memcached.
    Idle,
    /// It is to be part of one of the next exchanges.
    Queued,
    /// It is part of an exchange that is under way.
    Asked,
}

/// One command of an exchange.
#[derive(Debug)]
pub(super) enum Op {
    /// Adds to a counter, or takes from it, and reads it.
    Add(Debt),
    /// Reads a counter: the place of its rate, and the bucket.
    Count(usize, u64),
    /// Sees whether a counter is there before it is added to, and whether it should be.
    Look(bool),
    /// Replaces the state: what was changed of it, and the bytes.
    Swap(Owed, Vec<u8>),
    /// Appends to the state: what is to be changed of it, and the bytes.
    Append(Owed, Vec<u8>),
    /// Reads the state.
    Value,
}

/// What came of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled {
    /// How many commands failed.
    pub(super) failed: usize,
    /// How many counts that were known Memcached has lost.
    pub(super) lost: u64,
    /// Whether another gateway has replaced the state first.
    pub(super) outrun: bool,
    /// Whether what is known now is what a decision needs.
    pub(super) is_current: bool,
}

impl Known {
    pub(super) fn new(number: u32, names: Rc<Names>, key: Fingerprint, server: usize, now: Time) -> Self {
        let limit = &names.limit;
        let whole = limit.is_whole().then(Box::default);
        let cell = Cell::new(limit.rates(), now);
        let (debts, waiting, stage) = (Debts::default(), SmallVec::new(), Stage::Idle);
        Self {
            number,
            names,
            key,
            server,
            cell,
            now,
            asked: None,
            debts,
            shares: None,
            whole,
            waiting,
            claims: Claims::new(),
            stage,
            used: true,
            fresh: false,
            was_read: false,
            read: None,
            since_read: 0,
            shared: None,
        }
    }

    /// What it is found by.
    pub(super) fn id(&self) -> Fingerprint {
        self.key.with(self.names.limit.shape())
    }

    /// Moves it on to the moment of a job, for the rates of this limit; returns when it is to be decided. One that was
    /// asked long before others and comes after them, because it had to wait for longer, is decided as of then: it
    /// would look like a clock that was set back.
    pub(super) fn advance_for(&mut self, limit: &Limit, now: Time, asked: Instant) -> Time {
        let is_last = self.asked.is_none_or(|last| asked >= last);
        if is_last {
            self.asked = Some(asked);
        }
        let now = if !is_last && now.after(OVERTAKEN) < self.now { self.now } else { now };
        self.advance(limit, now);
        now
    }

    /// Moves it on to `now`, for the rates of this limit.
    pub(super) fn advance(&mut self, limit: &Limit, now: Time) {
        self.now = now;
        if let Some(whole) = &mut self.whole {
            whole.follow_clock(&mut self.cell, now);
        }
        if self.cell.advance(limit.rates(), now) {
            self.read = None;
        }
    }

    /// Whether it was read a moment before somebody asks who is `asking`, and no bucket has begun since. Who comes after
    /// others that wait, waits with them: what they are charged comes first. Where other gateways admit as well, only a
    /// little may be admitted before it is read again: else what they do not know of each other adds up.
    pub(super) fn was_just_read(&self, asking: Instant) -> bool {
        self.waiting.is_empty()
            && self.read.is_some_and(|read| asking < read + MOMENT)
            && !(self.is_shared() && self.since_read >= self.names.limit.capacity() / BY_ONE_READ)
    }

    /// Whether other gateways have charged it lately.
    fn is_shared(&self) -> bool {
        self.shared.is_some_and(|shared| self.now.micros().saturating_sub(shared.micros()) < SHARED)
    }

    /// Whether what is owed is to leave at once: other gateways charge it as well, and they either have little room left,
    /// or replace the same value.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_shared() && (self.whole.is_some() || !self.has_plenty(&self.names.limit, 1))
    }

    /// Counts `cost`, and owes it to Memcached. It has been advanced to `now`.
    pub(super) fn charge(&mut self, limit: &Limit, now: Time, cost: u64) {
        limit.charge(&mut self.cell, now, cost);
        self.since_read = self.since_read.saturating_add(cost);
        let Self { cell, debts, shares, whole, .. } = self;
        for (place, bucket) in cell.newest(limit.rates()) {
            if debts.of(place, bucket).is_none() {
                debts.retain(|debt| debt.place != place || cell.count(limit.rates(), place, debt.bucket).is_some());
            }
            debts.owe(place, bucket, signed(cost));
            if let Some(shares) = shares {
                shares.retain(|of, bucket| of != place || cell.count(limit.rates(), place, bucket).is_some());
                shares.add(place, bucket, signed(cost));
            }
        }
        if let Some(whole) = whole {
            whole.owe(signed(cost), now);
        }
    }

    /// Whether somebody waits for it or for what it was charged, or it is part of an exchange.
    pub(super) fn is_needed(&self) -> bool {
        self.stage == Stage::Asked || !self.waiting.is_empty() || !self.claims.is_empty()
    }

    /// Whether Memcached is to be told something.
    pub(super) fn owes(&self) -> bool {
        !self.debts.is_empty() || self.whole.as_ref().is_some_and(|whole| whole.owes())
    }

    /// Whether it can be forgotten without anybody noticing.
    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.cell.is_spent(self.names.limit.rates(), now)
    }

    /// Writes what is owed and asks for what a decision needs; adds a note of each command to `ops`.
    pub(super) fn compose(&mut self, ops: &mut Vec<Op>, out: &mut Vec<u8>) {
        let Self { names, key, cell, debts, whole, now, claims, .. } = self;
        let (rates, key) = (names.limit.rates(), key.digits());
        // Of what has left the window nothing is asked, so doubt about it would never end.
        debts.retain(|debt| debt.doubt == 0 || cell.count(rates, debt.place, debt.bucket).is_some());
        let is_owed = |place, bucket| debts.certain().any(|debt| debt.is_for(place, bucket));
        // What is added to is read on the way. If the rest was read a moment ago, that will do.
        let read = !std::mem::take(&mut self.fresh)
            || whole.is_some()
            || !claims.is_empty()
            || !cell.newest(rates).all(|(place, bucket)| is_owed(place, bucket));
        // What nothing is read with is looked at: if the server answers, but cannot write, that is no reason to leave it.
        let is_alone =
            read && whole.is_none() && cell.counts_mut(rates).all(|(place, bucket, _)| is_owed(place, bucket));
        for debt in debts.certain() {
            let Debt { place, bucket, amount, .. } = *debt;
            let Some(count) = cell.count(rates, place, bucket) else { continue };
            let is_known = count.saturating_add_signed(-amount) > 0;
            names.ready(place, bucket, *now, |commands| {
                if is_alone || is_known && !claims.is_empty() {
                    commands.look.put(&key, out);
                    ops.push(Op::Look(is_known));
                }
                match u64::try_from(amount) {
                    Ok(amount) => {
                        commands.add.put(&key, out);
                        wire::amounts(amount, count.max(amount), out);
                    }
                    Err(_) => {
                        commands.subtract.put(&key, out);
                        wire::amount(amount.unsigned_abs(), out);
                    }
                }
            });
            ops.push(Op::Add(*debt));
        }
        if read {
            for (place, bucket, _) in cell.counts_mut(rates) {
                if !is_owed(place, bucket) {
                    names.ready(place, bucket, *now, |commands| commands.count.put(&key, out));
                    ops.push(Op::Count(place, bucket));
                }
            }
        }
        debts.sent();
        if let Some(whole) = whole {
            whole.compose(cell, names, (&key, *now), ops, out);
        }
        claims.iter_mut().for_each(|claim| claim.sent = true);
        self.stage = Stage::Asked;
    }

    /// Takes over what Memcached answered to what it was asked then. If counters `shrink`, because gateways give back what
    /// they cannot use, what was known does not count.
    pub(super) fn fill(&mut self, ops: &[Op], answers: &[Answer<'_>], asked: Instant, shrink: bool) -> Filled {
        let mut filled = Filled::default();
        for (op, answer) in ops.iter().zip(answers) {
            let failed = matches!(answer, Answer::Failed(_));
            filled.failed += usize::from(failed);
            match op {
                Op::Add(debt) if failed => self.debts.owe(debt.place, debt.bucket, debt.amount),
                Op::Add(debt) => filled.lost += self.learn(debt.place, debt.bucket, answer.count(), shrink),
                Op::Count(..) if failed => {}
                Op::Count(place, bucket) => {
                    filled.lost += self.learn(*place, *bucket, answer.count(), shrink);
                }
                Op::Look(is_known) => filled.lost += u64::from(*is_known && *answer == Answer::Missing),
                Op::Swap(..) | Op::Append(..) | Op::Value => {}
            }
        }
        let Self { cell, names, whole, now, .. } = self;
        filled.outrun = ops
            .iter()
            .zip(answers)
            .any(|(op, answer)| matches!(op, Op::Swap(..) | Op::Append(..)) && *answer != Answer::Done);
        if let Some(whole) = whole {
            let learned = whole.fill(cell, (&names.limit, *now), ops, answers);
            filled.lost += learned.lost;
            if learned.is_foreign {
                self.shared = Some(*now);
            }
        }
        let rates = names.limit.rates();
        let was_read = |place, bucket| {
            ops.iter().any(|op| match op {
                Op::Add(debt) => debt.is_for(place, bucket),
                Op::Count(at, of) => (*at, *of) == (place, bucket),
                _ => false,
            })
        };
        filled.is_current = cell.newest(rates).all(|(place, bucket)| was_read(place, bucket));
        self.read = (filled.failed == 0 && filled.is_current && !filled.outrun).then_some(asked);
        if self.read.is_some() {
            self.since_read = 0;
        }
        self.fresh = filled.failed == 0 && ops.iter().any(|op| matches!(op, Op::Count(..)));
        self.was_read |= self.fresh;
        filled
    }

    /// Learns what a counter says, `None` if there is none; returns 1 if there should be one.
    fn learn(&mut self, place: usize, bucket: u64, said: Option<u64>, shrink: bool) -> u64 {
        let Self { cell, debts, shares, names, now, shared, .. } = self;
        let share = shares.as_ref().map_or(0, |shares| shares.of(place, bucket));
        let mut lost = false;
        cell.correct(names.limit.rates(), place, bucket, |count| {
            // Others only add: less than what was there before and what is in doubt says that it has not arrived.
            let before = |debt: Debt| count.saturating_add_signed(-debt.amount);
            let arrived = |debt: Debt| said.is_some_and(|said| said >= before(debt).saturating_add_signed(debt.doubt));
            let owed = debts.settle(place, bucket, arrived);
            let confirmed = count.saturating_add_signed(-owed);
            let there = match said {
                // Not below what was counted here, though: then it was lost and begun anew as well.
                Some(said) if shrink => said.max(share.saturating_add_signed(-owed)),
                // Counters only grow: if one has shrunk, it was lost and begun anew.
                Some(said) => said.max(confirmed),
                None => confirmed,
            };
            lost = said.is_none() && confirmed > 0;
            if said.is_some_and(|said| said > confirmed) {
                *shared = Some(*now);
            }
            there.saturating_add_signed(owed)
        });
        if lost {
            debts.owe(place, bucket, 0);
        }
        u64::from(lost)
    }

    /// Takes back what was sent in an exchange that was not answered.
    pub(super) fn doubt(&mut self, ops: Vec<Op>) {
        for op in ops {
            match (op, &mut self.whole) {
                (Op::Add(debt), _) => self.debts.doubt(debt.place, debt.bucket, debt.amount),
                (Op::Swap(owed, bytes) | Op::Append(owed, bytes), Some(whole)) => whole.doubt(owed, bytes),
                _ => {}
            }
        }
    }
}
