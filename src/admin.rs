//! The admin listener: is it alive, is it ready, what has it counted.

pub mod metrics;

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::accept::ConnectionLimits;
use crate::gateway::Kept;
use crate::log::DroppedLines;
use crate::respond;
use crate::store::Store;
use crate::tally::Counter;

/// What the admin listener shows.
pub struct View {
    /// Tallies of routes and limits.
    pub kept: Arc<Kept>,
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

/// Time to send a request head, so that a silent client does not hold a connection for ever.
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves on this listener, for ever. Must run on a thread's local runtime.
///
/// # Errors
/// When the listener cannot be registered with the runtime.
pub async fn serve(listener: std::net::TcpListener, view: Arc<View>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let view = Rc::new(view);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let view = view.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer(&view, &request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        spawn_local(builder.serve_connection(TokioIo::new(stream), service));
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
