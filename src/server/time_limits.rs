//! How long a connection may be in one state, in the time of its worker.

use std::time::Duration;

use super::worker_state::Coarse;
use crate::config::Server;

/// How long a client that sends no more waits for the beginning of its response. The client may have closed the
/// connection completely, which cannot be distinguished until something is sent to it.
const HALF_CLOSED: Duration = Duration::from_secs(1);

/// How long a connection is idle before it drops its buffers and its handler. These are some 10 KB, and to create them
/// again takes microseconds.
const RESTS_AFTER: Duration = Duration::from_secs(1);

/// How long a client is waited for that may not know yet that its connection ends, in milliseconds. A request that was sent
/// before the client knew comes within this time, unless the client is very far away.
pub(super) const EXPECTED_FOR: Coarse = 1000;

/// How long a client may be silent, in milliseconds, that still sends when its connection has ended.
pub(super) const SILENCE: Coarse = 2000;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct TimeLimits {
    pub(super) header: Coarse,
    pub(super) idle: Coarse,
    pub(super) body: Coarse,
    pub(super) half_closed: Coarse,
    pub(super) rest: Coarse,
}

impl TimeLimits {
    /// The configured limits, if they are checked once in every `tick`.
    pub(super) fn new(server: &Server, tick: Duration) -> Self {
        // One tick more, because a part of the first one is over when a phase begins.
        let coarse = |limit: Duration| u64::try_from((limit + tick).as_millis()).unwrap_or(u64::MAX);
        Self {
            header: coarse(server.header_timeout),
            idle: coarse(server.idle_timeout),
            body: coarse(server.body_timeout),
            half_closed: coarse(HALF_CLOSED),
            rest: coarse(RESTS_AFTER),
        }
    }
}
