//! An access log instead of random traffic: each client address is a key, and each request goes to a gateway by chance, as
//! behind a load balancer.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::arguments::Replay;
use super::exact::exactly;
use super::log;
use super::plan::Plan;
use super::tables;

/// For each request, the time since the first one, and its key. The key with the most requests is the first.
fn read(path: &Path) -> (Vec<(Duration, usize)>, usize) {
    let requests = log::read(path);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    requests.iter().for_each(|(client, _)| *counts.entry(client).or_default() += 1);
    let mut clients: Vec<_> = counts.into_iter().collect();
    clients.sort_unstable_by_key(|(client, count)| (std::cmp::Reverse(*count), *client));
    let keys: HashMap<&str, usize> = clients.iter().enumerate().map(|(key, (client, _))| (*client, key)).collect();
    let first = requests.first().unwrap_or_else(|| panic!("{}: no line is in the common format", path.display())).1;
    let at = |time: u64| Duration::from_micros(time - first);
    let requests = requests.iter().map(|(client, time)| (at(*time), keys[client.as_str()])).collect();
    (requests, keys.len())
}

/// Prints a table row for each speed, with and without `strict`.
pub(crate) fn print(replay: &Replay, seed: u64) {
    let Replay { log, rate, gateways, speed } = replay;
    let (requests, keys) = read(log);
    let (last, _) = requests[requests.len() - 1];
    println!(
        "\n## A log of {} requests by {keys} clients in {} h, `{rate}`, precision 10, edge \"whole\", {gateways} gateways",
        requests.len(),
        last.as_secs() / 3_600,
    );
    let plans = speed.iter().map(|speed| {
        // The first request comes when everything is connected.
        let begin = Duration::from_secs(1);
        let log = requests.iter().map(|(at, key)| (begin + *at / *speed, *key)).collect();
        let length = begin * 2 + last / *speed;
        let plan = Plan { log, length, seed, ..Plan::new(*gateways, exactly(rate), 1.0, 1) };
        (format!("{speed} times"), plan)
    });
    tables::print_table("as fast", plans, keys);
}
