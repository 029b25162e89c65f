//! A gate before the answers of an upstream, which holds requests back until a test opens it.

use std::sync::{Arc, Condvar, Mutex};

/// All clones are one gate. It begins closed.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    pub(crate) fn open(&self) {
        self.set(true);
    }

    pub(crate) fn close(&self) {
        self.set(false);
    }

    fn set(&self, is_open: bool) {
        *self.0.0.lock().unwrap() = is_open;
        self.0.1.notify_all();
    }

    /// Returns when the gate is open.
    pub(crate) fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}
