//! Connections from the side of a client, with a handler that numbers its responses.

mod unanswered;
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
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::*;
use crate::config::{MaxConnections, Server, UNLIMITED};
use crate::net::bind;

const A: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &[u8] = b"HEAD /h HTTP/1.1\r\nHost: h\r\n\r\n";
const CHUNKED: &[u8] = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const UNANSWERED: &[u8] = b"GET /unanswered HTTP/1.1\r\nHost: h\r\n\r\n";
const B: &[u8] = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";

/// Limits that no test exceeds.
pub(super) fn server() -> Server {
    Server {
        listen: Vec::new(),
        tls: None,
        http2: crate::config::Http2 { max_streams: 250, max_header_list: 64 << 10 },
        workers: 1,
        trusted_proxies: Vec::new(),
        proxy_protocol: false,
        forwarded: false,
        header_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        body_timeout: Some(Duration::from_secs(60)),
        max_connections: MaxConnections::Auto,
        max_connections_per_ip: 0,
        max_header_size: 16 * 1024,
        max_body_size: UNLIMITED,
        inspect_body: 0,
        inspect_memory: 0,
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(60),
        paths: crate::config::PathRules::default(),
        partition_secret: None,
        shed: None,
    }
}

/// Responds with the number of the response, or not at all if it is asked for that.
#[derive(Clone, Debug, Default)]
struct Numbering(Rc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    handled: Cell<usize>,
    padding: Cell<usize>,
    waits: Notify,
}

impl Handler for Numbering {
    type Body = Guarded;

    async fn handle(&self, request: &mut IncomingRequest, response: &mut Response<Guarded>, guard: RequestGuard) {
        let Numbers { handled, padding, waits } = &*self.0;
        handled.set(handled.get() + 1);
        let body = Full::from(format!("{:0width$}", handled.get(), width = padding.get()));
        request.is_unanswered = request.head.uri.path() == "/unanswered";
        if request.head.uri.path() == "/waits" {
            waits.notified().await;
        }
        *response.body_mut() = Guarded(body, Some(guard));
        response.headers_mut().insert("for", request.head.uri.path().parse().unwrap());
    }

    fn refused(&self, _: &HeadError) -> Vec<u8> {
        Vec::new()
    }
}

#[derive(Default)]
struct Guarded(Full<Bytes>, #[expect(dead_code, reason = "it is dropped with the body")] Option<RequestGuard>);

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

struct TestClient {
    stream: TcpStream,
    numbers: Rc<Numbers>,
    stage: watch::Sender<Stage>,
}

impl TestClient {
    async fn new() -> Self {
        let numbering = Numbering::default();
        let numbers = numbering.0.clone();
        let (stage, staged) = watch::channel(Stage::Running);
        let listeners = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1, false, true).unwrap();
        let address = listeners[0].local_addr().unwrap();
        // Connections inherit this from their listener: a small buffer, so that responses soon have to wait.
        SockRef::from(&listeners[0]).set_send_buffer_size(1).unwrap();
        spawn_local(async move {
            let limits = TrafficLimits::new(&server(), 100);
            let (sender, changes) = mpsc::unbounded_channel();
            for socket in listeners {
                sender
                    .send(ListenerChange::Open(Listener { id: 0, socket, is_tls: false, traffic: Traffic::Requests }))
                    .unwrap();
            }
            let tls = Arc::new(ListenerTls::new([None; 3]).unwrap());
            run(changes, tls, Arc::default(), limits, staged, move |_| numbering.clone()).await.unwrap();
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

    /// Sends a request without reading its response. Returns whether the server has handled it.
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

fn with_client(test: impl AsyncFnOnce(TestClient)) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async { test(TestClient::new().await).await });
}

#[test]
fn responses_wait_for_a_client_that_does_not_read_them() {
    for drains in [false, true] {
        with_client(async |mut client| {
            client.numbers.padding.set(3000);
            let mut sent = 0;
            // Until the server cannot send any more, and does not even read the last request.
            while client.leave(A).await {
                sent += 1;
                assert!(sent < 100_000, "the system takes everything");
            }
            if drains {
                client.stage.send(Stage::Draining).unwrap();
            }
            for number in 1..=sent {
                assert_eq!(client.answer().await, number, "of {sent}");
            }
            // The last request has come as well, so a drain waits for it.
            assert_eq!(client.answer().await, sent + 1);
            if !drains {
                client.stream.shutdown().await.unwrap();
            }
            assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_request_that_came_before_the_drain_is_answered() {
    with_client(async |mut client| {
        assert_eq!(client.ask_all(&[A, A]).await, [1, 2]);
        client.stream.write_all(A).await.unwrap();
        client.stage.send(Stage::Draining).unwrap();
        assert_eq!(client.answer().await, 3);
        assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn a_panic_of_a_task_is_noticed() {
    with_client(async |_| {
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async {});
        tasks.spawn_local(async { panic!("a bug") });
        assert!(panicked(&mut tasks).await.to_string().contains("a bug"));
    });
}
