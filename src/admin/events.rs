//! `/api/events`: the numbers of the dashboard each second, as server-sent events (HTML Living Standard, section 9.2,
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! The gateway computes the numbers once for all streams, and only while a stream is open. A stream has room for one text.
//! While that text waits, the gateway skips the next ones, so a slow client delays nobody and takes no memory.

use std::cell::{Ref, RefCell};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::history::History;
use super::limits::decisions;
use super::{View, numbers};
use crate::base::clock::{self, Time};
use crate::config::Admin;
use crate::proxy::respond::{self, LocalResponse};

const EVERY: Duration = Duration::from_secs(1);
/// The first line of a stream: how long clients wait before they connect again, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

pub(super) struct Events {
    view: Arc<View>,
    history: RefCell<History>,
    streams: RefCell<EventStreams>,
    /// The admin section when the streams were opened.
    allowed_by: RefCell<Option<Admin>>,
}

impl Events {
    pub(super) fn new(view: Arc<View>) -> Self {
        let allowed_by = RefCell::new(view.config.load().admin.clone());
        let events = Self { view, history: RefCell::default(), streams: RefCell::default(), allowed_by };
        events.record(clock::now());
        events
    }

    /// Records the history and sends events, for ever.
    pub(super) async fn run(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tick(clock::now());
        }
    }

    fn tick(&self, now: Time) {
        self.record(now);
        let mut streams = self.streams.borrow_mut();
        let config = self.view.config.load();
        if *self.allowed_by.borrow() != config.admin {
            // A reload may have changed the token, so all streams end. Clients with the new token connect again.
            *streams = EventStreams::default();
            self.allowed_by.replace(config.admin.clone());
        }
        if streams.are_none(Instant::now()) {
            return;
        }
        let history = self.history.borrow();
        let numbers = Bytes::from(event("numbers", &json!(numbers::describe(&self.view, &history, now))));
        // The history corrects what pages have computed themselves.
        streams.send(history.minute, &numbers, || event("history", &json!(history.describe())));
    }

    fn record(&self, now: Time) {
        let (routes, limits) = (self.view.shared.routes.all(), self.view.shared.limits.all());
        self.history.borrow_mut().record(
            now,
            routes.iter().map(|route| (route.name.as_str(), numbers::ended(route))),
            limits.iter().map(|limit| (limit.name.as_str(), decisions(Some(limit)).refused())),
        );
    }

    pub(super) fn history(&self) -> Ref<'_, History> {
        self.history.borrow()
    }

    /// Opens a stream that begins with the history and the numbers; `None` if too many are open.
    pub(super) fn open(&self) -> Option<Response<EventBody>> {
        let history = self.history.borrow();
        let first = || {
            // The requests are those of the last sample, so the time is, too.
            let now = history.time().unwrap_or_else(clock::now);
            let numbers = json!(numbers::describe(&self.view, &history, now));
            let history = json!(history.describe());
            Bytes::from([RETRY, &event("history", &history), &event("numbers", &numbers)].concat())
        };
        let body = self.streams.borrow_mut().open(Instant::now(), history.minute, first)?;
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Some(response)
    }
}

pub(super) fn too_many() -> LocalResponse {
    let why = format!("{MAX_STREAMS} event streams are open already, which is the maximum. Close one of them.");
    respond::problem(StatusCode::SERVICE_UNAVAILABLE, &why)
}

/// JSON text has no line breaks, so it is one line of data.
fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

const MAX_STREAMS: usize = 8;
pub(super) const LIFETIME: Duration = Duration::from_secs(300);

#[derive(Default)]
struct EventStreams(Vec<Stream>);

struct Stream {
    events: mpsc::Sender<Bytes>,
    until: Instant,
    /// The minute in which the stream last got the history.
    minute: u64,
}

pub(super) struct EventBody(mpsc::Receiver<Bytes>);

impl EventStreams {
    /// Opens a stream that begins with `first`, a text with the history until `minute`; `None` if too many are open.
    pub(super) fn open(&mut self, now: Instant, minute: u64, first: impl FnOnce() -> Bytes) -> Option<EventBody> {
        self.end(now);
        if self.0.len() == MAX_STREAMS {
            return None;
        }
        let (events, body) = mpsc::channel(1);
        // The channel is empty and open.
        let _ = events.try_send(first());
        self.0.push(Stream { events, until: now + LIFETIME, minute });
        Some(EventBody(body))
    }

    /// Ends the streams whose time is over, and returns whether none is left.
    pub(super) fn are_none(&mut self, now: Instant) -> bool {
        self.end(now);
        self.0.is_empty()
    }

    /// Sends the numbers to all streams. A stream that has no history of this minute gets the history first.
    pub(super) fn send(&mut self, minute: u64, numbers: &Bytes, history: impl Fn() -> String) {
        let mut with_history = None;
        for stream in &mut self.0 {
            let text = if stream.minute == minute {
                numbers
            } else {
                with_history.get_or_insert_with(|| Bytes::from([history().as_bytes(), numbers].concat()))
            };
            if stream.events.try_send(text.clone()).is_ok() {
                stream.minute = minute;
            }
        }
    }

    fn end(&mut self, now: Instant) {
        self.0.retain(|stream| !stream.events.is_closed() && now < stream.until);
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|text| Ok(Frame::data(text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Bytes = Bytes::from_static(b"first");
    const NUMBERS: Bytes = Bytes::from_static(b"numbers");

    fn history() -> String {
        "history and ".to_owned()
    }

    /// A text, `None` if nothing has come yet, or the end.
    fn next(body: &mut EventBody) -> Result<Option<Bytes>, &'static str> {
        match body.0.try_recv() {
            Ok(text) => Ok(Some(text)),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err("the end"),
        }
    }

    #[test]
    fn a_stream_has_room_for_one_text_and_gets_the_history_each_minute() {
        let (mut streams, now) = (EventStreams::default(), Instant::now());
        let [mut reading, mut other] = [(); 2].map(|()| streams.open(now, 7, || FIRST).unwrap());
        for _ in 0..3 {
            streams.send(7, &NUMBERS, history);
        }
        // What did not fit was left out.
        assert_eq!((next(&mut reading), next(&mut reading)), (Ok(Some(FIRST)), Ok(None)));
        streams.send(7, &NUMBERS, history);
        assert_eq!(next(&mut reading), Ok(Some(NUMBERS)));
        streams.send(8, &NUMBERS, history);
        assert_eq!(next(&mut reading), Ok(Some(Bytes::from_static(b"history and numbers"))));
        streams.send(8, &NUMBERS, history);
        assert_eq!(next(&mut reading), Ok(Some(NUMBERS)));
        // A stream that had no room for the history gets it later.
        assert_eq!(next(&mut other), Ok(Some(FIRST)));
        streams.send(8, &NUMBERS, history);
        assert_eq!(next(&mut other), Ok(Some(Bytes::from_static(b"history and numbers"))));
    }

    #[test]
    fn there_are_a_few_streams_and_each_ends() {
        let (mut streams, now) = (EventStreams::default(), Instant::now());
        assert!(streams.are_none(now));
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| streams.open(now, 0, || FIRST).unwrap()).collect();
        assert!(streams.open(now, 0, || FIRST).is_none());
        drop(open.pop());
        open.push(streams.open(now + LIFETIME / 2, 0, || FIRST).unwrap());
        assert!(streams.open(now + LIFETIME / 2, 0, || FIRST).is_none());
        // What was sent before the end still arrives.
        assert!(!streams.are_none(now + LIFETIME));
        assert_eq!((next(&mut open[0]), next(&mut open[0])), (Ok(Some(FIRST)), Err("the end")));
        assert_eq!(next(open.last_mut().unwrap()), Ok(Some(FIRST)));
        assert_eq!(next(open.last_mut().unwrap()), Ok(None));
        assert!(streams.are_none(now + LIFETIME * 2));
    }
}
