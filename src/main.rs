//! Starts the gateway; the rest is in the library.
//!
//! The allocator is jemalloc, because one of its threads returns freed memory to the system. The allocator of the C
//! library cannot return it, because live blocks lie between the freed ones.

use std::process::ExitCode;

// The allocator of the C library cannot return the freed memory of many connections, since live blocks lie in between.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    gateway::commands::run()
}
