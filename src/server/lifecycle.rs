//! The life cycle of a connection: what happens on it, which of its deadlines have passed, and when it ends. Both protocols
//! report events here and carry out the next step. Pure: the time is an argument. A drain, a reload, a place that is needed and
//! `idle_timeout` all ask for an end after the requests that have come, so none of them drops a response. An unanswered request
//! asks for an end after the requests in flight.

use std::time::Duration;

use super::time_limits::{EXPECTED_FOR, LINGERS_FOR, SILENCE, TimeLimits, UNLIMITED, is_over};
use super::worker_state::Coarse;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A preamble of the PROXY protocol or a TLS handshake begins. It has as much time as the head of a request.
    HandshakeBegins,
    /// No request has come yet.
    HandshakeEnds,
    /// The connection has only its socket.
    Rests,
    /// It has the buffers and the handler that requests need.
    Wakes,
    /// The protocol can tell the client that the connection ends, and which of its requests are served: HTTP/2.
    TellsItsEnd,
    /// Bytes have come. So many requests have begun to come since the connection woke.
    Received(u64),
    /// Whether the head of a request is incomplete, where a connection has many requests at once.
    HeadIsIncomplete(bool),
    /// The system has taken some of the bytes to send, or none, because the client does not read.
    Sent(bool),
    /// Everything that the library has written was sent.
    Flushed,
    /// Others may be in flight at the same time.
    RequestBegins,
    RequestEnds,
    /// The client may read nothing of the response to the request in flight for this time.
    ReadsWithin(Coarse),
    /// The library is given a response.
    Answers,
    /// A request of HTTP/1.1 that has ended gets no response.
    LeftUnanswered,
    /// Whether the connection may become a tunnel after the request in flight.
    Upgrades(bool),
    /// The client sends no more. It may still read a response, or not.
    HalfClosed,
    /// The connection has broken, or what the client has sent cannot be understood.
    Broken,
    /// The connection has to end after what has come: its place is needed.
    Ends,
    /// Like [`Event::Ends`], because the connection's listener is closed. The first request is still waited for.
    Drains,
}

impl Event {
    /// Whether a connection that is not idle may be idle after it.
    pub(super) fn may_finish(self) -> bool {
        matches!(self, Self::HandshakeEnds | Self::HeadIsIncomplete(_) | Self::Sent(_) | Self::RequestEnds)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    GoOn,
    /// It drops what requests need until the next one comes.
    Rest,
    /// It goes on until what has come is done. The client is told to send no more requests here.
    Finish,
    Close(CloseReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The head of a request was not complete in time.
    SlowHead,
    /// No request is in flight, and none is waited for any more.
    Idle,
    /// The client does not read what is sent to it.
    NotReading,
    /// The client has closed the connection.
    Gone,
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After the requests in flight, and those that have come and are not read yet.
    AfterRequest,
    /// Like [`End::AfterRequest`], but not before the first request.
    AfterFirstRequest,
    /// After the requests in flight, and when their responses are sent. No other request is served.
    AfterAnswers,
    Now(CloseReason),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No request has begun to come yet.
    #[default]
    Fresh,
    /// A request has begun to come.
    Head,
    /// The requests in flight, at least one.
    Busy(u32),
    Idle,
}

/// Whether a connection has the buffers and the handler that requests need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readiness {
    Awake,
    /// No request has come for a while, so it has to drop them.
    Tired,
    #[default]
    Resting,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate observation")]
pub(super) struct Lifecycle {
    phase: Phase,
    pub(super) since: Coarse,
    end: Option<End>,
    readiness: Readiness,
    tells_its_end: bool,
    /// How many requests have begun to come since the connection woke, and how many of them were passed to the handler.
    come: u64,
    pub(super) taken: u64,
    /// If other requests may be in flight at the same time.
    head_since: Option<Coarse>,
    /// Bytes wait to be sent, because the client does not read.
    unsent: Option<Coarse>,
    /// The longest such wait, if the last request has a limit of its own.
    reads_within: Option<Coarse>,
    /// Whether the library has a response that is not sent completely.
    is_answering: bool,
    /// Whether a part of that response, or of the response to the request in flight, was sent.
    pub(super) is_answered: bool,
    is_upgrading: bool,
    /// Set if the client sends no more: when that was noticed, or when, after that, a request began, earlier bytes were read,
    /// or a part of a response was sent.
    closed_at: Option<Coarse>,
    /// Since when the connection only waits for a client that may not know that it ends.
    expected_since: Option<Coarse>,
}

impl Lifecycle {
    pub(super) fn new(now: Coarse) -> Self {
        Self { since: now, ..Self::default() }
    }

    fn enter(&mut self, phase: Phase, now: Coarse) {
        (self.phase, self.since, self.expected_since) = (phase, now, None);
    }

    #[expect(clippy::inline_always, reason = "of all cases, each caller needs one")]
    #[inline(always)]
    pub(super) fn record(&mut self, event: Event, now: Coarse) {
        match event {
            Event::HandshakeBegins => self.enter(Phase::Head, now),
            Event::HandshakeEnds => self.enter(Phase::Fresh, now),
            Event::Rests => self.readiness = Readiness::Resting,
            Event::Wakes => {
                (self.readiness, self.come, self.taken, self.expected_since) = (Readiness::Awake, 0, 0, None);
            }
            Event::TellsItsEnd => self.tells_its_end = true,
            Event::Received(come) => {
                self.come = come;
                // The client had sent these bytes before it ended its data.
                self.closed_at = self.closed_at.map(|_| now);
                if matches!(self.phase, Phase::Fresh | Phase::Idle) && come > self.taken {
                    self.enter(Phase::Head, now);
                }
            }
            Event::HeadIsIncomplete(is_so) => self.head_since = is_so.then(|| self.head_since.unwrap_or(now)),
            Event::Sent(took_some) => self.sent(took_some, now),
            Event::Flushed if self.is_in_flight() => {}
            Event::Flushed => (self.is_answering, self.is_answered) = (false, false),
            Event::RequestBegins => {
                let earlier = if let Phase::Busy(requests) = self.phase { requests } else { 0 };
                self.enter(Phase::Busy(earlier + 1), now);
                self.taken += 1;
                (self.is_answering, self.is_answered, self.reads_within) = (false, false, None);
                // The client had sent it together with an earlier one. Each of them has the whole time.
                self.closed_at = self.closed_at.map(|_| now);
            }
            Event::RequestEnds => match self.phase {
                Phase::Busy(requests @ 2..) => self.phase = Phase::Busy(requests - 1),
                // A part of the next request may have come together with this one.
                _ => self.enter(if self.come > self.taken { Phase::Head } else { Phase::Idle }, now),
            },
            Event::ReadsWithin(limit) => self.reads_within = Some(limit),
            Event::Answers => self.is_answering = true,
            // The client would take a later response for the missing one.
            Event::LeftUnanswered => self.end(End::AfterAnswers),
            Event::Upgrades(is_so) => self.is_upgrading = is_so,
            Event::HalfClosed => self.closed_at = Some(now),
            Event::Broken => self.end(End::Now(CloseReason::Gone)),
            Event::Ends => self.end(End::AfterRequest),
            Event::Drains => self.end(End::AfterFirstRequest),
        }
    }

    fn sent(&mut self, took_some: bool, now: Coarse) {
        let has_waited = self.unsent.is_some();
        self.unsent = (!took_some).then(|| self.unsent.unwrap_or(now));
        self.closed_at = self.closed_at.map(|since| if took_some { now } else { since });
        // Unless the library was given a response, these are the bytes of an interim response.
        self.is_answered |= took_some && self.is_answering;
        match self.phase {
            // The end of a response is sent after its request has ended. This time does not count for the next request.
            Phase::Head if took_some && self.is_answering => self.enter(Phase::Head, now),
            // Only now is the connection idle.
            Phase::Idle if took_some && has_waited => self.enter(Phase::Idle, now),
            _ => {}
        }
    }

    /// Nothing replaces `Now`, and only `Now` replaces `AfterAnswers`.
    fn end(&mut self, end: End) {
        match (self.end, end) {
            (Some(End::Now(_)), _) | (Some(End::AfterAnswers), End::AfterRequest | End::AfterFirstRequest) => {}
            _ => self.end = Some(end),
        }
    }

    /// Looks for deadlines that have passed. Returns whether the task of the connection has to ask for its next step.
    pub(super) fn check(&mut self, limits: &TimeLimits, now: Coarse) -> bool {
        let is_sent = self.unsent.is_none();
        self.end(match self.phase {
            _ if is_over(self.unsent, limits.reading(self.reads_within), now) => End::Now(CloseReason::NotReading),
            _ if is_over(self.head_since, limits.header, now) => End::Now(CloseReason::SlowHead),
            Phase::Fresh if is_over(self.since, limits.header, now) => End::Now(CloseReason::Idle),
            Phase::Head if is_sent && is_over(self.since, limits.header, now) => End::Now(CloseReason::SlowHead),
            // A request that has come meanwhile is served.
            Phase::Idle if !self.is_busy() && is_over(self.since, limits.idle, now) => End::AfterRequest,
            Phase::Fresh | Phase::Idle if is_sent && is_over(self.since, limits.rest, now) => {
                let is_awake = self.readiness == Readiness::Awake;
                if is_awake {
                    self.readiness = Readiness::Tired;
                }
                return is_awake;
            }
            // Bytes that wait for the client show whether it is still there.
            Phase::Busy(_) if is_sent && is_over(self.closed_at, limits.half_closed, now) => {
                End::Now(CloseReason::Gone)
            }
            _ => return false,
        });
        true
    }

    /// What becomes of the connection next. `is_unread` says whether bytes have come that nobody has read, which may be a
    /// request; it is called only where it matters, and so is `now`. A connection that ends after its requests never ends
    /// before them.
    pub(super) fn step(&mut self, now: impl FnOnce() -> Coarse, is_unread: impl FnOnce() -> bool) -> Step {
        match self.end {
            None if self.readiness == Readiness::Tired && !self.is_busy() && !self.tells_its_end => Step::Rest,
            None => Step::GoOn,
            Some(End::Now(reason)) => Step::Close(reason),
            // The library has written what it has, and never reads what has come besides.
            Some(End::AfterAnswers) if self.is_in_flight() || self.is_unsent() => Step::GoOn,
            Some(End::AfterAnswers) => Step::Close(CloseReason::Unanswered),
            Some(_) if self.is_busy() || self.is_upgrading => {
                self.expected_since = None;
                // After the response to an Upgrade, either HTTP or the connection ends. And the library would not wait for
                // the rest of a head.
                let can_be_told = self.tells_its_end || self.is_in_flight() && !self.is_upgrading;
                if can_be_told { Step::Finish } else { Step::GoOn }
            }
            // A client that has just connected is about to send its request, and cannot know that nobody waits for it. A client
            // that is told closes the connection, or confirms.
            Some(end) => {
                let is_waited_for = self.tells_its_end || end == End::AfterFirstRequest && self.is_fresh();
                let is_expected = is_waited_for && {
                    let now = now();
                    !is_over(*self.expected_since.get_or_insert(now), EXPECTED_FOR, now)
                };
                match is_expected {
                    true if self.tells_its_end => Step::Finish,
                    false if !is_unread() => Step::Close(CloseReason::Idle),
                    _ => Step::GoOn,
                }
            }
        }
    }

    /// Whether [`Self::step`] surely returns [`Step::GoOn`] now, as it mostly does.
    pub(super) fn goes_on(&self) -> bool {
        self.end.is_none() && self.readiness != Readiness::Tired
    }

    /// When the last step ceases to hold if nothing happens.
    pub(super) fn expected_until(&self) -> Option<Coarse> {
        self.expected_since.map(|since| since + EXPECTED_FOR)
    }

    /// How long input is received and dropped after the end: otherwise the system would reset the connection, and the client
    /// could lose the response. A client that was told of the end also sends because it reads, for as long as reading the last
    /// responses may take. `None` if the client does not read, so that it cannot even be told.
    pub(super) fn lingers_for(&self, is_sending: bool, limits: &TimeLimits, now: Coarse) -> Option<Duration> {
        let is_in_order = !matches!(self.end, Some(End::Now(reason)) if reason != CloseReason::Idle);
        let may_read = self.tells_its_end && is_in_order && !self.is_fresh();
        let longest = if limits.body == UNLIMITED { LINGERS_FOR } else { limits.body };
        let reads_for = if may_read { longest.saturating_sub(now - self.since) } else { 0 };
        let longest = if is_sending { reads_for.max(SILENCE) } else { reads_for };
        (!self.is_unsent()).then(|| Duration::from_millis(longest))
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.phase == Phase::Fresh
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.phase, Phase::Busy(_))
    }

    /// Whether a request has begun to come or is in flight, or its response is not sent completely.
    pub(super) fn is_busy(&self) -> bool {
        self.is_unsent() || self.head_since.is_some() || matches!(self.phase, Phase::Head | Phase::Busy(_))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.end.is_none() && !self.is_busy()
    }

    pub(super) fn has_to_end(&self) -> bool {
        self.end.is_some()
    }

    /// How many requests have begun to come or are in flight, or have responses that are not sent completely.
    pub(super) fn requests(&self) -> usize {
        match self.phase {
            Phase::Busy(requests) => usize::try_from(requests).unwrap_or(usize::MAX),
            _ => usize::from(self.is_busy()),
        }
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether the library was given nothing to send. After an unanswered request, it may still send an earlier response.
    pub(super) fn is_unasked(&self) -> bool {
        !self.is_in_flight() && !self.is_answering && self.end != Some(End::AfterAnswers)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.end == Some(End::Now(CloseReason::NotReading))
    }
}

#[cfg(test)]
mod tests;
