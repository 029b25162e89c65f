//! Starts the gateway; the rest is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    gateway::cli::run()
}
