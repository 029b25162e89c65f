//! A request in flight, as its connection counts it.

use std::rc::Rc;

use super::connection_state::ConnectionState;
use super::lifecycle::Event;
use super::streams::Stream;
use crate::base::reason::Reason;

/// A request is in flight until this is dropped.
#[derive(Debug)]
pub struct RequestGuard {
    connection: Rc<ConnectionState>,
    /// Its stream in HTTP/2.
    stream: Option<Rc<Stream>>,
}

impl RequestGuard {
    /// Begins a request on this connection.
    pub(super) fn new(connection: Rc<ConnectionState>, stream: Option<Rc<Stream>>) -> Self {
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
