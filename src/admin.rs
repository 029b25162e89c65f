//! The admin listener: liveness, readiness, metrics, and how upstreams do.

mod families;
mod upstreams;
mod shed;
pub mod metrics;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
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
use crate::respond::{self, LocalResponse};
use crate::server::ConnectionLimits;
use crate::snapshot::{SharedState, Snapshot};
use crate::store::Store;
use crate::tls::ListenerTls;

/// What the admin listener shows.
pub struct View {
    /// The metrics of routes, limits and upstreams.
    pub shared: Arc<SharedState>,
    /// What is in force.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The store of the limits' counters.
    pub store: Arc<Store>,
    /// The log lines that were dropped.
    pub dropped_lines: DroppedLines,
    /// The connections of clients.
    pub connections: Arc<ConnectionLimits>,
    /// What TLS listeners use, and the handshakes of clients.
    pub tls: Arc<ListenerTls>,
    /// Whether new requests are accepted. They are not while the gateway drains.
    pub ready: AtomicBool,
    /// Reloads that succeeded.
    pub reloaded: Counter,
    /// Reloads whose file was refused.
    pub refused: Counter,
}

/// Time to send a request head, and to wait for the next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection takes no further request.
const LIFETIME: Duration = Duration::from_secs(60);
/// After this further time the connection is cut off.
const GRACE: Duration = Duration::from_secs(10);
/// The most connections at once. If there are more the oldest is closed, so that probes always get through.
const MAX_CONNECTIONS: usize = 32;
/// The pause after a failed accept, since it mostly fails because file handles or memory are exhausted.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// Serves on this listener until it is cancelled. It has to run on a thread's local runtime.
///
/// # Errors
/// When the listener cannot be registered with the runtime.
pub async fn serve(listener: std::net::TcpListener, view: Arc<View>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let view = Rc::new(view);
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
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
        if open.len() == MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let view = view.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let response = respond(&view, &request).map(|body| Full::new(body.into_bytes()));
            async move { Ok::<_, Infallible>(response) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        open.push_back(spawn_local(serve_connection(connection, LIFETIME, GRACE)).abort_handle());
    }
}

/// Serves a connection for a bounded time, since a client that does not read would occupy it for ever.
async fn serve_connection<I, S>(connection: http1::Connection<I, S>, lifetime: Duration, grace: Duration)
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

fn respond(view: &View, request: &Request<Incoming>) -> LocalResponse {
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
            let mut response = respond::text(StatusCode::OK, Bytes::from(metrics::text(view)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(prometheus::TEXT_FORMAT));
            response
        }
        "/api/upstreams" => upstreams::response(view),
        _ => {
            let why = "The admin listener has /healthz, /readyz, /metrics and /api/upstreams.";
            respond::problem(StatusCode::NOT_FOUND, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    fn connection(room: usize) -> (impl Future, tokio::io::DuplexStream) {
        let (client, server) = tokio::io::duplex(room);
        let large = || http::Response::new(Full::new(Bytes::from(vec![b'x'; 1 << 20])));
        let service = service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(large()) });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        (serve_connection(connection, Duration::from_millis(50), Duration::from_millis(50)), client)
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off() {
        let (served, mut client) = connection(1024);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let begun = Instant::now();
        served.await;
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    #[tokio::test]
    async fn a_response_is_completed_but_no_further_request_is_taken() {
        let (served, mut client) = connection(2 << 20);
        let ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(ask).await.unwrap();
        served.await;
        // The connection is closed, so a further request may fail to be sent.
        let _ = client.write_all(ask).await;
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.windows(12).filter(|text| text == b"HTTP/1.1 200").count(), 1);
    }
}
