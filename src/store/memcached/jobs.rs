//! The decisions that wait for Memcached, in the order in which they came.
//!
//! A job stays where it was made: worker and ledger only hand it to each other, there and back with its verdicts.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Wish;
use super::cells::Place;
use super::claims::{Claimed, Standing};
use crate::clock::Time;
use crate::limit::Reservation;
use crate::store::{Reply, Reserved, Verdicts};

/// One decision, or the end of a reservation, for which nobody waits.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asks: SmallVec<[Wish; 2]>,
    pub(super) now: Time,
    /// When it began to wait.
    pub(super) asked: Instant,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    /// Which worker waits.
    pub(super) worker: usize,
    /// Where the cells of its asks are.
    pub(super) places: SmallVec<[Place; 2]>,
    /// How it was decided.
    pub(super) verdicts: Verdicts,
    /// What was charged for asks that settle.
    pub(super) reserved: Vec<Reserved>,
    /// What it settles, if it asks for nothing.
    pub(super) settled: Option<Box<Settled>>,
    /// What has been charged for it and is to be confirmed.
    pub(super) claimed: Claimed,
    /// Its number among all.
    pub(super) number: u64,
}

/// What becomes of a reservation.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) reservation: Reservation,
    /// The number of the cell that it was charged to.
    pub(super) cell: u32,
    /// How much of it is given back.
    pub(super) given: u64,
    /// How much is charged in addition.
    pub(super) more: u64,
}

impl Job {
    /// A decision for this worker.
    pub(super) fn new(
        asks: SmallVec<[Wish; 2]>,
        now: Time,
        reply: Option<oneshot::Sender<Reply>>,
        worker: usize,
    ) -> Box<Self> {
        let (asked, places, verdicts) = (Instant::now(), SmallVec::new(), Verdicts::new());
        let (claimed, reserved) = (Claimed::new(), Vec::new());
        Box::new(Self {
            asks,
            now,
            asked,
            reply,
            worker,
            places,
            verdicts,
            reserved,
            settled: None,
            claimed,
            number: 0,
        })
    }

    /// Settles what was reserved for this wish.
    pub(super) fn settling(wish: Wish, now: Time, settled: Settled, worker: usize) -> Box<Self> {
        let mut job = Self::new(SmallVec::from_iter([wish]), now, None, worker);
        job.settled = Some(Box::new(settled));
        job
    }

    /// Tells who waits for it. A receiver that is gone has given up waiting and let its request through: that it was
    /// counted is right. Returns what is to be settled then, because nobody else will.
    pub(super) fn answer(self) -> Vec<(Wish, Settled)> {
        let reply = Reply { verdicts: self.verdicts, reserved: self.reserved };
        let Some(Reply { reserved, .. }) = self.reply.and_then(|receiver| receiver.send(reply).err()) else {
            return Vec::new();
        };
        let settled = reserved.into_iter().filter_map(|Reserved { place, reservation, cell, .. }| {
            let wish = self.asks.iter().find(|wish| wish.place == place)?;
            Some((wish.clone(), Settled { reservation, cell, given: 0, more: 0 }))
        });
        settled.collect()
    }

    /// How its claim for this ask stands, if it is claimed.
    pub(super) fn standing(&mut self, ask: usize) -> Option<&mut Standing> {
        self.claimed.get_mut(ask)
    }

    /// Whether nobody waits for it any more. Of a settlement nobody ever does.
    pub(super) fn is_given_up(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// All that wait. A number that is given to a job is never given again.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The number of the first in the line.
    first: u64,
    line: VecDeque<Slot>,
}

#[derive(Debug)]
struct Slot {
    /// Nobody here waits for longer. All wait equally long, so the first in the line is the first to end.
    deadline: Instant,
    /// The job, if it still waits, and for how many answers.
    waiting: Option<(Box<Job>, usize)>,
}

impl Jobs {
    /// The number of the next job.
    pub(super) fn next(&self) -> u64 {
        self.first + self.line.len() as u64
    }

    /// Adds a job, which gets the next number, and waits for so many answers.
    pub(super) fn push(&mut self, mut job: Box<Job>, answers: usize, deadline: Instant) {
        job.number = self.next();
        self.line.push_back(Slot { deadline, waiting: Some((job, answers)) });
    }

    /// Lets a job that was just taken wait for so many answers more, no longer than before.
    pub(super) fn put_back(&mut self, job: Box<Job>, answers: usize) {
        if let Some(slot) = self.slot(job.number) {
            slot.waiting = Some((job, answers));
        }
    }

    /// The job with this number, if it still waits.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Job> {
        self.slot(number)?.waiting.as_mut().map(|(job, _)| &mut **job)
    }

    /// One of the answers is there: returns the job if it was the last.
    pub(super) fn count_down(&mut self, number: u64) -> Option<Box<Job>> {
        let (_, answers) = self.slot(number)?.waiting.as_mut()?;
        *answers = answers.saturating_sub(1);
        if *answers == 0 { self.take(number) } else { None }
    }

    /// Takes a job out of the line, if it still is in it.
    pub(super) fn take(&mut self, number: u64) -> Option<Box<Job>> {
        self.slot(number)?.waiting.take().map(|(job, _)| job)
    }

    /// Takes the first job, if its time is over.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<Box<Job>> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.take(self.first)
    }

    /// When the first job has waited for long enough.
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        while self.line.front()?.waiting.is_none() {
            self.line.pop_front();
            self.first += 1;
        }
        self.line.front().map(|slot| slot.deadline)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        self.line.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}
