//! Starts the gateway; the rest is in the library.

use std::process::ExitCode;

// The allocator of the C library keeps what many connections have given back, since what stays lies in between.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    gateway::cli::run()
}
