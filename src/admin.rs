//! The admin listener: is it alive, is it ready, what has it counted.

pub mod metrics;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use crate::log::DroppedLines;
use crate::metrics::Counter;
use crate::respond;
use crate::server::ConnectionLimits;
use crate::snapshot::SharedState;
use crate::store::Store;

/// What the admin listener shows.
pub struct View {
    /// Tallies of routes and limits.
    pub shared: Arc<SharedState>,
    /// Where counters live.
    pub store: Arc<Store>,
    /// Log lines that nobody read in time.
    pub dropped_lines: DroppedLines,
    /// Clients' connections.
    pub connections: Arc<ConnectionLimits>,
    /// Whether new requests are welcome: not while draining.
    pub ready: AtomicBool,
    /// Reloads that were carried out.
    pub reloaded: Counter,
    /// Reloads whose file was refused.
    pub refused: Counter,
}

/// Time to send a request head, and to wait for the next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// After so much time a connection takes no further request, and after so much more it is cut off.
const LIFETIME: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);
/// The most connections at once; the oldest makes room, so that whoever probes is always heard.
const MOST_CONNECTIONS: usize = 32;
/// A pause after an accept that failed for want of file handles or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// Serves on this listener, for ever. Must run on a thread's local runtime.
///
/// # Errors
/// When the listener cannot be registered with the runtime.
pub async fn serve(listener: std::net::TcpListener, view: Arc<View>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let view = Rc::new(view);
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MOST_CONNECTIONS);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let view = view.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer(&view, &request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        open.push_back(spawn_local(converse(connection, LIFETIME, GRACE)).abort_handle());
    }
}

/// Drives a connection, for so long at most: a client that does not read would hold it for ever.
async fn converse<I, S>(connection: http1::Connection<I, S>, lifetime: Duration, grace: Duration)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S: HttpService<Incoming, ResBody = Full<Bytes>, Error = Infallible>,
{
    let mut connection = pin!(connection);
    if timeout(lifetime, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(grace, connection).await;
    }
}

fn answer(view: &View, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return respond::problem(StatusCode::METHOD_NOT_ALLOWED, "The admin listener only answers GET and HEAD.");
    }
    match request.uri().path() {
        "/healthz" => respond::text(StatusCode::OK, Bytes::from_static(b"ok\n")),
        "/readyz" if view.ready.load(Ordering::Relaxed) => {
            respond::text(StatusCode::OK, Bytes::from_static(b"ready\n"))
        }
        "/readyz" => respond::text(StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"draining\n")),
        "/metrics" => {
            let mut answer = respond::text(StatusCode::OK, Bytes::from(metrics::text(view)));
            answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(prometheus::TEXT_FORMAT));
            answer
        }
        _ => respond::problem(StatusCode::NOT_FOUND, "The admin listener has /healthz, /readyz and /metrics."),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    fn connection(room: usize) -> (impl Future, tokio::io::DuplexStream) {
        let (client, server) = tokio::io::duplex(room);
        let large = || respond::text(StatusCode::OK, Bytes::from(vec![b'x'; 1 << 20]));
        let service = service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(large()) });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        (converse(connection, Duration::from_millis(50), Duration::from_millis(50)), client)
    }

    #[tokio::test]
    async fn who_does_not_read_is_cut_off() {
        let (served, mut client) = connection(1024);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let begun = Instant::now();
        served.await;
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    #[tokio::test]
    async fn who_reads_gets_what_is_under_way_and_no_more() {
        let (served, mut client) = connection(2 << 20);
        let ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(ask).await.unwrap();
        served.await;
        // The end has come to who asks again.
        let _ = client.write_all(ask).await;
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.windows(12).filter(|text| text == b"HTTP/1.1 200").count(), 1);
    }
}
