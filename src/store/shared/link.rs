//! How a gateway stands with one server: whether it is connected, and which exchanges have not been answered.
//!
//! It is pure, with neither sockets nor a clock, so that the driver, gateways in virtual time and tests keep to the same
//! rules: when a server is connected to, when it is given up, and when exchanges begin.
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
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::Due;
use super::cached_cell::MOMENT;
use super::protocol::{Garbage, Reader};
use crate::base::back_off::BackOff;

/// The longest time that the lookup of the address, connecting and the first answer may take, unless requests wait for longer.
const CONNECT: Duration = Duration::from_secs(1);
/// The pauses from the second failure in a row to connect on: after the first there is none. A connection that lasted as long as
/// the longest of them was no failure.
const PAUSES: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// Why a server does not answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It cannot be connected to, or the connection broke.
    Io(io::Error),
    /// It closed the connection.
    Closed,
    /// It did not answer in time.
    Silent,
    /// Its answer is not what its protocol says.
    Garbage,
    /// It answered, but did nothing of what it was asked.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Silent => f.write_str("it did not answer in time"),
            Self::Garbage => f.write_str("its answer is not what its protocol says"),
            Self::Failed(answer) => write!(f, "it answered \"{answer}\""),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Garbage> for Failure {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}

/// How a gateway stands with one server.
pub(super) struct Link {
    /// The longest time that requests wait for a connection, and that the server may take to answer an exchange.
    timeout: Duration,
    state: LinkState,
    /// How many connections in a row have failed.
    failures: u32,
    /// When the next exchange begins at the latest, if that is known.
    departure: Option<Instant>,
    /// The exchanges that have not been answered.
    in_flight: VecDeque<InFlight>,
}

/// What reads the replies to an exchange, and when that was begun.
pub(super) type InFlight = (Box<dyn Reader>, Instant);

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
        /// Whether any exchange has succeeded.
        was_good: bool,
    },
}

/// What is to be done because time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkEvent {
    /// The server is to be connected to.
    Connect,
    /// Requests that have waited for the connection so far need not go on.
    Late,
    /// The server takes too long: the connection has failed.
    Silent,
}

impl Link {
    /// A link to a server that is to be connected to now.
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        let state = LinkState::Pausing { until: now };
        Self { timeout, state, failures: 0, departure: None, in_flight: VecDeque::new() }
    }

    /// What is due by now, one after the other.
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

    /// When something is due, or an exchange.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        match self.state {
            LinkState::Pausing { until } => Some(until),
            LinkState::Connecting { since, is_late: true } => Some(since + CONNECT.max(self.timeout)),
            LinkState::Connecting { since, is_late: false } => Some(since + self.timeout),
            LinkState::Up { .. } => self.answer_by().into_iter().chain(self.departure).min(),
        }
    }

    /// When the exchange that was begun first has to be answered.
    fn answer_by(&self) -> Option<Instant> {
        self.in_flight.front().map(|(_, begun)| *begun + self.timeout)
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, LinkState::Connecting { .. })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up { .. })
    }

    /// The server is connected and answers.
    pub(super) fn connected(&mut self, now: Instant) {
        self.state = LinkState::Up { since: now, was_good: false };
    }

    /// The connection has failed, or could not be made. It is tried again after a pause.
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

    /// Whether an exchange begins now, if it is `due` so. What is only pending waits for a moment, whether a request waits for
    /// an exchange or not.
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

    /// An exchange was begun, whose replies are read by this.
    pub(super) fn begun(&mut self, reader: Box<dyn Reader>, now: Instant) {
        self.in_flight.push_back((reader, now));
    }

    /// Reads on in `input`, which begins with the first reply that was not received yet. Returns an exchange that has
    /// been answered in full, and how many bytes that takes.
    ///
    /// # Errors
    /// If the input is not what is replied to the exchanges that were begun.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<Option<(InFlight, usize)>, Garbage> {
        let Some((reader, _)) = self.in_flight.front_mut() else {
            // What is left was not asked for.
            return if input.is_empty() { Ok(None) } else { Err(Garbage) };
        };
        let Some(length) = reader.read(input)? else { return Ok(None) };
        Ok(self.in_flight.pop_front().map(|exchange| (exchange, length)))
    }

    /// An exchange has succeeded.
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

    /// A link that has just been connected.
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
        assert_eq!(link.receive(b"EN").unwrap().map(|(_, length)| length), None);
        assert_eq!(link.receive(b"END\r\nE").unwrap().map(|(_, length)| length), Some(5));
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
