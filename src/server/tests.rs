//! Connections as a client sees them, with a handler that says which answers are its own.

mod walk;

use std::cell::Cell;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use http_body_util::Full;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::yield_now;

use super::*;
use crate::config::{MaxConnections, Server, UNLIMITED};
use crate::net::bind;

const A: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &[u8] = b"HEAD /h HTTP/1.1\r\nHost: h\r\n\r\n";
const CHUNKED: &[u8] = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const B: &[u8] = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";

/// Answers with the number of its answer.
#[derive(Clone, Debug, Default)]
struct Numbering(Rc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    handled: Cell<usize>,
    /// How long a body is at least.
    padding: Cell<usize>,
}

impl Handler for Numbering {
    type Body = Guarded;

    async fn handle(&self, request: &mut IncomingRequest, guard: RequestGuard) -> Response<Guarded> {
        let Numbers { handled, padding } = &*self.0;
        handled.set(handled.get() + 1);
        let body = Full::from(format!("{:0width$}", handled.get(), width = padding.get()));
        let mut answer = Response::new(Guarded(body, guard));
        answer.headers_mut().insert("for", request.head.uri.path().parse().unwrap());
        answer
    }

    fn refused(&self, _: &HeadError) -> Vec<u8> {
        Vec::new()
    }
}

/// A body whose request is in flight until the body is dropped.
struct Guarded(Full<Bytes>, #[expect(dead_code, reason = "it is dropped with the body")] RequestGuard);

impl Body for Guarded {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Somebody who is connected to a server in this thread.
struct Visit {
    stream: TcpStream,
    numbers: Rc<Numbers>,
    stage: watch::Sender<Stage>,
}

impl Visit {
    async fn new() -> Self {
        let numbering = Numbering::default();
        let numbers = numbering.0.clone();
        let (stage, staged) = watch::channel(Stage::Running);
        let listeners = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1, false).unwrap();
        let address = listeners[0].local_addr().unwrap();
        // Connections take after their listener: what is sent soon has to wait.
        SockRef::from(&listeners[0]).set_send_buffer_size(1).unwrap();
        spawn_local(async move {
            let server = Server {
                listen: Vec::new(),
                tls: None,
                http2: crate::config::Http2 { max_streams: 250, max_header_list: 64 << 10 },
                workers: 1,
                trusted_proxies: Vec::new(),
                header_timeout: Duration::from_secs(60),
                idle_timeout: Duration::from_secs(60),
                body_timeout: Duration::from_secs(60),
                max_connections: MaxConnections::Auto,
                max_connections_per_ip: 0,
                max_header_size: 16 * 1024,
                max_body_size: UNLIMITED,
                drain_delay: Duration::ZERO,
                drain_timeout: Duration::from_secs(60),
                paths: crate::config::PathRules::default(),
            };
            let limits = Arc::new(ConnectionLimits::new(server, 100));
            let listeners = listeners.into_iter().map(|socket| Listener { socket, is_tls: false }).collect();
            let tls = Arc::new(ListenerTls::new(None).unwrap());
            run(listeners, tls, limits, staged, move |_| numbering.clone()).await.unwrap();
        });
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { stream: socket.connect(address).await.unwrap(), numbers, stage }
    }

    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// The number of the next answer.
    async fn answer(&mut self) -> usize {
        let head = self.head().await;
        self.body(&head).await
    }

    async fn body(&mut self, head: &str) -> usize {
        let (_, length) = head.split_once("content-length: ").unwrap();
        let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
        self.stream.read_exact(&mut body).await.unwrap();
        String::from_utf8(body).unwrap().parse().unwrap()
    }

    /// Sends a request whose answer nobody takes yet. Whether the server has handled it.
    async fn leave(&mut self, request: &[u8]) -> bool {
        let before = self.numbers.handled.get();
        self.stream.write_all(request).await.unwrap();
        for _ in 0..1000 {
            if self.numbers.handled.get() > before {
                return true;
            }
            yield_now().await;
        }
        false
    }

    async fn ask(&mut self, request: &[u8]) -> usize {
        self.stream.write_all(request).await.unwrap();
        self.answer().await
    }

    async fn ask_all(&mut self, requests: &[&[u8]]) -> Vec<usize> {
        let mut answers = Vec::new();
        for request in requests {
            answers.push(self.ask(request).await);
        }
        answers
    }
}

/// Lets somebody visit.
fn host(test: impl AsyncFnOnce(Visit)) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async { test(Visit::new().await).await });
}

#[test]
fn answers_wait_for_a_client_that_does_not_take_them() {
    for drains in [false, true] {
        host(async |mut visit| {
            visit.numbers.padding.set(3000);
            let mut sent = 0;
            // Until the server cannot send, and does not even read the last one.
            while visit.leave(A).await {
                sent += 1;
                assert!(sent < 100_000, "the system takes everything");
            }
            if drains {
                visit.stage.send(Stage::Draining).unwrap();
            }
            for number in 1..=sent {
                assert_eq!(visit.answer().await, number, "of {sent}");
            }
            if !drains {
                assert_eq!(visit.answer().await, sent + 1);
                visit.stream.shutdown().await.unwrap();
            }
            assert_eq!(visit.stream.read(&mut [0]).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_request_that_has_come_before_the_drain_is_answered() {
    host(async |mut visit| {
        assert_eq!(visit.ask_all(&[A, A]).await, [1, 2]);
        visit.stream.write_all(A).await.unwrap();
        visit.stage.send(Stage::Draining).unwrap();
        assert_eq!(visit.answer().await, 3);
        assert_eq!(visit.stream.read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn a_task_that_panics_is_not_passed_over() {
    host(async |_| {
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async {});
        tasks.spawn_local(async { panic!("a bug") });
        assert!(panicked(&mut tasks).await.to_string().contains("a bug"));
    });
}
