//! How long a connection may be in one state, in the time of its worker.

use std::time::Duration;

use super::worker_state::Coarse;
use crate::config::Server;

/// How long a client that sends no more waits for the beginning of its response. `printf ... | nc` ends its data and waits. A
/// client that is gone looks the same until data is sent to it, which resets the connection.
const HALF_CLOSED: Duration = Duration::from_secs(1);

/// How long a connection is idle before it drops its buffers and its handler. These are some 10 KB, and creating them again
/// takes microseconds.
const RESTS_AFTER: Duration = Duration::from_secs(1);

/// How long to wait for a client that may not know yet that its connection ends, in milliseconds. A request that was sent
/// before the client knew comes within this time, unless the client is very far away.
pub(super) const EXPECTED_FOR: Coarse = 1000;

/// The longest silence, in milliseconds, of a client that still sends when its connection has ended.
pub(super) const SILENCE: Coarse = 2000;

pub(super) const UNLIMITED: Coarse = Coarse::MAX;

/// How long a client may take to read the last responses if there is no other limit, in milliseconds.
pub(super) const LINGERS_FOR: Coarse = 60_000;

/// In milliseconds.
pub(super) struct TimeLimits {
    pub(super) header: Coarse,
    pub(super) idle: Coarse,
    pub(super) body: Coarse,
    pub(super) half_closed: Coarse,
    pub(super) rest: Coarse,
    /// How much the other limits exceed the configured ones, because a part of the first tick is over when a phase begins.
    pub(super) tick: Coarse,
}

impl TimeLimits {
    /// The configured limits, if they are checked once in every `tick`.
    pub(super) fn new(server: &Server, tick: Duration) -> Self {
        let coarse = |limit: Duration| millis(limit + tick);
        Self {
            header: coarse(server.header_timeout),
            idle: coarse(server.idle_timeout),
            body: server.body_timeout.map_or(UNLIMITED, coarse),
            half_closed: coarse(HALF_CLOSED),
            rest: coarse(RESTS_AFTER),
            tick: millis(tick),
        }
    }

    /// How long a client may read nothing. `own` is the limit of its request.
    pub(super) fn reading(&self, own: Option<Coarse>) -> Coarse {
        own.map_or(self.body, |own| own.saturating_add(self.tick))
    }
}

/// Whether what began at `since` has lasted for `limit`; `None` never has.
pub(super) fn is_over(since: impl Into<Option<Coarse>>, limit: Coarse, now: Coarse) -> bool {
    since.into().is_some_and(|since| now - since >= limit)
}

pub(super) fn millis(limit: Duration) -> Coarse {
    Coarse::try_from(limit.as_millis()).unwrap_or(UNLIMITED)
}
