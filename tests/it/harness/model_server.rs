//! A server of language models, which answers like OpenAI, Anthropic and Gemini, by the path of the request. The test
//! decides what it answers, when it goes on, and where it breaks off.

mod forms;

use std::io::{ErrorKind, Result};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::upstream::{Received, Upstream, receive};
use super::wire::Wire;
use forms::Reply;

/// Runs in a thread for as long as the tests run.
pub(crate) struct ModelServer {
    pub(crate) up: Upstream,
    shared: Arc<Shared>,
    go: Sender<()>,
    events: Receiver<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A response waits for [`ModelServer::go_on`].
    Held,
    /// A response was sent to its end, or to where it breaks off.
    Sent,
    /// The client has gone away before that.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// From 400 on the answer is an error.
    pub(crate) status: u16,
    /// More header fields, each ending with `\r\n`.
    pub(crate) fields: String,
    /// The text. Each piece is an event of a stream.
    pub(crate) pieces: Vec<String>,
    pub(crate) usage: Option<Used>,
    /// After how many pieces the rest waits for the test. An answer without a stream has two pieces, its halves.
    pub(crate) held_after: Option<usize>,
    /// After how many pieces the connection closes.
    pub(crate) broken_after: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Without those from the cache.
    pub(crate) input: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl Default for Answer {
    fn default() -> Self {
        let (pieces, usage) =
            (["Hello", ", ", "world!"].map(str::to_owned).into(), Used { input: 10, cached: 0, output: 3 });
        Self { status: 200, fields: String::new(), pieces, usage: Some(usage), held_after: None, broken_after: None }
    }
}

impl Answer {
    /// A text of `count` pieces of ten tokens each, without its usage.
    pub(crate) fn text(count: usize) -> Self {
        Self { pieces: vec!["x".repeat(40); count], usage: None, ..Self::default() }
    }
}

struct Shared {
    answer: Mutex<Answer>,
    received: Mutex<Vec<Received>>,
    go: Mutex<Receiver<()>>,
    events: Sender<Event>,
}

impl ModelServer {
    pub(crate) fn start(answer: Answer) -> Self {
        let ((go, waiting), (sender, events)) = (channel(), channel());
        let (answer, waiting) = (Mutex::new(answer), Mutex::new(waiting));
        let shared = Arc::new(Shared { answer, received: Mutex::default(), go: waiting, events: sender });
        let serving = Arc::clone(&shared);
        let up = Upstream::raw(move |mut wire, _| {
            while let Ok(Some(request)) = receive(&mut wire) {
                let answer = serving.answer.lock().unwrap().clone();
                serving.received.lock().unwrap().push(request.clone());
                let sent = serving.send(&mut wire, &Parts::new(&request, &answer), &answer);
                _ = serving.events.send(if sent.is_ok() { Event::Sent } else { Event::Gone });
                if sent.is_err() || answer.broken_after.is_some() {
                    break;
                }
            }
        });
        Self { up, shared, go, events }
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    pub(crate) fn go_on(&self) {
        self.go.send(()).unwrap();
    }

    /// Waits until this happens, and forgets earlier events.
    #[track_caller]
    pub(crate) fn wait(&self, wanted: Event) {
        while self.events.recv_timeout(Duration::from_secs(20)).expect("it happens in time") != wanted {}
    }
}

impl Shared {
    fn send(&self, wire: &mut Wire, parts: &Parts, answer: &Answer) -> Result<()> {
        wire.write(parts.head.as_bytes())?;
        for (index, part) in parts.body.iter().enumerate() {
            let pieces = index.checked_sub(parts.before);
            if pieces.is_some() && pieces == answer.held_after {
                self.hold(wire.stream())?;
            }
            if pieces.is_some() && pieces == answer.broken_after {
                return Ok(());
            }
            wire.write(part)?;
        }
        Ok(())
    }

    /// Waits until the test says so, or until the peer closes, which is an error.
    fn hold(&self, stream: &TcpStream) -> Result<()> {
        _ = self.events.send(Event::Held);
        let patience = stream.read_timeout()?;
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        while self.go.lock().unwrap().recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
            let is_gone = match stream.peek(&mut [0]) {
                Ok(length) => length == 0,
                Err(error) => !is_silence(error.kind()),
            };
            if is_gone {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        stream.set_read_timeout(patience)
    }
}

/// Whether an error of a read only says that nothing has come.
fn is_silence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A response: its head, and its body in parts, with the number of parts before the text.
struct Parts {
    head: String,
    body: Vec<Vec<u8>>,
    before: usize,
}

impl Parts {
    fn new(request: &Received, answer: &Answer) -> Self {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let path = request.target.split('?').next().unwrap();
        let streams = body["stream"] == true || path.ends_with(":streamGenerateContent");
        let reply = Reply { answer, request: &body, model: &body["model"] };
        match path {
            _ if answer.status >= 400 => Self::json(answer, &reply.error(path)),
            _ if path.ends_with("/chat/completions") && streams => Self::stream(answer, reply.completions(true)),
            _ if path.ends_with("/chat/completions") => Self::json(answer, &reply.completion(true)),
            _ if path.ends_with("/completions") && streams => Self::stream(answer, reply.completions(false)),
            _ if path.ends_with("/completions") => Self::json(answer, &reply.completion(false)),
            _ if path.ends_with("/embeddings") => Self::json(answer, &reply.embeddings()),
            _ if path.ends_with("/responses") && streams => Self::stream(answer, reply.responses()),
            _ if path.ends_with("/responses") => Self::json(answer, &reply.response("completed")),
            _ if path.ends_with("/messages") && streams => Self::stream(answer, reply.messages()),
            _ if path.ends_with("/messages") => Self::json(answer, &reply.message()),
            _ if path.ends_with("ateContent") && streams => Self::stream(answer, reply.contents()),
            _ if path.ends_with(":generateContent") => Self::json(answer, &reply.content(&reply.text(), true)),
            _ => Self::json(&Answer { status: 404, ..answer.clone() }, &reply.error(path)),
        }
    }

    fn json(answer: &Answer, body: &Value) -> Self {
        let body = body.to_string().into_bytes();
        let framing = format!("application/json\r\nContent-Length: {}", body.len());
        let (first, second) = body.split_at(body.len() / 2);
        Self { head: head(answer, &framing), body: vec![first.to_vec(), second.to_vec()], before: 0 }
    }

    /// A stream of these events: before the text, the text, and after it.
    fn stream(answer: &Answer, [before, text, after]: [Vec<String>; 3]) -> Self {
        let length = before.len();
        let events = [before, text, after].concat();
        let chunk = |event: String| format!("{:x}\r\n{event}\r\n", event.len()).into_bytes();
        let body = events.into_iter().map(chunk).chain([b"0\r\n\r\n".to_vec()]).collect();
        let kind = "text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked";
        Self { head: head(answer, kind), body, before: length }
    }
}

fn head(answer: &Answer, kind: &str) -> String {
    format!("HTTP/1.1 {} Word\r\nContent-Type: {kind}\r\n{}\r\n", answer.status, answer.fields)
}
