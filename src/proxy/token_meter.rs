//! Charges the tokens that a response states, while it passes: at its end, the reservation is replaced by the use.
//!
//! A success that ends without stating its usage, and one whose client leaves, costs what was reserved, or what has passed if
//! that is more or the limit says so. A response that breaks off, or whose provider reports a failure, costs what has passed.
//! An error costs nothing unless it states a usage. All are settled before their last bytes are sent, so the client's next
//! request is decided afterwards.
//!
//! A stream of a limit that cuts asks for more while it runs. A piece for which there may be no room waits for the reply.

mod limit;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body::{Body, Frame};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::respond::providers;
use crate::request::decide::{Growth, TokenCounts};
use crate::store::Store;
use crate::tokens::filter::StreamFilter;
use crate::tokens::response::{Parts, ResponseReader, UsageSource};
use crate::tokens::{Usage, tokens_of};
use crate::upstream::BodyError;

pub(super) use limit::{MeteredLimit, MeteredRequest};

/// For how long a complete answer whose client has left is read on for its usage, which providers send at once.
pub(super) const READ_ON_FOR: Duration = Duration::from_secs(5);
/// How many bytes are read on. An answer is followed by its usage, with lists of what was searched and filtered.
const READ_ON_BYTES: usize = 256 << 10;

pub struct TokenMeter {
    growth: Growth,
    limits: SmallVec<[MeteredLimit; 1]>,
    request: MeteredRequest,
    /// How many of the models that have answered are weighed. Their weights count too.
    weighed: usize,
    reading: Reading,
    /// Whether the response has a length, so it is complete already.
    has_length: bool,
    /// Whether the client has left, and only the usage is awaited.
    is_abandoned: bool,
    has_begun: bool,
    /// What can be sent.
    ready: VecDeque<Bytes>,
    /// What waits for room.
    held: VecDeque<Bytes>,
    /// The end that follows what is held.
    held_end: Option<End>,
    trailers: Option<HeaderMap>,
    /// Bytes of text that were sent, or have room.
    passed: u64,
    end: Option<End>,
}

enum Reading {
    /// The body passes as it comes.
    Plain(ResponseReader),
    /// Only whole parts of a stream pass, because it may be cut, or an event removed.
    Filtered(StreamFilter),
}

impl Reading {
    fn reader(&self) -> &ResponseReader {
        match self {
            Self::Plain(reader) => reader,
            Self::Filtered(filter) => &filter.reader,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With the last byte.
    Whole,
    /// Before the last byte.
    Broken,
    /// For lack of room.
    Cut,
    Abandoned,
}

impl TokenMeter {
    /// Meters a response with these headers, which are adapted to the bytes that pass. Needs at least one limit.
    pub fn new(
        store: Arc<Store>,
        worker: usize,
        limits: SmallVec<[MeteredLimit; 1]>,
        request: MeteredRequest,
        usage: &UsageSource,
        headers: &mut HeaderMap,
    ) -> Self {
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity");
        let kind = headers.get(CONTENT_TYPE).filter(|_| !is_encoded).and_then(|kind| kind.to_str().ok());
        let reader = ResponseReader::new(kind.unwrap_or_default(), usage);
        let cuts = !request.is_error && limits.iter().any(MeteredLimit::cuts);
        let has_length = headers.contains_key(CONTENT_LENGTH);
        let filters = match reader.parts() {
            Some(Parts::Events) => cuts || request.hides_usage,
            _ => cuts && reader.may_have_parts() && !has_length,
        };
        let reading = if filters {
            headers.remove(CONTENT_LENGTH);
            Reading::Filtered(StreamFilter::new(reader, request.hides_usage))
        } else {
            Reading::Plain(reader)
        };
        let (weighed, is_abandoned, has_begun, ready, held, held_end, trailers, passed, end) = Default::default();
        Self {
            growth: Growth::new(store, worker),
            limits,
            request,
            weighed,
            reading,
            has_length,
            is_abandoned,
            has_begun,
            ready,
            held,
            held_end,
            trailers,
            passed,
            end,
        }
    }

    pub fn was_cut(&self) -> bool {
        self.end == Some(End::Cut)
    }

    /// Whether nothing of the body is left here.
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.ready.is_empty() && self.trailers.is_none()
    }

    pub fn keeps_length(&self) -> bool {
        matches!(self.reading, Reading::Plain(_))
    }

    pub fn poll_frame<B>(
        &mut self,
        content: &mut B,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>>
    where
        B: Body<Data = Bytes, Error = BodyError> + Default + Unpin,
    {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if !self.held.is_empty() || self.held_end.is_some() {
                let used = self.used(End::Broken);
                let polled =
                    self.growth.poll(cx, self.limits.iter_mut().map(|limit| (limit.needed(used), &mut limit.open)));
                let has_room = ready!(polled).is_ok() || self.is_abandoned;
                if has_room { self.pass() } else { self.cut() }
            } else if self.end.is_some() {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            } else {
                match ready!(Pin::new(&mut *content).poll_frame(cx)).transpose() {
                    Ok(frame) => self.read(frame, content.is_end_stream()),
                    Err(error) => {
                        self.finish(if error.reason().is_upstreams() { End::Broken } else { End::Abandoned });
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
            if self.was_cut() {
                // This ends the upstream's request.
                *content = B::default();
            }
        }
    }

    fn read(&mut self, frame: Option<Frame<Bytes>>, is_last: bool) {
        let is_last = is_last || frame.as_ref().is_none_or(Frame::is_trailers);
        let data =
            frame.and_then(|frame| frame.into_data().map_err(|frame| self.trailers = frame.into_trailers().ok()).ok());
        if let Some(data) = data {
            match &mut self.reading {
                Reading::Plain(reader) => {
                    reader.read(&data);
                    self.held.push_back(data);
                }
                Reading::Filtered(filter) => self.held.extend(filter.push(&data)),
            }
            self.weigh();
        }
        if is_last {
            if let Reading::Filtered(filter) = &mut self.reading {
                self.held.extend(Some(filter.finish()).filter(|rest| !rest.is_empty()));
            }
            self.held_end = Some(End::Whole);
        }
        // A usage that is stated without new text, as at the end of most streams, cuts nothing.
        let can_end = matches!(&self.reading, Reading::Filtered(filter) if filter.is_between_parts());
        let has_more = can_end && self.reading.reader().text() != self.passed && !self.is_abandoned;
        if !has_more || !self.limits.iter().any(MeteredLimit::cuts) {
            self.pass();
        }
    }

    fn cut(&mut self) {
        self.held.clear();
        let reader = self.reading.reader();
        let (parts, number) = (reader.parts().unwrap_or(Parts::Events), reader.findings.sequence_number);
        self.held.push_back(providers::exhausted(reader.findings.provider, parts, number, self.has_begun));
        self.finish(End::Cut);
    }

    fn weigh(&mut self) {
        for model in self.reading.reader().models().skip(self.weighed) {
            self.limits.iter_mut().for_each(|limit| limit.weigh(model));
            self.weighed += 1;
        }
    }

    fn pass(&mut self) {
        self.passed = self.reading.reader().text();
        self.has_begun |= !self.held.is_empty();
        match self.held_end.take() {
            Some(end) => self.finish(end),
            None => self.ready.append(&mut self.held),
        }
    }

    /// Whether the response has stated its usage, if it ends like this.
    fn is_said(&self, end: End) -> bool {
        let reader = self.reading.reader();
        match end {
            End::Whole => reader.says_usage(),
            End::Broken | End::Abandoned => reader.says_usage_before_end(self.request.output.answers),
            End::Cut => false,
        }
    }

    pub fn used_so_far(&self) -> Usage {
        self.used(self.end.unwrap_or(End::Abandoned))
    }

    fn used(&self, end: End) -> Usage {
        let reader = self.reading.reader();
        let (said, is_said) = (reader.findings.report.usage().unwrap_or_default(), self.is_said(end));
        if self.request.is_error {
            return said;
        }
        let has_input = if is_said { reader.findings.report.has_input() } else { said.input > 0 || said.cached > 0 };
        // Text that was not sent for lack of room is not charged.
        let text = tokens_of(if end == End::Cut { self.passed } else { reader.text() });
        Usage {
            input: if has_input { said.input } else { self.request.input },
            cached: said.cached,
            output: if is_said { said.output } else { said.output.max(text) },
        }
    }

    /// Settles the reservation and lets the rest pass.
    fn finish(&mut self, end: End) {
        self.settle(if self.is_abandoned && end != End::Whole { End::Abandoned } else { end });
        self.ready.append(&mut self.held);
    }

    fn settle(&mut self, end: End) {
        self.end = Some(end);
        let (used, is_said, is_error) = (self.used(end), self.is_said(end), self.request.is_error);
        let is_unsaid = !is_said && !is_error && !self.reading.reader().findings.ending.has_failed;
        let keeps_reserved = is_unsaid && end != End::Broken;
        for limit in &mut self.limits {
            let reserved = limit.open.cost();
            let cost = match limit.cost(used) {
                cost if keeps_reserved => cost.max(limit.kept()),
                cost => cost,
            };
            // Nobody shall fill the table with invented models, which the upstream refuses.
            limit.metrics.tokens.record(
                self.request.model.as_deref().filter(|_| is_said || !is_error),
                TokenCounts {
                    used,
                    reserved,
                    settled: cost,
                    estimated: (!is_said && !is_error).into(),
                    cut: (end == End::Cut).into(),
                    ignored: self.reading.reader().findings.report.ignored.into(),
                },
            );
            self.growth.settle(&mut limit.open, cost);
        }
    }

    /// Settles what is left if the client leaves before the end. Returns the usage.
    pub fn close(mut self) -> Usage {
        self.growth.stop();
        if self.end.is_none() {
            self.settle(End::Abandoned);
        }
        self.used_so_far()
    }

    /// Whether only the usage is missing, so it is awaited if the client leaves now.
    pub fn waits_for_usage(&self) -> bool {
        let reader = self.reading.reader();
        let is_complete = reader.findings.ending.is_complete() || self.has_length || self.request.is_error;
        self.end.is_none() && !self.is_said(End::Abandoned) && is_complete
    }

    /// After the client has left, reads the rest of `content` for the usage, for `limit` at most.
    pub async fn read_on<B>(mut self: Box<Self>, mut content: B, limit: Duration)
    where
        B: Body<Data = Bytes, Error = BodyError> + Default + Unpin,
    {
        self.is_abandoned = true;
        let mut left = READ_ON_BYTES;
        let reading = poll_fn(|cx| {
            while let Some(Ok(frame)) = ready!(self.poll_frame(&mut content, cx)) {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
            Poll::Ready(())
        });
        // What has not come by then stays unknown.
        let _ = timeout(limit, reading).await;
        self.close();
    }
}

#[cfg(test)]
mod tests;
