//! What a client can get if it knows the algorithm, and what a key costs.

use std::sync::Arc;

use gateway::base::clock::Time;
use gateway::base::fingerprint::Fingerprint;
use gateway::limit::{Limit, Rate};
use gateway::store::Ask;
use gateway::store::memory::Memory;

use super::{Seen, Watched, counted, strategies};

const SECOND: u64 = 1_000_000;
const WINDOW: u64 = 60 * SECOND;

/// A client that knows the clock sends one request, waits for an edge, and sends requests until one is refused. Then it
/// goes on with at most `pace` requests a second.
fn most(rate: &Rate, pace: u64) -> u64 {
    let mut most = 0;
    // The last moment of 1, 4, 10 and 60 buckets, the middle, and the beginning.
    for offset in [WINDOW - 1, WINDOW / 4 - 1, WINDOW / 10 - 1, SECOND - 1, WINDOW / 2, 0] {
        let start = 1_000 * WINDOW + offset;
        let mut watched = Watched::new(rate, start + 1 - WINDOW);
        let mut seen = Seen::default();
        // A fixed window begins here, and ends right after the burst.
        watched.ask(start + 1 - WINDOW, &mut seen);
        while watched.ask(start, &mut seen) {}
        // Right at the edge, and a hundred times a second from there on.
        for step in 0..3 * 60 * 100 {
            let now = start + 1 + step * SECOND / 100;
            (0..pace / 100).take_while(|_| watched.ask(now, &mut seen)).for_each(drop);
        }
        most = most.max(seen.most);
    }
    most
}

/// Prints the largest number of admissions in any exact minute.
pub(crate) fn edges() {
    let rate: Rate = "600/m".parse().unwrap();
    println!("## The most in any window of a minute, as a multiple of the quota of {rate}\n");
    println!("| | from a client that asks 100 000 times a second | 100 times a second, ten times its rate |");
    println!("|---|---|---|");
    for (name, strategy) in strategies() {
        let rate = counted(&rate, &strategy).unwrap();
        let times = |pace| most(&rate, pace) as f64 / rate.quota() as f64;
        println!("| {name} | {:.2} | {:.2} |", times(100_000), times(100));
    }
}

/// In bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Prints the memory of a key in the process and in Memcached, with one rate of 100 a minute that is used up.
pub(crate) fn costs() {
    let keys = 50_000_u64;
    // Keeps the stores until the end. Otherwise one could use the memory that another has freed, and would seem to need
    // none.
    let mut stores = Vec::new();
    println!("\n## What a key costs: 100/m, used up\n");
    println!("| | bytes in memory | counters in Memcached | values in Memcached, bytes |");
    println!("|---|---|---|---|");
    for (name, strategy) in strategies() {
        let rate = counted(&"100/m".parse().unwrap(), &strategy).unwrap();
        let limit = Arc::new(Limit::new("l", &[rate]));
        let memory = Memory::new(200_000, usize::MAX);
        // The current time, because the length of an encoded time depends on it.
        let now = 30_000_000 * WINDOW;
        let before = resident();
        for key in 0..keys {
            let key = Fingerprint::of(&key.to_be_bytes());
            for step in 0..100 {
                memory.decide(&[Ask::new(&limit, key, 1)], Time::from_micros(now + step));
            }
        }
        let bytes = resident().saturating_sub(before) / keys;
        stores.push(memory);
        let mut cell = gateway::limit::Cell::new(limit.rates(), Time::from_micros(now));
        let counters = cell.counts_mut().count();
        // A request every 600 ms, as in a full window of real traffic.
        for step in 0..100 {
            let now = Time::from_micros(now + step * 600_000);
            cell.advance(limit.rates(), now);
            limit.charge(&mut cell, now, 1);
        }
        let value = if limit.is_whole() { cell.save(0).len() } else { 0 };
        println!("| {name} | {bytes} | {counters} | {value} |");
    }
}
