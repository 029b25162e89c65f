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
use tokio::time::Instant;

use super::message::{Message, Replies};
use super::servers::WORTHWHILE;
use crate::clock;

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
    outbox: Mutex<Vec<Message>>,
    filled: Notify,
    /// Until the worker takes it.
    inbox: Mutex<Option<UnboundedReceiver<Replies>>>,
}

impl Desks {
    /// Desks for so many workers, and where the post of each is to be sent.
    pub(super) fn new(workers: usize) -> (Self, Vec<UnboundedSender<Replies>>) {
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

    /// Puts a message on the desk of its worker, who announces it when this turn is over. Once the desks are closed it is
    /// dropped, which tells whoever waits for it.
    pub(super) fn put(&self, message: Message, worker: usize) {
        let last = self.desks.len() - 1;
        let place = worker.min(last);
        let waiting = self.desks[place].put(message, &self.closed);
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
                    let now = (clock::now(), Instant::now());
                    post.into_iter().flat_map(|decision| decision.answer(now)).for_each(|message| self.put(message, worker));
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
    pub(super) fn take(&self) -> Vec<Message> {
        let mut lots = self.desks.iter().map(|desk| mem::take(&mut *desk.outbox.lock())).filter(|lot| !lot.is_empty());
        let (mut messages, mut more) = (lots.next().unwrap_or_default(), false);
        for lot in lots {
            messages.extend(lot);
            more = true;
        }
        if more {
            messages.sort_by_key(Message::asked);
        }
        messages
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Nothing more will come, nor be taken: what is on the desks is dropped, which tells whoever waits for it.
    pub(super) fn clear(&self) {
        self.close();
        drop(self.take());
    }
}

impl Desk {
    /// Returns how many are on it now.
    fn put(&self, message: Message, closed: &AtomicBool) -> usize {
        let mut outbox = self.outbox.lock();
        // Looked at with the desk in hand, so that nothing is put there after it was cleared.
        if closed.load(Ordering::Relaxed) {
            return 0;
        }
        outbox.push(message);
        if outbox.len() == 1 {
            self.filled.notify_one();
        }
        outbox.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::SmallVec;
    use tokio::sync::oneshot;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::clock::Time;
    use crate::fingerprint::Fingerprint;
    use crate::limit::{Cell, Limit};
    use crate::store::Reserved;
    use crate::store::memcached::Wish;
    use crate::store::memcached::message::Decision;

    #[tokio::test]
    async fn what_was_reserved_for_nobody_is_settled() {
        let (desks, posts) = Desks::new(1);
        let limit = Arc::new(Limit::new("l", &["10/s burst 5".parse().unwrap()]));
        let now = Time::from_micros(1);
        let mut cell = Cell::new(limit.rates(), now);
        let reservation = limit.reserve(&mut cell, now, 2);
        let wish =
            Wish { limit, key: Fingerprint::of(b"k"), need: 2, cost: 2, settles: true, advisory: false, place: 3 };
        let (reply, verdicts) = oneshot::channel();
        let asked = Instant::now();
        let mut job = Decision::new(SmallVec::from_iter([wish]), (now, asked), Some(reply), 0);
        job.reserved.push(Reserved { place: 3, reservation: reservation.clone(), cell: 0, refunded: None, by: None });
        drop(verdicts);
        posts[0].send(vec![job]).unwrap();
        // It ends when there is nothing left to hand out.
        drop(posts);
        desks.carry(0).await;
        let [Message::Settle(settled)] = &desks.take()[..] else { panic!("nothing is settled") };
        assert_eq!((&settled.reservation, settled.given, settled.more), (&reservation, 0, 0));
        assert_eq!(settled.wish.place, 3);
    }

    #[test]
    fn nobody_waits_at_desks_that_were_cleared() {
        let (desks, _posts) = Desks::new(1);
        let ask = || {
            let (reply, verdicts) = oneshot::channel();
            let now = (Time::from_micros(1), Instant::now());
            desks.put(Message::Decide(Decision::new(SmallVec::new(), now, Some(reply), 0)), 0);
            verdicts
        };
        let mut before = ask();
        assert_eq!(before.try_recv(), Err(TryRecvError::Empty));
        desks.clear();
        assert_eq!(before.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(ask().try_recv(), Err(TryRecvError::Closed));
    }
}
