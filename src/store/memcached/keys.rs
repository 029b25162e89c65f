//! How counters are named in Memcached, how long they live, and on which server.
//!
//! A counter is `{prefix}:{limit}:{fingerprint}#{window}.{bucket}`, for example
//! `gw:per-client:3f…#10m.2966667`; with several buckets a window their number follows it: `#10mx6.17800002`; days
//! and months are named by the second they begin: `#month.1764547200`. State that is kept as one value is at
//! `#=` and what stands for its layout.

use memcache::exp::Router;

use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Limit, Rate, Strategy};

/// Seconds that a counter outlives its use, so that clocks may differ a little.
const GRACE: u64 = 5;
/// Longer lifetimes than this are moments in the protocol, seconds since 1970.
const LONGEST_RELATIVE: u64 = 30 * 86_400;

/// The part of the key that all counters of one client and limit share.
pub(super) fn base(prefix: &str, limit: &Limit, key: Fingerprint) -> String {
    format!("{prefix}:{}:{key}", limit.name())
}

/// The counter of one bucket of one rate.
pub(super) fn counter(base: &str, rate: &Rate, bucket: u64) -> String {
    let period = rate.period();
    match rate.strategy() {
        Strategy::Sliding { precision, .. } if *precision > 1 => format!("{base}#{period}x{precision}.{bucket}"),
        _ => format!("{base}#{period}.{bucket}"),
    }
}

/// The state of all rates of a limit that are kept as a whole.
pub(super) fn state(base: &str, limit: &Limit) -> String {
    format!("{base}#={:016x}", limit.shape().high())
}

/// How long what says something about these rates is kept from `now` on, as the protocol wants it.
pub(super) fn lifetime<'a>(rates: impl IntoIterator<Item = &'a Rate>, now: Time) -> u32 {
    let memory = rates.into_iter().map(Rate::memory).max().unwrap_or(0);
    let seconds = memory.div_ceil(1_000_000).saturating_add(GRACE);
    let wire = if seconds > LONGEST_RELATIVE { now.seconds_up().saturating_add(seconds) } else { seconds };
    u32::try_from(wire).unwrap_or(u32::MAX)
}

/// Rendezvous hashing of the part before `#`, so that all counters of a key live on one server, every gateway
/// agrees which, and a new server takes over only its share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement;

impl Router for Placement {
    fn route(&self, key: &[u8], servers: &[String]) -> usize {
        if servers.len() < 2 {
            return 0;
        }
        let base = key.split(|byte| *byte == b'#').next().unwrap_or(key);
        let score = |server: &String| Fingerprint::of(&[server.as_bytes(), b" ", base].concat());
        (0..servers.len()).max_by_key(|index| score(&servers[*index])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Edge;

    #[test]
    fn names_are_short_and_printable() {
        let sliding = Strategy::Sliding { precision: 60, edge: Edge::Whole };
        let rate = Rate::new(1, Duration::from_micros(2_678_399_999_999)).unwrap().counted(sliding).unwrap();
        let limit = Limit::new(&"l".repeat(64), std::slice::from_ref(&rate));
        let name = counter(&base(&"p".repeat(64), &limit, Fingerprint::of(b"\0 \n")), &rate, u64::MAX);
        assert!(name.len() <= 250, "{}", name.len());
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
    }

    #[test]
    fn counters_outlive_their_window() {
        let now = Time::from_micros(1_700_000_000_000_000);
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        assert_eq!(lifetime(&[rate("1/s")], now), 2 + 5);
        assert_eq!(lifetime(&[rate("1/14d")], now), 28 * 86_400 + 5);
        assert_eq!(lifetime(&[rate("1/31d")], now), 1_700_000_000 + 62 * 86_400 + 5);
    }

    #[test]
    fn a_new_server_takes_only_its_share() {
        let three: Vec<String> = (1..=3).map(|host| format!("10.0.0.{host}:11211")).collect();
        let four: Vec<String> = (1..=4).map(|host| format!("10.0.0.{host}:11211")).collect();
        let mut moved = 0;
        for key in 0..2_000 {
            let (s, m) = (format!("gw:l:{key}#s.1"), format!("gw:l:{key}#10m.7"));
            let before = Placement.route(s.as_bytes(), &three);
            assert_eq!(before, Placement.route(m.as_bytes(), &three), "one key, one server");
            let after = Placement.route(s.as_bytes(), &four);
            assert!(after == before || after == 3);
            moved += usize::from(after == 3);
        }
        assert!((400..600).contains(&moved), "{moved} of 2000 moved, a quarter is 500");
    }
}
