//! Whether load balancers shall send requests.

use std::sync::atomic::{AtomicBool, Ordering};

/// Any thread may read and change it.
#[derive(Debug, Default)]
pub struct Readiness {
    /// An operator wants load balancers to send no requests.
    pub draining: AtomicBool,
    /// Load balancers were told once that it is ready. What servers of the store refuse later is no reason to stop all gateways.
    pub was_ready: AtomicBool,
    /// The gateway is stopping, so it accepts no new requests.
    pub stopping: AtomicBool,
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed)
    }
}
