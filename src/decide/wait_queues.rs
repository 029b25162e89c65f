//! WaitQueues of requests that are held until their limit has room, first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::fingerprint::Fingerprint;

/// The lines in this process, by key. A line without anybody is none.
#[derive(Debug, Default)]
pub struct WaitQueues {
    wait_queues: Mutex<HashMap<Fingerprint, VecDeque<Waiting>, RandomState>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    call: Option<oneshot::Sender<()>>,
}

/// A place in a line; dropping it leaves the line.
#[derive(Debug)]
pub struct QueueSlot {
    wait_queues: Arc<WaitQueues>,
    key: Fingerprint,
    ticket: u64,
    called: Option<oneshot::Receiver<()>>,
}

impl WaitQueues {
    /// Whether somebody waits for this key.
    pub fn is_waited_for(&self, key: Fingerprint) -> bool {
        self.wait_queues.lock().contains_key(&key)
    }

    /// Goes to the end of the line; `None` if `most` stand there already.
    pub fn join(self: &Arc<Self>, key: Fingerprint, most: usize) -> Option<QueueSlot> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let mut wait_queues = self.wait_queues.lock();
        let line = wait_queues.entry(key).or_default();
        if line.len() >= most {
            return None;
        }
        let (call, called) = oneshot::channel();
        let first = line.is_empty();
        line.push_back(Waiting { ticket, call: (!first).then_some(call) });
        Some(QueueSlot { wait_queues: self.clone(), key, ticket, called: (!first).then_some(called) })
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.wait_queues.lock().values().map(VecDeque::len).sum()
    }

    /// Whether nobody is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl QueueSlot {
    /// Which line it is in.
    pub fn key(&self) -> Fingerprint {
        self.key
    }

    /// Waits until nobody stands before it.
    pub async fn first(&mut self) {
        if let Some(called) = &mut self.called {
            // The sender goes with its place in the line, that is with this turn.
            let _ = called.await;
            self.called = None;
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut wait_queues = self.wait_queues.wait_queues.lock();
        let Some(line) = wait_queues.get_mut(&self.key) else { return };
        line.retain(|waiting| waiting.ticket != self.ticket);
        if let Some(first) = line.front_mut() {
            // Whoever is first now learns of it, once.
            let _ = first.call.take().map(|call| call.send(()));
        } else {
            wait_queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_first(turn: &mut QueueSlot) -> bool {
        pin!(turn.first()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn first_come_first_served_whoever_leaves() {
        let wait_queues = Arc::new(WaitQueues::default());
        let key = Fingerprint::of(b"a");
        let mut turns: Vec<QueueSlot> = (0..4).map(|_| wait_queues.join(key, 4).unwrap()).collect();
        assert!(wait_queues.join(key, 4).is_none(), "the line is full");
        assert!(wait_queues.join(Fingerprint::of(b"b"), 4).is_some());
        assert!(is_first(&mut turns[0]) && !is_first(&mut turns[1]) && !is_first(&mut turns[2]));
        drop(turns.remove(1));
        assert!(!is_first(&mut turns[1]), "one in the middle has left");
        drop(turns.remove(0));
        assert!(is_first(&mut turns[0]) && !is_first(&mut turns[1]));
        drop(turns.remove(0));
        assert!(is_first(&mut turns[0]));
        assert!(wait_queues.is_waited_for(key));
        drop(turns);
        assert!(!wait_queues.is_waited_for(key) && wait_queues.is_empty());
    }
}
