//! `/api/events`: the numbers of the dashboard each second, as server-sent events (HTML Living Standard, section 9.2,
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! The numbers are computed once for all streams, and only while there is one. A stream has room for one event. If that is
//! not taken the next one is skipped, so a client that reads slowly delays nobody and takes no memory. Streams end after
//! some minutes, and clients ask again.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::View;
use super::history::History;
use super::numbers;
use crate::clock::{self, Time};
use crate::respond::{self, LocalResponse};

/// How often there is an event.
const EVERY: Duration = Duration::from_secs(1);
/// The most streams at once.
const MAX_STREAMS: usize = 8;
/// After this time a stream ends.
pub(super) const LIFETIME: Duration = Duration::from_secs(300);
/// How long clients shall wait before they ask again, as the first line of a stream says it.
const RETRY: &str = "retry: 1000\n\n";

/// The history of the gateway, and the open streams.
pub(super) struct Events {
    view: Arc<View>,
    history: RefCell<History>,
    streams: RefCell<Vec<Stream>>,
}

/// The sending side of a stream.
struct Stream {
    events: mpsc::Sender<Bytes>,
    /// When it ends.
    until: Instant,
    /// The minute when it was sent the history.
    minute: u64,
}

/// The body of a response that is a stream.
pub(super) struct EventBody(mpsc::Receiver<Bytes>);

impl Events {
    /// No streams, and a history that begins now.
    pub(super) fn new(view: Arc<View>) -> Self {
        let events = Self { view, history: RefCell::default(), streams: RefCell::default() };
        events.record(clock::now());
        events
    }

    /// Records the history and sends events. It never returns.
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
        streams.retain(|stream| !stream.events.is_closed() && Instant::now() < stream.until);
        if streams.is_empty() {
            return;
        }
        let history = self.history.borrow();
        let numbers = Bytes::from(event("numbers", &numbers::describe(&self.view, &history, now)));
        // At the end of a minute pages get the history again, which corrects what they have computed themselves.
        let mut with_history = None;
        for stream in &mut *streams {
            let text = if stream.minute == history.minute() {
                &numbers
            } else {
                with_history.get_or_insert_with(|| {
                    Bytes::from([event("history", &history.describe()).as_bytes(), &numbers].concat())
                })
            };
            if stream.events.try_send(text.clone()).is_ok() {
                stream.minute = history.minute();
            }
        }
    }

    fn record(&self, now: Time) {
        let (routes, limits) = (self.view.shared.routes(), self.view.shared.limits());
        self.history.borrow_mut().record(
            now,
            routes.iter().map(|route| (route.name.as_str(), numbers::ended(route))),
            limits.iter().map(|limit| (limit.name.as_str(), numbers::refused(limit))),
        );
    }

    /// Opens a stream, which begins with the history and the numbers; `None` if there are too many.
    pub(super) fn open(&self) -> Option<Response<EventBody>> {
        let mut streams = self.streams.borrow_mut();
        streams.retain(|stream| !stream.events.is_closed());
        if streams.len() == MAX_STREAMS {
            return None;
        }
        let history = self.history.borrow();
        let first = [
            RETRY.to_owned(),
            event("history", &history.describe()),
            // The time is that of the last sample, since the requests are.
            event("numbers", &numbers::describe(&self.view, &history, history.time().unwrap_or_else(clock::now))),
        ];
        let (events, body) = mpsc::channel(1);
        // The channel is empty and open.
        let _ = events.try_send(Bytes::from(first.concat()));
        streams.push(Stream { events, until: Instant::now() + LIFETIME, minute: history.minute() });
        let mut response = Response::new(EventBody(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Some(response)
    }
}

/// The answer if there are too many streams.
pub(super) fn too_many() -> LocalResponse {
    let why = format!("{MAX_STREAMS} event streams are open already, which is the most. Close one of them.");
    respond::problem(StatusCode::SERVICE_UNAVAILABLE, &why)
}

/// An event of this name. JSON has no line breaks, so its text is one line of data.
fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|text| Ok(Frame::data(text))))
    }
}
