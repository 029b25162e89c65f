//! Bodies on their way: the client's to the upstream, the upstream's to the client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::link::Link;
use super::pool::Pools;

/// The body of a request on its way to an upstream: the client's, or none.
#[derive(Debug)]
pub struct Outgoing(Option<Incoming>);

impl Outgoing {
    /// No body.
    pub fn empty() -> Self {
        Self(None)
    }
}

impl From<Incoming> for Outgoing {
    fn from(body: Incoming) -> Self {
        Self(if body.is_end_stream() { None } else { Some(body) })
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The body of a response on its way to the client. It drives its connection, and gives it back at the end.
pub struct UpstreamBody {
    body: Incoming,
    link: Option<Box<Link>>,
    pools: Rc<Pools>,
    server: usize,
    ended: bool,
}

impl UpstreamBody {
    pub(super) fn attach(
        response: Response<Incoming>,
        link: Box<Link>,
        pools: &Rc<Pools>,
        server: usize,
    ) -> Response<Self> {
        response.map(|body| Self { body, link: Some(link), pools: pools.clone(), server, ended: false })
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // Only driving the connection brings the body on, so nobody needs to be woken for it.
        let mut quiet = Context::from_waker(Waker::noop());
        let mut polled = Pin::new(&mut self.body).poll_frame(&mut quiet);
        if polled.is_pending() {
            if let Some(link) = &mut self.link {
                link.drive(cx);
            }
            polled = Pin::new(&mut self.body).poll_frame(&mut quiet);
        }
        self.ended |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if let Some(link) = self.link.take()
            && (self.ended || self.body.is_end_stream())
        {
            self.pools.put(self.server, link);
        }
    }
}
