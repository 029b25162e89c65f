//! Messages from the workers to the coordinator, the replies to them, and how both are passed: in batches.
//!
//! Waking another thread costs a system call, and often a switch of threads. So a worker announces its messages once, at the
//! end of a turn of its runtime. While all servers have yet to answer it announces nothing, because nothing could be sent to
//! them; the driver takes the messages when an answer arrives. The replies of one turn of the driver wake each worker once
//! as well.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::OwnedAsk;
use super::batch::WORTHWHILE;
use super::cached_cell::Standings;
use super::cells::CellPlace;
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::{IfAbandoned, KeyUsage, LimitChanges, Reply, Reserved, Ticket, Watch};

#[derive(Debug)]
pub(super) struct Mailboxes {
    /// One for each worker, and the last one for all other threads.
    mailboxes: Box<[Mailbox]>,
    /// Whether the driver will soon take the messages without being woken.
    busy: AtomicBool,
    closed: AtomicBool,
    /// Wakes the driver.
    driver: Notify,
}

#[derive(Debug, Default)]
struct Mailbox {
    messages: Mutex<Vec<Message>>,
    /// Wakes the worker at the end of a turn in which it has sent something.
    sent: Notify,
    replies: Mutex<PendingDecisions>,
    replied: Notify,
}

impl Mailboxes {
    pub(super) fn new(workers: usize) -> Self {
        let mailboxes = (0..=workers).map(|_| Mailbox::default()).collect();
        Self { mailboxes, busy: AtomicBool::new(false), closed: AtomicBool::new(false), driver: Notify::new() }
    }

    pub(super) fn workers(&self) -> usize {
        self.mailboxes.len() - 1
    }

    /// The worker announces it at the end of its turn. Closed mailboxes drop it with its reply's sender, which tells the
    /// caller.
    pub(super) fn send(&self, message: Message, worker: usize) {
        let last = self.workers();
        let index = worker.min(last);
        let waiting = self.mailboxes[index].push(message, &self.closed);
        if index == last {
            self.announce(waiting);
        }
    }

    /// Announces a worker's messages and delivers its replies, beside its requests, until the mailboxes are closed.
    pub(super) async fn carry(&self, worker: usize) {
        let Some(mailbox) = self.mailboxes.get(worker) else { return };
        while !self.closed.load(Ordering::Relaxed) {
            tokio::select! {
                biased;
                () = mailbox.sent.notified() => self.announce(mailbox.messages.lock().len()),
                () = mailbox.replied.notified() => {
                    let replies = mem::take(&mut *mailbox.replies.lock());
                    let (now, asked) = (clock::now(), Instant::now());
                    let settlements = replies.into_iter().flat_map(|decision| decision.answer(now, asked));
                    settlements.for_each(|settlement| self.send(settlement, worker));
                }
            }
        }
    }

    fn announce(&self, waiting: usize) {
        if self.needs_driver(waiting) {
            self.wake();
        }
    }

    fn needs_driver(&self, waiting: usize) -> bool {
        waiting >= WORTHWHILE || waiting > 0 && !self.busy.load(Ordering::SeqCst)
    }

    /// Whether this worker wakes the driver at the end of its turn.
    pub(super) fn announces(&self, worker: usize) -> bool {
        self.mailboxes.get(worker).is_some_and(|mailbox| self.needs_driver(mailbox.messages.lock().len()))
    }

    pub(super) fn wake(&self) {
        self.driver.notify_one();
    }

    /// Waits until the driver is woken. False if the mailboxes are closed.
    pub(super) async fn woken(&self) -> bool {
        self.driver.notified().await;
        !self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn set_busy(&self) {
        self.busy.store(true, Ordering::SeqCst);
    }

    /// In the order in which they were sent. `busy`: the driver will soon take messages again without being woken.
    ///
    /// `busy` is stored before the messages are taken. A worker does the reverse: it adds a message, and then reads `busy`.
    /// If it reads true, it added the message before the driver takes them here, so the message is among them. In the other
    /// order, a message could be added after the driver took the others, and be neither announced nor taken.
    pub(super) fn take(&self, busy: bool) -> Vec<Message> {
        self.busy.store(busy, Ordering::SeqCst);
        let taken = self.mailboxes.iter().map(|mailbox| mem::take(&mut *mailbox.messages.lock()));
        let mut taken = taken.filter(|messages| !messages.is_empty());
        let (mut messages, mut is_mixed) = (taken.next().unwrap_or_default(), false);
        for more in taken {
            messages.extend(more);
            is_mixed = true;
        }
        if is_mixed {
            messages.sort_by_key(Message::asked);
        }
        messages
    }

    /// Hands replies to a worker. If the worker is gone, so are its requests.
    pub(super) fn reply(&self, worker: usize, replies: PendingDecisions) {
        if let Some(mailbox) = self.mailboxes.get(worker) {
            let mut waiting = mailbox.replies.lock();
            if waiting.is_empty() {
                // The usual case, without a copy.
                *waiting = replies;
            } else {
                waiting.extend(replies);
            }
            mailbox.replied.notify_one();
        }
    }

    /// Accepts no further messages. The driver still takes the present ones.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wake();
        self.mailboxes.iter().for_each(|mailbox| mailbox.sent.notify_one());
    }

    /// Accepts no further messages and drops the present ones, which tells the requests that wait for them.
    pub(super) fn clear(&self) {
        self.close();
        drop(self.take(false));
    }
}

impl Mailbox {
    /// Returns the number of messages.
    fn push(&self, message: Message, closed: &AtomicBool) -> usize {
        let mut messages = self.messages.lock();
        // Read under the lock, so that nothing is added after the mailbox was cleared.
        if closed.load(Ordering::Relaxed) {
            return 0;
        }
        messages.push(message);
        if messages.len() == 1 {
            self.sent.notify_one();
        }
        messages.len()
    }
}

/// To the coordinator: decisions, settlements, reloads, and what operators do with keys.
#[derive(Debug)]
pub(super) enum Message {
    Decide(Box<PendingDecision>),
    /// A reservation ends. Nobody waits for that.
    Settle(Box<Settlement>),
    Reload(Box<Reload>),
    Inspect(Box<Inspection>),
}

/// One request, from its asks to its verdicts. It is allocated once: worker and coordinator pass it to each other.
#[derive(Debug)]
pub(super) struct PendingDecision {
    pub(super) asks: SmallVec<[OwnedAsk; 2]>,
    pub(super) now: Time,
    pub(super) asked: Instant,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    pub(super) worker: usize,
    pub(super) places: SmallVec<[CellPlace; 2]>,
    pub(super) result: Reply,
    /// The state of its charges while it waits for confirmations.
    pub(super) standings: Standings,
    pub(super) number: u64,
}

pub(super) type PendingDecisions = Vec<Box<PendingDecision>>;

#[derive(Debug)]
pub(super) struct Settlement {
    pub(super) ticket: Ticket,
    pub(super) now: Time,
    /// When the cost became known.
    pub(super) asked: Instant,
    /// The real cost. If it is less than what was reserved, the rest is given back; if it is more, the difference is charged.
    pub(super) cost: u64,
    pub(super) watch: Watch,
}

#[derive(Debug)]
pub(super) struct Reload {
    pub(super) changes: LimitChanges,
    pub(super) now: Time,
    pub(super) asked: Instant,
}

#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Fingerprint,
    pub(super) now: Time,
    pub(super) asked: Instant,
    pub(super) task: Task,
}

/// What to do for an operator. A dropped sender means that the server is away.
#[derive(Debug)]
pub(super) enum Task {
    Peek(oneshot::Sender<KeyUsage>),
    Reset(oneshot::Sender<()>),
}

impl Message {
    pub(super) fn asked(&self) -> Instant {
        match self {
            Self::Decide(decision) => decision.asked,
            Self::Settle(settlement) => settlement.asked,
            Self::Reload(reload) => reload.asked,
            Self::Inspect(inspection) => inspection.asked,
        }
    }
}

impl PendingDecision {
    pub(super) fn new(
        asks: SmallVec<[OwnedAsk; 2]>,
        now: Time,
        asked: Instant,
        reply: Option<oneshot::Sender<Reply>>,
        worker: usize,
    ) -> Box<Self> {
        let (places, result, standings) = (SmallVec::new(), Reply::default(), Standings::new());
        Box::new(Self { asks, now, asked, reply, worker, places, result, standings, number: 0 })
    }

    /// Sends the reply. If the receiver is gone, the request has stopped waiting and was let through, so its charges rightly
    /// stay, unless they lapse. Nobody else will settle its reservations then: returns the messages that settle them.
    pub(super) fn answer(self, now: Time, asked: Instant) -> impl Iterator<Item = Message> {
        let Self { asks, mut result, reply, .. } = self;
        for OwnedAsk { place, limit, requested, .. } in &asks {
            requested.iter().for_each(|requested| result.translate(*place, requested, limit));
        }
        let unsent = reply.and_then(|receiver| receiver.send(result).err());
        let reserved = unsent.map(|reply| reply.reserved).unwrap_or_default();
        reserved.into_iter().map(move |Reserved { place, ticket, watch, .. }| {
            let lapses = asks.iter().any(|ask| ask.place == place && ask.if_abandoned == IfAbandoned::Lapses);
            let cost = if lapses { 0 } else { ticket.cost() };
            Message::Settle(Box::new(Settlement { ticket, now, asked, cost, watch }))
        })
    }

    pub(super) fn is_given_up(&self) -> bool {
        let is_closed = self.reply.as_ref().is_some_and(oneshot::Sender::is_closed);
        is_closed && self.asks.iter().all(|ask| ask.if_abandoned != IfAbandoned::Stays)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread;
    use std::time::Duration;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::limit::Cell;
    use crate::store::shared::tests::ask;

    const NOW: Time = Time::from_micros(1);

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Wakes {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn poll<F: Future>(self: &Arc<Self>, task: Pin<&mut F>) -> Poll<F::Output> {
            task.poll(&mut Context::from_waker(&Waker::from(self.clone())))
        }
    }

    fn decision(asks: impl IntoIterator<Item = OwnedAsk>) -> (Box<PendingDecision>, oneshot::Receiver<Reply>) {
        let (reply, verdicts) = oneshot::channel();
        (PendingDecision::new(asks.into_iter().collect(), NOW, Instant::now(), Some(reply), 0), verdicts)
    }

    fn message() -> Message {
        Message::Decide(decision([]).0)
    }

    #[test]
    fn a_turn_wakes_the_driver_once_and_not_while_it_is_busy() {
        let mailboxes = Mailboxes::new(1);
        let (mut worker, mut driver) = (pin!(mailboxes.carry(0)), pin!(mailboxes.woken()));
        let (worker_wakes, driver_wakes) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        assert!(worker_wakes.poll(worker.as_mut()).is_pending() && driver_wakes.poll(driver.as_mut()).is_pending());
        for _ in 0..10 {
            mailboxes.send(message(), 0);
        }
        assert_eq!((worker_wakes.count(), driver_wakes.count()), (1, 0), "the turn is not over");
        assert!(worker_wakes.poll(worker.as_mut()).is_pending());
        assert_eq!(driver_wakes.count(), 1);
        assert_eq!(driver_wakes.poll(driver.as_mut()), Poll::Ready(true));
        assert_eq!(mailboxes.take(true).len(), 10);
        driver.set(mailboxes.woken());
        assert!(driver_wakes.poll(driver.as_mut()).is_pending());
        (1..WORTHWHILE).for_each(|_| mailboxes.send(message(), 0));
        assert!(worker_wakes.poll(worker.as_mut()).is_pending());
        assert_eq!(driver_wakes.count(), 1, "it takes them when a server answers");
        mailboxes.take(true);
        (0..WORTHWHILE).for_each(|_| mailboxes.send(message(), 0));
        assert!(worker_wakes.poll(worker.as_mut()).is_pending());
        assert_eq!(driver_wakes.count(), 2, "so many are worth an exchange of their own");
        assert_eq!(driver_wakes.poll(driver.as_mut()), Poll::Ready(true));
        mailboxes.take(false);
        driver.set(mailboxes.woken());
        assert!(driver_wakes.poll(driver.as_mut()).is_pending());
        mailboxes.send(message(), 1);
        assert_eq!(driver_wakes.count(), 3, "another thread has no turns");
    }

    #[test]
    fn replies_of_a_turn_wake_the_worker_once() {
        let mailboxes = Mailboxes::new(1);
        let mut worker = pin!(mailboxes.carry(0));
        let wakes = Arc::new(Wakes::default());
        assert!(wakes.poll(worker.as_mut()).is_pending());
        let (replies, mut receivers): (Vec<_>, Vec<_>) = (0..10).map(|_| decision([])).unzip();
        mailboxes.reply(0, replies);
        let (more, receiver) = decision([]);
        mailboxes.reply(0, vec![more]);
        receivers.push(receiver);
        assert_eq!(wakes.count(), 1);
        assert!(wakes.poll(worker.as_mut()).is_pending());
        assert!(receivers.iter_mut().all(|receiver| receiver.try_recv().is_ok()));
    }

    #[test]
    fn no_message_is_left_behind() {
        // The steps of a worker (it adds a message and announces it) and of the driver (it stores that it is not busy, and
        // takes) in every possible order.
        for worker_at in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
            let mailboxes = Mailboxes::new(1);
            mailboxes.set_busy();
            let (mut added, mut said, mut taken) = (0, false, Vec::new());
            for step in 0..4 {
                if !worker_at.contains(&step) {
                    // The two steps of `take`; the next test checks their order.
                    match mem::replace(&mut said, true) {
                        false => mailboxes.busy.store(false, Ordering::SeqCst),
                        true => taken = mem::take(&mut *mailboxes.mailboxes[0].messages.lock()),
                    }
                } else if added == 0 {
                    added = mailboxes.mailboxes[0].push(message(), &mailboxes.closed);
                } else {
                    mailboxes.announce(added);
                }
            }
            let is_woken = Arc::new(Wakes::default()).poll(pin!(mailboxes.woken())).is_ready();
            assert!(is_woken || taken.len() == 1, "the worker's steps are {worker_at:?}");
        }
    }

    #[test]
    fn that_the_driver_is_not_busy_is_said_before_messages_are_taken() {
        let mailboxes = Mailboxes::new(1);
        mailboxes.set_busy();
        thread::scope(|scope| {
            // Somebody adds a message just now, so the driver has to wait for the lock.
            let adding = mailboxes.mailboxes[0].messages.lock();
            let driver = scope.spawn(|| mailboxes.take(false));
            let begun = std::time::Instant::now();
            while mailboxes.busy.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(10) {
                thread::yield_now();
            }
            let is_said = !mailboxes.busy.load(Ordering::SeqCst);
            drop(adding);
            driver.join().unwrap();
            assert!(is_said);
        });
    }

    #[test]
    fn messages_are_taken_in_the_order_in_which_they_were_sent() {
        let mailboxes = Mailboxes::new(2);
        let sent: Vec<_> = [1, 0, 2, 0, 1]
            .map(|worker| {
                let message = message();
                let asked = message.asked();
                mailboxes.send(message, worker);
                asked
            })
            .to_vec();
        let taken: Vec<_> = mailboxes.take(false).iter().map(Message::asked).collect();
        assert_eq!(taken, sent);
    }

    #[test]
    fn reservations_of_a_request_that_has_given_up_are_settled() {
        let mailboxes = Mailboxes::new(1);
        let limit = Arc::new(Limit::new("l", &["10/s burst 5".parse().unwrap()]));
        let mut cell = Cell::new(limit.rates(), NOW);
        let reservation = limit.reserve(&mut cell, NOW, 2);
        let ask = OwnedAsk { need: 2, cost: 2, settles: true, place: 3, ..ask(&limit, Fingerprint::of(b"k")) };
        let (mut decided, verdicts) = decision(SmallVec::<[OwnedAsk; 1]>::from_iter([ask]));
        let ticket = Ticket { limit: limit.clone(), key: Fingerprint::of(b"k"), cell: 0, reservation };
        let watch = Watch::default();
        decided.result.reserved.push(Reserved {
            place: 3,
            ticket: ticket.clone(),
            requested: limit,
            refunded: None,
            watch,
        });
        drop(verdicts);
        mailboxes.reply(0, vec![decided]);
        assert!(Arc::new(Wakes::default()).poll(pin!(mailboxes.carry(0))).is_pending());
        let [Message::Settle(settled)] = &mailboxes.take(false)[..] else { panic!("nothing is settled") };
        assert_eq!((&settled.ticket, settled.cost), (&ticket, 2));
    }

    #[test]
    fn what_another_proxy_has_asked_is_decided_also_if_it_waits_no_more() {
        let limit = Arc::new(Limit::new("l", &["10/s".parse().unwrap()]));
        for if_abandoned in [IfAbandoned::Ends, IfAbandoned::Lapses, IfAbandoned::Stays] {
            let ask = OwnedAsk { if_abandoned, ..ask(&limit, Fingerprint::of(b"k")) };
            let (decided, verdicts) = decision(SmallVec::<[OwnedAsk; 1]>::from_iter([ask]));
            assert!(!decided.is_given_up());
            drop(verdicts);
            assert_eq!(decided.is_given_up(), if_abandoned != IfAbandoned::Stays);
        }
    }

    #[test]
    fn nobody_waits_at_mailboxes_that_were_cleared() {
        let mailboxes = Mailboxes::new(1);
        let ask = || {
            let (decision, verdicts) = decision([]);
            mailboxes.send(Message::Decide(decision), 0);
            verdicts
        };
        let mut before = ask();
        assert_eq!(before.try_recv().err(), Some(TryRecvError::Empty));
        mailboxes.clear();
        assert_eq!(before.try_recv().err(), Some(TryRecvError::Closed));
        assert_eq!(ask().try_recv().err(), Some(TryRecvError::Closed));
    }
}
