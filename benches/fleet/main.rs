//! A fleet of gateways that share limits in Memcached, in virtual time: how exact its limits are, and what Memcached
//! carries. The gateways decide with the code of the real one; only sockets, threads and clocks are simulated.
//!
//!     cargo bench --bench fleet                                     all tables
//!     cargo bench --bench fleet -- hot --gateways 200 --requests 1000000 --seconds 2
//!                                                                   one hot key

#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod server;
mod network;
mod traffic;
mod exact;
mod world;
mod bounds;
mod hot;
#[path = "../store/cpu.rs"]
mod cpu;
#[path = "../store/memcached.rs"]
mod memcached;
mod measure;

use clap::{Parser, Subcommand};

use hot::Hot;

/// See the head of this file.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// What is left to chance follows from it.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// What cargo adds.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum What {
    /// One hot key.
    Hot {
        #[arg(long, default_value_t = 200)]
        gateways: usize,
        /// Requests per second, of all gateways together.
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Length in virtual time.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// What exchanges cost a real Memcached here.
    Measure,
}

fn main() {
    let Arguments { what, seed, .. } = Arguments::parse();
    match what {
        Some(What::Hot { gateways, requests, seconds }) => {
            hot::print(&Hot { gateways, requests, seconds, network: network::ZONE, seed });
        }
        Some(What::Measure) => measure::print(),
        None => hot::print(&Hot { gateways: 200, requests: 1_000_000, seconds: 2.0, network: network::ZONE, seed }),
    }
}
