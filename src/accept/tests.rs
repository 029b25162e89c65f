//! Connections as a client sees them, with a handler that says which answers are its own.

mod walk;

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::thread::sleep;

use http_body_util::Full;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::yield_now;

use super::*;
use crate::clock;
use crate::config::{MaxConnections, Server, UNLIMITED};

const A: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &[u8] = b"HEAD /h HTTP/1.1\r\nHost: h\r\n\r\n";
const CHUNKED: &[u8] = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const B: &[u8] = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";

/// Answers with the number of its answer, so that one that is given again can be told.
#[derive(Clone, Debug, Default)]
struct Numbering(Rc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    handled: Cell<usize>,
    kept: Cell<usize>,
    asked: Cell<usize>,
    /// Whether an answer may be given again, and whether it is when that is asked.
    may_repeat: Cell<bool>,
    repeats: Cell<bool>,
    /// Whether the handler lets others go first.
    waits: Cell<bool>,
    /// How long a body is at least.
    padding: Cell<usize>,
}

impl Handler for Numbering {
    type Body = Full<Bytes>;

    async fn handle(&self, request: &mut Arrival) -> Response<Full<Bytes>> {
        let Numbers { handled, kept, may_repeat, waits, padding, .. } = &*self.0;
        handled.set(handled.get() + 1);
        kept.set(kept.get() + usize::from(request.is_kept));
        if waits.get() {
            yield_now().await;
        }
        request.may_repeat = may_repeat.get();
        let mut answer = Response::new(Full::from(format!("{:0width$}", handled.get(), width = padding.get())));
        answer.headers_mut().insert("for", request.head.uri.path().parse().unwrap());
        answer
    }

    fn refused(&self, _: &Refusal) -> Vec<u8> {
        Vec::new()
    }

    fn stalled(&self, _: &mut Full<Bytes>) {}

    fn repeats(&self, _: Time) -> bool {
        self.0.asked.set(self.0.asked.get() + 1);
        self.0.repeats.get()
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
        Self::lasting(Duration::from_secs(60)).await
    }

    /// One that may be idle for so long.
    async fn lasting(idle_timeout: Duration) -> Self {
        let numbering = Numbering::default();
        let numbers = numbering.0.clone();
        numbers.may_repeat.set(true);
        numbers.repeats.set(true);
        let (stage, staged) = watch::channel(Stage::Running);
        let listeners = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1, false).unwrap();
        let address = listeners[0].local_addr().unwrap();
        // Connections take after their listener: what is sent soon has to wait.
        SockRef::from(&listeners[0]).set_send_buffer_size(1).unwrap();
        spawn_local(async move {
            let server = Server {
                listen: Vec::new(),
                workers: 1,
                trusted_proxies: Vec::new(),
                header_timeout: Duration::from_secs(60),
                idle_timeout,
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
            run(listeners, limits, staged, move |_| numbering.clone()).await.unwrap();
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

    /// Sends a request whose answer nobody takes yet. Whether the server has handled it or asked about it.
    async fn leave(&mut self, request: &[u8]) -> bool {
        let served = |numbers: &Numbers| numbers.handled.get() + numbers.asked.get();
        let before = served(&self.numbers);
        self.stream.write_all(request).await.unwrap();
        for _ in 0..1000 {
            if served(&self.numbers) > before {
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

/// Lets somebody visit, with half a second left of the one that answers are dated with.
fn visit(test: impl AsyncFnOnce(Visit)) {
    let passed = clock::now().micros() % 1_000_000;
    if passed > 500_000 {
        sleep(Duration::from_micros(1_000_000 - passed));
    }
    host(test);
}

fn host(test: impl AsyncFnOnce(Visit)) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async { test(Visit::new().await).await });
}

#[test]
fn the_same_request_is_answered_again_from_the_fourth_on() {
    visit(async |mut visit| {
        assert_eq!(visit.ask_all(&[A, A, A, A, A]).await, [1, 2, 3, 3, 3]);
        assert_eq!(visit.ask_all(&[B, B, B, A, A, A]).await, [4, 5, 5, 6, 7, 7]);
        assert_eq!((visit.numbers.handled.get(), visit.numbers.asked.get()), (7, 4));
        assert_eq!(visit.numbers.kept.get(), 3, "the handler knows of each that is kept");
    });
}

#[test]
fn an_answer_that_does_not_hold_any_more_is_made_anew() {
    visit(async |mut visit| {
        assert_eq!(visit.ask_all(&[A, A, A, A]).await, [1, 2, 3, 3]);
        visit.numbers.repeats.set(false);
        assert_eq!(visit.ask(A).await, 4);
        visit.numbers.repeats.set(true);
        assert_eq!(visit.ask(A).await, 4, "the newest");
        visit.numbers.repeats.set(false);
        visit.numbers.may_repeat.set(false);
        assert_eq!(visit.ask(A).await, 5);
        visit.numbers.repeats.set(true);
        assert_eq!(visit.ask_all(&[A, A, A, A]).await, [6, 7, 8, 9], "answers that may not be given again");
    });
}

#[test]
fn several_requests_or_parts_of_one_are_none_of_those_that_are_kept() {
    visit(async |mut visit| {
        assert_eq!(visit.ask_all(&[A, A, A, A]).await, [1, 2, 3, 3]);
        for number in [4, 6, 8, 10] {
            assert_eq!(visit.ask(&[A, A].concat()).await, number);
            assert_eq!(visit.answer().await, number + 1);
        }
        assert_eq!(visit.ask_all(&[A, A, A]).await, [12, 13, 13], "kept again");
        let (begin, end) = A.split_at(9);
        visit.stream.write_all(begin).await.unwrap();
        let shifted = [end, begin].concat();
        assert_eq!(visit.ask_all(&[&shifted, &shifted, &shifted, &shifted, end]).await, [14, 15, 16, 17, 18]);
        assert_eq!(visit.ask_all(&[B, B, B, B]).await, [19, 20, 20, 20], "a body is part of it");
        assert_eq!(visit.ask(&B[..B.len() - 3]).await, 21, "and not there yet");
    });
}

#[test]
fn an_answer_that_takes_its_time_is_kept_when_it_is_there() {
    visit(async |mut visit| {
        visit.numbers.waits.set(true);
        assert_eq!(visit.ask_all(&[A, A, A, A, CHUNKED, CHUNKED, CHUNKED]).await, [1, 2, 3, 3, 4, 5, 5]);
    });
}

#[test]
fn answers_wait_for_a_client_that_does_not_take_them() {
    let mut most = usize::MAX;
    for drains in [false, true] {
        visit(async |mut visit| {
            visit.numbers.padding.set(3000);
            assert_eq!(visit.ask_all(&[A, A, A]).await, [1, 2, 3]);
            let mut sent = 0;
            // Until the server cannot send, and does not even ask about the last one.
            while sent < most {
                sent += 1;
                if !visit.leave(A).await {
                    break;
                }
                assert!(sent < 100_000, "the system takes everything");
            }
            if drains {
                visit.stage.send(Stage::Draining).unwrap();
            } else {
                // What is not read when the connection ends would have it reset: next time the last one is not sent.
                most = sent - 1;
                visit.stream.shutdown().await.unwrap();
            }
            for at in 1..=sent {
                assert_eq!(visit.answer().await, 3, "answer {at} of {sent}");
            }
            assert_eq!(visit.stream.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(visit.numbers.handled.get(), 3);
        });
    }
}

#[test]
fn to_be_answered_again_is_not_to_be_idle() {
    visit(async |_| {
        let mut visit = Visit::lasting(Duration::from_millis(160)).await;
        assert_eq!(visit.ask_all(&[A, A, A]).await, [1, 2, 3]);
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            // The same one, unless the machine is so slow that the second turns.
            assert!(visit.ask(A).await <= 4);
        }
        assert_eq!(visit.stream.read(&mut [0]).await.unwrap(), 0, "afterwards it is");
    });
}

/// Lets visitors come with numbers of answers that they do not take: after one of them the last cannot go out whole.
fn fillings(test: impl AsyncFn(Visit, usize)) {
    for (answers, padding) in
        (1..9).flat_map(|answers| (1000..4000).step_by(250).map(move |padding| (answers, padding)))
    {
        visit(async |visit| {
            visit.numbers.padding.set(padding);
            visit.numbers.repeats.set(false);
            test(visit, answers).await;
        });
    }
}

#[test]
fn an_answer_that_goes_out_in_parts_is_kept_whole() {
    fillings(async |mut visit, answers| {
        assert_eq!(visit.ask_all(&[A, A]).await, [1, 2]);
        let mut is_open = true;
        for _ in 0..answers {
            // What is asked about is then handled.
            is_open = visit.leave(A).await;
        }
        for number in 3..3 + answers {
            assert_eq!(visit.answer().await, number);
        }
        if is_open {
            visit.numbers.repeats.set(true);
            assert_eq!(visit.ask(A).await, 2 + answers, "after {answers} answers at once");
        }
    });
}

#[test]
fn an_answer_that_waits_behind_another_is_not_taken_for_that_of_the_next_request() {
    fillings(async |mut visit, answers| {
        for _ in 0..answers {
            visit.leave(A).await;
        }
        // The library reads on when it has drained a body, though its answer has yet to go.
        visit.leave(&[A, CHUNKED].concat()).await;
        visit.leave(HEAD).await;
        for number in 1..=answers + 2 {
            assert_eq!(visit.answer().await, number);
        }
        visit.head().await;
        visit.numbers.repeats.set(true);
        for _ in 0..3 {
            visit.stream.write_all(HEAD).await.unwrap();
            let head = visit.head().await;
            assert!(head.starts_with("HTTP/1.1 200"), "{answers} answers of {}: {head}", visit.numbers.padding.get());
        }
        let next = visit.numbers.handled.get() + 1;
        assert_eq!(visit.ask(B).await, next, "{answers} answers of {}", visit.numbers.padding.get());
    });
}

#[test]
fn a_connection_that_is_to_end_gives_nothing_again() {
    visit(async |mut visit| {
        assert_eq!(visit.ask_all(&[A, A, A, A]).await, [1, 2, 3, 3]);
        // The request is there before anybody is told.
        visit.stream.write_all(A).await.unwrap();
        visit.stage.send(Stage::Draining).unwrap();
        assert_eq!(visit.answer().await, 4);
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
