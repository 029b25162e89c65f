//! `/api/events`: the numbers of the dashboard each second, as server-sent events (HTML Living Standard, section 9.2,
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! The gateway computes the numbers once for all streams, and only while a stream is open.

use std::cell::{Ref, RefCell};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::View;
use super::event_streams::{EventBody, EventStreams, MAX_STREAMS};
use super::history::History;
use super::limits::decisions;
use super::numbers;
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
        streams.send(history.minute(), &numbers, || event("history", &json!(history.describe())));
    }

    fn record(&self, now: Time) {
        let (routes, limits) = (self.view.shared.routes(), self.view.shared.limits());
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
        let body = self.streams.borrow_mut().open(Instant::now(), history.minute(), first)?;
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
