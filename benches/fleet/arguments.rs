//! The command line of the bench.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gateway::limit::Rate;

/// Simulates fleets of gateways.
#[derive(Parser)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// What is left to chance follows from it.
    #[arg(long, default_value_t = 1, global = true)]
    pub(crate) seed: u64,
    /// What cargo adds.
    #[arg(long, hide = true, global = true)]
    pub(crate) bench: bool,
}

#[derive(Subcommand)]
pub(crate) enum What {
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
    /// How exact limits are, and what that takes.
    Tables,
    /// What is promised, and what was the most.
    Bounds {
        #[arg(long, default_value_t = 32)]
        gateways: usize,
    },
    /// A server more or less.
    Cluster,
    /// Gateways that share limits without Memcached.
    Share,
    /// What each Memcached server carries.
    Load(Load),
    /// The clients of a log.
    Replay(Replay),
    /// Real processes beside the simulation.
    Real {
        /// Requests per second, of all processes together.
        #[arg(long, default_value_t = 100_000)]
        requests: u64,
    },
    /// One of those processes.
    #[command(hide = true)]
    Process(Task),
}

/// What is asked of the fleet.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    #[arg(long, default_value_t = 10)]
    pub(crate) gateways: usize,
    #[arg(long, default_value_t = 3)]
    pub(crate) servers: usize,
    /// Requests per second, of all gateways together.
    #[arg(long, default_value_t = 50_000)]
    pub(crate) requests: u64,
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) keys: usize,
    /// The key at rank r is asked for in proportion to 1/r^this: 0 for keys that are all alike.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) exponent: f64,
    #[arg(long, value_delimiter = ',', default_values = ["10/s", "3000/10m"])]
    pub(crate) rates: Vec<Rate>,
    #[arg(long)]
    pub(crate) strict: bool,
    /// Length in virtual time.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) seconds: f64,
}

/// What is replayed.
#[derive(Args, Clone, Debug)]
pub(crate) struct Replay {
    /// In the common or the combined format.
    pub(crate) log: PathBuf,
    /// The limit of each client address.
    #[arg(long, default_value = "10/m")]
    pub(crate) rate: String,
    #[arg(long, default_value_t = 16)]
    pub(crate) gateways: usize,
    /// How many times as fast as it was.
    #[arg(long, value_delimiter = ',', default_values = ["1", "1000", "10000"])]
    pub(crate) speed: Vec<u32>,
}

/// What one process does.
#[derive(Args, Clone, Debug)]
pub(crate) struct Task {
    #[arg(long)]
    pub(crate) server: String,
    /// How many requests per second the limit allows.
    #[arg(long)]
    pub(crate) limit: u64,
    #[arg(long)]
    pub(crate) strict: bool,
    /// Requests per second of this process.
    #[arg(long)]
    pub(crate) requests: f64,
    /// When it begins, in microseconds since 1970.
    #[arg(long)]
    pub(crate) begin: u64,
    #[arg(long)]
    pub(crate) number: u64,
}
