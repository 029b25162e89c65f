//! The decisions that wait for servers, in the order in which they came.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::message::PendingDecision;

/// Numbers of decisions are never reused.
#[derive(Debug, Default)]
pub(super) struct DecisionQueue {
    first: u64,
    queue: VecDeque<Slot>,
}

#[derive(Debug)]
struct Slot {
    /// All wait equally long, so the first in the queue is the first to end.
    deadline: Instant,
    /// `None` if it no longer waits; otherwise with the number of missing answers.
    waiting: Option<(Box<PendingDecision>, usize)>,
}

impl DecisionQueue {
    /// Returns the number of the decision.
    pub(super) fn push(&mut self, mut decision: Box<PendingDecision>, answers: usize, deadline: Instant) -> u64 {
        let number = self.first + self.queue.len() as u64;
        decision.number = number;
        self.queue.push_back(Slot { deadline, waiting: Some((decision, answers)) });
        number
    }

    /// Makes a decision that was just taken wait for more answers, until its deadline. Returns its number.
    pub(super) fn put_back(&mut self, decision: Box<PendingDecision>, answers: usize) -> u64 {
        let number = decision.number;
        if let Some(slot) = self.slot(number) {
            slot.waiting = Some((decision, answers));
        }
        number
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut PendingDecision> {
        self.slot(number)?.waiting.as_mut().map(|(decision, _)| &mut **decision)
    }

    /// One answer has come: returns the decision if it was the last.
    pub(super) fn count_down(&mut self, number: u64) -> Option<Box<PendingDecision>> {
        let (_, answers) = self.slot(number)?.waiting.as_mut()?;
        *answers = answers.saturating_sub(1);
        if *answers == 0 { self.take(number) } else { None }
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Box<PendingDecision>> {
        self.slot(number)?.waiting.take().map(|(decision, _)| decision)
    }

    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<Box<PendingDecision>> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.take(self.first)
    }

    pub(super) fn deadline(&mut self) -> Option<Instant> {
        while self.queue.front()?.waiting.is_none() {
            self.queue.pop_front();
            self.first += 1;
        }
        self.queue.front().map(|slot| slot.deadline)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.queue.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}
