//! What the commands of one exchange are about, so that the replies find their way back to the cells.

use std::ops::Range;

use super::counters::CounterId;
use super::protocol::{Item, Replies, Written};

/// What one command writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Counter(CounterId),
    /// The state of all rates that are kept as one value.
    State,
    /// Something whose write is seen by what is read afterwards.
    Other,
}

/// What the commands of one exchange are about, in the order of the commands.
#[derive(Debug)]
pub(super) struct Targets {
    writes: Vec<Target>,
    reads: Vec<Target>,
}

/// Which commands of an exchange are about one cell.
#[derive(Clone, Debug)]
pub(super) struct CommandRanges {
    writes: Range<usize>,
    reads: Range<usize>,
}

impl Targets {
    /// With room for so many commands of each kind.
    pub(super) fn with_capacity(commands: usize) -> Self {
        Self { writes: Vec::with_capacity(commands), reads: Vec::with_capacity(commands) }
    }

    pub(super) fn write_counter(&mut self, id: CounterId) {
        self.writes.push(Target::Counter(id));
    }

    pub(super) fn read_counter(&mut self, id: CounterId) {
        self.reads.push(Target::Counter(id));
    }

    /// The state is written.
    pub(super) fn write_state(&mut self) {
        self.writes.push(Target::State);
    }

    /// Something is written, and what is read afterwards shows whether that is done.
    pub(super) fn write_other(&mut self) {
        self.writes.push(Target::Other);
    }

    /// The state is read: the last that is of a cell.
    pub(super) fn read_state(&mut self) {
        self.reads.push(Target::State);
    }

    /// What `collect` adds.
    pub(super) fn added_by(&mut self, collect: impl FnOnce(&mut Self)) -> CommandRanges {
        let (writes, reads) = (self.writes.len(), self.reads.len());
        collect(self);
        CommandRanges { writes: writes..self.writes.len(), reads: reads..self.reads.len() }
    }
}

/// What was replied about one cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellAnswer<'a> {
    pub(super) targets: &'a Targets,
    pub(super) ranges: &'a CommandRanges,
    pub(super) replies: Replies<'a>,
}

impl<'a> CellAnswer<'a> {
    /// Whether everything has been read that was to be read.
    pub(super) fn is_read(&self) -> bool {
        self.replies.is_read
    }

    /// The counters that were written, and what came of that.
    pub(super) fn written(&self) -> impl Iterator<Item = (CounterId, Written)> {
        self.ranges.writes.clone().filter_map(|tag| match self.targets.writes[tag] {
            Target::Counter(id) => Some((id, self.replies.written(tag))),
            Target::State | Target::Other => None,
        })
    }

    /// The counters that were read, and their counts: `None` if there is no such counter.
    pub(super) fn read(&self) -> impl Iterator<Item = (CounterId, Option<u64>)> {
        self.items().map(|(id, item)| (id, item.map(|item| item.count())))
    }

    /// The counters that were read, and the items that they are.
    pub(super) fn items(&self) -> impl Iterator<Item = (CounterId, Option<Item<'a>>)> {
        self.ranges.reads.clone().filter_map(|at| match self.targets.reads[at] {
            Target::Counter(id) => Some((id, self.replies.item(at))),
            Target::State | Target::Other => None,
        })
    }

    /// What came of the write of the state, if it was written. Of two commands for that, one is enough.
    pub(super) fn state_written(&self) -> Option<Written> {
        let is_state = |tag: &usize| self.targets.writes[*tag] == Target::State;
        let written = self.ranges.writes.clone().filter(is_state).map(|tag| self.replies.written(tag));
        written.reduce(|one, other| match (one, other) {
            (Written::Done, _) | (Written::Unknown, Written::Refused | Written::Missing) => one,
            _ => other,
        })
    }

    /// The state that was read: `None` if there is none.
    pub(super) fn state(&self) -> Option<Item<'a>> {
        let last = self.ranges.reads.clone().next_back()?;
        self.replies.item(last).filter(|_| self.targets.reads[last] == Target::State)
    }
}
