//! A process that a test has started, and that ends with the test.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// The process is killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
