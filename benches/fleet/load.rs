//! The load of each Memcached server, for numbers of gateways, servers, keys and rates, and the number of exchanges by the
//! formula of docs/scale.md.

use std::time::Duration;

use super::arguments::Load;
use super::hosts::COSTS;
use super::network::ZONE;
use super::plan::Plan;
use super::traffic::Traffic;
use super::world::Fleet;

/// Prints a table row for each server, and the mean of a request.
pub(crate) fn print(load: &Load, seed: u64) {
    let Load { gateways, servers, requests, keys, exponent, rates, strict, seconds } = load.clone();
    let each: Vec<String> = rates.iter().map(ToString::to_string).collect();
    println!(
        "\n## {requests} requests/s for {keys} keys by 1/rank^{exponent}, {}{}, {gateways} gateways, {servers} servers, \
         {}, {seconds} s\n",
        each.join(" and "),
        if strict { ", strict" } else { "" },
        ZONE.name,
    );
    let plan = Plan {
        servers,
        strict,
        traffic: Traffic::new(requests as f64 / gateways as f64, keys, exponent),
        length: Duration::from_secs_f64(seconds),
        seed,
        rates: rates.clone(),
        ..Plan::new(gateways, rates[0].clone(), 1.0, 1)
    };
    let outcome = Fleet::run(plan, keys);
    println!("| server | exchanges/s | names read/s | writes/s | Mbit/s in | Mbit/s out | cores |");
    println!("|---|---|---|---|---|---|---|");
    for (server, (work, cpu)) in outcome.work.iter().zip(&outcome.cpu).enumerate() {
        let per_second = |count: u64| count as f64 / seconds;
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.3} |",
            server + 1,
            per_second(work.exchanges),
            per_second(work.reads),
            per_second(work.writes),
            per_second(work.bytes_in) * 8.0 / 1e6,
            per_second(work.bytes_out) * 8.0 / 1e6,
            cpu / seconds,
        );
    }
    let all = outcome.work.iter().fold(super::server::Work::default(), |mut all, work| {
        all.add(*work);
        all
    });
    let asked = outcome.requests - outcome.remembered;
    let pairs = (gateways * servers) as f64;
    let expected = pairs * exchanges(asked as f64 / seconds / pairs, ZONE.mean() + COSTS.exchange);
    let each = |count: u64| count as f64 / asked as f64;
    println!(
        "\n{:.1} % of the requests were answered from remembered refusals, {:.1} % were admitted. Of the others each took \
         {:.3} exchanges, {:.2} names read, {:.2} writes, {:.0} bytes to Memcached and {:.0} bytes back, and waited {:.2} ms \
         in the mean, {:.2} ms at most with 99 %.",
        outcome.remembered as f64 * 100.0 / outcome.requests as f64,
        outcome.admitted as f64 * 100.0 / outcome.requests as f64,
        each(all.exchanges),
        each(all.reads),
        each(all.writes),
        each(all.bytes_in),
        each(all.bytes_out),
        outcome.wait.0 * 1e3,
        outcome.wait.1 * 1e3,
    );
    println!(
        "\nThe formula of docs/scale.md says {:.0} exchanges/s for each server; they were {:.0}.",
        expected / servers as f64,
        all.exchanges as f64 / seconds / servers as f64
    );
}

/// Exchanges per second of a gateway with a server, for `decisions` per second that need one, if an exchange takes
/// `round_trip` seconds.
///
/// A first decision begins an exchange, and decisions before its answer wait for the next exchange. Admissions are written
/// with that exchange, or alone after a millisecond.
pub(crate) fn exchanges(decisions: f64, round_trip: f64) -> f64 {
    let alone = (-decisions * 1e-3).exp();
    (1.0 + alone) / (round_trip + (-decisions * round_trip).exp() / decisions)
}
