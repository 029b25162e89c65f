//! Whether load balancers shall send requests.

use std::sync::atomic::{AtomicBool, Ordering};

/// Any thread may read and change it.
#[derive(Debug, Default)]
pub struct Readiness {
    /// An operator wants load balancers to send no requests.
    pub draining: AtomicBool,
    /// The gateway is stopping, so it accepts no new requests.
    pub stopping: AtomicBool,
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed)
    }
}
