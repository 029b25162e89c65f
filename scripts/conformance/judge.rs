//! Verdicts from exchanges alone. Between a request and its response nobody knows when the limiter decided, so a limiter is only
//! blamed for what is wrong at any moment in between.

use std::time::{Duration, Instant};

use super::behaviour::{Outcome, Verdict};
use super::exchange::{Decision, Exchange, count};
use super::policy::{Algorithm, Rate};

/// By how much the clock of a limiter may differ from ours within a window: it may have no more than milliseconds, and a clock
/// that is being corrected runs faster or slower for a while.
fn slack(rate: Rate) -> Duration {
    Duration::from_millis(1) + rate.window / 100
}

/// Requests that surely lie within a time.
struct Crowd {
    count: usize,
    within: Duration,
    most: usize,
}

/// The crowd that is furthest over what may pass, or nearest to it.
fn densest(exchanges: &[&Exchange], rate: Rate, algorithm: Algorithm, has_edge: bool) -> Option<Crowd> {
    let mut by_end = exchanges.to_vec();
    by_end.sort_by_key(|exchange| exchange.received);
    let mut densest: Option<Crowd> = None;
    for first in exchanges {
        let inside = by_end.iter().filter(|other| other.sent >= first.sent);
        for (before, last) in inside.enumerate() {
            let within = last.received - first.sent + slack(rate);
            if within >= rate.window {
                break;
            }
            let crowd = Crowd { count: before + 1, within, most: rate.most(algorithm, within, has_edge) };
            let over = |crowd: &Crowd| crowd.count as f64 - crowd.most as f64;
            if densest.as_ref().is_none_or(|densest| over(&crowd) > over(densest)) {
                densest = Some(crowd);
            }
        }
    }
    densest
}

/// Whether no more than the rate has passed, and whether enough was sent to see it.
pub(crate) fn never_more(exchanges: &[Exchange], rate: Rate, algorithm: Algorithm, has_edge: bool) -> Outcome {
    let admitted: Vec<_> = exchanges.iter().filter(|exchange| exchange.is_admitted()).collect();
    let all: Vec<_> = exchanges.iter().collect();
    let total = format!("{} of {} requests were admitted", admitted.len(), exchanges.len());
    if let Some(crowd) = densest(&admitted, rate, algorithm, has_edge)
        && crowd.count > crowd.most
    {
        let within = crowd.within.as_secs_f64();
        let figure =
            format!("{total}, {} of them within {within:.3} s, where at most {} may pass", crowd.count, crowd.most);
        let may_be_edge = algorithm == Algorithm::FixedWindow && !has_edge && crowd.count <= 2 * rate.quota;
        return Outcome::new(if may_be_edge { Verdict::Suspect } else { Verdict::Failed }, figure);
    }
    // With fewer at once, a limiter without any limit would pass.
    let pressed = densest(&all, rate, algorithm, has_edge).is_some_and(|crowd| crowd.count > crowd.most);
    if !pressed {
        return Outcome::undecided(format!("{total}, but they came too slowly to exceed the limit"));
    }
    let rejected = count(exchanges, Decision::Rejected);
    let rejected = if rejected > 0 { format!(", {rejected} rejected") } else { String::new() };
    Outcome::new(Verdict::Passed, total + &rejected)
}

/// Whether a limiter that admits exactly what its log of admitted requests has room for might have decided like this.
/// Returns the decisions that surely differ: admitted too much, and refused too much.
pub(crate) fn against_exact_log(exchanges: &[Exchange], rate: Rate) -> (usize, usize) {
    let admitted: Vec<_> = exchanges.iter().filter(|exchange| exchange.is_admitted()).collect();
    let (mut over, mut under) = (0, 0);
    for exchange in exchanges {
        let others = admitted.iter().filter(|other| !std::ptr::eq(**other, exchange));
        if exchange.is_admitted() {
            // Decided before this one was sent, and still in its window when the response came.
            let surely = others.filter(|other| {
                other.received <= exchange.sent && exchange.received + slack(rate) < other.sent + rate.window
            });
            over += usize::from(surely.count() >= rate.quota);
        } else {
            let perhaps = others.filter(|other| {
                other.sent <= exchange.received && exchange.sent < other.received + rate.window + slack(rate)
            });
            under += usize::from(perhaps.count() < rate.quota);
        }
    }
    (over, under)
}

/// How many requests at these moments an exact log admits.
fn logged(mut moments: Vec<Instant>, rate: Rate) -> usize {
    moments.sort();
    let mut log: Vec<Instant> = Vec::new();
    for moment in moments {
        // As long as the last N are within the window, there is no room.
        let oldest = log.len().checked_sub(rate.quota).map(|at| log[at]);
        if oldest.is_none_or(|oldest| moment - oldest >= rate.window) {
            log.push(moment);
        }
    }
    log.len()
}

/// By which share the number of admitted requests differs from that of an exact log, wherever each was decided.
pub(crate) fn difference(exchanges: &[Exchange], rate: Rate) -> f64 {
    let admitted = exchanges.iter().filter(|exchange| exchange.is_admitted()).count();
    let sent = logged(exchanges.iter().map(|exchange| exchange.sent).collect(), rate);
    let received = logged(exchanges.iter().map(|exchange| exchange.received).collect(), rate);
    let nearest = admitted.clamp(sent.min(received), sent.max(received));
    admitted.abs_diff(nearest) as f64 / nearest.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::exchange::Response;
    use super::*;

    const RATE: Rate = Rate { quota: 2, window: Duration::from_secs(1) };

    /// Sent and received in milliseconds, and whether it was admitted.
    fn exchanges(times: &[(u64, u64, bool)]) -> Vec<Exchange> {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let response = |status| Response { status, headers: Vec::new(), body: Vec::new() };
        let all = times.iter().map(|(sent, received, is_admitted)| Exchange {
            sent: at(*sent),
            received: at(*received),
            response: response(if *is_admitted { 200 } else { 429 }),
        });
        all.collect()
    }

    fn verdict(algorithm: Algorithm, times: &[(u64, u64, bool)]) -> Verdict {
        never_more(&exchanges(times), RATE, algorithm, false).verdict
    }

    #[test]
    fn three_within_a_window_are_more_than_two() {
        let three = [(0, 5, true), (1, 6, true), (2, 900, true)];
        assert_eq!(verdict(Algorithm::Log, &three), Verdict::Failed);
        assert_eq!(verdict(Algorithm::FixedWindow, &three), Verdict::Suspect);
        // After 900 ms, a bucket has a token more.
        assert_eq!(verdict(Algorithm::TokenBucket, &three), Verdict::Undecided);
    }

    #[test]
    fn what_may_lie_outside_is_not_counted() {
        // The first one may have been decided at 500 ms or at 0, the third one may be a window later.
        assert_eq!(verdict(Algorithm::Log, &[(0, 500, true), (600, 601, true), (900, 1200, true)]), Verdict::Undecided);
    }

    #[test]
    fn what_clocks_may_differ_by_is_no_fault() {
        let four = [(0, 0, true), (0, 0, true), (490, 490, true), (990, 990, true)];
        assert_eq!(verdict(Algorithm::TokenBucket, &four), Verdict::Undecided);
        assert_eq!(
            verdict(Algorithm::TokenBucket, &four.map(|(sent, received, _)| (sent * 4 / 5, received * 4 / 5, true))),
            Verdict::Failed
        );
    }

    #[test]
    fn a_pass_needs_pressure() {
        assert_eq!(verdict(Algorithm::Log, &[(0, 1, true), (1, 2, true)]), Verdict::Undecided);
        assert_eq!(verdict(Algorithm::Log, &[(0, 1, true), (1, 2, true), (2, 3, false)]), Verdict::Passed);
    }

    #[test]
    fn numbers_are_compared_with_those_of_a_log() {
        let compared = |times: &[_]| (difference(&exchanges(times), RATE) * 100.0) as u32;
        assert_eq!(compared(&[(0, 1, true), (10, 11, true), (20, 21, false), (1002, 1003, true)]), 0);
        assert_eq!(compared(&[(0, 1, true), (10, 11, true), (20, 21, true)]), 50);
        assert_eq!(compared(&[(0, 1, true), (10, 11, false), (20, 21, false)]), 50);
        // The third one passes if it was decided when its response came.
        assert_eq!(compared(&[(0, 10, true), (20, 21, true), (999, 1015, false)]), 0);
        assert_eq!(compared(&[(0, 10, true), (20, 21, true), (999, 1015, true)]), 0);
    }

    #[test]
    fn decisions_are_compared_with_the_limiters_own_log() {
        let compared = |times: &[_]| against_exact_log(&exchanges(times), RATE);
        assert_eq!(compared(&[(0, 1, true), (10, 11, true), (20, 21, false), (1002, 1003, true)]), (0, 0));
        assert_eq!(compared(&[(0, 1, true), (10, 11, true), (20, 21, true)]), (1, 0));
        assert_eq!(compared(&[(0, 1, true), (10, 11, false)]), (0, 1));
        // At 1000 ms the first one may have left, or not.
        assert_eq!(compared(&[(0, 10, true), (20, 21, true), (1000, 1005, false)]), (0, 0));
        assert_eq!(compared(&[(0, 10, true), (20, 21, true), (1000, 1005, true)]), (0, 0));
    }
}
