//! The decisions that wait for Memcached, in the order in which they came.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Wish;
use crate::clock::Time;
use crate::store::Verdicts;

/// One decision, or without a reply a charge that nobody waits for.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asks: SmallVec<[Wish; 2]>,
    pub(super) now: Time,
    pub(super) reply: Option<oneshot::Sender<Verdicts>>,
}

impl Job {
    /// Whether nobody waits for it any more. A charge is never given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// All that wait. A number that is given to a job is never given again.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The number of the first in the line.
    first: u64,
    line: VecDeque<Option<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    job: Box<Job>,
    /// How many cells it waits for.
    cells: usize,
    /// It waits no longer than this. All wait equally long, so the first in the line is the first to end.
    deadline: Instant,
}

impl Jobs {
    /// The number of the next job.
    pub(super) fn next(&self) -> u64 {
        self.first + self.line.len() as u64
    }

    /// Adds a job, which gets the next number, and waits for so many cells.
    pub(super) fn push(&mut self, job: Box<Job>, cells: usize, deadline: Instant) {
        self.line.push_back(Some(Waiting { job, cells, deadline }));
    }

    /// One of the cells is there: returns the job if it was the last.
    pub(super) fn count_down(&mut self, number: u64) -> Option<Box<Job>> {
        let waiting = self.slot(number)?.as_mut()?;
        waiting.cells = waiting.cells.saturating_sub(1);
        if waiting.cells == 0 { self.take(number) } else { None }
    }

    /// Takes a job out of the line, if it still is in it.
    pub(super) fn take(&mut self, number: u64) -> Option<Box<Job>> {
        let waiting = self.slot(number)?.take();
        while let Some(None) = self.line.front() {
            self.line.pop_front();
            self.first += 1;
        }
        waiting.map(|waiting| waiting.job)
    }

    /// Takes the first job, if its time is over.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<Box<Job>> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.take(self.first)
    }

    /// When the first job has waited for long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.line.front()?.as_ref().map(|waiting| waiting.deadline)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Option<Waiting>> {
        self.line.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}
