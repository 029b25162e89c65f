//! The traffic of one client, and what an algorithm permits for the real sending times of its requests.
//!
//! A server decides between the moment before the request is sent and the moment after its response has arrived. So the count
//! at a decision has a lower and an upper bound, and a decision is wrong only if it contradicts both. On an idle machine the
//! bounds are a fraction of a millisecond apart, and on a busy one further apart, but always true.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Client, Response, unix};

/// How much older a server's clock may be, in seconds. nginx and HAProxy count in milliseconds, and read the clock once for all
/// waiting events.
const CLOCK: f64 = 0.005;

/// A request and its response, in seconds since the beginning of the traffic.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) sent: f64,
    pub(super) received: f64,
    pub(super) response: Response,
    pub(super) passed: bool,
}

/// A connection for the first request of a client, as a proxy in front would announce it.
#[track_caller]
pub(super) fn connect(server: SocketAddr, client: &str) -> Client {
    let mut connection = Client::connect(server);
    connection.send(format!("PROXY TCP4 {client} 127.0.0.1 1234 80\r\n"));
    connection
}

/// The only request of a connection, with more fields, each ending with `\r\n`.
pub(super) fn request(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: test.example\r\nConnection: close\r\n{fields}\r\n")
}

/// Sends `GET /` at each of these moments after `begun`, or as soon as the previous one has been answered.
#[track_caller]
pub(super) fn send(server: SocketAddr, client: &str, begun: Instant, schedule: &[Duration]) -> Vec<Exchange> {
    repeat(server, client, &request("GET", "/", ""), begun, schedule)
}

#[track_caller]
pub(super) fn repeat(
    server: SocketAddr,
    client: &str,
    request: &str,
    begun: Instant,
    schedule: &[Duration],
) -> Vec<Exchange> {
    let exchange = |moment: &Duration| {
        sleep(moment.saturating_sub(begun.elapsed()));
        let mut connection = connect(server, client);
        let sent = begun.elapsed().as_secs_f64();
        let response = connection.call(request);
        let received = begun.elapsed().as_secs_f64();
        let passed = response.status == 200;
        assert!(passed || [403, 429].contains(&response.status), "{response:?}");
        Exchange { sent, received, response, passed }
    };
    schedule.iter().map(exchange).collect()
}

/// `count` requests at once, then one after each `pause` until `end`.
pub(super) fn burst_then(count: usize, pause: Duration, end: Duration) -> Vec<Duration> {
    let mut schedule = vec![Duration::ZERO; count];
    let mut moment = pause;
    while moment < end {
        schedule.push(moment);
        moment += pause;
    }
    schedule
}

pub(super) fn passed(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|exchange| exchange.passed).count()
}

/// A token bucket, or, equivalently, a leaky bucket without a queue.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    /// Tokens per second.
    pub(super) rate: f64,
    pub(super) capacity: f64,
}

impl Bucket {
    /// Fails unless this bucket may make each decision.
    ///
    /// The usage of a bucket at a moment is the maximum, over all earlier admissions, of the admissions since then (inclusive)
    /// less what has drained since then.
    #[track_caller]
    pub(super) fn expect(self, who: &str, exchanges: &[Exchange]) {
        for (at, exchange) in exchanges.iter().enumerate() {
            let (mut least, mut most, mut admitted) = (0.0_f64, 0.0_f64, 0.0);
            for earlier in exchanges[..at].iter().rev().filter(|earlier| earlier.passed) {
                admitted += 1.0;
                least = least.max(admitted - self.rate * (exchange.received - earlier.sent + CLOCK));
                most = most.max(admitted - self.rate * (exchange.sent - earlier.received - CLOCK).max(0.0));
            }
            let (may_pass, may_fail) = (least + 1.0 <= self.capacity, most + 1.0 > self.capacity);
            let is_right = if exchange.passed { may_pass } else { may_fail };
            assert!(
                is_right,
                "{who}: request {at} at {:.3} s has passed: {}, but {least:.2} to {most:.2} of {} are used",
                exchange.sent, exchange.passed, self.capacity
            );
        }
    }

    /// Fails unless two servers have let the same number of requests pass, up to one and the bucket's gain in the time by which
    /// their traffic differed: each lets `capacity` + `rate` x time pass, rounded down, until it refuses a request.
    #[track_caller]
    pub(super) fn expect_alike(self, peer: &[Exchange], ours: &[Exchange]) {
        // `None` if nothing was refused: the machine was too busy to send more than the rate.
        let until_refused = |exchanges: &[Exchange]| {
            let last = exchanges.iter().rposition(|exchange| !exchange.passed)?;
            let (first, end) = (&exchanges[0], &exchanges[last]);
            // After such a pause, the bucket may have been full again, and the overflow is lost.
            let pause = exchanges.windows(2).map(|pair| pair[1].received - pair[0].sent).fold(0.0, f64::max);
            let was_full = pause * self.rate > self.capacity - 1.0;
            let shortest = end.sent - first.received - CLOCK;
            (!was_full).then(|| (passed(&exchanges[..last]), shortest, end.received - first.sent + CLOCK))
        };
        let (Some(peers), Some(ours)) = (until_refused(peer), until_refused(ours)) else { return };
        let tolerance = 1.0 + self.rate * (peers.2.max(ours.2) - peers.1.min(ours.1));
        #[allow(clippy::cast_precision_loss)] // These are some hundreds.
        let difference = peers.0.abs_diff(ours.0) as f64;
        assert!(difference <= tolerance, "{} and {} passed, tolerance {tolerance:.2}", peers.0, ours.0);
    }
}

/// A sliding window of two counters: the current period, and the share of the previous one that the window still contains.
pub(super) struct SlidingWindow {
    /// In seconds.
    pub(super) period: f64,
    pub(super) quota: f64,
    /// The beginning of some period: the earliest and the latest moment.
    pub(super) origin: [f64; 2],
    pub(super) counts_refused: bool,
}

impl SlidingWindow {
    /// Fails unless this window may make each decision.
    #[track_caller]
    pub(super) fn expect(&self, who: &str, exchanges: &[Exchange]) {
        for (at, exchange) in exchanges.iter().enumerate() {
            let (least, most) = self.bounds(&exchanges[..at], exchange);
            let is_right = if exchange.passed { least <= self.quota } else { most > self.quota };
            assert!(
                is_right,
                "{who}: request {at} at {:.3} s has passed: {}, but the count is {least} to {most}",
                exchange.sent, exchange.passed
            );
        }
    }

    /// The periods between the origin and the decision of a request, at least and at most. None before the first.
    fn periods(&self, exchange: &Exchange) -> (f64, f64) {
        let [earliest, latest] = self.origin;
        let periods = |moment: f64| (moment / self.period).max(0.0);
        (periods(exchange.sent - CLOCK - latest), periods(exchange.received - earliest))
    }

    /// The count with a request, at least and at most, for each period in which it may have been decided.
    fn bounds(&self, earlier: &[Exchange], exchange: &Exchange) -> (f64, f64) {
        let counted = earlier.iter().filter(|earlier| earlier.passed || self.counts_refused);
        let counted: Vec<_> = counted.map(|earlier| self.periods(earlier)).collect();
        let (soonest, latest) = self.periods(exchange);
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        let mut period = soonest.floor();
        while period <= latest {
            let (mut in_current, mut in_previous) = ((1.0, 1.0), (0.0_f64, 0.0_f64));
            for (first, last) in counted.iter().map(|(first, last)| (first.floor(), last.floor())) {
                let count = |is_counted: bool| f64::from(u8::from(is_counted));
                let before = period - 1.0;
                in_current.0 += count(first >= period);
                in_current.1 += count(last >= period);
                in_previous.0 += count(first >= before && first < period);
                in_previous.1 += count(last >= before && last < period);
            }
            let share = |moment: f64| (1.0 - (moment - period)).clamp(0.0, 1.0);
            least = least.min(in_current.0 + (in_previous.0 * share(latest)).floor());
            most = most.max(in_current.1 + (in_previous.1 * share(soonest)).floor());
            period += 1.0;
        }
        (least, most)
    }
}

/// The last multiple of `period` of the Unix clock, in seconds relative to now.
pub(super) fn last_multiple(period: f64) -> f64 {
    -(unix().as_secs_f64() % period)
}
