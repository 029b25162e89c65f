//! The cells and counters behind the commands of one exchange, so that the replies find their way back.

use std::ops::Range;

use super::counters::CounterId;
use super::protocol::{Item, Replies, Written};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Counter(CounterId),
    /// The state of all rates that are kept as one value. Its read is the last one of a cell.
    State,
    /// Something whose write shows in what is read afterwards.
    Other,
}

#[derive(Debug)]
pub(super) struct Targets {
    pub(super) writes: Vec<Target>,
    pub(super) reads: Vec<Target>,
}

/// Which commands of an exchange concern one cell.
#[derive(Clone, Debug)]
pub(super) struct CommandRanges {
    writes: Range<usize>,
    reads: Range<usize>,
}

impl Targets {
    pub(super) fn with_capacity(commands: usize) -> Self {
        Self { writes: Vec::with_capacity(commands), reads: Vec::with_capacity(commands) }
    }

    pub(super) fn added_by(&mut self, collect: impl FnOnce(&mut Self)) -> CommandRanges {
        let (writes, reads) = (self.writes.len(), self.reads.len());
        collect(self);
        CommandRanges { writes: writes..self.writes.len(), reads: reads..self.reads.len() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CellAnswer<'a> {
    pub(super) targets: &'a Targets,
    pub(super) ranges: &'a CommandRanges,
    pub(super) replies: Replies<'a>,
}

impl<'a> CellAnswer<'a> {
    pub(super) fn is_read(&self) -> bool {
        self.replies.outcome.is_read
    }

    pub(super) fn written(&self) -> impl Iterator<Item = (CounterId, Written)> {
        self.ranges.writes.clone().filter_map(|tag| match self.targets.writes[tag] {
            Target::Counter(id) => Some((id, self.replies.written(tag))),
            Target::State | Target::Other => None,
        })
    }

    /// `None` for a counter that is missing or no number.
    pub(super) fn read(&self) -> impl Iterator<Item = (CounterId, Option<u64>)> {
        self.items().map(|(id, item)| (id, item.and_then(|item| item.count())))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (CounterId, Option<Item<'a>>)> {
        self.ranges.reads.clone().filter_map(|at| match self.targets.reads[at] {
            Target::Counter(id) => Some((id, self.replies.item(at))),
            Target::State | Target::Other => None,
        })
    }

    /// The result of writing the state, if it was written. Of two commands for that, one success is enough.
    pub(super) fn state_written(&self) -> Option<Written> {
        let is_state = |tag: &usize| self.targets.writes[*tag] == Target::State;
        let written = self.ranges.writes.clone().filter(is_state).map(|tag| self.replies.written(tag));
        written.reduce(|one, other| match (one, other) {
            (Written::Done, _) | (Written::Unknown, Written::Refused | Written::Missing) => one,
            _ => other,
        })
    }

    pub(super) fn state(&self) -> Option<Item<'a>> {
        let last = self.ranges.reads.clone().next_back()?;
        self.replies.item(last).filter(|_| self.targets.reads[last] == Target::State)
    }
}
