//! What a cell writes and reads in an exchange, and what it learns from the answer.

use tokio::time::Instant;

use super::reset::ResetOutcome;
use super::settlement::is_leasable;
use super::{CachedCell, ExchangeStage};
use crate::store::shared::counters::{CounterId, LearnedCount};
use crate::store::shared::protocol::{Commands, Echo, Initial, Item, Written};
use crate::store::shared::targets::{CellAnswer, Target, Targets};
use crate::store::shared::versioned::StateWriting;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Filled {
    pub(in super::super) writes: Writes,
    /// The number of known counts that the server has lost.
    pub(in super::super) lost: u64,
    /// Whether to write again before anything is admitted: another gateway replaced the state first, or a count was missing.
    pub(in super::super) must_retry: bool,
    /// Whether the counts suffice for a decision.
    pub(in super::super) is_current: bool,
    pub(in super::super) reset: ResetOutcome,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Writes {
    /// All are done, or another gateway was faster.
    #[default]
    Done,
    Failed,
    /// It is unknown whether some are done.
    Unacknowledged,
}

impl CachedCell {
    /// Writes what is pending and reads what a decision needs. Charges that `strict` has to confirm are added by commands
    /// that return the count: if several gateways take the last place at once, all but the first must see that.
    pub(in super::super) fn compose(&mut self, targets: &mut Targets, commands: &mut dyn Commands, strict: bool) {
        self.stage = ExchangeStage::InFlight;
        if let Some(number) = self.resets.send() {
            return self.compose_reset(number, targets, commands);
        }
        let is_shared = self.is_shared();
        let Self { names, key, cell, counters, versioned, now, provisional, inspections, resets, .. } = self;
        let key = key.digits();
        // Counters that have left the window are not read, so they would stay unacknowledged for ever.
        counters.retain(|id| cell.count(id.rate, id.bucket).is_some());
        let echo = if strict && !provisional.is_empty() { Echo::Count } else { Echo::Quiet };
        counters.send(|id, amount, is_new| {
            let name = |out: &mut Vec<u8>| names.counter(&key, id, out);
            let count = cell.count(id.rate, id.bucket).unwrap_or(0);
            let amount = if is_new { amount.max(0) } else { amount };
            // A counter that should be there is not created, so that its loss is noticed.
            let created = u64::try_from(amount).ok().filter(|amount| is_new || count <= *amount);
            let lifetime = || names.lifetime(id, *now);
            let initial = created.map(|amount| Initial { count: count.max(amount), lifetime: lifetime() });
            commands.add(&name, amount, initial, echo);
            targets.writes.push(Target::Counter(id));
        });
        let is_sent = |(rate, bucket)| counters.is_in_flight(CounterId { rate, bucket });
        // If all was read a moment ago, reading what is added to suffices.
        let reads_all = !std::mem::take(&mut self.fresh)
            || versioned.is_some()
            || strict && !provisional.is_empty()
            || !cell.newest().all(is_sent);
        for (rate, bucket, _) in cell.counts_mut() {
            let is_sent = is_sent((rate, bucket));
            let is_read = if is_sent { echo == Echo::Quiet || *inspections > 0 } else { reads_all };
            if is_read {
                let id = CounterId { rate, bucket };
                commands.read(&|out| names.counter(&key, id, out));
                targets.reads.push(Target::Counter(id));
            }
        }
        if let Some(state) = versioned {
            let writing = StateWriting { key: &key, now: *now, number: resets.seen, is_shared };
            state.compose(cell, names, &writing, targets, commands);
        }
        for charge in provisional {
            let waits = |number| versioned.as_ref().is_some_and(|state| !state.is_sent(number));
            charge.sent = !charge.attempt.is_some_and(waits);
        }
    }

    /// Learns from the answer. With `strict`, lower counts are believed, because gateways give back what they cannot use.
    pub(in super::super) fn fill(&mut self, answer: &CellAnswer<'_>, asked: Instant, strict: bool) -> Filled {
        let shrink = strict || self.counters.shrinks();
        // Counts from before a reset must not be used to interpret the replies.
        let mut filled = Filled { reset: self.apply_resets(answer), ..Filled::default() };
        for (id, written) in answer.written() {
            self.counters.acknowledge(id, written);
            if let Written::Count(count) = written {
                self.learn(id, Some(count), shrink);
            }
            filled.note(written);
        }
        for (id, item) in answer.items().filter(|_| answer.is_read()) {
            filled.lost += self.learn_item(id, item, shrink);
        }
        let Self { cell, names, versioned, now, .. } = self;
        if let Some(state) = versioned {
            let learned = state.fill(cell, &names.limit, *now, answer);
            filled.lost += learned.lost;
            if learned.is_foreign {
                self.shared = Some(*now);
            }
            // A blocked item refuses every write: trying again would never end.
            let written = if learned.is_blocked { Some(Written::Failed) } else { answer.state_written() };
            written.into_iter().for_each(|written| filled.note(written));
        }
        let was_written = |id| answer.written().any(|(of, _)| of == id);
        let was_asked = |(rate, bucket)| {
            let id = CounterId { rate, bucket };
            was_written(id) || answer.read().any(|(of, _)| of == id)
        };
        if strict {
            self.note_overfull();
        }
        filled.is_current = self.cell.newest().all(was_asked);
        if filled.reset.is_reset {
            // After a reset, earlier values of older counters mean nothing.
            filled.is_current &= self.cell.counts_mut().all(|(rate, bucket, _)| was_asked((rate, bucket)));
        }
        let is_good = answer.is_read() && filled.writes == Writes::Done && !filled.must_retry;
        self.read = (is_good && filled.is_current).then_some(asked);
        if self.read.is_some() {
            self.since_read = 0;
        }
        let is_complete = answer.is_read() && answer.read().any(|(id, _)| !was_written(id));
        self.fresh = is_complete && filled.is_current;
        self.was_read |= is_complete && (filled.is_current || !filled.reset.is_reset);
        filled
    }

    /// Updates, after a read, since when others are seen to have charged more than fits.
    fn note_overfull(&mut self) {
        let Self { cell, names, now, shared, .. } = self;
        let is_overfull = names.limit.exceeds_by_counters(cell, *now);
        let since = self.overfull.or(shared.filter(|shared| *shared == *now));
        self.overfull = since.filter(|_| is_overfull);
    }

    /// Learns a counter that was read; `None` if it is missing. What is no number counts as missing. Returns 1 if it should not be.
    fn learn_item(&mut self, id: CounterId, item: Option<Item<'_>>, shrink: bool) -> u64 {
        let count = item.and_then(|item| item.count());
        if let (Some(item), Some(count)) = (item, count)
            && self.resets.is_certain(&item)
        {
            let most = count.saturating_add_signed(self.counters.pending(id));
            self.cell.correct(id.rate, id.bucket, |cached| cached.min(most));
        }
        self.learn(id, count, shrink)
    }

    /// Learns a count; `None` if it is missing. Returns 1 if it should not be.
    fn learn(&mut self, id: CounterId, count: Option<u64>, shrink: bool) -> u64 {
        let Self { cell, counters, names, now, shared, .. } = self;
        let (mut known, mut learned) = (0, LearnedCount::default());
        cell.correct(id.rate, id.bucket, |cached| {
            (known, learned) = (cached, counters.learn(id, cached, count, shrink));
            learned.count
        });
        if learned.is_shared {
            *shared = Some(*now);
            if is_leasable(&names.limit) {
                counters.may_shrink_by_others(id, known);
            }
        }
        u64::from(learned.is_lost)
    }
}

impl Filled {
    fn note(&mut self, written: Written) {
        let writes = match written {
            Written::Failed => Writes::Failed,
            Written::Unknown => Writes::Unacknowledged,
            Written::Done | Written::Count(_) | Written::Missing | Written::Refused => Writes::Done,
        };
        self.writes = self.writes.max(writes);
        self.must_retry |= matches!(written, Written::Missing | Written::Refused);
    }
}
