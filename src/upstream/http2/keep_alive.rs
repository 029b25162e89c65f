//! When a connection is asked whether its server still exists. Pure.
//!
//! A server that has disappeared, or a firewall that has forgotten a connection, sends nothing at all. Without pings, every
//! request on the connection would wait until its time limit. Pings must be rare: some servers end a connection on which they
//! get more than two pings without having sent anything in between, unless these are five minutes apart (gRPC).

use std::time::{Duration, Instant};

/// How long a server may be silent before it is asked, and how long its answer may take: the bounds of both.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// How soon a server is asked again that has sent nothing but an answer to the last ping, if there is no new request either.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// Since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// In bytes.
    pub(super) received: u64,
    /// Streams.
    pub(super) begun: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Well,
    Ask,
    Dead,
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    wait: Duration,
    last: Activity,
    /// Since when nothing has come although streams are open.
    silent_since: Instant,
    /// When the ping was sent that is not answered yet.
    asked: Option<Instant>,
    /// When the last ping was sent, if nothing but its answer has come since, and no stream was begun.
    asked_in_vain: Option<Instant>,
}

impl KeepAlive {
    /// `timeout` is the time limit of requests. A third of it passes in silence before the server is asked, and another third
    /// until the connection counts as dead, so that this is known before the request times out.
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        let wait = (timeout / 3).clamp(SHORTEST_WAIT, LONGEST_WAIT);
        Self { wait, last: Activity::default(), silent_since: now, asked: None, asked_in_vain: None }
    }

    /// Called regularly. `answered` says whether a ping was answered since the last call, and `is_in_use` whether there are
    /// streams.
    pub(super) fn check(&mut self, now: Instant, activity: Activity, answered: bool, is_in_use: bool) -> Check {
        let was = std::mem::replace(&mut self.last, activity);
        let is_heard = activity.received != was.received;
        if is_heard || !is_in_use {
            self.silent_since = now;
            self.asked = None;
        }
        if (is_heard && !answered) || activity.begun != was.begun {
            self.asked_in_vain = None;
        }
        if let Some(at) = self.asked {
            return if now - at < self.wait { Check::Well } else { Check::Dead };
        }
        let is_asked_lately = self.asked_in_vain.is_some_and(|at| now - at < ASK_AGAIN);
        if now - self.silent_since < self.wait || is_asked_lately {
            return Check::Well;
        }
        (self.asked, self.asked_in_vain) = (Some(now), Some(now));
        Check::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a connection once a second, with what has happened until each second. Returns what was to be done, with the
    /// second, until it is dead.
    fn checks(seconds: u64, happened: impl Fn(u64) -> (Activity, bool, bool)) -> Vec<(u64, Check)> {
        let begin = Instant::now();
        let mut keep_alive = KeepAlive::new(Duration::from_secs(30), begin);
        let mut found = Vec::new();
        for second in 0..seconds {
            let (activity, answered, is_in_use) = happened(second);
            let check = keep_alive.check(begin + Duration::from_secs(second), activity, answered, is_in_use);
            if check != Check::Well {
                found.push((second, check));
            }
            if check == Check::Dead {
                break;
            }
        }
        found
    }

    #[test]
    fn a_silent_server_is_asked_once_and_then_given_up() {
        let silent = |second| (Activity { received: 9, begun: 1 + second / 4 }, false, true);
        assert_eq!(checks(100, silent), [(10, Check::Ask), (20, Check::Dead)]);
    }

    #[test]
    fn who_sends_something_or_has_nothing_to_send_is_not_asked() {
        assert_eq!(checks(1000, |second| (Activity { received: second / 9, begun: 1 }, false, true)), []);
        assert_eq!(checks(1000, |_| (Activity::default(), false, false)), []);
    }

    #[test]
    fn who_answers_is_asked_again_after_five_minutes_or_for_a_new_request() {
        // The answer comes a second after the question.
        let answers = |pings: &'static [u64], begun: fn(u64) -> u64| {
            move |second: u64| {
                let received = pings.iter().filter(|ping| **ping < second).count() as u64;
                (Activity { received, begun: begun(second) }, pings.contains(&(second.wrapping_sub(1))), true)
            }
        };
        let asked = |seconds: &[u64]| seconds.iter().map(|second| (*second, Check::Ask)).collect::<Vec<_>>();
        assert_eq!(checks(700, answers(&[10, 310, 610], |_| 1)), asked(&[10, 310, 610]));
        assert_eq!(checks(300, answers(&[10, 100, 200], |second| second / 100)), asked(&[10, 100, 200]));
    }

    #[test]
    fn an_answer_ends_the_wait() {
        // Anything that comes shows that the server exists, not only an answer.
        let heard = |second| (Activity { received: u64::from(second > 15), begun: 1 }, false, true);
        assert_eq!(checks(30, heard), [(10, Check::Ask), (26, Check::Ask)]);
    }

    #[test]
    fn the_wait_follows_the_time_limit_within_bounds() {
        for (timeout, wait) in [(1, 1000), (9, 3000), (30, 10_000), (600, 10_000)] {
            let keep_alive = KeepAlive::new(Duration::from_secs(timeout), Instant::now());
            assert_eq!(keep_alive.wait, Duration::from_millis(wait));
        }
    }
}
