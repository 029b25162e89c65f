//! HTTP/2 servers: one of the library h2, and one whose frames the test reads and writes itself.

use std::future::Future;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use rustls::server::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::http2::{ACK, END_HEADERS, END_STREAM, Frame, PREFACE, frame, kind};
use super::tls::time_to_connect;

/// Runs in a thread for as long as the tests run.
pub(crate) struct Http2Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<Parts>>>,
}

impl Http2Server {
    /// Answers each request in a task that `answer` makes, over TLS if `tls` is given. `settings` are those of the server.
    pub(crate) fn start<A, F>(tls: Option<ServerConfig>, settings: Builder, answer: A) -> Self
    where
        A: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let server =
            Self { address: listener.local_addr().unwrap(), connections: Arc::default(), requests: Arc::default() };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    connections.fetch_add(1, Ordering::SeqCst);
                    let (settings, answer, requests) = (settings.clone(), answer.clone(), requests.clone());
                    let acceptor = acceptor.clone();
                    tokio::spawn(async move {
                        match acceptor {
                            None => serve(stream, settings, answer, requests).await,
                            Some(acceptor) => {
                                if let Ok(stream) = acceptor.accept(stream).await {
                                    serve(stream, settings, answer, requests).await;
                                }
                            }
                        }
                    });
                }
            });
        });
        server
    }

    /// Answers with the path of the request, or with its body, its trailers and a list of these.
    pub(crate) fn echo(tls: Option<ServerConfig>) -> Self {
        Self::start(tls, Builder::new(), |request, mut respond| async move {
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            let mut sender = respond.send_response(Response::new(()), false).unwrap();
            if body.is_end_stream() {
                let _ = sender.send_data(path.into(), true);
                return;
            }
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                if send(&mut sender, data).await.is_none() {
                    return;
                }
            }
            match body.trailers().await {
                Ok(Some(mut trailers)) => {
                    // The gateway may drop some of them on their way back.
                    let names = trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>().join(" ");
                    trailers.insert("x-names", names.parse().unwrap());
                    let _ = sender.send_trailers(trailers);
                }
                _ => _ = sender.send_data(Bytes::new(), true),
            }
        })
    }

    /// `[upstreams.up]` with this server and more keys, and a route that sends everything to it.
    pub(crate) fn everything(&self, scheme: &str, keys: &str) -> String {
        over_http2(scheme, self.address, keys)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> Vec<Parts> {
        self.requests.lock().unwrap().clone()
    }
}

/// `[upstreams.up]` that speaks HTTP/2, with more keys, and a route that sends everything to it.
pub(crate) fn over_http2(scheme: &str, address: SocketAddr, keys: &str) -> String {
    let time = time_to_connect(keys);
    format!(
        "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n
         [upstreams.up]\nservers = [\"{scheme}://{address}\"]\nhttp2 = true\n{time}{keys}\n"
    )
}

async fn serve<T, A, F>(stream: T, settings: Builder, answer: A, requests: Arc<Mutex<Vec<Parts>>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let Ok(mut connection) = settings.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        requests.lock().unwrap().push(head.clone());
        tokio::spawn(answer(Request::from_parts(head, body), respond));
    }
}

/// Sends data as the other side grants window; `None` if it has reset the stream.
pub(crate) async fn send(sender: &mut h2::SendStream<Bytes>, mut data: Bytes) -> Option<()> {
    while !data.is_empty() {
        sender.reserve_capacity(data.len());
        if sender.capacity() == 0 {
            std::future::poll_fn(|cx| sender.poll_capacity(cx)).await?.ok()?;
            continue;
        }
        let part = data.split_to(sender.capacity().min(data.len()));
        sender.send_data(part, false).ok()?;
    }
    Some(())
}

/// The rest of a body, as fast as it comes, and its trailers.
pub(crate) async fn read(mut body: RecvStream) -> std::result::Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut whole = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        whole.extend_from_slice(&piece);
    }
    Ok((whole, body.trailers().await?))
}

/// The headers of a response with status 200, in the static table of HPACK.
pub(crate) const STATUS_200: &[u8] = &[0x88];

/// A server's side of a connection, frame by frame.
pub(crate) struct Frames {
    pub(crate) socket: TcpStream,
}

impl Frames {
    /// Passes every connection after its preface to `serve` in a new thread, with its number from 0. The settings of the
    /// server are sent.
    pub(crate) fn serve(serve: impl Fn(Self, usize) + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (address, serve) = (listener.local_addr().unwrap(), Arc::new(serve));
        thread::spawn(move || {
            for (number, socket) in listener.incoming().enumerate() {
                let serve = serve.clone();
                thread::spawn(move || {
                    let mut socket = socket.unwrap();
                    socket.set_nodelay(true).unwrap();
                    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    let mut preface = [0; 24];
                    socket.read_exact(&mut preface).unwrap();
                    assert_eq!(&preface, PREFACE);
                    let mut frames = Self { socket };
                    frames.send(kind::SETTINGS, 0, 0, &[]);
                    serve(frames, number);
                });
            }
        });
        address
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // The other side may have gone.
        let _ = self.socket.write_all(&frame(kind, flags, stream, payload));
    }

    pub(crate) fn next(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.socket.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// The next frame of this type. Others are skipped; settings and pings are confirmed.
    pub(crate) fn until(&mut self, kind: u8) -> Result<Frame> {
        loop {
            let frame = self.next()?;
            if [kind::SETTINGS, kind::PING].contains(&frame.kind) && frame.flags & ACK == 0 {
                let confirmed = if frame.kind == kind::PING { &frame.payload[..] } else { &[] };
                self.send(frame.kind, ACK, 0, confirmed);
            }
            if frame.kind == kind {
                return Ok(frame);
            }
            if frame.kind == kind::GOAWAY {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
    }

    /// The payload of the next ping, which is not confirmed.
    pub(crate) fn next_ping(&mut self) -> Vec<u8> {
        loop {
            let frame = self.next().unwrap();
            if frame.kind == kind::PING && frame.flags & ACK == 0 {
                return frame.payload;
            }
        }
    }

    pub(crate) fn answer(&mut self, stream: u32, text: &str) {
        self.send(kind::HEADERS, END_HEADERS, stream, STATUS_200);
        self.send(kind::DATA, END_STREAM, stream, text.as_bytes());
    }

    pub(crate) fn reset(&mut self, stream: u32, reason: h2::Reason) {
        self.send(kind::RST_STREAM, 0, stream, &u32::from(reason).to_be_bytes());
    }

    pub(crate) fn go_away(&mut self, last: u32, reason: h2::Reason) {
        let reason = u32::from(reason);
        self.send(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat());
    }
}
