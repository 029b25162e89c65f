//! Lines of requests that are held until their limit has room, first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::fingerprint::Fingerprint;

/// The lines in this process, by key. A line without anybody is none.
#[derive(Debug, Default)]
pub struct Lines {
    lines: Mutex<HashMap<Fingerprint, VecDeque<Waiting>, RandomState>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    call: Option<oneshot::Sender<()>>,
}

/// A place in a line; dropping it leaves the line.
#[derive(Debug)]
pub struct Turn {
    lines: Arc<Lines>,
    key: Fingerprint,
    ticket: u64,
    called: Option<oneshot::Receiver<()>>,
}

impl Lines {
    /// Whether somebody waits for this key.
    pub fn is_waited_for(&self, key: Fingerprint) -> bool {
        self.lines.lock().contains_key(&key)
    }

    /// Goes to the end of the line; `None` if `most` stand there already.
    pub fn join(self: &Arc<Self>, key: Fingerprint, most: usize) -> Option<Turn> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let mut lines = self.lines.lock();
        let line = lines.entry(key).or_default();
        if line.len() >= most {
            return None;
        }
        let (call, called) = oneshot::channel();
        let first = line.is_empty();
        line.push_back(Waiting { ticket, call: (!first).then_some(call) });
        Some(Turn { lines: self.clone(), key, ticket, called: (!first).then_some(called) })
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.lines.lock().values().map(VecDeque::len).sum()
    }

    /// Whether nobody is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Turn {
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

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lines = self.lines.lines.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.retain(|waiting| waiting.ticket != self.ticket);
        if let Some(first) = line.front_mut() {
            // Whoever is first now learns of it, once.
            let _ = first.call.take().map(|call| call.send(()));
        } else {
            lines.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_first(turn: &mut Turn) -> bool {
        pin!(turn.first()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn first_come_first_served_whoever_leaves() {
        let lines = Arc::new(Lines::default());
        let key = Fingerprint::of(b"a");
        let mut turns: Vec<Turn> = (0..4).map(|_| lines.join(key, 4).unwrap()).collect();
        assert!(lines.join(key, 4).is_none(), "the line is full");
        assert!(lines.join(Fingerprint::of(b"b"), 4).is_some());
        assert!(is_first(&mut turns[0]) && !is_first(&mut turns[1]) && !is_first(&mut turns[2]));
        drop(turns.remove(1));
        assert!(!is_first(&mut turns[1]), "one in the middle has left");
        drop(turns.remove(0));
        assert!(is_first(&mut turns[0]) && !is_first(&mut turns[1]));
        drop(turns.remove(0));
        assert!(is_first(&mut turns[0]));
        assert!(lines.is_waited_for(key));
        drop(turns);
        assert!(!lines.is_waited_for(key) && lines.is_empty());
    }
}
