//! Follows the numbers of a gateway, and asks again after the gateway was away.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::sleep;

use crate::admin::dashboard::{Limits, Numbers};
use crate::base::back_off::BackOff;
use crate::base::printable::printable;
use crate::commands::admin_client::{AdminClient, AdminResponse, NOT_A_GATEWAY, too_large, within};

/// For an answer, and for the next event: the gateway sends one each second.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Pauses before the next attempt while the gateway is away.
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(5) };
const LIMITS_EVERY: Duration = Duration::from_secs(5);
/// Of an event, or of the limits. A thousand limits take less than 1 MiB.
const MAX_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(super) enum Update {
    /// The newest numbers, or why there are none.
    Numbers(Result<Box<Numbers>, String>),
    /// With their keys, or why they cannot be read.
    Limits(Result<Limits, String>),
}

/// The numbers of a gateway, from one event stream after another, because a gateway ends each after some minutes (HTML
/// Living Standard, section 9.2, <https://html.spec.whatwg.org/multipage/server-sent-events.html>).
pub(super) struct Feed<'a> {
    client: &'a AdminClient,
    open: Option<AdminResponse>,
    /// The beginning of the next events.
    begun: Vec<u8>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(client: &'a AdminClient) -> Self {
        Self { client, open: None, begun: Vec::new() }
    }

    /// Waits for the next numbers. Fails when the gateway sends none, or the stream breaks, is silent, or cannot be read.
    pub(super) async fn next(&mut self) -> Result<Numbers, String> {
        let mut is_new = false;
        loop {
            let Some(answer) = &mut self.open else {
                let answer = self.client.get("/api/events", ANSWER_LIMIT).await?;
                if !answer.is("text/event-stream") {
                    return Err(NOT_A_GATEWAY.to_owned());
                }
                (self.open, self.begun, is_new) = (Some(answer), Vec::new(), true);
                continue;
            };
            while let Some(event) = take_event(&mut self.begun) {
                if let Some(numbers) = read(&event)? {
                    return Ok(numbers);
                }
            }
            let piece = within(ANSWER_LIMIT, answer.piece()).await?;
            match piece {
                Some(piece) if self.begun.len() + piece.len() > MAX_BYTES => return Err(too_large(MAX_BYTES)),
                Some(piece) => self.begun.extend_from_slice(&piece),
                // Otherwise it would ask a server of empty streams again and again without a pause.
                None if is_new => return Err(NOT_A_GATEWAY.to_owned()),
                None => self.open = None,
            }
        }
    }

    /// Sends numbers for ever. If there are none, it asks again after a pause.
    pub(super) async fn follow(mut self, send: impl Fn(Update)) -> Infallible {
        let mut failures = 0;
        loop {
            let next = self.next().await;
            failures = if next.is_ok() { 0 } else { failures + 1 };
            send(Update::Numbers(next.map(Box::new)));
            if failures > 0 {
                self.open = None;
                sleep(PAUSES.pause(failures)).await;
            }
        }
    }
}

/// Takes the first complete event: an event ends with an empty line.
fn take_event(begun: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = memchr::memmem::find(begun, b"\n\n")? + 2;
    let rest = begun.split_off(end);
    Some(std::mem::replace(begun, rest))
}

/// `None` if the event is of another kind.
fn read(event: &[u8]) -> Result<Option<Numbers>, String> {
    let field = |name: &[u8]| {
        let mut lines = event.split(|byte| *byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(b":").map(<[u8]>::trim_ascii_start))
    };
    match (field(b"event"), field(b"data")) {
        (Some(b"numbers"), Some(data)) => parse(data).map(Some),
        _ => Ok(None),
    }
}

/// Makes all texts safe for a terminal.
fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    let value = serde_json::from_slice(json).map(printed);
    value.and_then(serde_json::from_value).map_err(|error| {
        format!("this version cannot read what it sends, so the gateway may have another version: {error}")
    })
}

/// Makes texts and names printable.
fn printed(value: Value) -> Value {
    match value {
        Value::String(text) => printable(&text).into(),
        Value::Array(list) => list.into_iter().map(printed).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (printable(&name), printed(value))).collect(),
        other => other,
    }
}

pub(super) async fn follow_limits(client: &AdminClient, send: impl Fn(Update)) -> Infallible {
    loop {
        let asked = async { parse(&client.get("/api/limits", ANSWER_LIMIT).await?.whole(MAX_BYTES).await?) };
        send(Update::Limits(within(ANSWER_LIMIT, asked).await));
        sleep(LIMITS_EVERY).await;
    }
}

/// In milliseconds: rates compare answers that are at most this far apart. One comes about each second.
const SPAN: u64 = 5_500;

#[derive(Debug)]
pub(super) struct Model {
    pub(super) numbers: Numbers,
    pub(super) received: Instant,
    /// Why no newer numbers came; `None` if they came.
    pub(super) away: Option<String>,
    /// With their rates and keys, or why these are not known.
    pub(super) limits: Result<Limits, String>,
    /// Earlier numbers of the same process, the oldest first.
    earlier: VecDeque<Numbers>,
}

impl Model {
    pub(super) fn new(numbers: Numbers, now: Instant) -> Self {
        Self { numbers, received: now, away: None, limits: Ok(Limits::default()), earlier: VecDeque::new() }
    }

    pub(super) fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::Numbers(Ok(numbers)) => {
                self.earlier.push_back(std::mem::replace(&mut self.numbers, *numbers));
                let (started, time) = (self.numbers.started, self.numbers.time_ms);
                let recent = time.saturating_sub(SPAN)..time;
                // Another process counts from 0, and a clock may be set back.
                self.earlier.retain(|numbers| numbers.started == started && recent.contains(&numbers.time_ms));
                (self.received, self.away) = (now, None);
            }
            Update::Numbers(Err(why)) => self.away = Some(why),
            Update::Limits(limits) => self.limits = limits,
        }
    }

    /// The growth per second of the counter that `read` finds; `None` if there is nothing to compare.
    #[expect(clippy::cast_precision_loss, reason = "only the first digits are shown")]
    pub(super) fn per_second(&self, read: impl Fn(&Numbers) -> Option<u64>) -> Option<f64> {
        let (before, now) = (self.earlier.front()?, &self.numbers);
        let growth = read(now)?.saturating_sub(read(before)?);
        Some(growth as f64 * 1000.0 / (now.time_ms - before.time_ms) as f64)
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
            let (mut begun, mut events) = (Vec::new(), Vec::new());
            for piece in all.chunks(size) {
                begun.extend_from_slice(piece);
                events.extend(
                    std::iter::from_fn(|| take_event(&mut begun)).map(|event| String::from_utf8(event).unwrap()),
                );
            }
            assert_eq!(events, ["retry: 1\n\n", "event: a\ndata: 1\n\n", "\n\n", "event: b\n\n"], "{size}");
            assert_eq!(begun, b"rest");
        }
    }

    #[test]
    fn events_are_read_by_their_name() {
        for other in ["retry: 1000\n\n", ": comment\n\n", "event: history\ndata: {}\n\n", "event: numbers\n\n", "\n\n"]
        {
            assert!(matches!(read(other.as_bytes()), Ok(None)), "{other:?}");
        }
        for broken in ["{", "{}", "7", "{\"time_ms\":-1}"] {
            let event = format!("event: numbers\ndata: {broken}\n\n");
            assert!(read(event.as_bytes()).unwrap_err().contains("another version"), "{broken}");
        }
    }

    #[test]
    fn texts_cannot_control_the_terminal() {
        let hostile = "a\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\n";
        let value = printed(json!({ hostile: [hostile, { "deep": hostile }, 1, null, true] }));
        let text = value.to_string();
        assert!(!text.contains(|character: char| character.is_control() || character == '\u{202e}'), "{text}");
        assert_eq!(value.as_object().unwrap().values().next().unwrap()[2], 1);
        let event = format!("event: numbers\ndata: {}\n\n", json!({ "state": hostile }));
        let error = read(event.as_bytes()).unwrap_err();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}
