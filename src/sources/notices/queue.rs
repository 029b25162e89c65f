//! The notices that wait for one receiver, at most [`MOST`]. A notice stays in the queue while it is sent, so it is counted
//! whatever becomes of the sender.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::NoticeCounts;
use super::notice::Notice;

pub(super) const MOST: usize = 10_000;

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something was added.
    added: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Notice>>,
    has_ended: bool,
}

impl Queue {
    /// Never waits. Counts a notice that is not added.
    pub(super) fn add(&self, notice: Notice, counts: &NoticeCounts) {
        let mut state = self.state.lock();
        if state.has_ended {
            counts.ended.one();
        } else if state.waiting.len() >= MOST {
            counts.full.one();
        } else {
            state.waiting.push_back(Arc::new(notice));
            drop(state);
            self.added.notify_one();
        }
    }

    /// Waits for the first notice, which stays. Only one task may wait.
    pub(super) async fn first(&self) -> Arc<Notice> {
        loop {
            if let Some(first) = self.state.lock().waiting.front().cloned() {
                return first;
            }
            self.added.notified().await;
        }
    }

    /// Removes the first notice if it is this one.
    pub(super) fn remove(&self, notice: &Arc<Notice>) {
        let mut state = self.state.lock();
        state.waiting.pop_front_if(|first| Arc::ptr_eq(first, notice));
    }

    /// Moves the first notice to the end if it is this one.
    pub(super) fn put_back(&self, notice: &Arc<Notice>) {
        let mut state = self.state.lock();
        let first = state.waiting.pop_front_if(|first| Arc::ptr_eq(first, notice));
        state.waiting.extend(first);
    }

    /// Adds nothing any more. Returns what waited.
    pub(super) fn end(&self) -> VecDeque<Arc<Notice>> {
        let mut state = self.state.lock();
        state.has_ended = true;
        mem::take(&mut state.waiting)
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Time;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::{Limit, Reached};

    fn notice(number: usize) -> Notice {
        let limit = Limit::new("l", &["1/d".parse().unwrap()]);
        let reached = Reached { rate: 0, used: 1, capacity: 1, share: 1, until: Time::from_micros(1), window: 1 };
        let key = Fingerprint::of(&number.to_be_bytes());
        Notice::new(key, &limit, key, String::new(), 1, &reached).unwrap()
    }

    #[tokio::test]
    async fn it_is_bounded_and_what_fails_goes_to_its_end() {
        let (queue, counts) = (Queue::default(), NoticeCounts::default());
        let lost = || (counts.full.get(), counts.ended.get());
        (0..MOST).for_each(|number| queue.add(notice(number), &counts));
        assert_eq!((lost(), queue.len()), ((0, 0), MOST));
        queue.add(notice(MOST), &counts);
        assert_eq!((lost(), queue.len()), ((1, 0), MOST));
        let first = queue.first().await;
        queue.put_back(&first);
        // Only the first notice is moved or removed.
        queue.put_back(&first);
        queue.remove(&first);
        assert_eq!(queue.len(), MOST);
        let second = queue.first().await;
        assert!(!Arc::ptr_eq(&first, &second));
        queue.remove(&second);
        let left = queue.end();
        assert!(left.len() == MOST - 1 && Arc::ptr_eq(&left[MOST - 2], &first));
        queue.add(notice(0), &counts);
        assert_eq!((lost(), queue.len()), ((1, 1), 0));
    }
}
