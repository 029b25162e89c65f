//! One attempt to send a request to one endpoint, independent of the protocol.

use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;

use super::bound::BoundConnections;
use super::in_flight::InFlight;
use super::request::UpstreamRequest;

/// The request may be sent more than once.
pub(super) struct Exchange<'a> {
    pub(super) request: &'a UpstreamRequest<'a>,
    /// `None` if the request is a check.
    pub(super) in_flight: Option<&'a InFlight>,
    /// Those of its headers that Connection names.
    pub(super) named: &'a [&'a [u8]],
    /// The `Host` header, if it is not the client's.
    pub(super) authority: Option<&'a HeaderValue>,
    /// Connections that belong to the client's connection.
    pub(super) bound: &'a Rc<BoundConnections>,
    /// The longest time for the head of the response. It begins when the upstream has accepted the last bytes of the
    /// request, because a long body takes time.
    pub(super) timeout: Duration,
    /// The longest time for which the upstream may send nothing of an incomplete body.
    pub(super) read_timeout: Option<Duration>,
}
