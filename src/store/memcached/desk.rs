//! Where the decisions of one worker leave together, and their answers come back together.
//!
//! Waking another thread costs a system call and often a change of threads. So what a worker asks in one turn leaves at
//! its end, and what is decided in one turn of the ledger comes back at its end: one wake-up each, however many they
//! are.

use std::mem;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::jobs::Job;
use crate::store::Verdicts;

/// Verdicts on their way to those who wait for them.
pub(super) type Post = Vec<(oneshot::Sender<Verdicts>, Verdicts)>;

/// A worker's desk.
#[derive(Debug)]
pub(super) struct Desk {
    outbox: Mutex<Vec<Job>>,
    filled: Notify,
    /// Until the worker takes it.
    inbox: Mutex<Option<UnboundedReceiver<Post>>>,
}

impl Desk {
    /// A desk, and where its post is to be sent.
    pub(super) fn new() -> (Self, UnboundedSender<Post>) {
        let (post, inbox) = unbounded_channel();
        (Self { outbox: Mutex::default(), filled: Notify::new(), inbox: Mutex::new(Some(inbox)) }, post)
    }

    pub(super) fn put(&self, job: Job) {
        let mut outbox = self.outbox.lock();
        outbox.push(job);
        if outbox.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Carries out what leaves, and hands out what comes back. The worker does this beside its requests.
    pub(super) async fn carry(&self, jobs: &UnboundedSender<Vec<Job>>) {
        let Some(mut inbox) = self.inbox.lock().take() else { return };
        loop {
            tokio::select! {
                biased;
                () = self.filled.notified() => {
                    // With the other end gone, so is whoever waits for an answer.
                    let _ = jobs.send(mem::take(&mut *self.outbox.lock()));
                }
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
}
