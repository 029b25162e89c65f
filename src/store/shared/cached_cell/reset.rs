//! Resets: a key begins anew at all gateways.
//!
//! A reset must not delete counters: a gateway that knows the counts would take them for lost and write them again.
//! Instead it stores 0 in every counter that matters, whether it exists or not, and a state in which nothing is
//! counted. Each item carries the number of the reset in its flags, which stay when it is added to or appended to.
//!
//! Numbers grow from one reset of a key to the next. A gateway that reads a higher number than it knows believes what
//! it reads, as if it had never known the key. What it has not written yet is counted after the reset. But what the
//! gateway that resets the key has not written before, it need not write any more: the exchange stands for that, too.
//! If two gateways reset the key at the same time, the lower number may be written last. Then no item has the higher one, and
//! who knows that believes the lower one.
//!
//! A reset goes through the coordinator like all else, so it is in order with the decisions of its gateway.

use std::mem;

use super::CachedCell;
use crate::limit::Cell;
use crate::store::shared::counters::CounterId;
use crate::store::shared::names;
use crate::store::shared::protocol::{Commands, Condition, Item};
use crate::store::shared::targets::{CellAnswer, Targets};

/// How a cell stands to the resets of its key.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store::shared) struct Resets {
    /// The number of the last reset that was seen; 0 if the key was not reset.
    pub(in crate::store::shared) seen: u32,
    /// The number that is to be written, and the one that the exchange under way writes; 0 if there is none.
    pub(in crate::store::shared) next: u32,
    pub(in crate::store::shared) sent: u32,
}

/// What the numbers of the items say that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::shared) struct ResetOutcome {
    /// Whether the key was reset, so that what was charged before does not count any more.
    pub(in crate::store::shared) is_reset: bool,
    /// Every item that was read has this number, or a higher one. 0 if nothing could be read.
    pub(in crate::store::shared) everywhere: u32,
}

impl Resets {
    /// The number that the exchange which is being collected has to write.
    pub(in crate::store::shared) fn send(&mut self) -> Option<u32> {
        self.sent = mem::take(&mut self.next);
        Some(self.sent).filter(|sent| *sent > 0)
    }

    /// Whether an item is known to be there since the last reset. So it has not been lost and begun anew, and what it
    /// says counts, even if it is less than what is known.
    pub(in crate::store::shared) fn is_certain(self, item: &Item<'_>) -> bool {
        self.seen > 0 && item.number == self.seen
    }
}

impl CachedCell {
    /// Has the key reset by the next exchange. It has just been read, so the number is higher than that of any reset
    /// before. Returns the number.
    pub(in crate::store::shared) fn reset(&mut self) -> u32 {
        let now = u32::try_from(self.now.seconds()).unwrap_or(u32::MAX);
        self.resets.next = self.resets.seen.saturating_add(1).max(now);
        self.resets.next
    }

    /// Does not reset the key after all.
    pub(in crate::store::shared) fn cancel_reset(&mut self) {
        self.resets.next = 0;
    }

    /// Stores the items of a key for which nothing is counted, and reads them.
    pub(super) fn compose_reset(&mut self, number: u32, targets: &mut Targets, commands: &mut dyn Commands) {
        let Self { names, key, cell, counters, versioned, now, provisional, .. } = self;
        let (rates, key) = (names.limit.rates(), key.digits());
        // What is to be confirmed is counted afterwards: else nobody could confirm it.
        let is_sent = provisional.is_empty();
        if is_sent {
            counters.send(|_, _, _| {});
        }
        for (rate, bucket, _) in cell.counts_mut() {
            let id = CounterId { rate, bucket };
            let name = |out: &mut Vec<u8>| names.counter(&key, id, out);
            commands.store(&name, b"0", Condition::Always, names.lifetime(id, *now), number);
            targets.write_other();
            commands.read(&name);
            targets.read_counter(id);
        }
        if let Some(state) = versioned {
            let name = |out: &mut Vec<u8>| names.state(&key, out);
            let (mut value, writing) = (Cell::new(rates, *now).save(state.ahead()), names.writer.next());
            Cell::append(writing, [].into_iter(), 0, &mut value);
            // It has to be there for as long as others may know the state that it replaces.
            let lifetime = names::lifetime(cell.memory(rates), *now);
            commands.store(&name, &value, Condition::Always, lifetime, number);
            targets.write_other();
            commands.read(&name);
            targets.read_state();
            if is_sent {
                state.send_reset(writing, value);
            }
        }
    }

    /// Sees by the numbers of the items whether the key was reset, and forgets what was known before.
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
        // Of two gateways that reset the key at the same time, the one with the lower number may have been the last.
        let is_overwritten = everywhere > 0 && (1..self.resets.seen).contains(&highest);
        let is_reset = highest > self.resets.seen || is_overwritten;
        if is_reset {
            self.resets.seen = highest;
            self.forget_counts();
        }
        ResetOutcome { is_reset, everywhere }
    }

    /// Forgets all but what the server has yet to be told, because of a reset. What continues from replaced limits is reset as
    /// well.
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
