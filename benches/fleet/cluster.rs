//! One server more or less: the share of keys that moves, by the way gateways choose servers, and what a fleet admits
//! meanwhile.

use std::time::Duration;

use gateway::base::fingerprint::Fingerprint;
use gateway::limit::Limit;
use gateway::store::shared::simulation::server_of;

use super::exact::exactly;
use super::plan::{Change, Cut, Plan};
use super::tables;
use super::traffic::Traffic;

const KEYS: u32 = 100_000;
/// Enough keys for each of 100 servers.
const BUSY_KEYS: usize = 300;
const LIMIT: &str = "100/s";
const GATEWAYS: usize = 16;
const SECOND: Duration = Duration::from_secs(1);
const SIZES: [usize; 3] = [3, 10, 100];

pub(crate) fn print(seed: u64) {
    print_moved();
    println!(
        "\n## A server more or less after 2 s\n\n`{LIMIT}`, {BUSY_KEYS} keys, each asked for twice as often as allowed, \
         {GATEWAYS} gateways, for 5 s. What Memcached carries is that of the busiest server."
    );
    for servers in SIZES {
        let traffic = Traffic::new(2.0 * 100.0 * BUSY_KEYS as f64 / GATEWAYS as f64, BUSY_KEYS, 0.0);
        let plan = || Plan { servers, seed, traffic: traffic.clone(), ..Plan::new(GATEWAYS, exactly(LIMIT), 1.0, 1) };
        let change = |servers, over| Plan { change: Some(Change { servers, from: SECOND * 2, over }), ..plan() };
        let lost = || Cut::lost(servers - 1, SECOND * 2..SECOND * 10);
        let plans = [
            ("no change", plan()),
            ("one is added, at all gateways at once", change(servers + 1, Duration::ZERO)),
            ("one is added, at one gateway after the other within 1 s", change(servers + 1, SECOND)),
            ("one is taken off the list, at all gateways at once", change(servers - 1, Duration::ZERO)),
            ("one is lost", Plan { cut: lost(), ..plan() }),
            ("one is lost, and taken off the list 1 s later", {
                let mut plan = Plan { cut: lost(), ..change(servers - 1, Duration::ZERO) };
                plan.change.as_mut().unwrap().from = SECOND * 3;
                plan
            }),
        ];
        tables::print_table(
            &format!("{servers} servers"),
            plans.map(|(name, plan)| (name.to_owned(), plan)),
            BUSY_KEYS,
        );
    }
}

fn print_moved() {
    let limit = std::sync::Arc::new(Limit::new("limit", &[exactly("10/s")]));
    let keys: Vec<Fingerprint> = (0..KEYS).map(|key| Fingerprint::of(&key.to_be_bytes())).collect();
    let placed = |servers: usize| -> Vec<String> {
        let servers: Vec<String> =
            (0..servers).map(|host| format!("10.0.{}.{}:11211", host / 250, host % 250)).collect();
        keys.iter().map(|key| servers[server_of("gw", &limit, *key, &servers)].clone()).collect()
    };
    println!("\n## Keys that move, of {KEYS}\n");
    println!("| servers | one is added % | one is lost % | the busiest has, of its fair share % |");
    println!("|---|---|---|---|");
    for servers in SIZES {
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
            share(busiest) * servers as f64
        );
    }
}
