//! A request in flight, as its connection counts it.

use std::fmt::Debug;
use std::rc::Rc;

use super::connection_state::ConnectionState;
use super::lifecycle::Event;
use crate::base::reason::Reason;

/// The stream of a request in HTTP/2.
pub(super) trait RequestStream: Debug {
    /// Whether it is reset because its client grants no window.
    fn is_reset(&self) -> bool;

    /// Whether a part of the response waits for window, or has waited for it to the end of the stream.
    fn is_waiting(&self) -> bool;
}

/// A request is in flight until this is dropped.
#[derive(Debug)]
pub struct RequestGuard {
    connection: Rc<ConnectionState>,
    stream: Option<Rc<dyn RequestStream>>,
}

impl RequestGuard {
    /// Begins a request on this connection.
    pub(super) fn new(connection: Rc<ConnectionState>, stream: Option<Rc<dyn RequestStream>>) -> Self {
        connection.record(Event::RequestBegins);
        Self { connection, stream }
    }

    /// Why the gateway has closed the connection or the stream during the request; `None` if it has not, or if the client
    /// has gone.
    pub fn cut_off(&self) -> Option<Reason> {
        let is_stalled =
            self.connection.lifecycle().is_stalled() || self.stream.as_ref().is_some_and(|stream| stream.is_reset());
        is_stalled.then_some(Reason::BodyTimeout)
    }

    /// Whether the client has not got the part of the response that was taken from its body last.
    pub fn is_unsent(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_waiting())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.record(Event::RequestEnds);
    }
}
