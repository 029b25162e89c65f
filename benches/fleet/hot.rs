//! One hot key: the load of the one server that holds it.

use std::time::{Duration, Instant};

use gateway::limit::Rate;

use super::exact::exactly;
use super::network::Network;
use super::outcome::Outcome;
use super::plan::Plan;
use super::traffic::Traffic;
use super::world::Fleet;

#[derive(Clone, Debug)]
pub(crate) struct Hot {
    pub(crate) gateways: usize,
    /// Per second, of all gateways together.
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) network: Network,
    pub(crate) seed: u64,
}

/// Prints a table row for each of: a limit that is never reached, one that is nearly reached, and one that refuses
/// half.
pub(crate) fn print(hot: &Hot) {
    let Hot { gateways, requests, seconds, network, .. } = hot;
    println!("\n## One key, {requests} requests/s at {gateways} gateways, {}, {seconds} s\n", network.name);
    println!(
        "| limit | strict | exchanges/s | commands/s | MB/s in, out | cores of Memcached | wait, mean and 99 % (ms) \
         | admitted of what the limit allows % | over the limit at most, mean % | without Memcached | computed in |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (share, what) in [(10.0, "10 times the load"), (1.1, "1.1 times"), (0.5, "half of it")] {
        for strict in [false, true] {
            let begun = Instant::now();
            let (rate, mut outcome) = run(hot, share, strict);
            row(&format!("{what} | {strict}"), hot, &rate, &mut outcome, begun.elapsed());
        }
    }
}

fn run(hot: &Hot, share: f64, strict: bool) -> (Rate, Outcome) {
    let rate = exactly(&format!("{}/s", (hot.requests as f64 * share) as u64));
    let plan = Plan {
        strict,
        network: hot.network,
        timeout: hot.network.timeout(),
        traffic: Traffic::new(hot.requests as f64 / hot.gateways as f64, 1, 1.0),
        length: Duration::from_secs_f64(hot.seconds),
        seed: hot.seed,
        ..Plan::new(hot.gateways, rate.clone(), 1.0, 1)
    };
    (rate, Fleet::run(plan, 1))
}

fn row(what: &str, hot: &Hot, rate: &Rate, outcome: &mut Outcome, computed: Duration) {
    let (work, cpu, seconds) = (outcome.work[0], outcome.cpu[0] / hot.seconds, hot.seconds);
    let excess = outcome.excess(rate.quota(), rate.window());
    let per_second = |count: u64| count as f64 / seconds;
    let quota = rate.quota() as f64;
    let allowed = (quota * seconds).min(outcome.requests as f64);
    println!(
        "| {what} | {:.0} | {:.0} | {:.1}, {:.1} | {cpu:.2} | {:.2}, {:.2} | {:.1} | {:.3}, {:.3} | {} | {:.0} s |",
        per_second(work.exchanges),
        per_second(work.writes + work.reads),
        per_second(work.bytes_in) / 1e6,
        per_second(work.bytes_out) / 1e6,
        outcome.wait.0 * 1e3,
        outcome.wait.1 * 1e3,
        outcome.admitted as f64 * 100.0 / allowed,
        excess.most as f64 * 100.0 / quota,
        excess.mean * 100.0 / quota,
        outcome.local + outcome.unknown,
        computed.as_secs_f64(),
    );
}
