//! Where the decisions of the workers wait to be taken in, and where their answers come back.
//!
//! Waking another thread costs a system call and often a change of threads. So what a worker asks in one turn is
//! announced once, at its end, and not at all while every server has yet to answer: the ledger looks at the desks by
//! itself then. What is decided in one turn of the ledger comes back at its end, with one wake-up as well.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::jobs::Job;
use super::servers::WORTHWHILE;
use crate::store::Verdicts;

/// Verdicts on their way to those who wait for them.
pub(super) type Post = Vec<(oneshot::Sender<Verdicts>, Verdicts)>;

/// All desks.
#[derive(Debug)]
pub(super) struct Desks {
    /// One for each worker, and one for whoever is none.
    desks: Box<[Desk]>,
    /// Whether the ledger looks at the desks by itself before long.
    busy: AtomicBool,
    closed: AtomicBool,
    /// That there is something on a desk.
    bell: Notify,
}

/// A worker's desk.
#[derive(Debug, Default)]
struct Desk {
    outbox: Mutex<Vec<Job>>,
    filled: Notify,
    /// Until the worker takes it.
    inbox: Mutex<Option<UnboundedReceiver<Post>>>,
}

impl Desks {
    /// Desks for so many workers, and where the post of each is to be sent.
    pub(super) fn new(workers: usize) -> (Self, Vec<UnboundedSender<Post>>) {
        let (posts, desks): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| {
                let (post, inbox) = unbounded_channel();
                (post, Desk { inbox: Mutex::new(Some(inbox)), ..Desk::default() })
            })
            .unzip();
        let desks = desks.into_iter().chain([Desk::default()]).collect();
        let (busy, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        (Self { desks, busy, closed, bell: Notify::new() }, posts)
    }

    /// Puts a job on the desk of its worker, who announces it when this turn is over. Once the desks are closed it is
    /// dropped, which tells whoever waits for it.
    pub(super) fn put(&self, job: Job) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let last = self.desks.len() - 1;
        let place = job.worker.min(last);
        let waiting = self.desks[place].put(job);
        if place == last {
            self.announce(waiting);
        }
    }

    /// Announces what is on the desk of a worker, and hands out what comes back. The worker does this beside its
    /// requests.
    pub(super) async fn carry(&self, worker: usize) {
        let Some(desk) = self.desks.get(worker) else { return };
        let Some(mut inbox) = desk.inbox.lock().take() else { return };
        loop {
            tokio::select! {
                biased;
                () = desk.filled.notified() => self.announce(desk.outbox.lock().len()),
                post = inbox.recv() => {
                    let Some(post) = post else { return };
                    for (reply, verdicts) in post {
                        // A receiver that is gone has given up waiting and let its request through: counting it is
                        // right.
                        let _ = reply.send(verdicts);
                    }
                }
            }
        }
    }

    fn announce(&self, waiting: usize) {
        if waiting >= WORTHWHILE || waiting > 0 && !self.busy.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// Waits until something is announced; false if nothing ever will be.
    pub(super) async fn announced(&self) -> bool {
        self.bell.notified().await;
        !self.closed.load(Ordering::Relaxed)
    }

    /// Says whether the ledger takes what is on the desks before long. When it says that it will not, it has to take it
    /// afterwards: what was put there before was perhaps not announced.
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    /// Takes what is on the desks, in the order in which it was asked.
    pub(super) fn take(&self) -> Vec<Job> {
        let mut lots = self.desks.iter().map(|desk| mem::take(&mut *desk.outbox.lock())).filter(|lot| !lot.is_empty());
        let (mut jobs, mut more) = (lots.next().unwrap_or_default(), false);
        for lot in lots {
            jobs.extend(lot);
            more = true;
        }
        if more {
            jobs.sort_by_key(|job| job.asked);
        }
        jobs
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }
}

impl Desk {
    /// Returns how many are on it now.
    fn put(&self, job: Job) -> usize {
        let mut outbox = self.outbox.lock();
        outbox.push(job);
        if outbox.len() == 1 {
            self.filled.notify_one();
        }
        outbox.len()
    }
}
