//! A fleet of gateways that share limits in a store, in virtual time: how exact its limits are, and the load of
//! Memcached. The gateways decide with the code of real ones; only sockets, threads and clocks are simulated.
//!
//!     cargo bench --bench fleet                                     tables, bounds, cluster and hot
//!     cargo bench --bench fleet -- hot --gateways 200 --requests 1000000 --seconds 2
//!                                                                   one hot key
//!     cargo bench --bench fleet -- tables                           how exact limits are, and what that takes
//!     cargo bench --bench fleet -- bounds                           what is promised, and what was the most
//!     cargo bench --bench fleet -- cluster                          a server more or less, of 3, 10 and 100
//!     cargo bench --bench fleet -- share                            gateways that share limits without Memcached
//!     cargo bench --bench fleet -- load --requests 50000 --keys 1000000 --servers 3
//!                                                                   what each Memcached server carries
//!     cargo bench --bench fleet -- replay access.log                the clients of a log
//!     cargo bench --bench fleet -- measure                          a real Memcached on this machine
//!     cargo bench --bench fleet -- real --requests 100000           2, 4 and 8 real processes beside the simulation

#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod arguments;
mod server;
#[allow(dead_code, reason = "schedules of tests need more of it")]
mod valkey;
mod hosts;
mod network;
mod traffic;
mod exact;
mod plan;
mod outcome;
mod world;
mod bounds;
mod tables;
mod hot;
#[allow(dead_code, reason = "the other bench measures itself as well")]
#[path = "../store/cpu.rs"]
mod cpu;
#[path = "../store/memcached.rs"]
mod memcached;
mod measure;
#[path = "../accuracy/log.rs"]
mod log;
mod replay;
mod cluster;
mod share;
mod load;
mod real;

use clap::Parser;
use gateway::config::Software;

use arguments::{Arguments, What};
use hot::Hot;

fn print_bounds(gateways: usize, seed: u64) {
    println!("\n## What is promised, with up to {gateways} gateways and `200/s`, for each key\n");
    println!("| | the most in a window | promised at most |\n|---|---|---|");
    for bound in bounds::all(Software::Memcached, gateways, seed) {
        let name = bound.name;
        let bounds::Held { most, bound } = bound.check();
        println!("| {name} | {most} | {bound} |");
    }
}

fn main() {
    let Arguments { what, seed, .. } = Arguments::parse();
    let hot = |gateways, requests, seconds| {
        hot::print(&Hot { gateways, requests, seconds, network: network::ZONE, seed });
    };
    match what {
        Some(What::Hot { gateways, requests, seconds }) => hot(gateways, requests, seconds),
        Some(What::Measure) => measure::print(),
        Some(What::Tables) => tables::print(seed),
        Some(What::Bounds { gateways }) => print_bounds(gateways, seed),
        Some(What::Cluster) => cluster::print(seed),
        Some(What::Share) => share::print(seed),
        Some(What::Load(load)) => load::print(&load, seed),
        Some(What::Replay(replay)) => replay::print(&replay, seed),
        Some(What::Real { requests }) => real::print(requests, seed),
        Some(What::Process(task)) => real::run(&task),
        None => {
            tables::print(seed);
            print_bounds(32, seed);
            cluster::print(seed);
            hot(200, 1_000_000, 2.0);
        }
    }
}
