//! A request in flight, as its connection counts it.

use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

use super::connection_state::ConnectionState;
use super::lifecycle::Event;
use super::time_limits::{UNLIMITED, millis};
use super::worker_state::Coarse;
use crate::base::reason::Reason;

pub(super) trait RequestStream: Debug {
    /// Whether the stream was reset because its client grants no window.
    fn is_reset(&self) -> bool;

    /// The client may read nothing of the response for `limit`.
    fn limit_reading(&self, limit: Coarse);

    /// Whether a part of the response waits for window, or has waited for it to the end of the stream.
    fn is_waiting(&self) -> bool;
}

/// Until this is dropped, a request is in flight.
#[derive(Debug)]
pub struct RequestGuard {
    connection: Rc<ConnectionState>,
    stream: Option<Rc<dyn RequestStream>>,
}

impl RequestGuard {
    pub(super) fn new(connection: Rc<ConnectionState>, stream: Option<Rc<dyn RequestStream>>) -> Self {
        connection.record(Event::RequestBegins);
        Self { connection, stream }
    }

    /// The client may read nothing of the response for `limit`, whatever the server's limit is; `None` is no limit.
    pub fn limit_reading(&self, limit: Option<Duration>) {
        let limit = limit.map_or(UNLIMITED, millis);
        match &self.stream {
            Some(stream) => stream.limit_reading(limit),
            None => self.connection.record(Event::ReadsWithin(limit)),
        }
    }

    /// Why the gateway has closed the connection or the stream during the request; `None` if it has not, or if the client has
    /// gone.
    pub fn cut_off(&self) -> Option<Reason> {
        let is_stalled =
            self.connection.lifecycle().is_stalled() || self.stream.as_ref().is_some_and(|stream| stream.is_reset());
        is_stalled.then_some(Reason::BodyTimeout)
    }

    /// Whether the client has not got the last part of the response that was taken from its body.
    pub fn is_unsent(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_waiting())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.record(Event::RequestEnds);
    }
}
