//! Resets: a key begins anew at all gateways.
//!
//! A reset must not delete counters: a gateway that knows the counts would take them for lost and write them again. Instead
//! it stores 0 in every counter that matters, whether it exists or not, and an empty state. Each item carries the number of
//! the reset in its flags, which additions and appends do not change.
//!
//! Numbers grow from one reset of a key to the next. A gateway that reads a higher number than it knows believes what it
//! reads, as if it had never known the key. Its pending charges are counted after the reset. The gateway that resets the key
//! drops its own pending charges: they came before. If two gateways reset the key at the same time, the lower number may be
//! written last. Then no item has the higher one, and a gateway that knows the higher number believes the lower one.

use std::mem;

use super::CachedCell;
use crate::limit::Cell;
use crate::store::shared::counters::CounterId;
use crate::store::shared::names;
use crate::store::shared::protocol::{Commands, Condition, Item};
use crate::store::shared::targets::{CellAnswer, Target, Targets};

#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Resets {
    /// The number of the last reset that was seen; 0 if there was none.
    pub(in super::super) seen: u32,
    /// The number to be written, and the one that the exchange in flight writes; 0 if there is none.
    next: u32,
    sent: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct ResetOutcome {
    /// Whether the key was reset, so that earlier charges no longer count.
    pub(in super::super) is_reset: bool,
    /// Every read item has this number or a higher one. 0 if nothing was read.
    pub(in super::super) everywhere: u32,
}

impl Resets {
    pub(in super::super) fn send(&mut self) -> Option<u32> {
        self.sent = mem::take(&mut self.next);
        Some(self.sent).filter(|sent| *sent > 0)
    }

    /// Whether an item is known to have been there since the last reset. Then it was not lost and created anew, and its count
    /// is right even if it is lower than what is known.
    pub(in super::super) fn is_certain(self, item: &Item<'_>) -> bool {
        self.seen > 0 && item.number == self.seen
    }
}

impl CachedCell {
    /// Makes the next exchange reset the key. It was just read, so the number is above any earlier one. Returns the number.
    pub(in super::super) fn reset(&mut self) -> u32 {
        let now = u32::try_from(self.now.seconds()).unwrap_or(u32::MAX);
        self.resets.next = self.resets.seen.saturating_add(1).max(now);
        self.resets.next
    }

    pub(in super::super) fn cancel_reset(&mut self) {
        self.resets.next = 0;
    }

    /// Stores empty items for a key, and reads them.
    pub(super) fn compose_reset(&mut self, number: u32, targets: &mut Targets, commands: &mut dyn Commands) {
        let Self { names, key, cell, counters, versioned, now, provisional, .. } = self;
        let (rates, key) = (names.limit.rates(), key.digits());
        // Charges that await a confirmation are counted after the reset: otherwise nobody could confirm them.
        let is_sent = provisional.is_empty();
        if is_sent {
            counters.send(|_, _, _| {});
        }
        for (rate, bucket, _) in cell.counts_mut() {
            let id = CounterId { rate, bucket };
            let name = |out: &mut Vec<u8>| names.counter(&key, id, out);
            commands.store_count(&name, 0, names.lifetime(id, *now), number);
            targets.writes.push(Target::Other);
            commands.read(&name);
            targets.reads.push(Target::Counter(id));
        }
        if let Some(state) = versioned {
            let name = |out: &mut Vec<u8>| names.state(&key, out);
            let (mut value, writing) = (Cell::new(rates, *now).save(state.ahead()), names.writer.next());
            Cell::append(writing, [].into_iter(), 0, &mut value);
            // It must stay for as long as others may know the state that it replaces.
            let lifetime = names::lifetime(cell.memory(rates), *now);
            commands.store(&name, &value, Condition::Always, lifetime, number);
            targets.writes.push(Target::Other);
            commands.read(&name);
            targets.reads.push(Target::State);
            if is_sent {
                state.send_reset(writing, value);
            }
        }
    }

    /// Learns from the numbers of the items whether the key was reset, and forgets earlier counts.
    pub(super) fn apply_resets(&mut self, answer: &CellAnswer<'_>) -> ResetOutcome {
        let number = |item: Option<Item<'_>>| item.map_or(0, |item| item.number);
        let (mut everywhere, mut highest) = (0, 0);
        if answer.is_read() {
            let items = answer.items().map(|(_, item)| item).chain(self.versioned.is_some().then(|| answer.state()));
            let bounds = |(least, most): (u32, u32), number: u32| (least.min(number), most.max(number));
            (everywhere, highest) = items.map(number).fold((u32::MAX, 0), bounds);
        }
        match mem::take(&mut self.resets.sent) {
            0 => {}
            sent if sent <= everywhere => {
                self.counters.acknowledge_all();
                self.versioned.iter_mut().for_each(|state| state.acknowledge());
            }
            _ => self.lose_replies(),
        }
        // If two gateways reset the key at the same time, the one with the lower number may have come last.
        let is_overwritten = everywhere > 0 && (1..self.resets.seen).contains(&highest);
        let is_reset = highest > self.resets.seen || is_overwritten;
        if is_reset {
            self.resets.seen = highest;
            self.forget_counts();
        }
        ResetOutcome { is_reset, everywhere }
    }

    /// Forgets all but what the server has yet to be told. What continues from replaced limits is reset, too.
    fn forget_counts(&mut self) {
        let Self { names, cell, counters, versioned, now, .. } = self;
        let limit = &names.limit;
        *cell = Cell::new(limit.rates(), *now);
        counters.forget_confirmed();
        cell.fill(|rate, bucket| 0u64.saturating_add_signed(counters.pending(CounterId { rate, bucket })));
        if let Some(state) = versioned {
            state.forget_confirmed(cell, limit, *now);
        }
    }
}
