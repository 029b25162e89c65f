//! Follows what the gateway sends, and asks again when it is away.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{sleep, timeout};

use crate::admin::dashboard::{History, Limits, Numbers};
use crate::base::back_off::BackOff;
use crate::base::printable::printable;
use crate::commands::admin_client::{AdminClient, Answer, AskError};

/// The longest time until the gateway answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// If there is no event for so long, the gateway is away. There is one each second.
const SILENCE: Duration = Duration::from_secs(5);
/// The pauses before a gateway that is away is asked again.
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(5) };
/// How often rates and keys of limits are asked for.
const LIMITS_EVERY: Duration = Duration::from_secs(5);
/// The most bytes of an event, or of the limits. A thousand limits take less than one MiB.
const MAX_BYTES: usize = 8 << 20;

/// What is new.
#[derive(Debug)]
pub(super) enum Update {
    /// The last minutes and the last hour.
    History(History),
    /// How the gateway does now.
    Numbers(Box<Numbers>),
    /// The limits with their keys.
    Limits(Limits),
    /// The limits cannot be read.
    NoLimits(String),
    /// There are no numbers for now.
    Away(Away),
}

/// Why there are no numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// A sentence without its end.
    pub(super) why: String,
    /// When the gateway is asked again.
    pub(super) again: Instant,
}

/// A stream of events (HTML Living Standard, section 9.2,
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html>).
pub(super) struct EventStream {
    answer: Answer,
    begun: Begun,
}

/// What has come of the next events, in whatever pieces.
#[derive(Default)]
struct Begun {
    text: Vec<u8>,
    /// How many bytes of it have no end of an event in them.
    searched: usize,
}

impl EventStream {
    /// Asks for the stream.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn open(client: &AdminClient) -> Result<Self, AskError> {
        let answer = client.get("/api/events", ANSWER_LIMIT).await?;
        if !answer.is("text/event-stream") {
            return Err(AskError::NotAGateway);
        }
        Ok(Self { answer, begun: Begun::default() })
    }

    /// The next event that is known here; `None` at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks, is silent, or sends what cannot be read.
    pub(super) async fn next(&mut self) -> Result<Option<Update>, AskError> {
        loop {
            while let Some(event) = self.begun.take() {
                if let Some(update) = read(&event)? {
                    return Ok(Some(update));
                }
            }
            let piece = timeout(SILENCE, self.answer.piece()).await.unwrap_or(Err(AskError::TimedOut(SILENCE)))?;
            let Some(piece) = piece else { return Ok(None) };
            self.begun.add(&piece)?;
        }
    }
}

impl Begun {
    fn add(&mut self, piece: &[u8]) -> Result<(), AskError> {
        if self.text.len() + piece.len() > MAX_BYTES {
            return Err(AskError::TooLarge(MAX_BYTES));
        }
        self.text.extend_from_slice(piece);
        Ok(())
    }

    /// Takes the first event that is there as a whole: it ends with an empty line.
    fn take(&mut self) -> Option<Vec<u8>> {
        let found = memchr::memmem::find(&self.text[self.searched..], b"\n\n");
        let Some(end) = found.map(|at| self.searched + at) else {
            // The first half of the end may be there.
            self.searched = self.text.len().saturating_sub(1);
            return None;
        };
        let rest = self.text.split_off(end + 2);
        self.searched = 0;
        Some(std::mem::replace(&mut self.text, rest))
    }
}

/// What an event says; `None` if it is not known here.
fn read(event: &[u8]) -> Result<Option<Update>, AskError> {
    let field = |name: &[u8]| {
        let mut lines = event.split(|byte| *byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(b":").map(<[u8]>::trim_ascii_start))
    };
    let Some(data) = field(b"data") else { return Ok(None) };
    match field(b"event") {
        Some(b"history") => parse(data).map(|history| Some(Update::History(history))),
        Some(b"numbers") => parse(data).map(|numbers| Some(Update::Numbers(Box::new(numbers)))),
        _ => Ok(None),
    }
}

/// Reads JSON, with all its texts made safe for a terminal.
fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, AskError> {
    let value = serde_json::from_slice(json).map(printed);
    value.and_then(serde_json::from_value).map_err(AskError::OtherVersion)
}

/// The same value whose texts and names are printable.
fn printed(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(list) => list.into_iter().map(printed).collect(),
        Value::Object(fields) => {
            let fields: Map<_, _> =
                fields.into_iter().map(|(name, value)| (printable(&name), printed(value))).collect();
            Value::Object(fields)
        }
        other => other,
    }
}

/// Follows `stream`, and then further ones, for ever.
pub(super) async fn follow(client: &AdminClient, stream: EventStream, send: impl Fn(Update)) -> Infallible {
    let mut open = Ok(stream);
    let mut failures = 0;
    loop {
        let ended = match open {
            Ok(stream) => follow_one(stream, &mut failures, &send).await,
            Err(error) => Err(error),
        };
        // A gateway ends each stream after some minutes. It is away only if it gives no other one.
        if let Err(error) = ended {
            failures += 1;
            let pause = PAUSES.pause(failures);
            send(Update::Away(Away { why: error.to_string(), again: Instant::now() + pause }));
            sleep(pause).await;
        }
        open = EventStream::open(client).await;
    }
}

/// Follows a stream to its end.
async fn follow_one(mut stream: EventStream, failures: &mut u32, send: &impl Fn(Update)) -> Result<(), AskError> {
    let mut is_empty = true;
    while let Some(update) = stream.next().await? {
        (is_empty, *failures) = (false, 0);
        send(update);
    }
    // Otherwise it would be asked again and again without a pause.
    if is_empty { Err(AskError::NotAGateway) } else { Ok(()) }
}

/// Asks for the rates and keys of limits again and again.
pub(super) async fn follow_limits(client: &AdminClient, send: impl Fn(Update)) -> Infallible {
    loop {
        let asked = async { parse(&client.get("/api/limits", ANSWER_LIMIT).await?.whole(MAX_BYTES).await?) };
        let asked = timeout(ANSWER_LIMIT, asked).await.unwrap_or(Err(AskError::TimedOut(ANSWER_LIMIT)));
        send(asked.map_or_else(|error| Update::NoLimits(error.to_string()), Update::Limits));
        sleep(LIMITS_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let all = b"retry: 1\n\nevent: a\ndata: 1\n\n\n\nevent: b\n\nrest";
        for size in 1..=all.len() {
            let (mut begun, mut events) = (Begun::default(), Vec::new());
            for piece in all.chunks(size) {
                begun.add(piece).unwrap();
                events.extend(std::iter::from_fn(|| begun.take()).map(|event| String::from_utf8(event).unwrap()));
            }
            assert_eq!(events, ["retry: 1\n\n", "event: a\ndata: 1\n\n", "\n\n", "event: b\n\n"], "{size}");
            assert_eq!(begun.text, b"rest");
        }
        let mut endless = Begun::default();
        endless.add(&vec![b'x'; MAX_BYTES]).unwrap();
        assert!(endless.take().is_none() && matches!(endless.add(b"x"), Err(AskError::TooLarge(_))));
    }

    #[test]
    fn events_are_read_by_their_name() {
        let history =
            b"event: history\ndata: {\"times_ms\":[1],\"requests\":{},\"minute\":2,\"refused_by_minute\":{}}\n\n";
        let Ok(Some(Update::History(history))) = read(history) else { panic!() };
        assert_eq!((history.times_ms, history.minute), (vec![1], 2));
        for other in ["retry: 1000\n\n", ": comment\n\n", "event: more\ndata: {}\n\n", "event: numbers\n\n", "\n\n"] {
            assert!(matches!(read(other.as_bytes()), Ok(None)), "{other:?}");
        }
        for broken in ["{", "{}", "7", "{\"times_ms\":[-1]}"] {
            let event = format!("event: history\ndata: {broken}\n\n");
            assert!(matches!(read(event.as_bytes()), Err(AskError::OtherVersion(_))), "{broken}");
        }
    }

    #[test]
    fn texts_cannot_control_the_terminal() {
        let hostile = "a\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\n";
        let value = printed(json!({ hostile: [hostile, { "deep": hostile }, 1, null, true] }));
        let text = value.to_string();
        assert!(!text.contains(|character: char| character.is_control() || character == '\u{202e}'), "{text}");
        assert_eq!(value.as_object().unwrap().values().next().unwrap()[2], 1);
        // Neither can those of an error.
        let event = format!("event: numbers\ndata: {}\n\n", json!({ "state": hostile }));
        let error = read(event.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}
