//! Exports traces to one collector, in a thread of its own: in batches, one after the other. Requests never wait for it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::messages::{ExportRequest, ExportResponse};
use crate::base::back_off::BackOff;
use crate::base::clock::{self, Time};
use crate::base::http::retry_after;
use crate::base::spans::{SpanCounts, Trace, TraceReceiver, TraceSender, trace_channel};
use crate::base::threads::block_on;
use crate::config::Collector;
use crate::net::fetch::{self, FetchError};

/// How long a trace waits for others that are exported with it.
const GATHER: Duration = Duration::from_secs(1);
/// The maximum size of a batch, except that a trace is never divided.
const MOST_SPANS: usize = 512;
/// The largest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;
/// How many times a batch is sent at most.
const TRIES: u32 = 5;
/// Pauses before a batch is sent again.
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(8) };

/// Collects spans and sends them to the collector. When the last reference to the exporter and the last sender are dropped, the
/// thread exports the waiting spans and ends.
#[derive(Debug)]
pub struct Exporter {
    pub(super) collector: Arc<Collector>,
    pub sender: TraceSender,
    /// `None` once the thread has it.
    running: Mutex<Option<Running>>,
    pub(super) end: ExportEnd,
}

#[derive(Clone, Debug)]
pub(super) struct ExportEnd {
    /// Whether the thread must export the waiting spans and end.
    pub(super) stop: watch::Sender<bool>,
    /// Closed when the thread has ended, or if it was never started.
    pub(super) ended: watch::Sender<()>,
}

impl Exporter {
    pub(super) fn new(collector: Arc<Collector>, counts: Arc<SpanCounts>) -> Self {
        let (sender, receiver) = trace_channel(counts.clone());
        let end = ExportEnd { stop: watch::Sender::new(false), ended: watch::Sender::new(()) };
        let stop = end.stop.subscribe();
        let running = Running { collector: collector.clone(), counts, receiver, stop, is_failing: false };
        Self { collector, sender, running: Mutex::new(Some(running)), end }
    }

    /// Starts the thread, unless it was started before.
    pub(super) fn start(&self) {
        let Some(running) = self.running.lock().take() else { return };
        // Dropped when the thread ends, in whatever way.
        let ended = self.end.ended.subscribe();
        let run = move || {
            let _ended = ended;
            if let Err(error) = block_on(running.run()) {
                tracing::error!(%error, "the thread that exports spans cannot start");
            }
        };
        if let Err(error) = thread::Builder::new().name("otlp".to_owned()).spawn(run) {
            tracing::error!(%error, "the thread that exports spans cannot start");
        }
    }
}

#[derive(Debug)]
struct Running {
    collector: Arc<Collector>,
    counts: Arc<SpanCounts>,
    receiver: TraceReceiver,
    stop: watch::Receiver<bool>,
    /// Whether the last batch was not accepted.
    is_failing: bool,
}

impl Running {
    /// Returns when there will be no more traces.
    async fn run(mut self) {
        while let Some(first) = self.first().await {
            let batch = self.batch(first).await;
            if !self.export(&batch).await && self.is_last() {
                // The waiting traces would not be accepted either.
                self.receiver.traces.close();
                while let Ok(trace) = self.receiver.traces.try_recv() {
                    self.counts.failed.add(trace.spans.len() as u64);
                }
            }
        }
    }

    /// Whether the exporter is ending, so that nothing is tried twice.
    fn is_last(&self) -> bool {
        *self.stop.borrow() || self.receiver.traces.is_closed()
    }

    /// Waits for a trace; `None` at the end.
    async fn first(&mut self) -> Option<Trace> {
        loop {
            if *self.stop.borrow_and_update() {
                self.receiver.traces.close();
            }
            tokio::select! {
                trace = self.receiver.traces.recv() => return trace,
                Ok(()) = self.stop.changed() => {}
            }
        }
    }

    /// The first trace, with others that come soon.
    async fn batch(&mut self, first: Trace) -> Vec<Trace> {
        if !self.is_last() {
            tokio::select! {
                () = sleep(GATHER) => {}
                () = self.receiver.many.notified() => {}
                Ok(_) = self.stop.wait_for(|stop| *stop) => {}
            }
        }
        let mut spans = first.spans.len();
        let mut batch = vec![first];
        while spans < MOST_SPANS
            && let Ok(trace) = self.receiver.traces.try_recv()
        {
            spans += trace.spans.len();
            batch.push(trace);
        }
        batch
    }

    /// Sends a batch, repeatedly if necessary; `false` if the collector has neither accepted nor refused it. Meanwhile
    /// further traces wait in the queue.
    async fn export(&mut self, batch: &[Trace]) -> bool {
        let spans = batch.iter().map(|trace| trace.spans.len() as u64).sum();
        let message = Bytes::from(ExportRequest::new(&self.collector.service_name, batch).encode_to_vec());
        for attempt in 1..=TRIES {
            let asked = match self.send(message.clone()).await {
                Ok(response) => match outcome(&response, clock::now()) {
                    ExportOutcome::Accepted => {
                        self.counts.exported.add(spans);
                        self.works();
                        return true;
                    }
                    ExportOutcome::Partly(refused, why) => {
                        let refused = refused.min(spans);
                        self.counts.refused.add(refused);
                        self.counts.exported.add(spans - refused);
                        self.fails(&format!("the collector refuses {refused} of {spans} spans: {why}"));
                        return true;
                    }
                    ExportOutcome::Refused => {
                        self.counts.refused.add(spans);
                        self.fails(&FetchError::Status(response.status()).to_string());
                        return true;
                    }
                    ExportOutcome::Later(asked) => {
                        self.fails(&FetchError::Status(response.status()).to_string());
                        asked
                    }
                },
                Err(error) => {
                    self.fails(&error.to_string());
                    None
                }
            };
            if attempt == TRIES || self.is_last() {
                break;
            }
            tokio::select! {
                () = sleep(asked.unwrap_or_default().max(PAUSES.pause(attempt))) => {}
                Ok(_) = self.stop.wait_for(|stop| *stop) => {}
            }
        }
        self.counts.failed.add(spans);
        false
    }

    async fn send(&self, message: Bytes) -> Result<Response<Bytes>, FetchError> {
        let Collector { url, tls, headers, timeout, .. } = &*self.collector;
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = http::Method::POST;
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        request.headers_mut().extend(headers.iter().cloned());
        request.headers_mut().extend([(header::CONTENT_TYPE, protobuf.clone()), (header::ACCEPT, protobuf)]);
        fetch::exchange(url, tls.as_ref(), request, LONGEST_ANSWER, *timeout).await
    }

    /// Logs only the first of several failures in a row.
    fn fails(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let collector = &self.collector.url;
            tracing::warn!(%collector, error, "spans cannot be exported");
        }
    }

    fn works(&mut self) {
        if std::mem::replace(&mut self.is_failing, false) {
            tracing::info!(collector = %self.collector.url, "spans are exported again");
        }
    }
}

/// The longest pause that a collector can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The part of a collector's message that is logged, in characters.
const LONGEST_MESSAGE: usize = 200;

#[derive(Debug, PartialEq, Eq)]
enum ExportOutcome {
    Accepted,
    /// This many spans are refused, for this reason; the others are accepted.
    Partly(u64, String),
    /// The batch may be accepted later, at least after this time.
    Later(Option<Duration>),
    /// The batch will never be accepted.
    Refused,
}

/// `now` is the time at which the answer came.
fn outcome(response: &Response<Bytes>, now: Time) -> ExportOutcome {
    match response.status() {
        // The collector has the spans, even if the body is invalid.
        status if status.is_success() => match ExportResponse::decode(response.body().clone()) {
            Ok(ExportResponse { partial_success: Some(partly) }) if partly.rejected_spans > 0 => {
                let message = partly.error_message.chars().take(LONGEST_MESSAGE).collect();
                ExportOutcome::Partly(partly.rejected_spans.unsigned_abs(), message)
            }
            _ => ExportOutcome::Accepted,
        },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            ExportOutcome::Later(retry_after(response.headers(), now).map(|pause| pause.min(LONGEST_PAUSE)))
        }
        _ => ExportOutcome::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::PartialSuccess;
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &str)], body: Vec<u8>) -> ExportOutcome {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        outcome(&response.body(body.into()).unwrap(), Time::from_micros(784_111_770_000_000))
    }

    fn partly(rejected_spans: i64, error_message: &str) -> Vec<u8> {
        let partly = PartialSuccess { rejected_spans, error_message: error_message.to_owned() };
        ExportResponse { partial_success: Some(partly) }.encode_to_vec()
    }

    #[test]
    fn a_success_may_be_partial() {
        assert_eq!(answer(200, &[], vec![]), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], b"<html>".to_vec()), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(0, "a hint")), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(-1, "")), ExportOutcome::Accepted);
        assert_eq!(answer(200, &[], partly(3, "why")), ExportOutcome::Partly(3, "why".to_owned()));
        assert_eq!(answer(200, &[], partly(1, &"é".repeat(300))), ExportOutcome::Partly(1, "é".repeat(200)));
    }

    #[test]
    fn some_failures_pass() {
        for status in [429, 502, 503, 504] {
            assert_eq!(answer(status, &[], vec![]), ExportOutcome::Later(None), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert_eq!(answer(status, &[], vec![]), ExportOutcome::Refused, "{status}");
        }
    }

    #[test]
    fn a_collector_may_say_when() {
        // The date is seven seconds later.
        for (value, pause) in
            [("0", Some(0)), ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7)), ("31", Some(30)), ("soon", None)]
        {
            let expected = ExportOutcome::Later(pause.map(Duration::from_secs));
            assert_eq!(answer(503, &[("retry-after", value)], vec![]), expected, "{value}");
        }
    }
}
