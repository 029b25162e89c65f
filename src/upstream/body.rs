//! The body of a response from an upstream, independent of the protocol.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::connection::UpstreamTunnel;
use super::endpoint::DestinationAddress;
use super::error::BodyError;
use super::in_flight::InFlight;
use super::{http1, http2};
use crate::base::deadline::Deadline;

pub struct UpstreamBody {
    protocol: Protocol,
    pub(super) deadline: Option<Deadline>,
    /// The request is in flight until this is dropped, after its stream.
    pub(super) in_flight: Option<InFlight>,
}

enum Protocol {
    Http1(http1::ResponseBody),
    /// Boxed because it is large.
    Http2(Box<http2::ResponseBody>),
}

impl From<http1::ResponseBody> for UpstreamBody {
    fn from(body: http1::ResponseBody) -> Self {
        Self { protocol: Protocol::Http1(body), deadline: None, in_flight: None }
    }
}

impl From<http2::ResponseBody> for UpstreamBody {
    fn from(body: http2::ResponseBody) -> Self {
        Self { protocol: Protocol::Http2(Box::new(body)), deadline: None, in_flight: None }
    }
}

impl UpstreamBody {
    pub fn server(&self) -> Option<&DestinationAddress> {
        match &self.protocol {
            Protocol::Http1(body) => body.server(),
            Protocol::Http2(body) => Some(body.server()),
        }
    }

    /// The reason phrase of the response, if it is not the standard one; only once.
    pub fn take_reason(&mut self) -> Option<Bytes> {
        match &mut self.protocol {
            Protocol::Http1(body) => body.take_reason(),
            Protocol::Http2(_) => None,
        }
    }

    /// The tunnel that the connection has become; only after a response that accepts one, and only once.
    pub fn take_tunnel(&mut self) -> Option<UpstreamTunnel> {
        match &mut self.protocol {
            Protocol::Http1(body) => {
                let tunnel = body.take_tunnel()?;
                Some(UpstreamTunnel { _in_flight: self.in_flight.take(), ..tunnel })
            }
            Protocol::Http2(_) => None,
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { protocol, deadline, .. } = self.get_mut();
        if let Some(deadline) = deadline
            && deadline.poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(BodyError::Deadline)));
        }
        match protocol {
            Protocol::Http1(body) => Pin::new(body).poll_frame(cx),
            Protocol::Http2(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.protocol {
            Protocol::Http1(body) => body.is_end_stream(),
            Protocol::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.protocol {
            Protocol::Http1(body) => body.size_hint(),
            Protocol::Http2(body) => body.size_hint(),
        }
    }
}
