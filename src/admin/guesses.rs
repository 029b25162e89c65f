//! Counts, logs and slows down wrong tokens, by the address that they come from.
//!
//! An address has ten free guesses, because people mistype and replace tokens. Then the gateway compares one token a second,
//! right or wrong. A request that would wait for more than five seconds is refused at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::{Monotonic, Time};
use crate::base::repeated_event::RepeatedEvent;
use crate::net::network_of;

/// Between two guesses, in microseconds.
const EVERY: u64 = 1_000_000;
const FREE: u64 = 10;
/// In microseconds.
const LONGEST: u64 = 5_000_000;
/// The most known addresses. Beyond this, all other addresses count as one.
const MOST: usize = 4096;

/// Who asks; `None` on a Unix socket.
pub(super) type Peer = Option<IpAddr>;

/// Addresses that have lately sent wrong tokens.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    guessers: Mutex<HashMap<Peer, Guesser>>,
    /// The lines about wrong tokens.
    lines: RepeatedEvent,
}

#[derive(Debug, Default)]
struct Guesser {
    /// Wrong guesses since all guesses were paid for the last time.
    wrong: u64,
    /// When all guesses so far are paid for, in microseconds.
    paid: u64,
}

impl Guesses {
    /// How long a request waits before the gateway compares its token. This costs one guess, unless the token is
    /// [right](Self::right). The error says in how many seconds the next guess may come.
    pub(super) fn begin(&self, peer: Peer, now: Monotonic) -> Result<Duration, u64> {
        let mut guessers = self.guessers.lock();
        let now = now.micros();
        if guessers.len() >= MOST {
            guessers.retain(|_, guesser| guesser.paid > now);
        }
        let peer = peer.map(network_of);
        let peer = if guessers.len() < MOST || guessers.contains_key(&peer) { peer } else { UNKNOWN };
        let guesser = guessers.entry(peer).or_default();
        if guesser.paid <= now {
            *guesser = Guesser { wrong: 0, paid: now };
        }
        let wait = (guesser.paid - now).saturating_sub((FREE - 1) * EVERY);
        if wait > LONGEST {
            return Err((wait - LONGEST).div_ceil(EVERY));
        }
        guesser.paid += EVERY;
        Ok(Duration::from_micros(wait))
    }

    pub(super) fn right(&self, peer: Peer) {
        let mut guessers = self.guessers.lock();
        let peer = peer.map(network_of);
        let peer = if guessers.contains_key(&peer) { peer } else { UNKNOWN };
        if let Some(guesser) = guessers.get_mut(&peer) {
            guesser.paid = guesser.paid.saturating_sub(EVERY);
        }
    }

    /// Logs the first wrong token of an address, then the tenth, the hundredth and so on; at most one line a second.
    pub(super) fn wrong(&self, peer: Peer, now: Time) {
        if let Some((wrong, count)) = self.count_wrong(peer, now) {
            let address = peer.map_or("a Unix socket".to_owned(), |address| address.to_string());
            tracing::warn!(address, wrong, count, "the admin listener got a wrong token");
        }
    }

    /// If a line must be logged now, returns how many wrong tokens came from this address, and how many lines were due since the
    /// last one.
    fn count_wrong(&self, peer: Peer, now: Time) -> Option<(u64, u64)> {
        let mut guessers = self.guessers.lock();
        let network = peer.map(network_of);
        let network = if guessers.contains_key(&network) { network } else { UNKNOWN };
        let guesser = guessers.get_mut(&network)?;
        guesser.wrong += 1;
        let wrong = guesser.wrong;
        let is_due = 10_u64.checked_pow(wrong.ilog10()) == Some(wrong);
        is_due.then(|| self.lines.add(now)).flatten().map(|count| (wrong, count))
    }
}

/// All addresses beyond [`MOST`].
const UNKNOWN: Peer = Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a peer may have no address")]
    fn peer(text: &str) -> Peer {
        Some(text.parse().unwrap())
    }

    #[test]
    fn guesses_of_an_address_become_slow() {
        let (guesses, second) = (Guesses::default(), |seconds: u64| Monotonic::from_micros(seconds * EVERY));
        let begin = |text: &str, seconds| guesses.begin(peer(text), second(seconds)).map(|wait| wait.as_secs());
        assert_eq!([(); 10].map(|()| begin("192.0.2.1", 100)), [Ok(0); 10]);
        assert_eq!([(); 6].map(|()| begin("192.0.2.1", 100)), [Ok(1), Ok(2), Ok(3), Ok(4), Ok(5), Err(1)]);
        assert_eq!(begin("192.0.2.2", 100), Ok(0), "others do not wait");
        assert_eq!([begin("192.0.2.1", 101), begin("192.0.2.1", 101)], [Ok(5), Err(1)]);
        assert_eq!(begin("192.0.2.1", 200), Ok(0), "it is forgotten");
        // Right tokens cost nothing.
        for _ in 0..100 {
            assert_eq!(begin("192.0.2.3", 100), Ok(0));
            guesses.right(peer("192.0.2.3"));
        }
        for host in 0..10 {
            assert_eq!(begin(&format!("2001:db8::{host}"), 100), Ok(0));
        }
        assert_eq!(begin("2001:db8::a", 100), Ok(1), "a network is one client");
        assert_eq!(begin("2001:db8:0:1::a", 100), Ok(0));
        assert_eq!([(); 11].map(|()| guesses.begin(None, second(1)).unwrap().as_secs())[10], 1);
    }

    #[test]
    fn any_number_of_addresses_gets_one_line_a_second() {
        let guesses = Guesses::default();
        let wrong = |address: &str, millis: u64| {
            let _ = guesses.begin(peer(address), Monotonic::from_micros(EVERY));
            guesses.count_wrong(peer(address), Time::from_micros(millis * 1000))
        };
        assert_eq!(wrong("192.0.2.1", 1000), Some((1, 1)), "at once");
        for host in 2..100 {
            assert_eq!(wrong(&format!("192.0.2.{host}"), 1999), None);
        }
        assert_eq!(wrong("192.0.2.1", 2000), None, "its second is no line");
        assert_eq!(wrong("192.0.2.100", 2000), Some((1, 99)));
        assert_eq!([(); 8].map(|()| wrong("192.0.2.1", 3000))[7], Some((10, 1)));
    }

    #[test]
    fn any_number_of_addresses_takes_bounded_memory() {
        let guesses = Guesses::default();
        let now = Monotonic::from_micros(EVERY);
        for host in 0..10_000_u32 {
            let _ = guesses.begin(Some(IpAddr::V4(host.into())), now);
        }
        assert!(guesses.guessers.lock().len() <= MOST + 1);
        assert!(guesses.begin(peer("203.0.113.1"), now).is_err(), "those that are not known are slow together");
        assert_eq!(guesses.begin(peer("203.0.113.1"), Monotonic::from_micros(1 << 40)), Ok(Duration::ZERO));
    }
}
