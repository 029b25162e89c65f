//! Which share of the keys moves to another server when one is added or lost, by where gateways look for them.

use gateway::fingerprint::Fingerprint;
use gateway::limit::Limit;
use gateway::store::memcached::simulation::server_of;

const KEYS: u32 = 100_000;

/// A table row for each size of a cluster.
pub(crate) fn print() {
    let limit = std::sync::Arc::new(Limit::new("limit", &["10/s".parse().unwrap()]));
    let keys: Vec<Fingerprint> = (0..KEYS).map(|key| Fingerprint::of(&key.to_be_bytes())).collect();
    let placed = |servers: u32| -> Vec<String> {
        let servers: Vec<String> =
            (0..servers).map(|host| format!("10.0.{}.{}:11211", host / 250, host % 250)).collect();
        keys.iter().map(|key| servers[server_of("gw", &limit, *key, &servers)].clone()).collect()
    };
    println!("\n## Keys that move, of {KEYS}\n");
    println!("| servers | one is added % | one is lost % | the busiest has, of its fair share % |");
    println!("|---|---|---|---|");
    for servers in [3, 10, 100] {
        let now = placed(servers);
        let moved = |other: Vec<String>| now.iter().zip(&other).filter(|(before, after)| before != after).count();
        let share = |count: usize| count as f64 * 100.0 / f64::from(KEYS);
        let mut counts = std::collections::HashMap::new();
        now.iter().for_each(|server| *counts.entry(server).or_insert(0_usize) += 1);
        let busiest = counts.values().copied().max().unwrap();
        println!(
            "| {servers} | {:.1} | {:.1} | {:.1} |",
            share(moved(placed(servers + 1))),
            share(moved(placed(servers - 1))),
            share(busiest) * f64::from(servers)
        );
    }
}
