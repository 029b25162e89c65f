//! Serves a limiter: HTTP/1.1 with pipelining, and HTTP/2 by prior knowledge, on two ports that share its counters.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::faults::Fault;
use super::limiter::{Answer, Limiter, Question};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long requests are decided if they race.
const RACE: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(10);

pub(super) struct Server {
    pub(super) instances: Vec<SocketAddr>,
    pub(super) limiter: Arc<Mutex<Limiter>>,
}

#[derive(Clone)]
struct Shared {
    fault: Option<Fault>,
    limiter: Arc<Mutex<Limiter>>,
    connections: Arc<AtomicU64>,
}

impl Server {
    pub(super) async fn start(fault: Option<Fault>) -> Self {
        let limiter = Arc::new(Mutex::new(Limiter::new(fault)));
        let shared = Shared { fault, limiter: Arc::clone(&limiter), connections: Arc::default() };
        let mut instances = Vec::new();
        for instance in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            instances.push(listener.local_addr().unwrap());
            tokio::spawn(accept(listener, instance, shared.clone()));
        }
        Self { instances, limiter }
    }
}

async fn accept(listener: TcpListener, instance: usize, shared: Shared) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let (shared, connection) = (shared.clone(), shared.connections.fetch_add(1, Ordering::Relaxed));
        tokio::spawn(async move {
            // A client that goes away is no fault of the test.
            let _ = Connection { instance, connection, earlier: 0, shared }.serve(stream).await;
        });
    }
}

struct Connection {
    instance: usize,
    connection: u64,
    earlier: usize,
    shared: Shared,
}

impl Connection {
    async fn serve(mut self, mut stream: TcpStream) -> io::Result<()> {
        let mut start = [0; 4];
        if stream.peek(&mut start).await? == start.len() && PREFACE.starts_with(&start) {
            return self.http2(stream).await.map_err(io::Error::other);
        }
        let mut buffer = Vec::new();
        loop {
            let is_pipelined = head_length(&buffer).is_some();
            let Some(length) = read_head(&mut stream, &mut buffer).await? else { return Ok(()) };
            let head: Vec<u8> = buffer.drain(..length).collect();
            let Some(question) = self.question(&head, is_pipelined) else {
                return stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .await;
            };
            let closes = header(&question, "connection").is_some_and(|value| value == "close");
            let size = header(&question, "content-length").map_or(0, |size| size.parse::<usize>().unwrap());
            let answer = self.answer(&question).await;
            if answer.status != 429 || self.shared.fault != Some(Fault::LeavesBodies) {
                while buffer.len() < size {
                    if stream.read_buf(&mut buffer).await? == 0 {
                        return Ok(());
                    }
                }
                buffer.drain(..size);
            }
            stream.write_all(&response(&answer, question.method == "HEAD")).await?;
            if closes {
                return Ok(());
            }
        }
    }

    fn question(&self, head: &[u8], is_pipelined: bool) -> Option<Question> {
        let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = String::from_utf8(lines.next()?.to_vec()).ok()?;
        let [method, path, "HTTP/1.1"] = first.split(' ').collect::<Vec<_>>()[..] else { return None };
        let headers = lines.filter(|line| !line.is_empty()).map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let value = line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]);
            Some((String::from_utf8(line[..colon].to_vec()).ok()?, value.to_vec()))
        });
        Some(Question {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: headers.collect::<Option<_>>()?,
            instance: self.instance,
            connection: self.connection,
            earlier: self.earlier,
            is_http2: false,
            is_pipelined,
        })
    }

    async fn answer(&mut self, question: &Question) -> Answer {
        self.earlier += 1;
        let Shared { fault, limiter, .. } = &self.shared;
        if *fault == Some(Fault::Races) && !question.is_http2 {
            limiter.lock().unwrap().arrive(question);
            sleep(RACE).await;
        }
        if *fault == Some(Fault::SlowDecision) && question.path != "/free" {
            sleep(SLOW).await;
        }
        let answer = limiter.lock().unwrap().decide(question);
        if *fault == Some(Fault::SlowRefusal) && answer.status == 429 {
            sleep(SLOW).await;
        }
        answer
    }

    async fn http2(mut self, stream: TcpStream) -> Result<(), h2::Error> {
        let mut connection = h2::server::handshake(stream).await?;
        while let Some(request) = connection.accept().await {
            let (request, mut respond) = request?;
            let headers = request.headers().iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
            let question = Question {
                method: request.method().to_string(),
                path: request.uri().path().to_owned(),
                headers: headers.collect(),
                instance: self.instance,
                connection: self.connection,
                earlier: self.earlier,
                is_http2: true,
                is_pipelined: false,
            };
            let answer = self.answer(&question).await;
            let mut head = http::Response::builder().status(answer.status);
            for (name, value) in &answer.headers {
                head = head.header(*name, value);
            }
            respond.send_response(head.body(()).unwrap(), false)?.send_data(Bytes::from(answer.body), true)?;
        }
        Ok(())
    }
}

fn header(question: &Question, name: &str) -> Option<String> {
    let value = question.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
    String::from_utf8(value.1.clone()).ok()
}

fn head_length(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

/// The length of the next head; `None` at the end of the connection.
async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
    loop {
        if let Some(length) = head_length(buffer) {
            return Ok(Some(length));
        }
        if buffer.len() > 100_000 {
            return Err(ErrorKind::InvalidData.into());
        }
        buffer.reserve(8192);
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn response(answer: &Answer, is_head: bool) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {} X\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text += "\r\n";
    if !is_head {
        text += answer.body;
    }
    text.into_bytes()
}
