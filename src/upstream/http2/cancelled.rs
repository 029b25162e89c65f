//! The streams of cancelled requests on one connection, some of which are reset later than others.
//!
//! Clients share connections until it is known which of them cancel many requests (`clients.rs`). Several of them may cancel at
//! once, and servers end a connection on which too many streams are reset at once, with the requests of all others.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use h2::SendStream;

/// The streams that are reset between two checks of a connection. Servers of the library h2 end a connection with more than
/// 20 resets that they have not read.
const AT_ONCE: usize = 10;

#[derive(Debug)]
pub(super) struct Cancelled {
    /// How many may be reset until the next check.
    left: Cell<usize>,
    /// Keeps the streams open that are reset later.
    later: RefCell<Vec<SendStream<Bytes>>>,
}

impl Default for Cancelled {
    fn default() -> Self {
        Self { left: Cell::new(AT_ONCE), later: RefCell::default() }
    }
}

impl Cancelled {
    pub(super) fn count(&self) -> usize {
        self.later.borrow().len()
    }

    /// Resets a stream that `sender` keeps open, now or later. Without a sender it is reset already.
    pub(super) fn add(&self, sender: Option<SendStream<Bytes>>) {
        match sender {
            Some(sender) if self.left.get() == 0 => self.later.borrow_mut().push(sender),
            _ => self.left.set(self.left.get().saturating_sub(1)),
        }
    }

    /// Resets some of the streams that have waited. Called at intervals.
    pub(super) fn check(&self) {
        let mut later = self.later.borrow_mut();
        let now = AT_ONCE.min(later.len());
        later.drain(..now);
        self.left.set(AT_ONCE - now);
    }
}
