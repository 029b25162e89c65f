//! What servers say of themselves, asked now and then on a connection of its own: how late it is, because buckets are
//! named by the clock and gateways that share them should agree, and what was evicted, because it may have been
//! counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::health::Health;
use super::protocol::{Protocol, Statistics};
use crate::base::clock::{self, Time};

/// How often servers are asked.
const EVERY: Duration = Duration::from_secs(10);
/// A server tells whole seconds, and counts them itself once a second.
const TICK: i64 = 2;

/// Asks until the other end of `end` is gone.
pub(super) fn run(protocol: &dyn Protocol, health: &Arc<Health>, end: &Receiver<()>) {
    loop {
        for (place, server) in health.servers.iter().enumerate().filter(|(_, server)| server.is_up()) {
            if let Some(Statistics { time, evictions }) = protocol.statistics(&server.address) {
                health.said(place, time.map_or(0, |time| skew(time, clock::now())), evictions);
            }
        }
        if end.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// How many seconds a clock that shows `time` is ahead of `now`, as far as can be told.
fn skew(time: u64, now: Time) -> i64 {
    let ahead = i64::try_from(time).unwrap_or(i64::MAX).saturating_sub_unsigned(now.micros() / 1_000_000);
    match ahead {
        1.. => ahead,
        // What it shows is up to a tick old.
        behind => (behind + TICK).min(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_no_difference_is_none() {
        let now = Time::from_micros(1_000_999_999);
        let skews: Vec<i64> = [1000, 999, 998, 997, 940, 1001, 1060].map(|time| skew(time, now)).to_vec();
        assert_eq!(skews, [0, 0, 0, -1, -58, 1, 60]);
    }
}
