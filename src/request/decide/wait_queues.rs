//! Queues of requests that are held until their limit has room. Only the first request of a queue asks the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::base::fingerprint::Fingerprint;

/// The queues of this process. An empty queue is removed.
#[derive(Debug, Default)]
pub struct WaitQueues {
    queues: Mutex<HashMap<Fingerprint, Queue, RandomState>>,
    next_ticket: AtomicU64,
}

/// Requests by their tickets, in order of arrival. The sender wakes a request that becomes the first; `None` if it knows.
type Queue = BTreeMap<u64, Option<oneshot::Sender<()>>>;

/// A place in a queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct QueueSlot {
    wait_queues: Arc<WaitQueues>,
    key: Fingerprint,
    ticket: u64,
    /// `None` once the slot is the first of its queue.
    became_first: Option<oneshot::Receiver<()>>,
}

impl WaitQueues {
    pub fn has_waiters(&self, key: Fingerprint) -> bool {
        self.queues.lock().contains_key(&key)
    }

    pub fn is_full(&self, key: Fingerprint, max_delayed: usize) -> bool {
        self.queues.lock().get(&key).is_some_and(|queue| queue.len() >= max_delayed)
    }

    pub fn join(self: &Arc<Self>, key: Fingerprint, max_delayed: usize) -> Option<QueueSlot> {
        let mut queues = self.queues.lock();
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let queue = queues.entry(key).or_default();
        if queue.len() >= max_delayed {
            return None;
        }
        let (notify_first, became_first) = oneshot::channel();
        let is_first = queue.is_empty();
        queue.insert(ticket, (!is_first).then_some(notify_first));
        Some(QueueSlot { wait_queues: self.clone(), key, ticket, became_first: (!is_first).then_some(became_first) })
    }

    pub fn held(&self) -> usize {
        self.queues.lock().values().map(Queue::len).sum()
    }
}

impl QueueSlot {
    pub async fn wait_until_first(&mut self) {
        if let Some(became_first) = &mut self.became_first {
            // The sender is dropped only together with this slot.
            let _ = became_first.await;
            self.became_first = None;
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut queues = self.wait_queues.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else { return };
        queue.remove(&self.ticket);
        if let Some(mut first) = queue.first_entry() {
            // A request is notified once. If its receiver is gone, it is about to leave the queue too.
            let _ = first.get_mut().take().map(|notify| notify.send(()));
        } else {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use super::*;

    fn is_first(slot: &mut QueueSlot) -> bool {
        pin!(slot.wait_until_first()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn requests_are_served_in_order_when_others_leave() {
        let wait_queues = Arc::new(WaitQueues::default());
        let key = Fingerprint::of(b"a");
        let mut slots: Vec<QueueSlot> = (0..4).map(|_| wait_queues.join(key, 4).unwrap()).collect();
        assert!(wait_queues.join(key, 4).is_none(), "the queue is full");
        assert!(wait_queues.join(Fingerprint::of(b"b"), 4).is_some());
        assert!(is_first(&mut slots[0]) && !is_first(&mut slots[1]) && !is_first(&mut slots[2]));
        drop(slots.remove(1));
        assert!(!is_first(&mut slots[1]), "one in the middle has left");
        drop(slots.remove(0));
        assert!(is_first(&mut slots[0]) && !is_first(&mut slots[1]));
        drop(slots.remove(0));
        assert!(is_first(&mut slots[0]));
        assert!(wait_queues.has_waiters(key));
        drop(slots);
        assert!(!wait_queues.has_waiters(key) && wait_queues.held() == 0);
    }

    #[test]
    fn it_takes_no_longer_to_leave_a_long_queue() {
        const LONG: usize = 100_000;
        let wait_queues = Arc::new(WaitQueues::default());
        let key = Fingerprint::of(b"a");
        let mut slots: Vec<QueueSlot> = (0..LONG).map(|_| wait_queues.join(key, LONG).unwrap()).collect();
        let begun = Instant::now();
        // The last one leaves first. If each looked at all others, this would take minutes.
        while slots.pop().is_some() {}
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(!wait_queues.has_waiters(key));
    }
}
