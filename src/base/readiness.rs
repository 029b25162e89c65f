//! Whether load balancers shall send requests.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether load balancers shall send requests. Any thread may read and change it.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Whether they shall send none, because an operator wants it.
    pub draining: AtomicBool,
    /// Whether the gateway is stopping, so that it accepts no new requests.
    pub stopping: AtomicBool,
}

impl Readiness {
    /// Whether they shall send some.
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed)
    }
}
