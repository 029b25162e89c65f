//! Starts the gateway; the rest is in the library.

use std::process::ExitCode;

// The allocator is jemalloc: one of its threads returns freed memory to the system. The allocator of the C library
// cannot return the memory of many closed connections, because live blocks lie in between.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    gateway::commands::run()
}
