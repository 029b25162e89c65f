//! One connection to an upstream server, driven by whoever uses it.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::Outgoing;

/// A connection and the handle that requests enter it by.
pub(super) struct Link {
    sender: SendRequest<Outgoing>,
    /// `None` once it is closed.
    connection: Option<Connection<TokioIo<TcpStream>, Outgoing>>,
    /// When it was last given back, in ticks of its pool.
    pub(super) rested_at: u64,
}

/// Why no response came.
pub(super) struct SendError {
    pub(super) error: hyper::Error,
    /// The request, if nothing of it was sent.
    pub(super) unsent: Option<Request<Outgoing>>,
}

impl Link {
    /// Connects to the first address of `host` that takes the connection.
    pub(super) async fn connect(host: &str, port: u16) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let mut builder = http1::Builder::new();
        builder.writev(false);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Box::new(Self { sender, connection: Some(connection), rested_at: 0 }))
    }

    /// Moves bytes in both directions as far as they go.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
        {
            // What went wrong, if anything, reaches the request or the body that it went wrong for.
            self.connection = None;
        }
    }

    /// Whether it can take a request. Wakes nobody.
    pub(super) fn is_ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(&mut self, request: Request<Outgoing>) -> Result<Response<Incoming>, SendError> {
        let mut response = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if let Some(driven) = connection
                && Pin::new(driven).poll(cx).is_ready()
            {
                *connection = None;
            }
            // Only driving the connection brings the response on, so nobody needs to be woken for it.
            let mut quiet = Context::from_waker(Waker::noop());
            match response.as_mut().poll(&mut quiet) {
                Poll::Ready(Ok(response)) => Poll::Ready(Ok(response)),
                Poll::Ready(Err(mut failed)) => {
                    let unsent = failed.take_message();
                    Poll::Ready(Err(SendError { error: failed.into_error(), unsent }))
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}
