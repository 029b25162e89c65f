//! `builtin:echo`: an upstream inside the binary that answers with the request as it arrived.
//!
//! It is a real HTTP server on a loopback port, so that the example configuration uses the whole path of a request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::base::threads::local_runtime;

/// After an accept that failed because there were no file handles or no memory.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Serialize)]
struct Seen {
    method: String,
    uri: String,
    version: String,
    headers: BTreeMap<String, Vec<String>>,
    body_bytes: u64,
}

/// Starts the server on its own thread and returns its address. Fails when the system has no port or no thread for it.
pub fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
        let runtime = local_runtime();
        if let Err(error) = runtime.and_then(|runtime| runtime.block_on(serve(listener))) {
            tracing::error!(%error, "the built-in echo server ended");
        }
    })?;
    Ok(address)
}

async fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Without this option the server is slower, but it works.
        let _ = stream.set_nodelay(true);
        spawn_local(http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), service_fn(echo)));
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, mut body) = request.into_parts();
    let mut headers = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in &parts.headers {
        headers.entry(name.to_string()).or_default().push(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    let mut body_bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        body_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let seen = Seen {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        version: format!("{:?}", parts.version),
        headers,
        body_bytes,
    };
    let text = serde_json::to_vec_pretty(&seen).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}
