//! The link to one server: whether it is connected, and which exchanges have not been answered.
//!
//! It is pure, with neither sockets nor a clock, so the driver, simulated gateways and tests follow the same rules: when to
//! connect, when to give up a server, and when exchanges begin.
//!
//! ```text
//!                 the pause is over                  it answers
//!   +---------+ --------------------> +------------+ ----------> +----+
//!   | Pausing |                       | Connecting |             | Up |
//!   +---------+ <-------------------- +------------+             +----+
//!        ^       too long, or refused                               |
//!        +--------------------- it is silent for too long, or broke +
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::Due;
use super::cached_cell::MOMENT;
use super::protocol::{Garbage, Outcome, Reader};
use crate::base::back_off::BackOff;

/// The longest time for the lookup of the address, connecting and the first answer, unless requests wait for longer.
const CONNECT: Duration = Duration::from_secs(1);
/// The pauses after the second failure in a row and later ones; after the first there is none. A connection that lasted for
/// the longest pause was no failure.
const PAUSES: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

pub(super) struct Link {
    /// The longest time that requests wait for a connection, and that the server may take to answer an exchange.
    timeout: Duration,
    state: LinkState,
    failures: u32,
    /// When the next exchange begins at the latest, if that is known.
    departure: Option<Instant>,
    /// Without an answer yet, the oldest first: the reader of the replies, and when the exchange was begun.
    in_flight: VecDeque<(Box<dyn Reader>, Instant)>,
}

#[derive(Debug)]
enum LinkState {
    Pausing {
        until: Instant,
    },
    Connecting {
        since: Instant,
        /// Whether requests have waited for it for too long.
        is_late: bool,
    },
    Up {
        since: Instant,
        was_good: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEvent {
    Connect,
    /// Requests that have waited for the connection so far need not go on.
    Late,
    /// The server takes too long: the connection has failed.
    Silent,
}

impl Link {
    /// The server is to be connected to at once.
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        let state = LinkState::Pausing { until: now };
        Self { timeout, state, failures: 0, departure: None, in_flight: VecDeque::new() }
    }

    /// An event that is due by now, if any. Call it again for the next one.
    pub(super) fn on_timer(&mut self, now: Instant) -> Option<LinkEvent> {
        if self.next_timer().is_none_or(|next| next > now) {
            return None;
        }
        match &mut self.state {
            LinkState::Pausing { .. } => {
                self.state = LinkState::Connecting { since: now, is_late: false };
                Some(LinkEvent::Connect)
            }
            LinkState::Connecting { since, .. } if *since + CONNECT.max(self.timeout) <= now => Some(LinkEvent::Silent),
            LinkState::Connecting { is_late, .. } => {
                *is_late = true;
                Some(LinkEvent::Late)
            }
            LinkState::Up { .. } => self.answer_by().is_some_and(|by| by <= now).then_some(LinkEvent::Silent),
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        match self.state {
            LinkState::Pausing { until } => Some(until),
            LinkState::Connecting { since, is_late: true } => Some(since + CONNECT.max(self.timeout)),
            LinkState::Connecting { since, is_late: false } => Some(since + self.timeout),
            LinkState::Up { .. } => self.answer_by().into_iter().chain(self.departure).min(),
        }
    }

    fn answer_by(&self) -> Option<Instant> {
        self.in_flight.front().map(|(_, begun)| *begun + self.timeout)
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, LinkState::Connecting { .. })
    }

    /// Whether there is a connection, or one is being made.
    pub(super) fn is_begun(&self) -> bool {
        !matches!(self.state, LinkState::Pausing { .. })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up { .. })
    }

    pub(super) fn connected(&mut self, now: Instant) {
        self.state = LinkState::Up { since: now, was_good: false };
    }

    /// The connection has failed, or could not be made. The next attempt comes after a pause.
    pub(super) fn failed(&mut self, now: Instant) {
        let is_restarted = match self.state {
            LinkState::Up { since, was_good } => was_good || now - since >= PAUSES.longest,
            LinkState::Pausing { .. } | LinkState::Connecting { .. } => false,
        };
        // Most likely the server has been restarted.
        self.failures = if is_restarted { 0 } else { self.failures };
        self.state = LinkState::Pausing { until: now + PAUSES.pause(self.failures) };
        self.failures = self.failures.saturating_add(1);
        self.departure = None;
        self.in_flight.clear();
    }

    /// Whether an exchange that is `due` begins now. Pending charges wait for a moment, whether a request waits for an
    /// exchange or not.
    pub(super) fn begins(&mut self, due: Due, now: Instant) -> bool {
        let begins = match due {
            Due::Now => true,
            Due::Soon => *self.departure.get_or_insert(now + MOMENT) <= now,
            Due::Never => false,
        };
        if begins || due == Due::Never {
            self.departure = None;
        }
        begins
    }

    /// An exchange was begun; `reader` reads its replies.
    pub(super) fn begun(&mut self, reader: Box<dyn Reader>, now: Instant) {
        self.in_flight.push_back((reader, now));
    }

    /// Reads on in `input`, which begins with the first byte that is not taken yet. Returns what an exchange that has been
    /// answered in full has come to, and when it was begun. Fails if the input is no reply to the exchanges that were begun.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<Option<(Outcome, Instant)>, Garbage> {
        let Some((reader, _)) = self.in_flight.front_mut() else {
            // Nobody has asked for these bytes.
            return if input.is_empty() { Ok(None) } else { Err(Garbage) };
        };
        let Some(outcome) = reader.read(input)? else { return Ok(None) };
        Ok(self.in_flight.pop_front().map(|(_, begun)| (outcome, begun)))
    }

    pub(super) fn succeeded(&mut self) {
        if let LinkState::Up { was_good, .. } = &mut self.state {
            *was_good = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::memcached::Memcached;
    use crate::store::shared::protocol::Protocol;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn connected(now: Instant) -> Link {
        let mut link = Link::new(TIMEOUT, now);
        assert_eq!(link.on_timer(now), Some(LinkEvent::Connect));
        link.connected(now);
        link
    }

    #[test]
    fn what_is_pending_leaves_after_a_moment_and_what_is_wanted_at_once() {
        let now = Instant::now();
        let mut link = connected(now);
        assert!(link.begins(Due::Now, now));
        assert!(!link.begins(Due::Soon, now));
        assert!(!link.begins(Due::Soon, now + MOMENT / 2));
        assert_eq!(link.next_timer(), Some(now + MOMENT));
        assert!(link.begins(Due::Soon, now + MOMENT));
        assert_eq!(link.next_timer(), None);
        assert!(!link.begins(Due::Soon, now) && !link.begins(Due::Never, now));
        assert_eq!(link.next_timer(), None, "there is nothing to do any more");
    }

    #[test]
    fn a_connection_that_takes_too_long_is_first_late_and_then_given_up() {
        let now = Instant::now();
        let mut link = Link::new(TIMEOUT, now);
        assert_eq!((link.next_timer(), link.on_timer(now)), (Some(now), Some(LinkEvent::Connect)));
        assert_eq!((link.next_timer(), link.on_timer(now)), (Some(now + TIMEOUT), None));
        assert_eq!(link.on_timer(now + TIMEOUT), Some(LinkEvent::Late));
        assert_eq!((link.next_timer(), link.on_timer(now + TIMEOUT)), (Some(now + CONNECT), None));
        assert_eq!(link.on_timer(now + CONNECT), Some(LinkEvent::Silent));
        let mut patient = Link::new(3 * CONNECT, now);
        assert_eq!(patient.on_timer(now), Some(LinkEvent::Connect));
        assert_eq!(patient.next_timer(), Some(now + 3 * CONNECT));
        assert_eq!(patient.on_timer(now + 3 * CONNECT), Some(LinkEvent::Silent));
    }

    #[test]
    fn a_server_that_is_silent_is_given_up_and_an_answer_gives_the_next_exchange_its_time() {
        let now = Instant::now();
        let mut link = connected(now);
        let reader = || {
            let mut commands = Memcached.commands();
            commands.read(&|out| out.push(b'a'));
            commands.finish(&mut Vec::new())
        };
        link.begun(reader(), now);
        link.begun(reader(), now + TIMEOUT / 2);
        assert_eq!(link.next_timer(), Some(now + TIMEOUT));
        assert_eq!(link.receive(b"EN").unwrap().map(|(outcome, _)| outcome.length), None);
        assert_eq!(link.receive(b"END\r\nE").unwrap().map(|(outcome, _)| outcome.length), Some(5));
        assert_eq!(link.on_timer(now + TIMEOUT), None);
        assert_eq!(link.on_timer(now + TIMEOUT * 3 / 2), Some(LinkEvent::Silent));
        link.failed(now);
        assert!(link.receive(b"").unwrap().is_none());
        assert_eq!(link.receive(b"END\r\n").err(), Some(Garbage), "nothing was asked");
    }

    #[test]
    fn pauses_double_until_a_connection_works() {
        let now = Instant::now();
        let mut link = Link::new(TIMEOUT, now);
        let pause = |link: &mut Link, now| {
            link.failed(now);
            link.next_timer().unwrap() - now
        };
        let pauses: Vec<u128> = (0..8).map(|_| pause(&mut link, now).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        link.connected(now);
        assert_eq!(pause(&mut link, now), PAUSES.longest, "it has ended at once");
        link.connected(now);
        link.succeeded();
        assert_eq!([pause(&mut link, now), pause(&mut link, now)], [Duration::ZERO, PAUSES.first]);
        link.connected(now);
        assert_eq!(pause(&mut link, now + PAUSES.longest), Duration::ZERO, "it has lasted");
    }
}
