//! Charges the tokens that a response says were used, while it passes: what was reserved becomes that when it ends.
//!
//! A response that ends without saying it costs its own text and that of the request, and so does one that breaks off. It is
//! settled before its last bytes are sent, so that the client's next request is decided after it.
//!
//! A stream of a limit that cuts asks for more while it runs. The piece for which there may be no room waits for the answer.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body::{Body, Frame};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::respond::providers;
use crate::base::clock;
use crate::config::Role;
use crate::limit::tokens::filter::EventFilter;
use crate::limit::tokens::response::{ResponseReader, Source};
use crate::limit::tokens::{Usage, Weights, tokens_of};
use crate::request::decide::{LimitMetrics, TokenCounts};
use crate::store::{Answer, Ask, Asks, Reply, Reserved, Store};

/// The tokens of output that a stream asks for at once: enough that few events have to wait for it.
const STEP: u64 = 256;

/// What one limit has reserved for a request.
pub struct MeteredLimit {
    /// What the tokens of the request's model cost: the most of these, since a pool may stand in for several limits.
    pub weights: SmallVec<[Weights; 1]>,
    /// What the request costs at least.
    pub least: u64,
    /// Whether a stream for which there is no room is cut.
    pub cuts: bool,
    /// Counts the tokens.
    pub metrics: Arc<LimitMetrics>,
    /// What the decision has reserved, and what the stream has asked for since.
    pub reserved: SmallVec<[Reserved; 1]>,
}

/// What is known of the request whose response is metered.
pub struct MeteredRequest {
    /// The tokens of its text.
    pub input: u64,
    /// The model that it names.
    pub model: Option<Box<[u8]>>,
    /// Whether the gateway has made it ask for its usage, which its client has not.
    pub hides_usage: bool,
}

/// The meter of one response.
pub struct TokenMeter {
    store: Arc<Store>,
    worker: usize,
    limits: SmallVec<[MeteredLimit; 1]>,
    request: MeteredRequest,
    reading: Reading,
    /// What can be sent.
    ready: VecDeque<Bytes>,
    /// What waits until there is room for it.
    held: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes of text that were sent, or for which there is room.
    passed: u64,
    /// The answer that it waits for, and how much was asked for besides what is needed.
    asked: Option<(oneshot::Receiver<Reply>, Extra)>,
    end: Option<End>,
}

/// What reads the body.
enum Reading {
    /// It passes as it comes.
    Plain(ResponseReader),
    /// Whole events pass, if some must not.
    Filtered(EventFilter),
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With its last byte.
    Whole,
    /// Before that.
    Broken,
    /// For want of room.
    Cut,
}

/// How much is asked for besides what is needed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    /// So that the next events need not ask.
    Step,
    /// Nothing, since there was no room for a step.
    None,
}

impl TokenMeter {
    /// The meter of a response with these headers, which are made true of what passes of its body. There is at least one limit.
    pub fn new(
        (store, worker): (Arc<Store>, usize),
        limits: SmallVec<[MeteredLimit; 1]>,
        request: MeteredRequest,
        usage: &Source,
        headers: &mut HeaderMap,
    ) -> Self {
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity");
        let kind = headers.get(CONTENT_TYPE).filter(|_| !is_encoded).and_then(|kind| kind.to_str().ok());
        let reader = ResponseReader::new(kind.unwrap_or_default(), usage);
        let cuts = limits.iter().any(|limit| limit.cuts);
        let reading = if reader.is_event_stream() && (cuts || request.hides_usage) {
            headers.remove(CONTENT_LENGTH);
            Reading::Filtered(EventFilter::new(reader, request.hides_usage))
        } else {
            Reading::Plain(reader)
        };
        let (ready, held, trailers, passed, asked, end) = Default::default();
        Self { store, worker, limits, request, reading, ready, held, trailers, passed, asked, end }
    }

    /// Whether the stream was cut for want of room.
    pub fn was_cut(&self) -> bool {
        self.end == Some(End::Cut)
    }

    /// Whether nothing of the body is left here.
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.ready.is_empty() && self.trailers.is_none()
    }

    /// Whether the body keeps the length that it has.
    pub fn keeps_length(&self) -> bool {
        matches!(self.reading, Reading::Plain(_))
    }

    /// The next frame of `content` that may be sent.
    pub fn poll_frame<B>(
        &mut self,
        content: &mut B,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>>
    where
        B: Body<Data = Bytes> + Default + Unpin,
    {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some((reply, extra)) = &mut self.asked {
                let (reply, extra) = (ready!(Pin::new(reply).poll(cx)), *extra);
                self.asked = None;
                self.answered(reply.ok(), extra);
            } else if self.end.is_some() {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            } else {
                match ready!(Pin::new(&mut *content).poll_frame(cx)).transpose() {
                    Ok(frame) => self.read(frame, content.is_end_stream()),
                    Err(error) => {
                        self.finish(End::Broken);
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
            if self.was_cut() {
                // The upstream's request ends with it.
                *content = B::default();
            }
        }
    }

    /// Reads the next frame of the body, or its end.
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
        }
        if is_last {
            if let Reading::Filtered(filter) = &mut self.reading {
                self.held.extend(Some(filter.finish()).filter(|rest| !rest.is_empty()));
            }
            self.finish(End::Whole);
        } else {
            self.ask(Extra::Step);
        }
    }

    /// Asks for room if new text of a stream needs more than is reserved and a limit cuts. What waits for it is sent otherwise.
    /// At the end of a stream there is no new text, so what a response says only then cuts nothing.
    fn ask(&mut self, extra: Extra) {
        let is_stream = matches!(self.reading, Reading::Filtered(_));
        if !is_stream || self.reader().text() == self.passed || !self.limits.iter().any(|limit| limit.cuts) {
            return self.pass();
        }
        let usage = self.used(End::Broken);
        let asks: Asks<'_> = self.limits.iter().filter_map(|limit| limit.ask(usage, extra)).collect();
        let answer = (!asks.is_empty()).then(|| self.store.decide(&asks, clock::now(), self.worker));
        drop(asks);
        match answer {
            None => self.pass(),
            Some(Answer::Now(reply)) => self.answered(Some(reply), extra),
            Some(Answer::Later(reply)) => self.asked = Some((reply, extra)),
            Some(Answer::Away) => self.answered(None, extra),
        }
    }

    /// Goes on after an answer of the store. A store that does not answer cuts nothing.
    fn answered(&mut self, reply: Option<Reply>, extra: Extra) {
        let Some(Reply { reserved, .. }) = reply else { return self.pass() };
        for reserved in reserved {
            let limit = self.limits.iter_mut().find(|limit| limit.place() == Some(reserved.place()));
            if let Some(limit) = limit {
                limit.reserved.push(reserved);
            }
        }
        let usage = self.used(End::Broken);
        match (self.limits.iter().any(|limit| limit.ask(usage, Extra::None).is_some()), extra) {
            (false, _) => self.pass(),
            (true, Extra::Step) => self.ask(Extra::None),
            (true, Extra::None) => {
                self.held.clear();
                self.held.push_back(providers::exhausted(self.reader().provider()));
                self.finish(End::Cut);
            }
        }
    }

    fn reader(&self) -> &ResponseReader {
        match &self.reading {
            Reading::Plain(reader) => reader,
            Reading::Filtered(filter) => filter.reader(),
        }
    }

    /// Lets pass what was read.
    fn pass(&mut self) {
        self.passed = self.reader().text();
        self.ready.append(&mut self.held);
    }

    /// What was used so far, if the response has ended so.
    fn used(&self, end: End) -> Usage {
        let text = tokens_of(if end == End::Cut { self.passed } else { self.reader().text() });
        match self.reader().usage() {
            None => Usage { input: self.request.input, cached: 0, output: text },
            Some(usage) if end == End::Whole => usage,
            // What it says is what was used when it said it.
            Some(usage) => Usage { output: usage.output.max(text), ..usage },
        }
    }

    /// Settles what was reserved, and lets the rest pass.
    fn finish(&mut self, end: End) {
        self.settle(end);
        self.ready.append(&mut self.held);
    }

    fn settle(&mut self, end: End) {
        self.end = Some(end);
        let used = self.used(end);
        let ignored = self.reader().ignored();
        let is_estimated = end == End::Broken || self.reader().usage().is_none();
        for limit in &mut self.limits {
            let tickets = mem::take(&mut limit.reserved);
            let reserved = tickets.iter().map(Reserved::cost).sum();
            let cost = limit.cost(used);
            // What was not sent because there is no room for it is not charged.
            let cost = if end == End::Cut { cost.min(reserved) } else { cost };
            limit.metrics.tokens.record(
                self.request.model.as_deref(),
                TokenCounts {
                    used,
                    reserved,
                    settled: cost,
                    estimated: is_estimated.into(),
                    cut: (end == End::Cut).into(),
                    ignored: ignored.into(),
                },
            );
            // What was asked for last is given back first.
            let (mut given, mut more) = (reserved.saturating_sub(cost), cost.saturating_sub(reserved));
            for ticket in tickets.into_iter().rev() {
                let back = given.min(ticket.cost());
                let cost = ticket.cost() - back + mem::take(&mut more);
                given -= back;
                self.store.settle(ticket, cost, None, (clock::now(), self.worker));
            }
        }
    }

    /// Gives back what it has asked for, if it has not heard the answer. If there is none yet, it lapses.
    fn drop_step(&mut self) {
        let Some((mut reply, _)) = self.asked.take() else { return };
        reply.close();
        let reserved = reply.try_recv().map(|reply| reply.reserved).unwrap_or_default();
        reserved.into_iter().for_each(|step| self.store.settle(step, 0, None, (clock::now(), self.worker)));
    }

    /// Settles what is left, if the client goes away before the end. Returns what was used.
    pub fn close(mut self) -> Usage {
        self.drop_step();
        let end = self.end.unwrap_or_else(|| {
            self.settle(End::Broken);
            End::Broken
        });
        self.used(end)
    }
}

impl MeteredLimit {
    /// What a request costs that has used so much.
    fn cost(&self, used: Usage) -> u64 {
        self.weights.iter().map(|weights| weights.cost(used)).max().unwrap_or(0).max(self.least)
    }

    /// The place on the route.
    fn place(&self) -> Option<usize> {
        self.reserved.first().map(Reserved::place)
    }

    /// What it is asked when so much was used; `None` if that is reserved, or needs not be.
    fn ask(&self, used: Usage, extra: Extra) -> Option<Ask<'_>> {
        let reserved = self.reserved.iter().map(Reserved::cost).sum::<u64>();
        let missing = self.cost(used).saturating_sub(reserved);
        let step = self.cost(Usage { output: STEP, ..Usage::default() });
        let more = if extra == Extra::Step { missing.max(step) } else { missing };
        self.reserved.first().filter(|_| missing > 0 && self.cuts).map(|first| first.ask_for(more, Role::Refuses))
    }
}

#[cfg(test)]
mod tests;
